"""The steps of a backfill after the steps that it shares with the streaming job.

They survey events, gather readings by groups of sensors and windows, and write the aggregate rows of windows with
events in the files, from these events and the table's raw rows.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import product
from typing import Any, NamedTuple, cast

import apache_beam as beam
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms.window import GlobalWindows

from pipeline.backfill.request import MAX_EXAMPLES, LostReading, Metric, Repeated, Survey
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.writing.rewriter import Rewriter
from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.accumulation.reading_columns import time_of_key
from pipeline.core.completion.audit import lateness_of
from pipeline.core.completion.stored_windows import Completed, SensorStart, counts_exactly
from pipeline.core.completion.work_list import BACKFILLED, encoded_work_rows, listing
from pipeline.core.events.event import MAX_FUTURE_US, Event
from pipeline.core.panes.grouped_readings import GroupedReadings, Kind, read_group_readings, start_of_readings
from pipeline.core.queries.reads import ForeignRow
from pipeline.core.rows.aggregate_rows import encoded_aggregate_row
from pipeline.core.rows.rows import EncodedRows
from pipeline.core.schema.rate import groups_of_batch, span_of_batch
from pipeline.core.schema.retention import Expiry, Retention
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.statistics.parts import last_of
from pipeline.core.statistics.window_stats import WindowStats, same_before
from pipeline.core.windows import HOURLY
from pipeline.transforms import metrics
from pipeline.transforms.process import Expired
from pipeline.transforms.settle_rollups import WrittenWindow
from pipeline.transforms.tables import CompletingFn, now_us

_MICROSECOND = timedelta(microseconds=1)
_MOST_PENDING = 500  # windows in memory, before their rows are written
_MOST_HELD = 50_000  # events in these windows
LISTED, ROLLED_UP, REPEATED = "listed", "rolled_up", "repeated"
"""The tags of the outputs of a step that completes windows.

- ``LISTED``: ``(sensor_id, start in µs)`` of windows for the table's work list, which a repair has to audit;
- ``ROLLED_UP``: ``WrittenWindow`` elements whose roll-ups have to follow. A repair does so for windows that a job may
  still write, since they are listed;
- ``REPEATED``: ``Repeated`` elements; none of longer windows.

The main output is ``(sensor_id, (start in µs, WindowStats))`` of windows whose aggregate rows are written; None for the
statistics of a row that the table has.
"""

SENSORS = "sensors"
"""The tag of the sensors that :class:`SurveyFn` finds."""


class CountExpiredFn(beam.DoFn):
    """Counts the ``Event`` elements that Bigtable would collect soon after they are written. Has no output."""

    def __init__(self, expiry: Expiry) -> None:
        self._expired = Expired(expiry)

    def process(self, element: Event) -> None:
        self._expired.count([element], now_us())


class SurveyFn(beam.DoFn):
    """Surveys the events of a bundle: a :class:`Survey` without sensors, and the ids of the sensors in UTF-8."""

    def start_bundle(self) -> None:
        self._sensors: set[str] = set()
        self._first_us = self._last_us = 0
        self._metrics: dict[str, tuple[int, float, float]] = {}

    def process(self, element: Event) -> None:
        self._sensors.add(element.sensor_id)
        time_us, of_name = element.event_time_us, self._metrics
        self._first_us = min(self._first_us or time_us, time_us)
        self._last_us = max(self._last_us, time_us)
        for name, value in element.readings.items():
            count, least, greatest = of_name.get(name, (0, value, value))
            of_name[name] = count + 1, min(least, value), max(greatest, value)

    def finish_bundle(self) -> Iterator[Any]:
        metrics = {name: Metric(*metric) for name, metric in self._metrics.items()}
        yield GlobalWindows.windowed_value(Survey(0, self._first_us, self._last_us, metrics))
        for sensor_id in self._sensors:
            yield TaggedOutput(SENSORS, GlobalWindows.windowed_value(sensor_id.encode()))


def kind_of_batch(schema: TableSchema) -> Kind:
    """Returns how a batch job gathers the readings of a table: in its shortest windows; in hours without tiers."""
    window = schema.tiers[0].window if schema.tiers else HOURLY
    return window, schema.identity, groups_of_batch(schema.rate, window), schema.member_fields


def gathered_spans(readings: PCollection, schema: TableSchema) -> PCollection:
    """Returns ``((group of sensors, number of the span), parts)`` of ``(group of sensors, readings)`` of windows."""
    span_us = span_of_batch(schema.rate, kind_of_batch(schema)[0])
    by_span = beam.MapTuple(lambda group, data: ((group, start_of_readings(data) // span_us), data))
    keyed = readings | "BySpan" >> by_span.with_output_types(tuple[tuple[int, int], bytes])
    return keyed | "GatherSpans" >> beam.GroupByKey()


@beam.typehints.with_output_types(tuple[int, bytes])
class GatherFn(beam.DoFn):
    """Gathers the readings of a bundle's ``Event`` elements: ``(group of sensors, readings)`` of each window."""

    def __init__(self, schema: TableSchema) -> None:
        self._gathered = GroupedReadings(*kind_of_batch(schema))

    def start_bundle(self) -> None:
        self._gathered.start()

    def process(self, element: Event) -> None:
        if element.readings:  # not of metadata alone
            self._gathered.add([element])

    def finish_bundle(self) -> Iterator[Any]:
        for group, _, data in self._gathered.take_groups():
            yield GlobalWindows.windowed_value((group, data))


