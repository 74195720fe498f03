"""Completes windows from what a table stores. Jobs, backfills, repairs and readers of open windows share it.

A window of the shortest tier is computed from its raw rows, and a longer one from the rows of its shorter windows. If
Bigtable may have collected some of these rows, the window's own row tells whether something is missing. Nothing here
calls a server: the caller passes the function that reads rows.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from math import isnan
from operator import neg
from typing import Any, Generic, NamedTuple, TypeVar

from pipeline.core.accumulation.accumulator import WindowReadings, merged
from pipeline.core.accumulation.reading_columns import Columns, event_key, newest_first
from pipeline.core.completion.neighbours import Neighbours
from pipeline.core.queries.events import EventColumns, Query, SensorLocator, columns_of, selections_of
from pipeline.core.queries.reads import ForeignRow, ReadRows, RowSelection, RowsTogether
from pipeline.core.rows.aggregate_rows import (
    aggregate_range,
    parse_aggregate_key,
    parse_window_stats,
)
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.rate import span_of_batch
from pipeline.core.schema.retention import FOR_EVER_US, Retention
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.statistics.member import Member, member_text, of_fields, tells
from pipeline.core.statistics.parts import same_readings
from pipeline.core.statistics.window_stats import MetricStats, Statistics, WindowStats, at_least, copied, covers
from pipeline.core.windows import Window, sources

MOST_WINDOWS = 200
"""The windows that are read together."""

_LOOKBACK_WINDOWS = 2  # whose raw rows may not be counted yet
_MOST_SELECTIONS = 4 * MOST_WINDOWS  # that are known: a window of a longer tier may have several gaps
_MOST_ROWS = 5000  # aggregate rows that are read together
_TOLERANCE = 1e-9  # share of Σ|x| by which two sums of the same readings may differ

_NONE: Mapping[int, WindowStats | None] = {}

A = TypeVar("A")
SensorStart = tuple[str, int]
"""A sensor, and the start of one of its windows in µs."""

ForEach = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


class Completion:
    """Completes the windows of one table, whose raw rows and aggregate rows it reads.

    Args:
        search: whether to search for a sensor's raw rows if its id alone does not locate them. This costs one seek for
            each text that precedes the id in row keys.
        raw_until_us: the time before which windows start that may lack a row although there are raw rows.

    Attributes:
        raw_selections: returns what :meth:`readings` reads of a sensor between two times in µs; None if that depends on
            what the table contains.
        together: the table's rows, of which some may be in memory.
        neighbours: the readings and windows before and after a window.
        shortest: the completion of the shortest tier's windows.
        longer: the completion of each longer tier's windows.
        tiers: the completion of each tier's windows.
    """

    def __init__(
        self,
        schema: TableSchema,
        retention: Retention,
        read: ReadRows,
        *,
        search: bool = False,
        raw_until_us: int = FOR_EVER_US,
    ) -> None:
        self._schema = schema
        self.retention = retention
        self._read = self.together = RowsTogether(read)
        self._locator = SensorLocator(schema, read) if search and not schema.finds_sensors else None
        # Whoever reads the rows of many windows together asks before each window does.
        self.raw_selections = lru_cache(_MOST_SELECTIONS)(self._raw_selections)
        self.neighbours = Neighbours(schema, retention, read, _LOOKBACK_WINDOWS * schema.tiers[0].window.length_us)
        shortest = schema.tiers[0]
        self.shortest = CompletionFromReadings(self, shortest, span_of_batch(schema.rate, shortest.window))
        of_sources = sources(tuple(tier.window for tier in schema.tiers))
        self.longer = {
            tier: CompletionFromShorterWindows(self, tier, schema.tiers[source], raw_until_us)
            for tier, source in list(zip(schema.tiers, of_sources, strict=True))[1:]
        }
        self.tiers: dict[Tier, TierCompletion[Any]] = {schema.tiers[0]: self.shortest, **self.longer}

    def keeps_readings(self, start_us: int, now_us: int) -> bool:
        """Returns whether a sensor's raw rows can be found, and from that time on include every one ever written."""
        return self.can_read_readings and self.retention.readings_from_us(now_us) <= start_us

    @property
    def can_read_readings(self) -> bool:
        """Whether the raw rows of a sensor can be found."""
        return self._locator is not None or self._schema.finds_sensors

    @property
    def has_members(self) -> bool:
        """Whether windows tell metadata that roll-ups group by."""
        return bool(self._schema.member_fields)

    def tells_members(self, stats: WindowStats) -> bool:
        """Returns whether statistics tell all metadata that roll-ups group by."""
        return tells(stats.member, self._schema.member_fields)

    def readings(self, sensor_id: str, start_us: int, end_us: int, window: Window) -> dict[int, WindowReadings]:
        """Reads the readings of raw rows, by the start of their window. Raises ForeignRow."""
        fields = self._schema.member_fields
        found: dict[int, Columns] = defaultdict(dict)
        members: dict[int, list[Member]] = defaultdict(list)
        for metadata in [{}] if self._locator is None else self._locator.of(sensor_id):
            query = Query(start_us, end_us, metadata=metadata, with_metadata=bool(fields))
            known = self.raw_selections(sensor_id, start_us, end_us) if self._locator is None else None
            for events in columns_of(self._schema, self._read, sensor_id, query, known):
                text = member_text(fields, events.metadata) if fields else ""
                for each_us, keys, values in _by_window(window, events):
                    of_metrics = found[each_us].setdefault(events.metrics, ([], []))
                    of_metrics[0].extend(keys)
                    of_metrics[1].extend(values)
                    if fields:
                        members[each_us].append(Member(keys[0], text))
        of_windows = {each_us: WindowReadings.of(newest_first(columns)) for each_us, columns in found.items()}
        for each_us, of_window in members.items():
            of_windows[each_us].note(*of_window)
        return of_windows

    def row(self, tier: Tier, sensor_id: str, start_us: int) -> WindowStats:
        """Reads the statistics of a window's aggregate row; a missing row counts nothing. Raises ForeignRow."""
        rows = self.rows(tier, sensor_id, start_us, tier.window.end_of(start_us))
        return next((stats for _, stats in rows), WindowStats())

    def rows(self, tier: Tier, sensor_id: str, start_us: int, end_us: int) -> Iterator[tuple[int, WindowStats]]:
        """Reads the aggregate rows of windows: the start in µs and the statistics of each. Raises ForeignRow."""
        for row in self._read(self.row_selection(tier, sensor_id, start_us, end_us)):
            try:
                each_us, stats = parse_window_stats(tier.window, row, tier.statistics)
            except ValueError as error:
                raise ForeignRow(row, error) from error
            stats.member = of_fields(stats.member, self._schema.member_fields)
            yield each_us, stats

    def row_selection(self, tier: Tier, sensor_id: str, start_us: int, end_us: int) -> RowSelection:
        """Returns what :meth:`rows` reads."""
        keys = aggregate_range(tier.window, sensor_id, start_us, end_us)
        return RowSelection(keys, CellSelection((tier.family,), versions=1))

    def starts_of_rows(self, tier: Tier, sensor_id: str, start_us: int, end_us: int) -> set[int]:
        """Returns the starts of the windows that have an aggregate row. Raises ValueError for a foreign row."""
        rows = self._read(self.row_selection(tier, sensor_id, start_us, end_us))
        return {parse_aggregate_key(tier.window, row.key).start_us for row in rows}

    def _raw_selections(self, sensor_id: str, start_us: int, end_us: int) -> list[RowSelection] | None:
        if self._locator is not None:
            return None
        query = Query(start_us, end_us, with_metadata=bool(self._schema.member_fields))
        return selections_of(self._schema, sensor_id, query) if self.can_read_readings else []


