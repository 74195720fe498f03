"""A job on the modelled engine: lost workers, refused commits, updates, drains and restarts."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.job import KIND, Job, schema_of
from tests.engine.service import LOST, RAISED, REFUSED
from tests.model.reference import DAY, HOUR, MINUTE, SECOND, Published, Truth, start_of
from tests.model.world import START_US, message
from tests.support.exhaustive import examples
from tests.support.merged_rollups import differences, expected_rollups, found_rollups
from tests.support.results import newest_columns

_AGES = [0, 10 * SECOND, 5 * MINUTE, 40 * MINUTE, 2 * HOUR, 30 * HOUR, -20 * MINUTE]
_events = st.lists(st.tuples(st.sampled_from("aab"), st.sampled_from(_AGES), st.integers(0, 3)), min_size=1, max_size=3)
_bys = st.sampled_from([SECOND, MINUTE, 6 * MINUTE, 25 * MINUTE, HOUR, DAY])
_lags = st.sampled_from([SECOND, 10 * MINUTE, HOUR, -10 * MINUTE])
_STEPS = st.one_of(
    st.tuples(st.just("publish"), _events),
    st.tuples(st.just("publish again"), st.integers(0, 100)),
    st.tuples(st.just("work"), st.integers(1, 6), st.sampled_from([None, None, None, LOST, REFUSED, RAISED])),
    st.tuples(st.just("wait"), _bys, _lags),
    st.tuples(st.just("lag"), _bys, _lags),
    st.tuples(st.sampled_from(["update", "drain", "cancel"])),
)


ROLLUPS = ('site = { by = "metadata.location" }', 'fleet = { by = [], tiers = ["1h"] }', "shards = 2")


class History:
    """Runs what happens to a job, and keeps what was published, and what the jobs publish."""

    def __init__(self, schema, seed, cache_mb, page_bytes, which_results):
        self.schema, self.published = schema, []
        self.engine = {"seed": seed, "cache_mb": cache_mb, "page_bytes": page_bytes}
        self.flags = {"results_topic": "projects/test-project/topics/results", "results": which_results}
        self.results = []
        self.job = None
        self.begin(START_US, None)

    def begin(self, now_us, table):
        if self.job is not None:
            self.results += self.job.results
        self.job = Job(self.schema, now_us, table, **self.engine, **self.flags)

    def step(self, what, *how):
        job = self.job
        with job.running():
            match what, how:
                case "publish", (events,):
                    base_us = job.now_us // 1000 * 1000
                    of = [published(sensor, base_us - age_us + ms * 1000) for sensor, age_us, ms in events]
                    self.published += of
                    job.publish(*(message(each) for each in of))
                case "publish again", (which,):
                    if self.published:
                        job.publish(message(self.published[which % len(self.published)]))
                case "work", (bundles, failure):
                    for _ in range(bundles):
                        job.work(failure)
                case "wait", (by_us, lag_us):
                    job.pass_time(by_us, lag_us)
                case "lag", (by_us, lag_us):  # bundles that are due have to wait
                    job.advance(now_us=job.now_us + by_us)
                    job.advance(job.now_us - lag_us)
                case "update", ():
                    job.update(**self.flags)
                case "drain", ():
                    self.drain()
                    self.begin(job.now_us + SECOND, job.table)
                case "cancel", ():  # and everything is published again
                    self.begin(job.now_us + SECOND, job.table)
                    self.job.publish(*(message(each) for each in self.published))

    def drain(self):
        now_us = self.job.now_us
        self.job.drain()
        assert self.job.now_us == now_us
        assert self.job.left() == []

    def check(self):
        truth, rows = Truth(KIND), self.job.rows()
        for each in self.published:
            truth.accept(each)
        for tier in self.schema.tiers:
            text, expected = tier.window.text, truth.windows(tier.window.text)
            found = {(sensor, start_us): row for (of, sensor, start_us), row in rows.items() if of == text}
            assert found.keys() == expected.keys()
            assert [key for key, counted in expected.items() if not counted.agrees(found[key])] == []
        results = [*self.results, *self.job.results]
        assert len({result.event_id for result in results}) == len(results)
        assert newest_columns(results) == rows
        expected = expected_rollups(self.schema, rows, self._member)
        assert differences(found_rollups(self.schema, self.job.table), expected) == []

    def _member(self, text, sensor_id, start_us):
        """Returns the metadata of the newest event of a sensor's window."""
        times = [each.time_us for each in self.published if each.sensor_id == sensor_id]
        newest_us = max(time_us for time_us in times if start_of(time_us, text) == start_us)
        return {"location": location_of(sensor_id, newest_us)}


def published(sensor_id, time_us):
    return Published(sensor_id, time_us, ("t",), location_of(sensor_id, time_us))


def location_of(sensor_id, time_us):
    """Returns where a sensor is at a time: it moves each ten minutes."""
    return "north" if time_us // (10 * MINUTE) * len(sensor_id) % 2 else "south"


@given(
    tiers=st.sampled_from([("1h",), ("1h", "1d")]),
    seed=st.integers(0, 999),
    cache_mb=st.sampled_from([0, 100]),
    page_bytes=st.sampled_from([1, 1 << 20]),
    which_results=st.sampled_from(["final", "all"]),
    steps=st.lists(_STEPS, max_size=30),
    rollups=st.sampled_from([(), ROLLUPS]),
)
@settings(max_examples=examples(25), deadline=None, derandomize=True)
def test_random_histories_on_the_engine(tiers, seed, cache_mb, page_bytes, which_results, steps, rollups):
    """Aggregates are those of all published events, after any bundles, failures, updates, drains and restarts.

    A drain leaves nothing, and does not wait for the clock. The greatest result of each window is its row. The row of
    each group is the merge of its sensors' rows.
    """
    history = History(schema_of(*tiers, rollups=rollups), seed, cache_mb, page_bytes, which_results)
    for step in steps:
        history.step(*step)
    with history.job.running():
        history.drain()
    history.check()


@pytest.mark.parametrize("page_bytes", [1, 1 << 20])
def test_steps_that_raise(page_bytes):
    """A step that raises, in any stage and at any point of a bundle, stops nothing and loses nothing.

    The worker goes on with its cache of state. Bags of several pages are read again, also where nothing raises.
    """
    history = History(schema_of("1h", "1d", rollups=ROLLUPS), 1, 100, page_bytes, "all")
    failures = Random(1)
    for _ in range(5):
        for events in ([("a", 0, 0)], [("b", 0, 1)], [("a", 0, 2)]):
            history.step("publish", events)
            history.step("work", 2, None)
        history.step("lag", 6 * MINUTE, SECOND)
        for _ in range(10):
            history.step("work", 1, failures.choice([None, RAISED]))
    with history.job.running():
        history.drain()
    history.check()