def repeated_in(element: tuple[tuple[int, int], Iterable[bytes]]) -> Repeated:
    """Returns what readings of a span repeat."""
    return Repeated.total(repeated for *_, repeated in _windows_in(element[1]))


def _windows_in(
    parts: Iterable[bytes],
) -> Iterator[tuple[int, dict[str, WindowReadings], Counter[str], Repeated]]:
    """Yields the windows of a group of sensors in a span, oldest first.

    A window has its start, an accumulator by sensor, which has each reading once, the number of events by sensor, and
    the repetitions.
    """
    by_start = defaultdict[int, list[bytes]](list)
    for data in parts:
        by_start[start_of_readings(data)].append(data)
    for start_us in sorted(by_start):
        windows, events, readings = defaultdict[str, WindowReadings](WindowReadings), Counter[str](), Counter[str]()
        for data in by_start[start_us]:
            for sensor_id, names, times, values, members in read_group_readings(data):
                window = windows[sensor_id]
                window.extend(names, times, values)
                window.note(*members)
                events[sensor_id] += len(times)
                readings[sensor_id] += len(values)
        repeated = Repeated()
        sensors = set[str]()
        for sensor_id, window in windows.items():
            distinct_events, distinct_readings = window.distinct()
            if distinct_events:
                again = readings[sensor_id] - distinct_readings
                sensors |= {sensor_id} if again else set()
                repeated = Repeated(repeated.events + events[sensor_id] - distinct_events, repeated.readings + again)
        yield start_us, windows, events, _without_lost(repeated, by_start[start_us], sensors) if sensors else repeated


def _without_lost(repeated: Repeated, parts: Iterable[bytes], sensors: Collection[str]) -> Repeated:
    """Returns the repetitions, and tells apart the readings of these sensors that have several values."""
    first: dict[tuple[int, str, str], float] = {}
    several = defaultdict[tuple[int, str, str], set[float]](set)
    for data in parts:
        for sensor_id, names, times, values, _ in read_group_readings(data):
            if sensor_id not in sensors:
                continue
            for (time, metric), value in zip(product(times, names), values, strict=True):
                reading = time, sensor_id, metric
                if first.setdefault(reading, value) != value:
                    several[reading].add(value)
    lost = sum(map(len, several.values()))
    examples = (
        LostReading(time_of_key(time), sensor_id, metric, (min(values), max(values)))
        for (time, sensor_id, metric), others in several.items()
        for values in [{first[time, sensor_id, metric], *others}]
    )
    return Repeated(repeated.events, repeated.readings - lost, lost, tuple(heapq.nsmallest(MAX_EXAMPLES, examples)))


