"""Carries the last reading before a window into its statistics, while a job aggregates.

Each window in a group's state has the last reading before it and its own last reading, of each of its metrics. When a
window fires, its last readings are handed to the windows after it. So a late reading corrects its own window, and the
next one in the same firing. The rest is read from the table: the reading before a window that fires for the first time,
and the window after one that is closed, or that began before the job.

A firing of late readings does not have the open windows. It wakes those that its readings may reach, which then look
again what the table has before them.
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
        open_from_us: the start of the first open window, if the firing does not have these.
        neighbours: the table's readings and windows before and after a window.
        now_us: the current time.
        may_be_stored: a test of whether the table may store an open window with this start before the job fires it.
        written_until_us: the time before which windows start that are closed, or may be stored.
        each: a function like ``map``, which may call a function for several sensors at once.
        tells: whether anything follows from panes besides their rows. Then the window after a late one fires even if
            its row is right: this firing may repeat one whose rows were written, and whose other outputs were lost.

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
        written_until_us: int,
        each: ForEach,
        *,
        tells: bool,
    ) -> None:
        self._windows: dict[int, StartWindows] = windows.of_tier[0]
        self._tier = tier
        self._open_from_us = open_from_us
        self._neighbours = neighbours
        self._now_us = now_us
        self._may_be_stored, self._written_until_us = may_be_stored, written_until_us
        self._each = each
        self._searched: dict[str, dict[str, tuple[int, int]]] = {}  # for windows without a row
        self._tells, self._reached = tells, set[tuple[str, int]]()  # windows that others have made fire
        self.woken: set[str] = set()

    def forget(self, sensor_id: str, from_us: int) -> None:
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
            entry = entries[sensor_id]
            entry.moved |= any(entry.before.get(metric) != at for metric, at in readings.items())
            entry.before |= readings
        for sensor_id, stats in found.items():
            for metric, of_metric in stats.metrics.items():
                if of_metric.parts:
                    of_metric.parts = carried(of_metric.parts, entries[sensor_id].before.get(metric))

    def beyond(self, start_us: int, found: Mapping[str, WindowStats]) -> list[tuple[str, int]]:
        """Hands the last readings of a window to the windows after it, which then have to fire.

        Returns sensor and start of further windows to compute again, which only the table has.

        Args:
            start_us: the window's start.
            found: the window's statistics by sensor.
        """
        window, end_us = self._windows[start_us], self._tier.window.end_of(start_us)
        changed = dict[str, dict[str, At]]()
        for sensor_id, stats in found.items():
            entry = window.entries[sensor_id]
            lasts = lasts_of(stats)
            changed[sensor_id] = {name: last for name, last in lasts.items() if entry.last.get(name) != last}
            entry.last |= changed[sensor_id]
        later, beyond_state = sorted(each for each in self._windows if each >= end_us), window.late
        beyond_state |= self._may_be_stored(end_us)
        stored: dict[str, dict[str, tuple[At, int]]] = {}
        for sensor_id, of_sensor in changed.items():
            unknown = dict[str, tuple[At, int]]()
            for name, bound_us in self._hand_on(sensor_id, of_sensor, later).items():
                if bound_us > self._open_from_us:
                    self.woken.add(sensor_id)
                if (bound_us := min(bound_us, self._open_from_us)) > end_us:
                    unknown[name] = of_sensor[name], bound_us
            if beyond_state and unknown:
                stored[sensor_id] = unknown

        def stale(sensor_id: str) -> set[int]:
            lasts, searched = stored[sensor_id], self._searched.setdefault(sensor_id, {})
            times_us = end_us, self._written_until_us, self._now_us
            repeats = self._tells and (sensor_id, start_us) not in self._reached
            return self._neighbours.following(sensor_id, lasts, *times_us, searched, also_right=repeats)[0]

        of_sensors = zip(stored, self._each(stale, stored), strict=True)
        reached = [(sensor_id, each_us) for sensor_id, starts in of_sensors for each_us in sorted(starts)]
        self._reached.update(reached)
        return reached

    def _hand_on(self, sensor_id: str, lasts: Mapping[str, At], later: Iterable[int]) -> dict[str, int]:
        """Hands readings to the sensor's later windows.

        Returns the start of the first one that has each metric; :data:`LATEST_US` without one.
        """
        waiting, bounds = dict(lasts), dict.fromkeys(lasts, LATEST_US)
        for each_us in later:
            entry = self._windows[each_us].entries.get(sensor_id)
            if not waiting:
                break
            if entry is None:
                continue
            for metric, last in list(waiting.items()):
                if metric in entry.before:
                    before = entry.before[metric]
                    if before is None or before < last:
                        entry.before[metric] = last
                        entry.dirty = entry.moved = True
                if metric in entry.last:
                    bounds[metric] = each_us
                    del waiting[metric]
        return bounds

    def _before(self, start_us: int, sensor_id: str, metrics: Iterable[str]) -> dict[str, At | None]:
        """Returns the last reading of each metric before a window; None for a metric without one."""
        found, floors = dict[str, At | None](), dict[int, list[str]]()
        earlier = sorted((each_us for each_us in self._windows if each_us < start_us), reverse=True)
        for metric in metrics:
            floor_us, found[metric] = 0, None
            for each_us in earlier:
                entry = self._windows[each_us].entries.get(sensor_id)
                if entry is not None and metric in entry.last:
                    floor_us, found[metric] = self._tier.window.end_of(each_us), entry.last[metric]
                    break
            # Of windows that this job has open, the state contains all.
            if floor_us < start_us and (not floor_us or self._windows[each_us].late or self._may_be_stored(floor_us)):
                floors.setdefault(floor_us, []).append(metric)
        for floor_us, some in floors.items():
            stored = self._neighbours.before(sensor_id, some, floor_us, start_us, self._now_us)
            found |= {metric: max(at, found[metric] or at) for metric, at in stored.items()}
        return found
