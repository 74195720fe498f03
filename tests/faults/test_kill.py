"""The process is killed at any moment."""

import random
import subprocess
import sys
from itertools import cycle

import pytest

from tests.faults import judge
from tests.faults.feed import Feed, fleet_messages, repair
from tests.job.running import running_job
from tests.support.waiting import eventually


@pytest.mark.timeout(420)
def test_the_job_killed_ten_times(resources, tmp_path):
    """Nothing is published again, and nothing is lost; a repair writes what killed jobs had not aggregated."""
    rng = random.Random(20)
    feed = Feed(resources)
    messages = fleet_messages(hours=6, sensors=20, batch=5)
    share = -(-len(messages) // 10)
    for kill in range(10):
        feed.publish(messages[kill * share : (kill + 1) * share])
        before = len(resources.raw_keys())
        with running_job(resources.flags(), tmp_path / f"{kill}.log") as job:
            if rng.random() < 0.7:  # while it writes; otherwise as soon as it reads
                eventually(lambda before=before: len(resources.raw_keys()) > before)
            job.process.kill()
    with running_job(resources.flags(), tmp_path / "last.log") as job:
        eventually(lambda: resources.raw_keys() >= set(map(judge.raw_key, feed.events)), 90)
        feed.wait_letters()
        assert job.stop() == 0
    done = repair(resources, "--force")  # including the hour in progress, which no job writes now
    assert done.returncode == 0, done.stderr
    feed.assert_exact(letters_once=False)


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
