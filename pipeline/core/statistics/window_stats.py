"""The statistics of a window: how they are computed and merged, which there are, and which of them a schema declares.

Averages and deviations follow Welford for one value and Chan, Golub and LeVeque for merging: B. P. Welford, "Note on a
method for calculating corrected sums of squares and products", Technometrics 4 (1962); T. F. Chan, G. H. Golub, R. J.
LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979). A sum of squares would lose
all precision if the average is large compared to the spread.

Each statistic that aggregate rows may contain has one definition, a :class:`Statistic`: what a cell contains, how it is
parsed, how far two computations of it may differ, and what else has to be stored so that longer windows can be
computed. To add a statistic, add a definition to ``_OTHERS``; if it can't be computed from what windows keep already,
add a part to :mod:`pipeline.core.statistics.parts` as well.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from math import hypot, inf, isnan, sqrt
from typing import Any, NamedTuple

from pipeline.core.notation.cell_values import parse_value, parse_values, shown_bytes
from pipeline.core.statistics.member import Member, later
from pipeline.core.statistics.parts import (
    PARTS,
    At,
    Course,
    MetricReadings,
    before_of,
    held_mean,
    increase,
    last_of,
    merged,
    parse_time,
    rate,
    sloped_mean,
)
from pipeline.core.statistics.sketch import Sketch
from pipeline.core.windows import Window

# Scaled by _DOWN, no sum of fewer than 2^64 doubles overflows.
_DOWN, _UP = 2.0**-64, 2.0**64

MAX_METRICS = 10_000
"""The most distinct metrics in a window. With six cells for each, a row takes some 10 MB. Without this limit, events
that keep adding metric names would produce a row that Bigtable never accepts."""


class MetricStats:
    """Count, sum, minimum, maximum, average and population standard deviation of one metric's finite values.

    Before the first value, the extremes are infinite and everything else is zero. After that, whatever the order in
    which values are added and merged:

    - Count, minimum and maximum are exact, and the average lies between minimum and maximum.
    - The sum is exact to 1e-9 · Σ|x|. It is infinite only if the average times the count is infinite: a sum that
      overflows and later returns into range is finite again.
    - The deviation is finite and exact to 1e-9 · Σ|x| / count or, for the smallest doubles, to count · 5e-324. It is 0
      if all values are equal, and otherwise only if it is smaller than that.

    What an aggregate row lacks is NaN. ``parts`` are those of :mod:`pipeline.core.statistics.parts` that are
    known of all values.
    """

    __slots__ = ("average", "count", "deviation", "maximum", "minimum", "parts", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.minimum = inf
        self.maximum = -inf
        self.average = 0.0
        self.deviation = 0.0  # not its square or a sum of squares: they overflow or underflow where it does not
        self.parts: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> "MetricStats":
        """Returns the statistics of one or more finite values. For many, this is much faster than :meth:`add`."""
        found = cls()
        found.count = count = len(values)
        found.minimum = minimum = min(values)
        found.maximum = maximum = max(values)
        # The sum is exact: an error in the average, which grows with a plain sum, would be in every difference from it.
        try:
            found.total = total = math.fsum(values)
            average = total / count
        except OverflowError:
            down = math.fsum([value * _DOWN for value in values])
            found.total = down * _UP
            average = down / count * _UP
        found.average = average = min(max(average, minimum), maximum)  # rounding may have moved it out of the range
        distance = math.dist(values, [average] * count)  # √Σ(x − average)², at the speed of C
        found.deviation = distance / sqrt(count)
        if distance == inf:  # the deviation is finite: except for rounding, it is at most half the range
            distance = math.dist([value * _DOWN for value in values], [average * _DOWN] * count)
            found.deviation = min(distance / sqrt(count) * _UP, maximum / 2 - minimum / 2)
        return found

    def add(self, value: float) -> None:
        """Adds one finite value."""
        self.count = count = self.count + 1
        if count == 1:
            self.total = self.minimum = self.maximum = self.average = value
            return
        self.total = total = self.total + value
        minimum = self.minimum
        if value < minimum:
            self.minimum = minimum = value
        maximum = self.maximum
        if value > maximum:
            self.maximum = maximum = value
        average = total / count
        delta = value - self.average
        deviation = self.deviation
        variance = deviation * deviation
        variance += (delta * (value - average) - variance) / count
        if 1e-250 < variance < 1e250 and minimum <= average <= maximum:  # squares are fast, and safe in this range
            self.average = average
            self.deviation = sqrt(variance)
        elif delta or deviation:
            self._combine((count - 1) / count, 1 / count, value, 0.0)

    def merge(self, other: "MetricStats") -> None:
        """Adds the values counted in ``other``."""
        if not other.count:
            return
        if not self.count:
            self.count, self.total, self.average = other.count, other.total, other.average
            self.minimum, self.maximum, self.deviation = other.minimum, other.maximum, other.deviation
            self.parts = other.parts
            return
        if self.parts or other.parts:
            self.parts = merged(self.parts, other.parts)
        before, more = self.count, other.count
        self.count = count = before + more
        self.total += other.total
        if other.minimum < self.minimum or isnan(other.minimum):
            self.minimum = other.minimum
        if other.maximum > self.maximum or isnan(other.maximum):
            self.maximum = other.maximum
        self._combine(before / count, more / count, other.average, other.deviation)

    def _combine(self, own: float, others: float, average: float, deviation: float) -> None:
        """Combines averages and deviations of two shares of the count; the other statistics are combined already."""
        weight = sqrt(own * others)
        own_part, others_part = self.deviation * sqrt(own), deviation * sqrt(others)
        combined = hypot(own_part, others_part, (average - self.average) * weight)
        if combined == inf:  # the averages differ by more than the greatest double, or rounding exceeded it
            between = (average / 2 - self.average / 2) * (2 * weight)
            combined = min(hypot(own_part, others_part, between), self.maximum / 2 - self.minimum / 2)
        self.deviation = combined
        overflow = not -inf < self.total < inf  # also true of NaN, from +inf − inf
        mean = self.average * own + average * others if overflow else self.total / self.count
        if mean < self.minimum:  # through rounding: the sum of ten times 65.2 is 652.0000000000001
            mean = self.minimum
        elif mean > self.maximum:
            mean = self.maximum
        self.average = mean
        if overflow:
            self.total = mean * self.count


class WindowStats:
    """The number of events in one sensor's window, and the statistics of each metric.

    Of a longer window, ``sizes`` has the size of each shorter one that it counts, by start in µs, if that is known.
    ``member`` is the newest event, if roll-ups group sensors by metadata.
    """

    __slots__ = ("events", "member", "metrics", "sizes")

    def __init__(self) -> None:
        self.events = 0
        self.metrics: dict[str, MetricStats] = {}
        self.sizes: Mapping[int, int] | None = None
        self.member: Member | None = None

    def add(self, readings: Mapping[str, float]) -> None:
        """Adds one event's readings: metric name to finite value."""
        self.events += 1
        for metric, value in readings.items():
            stats = self.metrics.get(metric)
            if stats is None:
                stats = self.metrics[metric] = MetricStats()
            stats.add(value)

    def extend(self, columns: Iterable[tuple[str, Sequence[float]]], events: int) -> None:
        """Adds the readings of several events."""
        self.events += events
        for metric, values in columns:
            of_values = MetricStats.of(values)
            stats = self.metrics.setdefault(metric, of_values)
            if stats is not of_values:
                stats.merge(of_values)

    @property
    def size(self) -> int:
        """The number of events and readings. It never decreases from one pane of a window to the next."""
        return self.events + sum([stats.count for stats in self.metrics.values()])

    def merge(self, other: "WindowStats") -> None:
        """Adds everything counted in ``other``, which stays unchanged."""
        self.events += other.events
        if other.member is not None:
            self.member = later(self.member, other.member)
        for metric, stats in other.metrics.items():
            self.metrics.setdefault(metric, MetricStats()).merge(stats)


