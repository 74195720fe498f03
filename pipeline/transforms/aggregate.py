"""Aggregates readings in windows: a step with state and timers, whose key is a group of sensors."""

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import (
    BagRuntimeState,
    BagStateSpec,
    ReadModifyWriteRuntimeState,
    ReadModifyWriteStateSpec,
    RuntimeTimer,
    TimerSpec,
    on_timer,
)
from apache_beam.utils.timestamp import Timestamp

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables.table_guard import TableGuard
from pipeline.core.completion.work_list import LATE, encoded_work_rows, listing
from pipeline.core.events.message import Message
from pipeline.core.notation.times import format_time
from pipeline.core.panes import group_firing as fired
from pipeline.core.panes.firing import MAX_COMMIT_BYTES, NEVER_US, Aggregation
from pipeline.core.panes.group_firing import INCOMPLETE, RESTORED, GroupFiring
from pipeline.core.panes.group_state import Bags, GroupState, Schedule, Timers, read_schedule
from pipeline.core.panes.grouped_readings import read_group_readings, start_of_readings, wakes
from pipeline.core.results.window_results import batches_of
from pipeline.core.rows.rows import EncodedRows, row_bytes, some_at_a_time
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema
from pipeline.private_apis.worker_state import set_clock_timer
from pipeline.transforms import metrics
from pipeline.transforms.tables import Clock, CompletingFn, StatefulFn
from pipeline.transforms.windows_here import HERE
from pipeline.transforms.write import BulkWriteFn

# Output tags, which an update of a job compares.
_LISTED, _RESULTS, _ROLLUPS, _DEAD_LETTERS = "listed", "results", "rollups", "dead_letters"
_READERS = 8  # windows of a group that are read at a time
_MINUTE_US = 60_000_000
_MOST_BYTES = 2 << 20  # of the rows that the writer gets at a time
_LARGE_BYTES = 20_000_000  # a quarter of what Dataflow accepts as an element
_COUNTERS = {
    fired.EARLY: metrics.PANES_EARLY,
    fired.ON_TIME: metrics.PANES_ON_TIME,
    fired.LATE: metrics.PANES_LATE,
    fired.TOO_WIDE: metrics.PANES_TOO_WIDE,
    RESTORED: metrics.WINDOWS_RESTORED,
    INCOMPLETE: metrics.WINDOWS_INCOMPLETE,
    fired.RECOMPUTED: metrics.WINDOWS_RECOMPUTED,
}
# Changing a spec or a coder changes the state: a running job would have to be drained.
_BAGS = ("parts", "marks", "open")
_BAG_SPECS = [BagStateSpec(name, BytesCoder()) for name in _BAGS]
_SCHEDULE_SPEC = ReadModifyWriteStateSpec("schedule", BytesCoder())
_WATERMARK_SPEC = TimerSpec("watermark", TimeDomain.WATERMARK)
_CLOCK_SPEC = TimerSpec("clock", TimeDomain.REAL_TIME)
_PARTS, _MARKS, _OPEN = map(beam.DoFn.StateParam, _BAG_SPECS)
_SCHEDULE = beam.DoFn.StateParam(_SCHEDULE_SPEC)
_WATERMARK, _CLOCK = map(beam.DoFn.TimerParam, (_WATERMARK_SPEC, _CLOCK_SPEC))

_LOGGER = logging.getLogger(__name__)


class Aggregated(NamedTuple):
    """The outputs of an aggregation.

    Attributes:
        listed: ``EncodedRows`` of the work list, for windows that a repair has to check.
        dead_letters: ``Message`` elements of refused rows; None if the writer has none.
        results: batches of windows' results, as :func:`pipeline.core.results.window_results.batches_of` encodes them;
            None for a job that publishes none.
        contributions: rows of members, as :mod:`pipeline.core.panes.group_firing` encodes them; None
            for a table without roll-ups.
    """

    listed: PCollection
    dead_letters: PCollection | None = None
    results: PCollection | None = None
    contributions: PCollection | None = None


def always() -> bool:
    """Wants the results of windows at any time."""
    return True