def _by_window(window: Window, events: EventColumns) -> Iterator[tuple[int, Sequence[int], Sequence[float]]]:
    """Yields the starts of windows with the keys and the values of their events."""
    times_us, width = events.times_us, len(events.metrics)
    keys = [event_key(each_us, events.discriminator) for each_us in times_us] if events.discriminator else times_us
    first, count = 0, len(times_us)
    while first < count:
        start_us = window.start_of(times_us[first])
        end = bisect_right(times_us, -start_us, first, key=neg)  # the newest event is the first
        yield start_us, keys[first:end], events.values[first * width : end * width]
        first = end


class Completed(NamedTuple, Generic[A]):
    """The complete result of a window.

    Attributes:
        stats: the window's statistics.
        known: the table's readings and those that came; of a longer window, the shorter ones that came.
    """

    stats: WindowStats
    known: A


class TierCompletion(ABC, Generic[A]):
    """Completes the windows of one tier. All methods raise ForeignRow for a row that the schema does not write.

    Args:
        sources: the tiers of shorter windows whose rows are read.
    """

    def __init__(self, table: Completion, tier: Tier, *sources: Tier) -> None:
        self._table = table
        self._tier, self._sources = tier, sources

    @abstractmethod
    def is_certain(self, start_us: int, now_us: int) -> bool:
        """Returns whether the table certainly still has all that a window consists of."""

    @abstractmethod
    def completed(self, sensor_id: str, start_us: int, now_us: int, fresh: A) -> Completed[A] | None:
        """Computes a window from the table and fresh readings.

        Returns None if the result may lose something that the aggregate row counts, or is too wide for a row.

        Args:
            sensor_id: the sensor.
            start_us: the window's start.
            now_us: the current time.
            fresh: readings that are in the table by now; for a longer window, statistics of shorter ones, by start.
        """

    def each(
        self,
        function: Callable[[SensorStart], Any],
        windows: Sequence[SensorStart],
        now_us: int,
        others: ForEach = map,
        fresh: Mapping[SensorStart, A] | None = None,
    ) -> dict[SensorStart, Any]:
        """Returns the result of a function for each window; what it reads of the windows is read together.

        Args:
            function: a function that completes a window.
            windows: the windows.
            now_us: the current time.
            others: a function like ``map``, for windows whose rows have to be sought.
            fresh: the readings or shorter windows with which the function completes windows.
        """
        found, together = dict[SensorStart, Any](), self._table.together
        first = 0
        while first < len(windows):
            some, rows = list[SensorStart](), list[RowSelection]()
            for sensor_id, start_us in windows[first : first + MOST_WINDOWS]:
                end_us = self._tier.window.end_of(start_us)
                tiers = (self._tier, *self._sources) if self._reads_row(start_us, now_us) else self._sources
                count = sum(tier.window.count(start_us, end_us) for tier in tiers)
                if some and (len(some) + 1) * count > _MOST_ROWS:
                    break
                some.append((sensor_id, start_us))
                rows += [self._table.row_selection(tier, sensor_id, start_us, end_us) for tier in tiers]
            first += len(some)
            with together.kept(rows):
                for batch in self._batches(some, now_us, fresh or {}):
                    found.update(zip(batch, map(function, batch), strict=True))
                rest = [each for each in some if each not in found]
                found.update(zip(rest, others(function, rest), strict=True))
        return found

    @abstractmethod
    def _batches(
        self, windows: Sequence[SensorStart], now_us: int, fresh: Mapping[SensorStart, A]
    ) -> Iterator[list[SensorStart]]:
        """Yields windows while the raw rows that are probably needed to complete them are in memory.

        Leaves out windows whose rows have to be sought.
        """

    def _never_had_row(self, start_us: int, now_us: int) -> bool:
        """Returns whether a window without an aggregate row never had one: its tier existed, and its rows are kept."""
        retention = self._table.retention
        return retention.counts(self._tier, start_us) and retention.aggregates_from_us(self._tier, now_us) <= start_us

    def _reads_row(self, start_us: int, now_us: int) -> bool:
        """Returns whether the window's own row is read."""
        return not self.is_certain(start_us, now_us)


