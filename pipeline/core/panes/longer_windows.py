"""Restores and settles the windows of a group that are longer than the shortest."""

from collections.abc import Sequence

from pipeline.core.accumulation.shorter_windows import ShorterWindows
from pipeline.core.panes.begun_windows import BegunWindows
from pipeline.core.panes.group_windows import GroupWindows
from pipeline.core.panes.sensor_window import SensorWindow


class LongerWindows:
    """What longer windows restore, and which of their shorter ones are over, while a firing adds results to them.

    Args:
        sources: the index of each tier's source; -1 for the shortest.
        windows: the group's windows.
        begun: the windows that begin in the firing.
    """

    def __init__(self, sources: Sequence[int], windows: GroupWindows, begun: BegunWindows) -> None:
        self._sources, self._windows, self._begun = sources, windows, begun

    def keep_stored(self, tier: int, sensor_id: str, accumulator: ShorterWindows) -> None:
        """Keeps restored results of what the table stored before the job: other shorter windows are yet to fire."""
        source = self._sources[tier]
        accumulator.keep_restored(self._begun.may_be_stored)
        if self._sources[source] < 0:
            return
        for each_us in [each for each in accumulator.restored if not self._begun.is_stored(source, each)]:
            restored = self._begun.restored(source, each_us, [sensor_id])[sensor_id]
            if isinstance(restored, ShorterWindows):
                self.keep_stored(source, sensor_id, restored)
                accumulator.restored[each_us] = restored.pane().stats

    def settle(
        self, tier: int, start_us: int, sensor_id: str, entry: SensorWindow[ShorterWindows], shorter_us: int
    ) -> None:
        """Merges a longer window's shorter ones that are over, unless the one that comes is one of them."""
        accumulator, source = entry.accumulator, self._sources[tier]
        settled_us = accumulator.settled_us
        if shorter_us < settled_us:
            accumulator.unsettle()
            restored = self._begun.restored(tier, start_us, [sensor_id])[sensor_id]
            entry.held |= restored is None
            if isinstance(restored, ShorterWindows):
                restored.keep_restored(lambda each_us: each_us < settled_us)
                accumulator.restore(restored.restored)
        # The table has the rows of windows that are not in the state any more.
        accumulator.settle(min(shorter_us, self._windows.first_us(source)))