def work_rows(element: tuple[str, int], schema: TableSchema) -> EncodedRows:
    """Returns the row of the table's work list for a window.

    A longer window is listed as the first window of the shortest tier in it: a repair checks all tiers.
    """
    return encoded_work_rows(schema.tiers[0], [element], listing(BACKFILLED, now_us()))


class _Pending(NamedTuple):
    """A window whose row is about to be written."""

    sensor_id: str
    start_us: int
    fresh: WindowReadings | dict[int, WindowStats]  # this backfill's readings, or shorter windows


class _WritingFn(CompletingFn):
    """Completes windows and writes their aggregate rows, many together.

    A job with this allowed lateness and late firing interval may still write windows; zero if no job is running.
    """

    def __init__(
        self,
        name: TableName,
        schema: TableSchema,
        retention: Retention,
        tier: Tier,
        allowed_lateness: timedelta = timedelta(0),
        late_firing: timedelta = timedelta(0),
        max_future: timedelta = MAX_FUTURE_US * _MICROSECOND,
    ) -> None:
        super().__init__(name, schema, retention, search=True)
        self._tier = tier
        of_jobs = retention.lateness_of_jobs(allowed_lateness, late_firing)
        self._late_us = lateness_of(*of_jobs) // _MICROSECOND  # zero without a job
        self._max_future_us = max_future // _MICROSECOND
        self._index = schema.tiers.index(tier)
        self._rolls_up = bool(schema.rollups_of(tier.window))
        self._carries = tier == schema.tiers[0] and tier.statistics.carries  # longer windows carry from shorter ones
        self._aggregate_rows = metrics.counter(metrics.AGGREGATE_ROWS)
        self._left = metrics.counter(metrics.BACKFILL_WINDOWS_LEFT)
        self._listed = metrics.counter(metrics.BACKFILL_WINDOWS_LISTED)

    def setup(self) -> None:
        super().setup()
        self._rewriter: Rewriter | None = None

    def start_bundle(self) -> None:
        super().start_bundle()
        self._pending: list[_Pending] = []
        self._size = 0

    def finish_bundle(self) -> Iterator[Any]:
        """Writes what is pending. Beam asks for windowed values here."""
        for output in self._finish():
            tag, value = (output.tag, output.value) if isinstance(output, TaggedOutput) else (None, output)
            windowed = GlobalWindows.windowed_value(value)
            yield windowed if tag is None else TaggedOutput(tag, windowed)

    def _finish(self) -> Iterator[Any]:
        return self._write()

    def _add(self, pending: _Pending, size: int) -> Iterator[Any]:
        self._pending.append(pending)
        self._size += size
        if len(self._pending) >= _MOST_PENDING or self._size >= _MOST_HELD:
            yield from self._write()

    def _write(self) -> Iterator[Any]:
        """Writes the rows of the pending windows. Rewrites those that have more readings in the table by then."""
        pending, self._pending, self._size = self._pending, [], 0
        completed = self._first_completed(dict(enumerate(pending)))
        changed = {index: each for index, each in completed.items() if each is not None}
        while changed:
            self._write_rows([(pending[index], found.stats) for index, found in changed.items()])
            written, changed = changed, {}
            certain = [index for index in written if self._is_certain(pending[index].start_us)]
            known = {index: pending[index]._replace(fresh=written[index].known) for index in certain}
            for index, again in self._each_completed(known).items():
                if again is None:
                    completed[index] = None  # another writer added a foreign row, or rows were collected
                elif again.stats.size > written[index].stats.size or not self._is_same(written[index], again):
                    completed[index] = changed[index] = again
                else:
                    completed[index] = again._replace(stats=written[index].stats)
        for index, (sensor_id, start_us, *_) in enumerate(pending):
            final = completed[index]
            self._look_beyond(pending[index], final and final.stats)
            if final is not None:
                self._aggregate_rows.inc()
                yield from self._marks(sensor_id, start_us, final.stats)
            else:
                self._left.inc()
            if final is None or self._may_be_written(start_us):
                yield self._list(sensor_id, start_us)

    def _marks(self, sensor_id: str, start_us: int, stats: WindowStats | None) -> Iterator[Any]:
        """Yields the outputs by which longer windows and roll-ups follow a window."""
        yield sensor_id, (start_us, stats)
        if self._rolls_up and not self._may_be_written(start_us):
            yield TaggedOutput(ROLLED_UP, WrittenWindow(self._index, start_us, sensor_id))

    def _list(self, sensor_id: str, start_us: int) -> TaggedOutput:
        """Returns the output that puts a window on the work list, and counts it."""
        self._listed.inc()
        return TaggedOutput(LISTED, (sensor_id, start_us))

    def _look_beyond(self, pending: _Pending, stats: WindowStats | None) -> None:
        """Called for each window, with the statistics of its row; None if the row is left as it is."""

    def _is_same(self, written: Completed[Any], again: Completed[Any]) -> bool:
        """Whether a written row says the same as a later result that does not count more."""
        return same_before(written.stats, again.stats) and written.stats.member == again.stats.member

    def _first_completed(self, pending: Mapping[int, _Pending]) -> dict[int, Completed[Any] | None]:
        """Returns the aggregate of each window for its first row here, which is looked at again once it is written."""
        return self._each_completed(pending)

    def _each_completed(self, pending: Mapping[int, _Pending]) -> dict[int, Completed[Any] | None]:
        """Returns the aggregate of each window, as :meth:`_completed` does; windows of a sensor are read together."""
        indexes = {(each.sensor_id, each.start_us): index for index, each in pending.items()}
        fresh = {window: pending[index].fresh for window, index in indexes.items()}
        completed = partial(self._completed, fresh)
        found = self._completion.tiers[self._tier].each(completed, sorted(fresh), now_us(), fresh=fresh)
        return {indexes[window]: each for window, each in found.items()}

    def _completed(self, fresh: Mapping[SensorStart, Any], window: SensorStart) -> Completed[Any] | None:
        """Returns the aggregate of a window; None to leave its row as it is."""
        sensor_id, start_us = window
        with suppress(ForeignRow):
            found = self._completion.tiers[self._tier].completed(*window, now_us(), fresh[window])
            if found is not None and self._carries:
                self._completion.neighbours.carry(sensor_id, {start_us: found.stats}, now_us())
            return found
        return None

    def _may_be_written(self, start_us: int) -> bool:
        """Whether a job may still write the window from its state, without what this backfill has."""
        end_us = self._tier.window.end_of(self._tier.window.start_of(start_us))
        return bool(self._late_us) and (end_us + self._late_us > now_us() or not self._is_certain(start_us))

    def _is_certain(self, start_us: int) -> bool:
        """Whether the table certainly has all that a window consists of."""
        return self._completion.tiers[self._tier].is_certain(start_us, now_us())

    def _write_rows(self, windows: list[tuple[_Pending, WindowStats]]) -> None:
        if self._rewriter is None:
            self._rewriter = self._connections.enter_context(Rewriter.open(self._name))
        tier = self._tier
        rows = (
            encoded_aggregate_row(tier.window, sensor_id, start_us, stats, tier.family, tier.statistics)
            for (sensor_id, start_us, *_), stats in windows
        )
        self._rewriter.write(rows)


