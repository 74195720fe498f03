"""Packs the readings of many events into a block of two to four bytes a reading, which is rarely unpacked.

A block keeps the differences between successive numbers: a sensor's are small, and often the same.

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
from collections.abc import Iterator, Sequence
from operator import lt
from typing import TYPE_CHECKING, Any

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
_DEFLATED, _WIDE = 1, 2
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
        """Packs up to :data:`MOST_EVENTS` events.

        Args:
            metrics: the metric names.
            times: the event times in ascending order; below 2¹²⁶.
            values: the values of all events, metric by metric.
        """
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
    flags = wide * _WIDE
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
    integers, exact = _shifted(values, decimals)
    for index in [index for index, is_exact in enumerate(exact) if not is_exact]:
        if decimals[index] <= _MOST_DECIMALS:  # the sample may have missed a value with more
            decimals[index] = max(map(_decimals, values[index].tolist()))
            integers[index], exact[index] = (each[0] for each in _shifted(values[index : index + 1], [decimals[index]]))
    return integers, [found if is_exact else _BITS for found, is_exact in zip(decimals, exact, strict=True)]


def _shifted(values: "NDArray[np.float64]", decimals: list[int]) -> tuple["NDArray[np.int64]", list[bool]]:
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
        body = heads + (8 * events if self._flags & _WIDE else 0)
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
        wide = self._flags & _WIDE
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
