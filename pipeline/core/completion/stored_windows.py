"""Completes a window from what a table stores. The streaming job and backfill share this code.

A window of the shortest tier is computed from its raw rows, and a longer one from the rows of its shorter windows. If
Bigtable may have collected some of these rows, the window's own row tells whether something is missing. Nothing here
calls a server: the caller passes the function that reads rows.
"""

from collections.abc import Mapping
from typing import Any

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.accumulation.shorter_windows import ShorterWindows
from pipeline.core.completion.row_matching import counts_exactly, larger
from pipeline.core.completion.tier_completion import Completed, TierCompletion
from pipeline.core.completion.window_rows import WindowRows
from pipeline.core.queries.seeks import ReadRows, RowSelection
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.statistics.window_stats import WindowStats, copied, covers
from pipeline.core.windows.tier_sources import sources


class _TooWide(Exception):
    """A shorter window has too many metrics."""


class CompletionFromReadings(TierCompletion[WindowReadings]):
    """Completes windows of the shortest tier from their raw rows."""

    def begun(self) -> WindowReadings:
        return WindowReadings()

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
                readings = self.begun()
                readings.restore(row)
        return readings, certain

    def completed(
        self, sensor_id: str, start_us: int, now_us: int, fresh: WindowReadings
    ) -> Completed[WindowReadings] | None:
        """Merges raw rows with fresh readings, each reading once.

        If raw rows may have been collected, the window is complete in two cases: its aggregate row counts exactly the
        remaining raw rows without the fresh readings, or there is no aggregate row although the tier existed when it
        would have been written.
        """
        readings = self._readings(sensor_id, start_us)
        if not self.is_certain(start_us, now_us):
            row = self._table.row(self._tier, sensor_id, start_us)
            if not row.events:
                exact = self._table.retention.counts(self._tier, start_us)
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
        """Reads the raw rows of a window, if they can be found."""
        window = self._tier.window
        if not self._table.can_read_readings:
            return WindowReadings()
        found = self._table.readings(sensor_id, start_us, window.end_of(start_us), window)
        return found.get(start_us, WindowReadings())


class CompletionFromShorterWindows(TierCompletion[ShorterWindows]):
    """Completes windows of a longer tier from the aggregate rows of their shorter windows.

    A shorter window without an aggregate row is computed from its raw rows.

    Args:
        table: the table's reader.
        tier: the tier.
        source: the tier of the shorter windows.
    """

    def __init__(self, table: WindowRows, tier: Tier, source: Tier) -> None:
        super().__init__(table, tier, source)
        self._source = source

    def begun(self) -> ShorterWindows:
        return ShorterWindows()

    def is_certain(self, start_us: int, now_us: int) -> bool:
        retention, source = self._table.retention, self._source
        keeps_shorter = retention.aggregates_from_us(source, now_us) <= start_us and retention.counts(source, start_us)
        return self._table.keeps_readings(start_us, now_us) or keeps_shorter

    def restored(
        self,
        sensor_id: str,
        start_us: int,
        now_us: int,
        fresh: ShorterWindows | None = None,  # noqa: ARG002
    ) -> tuple[ShorterWindows | None, bool]:
        shorter, certain = self._stored(sensor_id, start_us, now_us, {}), self.is_certain(start_us, now_us)
        found = ShorterWindows()
        if shorter is None:
            return None, False
        found.restore(shorter)
        if not certain:
            row = self._table.row(self._tier, sensor_id, start_us)
            if not covers(found.pane(self._tier.statistics).stats, row):
                return None, False
        return found, certain and self._table.retention.known

    def completed(
        self, sensor_id: str, start_us: int, now_us: int, fresh: ShorterWindows
    ) -> Completed[ShorterWindows] | None:
        """Merges the stored shorter windows with fresh ones, each of which replaces its row unless that counts more.

        If some may have been collected, the window is complete if there is no row of its own although the tier existed
        when it would have been written.
        """
        if not self.is_certain(start_us, now_us) and (
            self._table.row(self._tier, sensor_id, start_us).events
            or not self._table.retention.counts(self._tier, start_us)
        ):
            return None
        shorter = self._stored(sensor_id, start_us, now_us, fresh.latest)
        if shorter is None:
            return None
        pane = ShorterWindows(shorter).pane(self._tier.statistics)
        return None if pane.too_wide else Completed(pane.stats, fresh)

    def _raw_selections(
        self, sensor_id: str, start_us: int, now_us: int, fresh: ShorterWindows | None
    ) -> list[RowSelection] | None:
        table, end_us = self._table, self._tier.window.end_of(start_us)
        if not table.keeps_readings(start_us, now_us):
            return []
        whole = set(fresh.latest if fresh else ())
        try:
            whole |= table.starts_of_rows(self._source, sensor_id, start_us, end_us)
        except ValueError:
            return None  # another program's row
        found = list[RowSelection]()
        for span in self._source.window.gaps(whole, start_us, end_us):
            selections = table.raw_selections(sensor_id, *span)
            if selections is None:
                return None
            found += selections
        return found

    def _stored(
        self, sensor_id: str, start_us: int, now_us: int, fresh: Mapping[int, WindowStats]
    ) -> dict[int, WindowStats] | None:
        """Reads the statistics of a window's shorter windows by start, in µs; None if one of them is too wide."""
        table, end_us = self._table, self._tier.window.end_of(start_us)
        found = larger(dict(table.rows(self._source, sensor_id, start_us, end_us)), fresh)
        if table.keeps_readings(start_us, now_us):
            try:
                found = self._from_readings(sensor_id, start_us, end_us, found, fresh)
            except _TooWide:
                return None
        if self._tier.statistics.carries:
            # The fresh ones belong to panes, which are being written as they are.
            found = {each_us: copied(stats) if each_us in fresh else stats for each_us, stats in found.items()}
            table.neighbours.carry(sensor_id, found, now_us)
        return found

    def _from_readings(
        self,
        sensor_id: str,
        start_us: int,
        end_us: int,
        found: Mapping[int, WindowStats],
        fresh: Mapping[int, WindowStats],
    ) -> dict[int, WindowStats]:
        """Returns the shorter windows found, and others from raw rows."""
        table, window, statistics = self._table, self._source.window, self._tier.statistics
        # Rows that were written before a statistic or a roll-up was declared lack it.
        whole = {
            each_us: stats
            for each_us, stats in found.items()
            if statistics.known_in(stats) and table.tells_members(stats)
        }
        for gap in window.gaps(whole, start_us, end_us):
            read = table.readings(sensor_id, *gap, window)
            panes = {each_us: readings.pane(statistics) for each_us, readings in read.items()}
            if any(pane.too_wide for pane in panes.values()):
                raise _TooWide
            whole = larger(whole | {each_us: pane.stats for each_us, pane in panes.items()}, fresh)
        return whole


class Completion(WindowRows):
    """Completes the windows of one table.

    Attributes:
        tiers: the completion of each tier's windows.
    """

    def __init__(self, schema: TableSchema, retention: Retention, read: ReadRows, *, search: bool = False) -> None:
        super().__init__(schema, retention, read, search=search)
        found = sources(tuple(tier.window for tier in schema.tiers))
        self.tiers: dict[Tier, TierCompletion[Any]] = {
            tier: CompletionFromReadings(self, tier)
            if source < 0
            else CompletionFromShorterWindows(self, tier, schema.tiers[source])
            for tier, source in zip(schema.tiers, found, strict=True)
        }
