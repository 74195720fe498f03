"""A job on the modelled engine: the stages of the real graph, and a table that the writers fused with them write."""

import os
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from unittest import mock

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from pipeline.core.results.window_results import read_batch
from pipeline.job.graph import build_graph
from pipeline.job.settings import Target, parse_flags, settings_of
from pipeline.private_apis.timer_holds import OF_WORKERS
from pipeline.proto.window_result_pb2 import WindowResult
from pipeline.transforms import tables
from tests.engine.fragment import Fragment, clock, set_clock
from tests.engine.service import END_US, Stage
from tests.engine.state_service import StateService
from tests.model.judge import Judge
from tests.model.reference import Kind
from tests.model.specs import Spec
from tests.model.table import Table
from tests.support.aggregate_values import numbers_of
from tests.support.confirming import DUE, ROLLUP_ROWS, ROWS, confirming, confirming_rollups
from tests.support.streams import flags

KIND = Kind(grain_us=1)
_STAGES = {
    "process": ["ProcessMessages", "WriteRawRows"],
    "aggregate": ["AggregateWindows", "CollectAggregateRows/Shard", "RollUp/WriteMembers"],
    "collect": ["CollectAggregateRows/Collect"],
}
_OF_ROLLUPS = {"shards": ["RollUp/Shards", "RollUp/WriteParts"], "groups": ["RollUp/Groups"]}
_BEFORE = {"aggregate": "process", "collect": "aggregate", "shards": "aggregate", "groups": "shards"}
_WRITTEN = {
    ("process", ROWS),
    ("aggregate", "listed"),
    ("aggregate", ROLLUP_ROWS),
    ("collect", "None"),
    ("shards", ROLLUP_ROWS),
    ("groups", "None"),
}
_SHUFFLED = {
    ("process", "None"): "aggregate",
    ("aggregate", "None"): "collect",
    ("aggregate", DUE): "shards",
    ("shards", DUE): "groups",
}
_RESULTS = ("aggregate", "results")
_FLAGS = {"early_firing": "5m", "late_firing": "1m", "allowed_lateness": "10m"}
_MOST_BUNDLES = 5_000
_SMALL = {("aggregate", "state", "schedule"), ("collect", "state", "order")}


def schema_of(*tiers, rollups=()):
    """Returns the schema of a table with these tiers and roll-ups, whose rows stay."""
    policies = tuple((family, "never") for family in ("raw", "meta", *(f"tier_{text}" for text in tiers)))
    return Spec("wide", "{sensor_id}#{reverse_us}", KIND, "text", tiers, policies, rollups=rollups).schema