def counts_exactly(readings: WindowReadings, row: WindowStats, statistics: Statistics) -> bool:
    """Returns whether an aggregate row counts exactly these readings, by all that it contains besides their number.

    Sums may differ by their order of addition.
    """
    stats, magnitudes = readings.pane(statistics).stats, readings.magnitudes()
    if stats.events != row.events or stats.metrics.keys() != row.metrics.keys():
        return False
    return all(
        _agree(of_metric, row.metrics[metric], magnitudes[metric]) for metric, of_metric in stats.metrics.items()
    )


def _agree(one: MetricStats, row: MetricStats, magnitude: float) -> bool:
    compared = [
        (one.minimum, row.minimum),
        (one.maximum, row.maximum),
        (one.total, row.total if abs(one.total - row.total) > _TOLERANCE * magnitude else one.total),
    ]
    told = [ours == theirs for ours, theirs in compared if not isnan(theirs)]
    told += [same_readings((one.parts or {}).get(name), part) for name, part in (row.parts or {}).items()]
    return one.count == row.count and bool(told) and all(told)


def larger(stored: Mapping[int, WindowStats], fresh: Mapping[int, WindowStats]) -> dict[int, WindowStats]:
    """Returns the union. Of a window in both, keeps the one that counts more; the fresh one if they count the same."""
    found = dict(stored)
    for start_us, stats in fresh.items():
        if start_us not in found or stats.size >= found[start_us].size:
            found[start_us] = stats
    return found