class AggregateWindows(beam.PTransform):
    """Aggregates ``(group, readings)`` in the windows of all tiers, and writes their rows. Outputs :class:`Aggregated`.

    The readings are parts of :mod:`pipeline.core.panes.grouped_readings`. No element is too late for this step.

    The rows of panes and of newest readings are in the table when their bundle ends, each at most once in a bundle: a
    firing reads what earlier ones wrote.

    Args:
        table: the table's name, its schema, and its retention.
        aggregation: the settings.
        writer: the DoFn that writes a bundle's rows by its end, and returns dead letters of refused ones.
        clock: a function that returns the current time.
        wants_results: a function that returns whether anybody wants the results of windows now.
    """

    def __init__(
        self,
        table: tuple[TableName, TableSchema, Retention],
        aggregation: Aggregation,
        writer: beam.DoFn,
        clock: Clock = time.time,
        wants_results: Callable[[], bool] = always,
    ) -> None:
        super().__init__()
        self._aggregate_fn = _AggregateFn(*table, aggregation, writer, clock, wants_results)

    def expand(self, parts: PCollection) -> Any:  # Aggregated, which Beam would take for a type hint
        aggregation = self._aggregate_fn.aggregation
        types: dict[str, Any] = {_LISTED: EncodedRows}
        if isinstance(self._aggregate_fn.writer, BulkWriteFn):
            types[_DEAD_LETTERS] = Message
        if aggregation.results is not None:
            types[_RESULTS] = bytes
        if aggregation.rollups is not None:
            types[_ROLLUPS] = bytes
        outputs = parts | "Aggregate" >> beam.ParDo(self._aggregate_fn).with_outputs(*types)
        for tag, element_type in types.items():
            outputs[tag].element_type = element_type
        others = (outputs[tag] if tag in types else None for tag in (_DEAD_LETTERS, _RESULTS, _ROLLUPS))
        return Aggregated(outputs[_LISTED], *others)


