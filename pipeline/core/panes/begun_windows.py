"""Begins the windows of a group's sensors, of the shortest tier: empty, or from what the table stores of them.

A window that may have begun before the job is read from the table when its first readings come; see
:mod:`pipeline.core.completion.stored_windows`. From then on the state has all of its readings.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.completion.stored_windows import Completion
from pipeline.core.completion.tier_completion import MOST_SENSORS, ForEach
from pipeline.core.events.event import LATEST_US
from pipeline.core.panes.aggregation import Aggregation
from pipeline.core.panes.firing import END_US, NEVER_US, Schedule
from pipeline.core.panes.group_windows import GroupWindows
from pipeline.core.panes.grouped_readings import Readings
from pipeline.core.panes.sensor_window import SensorWindow, StartWindows
from pipeline.core.queries.foreign import ForeignRow
from pipeline.core.rows.newest_row import NewestReadings

RESTORED, INCOMPLETE = "restored", "incomplete"  # windows, as counted

HELD_S = 0.5
"""The seconds after which a firing restores no further windows from the table, if it may leave their readings."""

_FIRST_SENSORS = 8  # whose windows a firing restores first: dense ones take long


class BegunWindows:
    """The windows of a group that a firing finds or begins.

    Args:
        aggregation: the settings.
        windows: the group's windows, which are changed in place.
        completion: the completion of windows from the table.
        schedule: the group's schedule, which tells how far the watermark has passed.
        now_us: the current time.
        each: a function like ``map``, which may call a function for several windows at once.

    Attributes:
        incomplete: ``(sensor id, start in µs)`` of windows that a repair has to check.
        newest: the newest readings that were found in the table: an earlier job may have ended before it wrote them.
        counts: the number of windows, by the names above.
    """

    def __init__(
        self,
        aggregation: Aggregation,
        windows: GroupWindows,
        completion: Completion,
        schedule: Schedule,
        now_us: int,
        each: ForEach,
    ) -> None:
        self._windows = windows
        self._completion = completion.shortest
        self._shortest = aggregation.tiers[0].window
        self._schedule, self._now_us = schedule, now_us
        self._drained = schedule.passed_us >= END_US
        self._latest = aggregation.latest
        self._each = each
        self._held_until_s = time.monotonic() + HELD_S
        self._before_us = -NEVER_US if aggregation.before_us is None else aggregation.before_us
        self.incomplete: list[tuple[str, int]] = []
        self.newest = NewestReadings()
        self.counts: Counter[str] = Counter()

    def of_start(self, start_us: int) -> StartWindows:
        """Returns the sensors' windows with this start."""
        found = self._windows.of_tier[0].get(start_us)
        if found is None:
            late = self._windows.ends_by(0, start_us, self._schedule.closed_before_us)
            found = self._windows.of_tier[0][start_us] = StartWindows(late)
        return found

    def begin_in_time(
        self, start_us: int, window: StartWindows, received: Mapping[str, Sequence[Readings]]
    ) -> set[str]:
        """Adds windows. Returns the sensors whose readings have to wait for another firing.

        A group is held while its windows are restored. The readings that are left count as if they came a second later,
        which is possible until the window closes or the job is drained.
        """
        closes = self._windows.ends_by(0, start_us, self._schedule.closed_us)
        if closes or self._drained or not self._is_read(start_us, received):
            self.begin(start_us, window, list(received), received)
            return set()
        sensor_ids = list(received)
        began_s, begun, at_once = time.monotonic(), 0, _FIRST_SENSORS
        while at_once > 0 and begun < len(sensor_ids):
            self.begin(start_us, window, sensor_ids[begun : begun + at_once], received)
            begun, now_s = begun + at_once, time.monotonic()
            in_time = begun * (self._held_until_s - now_s) / max(now_s - began_s, 1e-6)
            at_once = min(round(in_time), MOST_SENSORS)
        return set(sensor_ids[begun:])

    def begin(
        self,
        start_us: int,
        window: StartWindows,
        sensor_ids: Sequence[str],
        received: Mapping[str, Sequence[Readings]] | None = None,
    ) -> None:
        """Adds windows of sensors, which continue from the table if it may store them. Woken ones get what it stores.

        Args:
            start_us: the windows' start.
            window: the sensors' windows with that start.
            sensor_ids: the sensors.
            received: the readings that come, by sensor.
        """
        stored = not window.late and self._is_read(start_us, received or {})
        restored = self._restored(start_us, sensor_ids, received) if stored and sensor_ids else {}
        for sensor_id in sensor_ids:
            readings = restored.get(sensor_id)
            if known := window.entries.get(sensor_id):
                if readings is not None:
                    known.accumulator.merge(readings)
                known.before.clear()
                continue
            held = stored and readings is None
            value = WindowReadings() if readings is None else readings
            window.entries[sensor_id] = SensorWindow(value=value, held=held)

    def _is_read(self, start_us: int, received: Mapping[str, Sequence[Readings]]) -> bool:
        """Returns whether the table may store open windows whose readings come now; it does if one of them is woken."""
        woken = any(not each.times for of_sensor in received.values() for each in of_sensor)
        return woken or self.may_be_stored(start_us)

    def may_be_stored(self, start_us: int) -> bool:
        """Returns whether the table may store an open window whose first readings come now."""
        return start_us < self._before_us

    @property
    def written_until_us(self) -> int:
        """The time before which windows of the shortest tier start that are closed, or may be stored."""
        ended_us = self._schedule.closed_before_us
        first_us = self._shortest.start_of(min(ended_us, LATEST_US)) if ended_us > 0 else 0
        return max(first_us, self._before_us)

    def _restored(
        self, start_us: int, sensor_ids: Sequence[str], received: Mapping[str, Sequence[Readings]] | None = None
    ) -> dict[str, WindowReadings | None]:
        """Returns all that the table stores of windows.

        None of a window if another program wrote its row. Such a window is listed, and so is one of which raw rows may
        have been collected.
        """
        completion = self._completion
        fresh = dict[str, WindowReadings]()
        if received is not None and not completion.is_certain(start_us, self._now_us):
            for sensor_id in sensor_ids:
                fresh[sensor_id] = WindowReadings()
                for _, metrics, times, values, _ in received[sensor_id]:
                    fresh[sensor_id].extend(metrics, times, values)

        def restored(sensor_id: str) -> tuple[WindowReadings | None, bool]:
            with suppress(ForeignRow):  # the window waits for a repair
                return completion.restored(sensor_id, start_us, self._now_us, fresh.get(sensor_id))
            return None, False

        found = completion.each(restored, sensor_ids, start_us, self._now_us, self._each)
        for sensor_id, (readings, certain) in found.items():
            if readings is not None:
                self.add_newest(sensor_id, readings)
                self.counts[RESTORED] += 1
            if not certain:
                self.list_incomplete(sensor_id, start_us)
        return {sensor_id: readings for sensor_id, (readings, _) in found.items()}

    def add_newest(self, sensor_id: str, found: WindowReadings) -> None:
        """Adds the newest readings that were found in the table: an earlier job may have ended before it wrote them."""
        for time_us, metric, value in () if self._latest is None else found.newest():
            self.newest.add(sensor_id, time_us, ((metric, value),))

    def list_incomplete(self, sensor_id: str, start_us: int) -> None:
        """Notes that a repair has to check a window."""
        self.counts[INCOMPLETE] += 1
        self.incomplete.append((sensor_id, start_us))
