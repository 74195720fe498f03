"""Which statistics of which metrics a table's aggregate rows contain: the schema's ``[statistics]``."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache

from pipeline.core.statistics.definitions import DEFAULT, DEFAULT_STATISTICS, Statistic, WindowSpan, complete, statistic
from pipeline.core.statistics.parts import PARTS, MetricReadings
from pipeline.core.statistics.window_stats import MAX_METRICS, WindowStats
from pipeline.core.windows.fixed import Window

_MOST_NAMES = 32  # of statistics for a glob
OTHER = "other"
"""Matches every metric, as ``*`` does."""


@dataclass(frozen=True)
class Statistics:
    """Globs of metrics, each with the names of statistics; the first match counts.

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
    """Adds the parts that the metrics' statistics are computed from.

    Args:
        stats: the statistics of the same readings, which are changed in place.
        statistics: the rules that tell which parts these are.
        readings: the times in µs, with each metric's values at these times.
    """
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
