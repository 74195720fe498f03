"""Two jobs run where there should be one."""

import re
import signal
import subprocess

from pipeline.core.events.message import message_of, sensor_event
from pipeline.core.schema.toml import parse_schema
from tests.faults import judge
from tests.faults.feed import HOUR_US, MINUTE_US, batches, fleet_messages, now_us, repair, series
from tests.job.running import running_job
from tests.support import courses
from tests.support.lasting import lasting
from tests.support.preloaded import JOB
from tests.support.waiting import eventually


def test_same_subscription_and_table(resources, log, tmp_path, feed):
    """The second process is refused before it reads a message. The first goes on, and every row is exact at once."""
    with running_job(resources.flags(), log) as one:
        feed.publish(fleet_messages(hours=2))
        other = subprocess.run([*JOB, *resources.flags()], capture_output=True, text=True, timeout=60)
        assert other.returncode == 1
        (line,) = other.stderr.splitlines()
        assert line.startswith(f"tidetable: subscription {resources.subscription} is being read into table ")
        assert re.search(r" by process \d+ on \S+, last seen at 20\S+Z; ", line)
        feed.wait_counted()
        assert one.stop() == 0
    feed.assert_exact()


def test_the_process_after_one_that_was_killed(resources, log, tmp_path, feed):
    """It begins at once, says so and completes the table. After a stop in order, it says nothing."""
    with running_job(resources.flags(late_firing="2h"), log) as job:  # the panes of these events never fire
        feed.publish(batches(series("a", now_us() // HOUR_US * HOUR_US - HOUR_US, 50), 5))
        eventually(lambda: resources.raw_keys() >= set(map(judge.raw_key, feed.events)))
        job.process.kill()
    with running_job(resources.flags(late_firing="2h"), tmp_path / "next.log") as job:
        assert "waiting for" not in job.log
        assert "the process before this one did not stop in order; it was last seen at " in job.log
        feed.wait_counted()
        assert job.stop() == 0
    feed.assert_exact(letters_once=False)
    with running_job(resources.flags(), tmp_path / "last.log") as job:
        assert "did not stop in order" not in job.log
        assert job.stop(signal.SIGTERM) == 0


def test_statistics_that_continue_from_the_other_jobs_readings(resources, log, tmp_path):
    """After a repair, every window continues from the last reading before it, whichever job read that."""
    schema = lasting(parse_schema(courses.SCHEMA))
    resources.table = resources.table_of(schema)
    start_us = now_us() // HOUR_US * HOUR_US - 6 * HOUR_US
    readings = {
        start_us + n * 7 * MINUTE_US: {"t": float(13 * n % 17), **({"u": float(n % 5)} if n % 3 else {})}
        for n in range(48)
    }
    topic, subscription = resources.feed("others")
    with (
        running_job(resources.flags(), log) as one,
        running_job(resources.flags(input_subscription=subscription), tmp_path / "other.log") as other,
    ):
        for number, (time_us, of_event) in enumerate(readings.items()):
            event = message_of([sensor_event("a", time_us, of_event, {})])
            resources.publish([event], topic if number % 2 else None)
            if number % 8 == 7:
                eventually(lambda number=number: len(resources.raw_keys()) == number + 1, 60)
        assert (one.stop(), other.stop()) == (0, 0)
    done = repair(resources, "--include-unsettled")
    assert done.returncode == 0, done.stderr
    courses.check(courses.stored(resources.table, schema), readings)
