"""Stores the readings of many events as columns.

Columns take a tenth of the memory of one object per event and serialize far faster. Sealed, they take a tenth again.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableSequence, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from typing import NamedTuple

from pipeline.core.accumulation.packed_block import Sealed, seal
from pipeline.core.statistics.window_stats import WindowStats

_HOUR_US = 3_600_000_000
# How times are stored: as array type codes of four bytes (enough for an hour) and eight bytes, or as a list of integers
# that are serialized in sixteen bytes.
SHORT, LONG, WIDE = "I", "q", "wide"
_SHORT_END, _LONG_END = 1 << 32, 1 << 63
FEW = 4
"""Below this many events, counting them one by one and serializing them as they are is faster."""


class Block(NamedTuple):
    """Events with the same metrics.

    Attributes:
        metrics: the metric names.
        times_us: the event times.
        values: event by event, in the order of the names.
    """

    metrics: tuple[str, ...]
    times_us: list[int]
    values: list[float]

    def by_metric(self) -> Iterator[tuple[str, Sequence[float]]]:
        """Yields each metric with its values."""
        width = len(self.metrics)
        for index, metric in enumerate(self.metrics):
            yield metric, self.values[index::width]

    def in_order(self) -> "Block":
        """Returns the block with its metrics sorted by name."""
        metrics = tuple(sorted(self.metrics))
        if metrics == self.metrics:
            return self
        width = len(metrics)
        values = self.values.copy()
        for index, metric in enumerate(self.metrics):
            values[metrics.index(metric) :: width] = self.values[index::width]
        return Block(metrics, self.times_us, values)


def blocks(events: Mapping[int, Mapping[str, float]]) -> Iterator[Block]:
    """Groups readings by event time into blocks of events that have the same metrics in the same order."""
    by_metrics: dict[tuple[str, ...], tuple[list[int], list[float]]] = {}
    latest: tuple[str, ...] = ()
    for time_us, readings in events.items():
        metrics = tuple(readings)
        if metrics != latest:
            latest = metrics
            times_us, values = by_metrics.setdefault(metrics, ([], []))
        times_us.append(time_us)
        values += readings.values()
    for metrics, (times_us, values) in by_metrics.items():
        yield Block(metrics, times_us, values)


class ColumnGroup(NamedTuple):
    """The columns of events with the same metrics.

    Attributes:
        times: the event times in µs after the base: an array, or a list if they are wide.
        values: event by event, in the order of the metric names.
    """

    times: MutableSequence[int]
    values: array  # of doubles


class ReadingColumns:
    """Readings by event time and metric, each stored once, in one group of columns for each set of metrics.

    A time is in several groups if the event's metrics arrived in parts. Times may be wide: any number below 2¹²⁶.

    :meth:`seal` packs large groups. A sealed block is unpacked only to look for times between its first and its last.

    Attributes:
        base_us: the hour of the first event added. Times in groups are relative to it, so those of an hour are short.
        first: the smallest time in a group.
        last: the greatest time in a group.
        time_type: the form of times in groups: :data:`SHORT`, :data:`LONG` or :data:`WIDE`.
        groups: the columns, by their sorted metric names.
        sealed: the packed blocks.
    """

    __slots__ = ("_index", "base_us", "first", "groups", "last", "sealed", "time_type")

    def __init__(self) -> None:
        self.base_us = self.first = self.last = 0
        self.time_type = SHORT
        self.groups: dict[tuple[str, ...], ColumnGroup] = {}
        self.sealed: list[Sealed] = []
        self._index: dict[int, tuple[str, ...]] | None = None  # metrics by time, built on demand

    def __bool__(self) -> bool:
        """Whether this has any readings."""
        return bool(self.groups or self.sealed)

    def known(self, times_us: Collection[int]) -> dict[int, tuple[str, ...]]:
        """Returns the metrics stored for each of the times; times without any are left out."""
        base_us = self.base_us
        first_us, last_us = min(times_us), max(times_us)
        found: dict[int, tuple[str, ...]] = {}
        if self._range_overlaps(first_us - base_us, last_us - base_us):
            index = self._indexed()
            found = {base_us + time: index[time] for time in index.keys() & [time_us - base_us for time_us in times_us]}
        overlapping = [block for block in self.sealed if first_us <= block.last and last_us >= block.first]
        if overlapping:
            ordered = sorted(times_us)
            for block in overlapping:
                inside = ordered[bisect_left(ordered, block.first) : bisect_right(ordered, block.last)]
                if inside:
                    _add_to_index(found, block.metrics, block.times().intersection(inside))
        return found

    def readings_at(self, times_us: Collection[int]) -> dict[int, dict[str, float]]:
        """Returns the readings stored for each of the times; times without any are left out."""
        wanted, found = set(times_us), dict[int, dict[str, float]]()
        for block in self._sealed_with(wanted):
            for time_us, readings in block.by_event():
                if time_us in wanted:
                    found.setdefault(time_us, {}).update(readings)
        for metrics, (times, values) in self.groups.items():
            for index, time in enumerate(times):
                if (time_us := self.base_us + time) in wanted:
                    of_event = values[index * len(metrics) : (index + 1) * len(metrics)]
                    found.setdefault(time_us, {}).update(zip(metrics, of_event, strict=True))
        return found

    def replace(self, changed: Mapping[int, Mapping[str, float]]) -> None:
        """Replaces the values of readings that are stored, by event time."""
        for block in self._sealed_with(changed):
            self.sealed.remove(block)
            times_us, of_metrics = block.series()
            of_events = chain.from_iterable(zip(*of_metrics.values(), strict=True))
            self.extend(Block(block.metrics, times_us, list(of_events)))
        for metrics, (times, values) in self.groups.items():
            for index, time in enumerate(times):
                for metric, value in changed.get(self.base_us + time, {}).items():
                    if metric in metrics:
                        values[index * len(metrics) + metrics.index(metric)] = value

    def _sealed_with(self, times_us: Collection[int]) -> list[Sealed]:
        first_us, last_us = min(times_us), max(times_us)
        overlapping = (block for block in self.sealed if first_us <= block.last and last_us >= block.first)
        return [block for block in overlapping if not block.times().isdisjoint(times_us)]

    def overlaps(self, other: "ReadingColumns") -> bool:
        """Returns whether both contain the same time."""
        base_us = other.base_us
        if other.groups and self._may_contain(base_us + other.first, base_us + other.last):
            for group in other.groups.values():
                if self.known(_shifted(group.times, base_us)):
                    return True
        return any(self._may_contain(block.first, block.last) and self.known(block.times()) for block in other.sealed)

    def extend(self, block: Block) -> None:
        """Adds a block. None of its readings may be stored yet."""
        if not self.groups:
            first_us = block.times_us[0]
            self.base_us = first_us - first_us % _HOUR_US if first_us < _LONG_END else 0
        base_us = self.base_us
        times = [time_us - base_us for time_us in block.times_us]
        self._extend_range(min(times), max(times))
        block = block.in_order()
        self._extend(block.metrics, times, array("d", block.values))

    def merge(self, other: "ReadingColumns") -> None:
        """Adds all readings of ``other``, which must not overlap and stays unchanged."""
        self.sealed += other.sealed
        if not other.groups:
            return
        if not self.groups:
            self.base_us = other.base_us
        offset = other.base_us - self.base_us
        self._extend_range(other.first + offset, other.last + offset)
        for metrics, group in other.groups.items():
            self._extend(metrics, _shifted(group.times, offset), group.values)

    def seal(self, least: int) -> None:
        """Packs the groups of at least so many events."""
        large = [metrics for metrics, group in self.groups.items() if len(group.times) >= least]
        if not large:
            return
        for metrics in large:
            group = self.groups.pop(metrics)
            self.sealed += seal(metrics, _shifted(group.times, self.base_us), group.values)
        self._index = None
        if self.groups:
            self.first = min(min(group.times) for group in self.groups.values())
            self.last = max(max(group.times) for group in self.groups.values())
        else:
            self.base_us = self.first = self.last = 0
            self.time_type = SHORT

    def events(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Yields times in µs with their readings. A time in several groups is yielded once for each."""
        for block in self.sealed:
            yield from block.by_event()
        for metrics, (times, values) in self.groups.items():
            each = iter(values)
            for time, of_event in zip(times, zip(*[each] * len(metrics), strict=True), strict=True):
                yield self.base_us + time, dict(zip(metrics, of_event, strict=True))

    def by_metric(self) -> Iterator[tuple[str, Sequence[float]]]:
        """Yields metrics with their values. A metric in several groups is yielded once for each."""
        for block in self.sealed:
            yield from block.by_metric()
        for metrics, group in self.groups.items():
            for index, metric in enumerate(metrics):
                yield metric, group.values[index :: len(metrics)]

    def series(self) -> Iterator[tuple[Sequence[int], Mapping[str, Sequence[float]]]]:
        """Yields times in µs, which may be wide, with each metric's values at these times."""
        for block in self.sealed:
            yield block.series()
        for metrics, (times, values) in self.groups.items():
            of_metrics = {metric: values[index :: len(metrics)] for index, metric in enumerate(metrics)}
            yield _shifted(times, self.base_us), of_metrics

    def newest(self) -> Iterator[tuple[int, str, float]]:
        """Yields each group's newest readings: the event time in µs, the metric and the value."""
        for times_us, values in self.series():
            newest = newest_of(times_us)
            index = times_us.index(newest)
            for metric, of_metric in values.items():
                yield time_of_key(newest), metric, of_metric[index]

    def newest_us(self, *more: Sequence[int]) -> int:
        """Returns the time of the newest event, here or among other keys; 0 without any."""
        keys = [*more, *(times for times, _ in self.series())]
        return max((time_of_key(newest_of(each)) for each in keys if each), default=0)

    def _may_contain(self, first_us: int, last_us: int) -> bool:
        return self._range_overlaps(first_us - self.base_us, last_us - self.base_us) or any(
            first_us <= block.last and last_us >= block.first for block in self.sealed
        )

    def _range_overlaps(self, first: int, last: int) -> bool:
        # Parts of a window that arrive in order of time need no other check.
        return bool(self.groups) and first <= self.last and last >= self.first

    def _extend_range(self, first: int, last: int) -> None:
        self.first = min(self.first, first) if self.groups else first
        self.last = max(self.last, last) if self.groups else last
        if self.time_type == SHORT and (self.first < 0 or self.last >= _SHORT_END):
            self._widen(LONG)
        if self.time_type == LONG and (self.first < -_LONG_END or self.last >= _LONG_END):
            self._widen(WIDE)

    def _widen(self, time_type: str) -> None:
        self.time_type = time_type
        for metrics, (times, values) in self.groups.items():
            self.groups[metrics] = ColumnGroup(_times_column(time_type, times), values)

    def _extend(self, metrics: tuple[str, ...], times: Sequence[int], values: array) -> None:
        more = _times_column(self.time_type, times)
        group = self.groups.get(metrics)
        if group is None:
            self.groups[metrics] = ColumnGroup(more, values[:])
        else:
            group.times.extend(more)
            group.values.extend(values)
        if self._index is not None:
            _add_to_index(self._index, metrics, times)

    def _indexed(self) -> dict[int, tuple[str, ...]]:
        if self._index is None:
            self._index = {}
            for metrics, group in self.groups.items():
                _add_to_index(self._index, metrics, group.times)
        return self._index


