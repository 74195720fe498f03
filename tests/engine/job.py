"""A job on the modelled engine: the real graph, with the sinks, and the tables that its steps read and write."""

import os
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from random import Random
from unittest import mock
from zlib import crc32

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from pipeline.core.schema import rate
from pipeline.job import graph as real_graph
from pipeline.job import table_steps
from pipeline.job.settings import Target, parse_flags, settings_of
from pipeline.private_apis.repeated_work import kept_views, specs_by_class
from pipeline.private_apis.worker_state import OF_WORKERS
from pipeline.proto.window_result_pb2 import WindowResult
from tests.engine.bigtable import Bigtable
from tests.engine.fragment import Fragment, clock, set_clock
from tests.engine.graph import Graph
from tests.engine.service import END_US, LOST, RAISED, REFUSED, Stage
from tests.engine.state_service import StateService
from tests.engine.worker import Worker
from tests.model.judge import Judge
from tests.model.reference import Kind
from tests.model.specs import Spec
from tests.model.table import Table
from tests.support.aggregate_values import numbers_of
from tests.support.streams import flags

KIND = Kind(grain_us=1)
_FLAGS = {"bigtable_table": "t0", "early_firing": "5m", "late_firing": "1m", "allowed_lateness": "10m"}
_OF_ENGINE = {"seed", "cache_mb", "page_bytes", "limits", "workers", "groups", "faults"}
_MOST_BUNDLES = 5_000
_MOST_STOPS = 200  # when time passes
_FAILS, _LANDS = 0.2, 0.02
_FAILURES = {"failures": (LOST, REFUSED, RAISED), "torn": (LOST,), "zombies": (REFUSED,)}
FAULTS = {
    "failures": "workers are lost, commits are refused, and steps raise",
    "torn": "of the rows that a lost worker wrote last, some are in the table and some are not",
    "zombies": "what a worker wrote that had lost its lease lands at once, later or never",
    "echoes": "a request whose answer was late has been sent twice, and lands once more later",
    "refusals": "Bigtable refuses some raw rows and aggregate rows for good, or for a while if the writer can't go on",
    "workers": "two workers with caches of their own, between which keys move",
}
"""What may happen by itself at any bundle."""
_GLOBAL = (GlobalWindow(),)
_build_graph = real_graph.build_graph
# What stays in state after a drain, which is bounded.
_SMALL = {("AggregateWindows", "schedule")}
_OF_ALERTS = {("WatchAlerts", name) for name in ("tracks", "swept", "silent_groups", "silence_clock")}


def schema_of(*tiers, rollups=()):
    """Returns the schema of :func:`spec_of`."""
    return spec_of(*tiers, rollups=rollups).schema


def spec_of(*tiers, rollups=(), increases=()):
    """Returns a table with these tiers, roll-ups and metrics with an increase, whose rows stay."""
    policies = tuple((family, "never") for family in ("raw", "meta", *(f"tier_{text}" for text in tiers)))
    return Spec("wide", "{sensor_id}#{reverse_us}", KIND, "text", tiers, policies, rollups=rollups, increases=increases)


def refuses_some(_, key):
    """Returns whether a table with refusals refuses a row."""
    return crc32(key) % 8 == 0 and not key.startswith((b"rollup", b"repair#", b"latest#", b"alert"))


def job_of(schema, now_us, table=None, *, bigtable=None, also=None, kind=None, **how):
    """Returns a job with one table or two, for the rest see :class:`Job`.

    Args:
        schema: the table's schema.
        now_us: the time at which it begins.
        table: the table; a new one by default.
        bigtable: the tables; new ones by default.
        also: the schema of another table.
        kind: the class; :class:`Job` by default.
        how: arguments of the job, and changes of its flags.
    """
    engine = {name: how.pop(name) for name in _OF_ENGINE & how.keys()}
    settings = settings_of(parse_flags(flags(**_FLAGS | how)))
    (name,) = settings.tables
    targets = [Target(name, schema, None), *([Target(replace(name, table="t1"), also, None)] if also else [])]
    bigtable = bigtable or Bigtable({target.name: Table(target.schema.policies) for target in targets})
    if table is not None:
        bigtable.tables[name] = table
    return (kind or Job)(targets, settings, now_us, bigtable, **engine)


