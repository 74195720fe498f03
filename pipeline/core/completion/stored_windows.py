"""Completes a window from what a table stores. The streaming job and backfill share this code.

A window's raw rows are authoritative while Bigtable certainly still has all of them. No writer replaces an aggregate
row with a result that counts less. So every result here comes with what the row counts, and with whether the result is
certainly complete. Nothing here calls a server: the caller passes the function that reads rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.accumulation.pane import Accumulator
from pipeline.core.accumulation.shorter_windows import ShorterWindows
from pipeline.core.completion.longer_rows import sizes_within
from pipeline.core.completion.row_matching import counts_exactly, larger
from pipeline.core.completion.tier_completion import Completed, TierCompletion
from pipeline.core.completion.window_rows import WindowRows
from pipeline.core.queries.seeks import ReadRows, RowSelection
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.statistics.window_stats import WindowStats, at_least, copied, covers, includes
from pipeline.core.windows.tier_sources import sources


class _TooWide(Exception):
    """A shorter window has too many metrics."""


def _has_nothing_new(fresh: Accumulator, written: Accumulator | None) -> bool:
    """Returns whether the caller has only what its row counts: anything else may stand for what was replaced."""
    return written is not None and fresh.pane().stats.size == written.pane().stats.size


class CompletionFromReadings(TierCompletion[WindowReadings]):
    """Completes windows of the shortest tier from their raw rows."""

    def begun(self) -> WindowReadings:
        return WindowReadings()

    def is_certain(self, start_us: int, now_us: int) -> bool:
        return self._table.keeps_readings(start_us, now_us)

    def restored(self, sensor_id: str, start_us: int, now_us: int) -> tuple[WindowReadings | None, bool]:
        """Reads the raw rows.

        If some may be gone, the job continues from the aggregate row, unless a longer window counts more. Such a result
        is incomplete: the row may lack readings that arrived after its last pane, and readings that it counts may be
        redelivered unrecognized.
        """
        readings, row, complete = self._stored(sensor_id, start_us, now_us)
        found = self.begun()
        if complete:
            exact = covers(readings.pane().stats, row)  # first: what is counted is merged faster
            found.restore(readings, floor=row)
            return found, exact
        if self._longer.count_more(sensor_id, start_us, row.size, {}):
            return None, False
        # A tier that was added later has no row that counts what the raw rows hold: longer windows may count it.
        counted = self._table.retention.counts(self._tier, start_us)
        raw = WindowStats() if counted else readings.pane(self._tier.statistics).stats
        found.restore(statistics=max(row, raw, key=lambda stats: stats.size))
        return found, False

    def completed(
        self,
        sensor_id: str,
        start_us: int,
        now_us: int,
        fresh: WindowReadings,
        written: WindowReadings | None = None,
        *,
        stored_count: bool = False,
        settled: bool = False,
    ) -> Completed[WindowReadings] | None:
        """Merges raw rows with fresh readings, each reading once.

        If raw rows may have been collected, the window is complete in two cases: its aggregate row counts exactly the
        remaining raw rows, or there is no aggregate row although the tier existed when it would have been written. An
        aggregate row that matches the fresh readings proves nothing: other readings may have had the same values.
        """
        readings, row, complete = self._stored(sensor_id, start_us, now_us)
        merged = WindowReadings()  # ``fresh`` belongs to the caller
        for each in (fresh, readings) if stored_count else (readings, fresh):  # the last value counts
            merged.merge(each)
        pane = merged.pane(self._tier.statistics)
        if complete:
            exact = covers(pane.stats, row)
            if not exact and at_least([pane.stats], row):
                # Nothing that the row counts is on its way, or the fresh readings include it: a value was corrected.
                exact = settled or (written is not None and counts_exactly(written, row, self._tier.statistics))
        elif row.events:
            exact = counts_exactly(readings.without(fresh) if written is None else written, row, self._tier.statistics)
        else:
            exact = self._table.retention.counts(self._tier, start_us)
        proven = complete or not self._longer.count_more(sensor_id, start_us, row.size, {})
        exact = exact and (proven or (row.events > 0 and _has_nothing_new(fresh, written)))
        return Completed(pane.stats, merged, proven) if exact and not pane.too_wide else None

    def _raw_selections(
        self,
        sensor_id: str,
        start_us: int,
        now_us: int,  # noqa: ARG002
        fresh: WindowReadings | None,  # noqa: ARG002
    ) -> list[RowSelection] | None:
        return self._table.raw_selections(sensor_id, start_us, self._tier.window.end_of(start_us))

    def _stored(self, sensor_id: str, start_us: int, now_us: int) -> tuple[WindowReadings, WindowStats, bool]:
        """Reads a window's raw rows and its aggregate row; a missing row counts nothing.

        Also returns whether the raw rows certainly include every one ever written.
        """
        table, window = self._table, self._tier.window
        row, readings = table.row(self._tier, sensor_id, start_us), WindowReadings()
        complete = table.keeps_readings(start_us, now_us)
        if not complete and row.member is not None:
            readings.note(row.member)
        if table.can_read_readings:
            found = table.readings(sensor_id, start_us, window.end_of(start_us), window)
            if start_us in found:
                readings.merge(found[start_us])
        return readings, row, complete


class CompletionFromShorterWindows(TierCompletion[ShorterWindows]):
    """Completes windows of a longer tier from the aggregate rows of their shorter windows.

    A shorter window without an aggregate row is computed from its raw rows.

    Args:
        table: the table's reader.
        tier: the tier.
        longer: the tiers that are computed from each tier.
        source: the tier of the shorter windows.
    """

    def __init__(self, table: WindowRows, tier: Tier, longer: Mapping[Tier, Sequence[Tier]], source: Tier) -> None:
        super().__init__(table, tier, longer, source)
        self._source = source

    def begun(self) -> ShorterWindows:
        return ShorterWindows()

    def is_certain(self, start_us: int, now_us: int) -> bool:
        known = self._table.retention.known
        return self._table.keeps_readings(start_us, now_us) or (known and self._keeps_shorter(start_us, now_us))

    def _keeps_shorter(self, start_us: int, now_us: int) -> bool:
        retention, source = self._table.retention, self._source
        return retention.aggregates_from_us(source, now_us) <= start_us and retention.counts(source, start_us)

    def restored(self, sensor_id: str, start_us: int, now_us: int) -> tuple[ShorterWindows | None, bool]:
        shorter, row, complete = self._stored(sensor_id, start_us, now_us, {})
        if shorter is None or self._may_lack_some(sensor_id, start_us, now_us, row, shorter):
            return None, False
        found = self.begun()
        found.restore(shorter, row.size, sizes_within(row.sizes or {}, self._source.window))
        return found, complete

    def completed(
        self,
        sensor_id: str,
        start_us: int,
        now_us: int,
        fresh: ShorterWindows,
        written: ShorterWindows | None = None,
        *,
        stored_count: bool = False,  # noqa: ARG002
        settled: bool = False,  # noqa: ARG002
    ) -> Completed[ShorterWindows] | None:
        """Merges the stored shorter windows with fresh ones, each of which replaces its row unless that counts more."""
        shorter, row, _ = self._stored(sensor_id, start_us, now_us, fresh.latest)
        if shorter is None:
            return None
        proven = not self._may_lack_some(sensor_id, start_us, now_us, row, shorter)
        if not (proven or (row.events > 0 and _has_nothing_new(fresh, written))):
            return None
        pane = ShorterWindows(shorter).pane(self._tier.statistics)
        return None if pane.too_wide else Completed(pane.stats, fresh, proven)

    def _may_lack_some(
        self, sensor_id: str, start_us: int, now_us: int, row: WindowStats, shorter: Mapping[int, WindowStats]
    ) -> bool:
        if self._table.keeps_readings(start_us, now_us):
            return False
        sizes = {each_us: stats.size for each_us, stats in shorter.items()}
        return self._longer.count_more(sensor_id, start_us, row.size, sizes)

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
    ) -> tuple[dict[int, WindowStats] | None, WindowStats, bool]:
        """Reads the statistics of a window's shorter windows by start, in µs.

        Returns None if they would lose something that the window's own row counts. Also returns what they have to count
        at least, and whether they certainly include everything.
        """
        table, source, retention = self._table, self._source, self._table.retention
        row = table.row(self._tier, sensor_id, start_us)
        end_us = self._tier.window.end_of(start_us)
        found = larger(dict(table.rows(source, sensor_id, start_us, end_us)), fresh)
        kept = self._keeps_shorter(start_us, now_us)
        if complete := table.keeps_readings(start_us, now_us):
            kept = True
            try:
                found = self._from_readings(sensor_id, start_us, end_us, found, fresh, row)
            except _TooWide:
                return None, row, False
        # Without a row, nothing was ever counted, unless the tier did not exist yet.
        if not row.events:
            exact = kept or retention.counts(self._tier, start_us)
        else:
            exact = kept and (at_least(found.values(), row) if complete else includes(found, row))
        if not exact:
            return None, row, False
        if self._tier.statistics.carries:
            # The fresh ones belong to panes, which are being written as they are.
            found = {each_us: copied(stats) if each_us in fresh else stats for each_us, stats in found.items()}
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

        # Rows that were written before a statistic or a roll-up was declared lack it.
        whole = {
            each_us: stats
            for each_us, stats in found.items()
            if statistics.known_in(stats) and table.tells_members(stats)
        }
        for gap_start_us, gap_end_us in window.gaps(whole, start_us, end_us):
            whole = larger(whole | of_raw_rows(gap_start_us, gap_end_us), fresh)
        return whole if at_least(whole.values(), row) else larger(of_raw_rows(start_us, end_us), fresh)


class Completion(WindowRows):
    """Completes the windows of one table.

    Attributes:
        tiers: the completion of each tier's windows.
    """

    def __init__(self, schema: TableSchema, retention: Retention, read: ReadRows, *, search: bool = False) -> None:
        super().__init__(schema, retention, read, search=search)
        found = sources(tuple(tier.window for tier in schema.tiers))
        longer = {
            shorter: [tier for tier, source in zip(schema.tiers, found, strict=True) if source == index]
            for index, shorter in enumerate(schema.tiers)
        }
        self.tiers: dict[Tier, TierCompletion[Any]] = {
            tier: CompletionFromReadings(self, tier, longer)
            if source < 0
            else CompletionFromShorterWindows(self, tier, longer, schema.tiers[source])
            for tier, source in zip(schema.tiers, found, strict=True)
        }