class Job:
    """A job with one table.

    Args:
        schema: the table's schema.
        now_us: the time at which it begins.
        table: the table; a new one by default.
        seed: of all that the engine chooses.
        cache_mb: the size of the worker's cache of state.
        page_bytes: see :class:`tests.engine.state_service.StateService`.
        limits: those of :class:`tests.engine.service.Stage`.
        changes: flags.

    Attributes:
        results: the results that it publishes, those of committed bundles.
        now_us: the clock.
        source_us: the watermark of the source.
        stages: the stages, by name.
    """

    def __init__(self, schema, now_us, table=None, *, seed=0, cache_mb=100, page_bytes=1 << 20, limits=None, **changes):
        self.schema, self.table = schema, table or Table(schema.policies)
        self.now_us, self.source_us, self.random = now_us, MIN_TIMESTAMP.micros, Random(seed)
        self._began_us, self._cache_mb = now_us, cache_mb
        self.results = []
        states = {name: StateService(page_bytes) for name in self.names}
        self.stages = {}
        for name, fragment in self._fragments(states, changes).items():
            self.stages[name] = Stage(fragment, **(limits or {}))

    def _fragments(self, states, changes):
        settings = settings_of(parse_flags(flags(**_FLAGS | changes)))
        pipeline = beam.Pipeline()
        messages = pipeline | beam.Impulse() | beam.Map(_same).with_output_types(PubsubMessage)
        targets = [Target(settings.tables[0], self.schema, None)]
        build_graph(
            messages,
            targets,
            settings,
            clock,
            self._began_us,
            write_raw_rows=confirming,
            write_rollups=confirming_rollups,
        )
        proto = pipeline.to_runner_api()
        steps = {**_STAGES, **_OF_ROLLUPS}
        return {name: Fragment(proto, steps[name], states[name], self._cache_mb) for name in self.names}

    @property
    def names(self):
        """The names of the stages."""
        return [*_STAGES, *(_OF_ROLLUPS if self.schema.rollups else ())]

    @contextmanager
    def running(self):
        """Makes its clock and its table those of the workers."""
        set_clock(lambda: self.now_us / 1e6)
        reader = SimpleNamespace(open=lambda *_: self.table.opened())
        with mock.patch.object(tables, "RowReader", reader), mock.patch.dict(os.environ, {OF_WORKERS: ""}):
            yield self

    def update(self, **changes):
        """Replaces the code; state, timers and elements stay."""
        states = {name: stage.fragment.state for name, stage in self.stages.items()}
        for name, fragment in self._fragments(states, changes).items():
            self.stages[name].fragment = fragment

    def publish(self, *messages):
        """Receives messages, which are published now."""
        at = Timestamp(micros=self.now_us)
        self.stages["process"].add(WindowedValue(each.pubsub, at, (GlobalWindow(),)) for each in messages)
        self.advance()

    def advance(self, source_us=None, now_us=None):
        """Advances the source's watermark or the clock, and the watermarks of all stages."""
        self.source_us = max(self.source_us, self.source_us if source_us is None else source_us)
        self.now_us = max(self.now_us, now_us or 0)
        for name, stage in self.stages.items():
            before_us = self.stages[_BEFORE[name]].output_us if name in _BEFORE else self.source_us
            stage.advance(before_us, self.now_us)

    def work(self, failure=None, stages=None):
        """Runs a bundle of any of these stages, or of all. Returns whether there was one."""
        due = [name for name in stages or self.stages if self.stages[name].due()]
        if not due:
            return False
        name = self.random.choice(due)
        self.pass_on(name, *self.stages[name].work(self.random, failure))
        return True

    def pass_on(self, name, committed, outputs):
        """Writes rows, which fused writers do even if the bundle is not committed, and passes on other outputs."""
        for tag, value in outputs:
            if (name, tag) in _WRITTEN:
                self.table.write_rows(value.value)
            elif committed and (name, tag) == _RESULTS:
                self.results += map(WindowResult.FromString, read_batch(value.value))
            elif committed and (name, tag) in _SHUFFLED:
                self.stages[_SHUFFLED[name, tag]].add([value])
        self.advance()

    def settle(self, stages=None):
        """Runs bundles of these stages, or of all, until nothing is due there."""
        for _ in range(_MOST_BUNDLES):
            if not self.work(stages=stages):
                return
        raise AssertionError("there is no end of bundles")

    def pass_time(self, by_us, lag_us=2_000_000):
        """Passes time from timer to timer of the clock, with the source's watermark behind it."""
        self.settle()
        end_us = self.now_us + by_us
        while self.now_us < end_us:
            times = [
                timer.fire_timestamp.micros
                for stage in self.stages.values()
                for timers in stage.timers.values()
                for family, (timer, _) in timers.items()
                if not stage.fragment.of_watermark[family]
            ]
            self.advance(now_us=min([end_us, *(each for each in times if each > self.now_us)]))
            self.advance(self.now_us - lag_us)
            self.settle()

    def drain(self):
        """Ends the source: everything that is due is written, while the clock stands still."""
        self.advance(END_US)
        self.settle()

    def left(self):
        """Returns what is left anywhere, except for what stays of groups of sensors, which is bounded."""
        left = [(name, *each) for name, stage in self.stages.items() for each in stage.left()]
        return [each for each in left if each not in _SMALL]

    def rows(self):
        """Returns the aggregate rows: values by column, by window length, sensor and start."""
        found = {}
        for key in self.table.keys(b"agg#"):
            cells = {qualifier: cell.value for (_, qualifier), cell in self.table.newest(key).items()}
            found[Judge.window_of(key)] = numbers_of(cells)
        return found


def _same(element):
    return element