class _TooWide(Exception):
    """A shorter window has too many metrics."""


class CompletionFromReadings(TierCompletion[WindowReadings]):
    """Completes windows of the shortest tier from their raw rows.

    Args:
        span_us: the time in which the windows of a sensor may be read as one.
    """

    def __init__(self, table: Completion, tier: Tier, span_us: int) -> None:
        super().__init__(table, tier)
        self._span_us = span_us
        self._ahead: dict[SensorStart, WindowReadings] = {}  # of windows that are about to be completed

    def is_certain(self, start_us: int, now_us: int) -> bool:
        return self._table.keeps_readings(start_us, now_us)

    def restored(
        self, sensor_id: str, start_us: int, now_us: int, fresh: WindowReadings | None = None
    ) -> tuple[WindowReadings | None, bool]:
        """Reads the raw rows.

        If some may be gone, and the others count less than the aggregate row, the job continues from that row. Such a
        result is incomplete: the row may lack readings that arrived after its last pane, and readings that it counts
        may be redelivered unrecognized.
        """
        readings, certain = self._readings(sensor_id, start_us), self.is_certain(start_us, now_us)
        if not certain:
            row = self._table.row(self._tier, sensor_id, start_us)
            earlier = readings if fresh is None else readings.without(fresh)
            if not covers(earlier.pane(self._tier.statistics).stats, row):
                readings = WindowReadings()
                readings.restore(row)
        return readings, certain

    def completed(
        self, sensor_id: str, start_us: int, now_us: int, fresh: WindowReadings
    ) -> Completed[WindowReadings] | None:
        """Merges raw rows with fresh readings, each reading once.

        If raw rows may have been collected, the window is complete in two cases: its aggregate row counts exactly the
        remaining raw rows without the fresh readings, or there never was an aggregate row.
        """
        readings = self._readings(sensor_id, start_us)
        if not self.is_certain(start_us, now_us):
            row = self._table.row(self._tier, sensor_id, start_us)
            if not row.events:
                exact = self._never_had_row(start_us, now_us)
            else:
                exact = counts_exactly(readings.without(fresh), row, self._tier.statistics)
            if not exact:
                return None
        has_all, has_no_more = readings.compare(fresh)
        if has_all:
            known = fresh if has_no_more else readings  # the fresh ones may be counted
        else:
            known = WindowReadings()  # ``fresh`` belongs to the caller
            known.merge(fresh)
            known.merge(readings)  # the table's values count
        pane = known.pane(self._tier.statistics)
        return None if pane.too_wide else Completed(pane.stats, known)

    def _batches(
        self,
        windows: Sequence[SensorStart],
        now_us: int,  # noqa: ARG002
        fresh: Mapping[SensorStart, WindowReadings],  # noqa: ARG002
    ) -> Iterator[list[SensorStart]]:
        if not self._table.can_read_readings:
            yield list(windows)
            return
        runs, self._ahead = self._runs(windows), {}
        for batch in self._table.together.batches({run: self._table.raw_selections(*run) for run in runs}):
            for run in batch:
                with suppress(ForeignRow):  # of one window; each is read by itself
                    found = self._table.readings(*run, self._tier.window)
                    self._ahead |= {each: found.get(each[1]) or WindowReadings() for each in runs[run]}
            yield [each for run in batch for each in runs[run]]
        self._ahead = {}

    def without_rows(self, windows: Sequence[SensorStart]) -> set[SensorStart]:
        """Returns the windows that have no aggregate row."""
        runs, tier = self._runs(windows), self._tier
        cells = CellSelection((tier.family,), keys_only=True)
        keys = {run: aggregate_range(tier.window, *run) for run in runs}
        selections = {run: RowSelection(of_run, cells) for run, of_run in keys.items()}
        found = set(windows)
        with self._table.together.kept(selections.values()):
            for (sensor_id, *_), selection in selections.items():
                for row in self._table.together(selection):
                    with suppress(ValueError):  # another program's row
                        found.discard((sensor_id, parse_aggregate_key(tier.window, row.key).start_us))
        return found

    def _runs(self, windows: Sequence[SensorStart]) -> dict[tuple[str, int, int], list[SensorStart]]:
        """Returns windows by the sensor, start and end of the adjoining ones that are read as one."""
        found = dict[tuple[str, int, int], list[SensorStart]]()
        latest = "", 0, 0
        for sensor_id, start_us in sorted(windows):
            run = sensor_id, start_us, self._tier.window.end_of(start_us)
            if latest[::2] == run[:2] and latest[1] // self._span_us == start_us // self._span_us:
                run = *latest[:2], run[2]
                found[run] = found.pop(latest)
            found.setdefault(run, []).append((sensor_id, start_us))
            latest = run
        return found

    def _readings(self, sensor_id: str, start_us: int) -> WindowReadings:
        """Reads the raw rows of a window, if they can be found.

        An event may have come again with other metadata. Then only the aggregate row tells which groups it was in.
        """
        window = self._tier.window
        if not self._table.can_read_readings:
            return WindowReadings()
        ahead = self._ahead.pop((sensor_id, start_us), None)
        readings = ahead or self._table.readings(sensor_id, start_us, window.end_of(start_us), window).get(start_us)
        readings = readings or WindowReadings()
        if readings.member is not None:
            with suppress(ForeignRow):
                readings.follow(self._table.row(self._tier, sensor_id, start_us).member)
        return readings

    def _reads_row(self, start_us: int, now_us: int) -> bool:
        return self._table.has_members or super()._reads_row(start_us, now_us)