def copied(stats: WindowStats) -> WindowStats:
    """Returns a copy, whose metrics can be changed without changing those of ``stats``."""
    found = WindowStats()
    found.merge(stats)
    found.sizes = stats.sizes
    return found


def at_least(parts: Iterable[WindowStats], row: WindowStats) -> bool:
    """Returns whether the parts together count at least the events, and the readings of each metric, of ``row``."""
    parts = list(parts)
    return sum(stats.events for stats in parts) >= row.events and all(
        sum(stats.metrics[metric].count for stats in parts if metric in stats.metrics) >= of_metric.count
        for metric, of_metric in row.metrics.items()
    )


def covers(stats: WindowStats, row: WindowStats) -> bool:
    """Returns whether ``stats`` may include all that ``row`` counts.

    They do if they count at least as much and their extremes enclose the row's minima and maxima.
    """
    return at_least([stats], row) and not any(  # true also where the row contains no extremes, which are NaN then
        stats.metrics[metric].minimum > of_metric.minimum or stats.metrics[metric].maximum < of_metric.maximum
        for metric, of_metric in row.metrics.items()
    )


def lasts_of(stats: WindowStats) -> dict[str, At]:
    """Returns the last reading of each metric whose course is known."""
    lasts = {metric: last_of(of_metric.parts) for metric, of_metric in stats.metrics.items()}
    return {metric: last for metric, last in lasts.items() if last is not None}


