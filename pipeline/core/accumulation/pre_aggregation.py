"""Accumulates a bundle's events by sensor and window, so that accumulators are shuffled instead of events."""

from collections.abc import Iterable
from typing import NamedTuple

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.events.event import Event
from pipeline.core.schema.identity import BY_TIME, Identity
from pipeline.core.windows.fixed import Window


class PreAggregated(NamedTuple):
    """The part of a sensor's window that a bundle contains.

    Attributes:
        sensor_id: the sensor.
        time_us: the time of one of the events, which lies within the window.
        readings: the events' readings.
    """

    sensor_id: str
    time_us: int
    readings: WindowReadings


class BundlePreAggregator:
    """Accumulates events in windows of one length.

    Args:
        window: the windows' length.
        identity: what identifies an event of a sensor in the table.
        deduplicate: whether to keep readings to recognize redelivered ones.
    """

    def __init__(self, window: Window, identity: Identity = BY_TIME, *, deduplicate: bool = True) -> None:
        self._length_us = window.length_us
        self._identity = identity
        self._deduplicate = deduplicate
        self.start()

    def start(self) -> None:
        """Drops all content. If a bundle failed, its events are delivered again."""
        self._windows: dict[tuple[str, int], PreAggregated] = {}

    def add(self, events: Iterable[Event]) -> None:
        """Adds the events' readings; these must not change later."""
        length_us, windows, identity = self._length_us, self._windows, self._identity
        grain_us, distinguishes_by_time_only = identity.grain_us, identity.distinguishes_by_time_only
        for event in events:
            sensor_id, time_us = event[0], event[1]
            key = sensor_id, time_us - time_us % length_us
            found = windows.get(key)
            if found is None:
                readings = WindowReadings(deduplicate=self._deduplicate)
                found = windows[key] = PreAggregated(sensor_id, time_us, readings)
            if distinguishes_by_time_only:
                found.readings.add(time_us - time_us % grain_us, event[2])
            else:
                floored_us, discriminator = identity.of_event(event)
                found.readings.add(floored_us, event[2], discriminator)

    def take(self) -> Iterable[PreAggregated]:
        """Returns the content and drops it."""
        taken = self._windows.values()
        self.start()
        return taken
