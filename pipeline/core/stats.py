"""Statistics of a window that can be built in parts and merged in any order.

Mean and squared deviations follow Welford for one value and Chan, Golub and LeVeque for merging: B. P. Welford,
"Note on a method for calculating corrected sums of squares and products", Technometrics 4 (1962); T. F. Chan,
G. H. Golub, R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
A sum of squares would lose every digit where the mean is large beside the spread.
"""

import math
from collections.abc import Iterable, Mapping, Sequence


class MetricStats:
    """Count, sum, minimum, maximum, mean and spread of one metric. Empty until something is added.

    Nothing is ever NaN as long as the values are finite: a sum that overflows is infinite and stays so.
    """

    __slots__ = ("count", "m2", "maximum", "mean", "minimum", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.minimum = math.inf
        self.maximum = -math.inf
        self.mean = 0.0
        self.m2 = 0.0  # Σ(x − mean)²

    @classmethod
    def of(cls, values: Sequence[float]) -> "MetricStats":
        """Of one finite value or more: where there are many, much faster than to add them one by one."""
        found = cls()
        found.count = count = len(values)
        found.total = sum(values, 0.0)
        found.minimum = min(values)
        found.maximum = max(values)
        # Exact: an error of the mean, which grows with a plain sum, would be in every deviation from it.
        try:
            mean = math.fsum(values) / count
        except OverflowError:
            mean = sum([value / count for value in values])
        found.mean = mean = min(max(mean, found.minimum), found.maximum)  # rounding may have taken it out of there
        distance = math.dist(values, [mean] * count)  # √Σ(x − mean)², at the speed of C
        found.m2 = distance * distance
        return found

    def add(self, value: float) -> None:
        """Adds one finite value."""
        self.count += 1
        self.total += value
        if value < self.minimum:
            self.minimum = value
        if value > self.maximum:
            self.maximum = value
        delta = value - self.mean
        if math.isinf(delta):  # two values so far apart that their distance is no double
            self.mean += value / self.count - self.mean / self.count
            self.m2 = math.inf
        else:
            self.mean += delta / self.count
            self.m2 += delta * (value - self.mean)

    def merge(self, other: "MetricStats") -> None:
        """Adds everything that ``other`` has seen."""
        if not other.count:
            return
        count = self.count + other.count
        share = other.count / count
        delta = other.mean - self.mean
        if not self.count:
            self.mean, self.m2 = other.mean, other.m2
        elif math.isinf(delta):
            self.mean = self.mean * (1 - share) + other.mean * share
            self.m2 = math.inf
        else:
            self.mean += delta * share
            self.m2 += other.m2 + delta * delta * (self.count * share)
        self.count = count
        self.total += other.total
        if math.isnan(self.total):  # +inf and −inf: both had overflowed
            self.total = math.inf
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)

    @property
    def average(self) -> float:
        """The sum over the count, or the running mean where the sum has overflowed."""
        average = self.total / self.count
        return average if math.isfinite(average) else self.mean

    @property
    def deviation(self) -> float:
        """The population standard deviation."""
        return math.sqrt(self.m2 / self.count)


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