def same_before(one: WindowStats, other: WindowStats) -> bool:
    """Returns whether each metric that both have continues from the same reading before the window."""
    return all(
        before_of(of_one.parts) == before_of(of_other.parts)
        for metric, of_one in one.metrics.items()
        if (of_other := other.metrics.get(metric)) is not None
    )


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


def parse_counts(texts: Sequence[bytes]) -> list[float]:
    """Parses numbers of events or readings, as :func:`parse_count` does each."""
    counts = parse_values(texts)
    if counts and (min(counts) < 1 or max(counts) > MAX_COUNT or not all(map(float.is_integer, counts))):
        return list(map(parse_count, texts))  # its error names the problem
    return counts


def _parse_sum(text: bytes) -> float:
    return _OVERFLOWS[text] if text in _OVERFLOWS else parse_value(text)


def parse_all(found: "Statistic", texts: Sequence[bytes]) -> list[float]:
    """Parses cells of a listed statistic, at less cost than one by one. Raises ValueError if a sum is infinite, too."""
    if found.parse is parse_time:
        return list(map(parse_time, texts))
    if found.parse is _parse_deviation and any(text.startswith(b"-") for text in texts):
        return list(map(_parse_deviation, texts))
    return parse_counts(texts) if found.parse is parse_count else parse_values(texts)


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


def coverage(count: int, span: WindowSpan) -> float | None:
    """Returns the share of the expected readings that came, at most 1; None if their number is not known."""
    return span.expected and min(count / span.expected, 1.0)


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

    A sketch knows a quantile to 1 %, so it may exceed the range. Averages of earlier releases do through rounding.
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
    Statistic("coverage", lambda stats, span: coverage(stats.count, span)),
    # For merging only.
    Statistic("sketch", _part("sketch"), Sketch.from_bytes, part="sketch", listed=False),
    Statistic("rises", _part("rises"), Course.from_bytes, _of_value, "rises", listed=False),
    Statistic("held", _part("held"), Course.from_bytes, _of_sum, "held", listed=False),
    Statistic("sloped", _part("sloped"), Course.from_bytes, _of_sum, "sloped", listed=False),
)
_KNOWN = {statistic.name: statistic for statistic in (*_MOMENTS, *_OTHERS)}
ONLY_MERGED = tuple(statistic.name for statistic in _OTHERS if not statistic.listed)
"""The names of statistics that readers do not list."""
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

    The count is always written: it shows whether a row lacks readings.
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


_MOST_NAMES = 32  # of statistics for a glob
OTHER = "other"
"""Matches every metric, as ``*`` does."""


