"""The process is killed at any moment."""

import random
import subprocess
import sys
from itertools import cycle

import pytest

from tests.faults import judge
from tests.faults.feed import HOUR_US, Feed, batches, fleet_messages, now_us, repair, series
from tests.job.running import running_job
from tests.support.waiting import eventually


@pytest.mark.timeout(420)
def test_the_job_killed_twenty_times(resources, tmp_path):
    """The DirectRunner acknowledges first: kill -9 can lose what it had pulled, and leave incomplete aggregates.

    It loses nothing else, and writes nothing that was not published. Publishing the feed again makes the table exact,
    with a repair of the windows that got no further event.
    """
    rng = random.Random(20)
    feed = Feed(resources)
    start_us = now_us() // HOUR_US * HOUR_US - 4 * HOUR_US
    events = [event for sensor in range(4) for event in series(f"s{sensor}", start_us, 180)]
    rng.shuffle(events)
    messages = list(batches(events, 5))
    share = len(messages) // 20
    for kill in range(20):
        feed.publish(messages[kill * share : (kill + 1) * share])
        with running_job(resources.flags(), tmp_path / f"{kill}.log") as job:
            if rng.random() < 0.8:  # while it writes; otherwise as soon as it reads
                eventually(resources.raw_keys)
            job.process.kill()
    keys = {f"{event.sensor_id}#{10**16 - 1 - judge.microseconds(event)}" for event in events}
    assert resources.raw_keys() <= keys
    feed.publish(messages)
    with running_job(resources.flags(), tmp_path / "last.log") as job:
        eventually(lambda: resources.raw_keys() == keys, 90)
        assert job.stop() == 0
    done = repair(resources, "--allowed-lateness", "0s")
    assert done.returncode == 0, done.stderr
    assert judge.differences(resources.table, events)[:20] == []


STEPS = ("pulled", "running", "written", "acknowledged")


@pytest.mark.timeout(420)
def test_killed_between_any_two_steps(resources):
    """If a batch is acknowledged after it has succeeded, nothing is lost and every aggregate is exact at once."""
    rng = random.Random(7)
    feed = Feed(resources)
    feed.publish(fleet_messages(hours=3, batch=6))
    steps = cycle(STEPS)
    for _ in range(8):
        with batch_job(resources) as job:
            kill_at(job, next(steps), rng)
    with batch_job(resources) as job:
        while job.stdout.readline():
            next_step(job)
        assert job.wait(30) == 0
    feed.assert_exact(letters_once=False)


def batch_job(resources):
    flags = resources.flags(early_firing="0", late_firing="0")
    return subprocess.Popen(
        [sys.executable, "-m", "tests.faults.batch_job", *flags],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def kill_at(job, target, rng):
    """Kills the process at the step, in its second batch or later, or somewhere within the graph."""
    batch = 0
    while step := job.stdout.readline().strip():
        batch += step == "pulled"
        if batch >= 2 and step == target:
            break
        next_step(job)
        if batch >= 2 and step == "pulled" and target == "running":
            try:
                job.wait(rng.uniform(0.05, 1.0))
            except subprocess.TimeoutExpired:
                break
    assert step, "the feed was at its end before the kill"
    job.kill()
    job.wait(10)


def next_step(job):
    job.stdin.write("\n")
    job.stdin.flush()