class _AggregateFn(StatefulFn, CompletingFn):
    def __init__(
        self,
        name: TableName,
        schema: TableSchema,
        retention: Retention,
        aggregation: Aggregation,
        writer: beam.DoFn,
        clock: Clock,
        wants_results: Callable[[], bool],
    ) -> None:
        super().__init__(name, schema, retention, raw_until_us=aggregation.before_us or 0)
        self.aggregation, self._wants_results = aggregation, wants_results
        self.writer = writer
        self._clock = clock
        self._counters = {count: metrics.counter(name) for count, name in _COUNTERS.items()}
        self._rows = metrics.counter(metrics.AGGREGATE_ROWS)
        self._late_events = metrics.counter(metrics.LATE_EVENTS)
        self._large = metrics.counter(metrics.LARGE_ACCUMULATORS)
        self._large_groups = metrics.counter(metrics.LARGE_GROUPS)
        self._told_us = 0  # the time of the last warning of a large group

    def display_data(self) -> dict[str, Any]:
        shown: dict[str, Any] = self.writer.display_data()
        return shown

    @property
    def guard(self) -> TableGuard | None:
        """The guard of the table."""
        guard: TableGuard | None = self.writer.guard
        return guard

    def setup(self) -> None:
        super().setup()
        self.writer.setup()
        self._readers = self._connections.enter_context(ThreadPoolExecutor(_READERS, "tidetable-read"))

    def start_bundle(self) -> None:
        super().start_bundle()
        self.writer.start_bundle()
        self._schedules: dict[int, bytes | None] = {}  # as stored: without a cache, each read of one is a request
        self._fired: set[int] = set()  # groups whose rows are written when the bundle ends

    def finish_bundle(self) -> Iterator[TaggedOutput]:
        """Writes the bundle's rows. Beam asks for windowed values here."""
        for letter in self.writer.finish_bundle():
            yield TaggedOutput(_DEAD_LETTERS, letter)

    def teardown(self) -> None:
        self.writer.teardown()
        super().teardown()

    def process(
        self,
        element: tuple[int, bytes],
        parts: BagRuntimeState = _PARTS,
        marks: BagRuntimeState = _MARKS,
        opened: BagRuntimeState = _OPEN,
        schedule: ReadModifyWriteRuntimeState = _SCHEDULE,
        watermark: RuntimeTimer = _WATERMARK,
        clock: RuntimeTimer = _CLOCK,
    ) -> None:
        group, part = element
        if group not in self._schedules:
            self._schedules[group] = schedule.read()
        of_group = read_schedule(
            self._schedules[group], Bags(parts, marks, opened), self.aggregation, self._now_us(), group
        )
        start_us = start_of_readings(part)
        is_late = of_group.is_late(start_us)
        if is_late:  # the raw rows are in the table
            received = list(read_group_readings(part))
            self._late_events.inc(sum(len(readings.times) for readings in received))
            for mark in wakes(start_us, dict.fromkeys(readings.sensor_id for readings in received)):
                marks.add(mark)
        else:
            parts.add(part)
        if HERE.watched and (is_late or start_us < (self.aggregation.before_us or 0)):
            HERE.wait((self._name, group), part, late=is_late)
        timers = of_group.expect(start_us, self._now_us())
        if timers is not None:
            self._schedules[group] = of_group.to_bytes()
            schedule.write(self._schedules[group])
            _set(timers, watermark, clock)

    @on_timer(_WATERMARK_SPEC)
    def watermark_passed(
        self,
        group: Any = beam.DoFn.KeyParam,
        at: Any = beam.DoFn.TimestampParam,
        parts: BagRuntimeState = _PARTS,
        marks: BagRuntimeState = _MARKS,
        opened: BagRuntimeState = _OPEN,
        schedule: ReadModifyWriteRuntimeState = _SCHEDULE,
        watermark: RuntimeTimer = _WATERMARK,
        clock: RuntimeTimer = _CLOCK,
    ) -> Iterator[Any]:
        """Fires the panes that are on time, and the last ones of windows that close."""
        if group in self._fired:
            watermark.set(at)  # in the next bundle
            return
        state, now_us = _State(Bags(parts, marks, opened), schedule, watermark, clock), self._now_us()
        of_group = read_schedule(schedule.read(), state.bags, self.aggregation, now_us, group)
        yield from self._fire(group, of_group.pass_watermark(at.micros), of_group, now_us, state)

    @on_timer(_CLOCK_SPEC)
    def time_passed(
        self,
        group: Any = beam.DoFn.KeyParam,
        at: Any = beam.DoFn.TimestampParam,
        parts: BagRuntimeState = _PARTS,
        marks: BagRuntimeState = _MARKS,
        opened: BagRuntimeState = _OPEN,
        schedule: ReadModifyWriteRuntimeState = _SCHEDULE,
        watermark: RuntimeTimer = _WATERMARK,
        clock: RuntimeTimer = _CLOCK,
    ) -> Iterator[Any]:
        """Fires early panes, and panes of late readings."""
        if group in self._fired:
            set_clock_timer(clock, at)  # in the next bundle
            return
        now_us = max(at.micros, self._now_us())  # the runner's clock may be ahead of this one
        state = _State(Bags(parts, marks, opened), schedule, watermark, clock)
        of_group = read_schedule(schedule.read(), state.bags, self.aggregation, now_us, group)
        yield from self._fire(group, of_group.pass_time(now_us), of_group, now_us, state)

    def _fire(
        self, group: int, due: set[int], schedule: Schedule, now_us: int, state: "_State"
    ) -> Iterator[TaggedOutput]:
        """Fires the panes of windows, by their starts, and sets the timers for what comes next."""
        of_group = GroupState(state.bags, self.aggregation, schedule, due, now_us, self._completion)
        windows = of_group.windows
        firing = GroupFiring(of_group, self._readers.map)
        firing.fire()
        self._fired.add(group)
        _set(of_group.write(firing.left), state.watermark, state.clock)
        if HERE.watched:
            HERE.fired((self._name, group), due, firing.left.readings, windows)
        if schedule.is_over:
            schedule.clock_us = NEVER_US
            state.clock.clear()  # a drain would wait for it
        size = windows.written_bytes
        if firing.results and (rules := self.aggregation.results) and self._wants_results():
            for batch in batches_of(firing.results.found, self.aggregation.tiers, rules.began_us, schedule.firings):
                size += len(batch)
                yield TaggedOutput(_RESULTS, batch)
        for batch in firing.contributions.batches() if firing.contributions else ():
            size += len(batch)
            yield TaggedOutput(_ROLLUPS, batch)
        self._rows.inc(sum(firing.counts[kind] for kind in (fired.EARLY, fired.ON_TIME, fired.LATE)))
        for rows in some_at_a_time(firing.rows, row_bytes, _MOST_BYTES):
            for letter in self.writer.process(EncodedRows(rows)):
                yield TaggedOutput(_DEAD_LETTERS, letter)
        schedule.firings += 1
        self._schedules[group] = schedule.to_bytes()
        state.schedule.write(self._schedules[group])
        if firing.incomplete:
            column = listing(LATE, now_us)
            listed = encoded_work_rows(self._schema.tiers[0], dict.fromkeys(firing.incomplete), column)
            yield TaggedOutput(_LISTED, listed)
        for count, number in firing.counts.items():
            self._counters[count].inc(number)
        self._tell_of_large(group, size, now_us)
        for sensor_id, start_us, size in windows.large(_LARGE_BYTES):
            self._large.inc()
            _LOGGER.warning(
                "The readings of sensor %s in the window of %s take %d MB of state, and 80 MB at most can be stored: "
                "use a shorter window for the first tier",
                sensor_id,
                format_time(start_us),
                size // 1_000_000,
            )

    def _tell_of_large(self, group: int, size: int, now_us: int) -> None:
        """Counts a firing that commits more than a quarter of what Dataflow accepts, and logs one a minute."""
        if size <= MAX_COMMIT_BYTES // 4:
            return
        self._large_groups.inc()
        if now_us >= self._told_us + _MINUTE_US:
            self._told_us = now_us
            _LOGGER.warning(
                "Group %d of sensors commits %d MB of windows and results in a firing, and Dataflow accepts %d MB: "
                "declare the number of sensors in [rate], a shorter first tier or fewer metrics",
                group,
                size // 1_000_000,
                MAX_COMMIT_BYTES // 1_000_000,
            )

    def _now_us(self) -> int:
        return int(self._clock() * 1_000_000)


class _State(NamedTuple):
    """The state and timers of a group."""

    bags: Bags
    schedule: ReadModifyWriteRuntimeState
    watermark: RuntimeTimer
    clock: RuntimeTimer


def _set(timers: Timers, watermark: RuntimeTimer, clock: RuntimeTimer) -> None:
    if timers.watermark_us is not None:
        watermark.set(Timestamp(micros=timers.watermark_us))
    if timers.clock_us is not None:
        set_clock_timer(clock, Timestamp(micros=timers.clock_us))
