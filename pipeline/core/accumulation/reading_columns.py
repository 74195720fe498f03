"""Stores the readings of many events as columns.

Columns take a tenth of the memory of one object per event and serialize far faster. Sealed, they take a tenth again.

A sealed block keeps two to four bytes a reading, and is rarely unpacked: it has the differences between successive
numbers, since a sensor's are small, and often the same.

- Times ascend. Their differences are divided by their greatest common divisor, and the least quotient is subtracted
  from each: a constant rate leaves zeros.
- A metric's values are multiplied by a power of ten, if that makes integers that give all of them back to the last bit;
  the block keeps their differences. Otherwise, or if that is smaller, it keeps the bits in which each value differs
  from the one before.
- Differences are stored byte by byte: all lowest bytes, then all next ones. So a large difference makes the others
  hardly larger: zlib removes the zeros.

Sealing or opening a block needs numpy; everything else works without it.
"""

import struct
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from operator import lt
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.core.statistics.window_stats import WindowStats

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_EVENTS = 4096
"""The most events in a block. It bounds what a block's few bytes can unfold to."""

# Little-endian: flags, divisor of the times' differences, the least of them after that, bytes of each; for each metric
# its decimals, the bytes of a difference, its first value; [the lower halves of wide times]; the differences of the
# times and of each metric.
_HEAD = struct.Struct("<BQQB")
_METRIC = struct.Struct("<BBQ")
_DEFLATED, _OF_WIDE_TIMES = 1, 2
_BITS = 255  # instead of decimals: the values' bits
_MOST_DECIMALS = 9
_SCALES = [float(10**decimals) for decimals in range(_MOST_DECIMALS + 1)]
_SAMPLE = 16
_LOW = (1 << 64) - 1


