"""The statistics that aggregate rows may contain: one definition for each.

A definition says what a cell contains, how its value is parsed, how far two computations of it may differ, and what
else has to be stored so that longer windows can be computed. To add a statistic, add a definition here; if it can't be
computed from what windows keep already, add a part to :mod:`pipeline.core.statistics.parts` as well.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pipeline.core.statistics.parts import PARTS, At, parse_time
from pipeline.core.statistics.sketch import Sketch
from pipeline.core.stats import MetricStats
from pipeline.core.values import parse_value, shown_bytes

_MAX_COUNT = 2**53  # doubles represent every integer up to this
_SMALLEST_DOUBLE = 5e-324
_TOLERANCE = 1e-9  # share of Σ|x| by which two sums of the same readings may differ: they depend on the order
_OVERFLOWS = {b"inf": math.inf, b"-inf": -math.inf}
_QUANTILE = re.compile(r"p([1-9][0-9]?(?:\.[0-9]{0,2}[1-9])?|0\.[0-9]{0,2}[1-9])")

Value = float | Sketch


def _exact(_magnitude: float, _count: int) -> float:
    return 0.0


@dataclass(frozen=True, eq=False)  # hashed for each row
class Statistic:
    """One statistic of a metric.

    Args:
        name: the column is named after it: ``{name}_{metric}``.
        value: returns what the cell contains; None if it is not known. Its second argument is the number of readings
            that the window is expected to have; None if that is not known.
        parse: parses a cell. Raises ValueError if such a cell never contains these bytes.
        tolerance: how much two computations may differ, by the mean magnitude and the number of readings.
        part: the part that the value is computed from, if any.
        needs: other statistics that the value is computed from, whose cells are written as well.
        listed: whether readers list it. What is only for merging is not listed.
    """

    name: str
    value: Callable[[MetricStats, float | None], Value | None]
    parse: Callable[[bytes], Value] = parse_value
    tolerance: Callable[[float, int], float] = _exact
    part: str | None = None
    needs: tuple[str, ...] = ()
    listed: bool = True

    @property
    def rank(self) -> float:
        """The place of the statistic's cell among those of a metric. Quantiles follow the others."""
        return _RANKS[self.name] if self.name in _RANKS else 1000 + float(self.name[1:])


def parse_count(text: bytes) -> float:
    """Parses a number of events or readings. Raises ValueError for any other text."""
    count = parse_value(text)
    if not 1 <= count <= _MAX_COUNT or not count.is_integer():
        raise ValueError(f"{shown_bytes(text)} is not a count")
    return count


def _parse_sum(text: bytes) -> float:
    return _OVERFLOWS[text] if text in _OVERFLOWS else parse_value(text)


def _parse_deviation(text: bytes) -> float:
    deviation = math.inf if text == b"inf" else parse_value(text)
    if deviation < 0:
        raise ValueError(f"{shown_bytes(text)} is not a deviation")
    return deviation


def _of_part(name: str, index: int) -> Callable[[MetricStats, float | None], Any]:
    def value(stats: MetricStats, _expected: float | None) -> Any:
        part = (stats.parts or {}).get(name)
        return part[index] if isinstance(part, At) else part

    return value


def _quantile(q: float) -> Callable[[MetricStats, float | None], float | None]:
    def value(stats: MetricStats, _expected: float | None) -> float | None:
        sketch = (stats.parts or {}).get("sketch")
        return None if sketch is None else sketch.quantile(q)

    return value


_MOMENTS = (
    Statistic("count", lambda stats, _: stats.count, parse_count),
    Statistic("sum", lambda stats, _: stats.total, _parse_sum, lambda mean, count: _TOLERANCE * mean * count),
    Statistic("min", lambda stats, _: stats.minimum),
    Statistic("max", lambda stats, _: stats.maximum),
    Statistic("avg", lambda stats, _: stats.average, parse_value, lambda mean, _: _TOLERANCE * mean),
    Statistic(
        "stddev",
        lambda stats, _: stats.deviation,
        _parse_deviation,
        lambda mean, count: max(_TOLERANCE * mean, _SMALLEST_DOUBLE * count),
        needs=("avg",),
    ),
)
_OTHERS = (
    Statistic("first", _of_part("first", 1), part="first"),
    Statistic("first_time", _of_part("first", 0), parse_time, part="first"),
    Statistic("last", _of_part("last", 1), part="last"),
    Statistic("last_time", _of_part("last", 0), parse_time, part="last"),
    Statistic("sketch", _of_part("sketch", 0), Sketch.from_bytes, part="sketch", listed=False),
    Statistic("coverage", lambda stats, expected: expected and min(stats.count / expected, 1.0)),
)
_KNOWN = {statistic.name: statistic for statistic in (*_MOMENTS, *_OTHERS)}
DEFAULT = tuple(statistic.name for statistic in _MOMENTS)
"""The names of the statistics of metrics for which the schema declares none."""
DEFAULT_STATISTICS = _MOMENTS
_RANKS = {name: float(rank) for rank, name in enumerate(_KNOWN)}


@lru_cache(maxsize=1024)
def statistic(name: str) -> Statistic:
    """Returns a statistic. Raises ValueError if there is none of that name."""
    found = _KNOWN.get(name)
    if found is None and (quantile := _QUANTILE.fullmatch(name)):
        found = Statistic(name, _quantile(float(quantile[1]) / 100), part="sketch")
    if found is None:
        listed = ", ".join(known.name for known in _KNOWN.values() if known.listed)
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
        return statistic(name)
    except ValueError:
        return None
