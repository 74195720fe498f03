"""Compares windows with what the rows of longer windows tell of them: how much these count of each."""

from collections.abc import Iterator, Mapping, Sequence

from pipeline.core.completion.window_rows import WindowRows
from pipeline.core.schema.table_schema import Tier
from pipeline.core.windows.fixed import Window


class LongerRows:
    """The rows of the windows that contain a tier's windows.

    Args:
        table: the table's reader.
        tier: the tier.
        longer: the tiers that are computed from each tier.
    """

    def __init__(self, table: WindowRows, tier: Tier, longer: Mapping[Tier, Sequence[Tier]]) -> None:
        self._table, self._tier, self._longer = table, tier, longer

    def count_more(self, sensor_id: str, start_us: int, size: int, parts: Mapping[int, int]) -> bool:
        """Returns whether a longer window's row counts more of a window than is known.

        A writer ended between the two. While raw rows are complete, they tell what the window's own row lacks.

        Args:
            sensor_id: the sensor.
            start_us: the window's start.
            size: the size of the window's own row.
            parts: the sizes of the known shorter windows in it, by start in µs. If the tier was added later, longer
                windows tell of these. Empty for a window of the shortest tier.
        """
        end_us, existed = self._tier.window.end_of(start_us), self._table.retention.counts(self._tier, start_us)
        for tier in self._telling(self._tier, start_us):
            told = self._table.row(tier, sensor_id, tier.window.start_of(start_us)).sizes or {}
            if existed:
                if told.get(start_us, 0) > size:
                    return True
            elif any(
                of_part > (parts.get(part_us, 0) if parts else size)
                for part_us, of_part in told.items()
                if start_us <= part_us < end_us
            ):
                return True
        return False

    def _telling(self, tier: Tier, start_us: int) -> Iterator[Tier]:
        """Yields the tiers whose rows tell of a tier's windows; beyond one that did not exist yet, the next ones."""
        for longer in self._longer[tier]:
            yield longer
            if not self._table.retention.counts(longer, start_us):
                yield from self._telling(longer, start_us)


def sizes_within(sizes: Mapping[int, int], window: Window) -> dict[int, int]:
    """Returns the sizes of windows, by start in µs, from those of windows in them.

    A row from before its source was added tells of shorter windows than those.
    """
    found = dict[int, int]()
    for start_us, size in sizes.items():
        within_us = window.start_of(start_us)
        found[within_us] = found.get(within_us, 0) + size
    return found
