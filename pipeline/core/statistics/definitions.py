"""The statistics that aggregate rows may contain: one definition for each.

A definition tells what a cell contains, how it is parsed, how far two computations of it may differ, and what else has
to be stored so that longer windows can be computed. To add a statistic, add a definition here; if it can't be
computed from what windows keep already, add a part to :mod:`pipeline.core.statistics.parts` as well.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from pipeline.core.notation.cell_values import parse_value, shown_bytes
from pipeline.core.statistics.courses import At, Course, held_mean, increase, rate, sloped_mean
from pipeline.core.statistics.parts import PARTS, parse_time
from pipeline.core.statistics.sketch import Sketch
from pipeline.core.statistics.window_stats import MetricStats

MAX_COUNT = 2**53  # doubles represent every integer up to this
_SMALLEST_DOUBLE = 5e-324
_TOLERANCE = 1e-9  # share of Σ|x| by which two sums of the same readings may differ: they depend on the order
_OVERFLOWS = {b"inf": math.inf, b"-inf": -math.inf}
_QUANTILE = re.compile(r"p([1-9][0-9]?(?:\.[0-9]{0,2}[1-9])?|0\.[0-9]{0,2}[1-9])")

Value = float | Sketch | Course
_ValueOf = Callable[[MetricStats, "WindowSpan"], Any]


class WindowSpan(NamedTuple):
    """A window.

    Attributes:
        start_us: the window's start.
        end_us: the window's end, exclusive.
        expected: the expected number of readings; None if it is not known.
    """

    start_us: int
    end_us: int
    expected: float | None


def _exact(_magnitude: float, _count: int, _value: float) -> float:
    return 0.0


@dataclass(frozen=True, eq=False)  # hashed for each row
class Statistic:
    """One statistic of a metric.

    Args:
        name: the column is named after it: ``{name}_{metric}``.
        value: the function that computes the cell's value; it returns None if the value is not known.
        parse: the function that parses a cell. It raises ValueError for bytes that such a cell never contains.
        tolerance: the most by which two computations may differ, given the mean magnitude, the number of readings, and
            the value (the amount of a course).
        part: the name of the part that the value is computed from; None if it needs none.
        needs: other statistics that the value is computed from, whose cells are written as well.
        listed: whether readers list it; they do not list what only serves merging.
        limited: whether it lies between the minimum and the maximum.
    """

    name: str
    value: Callable[[MetricStats, WindowSpan], Value | None]
    parse: Callable[[bytes], Value] = parse_value
    tolerance: Callable[[float, int, float], float] = _exact
    part: str | None = None
    needs: tuple[str, ...] = ()
    listed: bool = True
    limited: bool = False

    @property
    def rank(self) -> float:
        """The place of the statistic's cell among those of a metric. Quantiles follow the others."""
        return _RANKS[self.name] if self.name in _RANKS else 1000 + float(self.name[1:])


def parse_count(text: bytes) -> float:
    """Parses a number of events or readings. Raises ValueError for any other text."""
    count = parse_value(text)
    if not 1 <= count <= MAX_COUNT or not count.is_integer():
        raise ValueError(f"{shown_bytes(text)} is not a count")
    return count


def _parse_sum(text: bytes) -> float:
    return _OVERFLOWS[text] if text in _OVERFLOWS else parse_value(text)


def _parse_deviation(text: bytes) -> float:
    deviation = math.inf if text == b"inf" else parse_value(text)
    if deviation < 0:
        raise ValueError(f"{shown_bytes(text)} is not a deviation")
    return deviation


def _part(name: str) -> _ValueOf:
    return lambda stats, _: (stats.parts or {}).get(name)


def _at(name: str, index: int) -> _ValueOf:
    def value(stats: MetricStats, _: WindowSpan) -> Any:
        at: At | None = (stats.parts or {}).get(name)
        return at and at[index]

    return value


def _of_course(name: str, compute: Callable[[Course, int, int], float]) -> _ValueOf:
    def value(stats: MetricStats, span: WindowSpan) -> float | None:
        course = (stats.parts or {}).get(name)
        return None if course is None else compute(course, span.start_us, span.end_us)

    return value


def _coverage(stats: MetricStats, span: WindowSpan) -> float | None:
    return span.expected and min(stats.count / span.expected, 1.0)


def _of_value(_mean: float, _count: int, value: float) -> float:
    return _TOLERANCE * abs(value)


def _of_sum(mean: float, count: int, value: float) -> float:
    return max(_TOLERANCE * (mean * count + abs(value)), _SMALLEST_DOUBLE * count)


def _quantile(q: float) -> _ValueOf:
    def value(stats: MetricStats, _: WindowSpan) -> float | None:
        sketch = (stats.parts or {}).get("sketch")
        return None if sketch is None else limited(sketch.quantile(q), stats.minimum, stats.maximum)

    return value


def limited(value: float, least: float, most: float) -> float:
    """Returns the value, limited to the range of readings, as far as that is known; an end that is not known is NaN.

    A sketch tells a quantile to 1 %, so it may exceed the range. Averages of earlier releases do through rounding.
    """
    return min(max(value, least), most)  # the first argument, if the other is NaN


