"""Computes a window's statistics in parts that merge in any order.

Averages and deviations follow Welford for one value and Chan, Golub and LeVeque for merging: B. P. Welford, "Note on a
method for calculating corrected sums of squares and products", Technometrics 4 (1962); T. F. Chan, G. H. Golub, R. J.
LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979). A sum of squares would lose
all precision if the average is large compared to the spread.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from math import hypot, inf, isnan, sqrt
from typing import Any

from pipeline.core.statistics.courses import At
from pipeline.core.statistics.member import Member, later
from pipeline.core.statistics.parts import before_of, last_of, merged

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

    What an aggregate row does not tell is NaN. ``parts`` are those of :mod:`pipeline.core.statistics.parts` that are
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
        """Combines the averages and deviations of two parts; the other statistics must be combined already.

        Args:
            own: this part's share of the count.
            others: the other part's share of the count.
            average: the other part's average.
            deviation: the other part's deviation.
        """
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

    Of a longer window, ``sizes`` tells the size of each shorter one that it counts, by start in µs, if that is known.
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
        """Adds the readings of several events.

        Args:
            columns: each metric with its finite values, at least one.
            events: the number of events.
        """
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
