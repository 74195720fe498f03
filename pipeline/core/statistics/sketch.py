"""Quantiles with a relative error of 1 %, out of counts of values by bucket.

A sketch is a DDSketch (Masson, Rim, Lee: DDSketch, a fast and fully-mergeable quantile sketch with relative-error
guarantees, 2019, https://arxiv.org/abs/1908.10693) that never collapses buckets: doubles have 150,501 of them at most.

The bucket of a value is the same on every machine, which a logarithm of the C library doesn't promise. So the logarithm
is interpolated, as in the CubicallyInterpolatedMapping of https://github.com/DataDog/sketches-java: of a magnitude
(1 + s)·2^e, e + (6s³ - 21s² + 50s)/35 stands for the logarithm to base 2. This polynomial's slope by ln(1 + s) is never
below 50/35. With 35 buckets in each octave, a bucket's last value is thus at most e^(1/50) times its first one, and the
bucket's value, their harmonic mean, is at most tanh(1/100) < 1 % off from each.

The bytes: the version; the number of buckets; for each bucket, from the lowest up, twice its count, plus 1 if other
buckets lie between it and the one before, and then their number less 1. Before the count of the first bucket stands its
number, zigzag. Numbers are the varints of Protocol Buffers, in their shortest form.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate

RELATIVE_ERROR = 0.01
MOST_VALUES = 1 << 53
"""The most values that the bytes of a sketch may count. Doubles tell all their ranks apart."""

VERSION = 1

_OCTAVE = 35
_SUBNORMAL_OCTAVE = 2 * _OCTAVE
_FIRST_NORMAL = -1021  # what frexp gives for the exponent of the least normal double
_SUBNORMALS = 52 * _SUBNORMAL_OCTAVE  # all their buckets
_LAST = _SUBNORMALS + 2046 * _OCTAVE
_VARINT_BYTES = 10


class Sketch:
    """Counts of values by bucket. Equal values in any order, merged in any way, give equal sketches."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    @classmethod
    def of(cls, values: Iterable[float]) -> "Sketch":
        """Returns the sketch of these values. Raises ValueError if one is infinite or not a number."""
        sketch = cls()
        counts = sketch._counts
        counted = Counter(values)  # sensors repeat themselves
        for bucket, count in zip(map(_bucket, counted), counted.values(), strict=True):
            counts[bucket] = counts.get(bucket, 0) + count
        return sketch

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self._counts.values())

    def merge(self, other: "Sketch") -> None:
        """Adds the other sketch's values: this one is then the sketch of all."""
        counts = self._counts
        for bucket, count in other._counts.items():
            counts[bucket] = counts.get(bucket, 0) + count

    def quantile(self, q: float) -> float:
        """Returns the value of rank ⌊q·(count - 1)⌋ in ascending order, the least one's being 0, at most 1 % off.

        This is the paper's lower quantile, and ``method="lower"`` of numpy. A zero is exact. Raises ValueError unless
        0 ≤ q ≤ 1, and for a sketch without values.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"{q} is no quantile: it must be from 0 to 1")
        if not self._counts:
            raise ValueError("a sketch without values has no quantiles")
        buckets = sorted(self._counts)
        through = list(accumulate(self._counts[bucket] for bucket in buckets))
        rank = math.floor(q * (through[-1] - 1))
        return _value(buckets[bisect_left(through, rank + 1)])

    def __eq__(self, other: object) -> bool:
        return self._counts == other._counts if isinstance(other, Sketch) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it changes

    def to_bytes(self) -> bytes:
        """Serializes the sketch. Equal sketches have equal bytes."""
        buckets = sorted(self._counts)
        data = bytearray([VERSION])
        _append(data, len(buckets))
        if not buckets:
            return bytes(data)
        before = buckets[0] - 1
        _append(data, buckets[0] << 1 if buckets[0] >= 0 else ~(buckets[0] << 1))
        for bucket in buckets:
            between = bucket - before - 1
            _append(data, self._counts[bucket] << 1 | (between > 0))
            if between:
                _append(data, between - 1)
            before = bucket
        return bytes(data)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Sketch":
        """Returns the sketch that was serialized.

        Raises ValueError if the bytes are no sketch in this form, or count more than :data:`MOST_VALUES` values.
        """
        if data[:1] != bytes([VERSION]):
            raise ValueError("another release wrote this sketch, or it is none")
        sketch = cls()
        size, position = _varint(data, 1)
        if size:
            first, position = _varint(data, position)
            bucket = (first >> 1 ^ -(first & 1)) - 1
        for index in range(size):
            count, position = _varint(data, position)
            bucket += 1
            if count & 1:
                between, position = _varint(data, position)
                bucket += between + 1
            if count < 2 or (count & 1 and not index) or not -_LAST <= bucket <= _LAST:
                raise ValueError("the sketch has a bucket that can't be")
            sketch._counts[bucket] = count >> 1
        if position < len(data):
            raise ValueError("the sketch has bytes after its end")
        if sketch.count > MOST_VALUES:
            raise ValueError(f"the sketch counts more than {MOST_VALUES} values")
        return sketch


@lru_cache(maxsize=1 << 15)
def _bucket(value: float) -> int:
    """Returns the number of the value's bucket: 0 for zero, -b for -value if b for value. It grows with the value.

    Nothing but IEEE arithmetic goes in here, one rounded operation after the other.
    """
    if value <= 0:
        return -_bucket(-value) if value else 0
    if not value < math.inf:
        raise ValueError(f"{value} has no place among the quantiles")
    mantissa, exponent = math.frexp(value)
    position = _position(mantissa)
    octave = exponent - _FIRST_NORMAL
    # A subnormal value of a bucket is rounded to a multiple of 2^-1074. Buckets half as wide leave room for that.
    if octave < 0:
        return _SUBNORMALS + 1 + octave * _SUBNORMAL_OCTAVE + int(2 * position)
    return _SUBNORMALS + 1 + octave * _OCTAVE + int(position)


def _position(mantissa: float) -> float:
    """Returns where in its octave a number is, from 0 to below 35; its mantissa is from 0.5 to below 1."""
    s = 2 * mantissa - 1
    return ((6 * s - 21) * s + 50) * s


def _mantissas(buckets: int) -> list[float]:
    """Returns the values of the buckets of an octave: each the harmonic mean of its first and the next's first."""
    unit = 2.0**-53
    doubles = range(1 << 52, 1 << 53)
    share = buckets // _OCTAVE
    firsts = [
        doubles[bisect_left(doubles, bucket, key=lambda n: int(share * _position(n * unit)))] * unit
        for bucket in range(buckets)
    ]
    return [2 * low * high / (low + high) for low, high in zip(firsts, [*firsts[1:], 1.0], strict=True)]


_VALUES = _mantissas(_OCTAVE)
_SUBNORMAL_VALUES = _mantissas(_SUBNORMAL_OCTAVE)


def _value(bucket: int) -> float:
    """Returns the value that stands for all of the bucket."""
    if bucket <= 0:
        return -_value(-bucket) if bucket else 0.0
    from_normal = bucket - 1 - _SUBNORMALS
    if from_normal < 0:
        octave, index = divmod(from_normal, _SUBNORMAL_OCTAVE)
        return math.ldexp(_SUBNORMAL_VALUES[index], _FIRST_NORMAL + octave)
    octave, index = divmod(from_normal, _OCTAVE)
    return math.ldexp(_VALUES[index], _FIRST_NORMAL + octave)


def _append(data: bytearray, number: int) -> None:
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Reads the number at the position. Returns it and the position after it."""
    if position < len(data) and data[position] < 0x80:  # most are
        return data[position], position + 1
    number = 0
    for index, byte in enumerate(data[position : position + _VARINT_BYTES]):
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if not byte:
                raise ValueError("the sketch has a number that isn't in its shortest form")
            return number, position + index + 1
    raise ValueError("the sketch is cut off, or has a number that is too large")
