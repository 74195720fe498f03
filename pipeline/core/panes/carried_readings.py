"""Carries the last reading before a window into its statistics, while a job aggregates.

A window depends on the last reading before it. So a window that fires makes the next one with data fire too: one in the
state looks again what is before it, and one that only the table has is computed anew. Windows in the state keep what is
before them, so that most panes read nothing.

A firing of late readings does not have the open windows. It wakes those that its readings may reach.
"""

from collections.abc import Callable, Iterable, Mapping

from pipeline.core.completion.neighbours import Neighbours
from pipeline.core.completion.tier_completion import ForEach
from pipeline.core.events.event import LATEST_US
from pipeline.core.panes.group_windows import GroupWindows
from pipeline.core.panes.sensor_window import StartWindows
from pipeline.core.schema.table_schema import Tier
from pipeline.core.statistics.courses import At
from pipeline.core.statistics.parts import carried
from pipeline.core.statistics.window_stats import WindowStats, lasts_of


class CarryIn:
    """Carries readings into windows of a group, of the shortest tier.

    Args:
        windows: the group's windows, which are changed in place.
        tier: the shortest tier.
        open_from_us: the start of the first open window, if the firing does not have these; otherwise LATEST_US.
        neighbours: the table's readings and windows before and after a window.
        now_us: the current time.
        may_be_stored: a test of whether the table may store an open window with this start before the job fires it.
        fired: the statistics of windows that have fired, by start and sensor.
        each: a function like ``map``, which may call a function for several sensors at once.

    Attributes:
        woken: the sensors whose open windows have to look again what is before them.
    """

    def __init__(
        self,
        windows: GroupWindows,
        tier: Tier,
        open_from_us: int,
        neighbours: Neighbours,
        now_us: int,
        may_be_stored: Callable[[int], bool],
        fired: Mapping[int, Mapping[str, WindowStats]],
        each: ForEach,
    ) -> None:
        self._windows: dict[int, StartWindows] = windows.of_tier[0]
        self._tier = tier
        self._open_from_us = open_from_us
        self._neighbours = neighbours
        self._now_us = now_us
        self._may_be_stored, self._fired = may_be_stored, fired
        self._each = each
        self._reached: set[tuple[str, int]] = set()  # windows that fire only because one before them did
        self.woken: set[str] = set()

    def look_again(self, sensor_id: str, from_us: int) -> None:
        """Makes a sensor's windows from a start on look again what is before them."""
        for start_us, window in self._windows.items():
            if start_us >= from_us and (entry := window.entries.get(sensor_id)) is not None:
                entry.before.clear()
                entry.dirty = entry.moved = True

    def into(self, start_us: int, found: Mapping[str, WindowStats]) -> None:
        """Adds the last readings before a window to its statistics.

        Args:
            start_us: the window's start.
            found: the window's statistics by sensor.
        """
        entries, carries_to = self._windows[start_us].entries, self._tier.statistics.carries_to
        missing: dict[str, list[str]] = {}
        for sensor_id, stats in found.items():
            known = entries[sensor_id].before
            if metrics := [metric for metric in stats.metrics if metric not in known and carries_to(metric)]:
                missing[sensor_id] = metrics
        looked_up = self._each(lambda sensor_id: self._before(start_us, sensor_id, missing[sensor_id]), missing)
        for sensor_id, readings in zip(missing, looked_up, strict=True):
            entries[sensor_id].before |= readings
        for sensor_id, stats in found.items():
            for metric, of_metric in stats.metrics.items():
                if of_metric.parts:
                    of_metric.parts = carried(of_metric.parts, entries[sensor_id].before.get(metric))

    def beyond(self, start_us: int, found: Mapping[str, WindowStats]) -> list[tuple[str, int, bool]]:
        """Makes the windows after a window that fires look again what is before them.

        Returns sensor and start of those that only the table has, and whether the row continues from what fires.

        Args:
            start_us: the window's start.
            found: the window's statistics by sensor.
        """
        end_us = self._tier.window.end_of(start_us)
        beyond_state = self._windows[start_us].late or self._may_be_stored(end_us)
        stored = dict[str, dict[str, At]]()
        for sensor_id, stats in found.items():
            if (sensor_id, start_us) in self._reached:
                continue  # its last readings are what they were
            self.look_again(sensor_id, end_us)
            if beyond_state and (lasts := lasts_of(stats)):
                stored[sensor_id] = lasts

        def following(sensor_id: str) -> tuple[dict[int, bool], int]:
            return self._neighbours.following(sensor_id, stored[sensor_id], end_us, self._open_from_us)

        reached = list[tuple[str, int, bool]]()
        for sensor_id, (starts, until_us) in zip(stored, self._each(following, stored), strict=True):
            if until_us == self._open_from_us < LATEST_US:
                self.woken.add(sensor_id)
            reached += [(sensor_id, each_us, continues) for each_us, continues in sorted(starts.items())]
            self._reached.update((sensor_id, each_us) for each_us in starts if not self._has(sensor_id, each_us))
        return reached

    def _has(self, sensor_id: str, start_us: int) -> bool:
        """Returns whether a window is in the state: it may fire because of readings of its own."""
        window = self._windows.get(start_us)
        return window is not None and sensor_id in window.entries

    def _before(self, start_us: int, sensor_id: str, metrics: Iterable[str]) -> dict[str, At | None]:
        """Returns the last reading of each metric before a window; None for a metric without one."""
        found, floors = dict[str, At | None](dict.fromkeys(metrics)), dict.fromkeys(metrics, 0)
        waiting, late = set(found), set[str]()
        for each_us in sorted((each_us for each_us in self._windows if each_us < start_us), reverse=True):
            if not waiting:
                break
            window = self._windows[each_us]
            stats, entry = self._fired.get(each_us, {}).get(sensor_id), window.entries.get(sensor_id)
            if stats is None and entry is not None and not window.late:
                stats = entry.accumulator.pane(self._tier.statistics).stats
            lasts = {} if stats is None else lasts_of(stats)
            for metric in waiting & lasts.keys():
                found[metric], floors[metric] = lasts[metric], self._tier.window.end_of(each_us)
                late |= {metric} if window.late else set()
            waiting -= lasts.keys()
        by_floor: dict[int, list[str]] = {}
        for metric, floor_us in floors.items():
            # Of windows that this job has open, the state contains all.
            if floor_us < start_us and (not floor_us or metric in late or self._may_be_stored(floor_us)):
                by_floor.setdefault(floor_us, []).append(metric)
        for floor_us, some in by_floor.items():
            stored = self._neighbours.before(sensor_id, some, floor_us, start_us, self._now_us)
            found |= {metric: max(at, found[metric] or at) for metric, at in stored.items()}
        return found