class CompletionFromShorterWindows(TierCompletion[Mapping[int, WindowStats]]):
    """Completes windows of a longer tier from the aggregate rows of their shorter windows.

    A shorter window without an aggregate row is computed from its raw rows.

    Args:
        source: the tier of the shorter windows.
        raw_until_us: the time before which windows start that may lack a row although there are raw rows.
    """

    def __init__(self, table: Completion, tier: Tier, source: Tier, raw_until_us: int) -> None:
        super().__init__(table, tier, source)
        self._source = source
        self._raw_until_us = raw_until_us

    def is_certain(self, start_us: int, now_us: int) -> bool:
        retention, source = self._table.retention, self._source
        if not retention.known and start_us < self._raw_until_us:
            return False  # a tier may have been added later
        if not self._table.can_read_readings:
            return False  # a backfill finds raw rows without a row, which the longer row may count
        keeps_shorter = retention.aggregates_from_us(source, now_us) <= start_us and retention.counts(source, start_us)
        return self._table.keeps_readings(start_us, now_us) or keeps_shorter

    def completed(
        self,
        sensor_id: str,
        start_us: int,
        now_us: int,
        fresh: Mapping[int, WindowStats],
        right: Mapping[int, WindowStats | None] = _NONE,
    ) -> Completed[Mapping[int, WindowStats]] | None:
        """Merges the stored shorter windows with fresh ones, each of which replaces its row unless that counts more.

        Where raw rows may have been collected, the window is complete only if these include all that its own row
        counts: an interrupted backfill may have left a shorter window without a row. If there is no own row, it is
        complete if all shorter rows are there, or if there never was an own row.

        Args:
            sensor_id: the sensor.
            start_us: the window's start.
            now_us: the current time.
            fresh: statistics of shorter windows, by start.
            right: the shorter windows that a repair puts right, by start, whatever the window's own row counts of them:
                the statistics that replace a row, without events if there will be none; None if the table has them.
        """
        try:
            shorter = self._stored(sensor_id, start_us, now_us, fresh, right)
        except _TooWide:
            return None
        pane = merged(shorter, self._tier.statistics)
        if self._reads_row(start_us, now_us):
            row, certain = self._table.row(self._tier, sensor_id, start_us), self.is_certain(start_us, now_us)
            if not row.events:
                whole = certain or self._never_had_row(start_us, now_us)
            elif row.sizes:
                taken = self._taken(shorter, row.sizes, right)
                whole = taken is not None and (certain or _keeps(pane.stats, row, taken if right else None))
            else:
                whole = certain and (not right or at_least([pane.stats], row))  # it does not tell what it counts
            if not whole:
                return None
        return None if pane.too_wide else Completed(pane.stats, fresh)

    def _reads_row(self, start_us: int, now_us: int) -> bool:
        return not self._table.keeps_readings(start_us, now_us)

    def _batches(
        self, windows: Sequence[SensorStart], now_us: int, fresh: Mapping[SensorStart, Mapping[int, WindowStats]]
    ) -> Iterator[list[SensorStart]]:
        raw = {each: self._raw_selections(*each, now_us, fresh.get(each)) for each in windows}
        return self._table.together.batches(raw)

    def _raw_selections(
        self, sensor_id: str, start_us: int, now_us: int, fresh: Mapping[int, WindowStats] | None
    ) -> list[RowSelection] | None:
        """Returns what is probably read of raw rows to complete a window, by its aggregate rows; None if unknown."""
        table, raw_us = self._table, self._raw_end_us(start_us)
        if raw_us <= start_us or not table.keeps_readings(start_us, now_us):
            return []
        whole = set(fresh or ())
        try:
            whole |= table.starts_of_rows(self._source, sensor_id, start_us, self._tier.window.end_of(start_us))
        except ValueError:
            return None  # another program's row
        found = list[RowSelection]()
        for span in self._source.window.gaps([each_us for each_us in whole if each_us < raw_us], start_us, raw_us):
            selections = table.raw_selections(sensor_id, *span)
            if selections is None:
                return None
            found += selections
        return found

    def _stored(
        self,
        sensor_id: str,
        start_us: int,
        now_us: int,
        fresh: Mapping[int, WindowStats],
        right: Mapping[int, WindowStats | None],
    ) -> dict[int, WindowStats]:
        """Reads the statistics of a window's shorter windows by start, in µs. Raises _TooWide."""
        table, statistics, end_us = self._table, self._tier.statistics, self._tier.window.end_of(start_us)
        rows = dict(table.rows(self._source, sensor_id, start_us, end_us))
        rows |= {each_us: stats for each_us, stats in right.items() if stats is not None}
        found = larger({each_us: stats for each_us, stats in rows.items() if stats.events}, fresh)
        if not table.keeps_readings(start_us, now_us):
            return found
        # Rows that were written before a statistic or a roll-up was declared lack it.
        whole = {
            each_us: stats
            for each_us, stats in found.items()
            if statistics.known_in(stats) and table.tells_members(stats)
        }
        until_us = end_us if len(whole) < len(found) else self._raw_end_us(start_us)
        read = dict[int, WindowReadings]()
        for gap in self._source.window.gaps([each_us for each_us in whole if each_us < until_us], start_us, until_us):
            read |= table.readings(sensor_id, *gap, self._source.window)
        if not read:
            return found
        panes = {each_us: readings.pane(statistics) for each_us, readings in read.items()}
        if any(pane.too_wide for pane in panes.values()):
            raise _TooWide
        found = larger(whole | {each_us: pane.stats for each_us, pane in panes.items()}, fresh)
        if statistics.carries:
            # The fresh ones belong to panes, which are being written as they are.
            found = {each_us: copied(stats) if each_us in fresh else stats for each_us, stats in found.items()}
            table.neighbours.carry(sensor_id, found, now_us)
        return found

    def _taken(
        self, shorter: Mapping[int, WindowStats], sizes: Mapping[int, int], right: Collection[int]
    ) -> int | None:
        """Returns how much less shorter windows count that a repair puts right, by what the own row counts of each.

        Returns None if others lack something. A row from before its source was added tells of shorter windows than
        those of the source.
        """
        counted: dict[int, int] = defaultdict(int)
        for each_us, size in sizes.items():
            counted[self._source.window.start_of(each_us)] += size
        none = WindowStats()
        less = {each_us: size - shorter.get(each_us, none).size for each_us, size in counted.items()}
        if any(missing > 0 and each_us not in right for each_us, missing in less.items()):
            return None
        return sum(max(missing, 0) for missing in less.values())

    def _raw_end_us(self, start_us: int) -> int:
        """Returns the end of the part of a window in which shorter ones may lack a row."""
        end_us = self._tier.window.end_of(start_us)
        return min(end_us, self._source.window.first_start(min(end_us, self._raw_until_us)))


def _keeps(stats: WindowStats, row: WindowStats, taken: int | None) -> bool:
    """Returns whether statistics include what a row counts, but for as many events and readings as a repair has taken.

    A shorter window's row may be gone, and a new one may count as much of other readings: sizes don't tell that.

    Args:
        stats: the statistics.
        row: the row.
        taken: the number of events and readings by which a repair makes shorter windows smaller; None without a repair.
    """
    if taken is None:
        return covers(stats, row)
    none = MetricStats()
    counts = [(of.count, stats.metrics.get(metric, none).count) for metric, of in row.metrics.items()]
    return sum(max(before - now, 0) for before, now in [(row.events, stats.events), *counts]) <= taken
