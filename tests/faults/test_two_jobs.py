"""Two jobs run where there should be one."""

from pipeline.core.events.publishing import message_of
from pipeline.core.events.wire import sensor_event
from pipeline.core.schema.toml import parse_schema
from tests.faults.feed import HOUR_US, MINUTE_US, Feed, fleet_messages, now_us, repair
from tests.job.running import running_job
from tests.support import courses
from tests.support.lasting import lasting
from tests.support.waiting import eventually


def test_same_subscription_and_table(resources, log, tmp_path):
    """Each job gets a part of the messages and does not see the other's; a repair makes the table exact."""
    feed = Feed(resources)
    with (
        running_job(resources.flags(), log) as one,
        running_job(resources.flags(), tmp_path / "other.log") as other,
    ):
        for seed in range(8):
            feed.publish(fleet_messages(hours=4, batch=3, seed=seed))
        raw_keys = {f"{event.sensor_id}#{10**16 - 1 - event.event_time.ToMicroseconds()}" for event in feed.events}
        eventually(lambda: resources.raw_keys() >= raw_keys, 90)
        assert (one.stop(), other.stop()) == (0, 0)
    shares = [job.counters().get("messages", 0) for job in (one, other)]
    assert min(shares) > 0
    assert sum(shares) == feed.messages
    done = repair(resources, "--force")  # including the hour in progress, which no job writes now
    assert done.returncode == 0, done.stderr
    feed.assert_exact()


def test_statistics_that_continue_from_the_other_jobs_readings(resources, log, tmp_path):
    """After a repair, every window continues from the last reading before it, whichever job read that."""
    schema = lasting(parse_schema(courses.SCHEMA))
    resources.table = resources.table_of(schema)
    start_us = now_us() // HOUR_US * HOUR_US - 6 * HOUR_US
    readings = {
        start_us + n * 7 * MINUTE_US: {"t": float(13 * n % 17), **({"u": float(n % 5)} if n % 3 else {})}
        for n in range(48)
    }
    with (
        running_job(resources.flags(), log) as one,
        running_job(resources.flags(), tmp_path / "other.log") as other,
    ):
        for number, (time_us, of_event) in enumerate(readings.items()):
            resources.publish([message_of([sensor_event("a", time_us, of_event, {})])])
            if number % 8 == 7:
                eventually(lambda number=number: len(resources.raw_keys()) == number + 1, 60)
        assert (one.stop(), other.stop()) == (0, 0)
    done = repair(resources, "--force")
    assert done.returncode == 0, done.stderr
    courses.check(courses.stored(resources.table, schema), readings)
