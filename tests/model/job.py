"""A streaming job without Beam: the graph's real steps, called as Beam would, in the order that the test decides.

Beam's own part is modelled here: bundles, which may fail; queues between steps, which deliver in any order and at least
once; timers, which fire at their time or later. The watermark may be anything: nothing relies on it.
"""

import json
import math
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from unittest import mock

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import TaggedOutput

from pipeline.core.alerts.alert_messages import Alert
from pipeline.core.alerts.alert_rows import FAMILY, alert_range, parse_alert_row
from pipeline.core.alerts.group_alerts import BEGIN
from pipeline.core.alerts.rule_set import RuleSet
from pipeline.core.alerts.rules import FIRES, AlertCondition, Rule
from pipeline.core.panes import grouped_readings
from pipeline.core.panes.firing import END_US, MAX_COMMIT_BYTES, CommitLimits
from pipeline.core.panes.group_state import GroupWindows
from pipeline.core.panes.grouped_readings import read_group_readings, start_of_readings
from pipeline.core.queries.reads import RowSelection
from pipeline.core.results.window_results import read_batch
from pipeline.core.rows.aggregate_rows import parse_aggregate_row
from pipeline.core.rows.newest_row import is_latest_key
from pipeline.core.schema.layouts import CellSelection
from pipeline.job import settings as job_settings
from pipeline.job.result_flags import ResultFlags
from pipeline.job.table_steps import TableSteps
from pipeline.proto.window_result_pb2 import WindowResult
from pipeline.transforms import process as processing
from pipeline.transforms.aggregate import Aggregated
from pipeline.transforms.alert_table import WatchedTable, _JobAlerts, _shared
from pipeline.transforms.alerts import _AlertFn
from pipeline.transforms.process import ProcessMessages
from tests.model import beam_steps
from tests.model.beam_steps import Step
from tests.model.reference import MINUTE, start_of
from tests.model.rollups import RollupStage
from tests.support.results import newest_of
from tests.support.rows import decoded

WARM = Rule("warm", metric="t", condition=AlertCondition("above", 30, 30))
FOREVER_US = 1 << 60
_MOST_DELAY_US = 10 * MINUTE  # between two steps, or of a timer
_MOST_WRITING_US = 19 * MINUTE  # until a row is in the table


class _Outputs(dict):
    """Stands for the outputs of a step, by tag."""

    def __missing__(self, tag):
        self[tag] = SimpleNamespace(tag=tag)
        return self[tag]


class _ParDo:
    """Stands for a ParDo."""

    def __init__(self, fn):
        self.fn = fn

    def with_outputs(self, *_):
        return self

    def __rrshift__(self, label):
        return self


class _Messages:
    """Stands for the collection of messages; keeps the DoFn that is applied to it."""

    def __or__(self, step):
        self.fn = step.fn
        return _Outputs()


class _Parts:
    """Stands for the collection to aggregate on Dataflow; keeps the DoFn that is applied to it."""

    pipeline = SimpleNamespace(options=PipelineOptions([], runner="DataflowRunner"))

    def __or__(self, step):
        self.fn = step.transform._aggregate_fn
        return Aggregated(self)


class _Passes(beam.DoFn):
    """Stands for the writer of aggregate rows: passes them on, in place of dead letters."""

    def process(self, rows):
        return (rows,)

    def finish_bundle(self):
        return ()


@dataclass
class _Written:
    """Rows that a sink has yet to write."""

    since_us: int
    name: object
    rows: list


