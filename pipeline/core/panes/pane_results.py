"""Collects the results that a firing publishes, for jobs that publish results."""

from collections.abc import Mapping

from pipeline.core.panes.firing import Schedule
from pipeline.core.panes.group_windows import GroupWindows
from pipeline.core.results.window_results import Kind, PaneResult, ResultRules
from pipeline.core.statistics.window_stats import WindowStats

_CLOCKS_DIFFER_US = 60_000_000  # at most, between workers


class PaneResults:
    """The results that a firing publishes: its panes, early ones only if the rules ask for them.

    When the watermark passes the end of a window, a pane fires even if nothing came since the one before: it tells that
    the window is done. Each group passes each time once, so nothing has to be kept for that.

    A drain passes the end of windows that are still in progress, and so may publishers whose clocks are ahead. By the
    clock, such results are early. They are published in any case: the next job may get nothing more for their windows.

    Args:
        rules: the rules.
        windows: the group's windows, which are changed in place.
        schedule: the group's schedule, which tells how far the watermark has passed.
        now_us: the current time.

    Attributes:
        found: the results.
    """

    def __init__(self, rules: ResultRules, windows: GroupWindows, schedule: Schedule, now_us: int) -> None:
        self._early = rules.early
        self._windows, self._schedule = windows, schedule
        self._in_progress_us = now_us + _CLOCKS_DIFFER_US
        self.found: list[PaneResult] = []

    def finish(self) -> None:
        """Makes windows of the shortest tier fire whose end the watermark passes."""
        for start_us, window in self._windows.of_tier[0].items():
            if self._ends(start_us):
                for entry in window.entries.values():
                    if entry.written >= 0:
                        entry.dirty = entry.finished = True

    def add(self, tier: int, start_us: int, changed: Mapping[str, WindowStats], kind: Kind) -> None:
        """Adds the panes of windows of a tier that have the same start, which are written with these statistics."""
        if kind == "early" and not self._early:
            return
        if not self._windows.ends_by(tier, start_us, self._in_progress_us):
            kind = "early"
        self.found += [PaneResult(tier, sensor, start_us, stats, kind) for sensor, stats in changed.items()]

    def _ends(self, start_us: int) -> bool:
        ends_by, schedule = self._windows.ends_by, self._schedule
        return ends_by(0, start_us, schedule.passed_us) and not ends_by(0, start_us, schedule.passed_before_us)
