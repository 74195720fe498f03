"""Statistics of a window that can be built in parts and merged in any order.

Averages and deviations follow Welford for one value and Chan, Golub and LeVeque for merging: B. P. Welford, "Note on a
method for calculating corrected sums of squares and products", Technometrics 4 (1962); T. F. Chan, G. H. Golub, R. J.
LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979). A sum of squares would lose
every digit where the average is large beside the spread.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from math import hypot, inf, sqrt

# Scaled down by this, no sum of fewer than 2^64 doubles overflows.
_DOWN, _UP = 2.0**-64, 2.0**64


class MetricStats:
    """Count, sum, minimum, maximum, average and population standard deviation of one metric's finite values.

    All zero, and the extremes infinite, until something is added. Then, in whatever order values are added and merged:

    - Count, minimum and maximum are exact, and the average lies between minimum and maximum.
    - The sum is exact to 1e-9 · Σ|x|. It is infinite only where the average times the count is: when a sum overflows on
      the way and comes back into range, it is finite again.
    - The deviation is finite, and exact to 1e-9 · Σ|x| / count or, among the least of doubles, to count · 5e-324. It is
      0 where all values are equal, and only there unless it is below that.
    """

    __slots__ = ("average", "count", "deviation", "maximum", "minimum", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.minimum = inf
        self.maximum = -inf
        self.average = 0.0
        self.deviation = 0.0  # not its square, nor a sum of squares: these overflow or vanish where it does not

    @classmethod
    def of(cls, values: Sequence[float]) -> "MetricStats":
        """Of one finite value or more: where there are many, much faster than to add them one by one."""
        found = cls()
        found.count = count = len(values)
        found.minimum = minimum = min(values)
        found.maximum = maximum = max(values)
        # Exact: an error of the average, which grows with a plain sum, would be in every deviation from it.
        try:
            found.total = total = math.fsum(values)
            average = total / count
        except OverflowError:
            down = math.fsum([value * _DOWN for value in values])
            found.total = down * _UP
            average = down / count * _UP
        found.average = average = min(max(average, minimum), maximum)  # rounding may have taken it out of there
        distance = math.dist(values, [average] * count)  # √Σ(x − average)², at the speed of C
        found.deviation = distance / sqrt(count)
        if distance == inf:  # the deviation is not: but for rounding, it is at most half the range
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
        if 1e-250 < variance < 1e250 and minimum <= average <= maximum:  # squares are fast, and harmless in this range
            self.average = average
            self.deviation = sqrt(variance)
        elif delta or deviation:
            self._combine((count - 1) / count, 1 / count, value, 0.0)

    def merge(self, other: "MetricStats") -> None:
        """Adds everything that ``other`` has seen."""
        if not other.count:
            return
        if not self.count:
            self.count, self.total, self.average = other.count, other.total, other.average
            self.minimum, self.maximum, self.deviation = other.minimum, other.maximum, other.deviation
            return
        before, more = self.count, other.count
        self.count = count = before + more
        self.total += other.total
        if other.minimum < self.minimum:
            self.minimum = other.minimum
        if other.maximum > self.maximum:
            self.maximum = other.maximum
        self._combine(before / count, more / count, other.average, other.deviation)

    def _combine(self, own: float, others: float, average: float, deviation: float) -> None:
        """Combines average and deviation, with their shares of the count; the other statistics are combined already."""
        apart = sqrt(own * others)
        inside, beside = self.deviation * sqrt(own), deviation * sqrt(others)
        combined = hypot(inside, beside, (average - self.average) * apart)
        if combined == inf:  # the averages are further apart than the greatest double, or rounding went beyond it
            between = (average / 2 - self.average / 2) * (2 * apart)
            combined = min(hypot(inside, beside, between), self.maximum / 2 - self.minimum / 2)
        self.deviation = combined
        overflow = not -inf < self.total < inf  # also of +inf − inf
        middle = self.average * own + average * others if overflow else self.total / self.count
        if middle < self.minimum:  # by rounding, like ten times 65.2, whose sum is 652.0000000000001
            middle = self.minimum
        elif middle > self.maximum:
            middle = self.maximum
        self.average = middle
        if overflow:
            self.total = middle * self.count


class WindowStats:
    """How many events a window has seen of a sensor, and the statistics of each metric."""

    __slots__ = ("events", "metrics")

    def __init__(self) -> None:
        self.events = 0
        self.metrics: dict[str, MetricStats] = {}

    def add(self, readings: Mapping[str, float]) -> None:
        """Adds one event's readings, metric name to finite value."""
        self.events += 1
        for metric, value in readings.items():
            stats = self.metrics.get(metric)
            if stats is None:
                stats = self.metrics[metric] = MetricStats()
            stats.add(value)

    def extend(self, columns: Iterable[tuple[str, Sequence[float]]], events: int) -> None:
        """Adds so many events' readings: metrics with their finite values, at least one."""
        self.events += events
        for metric, values in columns:
            of_values = MetricStats.of(values)
            stats = self.metrics.setdefault(metric, of_values)
            if stats is not of_values:
                stats.merge(of_values)

    @property
    def size(self) -> int:
        """How many events and readings it has seen: of two panes of a window, the later one has more, or is equal."""
        return self.events + sum(stats.count for stats in self.metrics.values())

    def merge(self, other: "WindowStats") -> None:
        """Adds everything that ``other`` has seen; ``other`` stays as it is."""
        self.events += other.events
        for metric, stats in other.metrics.items():
            self.metrics.setdefault(metric, MetricStats()).merge(stats)
