"""What a row keeps of a metric besides count, sum and the like, so that statistics of longer windows can be computed.

A part is computed from the readings of a window, merged with the parts of other windows, and stored in cells of the
aggregate row. Merging gives exactly the part of all readings.
"""

import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

from pipeline.core.notation.cell_values import format_value, parse_value, shown_bytes
from pipeline.core.statistics.courses import HELD, RISES, SLOPED, At, Course, Method, Risen, course_of, joined
from pipeline.core.statistics.sketch import Sketch

_SIZE = struct.Struct("<HI")


class MetricReadings(NamedTuple):
    """The readings of a metric in one window, in any order.

    Attributes:
        times_us: event times in µs.
        values: finite values, one for each time.
    """

    times_us: list[int]
    values: list[float]


class PartKind(ABC):
    """A part of a metric's statistics.

    Attributes:
        name: identifies the part in state.
        cells: the statistics whose cells store it.
        carries: whether it knows the last reading before the window; it is a :class:`Course` then.
    """

    name: str
    cells: tuple[str, ...]
    carries: bool = False

    @abstractmethod
    def of(self, series: MetricReadings) -> Any:
        """Returns the part of at least one reading."""

    @abstractmethod
    def merged(self, one: Any, other: Any) -> Any:
        """Returns the part of the readings of both; None if only the readings tell it."""

    def merged_all(self, parts: Sequence[Any]) -> Any:
        """Returns the part of the readings of all, at least one; None if only the readings tell it."""
        return reduce(lambda one, other: one and self.merged(one, other), parts)

    @abstractmethod
    def of_cells(self, *values: Any) -> Any:
        """Returns the part that these values of its cells store."""

    @abstractmethod
    def texts(self, part: Any) -> tuple[bytes, ...]:
        """Returns the values of the cells."""

    @abstractmethod
    def parse(self, *texts: bytes) -> Any:
        """Parses what :meth:`texts` returned. Raises ValueError for any other bytes."""


class _Extreme(PartKind):
    """The earliest or the latest reading. Of several at the same time, the least or the greatest value."""

    def __init__(self, name: str, choose: Any) -> None:
        self.name = name
        self.cells = (name, f"{name}_time")
        self._choose = choose

    def of(self, series: MetricReadings) -> At:
        times_us = series.times_us
        time_us = self._choose(times_us)
        first = times_us.index(time_us)
        if times_us.count(time_us) == 1:
            return At(time_us, series.values[first])
        values = [value for each_us, value in zip(*series, strict=True) if each_us == time_us]
        return At(time_us, self._choose(values, key=order_of))

    def merged(self, one: At, other: At) -> At:
        return self._choose(one, other, key=lambda at: (at.time_us, order_of(at.value)))

    def of_cells(self, *values: Any) -> At:
        value, time_us = values
        return At(time_us, value)

    def texts(self, part: At) -> tuple[bytes, ...]:
        return format_value(part.value), str(part.time_us).encode()

    def parse(self, *texts: bytes) -> At:
        value, time = texts
        return At(parse_time(time), parse_value(value))


class _OneCell(PartKind):
    """A part that one cell stores in the part's own bytes.

    Args:
        kind: the part's class.
        name: the part's name, and that of the cell.
    """

    def __init__(self, kind: type[Sketch] | type[Course], name: str) -> None:
        self.name = name
        self.cells = (name,)
        self._kind = kind

    def of_cells(self, *values: Any) -> Any:
        (part,) = values
        return part

    def texts(self, part: Any) -> tuple[bytes, ...]:
        return (part.to_bytes(),)

    def parse(self, *texts: bytes) -> Any:
        return self._kind.from_bytes(*texts)


class _Sketched(_OneCell):
    """A sketch of all values, for quantiles."""

    def of(self, series: MetricReadings) -> Sketch:
        return Sketch.of(series.values)

    def merged(self, one: Sketch, other: Sketch) -> Sketch:
        return self.merged_all((one, other))

    def merged_all(self, parts: Sequence[Sketch]) -> Sketch:
        found = Sketch()
        for part in parts:
            found.merge(part)
        return found


class _Coursed(_OneCell):
    """A course of readings."""

    carries = True

    def __init__(self, name: str, method: Method) -> None:
        super().__init__(Course, name)
        self._method = method

    def of(self, series: MetricReadings) -> Course:
        return course_of(self._method, *series)

    def merged(self, one: Course, other: Course) -> Course | None:
        return joined(self._method, one, other)


class _Risen(PartKind):
    """The rise of several sensors together, of which roll-ups keep no course. No readings of a sensor make it."""

    name = "risen"
    cells = ("risen", "risen_rate")  # rows tell the two numbers as the statistics increase and rate

    def of(self, series: MetricReadings) -> Risen:
        raise NotImplementedError("a course tells the rise of readings")

    def merged(self, one: Risen, other: Risen) -> Risen:
        return Risen(one.increase + other.increase, one.rate + other.rate)

    def of_cells(self, *values: Any) -> Risen:
        return Risen(*values)

    def texts(self, part: Risen) -> tuple[bytes, ...]:
        return repr(part.increase).encode(), repr(part.rate).encode()

    def parse(self, *texts: bytes) -> Risen:
        return Risen(*map(float, texts))


PARTS: Mapping[str, PartKind] = {
    part.name: part
    for part in (
        _Extreme("first", min),
        _Extreme("last", max),
        _Sketched(Sketch, "sketch"),
        _Coursed("rises", RISES),
        _Coursed("held", HELD),
        _Coursed("sloped", SLOPED),
        _Risen(),
    )
}


def merged(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Returns the parts of the readings of both. A part that one of them lacks is not known of both."""
    if not one or not other:
        return None
    both = {name: PARTS[name].merged(part, other[name]) for name, part in one.items() if name in other}
    return {name: part for name, part in both.items() if part is not None}


def merged_all(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the parts of the readings of all, at least one. A part that one of them lacks is not known of all."""
    known = {name: [parts[name] for parts in found] for name in found[0] if all(name in parts for parts in found)}
    merged = {name: PARTS[name].merged_all(parts) for name, parts in known.items()}
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
