"""The course of a metric over time, for statistics that depend on the order of readings and the time between them.

A course is computed from a window's own readings, and contains the last reading before the window, if any. Courses of
successive windows merge: between two of them lies the step from the last reading of one to the first of the other. So a
longer window's course is that of all its readings.

The bytes, little-endian: the version; time in µs and value of the first reading, then of the last one; the amount; time
and value of the reading before, if any.
"""

import math
import struct
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import mul
from typing import NamedTuple

VERSION = 1

_BODY = struct.Struct("<Bqdqdd")
_BEFORE = struct.Struct("<qd")
_SECOND_US = 1_000_000


class At(NamedTuple):
    """A reading."""

    time_us: int
    value: float


class Course(NamedTuple):
    """The course of one or more readings.

    Attributes:
        first: the earliest reading. Of several at the same time, the one with the least value.
        last: the latest reading. Of several at the same time, the one with the greatest value.
        amount: the rise or the mean from the first to the last reading; see :class:`Method`.
        before: the last reading before the window; None if none is known.
    """

    first: At
    last: At
    amount: float
    before: At | None = None

    def carried(self, before: At | None) -> "Course":
        """Returns the course after this reading, unless a later one is known before it."""
        if before is None or (self.before is not None and self.before >= before):
            return self
        return self._replace(before=before)

    def to_bytes(self) -> bytes:
        """Serializes the course."""
        body = _BODY.pack(VERSION, *self.first, *self.last, self.amount)
        return body if self.before is None else body + _BEFORE.pack(*self.before)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Course":
        """Returns the course that was serialized. Raises ValueError for any other bytes."""
        if data[:1] != bytes([VERSION]) or len(data) not in (_BODY.size, _BODY.size + _BEFORE.size):
            raise ValueError("another release wrote this course of readings, or it is none")
        _, first_us, first, last_us, last, amount = _BODY.unpack_from(data)
        before = At(*_BEFORE.unpack_from(data, _BODY.size)) if len(data) > _BODY.size else None
        values = (first, last, *(before[1:] if before else ()))
        if not all(map(math.isfinite, values)) or math.isnan(amount):
            raise ValueError("the course has a value that is not a number")
        if not (before.time_us if before else -1) < first_us <= last_us:
            raise ValueError("the course has readings that are not in order")
        return cls(At(first_us, first), At(last_us, last), amount, before)


class Risen(NamedTuple):
    """What is left of courses of several sensors: by how much they rise together.

    Attributes:
        increase: the sum of their increases.
        rate: the sum of their rates.
    """

    increase: float
    rate: float


class Method(NamedTuple):
    """How the amount of a course is computed.

    Attributes:
        of: the amount of readings in order of time: takes times in µs and values.
        step: the amount from a reading to the next one.
        total: whether amounts add up. Otherwise they are averages over time.
    """

    of: Callable[[Sequence[int], Sequence[float]], float]
    step: Callable[[float, float], float]
    total: bool = False


def rise(value: float, following: float) -> float:
    """Returns by how much a counter rises from one reading to the next. A fall is a reset: it counts from zero."""
    return following - value if following >= value else max(following, 0.0)


def course_of(method: Method, times_us: Sequence[int], values: Sequence[float]) -> Course:
    """Returns the course of readings in any order."""
    times_us, values = zip(*sorted(zip(times_us, values, strict=True)), strict=True)
    return Course(At(times_us[0], values[0]), At(times_us[-1], values[-1]), method.of(times_us, values))


def joined(method: Method, one: Course, other: Course) -> Course | None:
    """Returns the course of both; None if their readings alternate, since only the readings tell it then."""
    if one.first > other.first:
        one, other = other, one
    if one.last.time_us >= other.first.time_us:
        return None
    step = method.step(one.last.value, other.first.value)
    if method.total:
        amount = one.amount + step + other.amount
    else:
        amount = _mean(
            (one.last.time_us - one.first.time_us, one.amount),
            (other.first.time_us - one.last.time_us, step),
            (other.last.time_us - other.first.time_us, other.amount),
        )
    return Course(one.first, other.last, amount, one.before)


def increase(course: Course) -> float:
    """Returns by how much a counter rises in a window, from the last reading before it."""
    if course.before is None:
        return course.amount
    return course.amount + rise(course.before.value, course.first.value)


def rate(course: Course, start_us: int, end_us: int) -> float:
    """Returns the increase in a second of the covered time.

    That is the window if a reading before it is known; otherwise it begins with the first reading.
    """
    covered_us = end_us - (course.first.time_us if course.before is None else start_us)
    return increase(course) / covered_us * _SECOND_US


def held_mean(course: Course, start_us: int, end_us: int) -> float:
    """Returns the mean over the time that :func:`rate` covers. Each value holds until the next reading."""
    first, last = course.first, course.last
    return _mean(
        (first.time_us - start_us, course.before.value) if course.before else (0, 0.0),
        (last.time_us - first.time_us, course.amount),
        (end_us - last.time_us, last.value),
    )


def sloped_mean(course: Course, start_us: int, _end_us: int) -> float:
    """Returns the mean over the covered time, with straight lines between readings.

    It begins with the window if a reading before it is known, otherwise with the first reading. It ends with the last.
    """
    first, last, before = course.first, course.last, course.before
    covered_us = last.time_us - first.time_us
    if before is None or first.time_us == start_us:
        return course.amount if covered_us else last.value
    share = (first.time_us - start_us) / (first.time_us - before.time_us)
    at_start = _within(before.value * share + first.value * (1 - share), (before.value, first.value))
    return _mean((first.time_us - start_us, _midway(at_start, first.value)), (covered_us, course.amount))


def _rises(_times_us: Sequence[int], values: Sequence[float]) -> float:
    rises = map(rise, values, values[1:])
    try:
        return math.fsum(rises)
    except OverflowError:
        return math.inf


def _held(times_us: Sequence[int], values: Sequence[float]) -> float:
    return _over(times_us, values)


def _sloped(times_us: Sequence[int], values: Sequence[float]) -> float:
    mean = _over(times_us, [value / 2 + following / 2 for value, following in pairwise(values)])
    return _within(mean, values) if times_us[-1] > times_us[0] else mean


def _midway(value: float, following: float) -> float:
    return _within(value / 2 + following / 2, (value, following))


def _within(mean: float, values: Sequence[float]) -> float:
    """Returns the mean, limited to the range of its values: rounding, also of halves near zero, may exceed it."""
    return min(max(mean, min(values)), max(values))


def _over(times_us: Sequence[int], values: Sequence[float]) -> float:
    """Returns the mean of values that each hold until the next time; zero if all times are the same."""
    covered_us = times_us[-1] - times_us[0]
    if not covered_us:
        return 0.0
    shares = [(end_us - start_us) / covered_us for start_us, end_us in pairwise(times_us)]
    try:
        mean = math.fsum(map(mul, shares, values))
    except OverflowError:  # rounding exceeded the greatest double
        mean = max(values, key=abs)
    return _within(mean, values)


def _mean(*parts: tuple[int, float]) -> float:
    """Returns the mean of values by their weights. None of the weights is negative, and one is not zero."""
    weighted = [(weight, value) for weight, value in parts if weight]
    total = sum(weight for weight, _ in weighted)
    values = [value for _, value in weighted]
    return _within(sum(value * (weight / total) for weight, value in weighted), values)


RISES = Method(_rises, rise, total=True)
HELD = Method(_held, lambda value, _: value)
SLOPED = Method(_sloped, _midway)
