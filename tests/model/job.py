"""A streaming job without Beam: the graph's real steps, called as Beam would, in the order that the test decides.

Beam's own part is modelled here: windows that accept elements until the watermark passes their end and the allowed
lateness; accumulating panes; queues between steps, which a watermark does not overtake.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from unittest import mock

from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import IntervalWindow, TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PaneInfo, WindowedValue

from pipeline.core.accumulator import WindowReadings
from pipeline.core.tiers import ShorterWindows
from pipeline.core.work_list import work_row
from pipeline.job.windows import aggregate
from pipeline.transforms import process as processing
from pipeline.transforms.aggregate import Aggregated, AggregateReadings, RollUpFn, WindowReadingsFn, _HoldBackFn
from pipeline.transforms.process import ProcessMessages
from pipeline.transforms.restore import _ReadFn
from pipeline.transforms.rows import _FormatLastPaneFn
from tests.model.reference import MINUTE

FOREVER_US = 1 << 60
_MOST_DELAY_US = 10 * MINUTE  # between two steps, or for all tries of a writer


class _Outputs(dict):
    """Stands for the outputs of a step, by tag."""

    def __missing__(self, tag):
        self[tag] = _Output(tag)
        return self[tag]


class _Output:
    def __init__(self, tag):
        self.tag = tag


class _Step:
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
    """Stands for the collection to aggregate; keeps the steps that are applied to it and to its results."""

    def __init__(self, steps):
        self.steps = steps

    def __or__(self, step):
        self.steps.append(step.transform)
        return Aggregated(self, [])


@dataclass
class _Open:
    """A window that accepts elements. It has two accumulators, as a runner may have any number."""

    accumulators: list
    dirty: bool = False
    on_time: bool = False
    turn: int = 0


@dataclass
class _Written:
    """Rows that a sink has yet to write."""

    since_us: int
    name: object
    rows: list


class Stage:
    """The aggregates of one tier: its windows, and the elements and panes in flight."""

    def __init__(self, job, target, tier, step):
        self.job, self.target, self.tier = job, target, tier
        self.length_us = tier.window.length_us
        self.firing = step._firing
        self.lateness_us = round(self.firing.allowed_lateness.total_seconds()) * 1_000_000
        self.first = isinstance(step, AggregateReadings)
        self.combine = WindowReadingsFn(deduplicate=step._deduplicate) if self.first else RollUpFn()
        self.restore = step._restore
        self.read = _ReadFn(*step._restore._table, step._restore._restore)
        self.read.setup()
        self.hold_back = _HoldBackFn(step._restore.before_us)
        self.format = _FormatLastPaneFn(tier)
        self.watermark_us = -FOREVER_US
        self.open, self.asked, self.asking = {}, set(), []
        self.coming = deque()  # panes of the shorter tier
        self.panes = deque()  # panes to write
        self.longer = None

    def take(self, sensor_id, time_us, element, *, at_once=True):
        start_us = time_us - time_us % self.length_us
        if start_us + self.length_us + self.lateness_us <= self.watermark_us:
            return  # Beam drops it silently
        key = sensor_id, start_us
        if start_us < self.restore.before_us and key not in self.asked:
            self.asked.add(key)
            self.asking.append((self.job.world.now_us, key))
        self._add(key, element)
        if at_once:
            self.answer()

    def answer(self):
        """Reads the requested windows from the table."""
        asking, self.asking = self.asking, []
        if not asking:
            return
        self.read.start_bundle()
        for _, key in asking:
            for out in self.read.process((key[0], True), self._window(key)):
                if isinstance(out, TaggedOutput):
                    rows = [work_row(self.target.schema.tiers[0], *out.value)]
                    self.job.sink.append(_Written(self.job.world.now_us, self.target.name, rows))
                else:
                    self._add(key, out[1])

    def receive(self):
        """Takes the panes of the shorter tier."""
        while self.coming:
            sensor_id, time_us, element = self.coming.popleft()
            self.take(sensor_id, time_us, element, at_once=self.job.random.random() < 0.7)

    def fire(self, key):
        """Fires a pane if the window is open."""
        found = self.open.get(key)
        if found is None:
            return
        found.dirty = False
        if self.job.random.random() < 0.3:
            kind = WindowReadings if self.first else ShorterWindows
            found.accumulators = [kind.from_bytes(each.to_bytes()) for each in found.accumulators]
        order = self.job.random.sample(found.accumulators, 2)
        pane = self.combine.extract_output(self.combine.merge_accumulators(order))
        window = self._window(key)
        for sensor_id, stats in self.hold_back.process((key[0], pane), window):
            self.panes.append((self.job.world.now_us, sensor_id, stats, window))
            if self.longer is not None:
                self.longer.coming.append((sensor_id, key[1] + self.length_us - 1, (key[1], stats)))

    def fire_dirty(self):
        for key in [key for key, window in self.open.items() if window.dirty]:
            self.fire(key)

    def write(self, most=None):
        """Writes a bundle of panes."""
        if not self.panes:
            return
        self.format.start_bundle()
        for _ in range(len(self.panes) if most is None else min(most, len(self.panes))):
            _, sensor_id, stats, window = self.panes.popleft()
            self.format.process((sensor_id, stats), window, PaneInfo(False, False, 0, 0, 0))
        table = self.job.world.tables[self.target.name]
        table.write_rows(each.value for each in self.format.finish_bundle())

    def advance(self, to_us):
        """Advances the watermark after everything in flight; then fires and closes windows."""
        self.receive()
        self.answer()
        self.watermark_us = max(self.watermark_us, to_us)
        for key, window in list(self.open.items()):
            end_us = key[1] + self.length_us
            closes = end_us + self.lateness_us <= self.watermark_us
            if end_us <= self.watermark_us and (not window.on_time or (closes and window.dirty)):
                window.on_time = True
                self.fire(key)
            if closes:
                del self.open[key]
                self.asked.discard(key)
        if self.longer is not None:
            self.longer.advance(to_us)

    def pending(self):
        """Yields the windows that have something in flight to the table."""
        yield from (key for key, window in self.open.items() if window.dirty)
        yield from (key for _, key in self.asking)
        yield from ((sensor_id, window.start.micros) for _, sensor_id, _, window in self.panes)
        yield from ((sensor_id, time_us - time_us % self.length_us) for sensor_id, time_us, _ in self.coming)

    def _add(self, key, element):
        found = self.open.get(key)
        if found is None:
            found = self.open[key] = _Open([self.combine.create_accumulator() for _ in range(2)])
        found.turn ^= self.job.random.random() < 0.5
        found.accumulators[found.turn] = self.combine.add_input(found.accumulators[found.turn], element)
        found.dirty = True

    def _window(self, key):
        start_us = key[1]
        return IntervalWindow(Timestamp(micros=start_us), Timestamp(micros=start_us + self.length_us))


@dataclass
class _Gathered:
    """A bundle's readings of a window, in flight."""

    since_us: int
    tag: str
    sensor_id: str
    time_us: int
    readings: object


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
        watermark_us: the watermark of its source.
    """

    def __init__(self, world, targets, settings, random):
        self.world, self.targets, self.settings, self.random = world, targets, settings, random
        self.began_us = world.now_us
        self.ahead_us = round(settings.max_future.total_seconds() * 1e6) if settings.timestamp_attribute else 0
        self.watermark_us = -FOREVER_US
        self.history, self.gathered, self.sink = [], deque(), deque()
        messages = _Messages()
        process = ProcessMessages(
            [target.schema for target in targets],
            max_future=settings.max_future,
            allowed_lateness=settings.allowed_lateness,
            ahead=settings.max_future if settings.timestamp_attribute else settings.max_future * 0,
            deduplicate=settings.deduplicate,
            clock=lambda: world.now_us / 1_000_000,
        )
        with mock.patch.object(processing, "beam", SimpleNamespace(ParDo=_Step)):
            process = process.expand(messages)
        self.process = messages.fn
        self.rows = {output.tag: target for output, target in zip(process.rows, targets, strict=True)}
        self.stages, self.firsts = {}, {}
        for target, gathered in zip(targets, process.readings, strict=True):
            steps = []
            aggregate(_Parts(steps), target, settings, self.began_us)
            stages = [Stage(self, target, *each) for each in zip(target.schema.tiers, steps, strict=True)]
            for stage, longer in pairwise(stages):
                stage.longer = longer
            self.stages[target.name] = stages
            if gathered is not None:
                self.firsts.setdefault(gathered.tag, []).append(stages[0])

    def all_stages(self):
        return [stage for stages in self.stages.values() for stage in stages]

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
        for tag, value in ((out.tag, out.value) for out in outputs):
            time_us = value.timestamp.micros if isinstance(value, TimestampedValue | WindowedValue) else None
            element = value if time_us is None else value.value
            if tag in self.rows:
                self.sink.append(_Written(self.world.now_us, self.rows[tag].name, element))
            elif tag in self.firsts:
                self.gathered.append(_Gathered(self.world.now_us, tag, element[0], time_us, element[1]))
            else:
                letters.append(element)
        return letters

    # In flight

    def gather(self, *, at_once=True):
        """Delivers everything gathered to its windows, and reads these from the table if ``at_once``."""
        while self.gathered:
            each = self.gathered.popleft()
            for stage in self.firsts[each.tag]:
                readings = each.readings
                if self.random.random() < 0.3:
                    readings = WindowReadings.from_bytes(readings.to_bytes())
                stage.take(each.sensor_id, each.time_us, readings, at_once=at_once)

    def write_sink(self):
        """Writes the rows in the sinks of raw rows and the work list."""
        while self.sink:
            written = self.sink.popleft()
            self.world.tables[written.name].write_rows(written.rows)

    def write(self):
        """Writes everything."""
        self.write_sink()
        for stage in self.all_stages():
            stage.write()

    def settle(self, by_us=None):
        """Completes everything in flight since before that time; by default everything."""
        old = FOREVER_US if by_us is None else by_us
        if any(each.since_us <= old for each in self.gathered):
            self.gather()
        for stage in self.all_stages():
            if any(since_us <= old for since_us, _ in stage.asking):
                stage.answer()
            stage.receive()
            if any(pane[0] <= old for pane in stage.panes):
                stage.write()
        if any(each.since_us <= old for each in self.sink):
            self.write_sink()

    def pass_time(self):
        """Completes what has been in flight for too long after the clock has moved."""
        self.settle(self.world.now_us - _MOST_DELAY_US)

    def advance(self, to_us):
        """Advances the watermark of the source. Events in time hold it back, late ones do not."""
        late = [each for each in self.gathered if each.time_us < self.watermark_us and self.random.random() < 0.5]
        self.gathered = deque(each for each in self.gathered if each not in late)
        self.gather()
        self.gathered.extend(late)
        self.watermark_us = max(self.watermark_us, min(to_us, self.world.now_us + self.ahead_us))
        for stages in self.stages.values():
            if stages:
                stages[0].advance(self.watermark_us)

    def catch_up(self):
        """Advances the watermark to the clock, fires late panes, and completes all writes."""
        self.settle()
        self.advance(self.world.now_us)
        for _ in range(2):
            for stage in self.all_stages():
                stage.fire_dirty()
            self.settle()
        self.write()

    def drain(self):
        """Fires every window and writes everything."""
        self.settle()
        for stages in self.stages.values():
            if stages:
                stages[0].advance(FOREVER_US)
        self.settle()
        self.write()

    def busy(self):
        """Returns whether a crash would lose something in flight."""
        return bool(self.gathered or self.sink) or any(any(stage.pending()) for stage in self.all_stages())

    def pending(self, name):
        """Returns the windows of a table with something in flight, by the tier's number, sensor and start."""
        found = set()
        stages = self.stages.get(name, [])
        for number, stage in enumerate(stages):
            found |= {(number, *key) for key in stage.pending()}
        for each in self.gathered:
            if stages and stages[0] in self.firsts[each.tag]:
                found.add((0, each.sensor_id, each.time_us - each.time_us % stages[0].length_us))
        for number, sensor_id, start_us in list(found):
            for longer, stage in enumerate(stages[number + 1 :], number + 1):
                found.add((longer, sensor_id, start_us - start_us % stage.length_us))
        return found