class Job:
    """A job.

    Args:
        targets: the tables that it writes.
        settings: its settings.
        now_us: the time at which it begins.
        bigtable: the tables.
        seed: of all that the engine chooses.
        cache_mb: the size of a worker's cache of state.
        page_bytes: see :class:`tests.engine.state_service.StateService`.
        limits: those of :class:`tests.engine.service.Stage`.
        workers: the number of workers.
        groups: the most groups of sensors.
        faults: the faults that happen by themselves, of :data:`FAULTS`.

    Attributes:
        published: the messages that it publishes, those of committed bundles, by the label of the step.
        now_us: the clock.
        source_us: the watermark of the source.
        stages: the stages, by the label of their first step, each after those from which its elements come.
    """

    def __init__(
        self, targets, settings, now_us, bigtable, *, seed=0, cache_mb=100, page_bytes=1 << 20, limits=None, workers=1,
        groups=256, faults=(),
    ):  # fmt: skip
        self.targets, self.settings, self.bigtable = targets, settings, bigtable
        self.now_us, self.source_us, self.random = now_us, MIN_TIMESTAMP.micros, Random(seed)
        self.began_us, self.published, self._faults = now_us, {}, frozenset(faults)
        self._failures = [each for fault in _FAILURES if fault in self._faults for each in _FAILURES[fault]]
        if "workers" in self._faults:
            workers = max(workers, 2)
        if "refusals" in self._faults:
            bigtable.refuses = refuses_some
            bigtable.patience = None if settings.bigtable_writer == "bulk" else 2
        self._groups, self._workers = groups, [Worker(cache_mb) for _ in range(workers)]
        self._graph = self._built()
        self.stages = {
            name: Stage(Fragment(self._graph, plan, StateService(page_bytes)), self._workers, **(limits or {}))
            for name, plan in self._graph.plans.items()
        }
        for name, plan in self._graph.plans.items():
            if plan.begins:
                self.stages[name].add([WindowedValue(b"", MIN_TIMESTAMP, _GLOBAL)])

    def _built(self):
        with (
            mock.patch.object(real_graph, "build_graph", partial(_build_graph, clock=clock)),
            mock.patch.object(rate, "_MOST_GROUPS", self._groups),
            mock.patch.object(real_graph, "runs_here", return_value=False),
            mock.patch.object(table_steps, "runs_here", return_value=False),
            kept_views(),
            specs_by_class(),
        ):
            pipeline = beam.Pipeline()
            real_graph.assemble(pipeline, self.targets, self.settings, self.began_us)
            return Graph(pipeline.to_runner_api())

    def update(self, settings=None):
        """Replaces the code and the workers; state, timers and elements stay."""
        if settings is not None and settings != self.settings:
            self.settings = settings
            self._graph = self._built()
        for worker in self._workers:
            worker.begin()
        for name, plan in self._graph.plans.items():
            stage = self.stages[name]
            stage.fragment = Fragment(self._graph, plan, stage.fragment.state)

    @contextmanager
    def running(self):
        """Makes its clock and its tables those of the workers, which end after the block."""
        set_clock(lambda: self.now_us / 1e6)
        with ExitStack() as stack:
            stack.enter_context(mock.patch.dict(os.environ, {OF_WORKERS: ""}))
            stack.enter_context(self.bigtable.served())
            stack.enter_context(specs_by_class())
            for worker in self._workers:
                stack.callback(worker.begin)
            yield self

    def stage(self, label):
        """Returns the stage whose first step is that one, or is in it."""
        (found,) = (stage for name, stage in self.stages.items() if f"{name}/".startswith(f"{label}/"))
        return found

    def before(self, label):
        """Returns the stages that stand before one in the graph."""
        stages = list(self.stages.values())
        return stages[: stages.index(self.stage(label))]

    @property
    def source(self):
        """The stage that gets the messages."""
        return self.stage("ReadMessages")

    @property
    def table(self):
        """The first table."""
        return self.bigtable.tables[self.targets[0].name]

    @property
    def results(self):
        """The results that it has published."""
        return [WindowResult.FromString(message.data) for message in self.published.get("PublishResults", ())]

    def publish(self, *messages):
        """Receives messages, which are published now."""
        self.receive(*(each.pubsub._to_proto_str() for each in messages))

    def receive(self, *serialized):
        """Receives messages as Pub/Sub has them, which are published now."""
        at = Timestamp(micros=self.now_us)
        self.source.add(WindowedValue(each, at, _GLOBAL) for each in serialized)
        self.advance()

    def advance(self, source_us=None, now_us=None):
        """Advances the source's watermark or the clock, and the watermarks of all stages."""
        self.source_us = max(self.source_us, self.source_us if source_us is None else source_us)
        self.now_us = max(self.now_us, now_us or 0)
        for name, stage in self.stages.items():
            plan = self._graph.plans[name]
            first_us = END_US if plan.begins else self.source_us
            stage.advance(min((self.stages[each].output_us for each in plan.before), default=first_us), self.now_us)

    def work(self, failure=None, stages=None):
        """Runs a bundle of any of these stages, or of all. Returns whether there was one."""
        due = [name for name, stage in self.stages.items() if stage.due() and (stages is None or stage in stages)]
        if not due:
            return False
        if failure is None and self._failures and self.random.random() < _FAILS:
            failure = self.random.choice(self._failures)
        self.bigtable.begin()
        committed, outputs = self.stages[self.random.choice(due)].work(self.random, failure)
        if failure == REFUSED and "zombies" in self._faults:
            self.bigtable.tear(self.random, later=True)
        elif failure == LOST and "torn" in self._faults:
            self.bigtable.tear(self.random, later=False)
        elif committed and "echoes" in self._faults:
            self.bigtable.echo(self.random)
        if self.bigtable.adrift and self.random.random() < _LANDS:
            self.bigtable.land(self.random, 0.5)
        self.pass_on(committed, outputs)
        return True

    def pass_on(self, committed, outputs):
        """Passes on the outputs of a bundle that is committed."""
        for _, value, collection in outputs if committed else ():
            for name in self._graph.next[collection]:
                self.stages[name].add([value])
            if label := self._graph.published.get(collection):
                self.published.setdefault(label, []).append(PubsubMessage._from_proto_str(value.value))
        self.advance()

    def settle(self, *stages):
        """Runs bundles of these stages, or of all, until nothing is due there."""
        for _ in range(_MOST_BUNDLES):
            if not self.work(stages=stages or None):
                return
        raise AssertionError("there is no end of bundles")

    def pass_time(self, by_us, lag_us=2_000_000):
        """Passes time from timer to timer of the clock, with the source's watermark behind it.

        Timers that are close together fire at once.
        """
        self.settle()
        end_us, least_us = self.now_us + by_us, by_us // _MOST_STOPS
        while self.now_us < end_us:
            times = [
                timer.fire_timestamp.micros
                for stage in self.stages.values()
                for timers in stage.timers.values()
                for family, (timer, _) in timers.items()
                if not stage.fragment.of_watermark[family]
            ]
            later = [each for each in times if each > self.now_us]
            self.advance(now_us=min(end_us, max(self.now_us + least_us, min(later, default=end_us))))
            self.advance(self.now_us - lag_us)
            self.settle()

    def drain(self):
        """Ends the source: everything that is due is written, while the clock stands still."""
        self.advance(END_US)
        self.settle()

    def left(self):
        """Returns what is left anywhere, except for what stays of groups, which is bounded."""
        left = [(name.split("/")[0], *each) for name, stage in self.stages.items() for each in stage.left()]
        stays = _SMALL | _OF_ALERTS
        return [each for each in left if each[1] != "state" or (each[0].split("[")[0], each[2]) not in stays]

    def rows(self, table=None):
        """Returns the aggregate rows of a table, by default of the first: values by column, by window."""
        table, found = table or self.table, {}
        for key in table.keys(b"agg#"):
            cells = {qualifier: cell.value for (_, qualifier), cell in table.newest(key).items()}
            found[Judge.window_of(key)] = numbers_of(
                {name: value for name, value in cells.items() if not name.startswith(b"rises_")}
            )
        return found