class Sealed:
    """A block of events with the same metrics. It does not change.

    Attributes:
        metrics: the metric names.
        events: the number of events.
        first: the smallest event time in µs.
        last: the greatest event time in µs.
        data: the packed times and values.
    """

    __slots__ = ("_times", "data", "events", "first", "last", "metrics")

    def __init__(self, metrics: tuple[str, ...], events: int, first: int, last: int, data: bytes) -> None:
        self.metrics = metrics
        self.events = events
        self.first = first
        self.last = last
        self.data = data
        self._times: frozenset[int] | None = None

    @classmethod
    def of(cls, metrics: tuple[str, ...], times: Sequence[int], values: "NDArray[np.float64]") -> "Sealed":
        """Packs up to :data:`MOST_EVENTS` events."""
        return cls(metrics, len(times), times[0], times[-1], _packed(times, values))

    def times(self) -> frozenset[int]:
        """Unpacks the event times. Raises ValueError for damaged data."""
        if self._times is None:
            self._times = frozenset(_Unpacking(self).times())
        return self._times

    def by_metric(self) -> Iterator[tuple[str, list[float]]]:
        """Unpacks each metric's values. Raises ValueError for damaged data."""
        return zip(self.metrics, _Unpacking(self).values(), strict=True)

    def series(self) -> tuple[list[int], dict[str, list[float]]]:
        """Unpacks the times, and each metric's values in their order. Raises ValueError for damaged data."""
        unpacking = _Unpacking(self)
        return unpacking.times(), dict(zip(self.metrics, unpacking.values(), strict=True))

    def by_event(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Unpacks times with their readings. Raises ValueError for damaged data."""
        unpacking = _Unpacking(self)
        for time, values in zip(unpacking.times(), zip(*unpacking.values(), strict=True), strict=True):
            yield time, dict(zip(self.metrics, values, strict=True))


def seal(metrics: tuple[str, ...], times: Sequence[int], values: Sequence[float]) -> list[Sealed]:
    """Packs any number of events, in any order, with values event by event; times are distinct."""
    import numpy as np

    columns = np.asarray(values, np.float64).reshape(len(times), len(metrics))
    if not all(map(lt, times, times[1:])):
        order = sorted(range(len(times)), key=times.__getitem__)
        times, columns = [times[index] for index in order], columns[order]
    size = -(-len(times) // -(-len(times) // MOST_EVENTS))
    return [
        Sealed.of(metrics, times[begin : begin + size], np.ascontiguousarray(columns[begin : begin + size].T))
        for begin in range(0, len(times), size)
    ]


def _packed(times: Sequence[int], values: "NDArray[np.float64]") -> bytes:
    import numpy as np

    wide = times[-1] >> 63 not in (0, -1) or times[0] >> 63 not in (0, -1)
    digests = b""
    if wide:
        digests = np.array([time & _LOW for time in times], "<u8").tobytes()
        times = [time >> 64 for time in times]
    absolute = np.array(times, np.int64).view(np.uint64)
    steps = absolute[1:] - absolute[:-1]
    divisor = int(np.gcd.reduce(steps)) or 1 if len(steps) else 1
    if divisor > 1:
        steps //= np.uint64(divisor)
    least = int(steps.min()) if len(steps) else 0
    steps -= np.uint64(least)
    width = _width(steps.max(initial=0))
    heads, planes = [_HEAD.pack(0, divisor, least, width)], [_planes(steps, width)]
    for decimals, of_metric, first, differences in _differences(values):
        heads.append(_METRIC.pack(decimals, of_metric, first))
        planes.append(_planes(differences, of_metric))
    body = b"".join(planes)
    deflated = zlib.compress(body, 1)
    flags = wide * _OF_WIDE_TIMES
    if len(deflated) < len(body):
        flags, body = flags | _DEFLATED, deflated
    heads[0] = bytes([flags]) + heads[0][1:]
    return b"".join((*heads, digests, body))


def _differences(values: "NDArray[np.float64]") -> Iterator[tuple[int, int, int, "NDArray[np.uint64]"]]:
    """Yields for each metric its decimals, the bytes of a difference, the first value and the differences."""
    import numpy as np

    integers, decimals = _decimal(values)
    differences = np.diff(integers, axis=1)
    zigzag = (differences << 1) ^ (differences >> 63)  # 0, -1, 1, -2, … become 0, 1, 2, 3, …
    unsigned: NDArray[np.uint64] = zigzag.view(np.uint64)
    bits = values.view(np.uint64)
    for index, (found, greatest) in enumerate(zip(decimals, unsigned.max(axis=1, initial=0).tolist(), strict=True)):
        width = _width(greatest)
        if found == _BITS or width > 4:
            changed = bits[index, 1:] ^ bits[index, :-1]
            in_use = int(np.bitwise_or.reduce(changed)).to_bytes(8, "little")
            if found == _BITS or 8 - in_use.count(0) < width:
                yield _BITS, 8, int(bits[index, 0]), changed
                continue
        yield found, width, int(integers[index, 0]) & _LOW, unsigned[index]


def _decimal(values: "NDArray[np.float64]") -> tuple["NDArray[np.int64]", list[int]]:
    """Returns the values as integers, and by how many decimals each metric's are shifted, or :data:`_BITS`."""
    step = max(1, values.shape[1] // _SAMPLE)
    decimals = [max(map(_decimals, of_metric)) for of_metric in values[:, ::step].tolist()]
    integers, exact = _scaled(values, decimals)
    for index in [index for index, is_exact in enumerate(exact) if not is_exact]:
        if decimals[index] <= _MOST_DECIMALS:  # the sample may have missed a value with more
            decimals[index] = max(map(_decimals, values[index].tolist()))
            integers[index], exact[index] = (each[0] for each in _scaled(values[index : index + 1], [decimals[index]]))
    return integers, [found if is_exact else _BITS for found, is_exact in zip(decimals, exact, strict=True)]


def _scaled(values: "NDArray[np.float64]", decimals: list[int]) -> tuple["NDArray[np.int64]", list[bool]]:
    """Returns integers, and for each metric whether they give back its values to the last bit."""
    import numpy as np

    scales = np.array([[_SCALES[min(found, _MOST_DECIMALS)]] for found in decimals])
    with np.errstate(over="ignore", invalid="ignore"):
        integers = np.rint(values * scales).astype(np.int64)
    exact = (integers / scales).view(np.int64) == values.view(np.int64)
    return integers, exact.all(axis=1).tolist()


def _decimals(value: float) -> int:
    """Returns how many decimals the shortest text of a value has."""
    digits, _, exponent = repr(value).partition("e")
    return max(0, len(digits.partition(".")[2].removesuffix("0")) - int(exponent or 0))


def _width(greatest: Any) -> int:
    return (int(greatest).bit_length() + 7) // 8


def _planes(numbers: "NDArray[np.uint64]", width: int) -> bytes:
    """Returns the lowest bytes of all numbers, then their next ones."""
    import numpy as np

    return numbers.astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)[:, :width].T.tobytes()


class _Unpacking:
    """Unpacks a block's data."""

    def __init__(self, sealed: Sealed) -> None:
        self._sealed = sealed
        events, width, data = sealed.events, len(sealed.metrics), sealed.data
        heads = _HEAD.size + _METRIC.size * width
        _check(1 <= events <= MOST_EVENTS and len(data) >= heads)
        self._flags, self._divisor, self._least, self._width = _HEAD.unpack_from(data)
        self._metrics = list(_METRIC.iter_unpack(data[_HEAD.size : heads]))
        body = heads + (8 * events if self._flags & _OF_WIDE_TIMES else 0)
        self._digests, self._body = data[heads:body], data[body:]
        widths = [self._width, *(of_metric for _, of_metric, _ in self._metrics)]
        size = (events - 1) * sum(widths)
        _check(max(widths) <= 8 and len(self._digests) >= body - heads)
        if self._flags & _DEFLATED:
            self._body = _inflated(self._body, size)
        _check(len(self._body) == size)

    def times(self) -> list[int]:
        import numpy as np

        sealed = self._sealed
        wide = self._flags & _OF_WIDE_TIMES
        steps = np.empty(sealed.events, np.uint64)
        steps[0] = (sealed.first >> 64 if wide else sealed.first) & _LOW
        steps[1:] = (self._numbers(0, self._width) + np.uint64(self._least)) * np.uint64(self._divisor)
        times: list[int] = np.cumsum(steps).view(np.int64).tolist()
        if wide:
            low = np.frombuffer(self._digests, "<u8").tolist()
            times = [time << 64 | digest for time, digest in zip(times, low, strict=True)]
        _check(times[0] == sealed.first and times[-1] == sealed.last)
        return times

    def values(self) -> Iterator[list[float]]:
        """Yields each metric's values."""
        begin = self._width
        for decimals, width, first in self._metrics:
            yield self._column(decimals, first, self._numbers(begin, width))
            begin += width

    def _column(self, decimals: int, first: int, differences: "NDArray[np.uint64]") -> list[float]:
        import numpy as np

        numbers = np.empty(self._sealed.events, np.uint64)
        numbers[0] = first
        numbers[1:] = differences
        if decimals == _BITS:
            bits: NDArray[np.uint64] = np.bitwise_xor.accumulate(numbers)
            return list(bits.view(np.float64).tolist())
        _check(decimals <= _MOST_DECIMALS)
        signed = numbers.view(np.int64)
        signed[1:] = (differences >> np.uint64(1)).view(np.int64) ^ -(differences & np.uint64(1)).view(np.int64)
        return list((np.cumsum(signed) / _SCALES[decimals]).tolist())

    def _numbers(self, begin: int, width: int) -> "NDArray[np.uint64]":
        """Returns the differences whose lowest bytes follow ``begin`` others."""
        import numpy as np

        count = self._sealed.events - 1
        padded = np.zeros((count, 8), np.uint8)
        planes = np.frombuffer(self._body, np.uint8, count * width, begin * count)
        padded[:, :width] = planes.reshape(width, count).T
        return padded.view("<u8").reshape(count).astype(np.uint64, copy=False)


def _inflated(data: bytes, size: int) -> bytes:
    inflating = zlib.decompressobj()
    try:
        found = inflating.decompress(data, size + 1)  # no more, whatever the data claims
    except zlib.error as error:
        raise ValueError(f"a block of readings is damaged: {error}") from None
    _check(inflating.eof and not inflating.unused_data)
    return found


def _check(right: bool) -> None:
    if not right:
        raise ValueError("a block of readings is damaged")


_LONG_END = 1 << 63
FEW = 4
"""Below this many events, counting them one by one and serializing them as they are is faster."""

Columns = dict[tuple[str, ...], tuple[list[int], list[float]]]
"""The keys of events, as :func:`event_key` returns them, and their values event by event, by the events' metrics."""


def newest_first(columns: Columns) -> Columns:
    """Returns columns in the order of their newest events, so that sums are the same however rows came."""
    return dict(sorted(columns.items(), key=lambda each: -each[1][0][0]))


class Block(NamedTuple):
    """Events with the same metrics."""

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
    """The columns of events with the same metrics."""

    times: list[int]
    values: array  # of doubles


class ReadingColumns:
    """Readings by event time and metric, each stored once, in one group of columns for each set of metrics.

    A time is in several groups if the event's metrics arrived in parts. Times may be wide: any number below 2¹²⁶.

    :meth:`seal` packs large groups. A sealed block is unpacked only to look for times between its first and its last.

    Attributes:
        first: the smallest time in a group.
        last: the greatest time in a group.
        groups: the columns, by their sorted metric names.
        sealed: the packed blocks.
    """

    __slots__ = ("_index", "first", "groups", "last", "sealed")

    def __init__(self) -> None:
        self.first = self.last = 0
        self.groups: dict[tuple[str, ...], ColumnGroup] = {}
        self.sealed: list[Sealed] = []
        self._index: dict[int, tuple[str, ...]] | None = None  # metrics by time, built on demand

    def __bool__(self) -> bool:
        """Whether this has any readings."""
        return bool(self.groups or self.sealed)

    def known(self, times_us: Collection[int]) -> dict[int, tuple[str, ...]]:
        """Returns the metrics stored for each of the times; times without any are left out."""
        first_us, last_us = min(times_us), max(times_us)
        found: dict[int, tuple[str, ...]] = {}
        if self._range_overlaps(first_us, last_us):
            index = self._indexed()
            found = {time_us: index[time_us] for time_us in index.keys() & times_us}
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
            for index, time_us in enumerate(times):
                if time_us in wanted:
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
            for index, time_us in enumerate(times):
                for metric, value in changed.get(time_us, {}).items():
                    if metric in metrics:
                        values[index * len(metrics) + metrics.index(metric)] = value

    def _sealed_with(self, times_us: Collection[int]) -> list[Sealed]:
        first_us, last_us = min(times_us), max(times_us)
        overlapping = (block for block in self.sealed if first_us <= block.last and last_us >= block.first)
        return [block for block in overlapping if not block.times().isdisjoint(times_us)]

    def overlaps(self, other: "ReadingColumns") -> bool:
        """Returns whether both contain the same time."""
        groups = other.groups.values() if self._may_contain(other.first, other.last) else ()
        return any(self.known(group.times) for group in groups) or any(
            self._may_contain(block.first, block.last) and self.known(block.times()) for block in other.sealed
        )

    def extend(self, block: Block) -> None:
        """Adds a block. None of its readings may be stored yet."""
        block = block.in_order()
        self._extend(block.metrics, block.times_us, array("d", block.values))

    def merge(self, other: "ReadingColumns") -> None:
        """Adds all readings of ``other``, which must not overlap and stays unchanged."""
        self.sealed += other.sealed
        for metrics, group in other.groups.items():
            self._extend(metrics, *group)

    def seal(self, least: int) -> None:
        """Packs the groups of at least ``least`` events."""
        large = [metrics for metrics, group in self.groups.items() if len(group.times) >= least]
        if not large:
            return
        for metrics in large:
            group = self.groups.pop(metrics)
            self.sealed += seal(metrics, *group)
        self._index = None
        self.first = min([min(group.times) for group in self.groups.values()], default=0)
        self.last = max([max(group.times) for group in self.groups.values()], default=0)

    def events(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Yields times in µs with their readings. A time in several groups is yielded once for each."""
        for block in self.sealed:
            yield from block.by_event()
        for metrics, (times, values) in self.groups.items():
            each = iter(values)
            for time_us, of_event in zip(times, zip(*[each] * len(metrics), strict=True), strict=True):
                yield time_us, dict(zip(metrics, of_event, strict=True))

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
            yield times, {metric: values[index :: len(metrics)] for index, metric in enumerate(metrics)}

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
        return self._range_overlaps(first_us, last_us) or any(
            first_us <= block.last and last_us >= block.first for block in self.sealed
        )

    def _range_overlaps(self, first: int, last: int) -> bool:
        # Parts of a window that arrive in order of time need no other check.
        return bool(self.groups) and first <= self.last and last >= self.first

    def _extend(self, metrics: tuple[str, ...], times: list[int], values: array) -> None:
        first, last = min(times), max(times)
        self.first = min(self.first, first) if self.groups else first
        self.last = max(self.last, last) if self.groups else last
        group = self.groups.get(metrics)
        if group is None:
            self.groups[metrics] = ColumnGroup(times[:], values[:])
        else:
            group.times.extend(times)
            group.values.extend(values)
        if self._index is not None:
            _add_to_index(self._index, metrics, times)

    def _indexed(self) -> dict[int, tuple[str, ...]]:
        if self._index is None:
            self._index = {}
            for metrics, group in self.groups.items():
                _add_to_index(self._index, metrics, group.times)
        return self._index


def count_events(events: Mapping[int, Mapping[str, float]], stats: WindowStats, kept: ReadingColumns) -> None:
    """Counts new events and keeps their readings."""
    few = len(events) < FEW
    if few:
        for readings in events.values():
            stats.add(readings)
    for block in blocks(events):
        if not few:
            stats.extend(block.by_metric(), len(block.times_us))
        kept.extend(block)


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