_MOMENTS = (
    Statistic("count", lambda stats, _: stats.count, parse_count),
    Statistic("sum", lambda stats, _: stats.total, _parse_sum, lambda mean, count, _: _TOLERANCE * mean * count),
    Statistic("min", lambda stats, _: stats.minimum),
    Statistic("max", lambda stats, _: stats.maximum),
    Statistic("avg", lambda stats, _: stats.average, parse_value, lambda mean, *_: _TOLERANCE * mean, limited=True),
    Statistic(
        "stddev",
        lambda stats, _: stats.deviation,
        _parse_deviation,
        lambda mean, count, _: max(_TOLERANCE * mean, _SMALLEST_DOUBLE * count),
        needs=("avg",),
    ),
)
_OTHERS = (
    Statistic("first", _at("first", 1), part="first"),
    Statistic("first_time", _at("first", 0), parse_time, part="first"),
    Statistic("last", _at("last", 1), part="last"),
    Statistic("last_time", _at("last", 0), parse_time, part="last"),
    Statistic("increase", _of_course("rises", lambda course, *_: increase(course)), _parse_sum, _of_value, "rises"),
    Statistic("rate", _of_course("rises", rate), _parse_sum, _of_value, "rises"),
    Statistic("time_weighted_mean", _of_course("held", held_mean), parse_value, _of_sum, "held"),
    Statistic("coverage", _coverage),
    # For merging only.
    Statistic("sketch", _part("sketch"), Sketch.from_bytes, part="sketch", listed=False),
    Statistic("rises", _part("rises"), Course.from_bytes, _of_value, "rises", listed=False),
    Statistic("held", _part("held"), Course.from_bytes, _of_sum, "held", listed=False),
    Statistic("sloped", _part("sloped"), Course.from_bytes, _of_sum, "sloped", listed=False),
)
_KNOWN = {statistic.name: statistic for statistic in (*_MOMENTS, *_OTHERS)}
_WAYS = {  # of one statistic, which a schema chooses from
    "time_weighted_mean:locf": _KNOWN["time_weighted_mean"],
    "time_weighted_mean:linear": Statistic(
        "time_weighted_mean", _of_course("sloped", sloped_mean), parse_value, _of_sum, "sloped"
    ),
}
DEFAULT = tuple(statistic.name for statistic in _MOMENTS)
"""The names of the statistics of metrics for which the schema declares none."""
DEFAULT_STATISTICS = _MOMENTS
_RANKS = {name: float(rank) for rank, name in enumerate(_KNOWN)}


@lru_cache(maxsize=1024)
def statistic(name: str) -> Statistic:
    """Returns the statistic of that name. Raises ValueError for an unknown name."""
    found = _KNOWN.get(name) or _WAYS.get(name)
    if found is None and (quantile := _QUANTILE.fullmatch(name)):
        found = Statistic(name, _quantile(float(quantile[1]) / 100), part="sketch", limited=True)
    if found is None:
        listed = ", ".join([*(known.name for known in _KNOWN.values() if known.listed), *_WAYS])
        if re.fullmatch(r"p[0-9.]+", name):
            raise ValueError(f"{name} is not a quantile; write p1 to p99, or p99.9 with up to three decimals")
        raise ValueError(f"{name!r} is not a statistic; there are {listed}, and quantiles like p50 and p99.9")
    return found


def complete(names: tuple[str, ...]) -> tuple[Statistic, ...]:
    """Returns the statistics whose cells are written for these names: they themselves, and what merges them.

    The count is always written: it tells whether a row lacks readings.
    """
    wanted = {"count", *names}
    for name in names:
        found = statistic(name)
        wanted |= {*found.needs, *(PARTS[found.part].cells if found.part else ())}
    ordered = tuple(sorted(map(statistic, wanted), key=lambda each: each.rank))
    return DEFAULT_STATISTICS if ordered == DEFAULT_STATISTICS else ordered


@lru_cache(maxsize=1 << 14)
def split_qualifier(qualifier: str) -> tuple[Statistic, str]:
    """Splits ``"sum_temperature"`` into the statistic and the metric. Raises ValueError for any other text."""
    for mark in ("@", "_"):
        for end in range(len(qualifier) - 1, 0, -1):
            if qualifier[end] == mark and (found := _found(qualifier[:end])):
                return found, qualifier[end + 1 :]
    raise ValueError(f"aggregate rows have no column {shown_bytes(qualifier.encode())}")


@lru_cache(maxsize=1 << 14)
def qualifier_of(name: str, metric: str) -> str:
    """Returns the column of a statistic: ``sum_temperature``.

    ``first_time_x`` is when the first reading of x came, so the first value of a metric ``time_x`` is ``first@time_x``.
    """
    qualifier = f"{name}_{metric}"
    found, of_metric = split_qualifier(qualifier)
    return qualifier if (found.name, of_metric) == (name, metric) else f"{name}@{metric}"


def _found(name: str) -> Statistic | None:
    try:
        found = statistic(name)
    except ValueError:
        return None
    return found if found.name == name else None