@dataclass(frozen=True)
class Statistics:
    """Which statistics a table's rows contain: globs of metrics with names of statistics; the first match counts.

    A metric that no glob matches has the default statistics. The constructor raises ValueError for an unknown name.

    Args:
        globs: the globs, each with the names of statistics.
        every_us: the declared time in µs from one event of a sensor to the next; None if none is declared.
    """

    globs: tuple[tuple[str, tuple[str, ...]], ...] = ()
    every_us: int | None = None

    def __post_init__(self) -> None:
        for glob, names in self.globs:
            if len({statistic(name).name for name in names}) != len(names):
                raise ValueError(f"{glob} has a statistic twice")
            if len(names) > _MOST_NAMES:
                raise ValueError(
                    f"{glob} has {len(names)} statistics, more than {_MOST_NAMES}; its sketch gives every quantile"
                )
            for name in names:
                check_declared(name)

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all statistics that are declared."""
        return frozenset(name for _, names in self.globs for name in names)

    @property
    def most_metrics(self) -> int:
        """The most distinct metrics in a window: with more statistics for each, fewer fit in a row."""
        return _most_metrics(self.globs)

    @cached_property
    def has_parts(self) -> bool:
        """Whether any statistic is computed from more than counts, sums and the like."""
        return any(statistic(name).part for name in self.names)

    @cached_property
    def has_quantiles(self) -> bool:
        """Whether any statistic is a quantile."""
        return any(statistic(name).part == "sketch" for name in self.names)

    @cached_property
    def carries(self) -> bool:
        """Whether any statistic depends on the last reading before a window."""
        return bool(self.carrying)

    @cached_property
    def carrying(self) -> str:
        """The first statistic that depends on the last reading before a window; "" if none does."""
        names = (name for _, names in self.globs for name in names)
        return next((name for name in names if (part := statistic(name).part) and PARTS[part].carries), "")

    def carries_to(self, metric: str) -> bool:
        """Returns whether any statistic of a metric depends on the last reading before a window."""
        return any(PARTS[part].carries for part in self.parts_of(metric))

    def span(self, window: Window, start_us: int) -> WindowSpan:
        """Returns the window that starts at ``start_us``, as statistics need it."""
        end_us = window.end_of(start_us)
        return WindowSpan(start_us, end_us, self.every_us and (end_us - start_us) / self.every_us)

    def of(self, metric: str) -> tuple[Statistic, ...]:
        """Returns the statistics that are written for a metric, in the order of their cells."""
        return _of(self.globs, metric) if self.globs else DEFAULT_STATISTICS

    def known_in(self, stats: WindowStats) -> bool:
        """Returns whether all parts that the statistics need are known."""
        return not self.has_parts or all(
            (of_metric.parts or {}).keys() >= set(self.parts_of(metric)) for metric, of_metric in stats.metrics.items()
        )

    def stats_of(self, times_us: Sequence[int], columns: Mapping[str, Sequence[float]]) -> WindowStats:
        """Returns the statistics of events, with their parts: times in µs, and each metric's values at these times."""
        stats = WindowStats()
        stats.extend(columns.items(), len(times_us))
        add_parts(stats, self, [(times_us, columns)])
        return stats

    def parts_of(self, metric: str) -> tuple[str, ...]:
        """Returns the names of the parts that a metric's statistics are computed from."""
        return _parts_of(self.globs, metric)


def check_declared(name: str) -> None:
    """Raises ValueError unless a schema may declare a statistic of that name."""
    if not statistic(name).listed:
        raise ValueError(f"{name} is written with the statistics that need it; leave it out")


def add_parts(
    stats: WindowStats,
    statistics: Statistics,
    readings: Iterable[tuple[Sequence[int], Mapping[str, Sequence[float]]]],
) -> None:
    """Adds the parts that the metrics' statistics are computed from, given times in µs and values of the readings."""
    gathered: dict[str, MetricReadings] = {}
    for times_us, columns in readings:
        for metric, values in columns.items():
            if statistics.parts_of(metric):
                series = gathered.setdefault(metric, MetricReadings([], []))
                series.times_us.extend(times_us)
                series.values.extend(values)
    for metric, series in gathered.items():
        stats.metrics[metric].parts = {name: PARTS[name].of(series) for name in statistics.parts_of(metric)}


@lru_cache(maxsize=1 << 14)
def _of(globs: tuple[tuple[str, tuple[str, ...]], ...], metric: str) -> tuple[Statistic, ...]:
    names = next((names for glob, names in globs if glob == OTHER or fnmatchcase(metric, glob)), DEFAULT)
    return complete(names)


@lru_cache(maxsize=64)
def _most_metrics(globs: tuple[tuple[str, tuple[str, ...]], ...]) -> int:
    most_cells = max(len(complete(names)) for _, names in (*globs, (OTHER, DEFAULT)))
    return MAX_METRICS * len(DEFAULT) // most_cells


@lru_cache(maxsize=1 << 14)
def _parts_of(globs: tuple[tuple[str, tuple[str, ...]], ...], metric: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.part for each in _of(globs, metric) if each.part))


BY_DEFAULT = Statistics()