def count_events(
    events: Mapping[int, Mapping[str, float]], stats: WindowStats, kept: ReadingColumns | None = None
) -> None:
    """Counts new events and, if ``kept`` is given, keeps their readings."""
    few = len(events) < FEW
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


def _times_column(time_type: str, times: Iterable[int]) -> MutableSequence[int]:
    return list(times) if time_type == WIDE else array(time_type, times)


def is_wide(time_us: int) -> bool:
    """Returns whether a time does not fit in eight bytes."""
    return time_us >= _LONG_END


def event_key(time_us: int, discriminator: str) -> int:
    """Returns what identifies an event of a sensor: its time, or a wide time if more than the time distinguishes it."""
    return time_us << 64 | _digest(discriminator) if discriminator else time_us


def time_of_key(key: int) -> int:
    """Returns the event time in µs of what :func:`event_key` returned."""
    return key >> 64 or key


def newest_of(keys: Sequence[int]) -> int:
    """Returns the key of the newest event. Keys are as :func:`event_key` returns them."""
    newest = max(keys)
    return max(keys, key=time_of_key) if is_wide(newest) else newest


@lru_cache(maxsize=1024)  # metadata rarely changes
def _digest(discriminator: str) -> int:
    return int.from_bytes(blake2b(discriminator.encode(), digest_size=8).digest(), "little")


def _add_to_index(index: dict[int, tuple[str, ...]], metrics: tuple[str, ...], times: Collection[int]) -> None:
    if index.keys().isdisjoint(times):
        index.update(dict.fromkeys(times, metrics))
    else:
        for time in times:
            index[time] = index.get(time, ()) + metrics


def _shifted(times: Sequence[int], offset: int) -> Sequence[int]:
    return [time + offset for time in times] if offset else times
