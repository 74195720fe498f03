"""Readings gathered by sensor and window, so that what goes on is windows and no events."""

from collections.abc import Iterable
from typing import NamedTuple

from pipeline.core.accumulator import WindowReadings
from pipeline.core.events import Event
from pipeline.core.schema.identity import BY_TIME, Identity
from pipeline.core.windows import Window


class PreAggregated(NamedTuple):
    """What there is of a sensor's window.

    Attributes:
        sensor_id: whose.
        time_us: of an event among these: within the window.
        readings: of the events.
    """

    sensor_id: str
    time_us: int
    readings: WindowReadings


class BundlePreAggregator:
    """Gathers events of one length of windows.

    Args:
        window: how long they are.
        identity: what the table tells the events of a sensor apart by.
        deduplicate: whether readings are kept, so that one that comes again is known.
    """

    def __init__(self, window: Window, identity: Identity = BY_TIME, *, deduplicate: bool = True) -> None:
        self._length_us = window.length_us
        self._identity = identity
        self._deduplicate = deduplicate
        self.start()

    def start(self) -> None:
        """Begins with nothing: what a bundle that failed has gathered comes again."""
        self._gathered: dict[tuple[str, int], PreAggregated] = {}

    def add(self, events: Iterable[Event]) -> None:
        """Adds the events' readings; these must not change later."""
        length_us, gathered, identity = self._length_us, self._gathered, self._identity
        grain_us, distinguishes_by_time_only = identity.grain_us, identity.distinguishes_by_time_only
        for event in events:
            sensor_id, time_us = event[0], event[1]
            key = sensor_id, time_us - time_us % length_us
            found = gathered.get(key)
            if found is None:
                readings = WindowReadings(deduplicate=self._deduplicate)
                found = gathered[key] = PreAggregated(sensor_id, time_us, readings)
            if distinguishes_by_time_only:
                found.readings.add(time_us - time_us % grain_us, event[2])
            else:
                floored_us, apart = identity.of_event(event)
                found.readings.add(floored_us, event[2], apart)

    def take(self) -> Iterable[PreAggregated]:
        """All that was gathered since the last time."""
        taken = self._gathered.values()
        self.start()
        return taken
