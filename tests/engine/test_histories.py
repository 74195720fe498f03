"""Random histories of a job on the modelled engine leave exact tables: see :mod:`tests.engine.histories`."""

import random

import pytest

from pipeline.core.events.message import message_of, sensor_event
from pipeline.core.panes.firing import CommitLimits
from pipeline.job import settings
from tests.engine.histories import ALL_FAULTS, ROLLUPS, History, published
from tests.engine.job import job_of, schema_of, spec_of
from tests.engine.service import RAISED
from tests.model.reference import HOUR, MINUTE, SECOND
from tests.model.world import START_US, Message
from tests.support.exhaustive import examples
from tests.support.streams import pubsub_message


@pytest.mark.parametrize("seed", range(examples(100)))
def test_random_histories_on_the_engine(seed):
    """Tables, roll-ups and results are exact after bundles, updates, drains, restarts and all faults together."""
    History.of(seed, sorted(ALL_FAULTS)).run()


@pytest.mark.parametrize("fault", sorted(ALL_FAULTS))
def test_any_history_with_one_fault(fault):
    """A fault is not hidden by others: a crash loses what tells that a worker was lost before it."""
    History.of(1, [fault]).run()


def test_refused_rows_leave_the_others_to_their_groups():
    """A worker gathers the readings beside a refused row again, for the groups of the job's launch."""
    History.of(501, ["refusals", "tools"]).run()


@pytest.mark.parametrize("page_bytes", [1, 1 << 20])
def test_steps_that_raise(page_bytes):
    """A step that raises, in any stage and at any point of a bundle, stops nothing and loses nothing.

    The worker goes on with its cache of state. Bags of several pages are read again, also where nothing raises.
    """
    rng = random.Random(1)
    history = History(spec_of("1h", "1d", rollups=ROLLUPS), rng, page_bytes=page_bytes, results="all")
    for _ in range(5):
        for number, sensor in enumerate("aba"):
            history.publish(published(sensor, history.job.now_us // 1000 * 1000 + number * 1000))
            for _ in range(2):
                history.job.work()
        history.job.advance(history.job.now_us + 6 * MINUTE - SECOND, history.job.now_us + 6 * MINUTE)
        for _ in range(10):
            history.job.work(rng.choice([None, RAISED]))
    history.run(0)


def catch_up(sensors, hours, limits, **how):
    """Lets a group of sensors catch up after an outage of some hours: the watermark leaps when all has been read."""
    rng, job = random.Random(1), job_of(schema_of("1h", "1d"), START_US, groups=1, limits=limits, **how)
    events = [
        sensor_event(f"s{number}", START_US + minute * MINUTE, {name: round(rng.gauss(20, 1), 2) for name in "thu"}, {})
        for minute in range(hours * 60)
        for number in range(sensors)
    ]
    rng.shuffle(events)
    with job.running():
        job.advance(START_US, START_US + hours * HOUR)
        for first in range(0, len(events), 500):
            job.publish(Message((), pubsub_message(message_of(events[first : first + 500]))))
            job.advance(now_us=job.now_us + 10 * SECOND)
            job.settle()
        job.pass_time(20 * MINUTE)
        job.drain()
    return job


def test_catching_up_of_a_fleet():
    """A group of a million sensors without a declared rate commits what it has read of an outage of fourteen hours.

    A group has 3,906 of them. This one has 4, and the engine a thousandth of Dataflow's limit.
    """
    job = catch_up(4, 14, {"commit_bytes": (180 << 20) // 976})
    assert sum(row["reading_count"] for (text, *_), row in job.rows().items() if text == "1h") == 4 * 14 * 60


@pytest.mark.parametrize("early_firing", ["5m", "0"])
def test_catching_up_of_a_larger_fleet(monkeypatch, early_firing):
    """Four million sensors have the same in the end, but their state has no room for the whole outage."""
    monkeypatch.setattr(settings, "CommitLimits", lambda: CommitLimits(180_000_000 // 976 // 4))
    job = catch_up(4, 14, {"commit_bytes": 180_000_000 // 976 // 4}, early_firing=early_firing)
    assert sum(row["reading_count"] for (text, *_), row in job.rows().items() if text == "1h") == 4 * 14 * 60


@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize("kind", ["rollup_members", "rollup_parts", "rollup"])
def test_a_crash_while_a_late_event_moves_a_sensor(kind, which):
    """The group that a sensor leaves is put right, whichever row of a roll-up the crash leaves as the last one."""
    history = History(spec_of("1h", rollups=ROLLUPS), random.Random(1))
    job, at_us = history.job, START_US // HOUR * HOUR - 3 * HOUR
    history.publish(published("a", at_us))
    job.pass_time(10 * MINUTE)
    history.publish(published("a", at_us + 10 * MINUTE))
    job.bigtable.begin()
    while not any(key.startswith(f"{kind}#".encode()) for _, key, _ in job.bigtable.sent):
        if not job.work():
            job.advance(now_us=job.now_us + SECOND // 2)
    job.bigtable.apply(job.bigtable.recall()[which])
    history.begin(job.now_us + SECOND)
    history.publish(*history.published)
    history.run(0)