class CompleteFn(_WritingFn):
    """Writes the aggregate rows of the shortest windows.

    Takes :func:`gathered_spans`, whose readings are in the table by now. The aggregate counts each of them and
    of the window's raw rows once. If both have a reading, it uses the raw row's value. Leaves a window unchanged, and
    lists it, if the new row may count less than the stored one, or if a foreign row may belong to it. Writes and also
    lists a window if a job may still write it: its panes lack these events until the job has found the window on the
    list.

    Several backfills may run together: each checks its aggregate rows again after writing them, when its raw rows are
    in the table. Thus the last writer of a row has read the raw rows of all.
    """

    def start_bundle(self) -> None:
        super().start_bundle()
        self._following: set[tuple[str, int]] = set()
        self._continuing: set[tuple[str, int]] = set()
        self._on_their_way: set[tuple[str, int]] = set()
        self._repeated: list[Repeated] = []

    def process(self, element: tuple[tuple[int, int], Iterable[bytes]]) -> Iterator[Any]:
        for start_us, windows, events, repeated in _windows_in(element[1]):
            self._repeated.append(repeated)
            for sensor_id, readings in windows.items():
                yield from self._add(_Pending(sensor_id, start_us, readings), events[sensor_id])

    def _finish(self) -> Iterator[Any]:
        yield from super()._finish()
        while self._following:
            following, self._following = self._following, set()
            for sensor_id, start_us in following:
                yield from self._add(_Pending(sensor_id, start_us, WindowReadings()), 1)
            yield from self._write()
        for sensor_id, start_us in self._continuing:
            yield from self._marks(sensor_id, start_us, None)
        for sensor_id, start_us in self._on_their_way:
            yield self._list(sensor_id, start_us)
        yield TaggedOutput(REPEATED, Repeated.total(self._repeated))

    def _first_completed(self, pending: Mapping[int, _Pending]) -> dict[int, Completed[Any] | None]:
        """Takes a window without an aggregate row for one without raw rows besides those of this backfill."""
        found = dict[int, Completed[Any] | None]()
        if not self._carries:
            indexes = {(each.sensor_id, each.start_us): index for index, each in pending.items()}
            certain = [window for window in indexes if self._is_certain(window[1])]
            for window in self._completion.shortest.without_rows(certain):
                fresh = cast(WindowReadings, pending[indexes[window]].fresh).as_read()
                pane = fresh.pane(self._tier.statistics)
                if not pane.too_wide:
                    found[indexes[window]] = Completed(pane.stats, fresh)
        return found | self._each_completed({index: each for index, each in pending.items() if index not in found})

    def _is_same(self, written: Completed[WindowReadings], again: Completed[WindowReadings]) -> bool:
        has_changed = again.known is not written.known
        if has_changed and not counts_exactly(again.known, written.stats, self._tier.statistics):
            return False  # another backfill has corrected a value
        return super()._is_same(written, again)

    def _look_beyond(self, pending: _Pending, stats: WindowStats | None) -> None:
        """Notes the windows after this one that continue from its last readings, or should.

        A row that does continue may be of this bundle's first attempt, whose outputs were lost. So may the window's own
        row, if that has to stay now. The row of a running job that continues may be on its way: then its window is
        listed.
        """
        if not self._carries:
            return
        sensor_id, start_us, fresh = pending
        if stats is None and isinstance(fresh, WindowReadings):
            stats = fresh.pane().stats
        carries_to, window, now = self._tier.statistics.carries_to, self._tier.window, now_us()
        metrics = stats.metrics.items() if stats is not None else ()
        if lasts := {metric: last_of(of_metric.parts) for metric, of_metric in metrics if carries_to(metric)}:
            end_us = window.end_of(start_us)
            found, until_us = self._completion.neighbours.following(sensor_id, lasts, end_us)
            for each_us, continues in found.items():
                (self._continuing if continues else self._following).add((sensor_id, each_us))
            if self._late_us:
                open_us = window.start_of(now - self._late_us)
                starts = window.starts(max(end_us, open_us), min(until_us, now + self._max_future_us + 1))
                self._on_their_way |= {(sensor_id, each_us) for each_us in starts}


class CompleteLongerFn(_WritingFn):
    """Writes the aggregate rows of longer windows, given ``((sensor_id, start in µs), shorter windows)``.

    Shorter windows are ``(start in µs, WindowStats)``, as their step returns them. Reads the others from their
    aggregate rows in the table, or computes them from their raw rows. A job that still writes these windows does the
    same.
    """

    def process(self, element: tuple[tuple[str, int], Iterable[tuple[int, WindowStats | None]]]) -> Iterator[Any]:
        (sensor_id, start_us), shorter = element
        fresh = {each_us: stats for each_us, stats in shorter if stats is not None}
        yield from self._add(_Pending(sensor_id, start_us, fresh), 1)
