"""Audits a longer window by the rows of the shorter windows in it, after some of these have changed."""

from collections.abc import Iterator, Mapping
from itertools import islice
from math import inf

from pipeline.core.completion.audit import Finding, Recomputed, StoredRow, Untouched, finding_of
from pipeline.core.completion.stored_windows import WindowRows
from pipeline.core.queries.reads import ForeignRow
from pipeline.core.rows.aggregate_rows import parse_window_stats
from pipeline.core.rows.rows import Row
from pipeline.core.schema.table_schema import Tier
from pipeline.core.statistics.window_stats import WindowStats, at_least
from pipeline.core.windows import Window

UNSURE = "its shorter windows lack something"

_MOST_ROWS = 5000  # in memory together


class LongerAudit:
    """Compares the rows of longer windows with those of the shorter windows in them.

    Args:
        table: the table's reader.
        tier: the tier of the longer windows.
        source: the tier from which they are computed.
    """

    def __init__(self, table: WindowRows, tier: Tier, source: Tier) -> None:
        self._table, self._tier, self._source = table, tier, source

    def audit(
        self, windows: Mapping[tuple[str, int], Mapping[int, Row | None]]
    ) -> Iterator[tuple[tuple[str, int], Finding | Untouched | None]]:
        """Yields what is wrong with each window: nothing, or that its row stays as it is, for want of shorter windows.

        Args:
            windows: the shorter windows that have changed, by start, for each sensor and start of a longer window: the
                row that one will have, without cells if it will have none; None if the table has it already.
        """
        of_tier, keys = self._tier.window, iter(windows)
        while some := list(islice(keys, 1)):
            ((_, start_us),) = some
            rows = 1 + self._source.window.count(start_us, of_tier.end_of(start_us))
            some += islice(keys, max(_MOST_ROWS // rows, 1) - 1)
            selections = [
                self._table.row_selection(tier, sensor_id, each_us, of_tier.end_of(each_us))
                for sensor_id, each_us in some
                for tier in (self._tier, self._source)
            ]
            with self._table.together.kept(selections):
                for key in some:
                    yield key, self._compared(*key, windows[key])

    def _compared(self, sensor_id: str, start_us: int, changed: Mapping[int, Row | None]) -> Finding | Untouched | None:
        table, tier, source = self._table, self._tier, self._source
        end_us, right, unsure = tier.window.end_of(start_us), Recomputed(), Untouched(tier, sensor_id, start_us, UNSURE)
        try:
            shorter = dict(table.rows(source, sensor_id, start_us, end_us))
        except ForeignRow:
            return unsure
        for each_us, row in changed.items():
            if row is not None:
                shorter.pop(each_us, None)
                if row.cells:
                    shorter[each_us] = parse_window_stats(source.window, row, source.statistics)[1]
        for each_us, stats in sorted(shorter.items()):
            if not (tier.statistics.known_in(stats) and table.tells_members(stats)):
                return unsure  # they were declared later
            right.stats.merge(stats)
            right.sizes[each_us] = stats.size
        right.magnitudes = dict.fromkeys(right.stats.metrics, inf)  # rows don't tell them
        if not right.fits(tier.statistics):
            return unsure
        row = next(table.together(table.row_selection(tier, sensor_id, start_us, end_us)), None)
        if row is not None and self._counts_more(row, shorter, changed):
            return unsure
        stored = StoredRow() if row is None else StoredRow.of(row)
        return finding_of(tier, sensor_id, start_us, right if right.stats.events else None, stored)

    def _counts_more(self, row: Row, shorter: Mapping[int, WindowStats], changed: Mapping[int, Row | None]) -> bool:
        """Returns whether a row may count what the shorter windows lack, beside those that have changed."""
        try:
            _, stats = parse_window_stats(self._tier.window, row, self._tier.statistics)
        except ValueError:
            return False  # another program's counts nothing
        if stats.sizes is None:
            return not at_least(shorter.values(), stats)
        return any(
            size > (shorter[each_us].size if each_us in shorter else 0)
            for each_us, size in _sizes_within(stats.sizes, self._source.window).items()
            if each_us not in changed
        )


def _sizes_within(sizes: Mapping[int, int], window: Window) -> dict[int, int]:
    """Returns the sizes of windows, by start in µs, from those of windows in them.

    A row from before its source was added tells of shorter windows than those.
    """
    found = dict[int, int]()
    for start_us, size in sizes.items():
        within_us = window.start_of(start_us)
        found[within_us] = found.get(within_us, 0) + size
    return found
