"""The process is killed at any moment."""

import random
import subprocess
import sys
import time
from itertools import cycle

import pytest

from pipeline.core.events.message import sensor_event
from pipeline.core.schema.toml import parse_schema
from tests.faults import judge
from tests.faults.feed import HOUR_US, Feed, batches, fleet_messages, now_us, series
from tests.job.running import running_job
from tests.support.lasting import lasting
from tests.support.results import columns, decoded, newest_columns
from tests.support.waiting import eventually


@pytest.mark.timeout(420)
def test_the_job_killed_ten_times(resources, tmp_path, feed):
    """Nothing is published again and nothing is repaired: nothing is lost, and every aggregate is exact."""
    rng = random.Random(20)
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
        feed.wait_counted(90)
        feed.wait_letters()
        assert job.stop() == 0
    feed.assert_exact(letters_once=False)


@pytest.mark.timeout(420)
@pytest.mark.parametrize("writer", ["connector", "bulk"])
def test_windows_that_get_nothing_more(resources, tmp_path, writer):
    """No repair, and nothing is published again: every window is exact, and the result of each that is over its row."""
    rng, feed = random.Random(writer), Feed(resources)
    topic, subscription = resources.feed("results")
    flags = resources.flags(results_topic=topic, early_firing="30s", late_firing="30s", bigtable_writer=writer)
    start_us = now_us() // HOUR_US * HOUR_US - 5 * HOUR_US
    events = [event for sensor in range(20) for event in series(f"s{sensor}", start_us, 299 + sensor)]
    rng.shuffle(events)
    messages = list(batches(events, 20))
    share = -(-len(messages) // 3)
    for kill in range(3):
        feed.publish(messages[kill * share : (kill + 1) * share])
        with running_job(flags, tmp_path / f"{kill}.log") as job:
            feed.wait_read()
            feed.wait_read()  # what came before is acknowledged
            job.process.kill()
    for kill in range(3):  # while windows are restored
        with running_job(flags, tmp_path / f"again-{kill}.log") as job:
            time.sleep(rng.uniform(0, 3))
            job.process.kill()
    results = []

    def published():
        results.extend(decoded(each.message) for each in resources.pull(subscription))
        return newest_columns(results)

    with running_job(flags, tmp_path / "last.log") as job:
        feed.wait_counted(90)
        over = {window: row for window, row in columns(resources.rows()).items() if window[2] < start_us + 5 * HOUR_US}
        assert len(over) == 20 * 5
        eventually(lambda: {window: each for window, each in published().items() if window in over} == over)
        assert job.stop() == 0
    feed.assert_exact()
    assert judge.work_list(resources.table) == set()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ends", ["killed", "stopped"])
def test_a_longer_window_that_gets_nothing_more(resources, tmp_path, ends):
    """Its shorter ones were over and written when the process ended: its row and its result follow at its end."""
    resources.table = resources.table_of(lasting(parse_schema('tiers = { 5s = "stats", 1m = "minutes" }')))
    topic, subscription = resources.feed("results")
    flags = resources.flags(results_topic=topic, early_firing="0", allowed_lateness="1s")

    def count(tier):
        return [row[f"{tier}:reading_count"] for row in resources.rows().values() if f"{tier}:reading_count" in row]

    eventually(lambda: time.time() % 60 < 35, 60)
    Feed(resources).publish(batches([sensor_event("a", now_us(), {"t": 1.0}, {})], 1))
    with running_job(flags, tmp_path / "first.log") as job:
        eventually(lambda: count("stats") == ["1"])
        if ends == "killed":
            job.process.kill()
        else:
            assert job.stop() == 0
    results = []

    def published():
        results.extend(decoded(each.message) for each in resources.pull(subscription))
        return {(each.tier, each.reading_count) for each in results}

    with running_job(flags, tmp_path / "last.log") as job:
        eventually(lambda: count("minutes") == ["1"], 90)
        eventually(lambda: published() == {("5s", 1), ("1m", 1)})
        assert job.stop() == 0


STEPS = ("pulled", "running", "written", "acknowledged")


@pytest.mark.timeout(420)
def test_killed_between_any_two_steps(resources, feed):
    """If a batch is acknowledged after it has succeeded, nothing is lost and every aggregate is exact at once."""
    rng = random.Random(7)
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