class Stage:
    """The aggregates and alerts of one table: its steps, and the elements in flight before each."""

    def __init__(self, job, target):
        self.job, self.target = job, target
        self.parts = []  # (since when in flight, element)
        self.written, self.results = {}, []  # each row as it was written last, and what was published
        self.watched = [(job.world.now_us, (group, BEGIN)) for group in range(job.world.groups)]
        self.told = {}  # alerts by id
        self.aggregate = Step(self._aggregate_fn())
        self.alert = beam_steps.Step(self._alert_fn())  # not another kind of step: it is set up, and can't be pickled
        self.rollups = RollupStage(self) if target.schema.rollups else None

    def update(self):
        if self.rollups:
            self.rollups.update()
        self.aggregate.replace(self._aggregate_fn())
        self.alert.replace(self._alert_fn())

    def _aggregate_fn(self):
        parts, job = _Parts(), self.job
        with mock.patch.object(job_settings, "CommitLimits", return_value=CommitLimits(job.commit_bytes)):
            TableSteps(self.target, job.settings, "").aggregate(parts, _Passes(), job.began_us, job.world.clock)
        return parts.fn

    def _alert_fn(self):
        job, name, schema = self.job, self.target.name, self.target.schema
        table = WatchedTable(name, schema, 0, 0, job.began_us)
        fn = _AlertFn(table, job.world.groups, job.world.clock)
        alerts = _JobAlerts()
        alerts.rules, alerts.read_s = RuleSet([WARM]), math.inf
        with mock.patch.dict(_shared, {(name, job.began_us): alerts}):
            fn.setup()
        fn.setup = lambda: None
        return fn

    def advance(self, share=1.0, old_us=FOREVER_US):
        """Advances what is in flight: a share of what has been so since before that time, in any order."""
        self._aggregate(share, old_us)
        self._watch(share, old_us)
        self._roll_up(share, old_us)

    def aggregate_all(self, old_us=FOREVER_US):
        """Delivers readings, and fires timers, until nothing is due."""
        while self._aggregate(1.0, old_us) | self._watch(1.0, old_us):
            pass

    def roll_up_all(self, old_us=FOREVER_US, timers_us=None):
        while self._roll_up(1.0, old_us, timers_us):
            pass

    def _roll_up(self, share, old_us, timers_us=None):
        return bool(self.rollups) and self.rollups.advance(share, old_us, timers_us)

    def _aggregate(self, share, old_us):
        calls = self._calls(self.aggregate, self.parts, share, old_us)
        if not calls:
            return False
        if self.job.random.random() < 0.2:
            failed = self.aggregate.run(calls, self.job.random.randint(0, len(calls)))
            self._write([each.value for each in failed if each.tag == "dead_letters"], self.job.random.random())
        outputs = self.aggregate.run(calls)
        for output in outputs:
            if output.tag == "results":
                self.results += map(WindowResult.FromString, read_batch(output.value))
            elif output.tag == "rollups":
                self.rollups.take("shards", output.value)
            elif output.tag == "listed":
                self.job.listed(self.target.name, output.value)
        self._write([each.value for each in outputs if each.tag == "dead_letters"], 1)
        return True

    def _watch(self, share, old_us):
        calls = self._calls(self.alert, self.watched, share, old_us)
        if not calls:
            return False
        if self.job.random.random() < 0.2:
            self.alert.run(calls, self.job.random.randint(0, len(calls)))
        for output in self.alert.run(calls):
            if isinstance(output, TaggedOutput):
                alert = Alert(*json.loads(output.value[1]))
                assert self.told.setdefault(alert.id, alert) == alert
            else:
                self.job.sink.append(_Written(self.job.world.now_us, self.target.name, output[1]))
        return True

    def _calls(self, step, queue, share, old_us, timers_us=None):
        """Takes elements from a queue, and timers; elements may come twice, unless that would count readings twice."""
        job, random = self.job, self.job.random
        taken = [each for each in queue if each[0] <= old_us and random.random() < share]
        again = [each for each in taken if share < 1 and random.random() < 0.1]
        queue[:] = [each for each in queue if each not in taken] + again
        due = step.due(job.watermark_us, min(job.world.now_us, old_us if timers_us is None else timers_us))
        timers = [each for each in due if random.random() < share]
        calls = [element for _, element in taken] + timers
        random.shuffle(calls)
        return calls

    def _write(self, outputs, share):
        """Writes the rows of a bundle in any order."""
        rows = [row for output in outputs for row in output if self.job.random.random() <= share]
        keys = [row.key for row in rows if not is_latest_key(row.key)]
        assert len(set(keys)) == len(keys), "a row is twice in a bundle"
        self.job.random.shuffle(rows)
        self.job.world.tables[self.target.name].write_rows(rows)
        if share == 1:
            self.written |= {row.key: row for row in rows if not is_latest_key(row.key)}

    def check_results(self):
        """The newest result of each window is its row as the job wrote it last, and no two have the same id."""
        if self.job.settings.results is None:
            return
        assert len({each.event_id for each in self.results}) == len(self.results)
        tiers, expected = {tier.window.text: tier for tier in self.target.schema.tiers}, {}
        for key, row in self.written.items():
            tier = tiers[self.job.world.window_of(key)[0]]
            record = parse_aggregate_row(tier.window, decoded(row), tier.statistics)
            expected[tier.window.text, record.sensor_id, record.start_us] = (
                record.reading_count,
                {metric: dict(summary.statistics()) for metric, summary in record.metrics.items()},
            )
        assert newest_of(self.results) == expected

    def check_alerts(self):
        """An alert fires for the sensors whose newest reading is beyond the limit, if the jobs got all readings."""
        world, name = self.job.world, self.target.name
        rows = world.tables[name](RowSelection(alert_range(), CellSelection((FAMILY,))))
        firing = {record.sensor_id for record in map(parse_alert_row, rows) if record.is_firing}
        newest = {}
        for (sensor_id, time_us, *_), metrics in world.truths[name].accepted.items():
            if WARM.metric in metrics:
                newest[sensor_id] = max(newest.get(sensor_id, 0), time_us)
        for sensor_id, time_us in newest.items():
            at_us, classes = world.watched.get((name, sensor_id), (0, set()))
            if at_us == time_us and len(classes) == 1:
                assert (sensor_id in firing) is (classes == {FIRES}), f"{sensor_id}: {firing}, {classes} at {time_us}"

    # What is in flight

    def pending(self):
        """Yields the tier's number, the sensor and the start of windows that are about to be written."""
        for _, (_, data) in self.parts:
            yield from _in_part(data)
        for data in [*self.aggregate.bag("parts"), *self.aggregate.bag("marks")]:
            yield from _in_part(data)
        for number, start_us, window in self._windows():
            for sensor_id, each in window.entries.items():
                if number or each.dirty or each.ahead:  # longer ones wait until they are over
                    yield number, sensor_id, start_us

    def kept(self):
        """Yields the windows that the job has open."""
        for number, start_us, window in self._windows():
            yield from ((number, sensor_id, start_us) for sensor_id in window.entries)

    def _windows(self):
        lateness_us = self.aggregate.fn.aggregation.firing.lateness_us
        for chunk in self.aggregate.bag("open"):
            found = GroupWindows(self.target.schema.tiers, lateness_us, [chunk])
            for number, windows in enumerate(found.of_tier):
                yield from ((number, start_us, window) for start_us, window in windows.items())

    def is_empty(self):
        """Returns whether no element waits anywhere, no window is kept and no timer is set."""
        kept = ("parts", "marks", "open")
        return not (
            self.parts
            or self.watched
            or (self.rollups and self.rollups.in_flight())
            or any(any(self.aggregate.bag(bag)) for bag in kept)
            or any(self.aggregate.timers_left())
        )


