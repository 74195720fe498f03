"""What a row keeps of a metric besides count, sum and the like, so that statistics of longer windows can be computed.

A part is computed from the readings of a window, merged with the parts of other windows, and stored in cells of the
aggregate row. Merging gives exactly the part of all readings.

The part of a statistic that depends on the order of readings and the time between them is a course of readings. It is
computed from a window's own readings, and contains the last reading before the window, if any. Courses of successive
windows merge: between two of them lies the step from the last reading of one to the first of the other. So a longer
window's course is that of all its readings.
"""

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from operator import mul
from typing import Any, NamedTuple

from pipeline.core.notation.cell_values import format_value, parse_value, shown_bytes
from pipeline.core.statistics.sketch import Sketch

_VERSION = 1

_BODY = struct.Struct("<Bqdqdd")
_BEFORE = struct.Struct("<qd")
_SECOND_US = 1_000_000


class At(NamedTuple):
    """A reading."""

    time_us: int
    value: float


class Course(NamedTuple):
    """The course of one or more readings.

    The bytes, little-endian: the version; time in µs and value of the first reading, then of the last one; the amount;
    time and value of the reading before, if any.

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
        body = _BODY.pack(_VERSION, *self.first, *self.last, self.amount)
        return body if self.before is None else body + _BEFORE.pack(*self.before)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Course":
        """Returns the course that was serialized. Raises ValueError for any other bytes."""
        if data[:1] != bytes([_VERSION]) or len(data) not in (_BODY.size, _BODY.size + _BEFORE.size):
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
    """What is left of courses of several sensors: by how much they rise together."""

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
    """Returns the course of both; None if their readings alternate: it follows only from the readings then."""
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
HELD = Method(_over, lambda value, _: value)
SLOPED = Method(_sloped, _midway)


_SIZE = struct.Struct("<HI")


class MetricReadings(NamedTuple):
    """The readings of a metric in one window, in any order."""

    times_us: list[int]
    values: list[float]


class PartKind(NamedTuple):
    """A part of a metric's statistics.

    Attributes:
        cells: the statistics whose cells store it.
        of: the part of at least one reading.
        merged: the part of the readings of all, at least one; None if it follows only from the readings.
        of_cells: the part that these values of its cells store.
        texts: the values of the cells.
        parse: the part that these values of the cells are; raises ValueError for any other bytes.
        carries: whether it knows the last reading before the window; it is a :class:`Course` then.
    """

    cells: tuple[str, ...]
    of: Callable[[MetricReadings], Any]
    merged: Callable[[Sequence[Any]], Any]
    of_cells: Callable[..., Any]
    texts: Callable[[Any], tuple[bytes, ...]]
    parse: Callable[..., Any]
    carries: bool = False


def _extreme(name: str, choose: Any) -> PartKind:
    """The earliest or the latest reading. Of several at the same time, the least or the greatest value."""

    def of(series: MetricReadings) -> At:
        times_us = series.times_us
        time_us = choose(times_us)
        first = times_us.index(time_us)
        if times_us.count(time_us) == 1:
            return At(time_us, series.values[first])
        values = [value for each_us, value in zip(*series, strict=True) if each_us == time_us]
        return At(time_us, choose(values, key=order_of))

    return PartKind(
        (name, f"{name}_time"),
        of,
        lambda parts: choose(parts, key=lambda at: (at.time_us, order_of(at.value))),
        lambda value, time_us: At(time_us, value),
        lambda part: (format_value(part.value), str(part.time_us).encode()),
        lambda value, time: At(parse_time(time), parse_value(value)),
    )


def _one_cell(
    name: str,
    kind: type[Sketch] | type[Course],
    of: Callable[[MetricReadings], Any],
    merged: Callable[[Sequence[Any]], Any],
) -> PartKind:
    """A part that one cell stores in the part's own bytes."""
    return PartKind(
        (name,), of, merged, lambda part: part, lambda part: (part.to_bytes(),), kind.from_bytes, kind is Course
    )


def _merged_sketches(sketches: Sequence[Sketch]) -> Sketch:
    found = Sketch()
    for sketch in sketches:
        found.merge(sketch)
    return found


def _coursed(name: str, method: Method) -> PartKind:
    return _one_cell(
        name,
        Course,
        lambda series: course_of(method, *series),
        lambda courses: reduce(lambda one, other: one and joined(method, one, other), courses),
    )


