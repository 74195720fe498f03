"""Gathers the readings of a bundle's events by sensor and window, so that these are shuffled instead of events."""

from collections.abc import Iterable, Mapping

from pipeline.core.accumulation.reading_columns import event_key, time_of_key
from pipeline.core.events.event import Event
from pipeline.core.schema.identity import BY_TIME, Identity
from pipeline.core.windows.fixed import Window

Columns = dict[tuple[str, ...], tuple[list[int], list[float]]]
"""The keys of events, as :func:`event_key` returns them, and their values event by event, by the events' metrics."""

_Newest = tuple[int, tuple[Mapping[str, str]] | list[Mapping[str, str]]]
"""The key of an event, and its metadata: that of each of its parts, in the order in which these came."""


class BundleReadings:
    """The readings of a bundle.

    Readings are kept by the metrics of their events, in the order in which these came.

    Args:
        window: the windows' length.
        identity: the rule by which the table distinguishes the events of a sensor.
        with_metadata: whether the metadata of the newest event of each sensor and window is kept too.
    """

    def __init__(self, window: Window, identity: Identity = BY_TIME, *, with_metadata: bool = False) -> None:
        self._length_us = window.length_us
        self._identity = identity
        self._with_metadata = with_metadata
        self.start()

    def start(self) -> None:
        """Drops all content. If a bundle failed, its events are delivered again."""
        self._windows: dict[tuple[str, int], Columns] = {}
        self._newest: dict[tuple[str, int], _Newest] = {}

    def add(self, events: Iterable[Event]) -> None:
        """Adds the events' readings."""
        length_us, windows, identity = self._length_us, self._windows, self._identity
        grain_us, distinguishes_by_time_only = identity.grain_us, identity.distinguishes_by_time_only
        with_metadata, newest = self._with_metadata, self._newest
        for event in events:
            time_us, readings = event[1], event[2]
            key = event[0], time_us - time_us % length_us
            of_window = windows.get(key)
            if of_window is None:
                of_window = windows[key] = {}
            metrics = tuple(readings)
            columns = of_window.get(metrics)
            if columns is None:
                columns = of_window[metrics] = [], []
            if distinguishes_by_time_only:
                identifier = time_us - time_us % grain_us
            else:
                identifier = event_key(*identity.of_event(event))
            columns[0].append(identifier)
            columns[1].extend(readings.values())
            if with_metadata:
                if key in newest:
                    newest[key] = _newer(newest[key], identifier, event[3])
                else:
                    newest[key] = identifier, (event[3],)

    def take(self) -> dict[tuple[str, int], Columns]:
        """Returns the readings by sensor id and start of the window in µs, and drops them."""
        taken = self._windows
        self.start()
        return taken


def _newer(known: _Newest, key: int, metadata: Mapping[str, str]) -> _Newest:
    if key == known[0]:
        if metadata == known[1][-1]:
            return known
        parts = [*known[1]] if isinstance(known[1], tuple) else known[1]
        parts.append(metadata)
        return key, parts
    return known if (time_of_key(key), key) < (time_of_key(known[0]), known[0]) else (key, (metadata,))