@dataclass
class Message:
    """A message and its events."""

    events: tuple
    pubsub: PubsubMessage = field(repr=False)


class Job:
    """A running job.

    Attributes:
        targets: the tables that it writes.
        history: the messages that it has not acknowledged.
        newest: the newest time of each metric that it got, by table, sensor and metric.
        watermark_us: the watermark.
        commit_bytes: the bytes to which firings limit what they commit.
    """

    def __init__(self, world, targets, settings, random):
        self.world, self.targets, self.random = world, targets, random
        self.results = random.choice([None, ResultFlags("projects/p/topics/results", early=True, encoding="protobuf")])
        self.settings = replace(settings, results=self.results)
        self.commit_bytes = random.choice([MAX_COMMIT_BYTES, 2000])
        self.began_us = world.now_us
        self.ahead_us = round(settings.max_future.total_seconds() * 1e6) if settings.timestamp_attribute else 0
        self.watermark_us = -FOREVER_US
        self.history, self.sink = [], []
        self.newest = {}
        messages = _Messages()
        process = ProcessMessages(
            [target.schema for target in targets], max_future=settings.max_future, clock=world.clock
        )
        with (
            mock.patch.object(processing, "beam", SimpleNamespace(ParDo=_ParDo)),
            mock.patch.object(grouped_readings, "groups_for", return_value=world.groups),
        ):
            process = process.expand(messages)
        self.process = messages.fn
        self.rows = {output.tag: target for output, target in zip(process.raw, targets, strict=True)}
        self.stages = {target.name: Stage(self, target) for target in targets if target.schema.tiers}

    def update(self, settings):
        """Continues with other settings, and the same state."""
        self.settings = replace(settings, results=self.results)
        for stage in self.stages.values():
            stage.update()

    # Messages

    def deliver(self, messages, *, fails_first=False):
        """Processes a bundle, after a failed attempt without output if ``fails_first``; returns the dead letters."""
        process = self.process
        process.start_bundle()
        if fails_first:
            for message in messages:
                list(process.process(message.pubsub))
            process.start_bundle()
        outputs = [out for message in messages for out in process.process(message.pubsub)]
        outputs += process.finish_bundle()
        self.history += messages
        letters = []
        for tag, element in ((out.tag, out.value.value) for out in outputs):
            if tag not in self.rows:
                letters.append(element)
                continue
            name = self.rows[tag].name
            self.world.tables[name].write_rows(element.rows)
            for group, _, data in element.readings:  # there are some if there is a stage
                self.stages[name].parts.append((self.world.now_us, (group, data)))
                self.stages[name].watched.append((self.world.now_us, (group, data)))
        return letters

    def listed(self, name, rows):
        """Takes rows of the work list."""
        self.sink.append(_Written(self.world.now_us, name, rows))
        self.world.listing(name, rows)

    # In flight

    def flow(self, share=0.6):
        """Advances some of what is in flight, in any order."""
        steps = [stage.advance for stage in self.stages.values()]
        self.random.shuffle(steps)
        for step in steps:
            step(share)

    def write_sink(self, old_us=FOREVER_US):
        """Writes the rows of the work list and of alerts that have waited since before that time."""
        old = [written for written in self.sink if written.since_us <= old_us]
        self.sink = [written for written in self.sink if written.since_us > old_us]
        for written in old:
            self.world.tables[written.name].write_rows(written.rows)

    def settle(self, old_us=FOREVER_US):
        """Completes everything in flight since before that time; by default everything that is due."""
        self.write_sink(old_us)
        for stage in self.stages.values():
            stage.aggregate_all(old_us)
            stage.roll_up_all(old_us)
        self.write_sink(old_us)

    def pass_time(self, by_us):
        """Moves the clock; completes on the way what has been in flight for too long."""
        world, end_us = self.world, self.world.now_us + by_us
        while True:
            self._complete_old()
            if world.now_us >= end_us:
                return
            world.now_us = max(min(end_us, self._next_us()), world.now_us + 1)

    def _complete_old(self):
        old_us, unwritten_us = self.world.now_us - _MOST_DELAY_US, self.world.now_us - _MOST_WRITING_US
        self.write_sink(unwritten_us)
        for stage in self.stages.values():
            stage.aggregate_all(old_us)
            stage.roll_up_all(unwritten_us, old_us)
        self.write_sink(unwritten_us)

    def _next_us(self):
        """Returns the next time at which something has been in flight for too long."""
        found = [written.since_us + _MOST_WRITING_US for written in self.sink]
        for stage in self.stages.values():
            found += [since_us + _MOST_DELAY_US for since_us, _ in (*stage.parts, *stage.watched)]
            found += [time_us + _MOST_DELAY_US for time_us in stage.aggregate.clock_times()]
            found += stage.rollups.next_us(_MOST_WRITING_US, _MOST_DELAY_US) if stage.rollups else ()
        return min(found, default=FOREVER_US)

    def advance(self, to_us):
        """Advances the watermark. Some timers fire."""
        self.watermark_us = max(self.watermark_us, min(to_us, self.world.now_us + self.ahead_us))
        self.flow()

    def catch_up(self):
        """Advances the watermark to the clock, and completes all writes that are due."""
        self.settle()
        self.advance(self.world.now_us)
        self.settle()

    def drain(self):
        """Fires every window and writes everything."""
        self.settle()
        self.watermark_us = END_US
        self.settle()
        assert all(stage.is_empty() for stage in self.stages.values()), "something is left of a drained job"
        for stage in self.stages.values():
            stage.check_results()
            stage.check_alerts()

    def busy(self):
        """Returns whether a crash would lose something in flight."""
        watched = (part for stage in self.stages.values() for _, (_, part) in stage.watched)
        pending = (any(stage.pending()) for stage in self.stages.values())
        rolled_up = (stage.rollups and stage.rollups.in_flight() for stage in self.stages.values())
        return bool(self.sink) or any(part != BEGIN for part in watched) or any(pending) or any(rolled_up)

    def pending(self, name):
        """Returns the windows of a table with something in flight, by the tier's number, sensor and start."""
        return self._with_longer(name, Stage.pending)

    def kept(self, name):
        """Returns the windows of a table that the job will compute again."""
        return self._with_longer(name, Stage.kept)

    def _with_longer(self, name, of_stage):
        stage = self.stages.get(name)
        if stage is None:
            return set()
        found = set(of_stage(stage))
        for number, sensor_id, start_us in list(found):
            for longer, tier in enumerate(stage.target.schema.tiers[number + 1 :], number + 1):
                found.add((longer, sensor_id, start_of(start_us, tier.window.text)))
        return found


def _in_part(data):
    start_us = start_of_readings(data)
    return ((0, readings.sensor_id, start_us) for readings in read_group_readings(data))
