"""The readings of a window, each of them once: what makes a redelivered event count no more than it did.

Statistics that were counted in parts can't tell which readings two parts have in common; the readings themselves can.
So the accumulator keeps them, and however it is merged, in whatever order and how often, a reading is one.

An event is told by its time, and where more tells it apart, by a wide time: the time, and 64 bits of a digest of that.

What comes is put aside, and counted and told apart from what is kept when somebody looks: many at once are far cheaper.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

from pipeline.core.accumulator_bytes import (
    FORM,
    Reader,
    columns_bytes,
    events_bytes,
    flags_byte,
    read_columns,
    read_events,
    read_stats,
    stats_bytes,
)
from pipeline.core.columns import ReadingColumns, blocks, is_wide
from pipeline.core.stats import WindowStats

MOST_METRICS = 10_000
"""Of a window, by their distinct names. Six cells for each make a row of some 10 MB; without a bound, events that bring
new names again and again would make one that Bigtable never takes."""

_MOST_FRESH = 1000  # readings that nobody tells apart, before they are counted
_TOO_WIDE = 8  # columns, and no readings that are kept: what no other has
_FEW = 4  # events: fewer are counted faster one by one, and handed on faster as they are


class Pane(NamedTuple):
    """What a window has seen so far.

    One with more than :data:`MOST_METRICS` metrics has nothing else to tell.

    Attributes:
        stats: of all of it.
        whole: whether what the table held of it was recalled, and nothing of that is missing.
        too_wide: whether it has too many metrics to be told.
    """

    stats: WindowStats
    whole: bool
    too_wide: bool = False


class WindowReadings:
    """What a window has seen of a sensor. The accumulator.

    A reading is told by its event and its metric: the first value that comes is the one that counts. For one
    thread at a time, also where it is only looked at: that may count what was put aside.

    Args:
        deduplicate: whether readings are kept, so that one that comes again is known; without it, only statistics are.
    """

    __slots__ = ("_fresh", "_kept", "_least", "_restored", "_stats", "_too_wide", "_whole")

    def __init__(self, *, deduplicate: bool = True) -> None:
        # What was added and is not counted yet: by time, or just numbered, where nobody tells readings apart.
        self._fresh: dict[int, Mapping[str, float]] = {}
        self._stats = WindowStats()  # of what was counted
        self._kept = ReadingColumns() if deduplicate else None  # the readings of that
        self._restored: WindowStats | None = None  # what was recalled as statistics: of other readings than were added
        self._least: WindowStats | None = None  # what the aggregate row counted when it was recalled
        self._whole = False
        self._too_wide = False

    def add(self, time_us: int, readings: Mapping[str, float], apart: str = "") -> None:
        """Adds an event's readings as far as they are new.

        Args:
            time_us: when it was.
            readings: metric name to finite value; they must not change later.
            apart: what besides the time tells the event from others; "" where nothing does.
        """
        if not readings:
            return  # a row of which nothing but metadata is left
        fresh = self._fresh
        if self._kept is None:
            fresh[len(fresh)] = readings
            if len(fresh) == _MOST_FRESH:
                self._count()
        else:
            if apart:
                time_us = time_us << 64 | _digest(apart)
            first = fresh.setdefault(time_us, readings)
            if first is not readings:
                fresh[time_us] = {**readings, **first}

    def restore(self, restored: "RestoredReadings") -> None:
        """Adds what the table held. Readings that were added already stay one."""
        if restored.readings is not None:
            self.merge(restored.readings)
        self._restored = _larger(self._restored, restored.statistics)
        self._least = _larger(self._least, restored.least)
        self._whole = True

    def merge(self, other: "WindowReadings") -> None:
        """Adds everything that ``other`` has seen; ``other`` stays as it is.

        Raises:
            ValueError: one keeps readings and the other does not.
        """
        if self._too_wide or other._too_wide:
            self._give_up()
            return
        if (self._kept is None) != (other._kept is None):
            raise ValueError("accumulators with and without de-duplication can't be merged")
        if self._kept is None or other._kept is None:
            self._stats.merge(other._stats)
            _take(other._fresh, self._stats)
        else:
            if other._kept.groups:
                self._merge_kept(self._kept, other._kept, other._stats)
            for time_us, readings in other._fresh.items():
                self.add(time_us, readings)
        # They are of one aggregate row, however often it is handed on.
        self._restored = _larger(self._restored, other._restored)
        self._least = _larger(self._least, other._least)
        self._whole |= other._whole
        self._bound()

    def pane(self) -> Pane:
        """What the window has seen: a copy, since it goes on accumulating."""
        self._settle()
        if self._too_wide:
            return Pane(WindowStats(), whole=False, too_wide=True)
        total = WindowStats()
        if self._restored is not None:
            total.merge(self._restored)
        total.merge(self._stats)
        for readings in self._fresh.values():
            total.add(readings)
        if len(total.metrics) > MOST_METRICS:
            return Pane(WindowStats(), whole=False, too_wide=True)
        return Pane(total, self._whole and (self._least is None or covers(total, self._least)))

    def magnitudes(self) -> dict[str, float]:
        """Σ|x| of the readings that are kept, by metric: what the tolerance of a sum is measured by."""
        self._settle()
        found: dict[str, float] = defaultdict(float)
        if self._kept is not None:
            for metric, values in self._kept.by_metric():
                found[metric] += sum(map(abs, values))
            for readings in self._fresh.values():
                for metric, value in readings.items():
                    found[metric] += abs(value)
        return dict(found)

    def without(self, other: "WindowReadings") -> "WindowReadings":
        """The readings that are kept here and not in ``other``."""
        known = other._by_time()
        rest = WindowReadings()
        for time_us, readings in self._by_time().items():
            of_other = known.get(time_us, {})
            rest.add(time_us, {metric: value for metric, value in readings.items() if metric not in of_other})
        return rest

    def _by_time(self) -> dict[int, Mapping[str, float]]:
        found: dict[int, Mapping[str, float]] = {}
        for events in (self._kept.events() if self._kept is not None else (), self._fresh.items()):
            for time_us, readings in events:
                found[time_us] = {**readings, **found.get(time_us, {})}
        return found

    def _settle(self) -> None:
        """Counts what is fresh, but for a few events alone."""
        if self._kept is None or self._kept.groups or len(self._fresh) >= _FEW:
            self._count()

    def _count(self) -> None:
        """Counts what is fresh, as far as it is new beside what is kept."""
        if not self._fresh:
            return
        fresh, self._fresh = self._fresh, {}
        if self._too_wide:
            return
        if self._kept is None:
            _take(fresh, self._stats)
            self._bound()
            return
        more: dict[int, Mapping[str, float]] = {}  # readings of events that are counted already
        for time_us, metrics in self._kept.known(fresh).items():
            readings = fresh.pop(time_us)
            if new := {metric: value for metric, value in readings.items() if metric not in metrics}:
                more[time_us] = new
        _take(more, self._stats, self._kept)
        self._stats.events -= len(more)
        _take(fresh, self._stats, self._kept)
        self._bound()

    def _bound(self) -> None:
        if len(self._stats.metrics) > MOST_METRICS:
            self._give_up()

    def _give_up(self) -> None:
        """Forgets everything: what accumulates has to end somewhere."""
        self._fresh, self._stats = {}, WindowStats()
        self._kept = None if self._kept is None else ReadingColumns()
        self._restored = self._least = None
        self._whole, self._too_wide = False, True

    def _merge_kept(self, kept: ReadingColumns, other: ReadingColumns, stats: WindowStats) -> None:
        self._count()  # what is here already comes first
        if kept.overlaps(other):
            for time_us, readings in other.events():
                self.add(time_us, readings)
        else:
            kept.merge(other)
            self._stats.merge(stats)

    def to_bytes(self) -> bytes:
        """All of it, as :mod:`pipeline.core.accumulator_bytes` has it."""
        self._settle()
        if self._too_wide:
            return flags_byte(_TOO_WIDE)
        columns = self._kept if self._kept is not None and self._kept.groups else None
        wide = any(map(is_wide, self._fresh))
        flags = (
            (self._kept is not None)
            | self._whole << 1
            | (self._restored is not None) << 2
            | (columns is not None) << 3
            | bool(self._fresh) << 4
            | wide << 5
            | (self._least is not None) << 6
        )
        return b"".join(
            (
                flags_byte(flags),
                stats_bytes(self._stats),
                b"" if self._restored is None else stats_bytes(self._restored),
                b"" if self._least is None else stats_bytes(self._least),
                b"" if columns is None else columns_bytes(columns, self._stats.metrics),
                events_bytes(self._fresh, wide=wide) if self._fresh else b"",
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "WindowReadings":
        """What :meth:`to_bytes` wrote. Raises ValueError for other bytes, as another release may have written."""
        reader = Reader(data)
        flags = reader.flags()
        found = cls(deduplicate=bool(flags & 1))
        if flags & ~FORM == _TOO_WIDE:
            found._too_wide = True
            reader.end()
            return found
        found._whole = bool(flags & 2)
        found._stats = read_stats(reader)
        if flags & 4:
            found._restored = read_stats(reader)
        if flags & 64:
            found._least = read_stats(reader)
        if flags & 8:
            found._kept = read_columns(reader, found._stats.metrics)
        if flags & 16:
            found._fresh = read_events(reader, wide=bool(flags & 32))
        reader.end()
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return WindowReadings.from_bytes, (self.to_bytes(),)


@dataclass(frozen=True, slots=True)
class RestoredReadings:
    """What the table held of a window before the job saw the first of it.

    Args:
        readings: of raw rows.
        statistics: of other readings, which can't be told apart.
        least: what the aggregate row counts: no pane that counts less may replace it.
    """

    readings: WindowReadings | None = None
    statistics: WindowStats | None = None
    least: WindowStats | None = None


def at_least(parts: Iterable[WindowStats], row: WindowStats) -> bool:
    """Whether these together count at least as many events, and of every metric as many readings, as ``row`` does."""
    parts = list(parts)
    return sum(stats.events for stats in parts) >= row.events and all(
        sum(stats.metrics[metric].count for stats in parts if metric in stats.metrics) >= of_metric.count
        for metric, of_metric in row.metrics.items()
    )


def covers(stats: WindowStats, row: WindowStats) -> bool:
    """Whether these may be of all that the row counts: they count as much, and reach from its minima to its maxima."""
    return at_least([stats], row) and all(
        stats.metrics[metric].minimum <= of_metric.minimum and stats.metrics[metric].maximum >= of_metric.maximum
        for metric, of_metric in row.metrics.items()
    )


def _larger(one: WindowStats | None, other: WindowStats | None) -> WindowStats | None:
    """The one that counts more."""
    if one is None or other is None:
        return one or other
    return other if other.size > one.size else one


@lru_cache(maxsize=1024)  # metadata is mostly the same
def _digest(apart: str) -> int:
    return int.from_bytes(blake2b(apart.encode(), digest_size=8).digest(), "little")


def _take(events: Mapping[int, Mapping[str, float]], stats: WindowStats, kept: ReadingColumns | None = None) -> None:
    """Counts readings that are new, and keeps them."""
    few = len(events) < _FEW
    if few:
        for readings in events.values():
            stats.add(readings)
    if few and kept is None:
        return
    for block in blocks(events):
        if not few:
            stats.extend(block.by_metric(), len(block.times_us))
        if kept is not None:
            kept.extend(block)