def _no_readings(_series: MetricReadings) -> Risen:
    raise NotImplementedError("a course tells the rise of a sensor's readings")


# The rise of several sensors together, of which roll-ups keep no course: rows tell its numbers as increase and rate.
_RISEN = PartKind(
    ("risen", "risen_rate"),
    _no_readings,
    lambda parts: reduce(lambda one, other: Risen(one.increase + other.increase, one.rate + other.rate), parts),
    Risen,
    lambda part: (repr(part.increase).encode(), repr(part.rate).encode()),
    lambda *texts: Risen(*map(float, texts)),
)

PARTS: Mapping[str, PartKind] = {
    "first": _extreme("first", min),
    "last": _extreme("last", max),
    "sketch": _one_cell("sketch", Sketch, lambda series: Sketch.of(series.values), _merged_sketches),
    "rises": _coursed("rises", RISES),
    "held": _coursed("held", HELD),
    "sloped": _coursed("sloped", SLOPED),
    "risen": _RISEN,
}


def merged(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Returns the parts of the readings of both. A part that one of them lacks is not known of both."""
    return merged_all((one, other)) if one and other else None


def merged_all(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the parts of the readings of all, at least one. A part that one of them lacks is not known of all."""
    known = {name: [parts[name] for parts in found] for name in found[0] if all(name in parts for parts in found)}
    merged = {name: PARTS[name].merged(parts) for name, parts in known.items()}
    return {name: part for name, part in merged.items() if part is not None}


def last_of(parts: Mapping[str, Any] | None) -> At | None:
    """Returns the last reading, if any of the parts knows the course of readings."""
    return next((part.last for part in (parts or {}).values() if isinstance(part, Course)), None)


def before_of(parts: Mapping[str, Any] | None) -> At | None:
    """Returns the last reading before, if any of the parts knows it."""
    return next((part.before for part in (parts or {}).values() if isinstance(part, Course)), None)


def same_readings(one: Any, other: Any) -> bool:
    """Returns whether two parts of one name may be of the same readings."""
    if isinstance(one, Course) and isinstance(other, Course):
        return (one.first, one.last) == (other.first, other.last)
    return bool(one == other)


def carried(parts: Mapping[str, Any], before: At | None) -> dict[str, Any]:
    """Returns the parts of the same readings after this one; see :meth:`Course.carried`."""
    return {name: part.carried(before) if isinstance(part, Course) else part for name, part in parts.items()}


def parts_bytes(parts: Mapping[str, Any] | None) -> bytes:
    """Serializes parts: each text preceded by the sizes of the part's name and of the text, and by the name."""
    found: list[bytes] = []
    for name, part in (parts or {}).items():
        for text in PARTS[name].texts(part):
            found += (_SIZE.pack(len(name), len(text)), name.encode(), text)
    return b"".join(found)


def read_parts(data: bytes) -> dict[str, Any] | None:
    """Parses what :func:`parts_bytes` wrote. Raises ValueError for any other bytes."""
    texts: dict[str, list[bytes]] = {}
    end = 0
    while end < len(data):
        if len(data) < end + _SIZE.size:
            raise ValueError("the statistics are cut off")
        name_size, size = _SIZE.unpack_from(data, end)
        begin = end + _SIZE.size
        name, end = data[begin : begin + name_size].decode(errors="replace"), begin + name_size + size
        if name not in PARTS or end > len(data):
            raise ValueError(f"{name} is not a part of statistics, or it is cut off")
        texts.setdefault(name, []).append(data[begin + name_size : end])
    for name, of_part in texts.items():
        if len(of_part) != len(PARTS[name].cells):
            raise ValueError(f"{name} has {len(of_part)} texts")
    return {name: PARTS[name].parse(*of_part) for name, of_part in texts.items()} or None


def parse_time(text: bytes) -> int:
    """Parses a time in µs since the epoch. Raises ValueError for any other text."""
    if not text.isdigit() or len(text) > 16:
        raise ValueError(f"{shown_bytes(text)} is not a time in µs")
    return int(text)


def order_of(value: float) -> tuple[float, float]:
    """Returns a key that sorts values. Zeros of both signs are equal, but have an order."""
    return value, math.copysign(1.0, value)  # -0.0 is before 0.0, which are equal
