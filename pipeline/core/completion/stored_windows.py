"""Completes a window from what a table stores. The streaming job and backfill share this code.

A window's raw rows are authoritative while Bigtable certainly still has all of them. No writer replaces an aggregate
row with a result that counts less. So every result here comes with what the row counts, and with whether the result is
certainly complete. Nothing here calls a server: the caller passes the function that reads rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from math import isnan
from typing import Any, Generic, NamedTuple, TypeVar

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.accumulation.pane import Accumulator
from pipeline.core.accumulation.shorter_windows import ShorterWindows
from pipeline.core.completion.neighbours import Neighbours
from pipeline.core.queries.events import Query, events_of
from pipeline.core.queries.foreign import ForeignRow
from pipeline.core.queries.seeks import ReadRows, RowSelection
from pipeline.core.queries.sensor_locator import SensorLocator
from pipeline.core.rows.aggregate_rows import aggregate_range, parse_aggregate_row, stats_of
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.statistics.parts import same_readings
from pipeline.core.statistics.rules import Statistics
from pipeline.core.statistics.window_stats import MetricStats, WindowStats, at_least, covers
from pipeline.core.windows.fixed import Window
from pipeline.core.windows.tier_sources import sources

_LOOKBACK_WINDOWS = 2  # whose raw rows may not be counted yet
_TOLERANCE = 1e-9  # share of Σ|x| by which two sums of the same readings may differ

A = TypeVar("A", bound=Accumulator)


class _TooWide(Exception):
    """A shorter window has too many metrics."""


class Completed(NamedTuple, Generic[A]):
    """The complete result of a window.

    Attributes:
        stats: the window's statistics.
        known: an accumulator of the table's readings and of those that came, for the next computation.
    """

    stats: WindowStats
    known: A


class TierCompletion(ABC, Generic[A]):
    """Completes the windows of one tier. All methods raise ForeignRow for a row that the schema does not write.

    Args:
        table: the table's reader.
        tier: the tier.
    """

    def __init__(self, table: "Completion", tier: Tier) -> None:
        self._table = table
        self._tier = tier

    @abstractmethod
    def begun(self, *, deduplicate: bool) -> A:
        """Returns the accumulator of a window that the table does not store."""

    @abstractmethod
    def restored(self, sensor_id: str, start_us: int, now_us: int, *, deduplicate: bool) -> tuple[A | None, bool]:
        """Reads what the table stores of a window that began before the job did.

        Returns an accumulator that continues from it, and whether that is certainly complete. The accumulator is None
        if it would lose something that the aggregate row counts.

        Args:
            sensor_id: the sensor.
            start_us: the window's start.
            now_us: the current time.
            deduplicate: whether the job counts a redelivered reading only once.
        """

    @abstractmethod
    def completed(
        self, sensor_id: str, start_us: int, now_us: int, fresh: A, written: A | None = None
    ) -> Completed[A] | None:
        """Computes a window from the table and fresh readings.

        Returns None if the result would lose something that the aggregate row counts, or is too wide for a row.

        Args:
            sensor_id: the sensor.
            start_us: the window's start.
            now_us: the current time.
            fresh: an accumulator of readings that the table may lack.
            written: the readings that the aggregate row counts if the caller wrote it last; ``fresh`` has them too.
        """


class CompletionFromReadings(TierCompletion[WindowReadings]):
    """Completes windows of the shortest tier from their raw rows."""

    def begun(self, *, deduplicate: bool) -> WindowReadings:
        return WindowReadings(deduplicate=deduplicate)

    def restored(self, sensor_id: str, start_us: int, now_us: int, *, deduplicate: bool) -> tuple[WindowReadings, bool]:
        """Reads the raw rows.

        If some may be gone, the job continues from the aggregate row. Such a result is incomplete: the row may lack
        readings that arrived after its last pane, and readings that it counts may be redelivered unrecognized.
        """
        readings, row, complete = self._stored(sensor_id, start_us, now_us)
        found = self.begun(deduplicate=deduplicate)
        if complete and deduplicate:
            floor = self._floor(start_us, row)
            exact = covers(readings.pane().stats, floor)  # first: what is counted is merged faster
            found.restore(readings, floor=floor)
            return found, exact
        # A tier that was added later has no row that counts what the raw rows hold: longer windows may count it.
        counted = self._table.retention.counts(self._tier, start_us)
        raw = WindowStats() if counted else readings.pane(self._tier.statistics).stats
        found.restore(statistics=max(row, raw, key=lambda stats: stats.size))
        return found, False

    def completed(
        self, sensor_id: str, start_us: int, now_us: int, fresh: WindowReadings, written: WindowReadings | None = None
    ) -> Completed[WindowReadings] | None:
        """Merges raw rows with fresh readings, each reading once; a fresh reading wins over a stored one.

        If raw rows may have been collected, the window is complete in two cases: its aggregate row counts exactly the
        remaining raw rows, or there is no aggregate row although the tier existed when it would have been written. An
        aggregate row that matches the fresh readings proves nothing: other readings may have had the same values.
        """
        readings, row, complete = self._stored(sensor_id, start_us, now_us)
        merged = WindowReadings()  # ``fresh`` belongs to the caller
        merged.merge(fresh)
        merged.merge(readings)
        pane = merged.pane(self._tier.statistics)
        if complete:
            exact = covers(pane.stats, self._floor(start_us, row))
        elif row.events:
            exact = _same(readings.without(fresh) if written is None else written, row, self._tier.statistics)
        else:
            exact = self._table.retention.counts(self._tier, start_us)
        return Completed(pane.stats, merged) if exact and not pane.too_wide else None

    def _stored(self, sensor_id: str, start_us: int, now_us: int) -> tuple[WindowReadings, WindowStats, bool]:
        """Reads a window's raw rows and its aggregate row; a missing row counts nothing.

        Also returns whether the raw rows certainly include every one ever written.
        """
        table, window = self._table, self._tier.window
        row = table.row(self._tier, sensor_id, start_us)
        if not table.can_read_readings:
            return WindowReadings(), row, False
        found = table.readings(sensor_id, start_us, window.end_of(start_us), window)
        return found.get(start_us, WindowReadings()), row, table.keeps_readings(start_us, now_us)

    def _floor(self, start_us: int, row: WindowStats) -> WindowStats:
        """Returns what complete raw rows must count at least: the row, unless it may count a reading twice."""
        repeats = self._table.retention.may_repeat(start_us, self._tier.window.end_of(start_us))
        return WindowStats() if repeats else row


class CompletionFromShorterWindows(TierCompletion[ShorterWindows]):
    """Completes windows of a longer tier from the aggregate rows of their shorter windows.

    A shorter window without an aggregate row is computed from its raw rows.

    Args:
        table: the table's reader.
        tier: the tier.
        source: the tier of the shorter windows.
    """

    def __init__(self, table: "Completion", tier: Tier, source: Tier) -> None:
        super().__init__(table, tier)
        self._source = source

    def begun(self, *, deduplicate: bool) -> ShorterWindows:  # noqa: ARG002
        return ShorterWindows()

    def restored(
        self, sensor_id: str, start_us: int, now_us: int, *, deduplicate: bool
    ) -> tuple[ShorterWindows | None, bool]:
        shorter, row, complete = self._stored(sensor_id, start_us, now_us, {})
        if shorter is None:
            return None, False
        found = self.begun(deduplicate=deduplicate)
        found.restore(shorter, row)
        return found, complete

    def completed(
        self,
        sensor_id: str,
        start_us: int,
        now_us: int,
        fresh: ShorterWindows,
        written: ShorterWindows | None = None,  # noqa: ARG002
    ) -> Completed[ShorterWindows] | None:
        """Merges the stored shorter windows with fresh ones, each of which replaces its row unless that counts more."""
        shorter, *_ = self._stored(sensor_id, start_us, now_us, fresh.latest)
        if shorter is None:
            return None
        pane = ShorterWindows(shorter).pane(self._tier.statistics)
        return None if pane.too_wide else Completed(pane.stats, fresh)

    def _stored(
        self, sensor_id: str, start_us: int, now_us: int, fresh: Mapping[int, WindowStats]
    ) -> tuple[dict[int, WindowStats] | None, WindowStats, bool]:
        """Reads the statistics of a window's shorter windows by start, in µs.

        Returns None if they would lose something that the window's own row counts. Also returns what they have to count
        at least, and whether they certainly include everything.
        """
        table, source, retention = self._table, self._source, self._table.retention
        row = table.row(self._tier, sensor_id, start_us)
        end_us = self._tier.window.end_of(start_us)
        found = _larger(dict(table.rows(source, sensor_id, start_us, end_us)), fresh)
        kept = retention.aggregates_from_us(source, now_us) <= start_us and retention.counts(source, start_us)
        if table.can_read_readings and table.keeps_readings(start_us, now_us):
            kept = True
            if retention.may_repeat(start_us, end_us):
                row, found = WindowStats(), {}
            try:
                found = self._from_readings(sensor_id, start_us, end_us, found, fresh, row)
            except _TooWide:
                return None, row, False
        # Without a row, nothing was ever counted, unless the tier did not exist yet.
        if not at_least(found.values(), row) or not (
            kept or (not row.events and retention.counts(self._tier, start_us))
        ):
            return None, row, False
        if self._tier.statistics.carries:
            table.neighbours.carry(sensor_id, found, now_us)
        return found, row, kept and retention.known

    def _from_readings(
        self,
        sensor_id: str,
        start_us: int,
        end_us: int,
        found: Mapping[int, WindowStats],
        fresh: Mapping[int, WindowStats],
        row: WindowStats,
    ) -> dict[int, WindowStats]:
        """Returns the shorter windows found, and others from raw rows; all from raw rows if these count less."""
        table, window, statistics = self._table, self._source.window, self._tier.statistics

        def of_raw_rows(from_us: int, to_us: int) -> dict[int, WindowStats]:
            read = table.readings(sensor_id, from_us, to_us, window)
            panes = {each_us: readings.pane(statistics) for each_us, readings in read.items()}
            if any(pane.too_wide for pane in panes.values()):
                raise _TooWide
            return {each_us: pane.stats for each_us, pane in panes.items()}

        # Rows that were written before a statistic was declared lack it.
        whole = {each_us: stats for each_us, stats in found.items() if statistics.known_in(stats)}
        for gap_start_us, gap_end_us in _gaps(whole, window, start_us, end_us):
            whole = _larger(whole | of_raw_rows(gap_start_us, gap_end_us), fresh)
        return whole if at_least(whole.values(), row) else _larger(of_raw_rows(start_us, end_us), fresh)


class Completion:
    """Completes the windows of one table.

    Args:
        schema: the table's schema.
        retention: the table's retention.
        read: reads the table's rows.
        search: whether to search for a sensor's raw rows if its id alone does not locate them. This costs one seek for
            each text that precedes the id in row keys.

    Attributes:
        retention: the table's retention.
        neighbours: the readings and windows before and after a window.
        tiers: the completion of each tier's windows.
    """

    def __init__(self, schema: TableSchema, retention: Retention, read: ReadRows, *, search: bool = False) -> None:
        self._schema = schema
        self.retention = retention
        self._read = read
        self._locator = SensorLocator(schema, read) if search else None
        self.neighbours = Neighbours(schema, retention, read, _LOOKBACK_WINDOWS * schema.tiers[0].window.length_us)
        self.tiers: dict[Tier, TierCompletion[Any]] = {
            tier: CompletionFromReadings(self, tier)
            if source < 0
            else CompletionFromShorterWindows(self, tier, schema.tiers[source])
            for tier, source in zip(schema.tiers, sources(tuple(tier.window for tier in schema.tiers)), strict=True)
        }

    def keeps_readings(self, start_us: int, now_us: int) -> bool:
        """Returns whether the raw rows from that time on certainly include every one ever written."""
        return self.retention.readings_from_us(now_us) <= start_us

    @property
    def can_read_readings(self) -> bool:
        """Whether the raw rows of a sensor can be found."""
        return self._locator is not None or self._schema.finds_sensors

    def readings(self, sensor_id: str, start_us: int, end_us: int, window: Window) -> dict[int, WindowReadings]:
        """Reads the readings of raw rows, by the start of their window. Raises ForeignRow."""
        identity_of = self._schema.identity.of_record
        found: dict[int, WindowReadings] = {}
        for metadata in [{}] if self._locator is None else self._locator.of(sensor_id):
            for record in events_of(self._schema, self._read, sensor_id, Query(start_us, end_us, metadata=metadata)):
                of_window = found.setdefault(window.start_of(record.event_time_us), WindowReadings())
                time_us, discriminator = identity_of(record)
                of_window.add(time_us, record.readings, discriminator)
        return found

    def row(self, tier: Tier, sensor_id: str, start_us: int) -> WindowStats:
        """Reads the statistics of a window's aggregate row; a missing row counts nothing. Raises ForeignRow."""
        rows = self.rows(tier, sensor_id, start_us, tier.window.end_of(start_us))
        return next((stats for _, stats in rows), WindowStats())

    def rows(self, tier: Tier, sensor_id: str, start_us: int, end_us: int) -> Iterator[tuple[int, WindowStats]]:
        """Reads the aggregate rows of windows: the start in µs and the statistics of each. Raises ForeignRow."""
        keys = aggregate_range(tier.window, sensor_id, start_us, end_us)
        for row in self._read(RowSelection(keys, CellSelection((tier.family,), versions=1))):
            try:
                record = parse_aggregate_row(tier.window, row, tier.statistics)
            except ValueError as error:
                raise ForeignRow(row, error) from error
            yield record.start_us, stats_of(record)


def _same(readings: WindowReadings, row: WindowStats, statistics: Statistics) -> bool:
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


def _larger(stored: Mapping[int, WindowStats], fresh: Mapping[int, WindowStats]) -> dict[int, WindowStats]:
    """Returns the union. Of a window in both, keeps the one that counts more; the fresh one if they count the same."""
    found = dict(stored)
    for start_us, stats in fresh.items():
        if start_us not in found or stats.size >= found[start_us].size:
            found[start_us] = stats
    return found


def _gaps(found: Mapping[int, WindowStats], shorter: Window, start_us: int, end_us: int) -> Iterator[tuple[int, int]]:
    """Yields the start and end of each gap between the windows found, in microseconds."""
    gap_us = start_us
    for each_us in [*sorted(found), end_us]:
        if gap_us < each_us:
            yield gap_us, each_us
        gap_us = shorter.end_of(each_us)
