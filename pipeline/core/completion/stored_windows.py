"""Completes a window from what a table stores. The streaming job and backfill share this code.

A window's raw rows are authoritative while Bigtable certainly still has all of them. No writer replaces an aggregate
row with a result that counts less. So every result here comes with what the row counts, and with whether the result is
certainly complete. The module is pure: the caller passes the function that reads rows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isnan
from typing import NamedTuple

from pipeline.core.accumulation.accumulator import RestoredReadings, WindowReadings
from pipeline.core.accumulation.shorter_windows import RestoredShorterWindows, ShorterWindows
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

_LOOKBACK_WINDOWS = 2  # whose raw rows may not be counted yet
_TOLERANCE = 1e-9  # share of Σ|x| by which two sums of the same readings may differ


class _TooWide(Exception):
    """A shorter window has too many metrics."""


class StoredWindow(NamedTuple):
    """What a table stores of a window that is computed from events.

    Attributes:
        readings: the readings in the window's raw rows.
        row: what the window's aggregate row counts; empty if there is no row.
        complete: whether the raw rows certainly include every one ever written.
        repeats: whether the aggregate row may count a reading twice.
        counted: whether the tier was part of the schema when the window was first aggregated.
    """

    readings: WindowReadings
    row: WindowStats
    complete: bool
    repeats: bool
    counted: bool

    @property
    def floor(self) -> WindowStats:
        """What complete raw rows must count at least."""
        return WindowStats() if self.repeats else self.row


class StoredLongerWindow(NamedTuple):
    """What a table stores of a window that is computed from shorter ones.

    Attributes:
        shorter: the shorter windows' statistics by start; None if they would lose something that the aggregate row
            counts.
        row: what the window's aggregate row counts.
        complete: whether the shorter windows certainly include everything.
    """

    shorter: Mapping[int, WindowStats] | None
    row: WindowStats
    complete: bool


class Completion:
    """Completes the windows of one table.

    Args:
        schema: the table's schema.
        retention: what Bigtable may have collected.
        read: reads the table's rows.
        search: whether to search for a sensor's raw rows if its id alone does not locate them. This costs one seek for
            each text that precedes the id in row keys.

    Attributes:
        retention: what Bigtable may have collected.
        neighbours: what lies before and after windows.
    """

    def __init__(self, schema: TableSchema, retention: Retention, read: ReadRows, *, search: bool = False) -> None:
        self._schema = schema
        self.retention = retention
        self._read = read
        self._locator = SensorLocator(schema, read) if search else None
        self.neighbours = Neighbours(schema, retention, read, _LOOKBACK_WINDOWS * schema.tiers[0].window.length_us)

    def keeps_readings(self, start_us: int, now_us: int) -> bool:
        """Returns whether the raw rows from that time on certainly include every one ever written."""
        return self.retention.readings_from_us(now_us) <= start_us

    def stored(self, tier: Tier, sensor_id: str, start_us: int, now_us: int) -> StoredWindow:
        """Reads the raw rows and the aggregate row of a window of the shortest tier.

        Raises:
            ForeignRow: the schema does not write a row like one of these.
        """
        end_us = tier.window.end_of(start_us)
        row, counted = self._row(tier, sensor_id, start_us), self.retention.counts(tier, start_us)
        if not self._can_read_readings:
            return StoredWindow(WindowReadings(), row, complete=False, repeats=False, counted=counted)
        found = self.readings(sensor_id, start_us, end_us, tier.window)
        complete, repeats = self.keeps_readings(start_us, now_us), self.retention.may_repeat(start_us, end_us)
        return StoredWindow(found.get(start_us, WindowReadings()), row, complete, repeats, counted)

    def completed(
        self,
        tier: Tier,
        sensor_id: str,
        start_us: int,
        now_us: int,
        fresh: WindowReadings,
        *,
        written: WindowReadings | None = None,
    ) -> WindowReadings | None:
        """Merges a window's raw rows with fresh readings, each reading once. The window is of the shortest tier.

        A fresh reading wins over a stored one. If raw rows may have been collected, the window is complete in two
        cases: its aggregate row counts exactly the remaining raw rows, or there is no aggregate row although the tier
        existed when it would have been written. An aggregate row that matches the fresh readings proves nothing: other
        readings may have had the same values.

        Args:
            tier: the table's shortest tier.
            sensor_id: the sensor.
            start_us: the window's start.
            now_us: the current time.
            fresh: readings that the raw rows may lack.
            written: what the aggregate row counts if the caller itself wrote it last; the fresh readings include it.

        Returns:
            The window's readings; None if they would lack something that the aggregate row counts.

        Raises:
            ForeignRow: the schema does not write a row like one of these.
        """
        stored = self.stored(tier, sensor_id, start_us, now_us)
        readings, row, complete, *_ = stored
        merged = WindowReadings()  # ``fresh`` belongs to the caller
        merged.merge(fresh)
        merged.merge(readings)
        stats, _, too_wide = merged.pane()
        if too_wide:
            return None
        if complete:
            exact = covers(stats, stored.floor)
        elif row.events:
            exact = _same(readings.without(fresh) if written is None else written, row, tier.statistics)
        else:
            exact = self.retention.counts(tier, start_us)
        return merged if exact else None

    def completed_longer(
        self,
        tiers: tuple[Tier, Tier],
        sensor_id: str,
        start_us: int,
        now_us: int,
        fresh: Mapping[int, WindowStats],
    ) -> WindowStats | None:
        """Merges the stored shorter windows of a longer window with fresh ones.

        Returns None if the result would lack something that the aggregate row counts. See :meth:`stored_longer`.
        """
        shorter = self.stored_longer(tiers, sensor_id, start_us, now_us, fresh).shorter
        if shorter is None:
            return None
        longer = ShorterWindows()
        longer.restore(shorter)
        pane = longer.pane(tiers[1].statistics)
        return None if pane.too_wide else pane.stats

    def stored_longer(
        self,
        tiers: tuple[Tier, Tier],
        sensor_id: str,
        start_us: int,
        now_us: int,
        fresh: Mapping[int, WindowStats] | None = None,
    ) -> StoredLongerWindow:
        """Reads the aggregate rows of a window's shorter windows, and raw rows for those without an aggregate row.

        Args:
            tiers: the tier of the shorter windows, and the window's own tier.
            sensor_id: the sensor.
            start_us: the window's start.
            now_us: the current time.
            fresh: shorter windows that the caller has just computed. Each replaces its row, unless the row counts more.

        Raises:
            ForeignRow: the schema does not write a row like one of these.
        """
        row = self._row(tiers[1], sensor_id, start_us)
        try:
            return self._stored_windows(tiers, sensor_id, start_us, now_us, fresh, row)
        except _TooWide:
            return StoredLongerWindow(None, row, complete=False)

    def _stored_windows(
        self,
        tiers: tuple[Tier, Tier],
        sensor_id: str,
        start_us: int,
        now_us: int,
        fresh: Mapping[int, WindowStats] | None,
        row: WindowStats,
    ) -> StoredLongerWindow:
        shorter, tier = tiers
        end_us = tier.window.end_of(start_us)
        found = _larger(dict(self._rows(shorter, sensor_id, start_us, end_us)), fresh)
        kept = self.retention.aggregates_from_us(shorter, now_us) <= start_us
        kept = kept and self.retention.counts(shorter, start_us)
        if self._can_read_readings and self.keeps_readings(start_us, now_us):
            kept = True
            # Rows that were written before a statistic was declared lack it.
            found = {each_us: stats for each_us, stats in found.items() if self._schema.statistics.known_in(stats)}
            if self.retention.may_repeat(start_us, end_us):
                row, found = WindowStats(), {}
            for gap_start_us, gap_end_us in _gaps(found, shorter.window, start_us, end_us):
                found = _larger(found | self._from_readings(sensor_id, gap_start_us, gap_end_us, shorter.window), fresh)
            if not at_least(found.values(), row):
                found = _larger(self._from_readings(sensor_id, start_us, end_us, shorter.window), fresh)
        # If there is no row, nothing was ever counted, unless the tier did not exist yet.
        if not at_least(found.values(), row) or not (
            kept or (not row.events and self.retention.counts(tier, start_us))
        ):
            return StoredLongerWindow(None, row, complete=False)
        if self._schema.statistics.carries:
            self.neighbours.carry(sensor_id, found, now_us)
        return StoredLongerWindow(found, row, kept and self.retention.known)

    @property
    def _can_read_readings(self) -> bool:
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

    def _from_readings(self, sensor_id: str, start_us: int, end_us: int, window: Window) -> dict[int, WindowStats]:
        panes = {
            each_us: readings.pane(self._schema.statistics)
            for each_us, readings in self.readings(sensor_id, start_us, end_us, window).items()
        }
        if any(pane.too_wide for pane in panes.values()):
            raise _TooWide
        return {each_us: pane.stats for each_us, pane in panes.items()}

    def _row(self, tier: Tier, sensor_id: str, start_us: int) -> WindowStats:
        rows = self._rows(tier, sensor_id, start_us, tier.window.end_of(start_us))
        return next((stats for _, stats in rows), WindowStats())

    def _rows(self, tier: Tier, sensor_id: str, start_us: int, end_us: int) -> Iterator[tuple[int, WindowStats]]:
        keys = aggregate_range(tier.window, sensor_id, start_us, end_us)
        for row in self._read(RowSelection(keys, CellSelection((tier.family,), versions=1))):
            try:
                record = parse_aggregate_row(tier.window, row, tier.statistics)
            except ValueError as error:
                raise ForeignRow(row, error) from error
            yield record.start_us, stats_of(record)


@dataclass(frozen=True)
class RestoreFromReadings:
    """Restores windows of the shortest tier that began before the job did. Part of a DoFn, so it pickles.

    Args:
        tier: the table's shortest tier.
        deduplicate: whether the job counts a redelivered reading only once.
    """

    tier: Tier
    deduplicate: bool

    def restore(
        self, completion: Completion, sensor_id: str, start_us: int, now_us: int
    ) -> tuple[RestoredReadings, bool]:
        """Reads what the table stores of a window. Also returns whether that is certainly complete.

        If raw rows may be gone, the job continues from the aggregate row. Such a result is incomplete: the row may lack
        readings that arrived after its last pane, and readings that it counts may be redelivered unrecognized.
        """
        stored = completion.stored(self.tier, sensor_id, start_us, now_us)
        if not (stored.complete and self.deduplicate):
            # A tier that was added later has no row that counts what the raw rows hold: longer windows may count it.
            raw = WindowStats() if stored.counted else stored.readings.pane(self.tier.statistics).stats
            return RestoredReadings(statistics=max(stored.row, raw, key=lambda stats: stats.size)), False
        return RestoredReadings(stored.readings, floor=stored.floor), covers(stored.readings.pane().stats, stored.floor)


@dataclass(frozen=True)
class RestoreFromShorterWindows:
    """Restores windows that are computed from shorter ones. Part of a DoFn, so it pickles.

    Args:
        tiers: the tier of the shorter windows, and the windows' own tier.
    """

    tiers: tuple[Tier, Tier]

    def restore(
        self, completion: Completion, sensor_id: str, start_us: int, now_us: int
    ) -> tuple[RestoredShorterWindows | None, bool]:
        """Reads what the table stores of a window. Also returns whether that is certainly complete.

        The first value is None if restoring would lose something that the aggregate row counts.
        """
        stored = completion.stored_longer(self.tiers, sensor_id, start_us, now_us)
        if stored.shorter is None:
            return None, False
        return RestoredShorterWindows(stored.shorter, stored.row), stored.complete


RestoreMethod = RestoreFromReadings | RestoreFromShorterWindows


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


def _larger(stored: Mapping[int, WindowStats], fresh: Mapping[int, WindowStats] | None) -> dict[int, WindowStats]:
    """Returns the union. Of a window in both, keeps the one that counts more; the fresh one if they count the same."""
    found = dict(stored)
    for start_us, stats in (fresh or {}).items():
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
