"""Completes a window from what a table stores. The streaming job and backfill share this code.

A window of the shortest tier is computed from its raw rows, and a longer one from the rows of its shorter windows. If
Bigtable may have collected some of these rows, the window's own row tells whether something is missing. Nothing here
calls a server: the caller passes the function that reads rows.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.accumulation.shorter_windows import merged
from pipeline.core.completion.row_matching import counts_exactly, larger
from pipeline.core.completion.tier_completion import Completed, TierCompletion
from pipeline.core.completion.window_rows import WindowRows
from pipeline.core.queries.foreign import ForeignRow
from pipeline.core.queries.seeks import ReadRows, RowSelection
from pipeline.core.schema.retention import FOR_EVER_US, Retention
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.statistics.window_stats import WindowStats, copied, covers
from pipeline.core.windows.tier_sources import sources


class _TooWide(Exception):
    """A shorter window has too many metrics."""


class CompletionFromReadings(TierCompletion[WindowReadings]):
    """Completes windows of the shortest tier from their raw rows."""

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
        merged = WindowReadings()  # ``fresh`` belongs to the caller
        merged.merge(fresh)
        merged.merge(readings)  # the table's values count
        pane = merged.pane(self._tier.statistics)
        return None if pane.too_wide else Completed(pane.stats, merged)

    def _raw_selections(
        self,
        sensor_id: str,
        start_us: int,
        now_us: int,  # noqa: ARG002
        fresh: WindowReadings | None,  # noqa: ARG002
    ) -> list[RowSelection] | None:
        return self._table.raw_selections(sensor_id, start_us, self._tier.window.end_of(start_us))

    def _readings(self, sensor_id: str, start_us: int) -> WindowReadings:
        """Reads the raw rows of a window, if they can be found.

        An event may have come again with other metadata. Then only the aggregate row tells which groups it was in.
        """
        window = self._tier.window
        if not self._table.can_read_readings:
            return WindowReadings()
        found = self._table.readings(sensor_id, start_us, window.end_of(start_us), window)
        readings = found.get(start_us, WindowReadings())
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
        table: the table's reader.
        tier: the tier.
        source: the tier of the shorter windows.
        raw_until_us: the time before which windows start that may lack a row although there are raw rows.
    """

    def __init__(self, table: WindowRows, tier: Tier, source: Tier, raw_until_us: int) -> None:
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
        self, sensor_id: str, start_us: int, now_us: int, fresh: Mapping[int, WindowStats]
    ) -> Completed[Mapping[int, WindowStats]] | None:
        """Merges the stored shorter windows with fresh ones, each of which replaces its row unless that counts more.

        Where raw rows may have been collected, the window is complete only if these include all that its own row
        counts: an interrupted backfill may have left a shorter window without a row. If there is no own row, it is
        complete if all shorter rows are there, or if there never was an own row.
        """
        try:
            shorter = self._stored(sensor_id, start_us, now_us, fresh)
        except _TooWide:
            return None
        if self._reads_row(start_us, now_us):
            row, certain = self._table.row(self._tier, sensor_id, start_us), self.is_certain(start_us, now_us)
            if row.events:
                whole = _include(shorter, row.sizes) if row.sizes else certain
            else:
                whole = certain or self._never_had_row(start_us, now_us)
            if not whole:
                return None
        pane = merged(shorter, self._tier.statistics)
        return None if pane.too_wide else Completed(pane.stats, fresh)

    def _reads_row(self, start_us: int, now_us: int) -> bool:
        return not self._table.keeps_readings(start_us, now_us)

    def _raw_selections(
        self, sensor_id: str, start_us: int, now_us: int, fresh: Mapping[int, WindowStats] | None
    ) -> list[RowSelection] | None:
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
        self, sensor_id: str, start_us: int, now_us: int, fresh: Mapping[int, WindowStats]
    ) -> dict[int, WindowStats]:
        """Reads the statistics of a window's shorter windows by start, in µs. Raises _TooWide."""
        table, statistics, end_us = self._table, self._tier.statistics, self._tier.window.end_of(start_us)
        found = larger(dict(table.rows(self._source, sensor_id, start_us, end_us)), fresh)
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

    def _raw_end_us(self, start_us: int) -> int:
        """Returns the end of the part of a window in which shorter ones may lack a row."""
        end_us = self._tier.window.end_of(start_us)
        return min(end_us, self._source.window.first_start(min(end_us, self._raw_until_us)))


def _include(shorter: Mapping[int, WindowStats], sizes: Mapping[int, int]) -> bool:
    """Returns whether shorter windows include all that a longer window's row counts of each, by start in µs."""
    return all(each_us in shorter and shorter[each_us].size >= size for each_us, size in sizes.items())


class Completion(WindowRows):
    """Completes the windows of one table.

    Args:
        schema: the table's schema.
        retention: the table's retention.
        read: reads the table's rows.
        search: see :class:`WindowRows`.
        raw_until_us: the time before which windows start that may lack a row although there are raw rows.

    Attributes:
        shortest: the completion of the shortest tier's windows.
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
        super().__init__(schema, retention, read, search=search)
        self.shortest = CompletionFromReadings(self, schema.tiers[0])
        self.tiers: dict[Tier, TierCompletion[Any]] = {schema.tiers[0]: self.shortest}
        for tier, source in list(zip(schema.tiers, sources(tuple(tier.window for tier in schema.tiers)), strict=True))[
            1:
        ]:
            self.tiers[tier] = CompletionFromShorterWindows(self, tier, schema.tiers[source], raw_until_us)
