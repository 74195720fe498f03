"""What bundles cost: requests to the state, and the bytes of commits and of their elements."""

import random
from collections import Counter

import pytest
from apache_beam.runners.worker import data_plane

from pipeline.core.events.message import message_of, sensor_event
from pipeline.core.panes import group_state, grouped_readings
from pipeline.core.panes.firing import Aggregation, CommitLimits, FiringRules
from pipeline.core.panes.group_sizes import group_sizes
from pipeline.core.schema.rate import Rate, group_of
from pipeline.job import settings
from pipeline.transforms import aggregate
from tests.engine.job import job_of, schema_of
from tests.engine.service import TooLarge
from tests.model.reference import HOUR, MINUTE, Published
from tests.model.world import START_US, Message, message
from tests.support.streams import pubsub_message


@pytest.mark.parametrize(("cache_mb", "gets"), [(0, 1), (100, 0)])
def test_a_bundle_of_a_group_reads_its_schedule_once(cache_mb, gets):
    """Many elements cost the requests of one; with a cache, a further bundle reads nothing."""
    job = job_of(schema_of("1h"), START_US, cache_mb=cache_mb)
    stage, costs = job.stage("AggregateWindows"), []
    with job.running():
        for _ in range(3):
            for number in range(10):
                job.publish(message(Published("a", START_US + number, ("t",))))
                job.settle(*job.before("AggregateWindows"))
            ((key, elements),) = stage.waiting.items()
            assert len(elements) == 10
            before = Counter(stage.fragment.state.counts)
            stage.bundle(key, elements, [])
            costs.append(
                {kind: stage.fragment.state.counts[kind] - before[kind] for kind in ("get", "append", "clear")}
            )
    assert costs == [{"get": 1, "append": 2, "clear": 1}, *[{"get": gets, "append": 1, "clear": 0}] * 2]


def test_a_group_at_its_bound_can_be_committed(monkeypatch):
    """The largest group that a launch accepts commits its firings, if Dataflow's limits were a thousandth."""
    for module, name in (
        (group_state, "_CHUNK_BYTES"), (aggregate, "_MOST_BYTES"), (grouped_readings, "_MOST_BYTES"),
        (data_plane, "_DEFAULT_SIZE_FLUSH_THRESHOLD"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, getattr(module, name) // 1000)
    schema, metrics = schema_of("1h"), ("t", "h", "u")
    aggregation = Aggregation(schema.tiers, FiringRules(schema.tiers[0].window, 5 * MINUTE, MINUTE, 10 * MINUTE))
    sizes = group_sizes(aggregation, Rate(MINUTE, metrics=len(metrics), sensors=5000))
    names = [f"sensor-{number:09}" for number in range(30_000) if not group_of(b"sensor-%09d" % number, sizes.groups)]
    assert len(names) >= sizes.sensors
    rng = random.Random(1)
    commit = CommitLimits(round(sizes.windows_bytes / 0.75))
    monkeypatch.setattr(settings, "CommitLimits", lambda: commit)
    limits = {"commit_bytes": commit.bytes, "element_bytes": (80 << 20) // 1000}
    job = job_of(schema, START_US, limits=limits)
    with job.running():
        for _ in range(72):
            at_us = [job.now_us - rng.randrange(MINUTE) for _ in range(sizes.sensors)]
            readings = [{metric: round(rng.gauss(20, 1), 2) for metric in metrics} for _ in at_us]
            events = [sensor_event(*each, {}) for each in zip(names, at_us, readings, strict=False)]
            job.publish(Message((), pubsub_message(message_of(events))))
            job.pass_time(MINUTE)
    assert job.stage("AggregateWindows").largest[0] > sizes.windows_bytes / 2


def test_a_commit_beyond_the_limit_is_refused():
    """The engine refuses what Dataflow would."""
    job = job_of(schema_of("1h"), START_US, limits={"commit_bytes": 1000})
    with job.running():
        job.publish(*(message(Published(f"s{number}", START_US, ("t",))) for number in range(100)))
        with pytest.raises(TooLarge):
            job.settle()


def test_a_reading_after_a_firing_in_one_bundle():
    """What the bundle keeps of a group's schedule is what the firing has left: the reading is in the next pane."""
    job, at_us = job_of(schema_of("1h"), START_US), START_US + 3 * HOUR  # a window that is not read from the table
    stage = job.stage("AggregateWindows")

    class Between:
        """Lets the timer fire between the two elements."""

        def shuffle(self, calls):
            calls[1:] = reversed(calls[1:])

    with job.running():
        job.advance(at_us, at_us)
        job.publish(message(Published("a", at_us, ("t",))))
        job.settle()
        ((key, timers),) = stage.timers.items()
        fires_us = timers["ts-clock"][0].fire_timestamp.micros
        for number in (1, 2):
            job.publish(message(Published("a", at_us + number, ("t",))))
            job.settle(*job.before("AggregateWindows"))
        job.advance(now_us=fires_us)
        fires = [("ts-clock", timers["ts-clock"][0])]
        job.pass_on(*stage.bundle(key, stage.waiting[key], fires, random=Between()))
        job.pass_time(6 * MINUTE)
        ((_, row),) = job.rows().items()
    assert row["reading_count"] == 3
