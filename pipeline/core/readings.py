"""The readings of a window, each of them once: what makes a redelivered event count no more than it did.

Statistics that were counted in parts can't tell which readings two parts have in common; the readings themselves can.
So the accumulator keeps them, and however it is merged, in whatever order and how often, a reading is one.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeline.core.accumulator_bytes import Reader, events_bytes, read_events, read_stats, stats_bytes
from pipeline.core.stats import WindowStats


class Pane(NamedTuple):
    """What a window has seen so far.

    Attributes:
        stats: of all of it.
        whole: whether what the table held of it was recalled.
    """

    stats: WindowStats
    whole: bool


@dataclass(frozen=True, slots=True)
class Recalled:
    """What the table held of a window before the job saw the first of it.

    Args:
        readings: by event time.
        statistics: of other readings, which can't be told apart.
    """

    readings: Mapping[int, Mapping[str, float]]
    statistics: WindowStats | None = None


class WindowReadings:
    """What a window has seen of a sensor. The accumulator.

    A reading is told by its event's time and its metric: the first value that comes is the one that counts.

    Args:
        deduplicate: whether readings are kept, so that one that comes again is known; without it, only statistics are.
    """

    __slots__ = ("_kept", "_recalled", "_stats", "_whole")

    def __init__(self, *, deduplicate: bool = True) -> None:
        self._stats = WindowStats()  # of what was added
        self._kept: dict[int, Mapping[str, float]] | None = {} if deduplicate else None  # by event time
        self._recalled: WindowStats | None = None  # what was recalled as statistics: of other readings than were added
        self._whole = False

    def add(self, time_us: int, readings: Mapping[str, float]) -> None:
        """Adds an event's readings, metric name to finite value, as far as they are new; they must not change later."""
        if not readings:
            return  # a row of which nothing but metadata is left
        kept = self._kept
        if kept is None:
            self._stats.add(readings)
            return
        known = kept.get(time_us)
        if known is None:
            kept[time_us] = readings
            self._stats.add(readings)
        elif new := {metric: value for metric, value in readings.items() if metric not in known}:
            kept[time_us] = {**known, **new}
            self._stats.add(new, events=0)

    def recall(self, recalled: Recalled) -> None:
        """Adds what the table held: the window is whole. Readings that were added already stay one."""
        for time_us, readings in recalled.readings.items():
            self.add(time_us, readings)
        self._recall_statistics(recalled.statistics)
        self._whole = True

    def merge(self, other: "WindowReadings") -> None:
        """Adds everything that ``other`` has seen; ``other`` stays as it is."""
        if self._kept is None or other._kept is None or self._kept.keys().isdisjoint(other._kept):
            self._stats.merge(other._stats)
            if self._kept is not None and other._kept is not None:
                self._kept.update(other._kept)
        else:
            for time_us, readings in other._kept.items():
                self.add(time_us, readings)
        self._recall_statistics(other._recalled)
        self._whole |= other._whole

    def pane(self) -> Pane:
        """What the window has seen: a copy, since it goes on accumulating."""
        total = WindowStats()
        if self._recalled is not None:
            total.merge(self._recalled)
        total.merge(self._stats)
        return Pane(total, self._whole)

    def magnitudes(self) -> dict[str, float]:
        """Σ|x| of the readings that are kept, by metric: what the tolerance of a sum is measured by."""
        found: dict[str, float] = defaultdict(float)
        for readings in (self._kept or {}).values():
            for metric, value in readings.items():
                found[metric] += abs(value)
        return dict(found)

    def _recall_statistics(self, statistics: WindowStats | None) -> None:
        # They are of one aggregate row, however often it is handed on.
        if statistics is not None and (self._recalled is None or statistics.size > self._recalled.size):
            self._recalled = statistics

    def to_bytes(self) -> bytes:
        """All of it, as :mod:`pipeline.core.accumulator_bytes` has it."""
        flags = (self._kept is not None) | self._whole << 1 | (self._recalled is not None) << 2
        return b"".join(
            (
                bytes([flags]),
                stats_bytes(self._stats),
                b"" if self._recalled is None else stats_bytes(self._recalled),
                b"" if self._kept is None else events_bytes(self._kept),
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "WindowReadings":
        """What :meth:`to_bytes` wrote. Raises ValueError for bytes that end too early."""
        reader = Reader(data)
        flags = reader.byte()
        found = cls(deduplicate=bool(flags & 1))
        found._whole = bool(flags & 2)
        found._stats = read_stats(reader)
        found._recalled = read_stats(reader) if flags & 4 else None
        found._kept = read_events(reader) if flags & 1 else None
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return WindowReadings.from_bytes, (self.to_bytes(),)
