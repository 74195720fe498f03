"""Compares what an aggregate row counts with readings, and with other statistics of the same window."""

from collections.abc import Mapping
from math import isnan

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.statistics.parts import same_readings
from pipeline.core.statistics.rules import Statistics
from pipeline.core.statistics.window_stats import MetricStats, WindowStats

_TOLERANCE = 1e-9  # share of Σ|x| by which two sums of the same readings may differ


def counts_exactly(readings: WindowReadings, row: WindowStats, statistics: Statistics) -> bool:
    """Returns whether an aggregate row counts exactly these readings, by all that it contains besides their number.

    Sums may differ by their order of addition.
    """
    stats, magnitudes = readings.pane(statistics).stats, readings.magnitudes()
    if stats.events != row.events or stats.metrics.keys() != row.metrics.keys():
        return False
    return all(
        _agree(of_metric, row.metrics[metric], magnitudes[metric]) for metric, of_metric in stats.metrics.items()
    )


def _agree(one: MetricStats, row: MetricStats, magnitude: float) -> bool:
    compared = [
        (one.minimum, row.minimum),
        (one.maximum, row.maximum),
        (one.total, row.total if abs(one.total - row.total) > _TOLERANCE * magnitude else one.total),
    ]
    told = [ours == theirs for ours, theirs in compared if not isnan(theirs)]
    told += [same_readings((one.parts or {}).get(name), part) for name, part in (row.parts or {}).items()]
    return one.count == row.count and bool(told) and all(told)


def larger(stored: Mapping[int, WindowStats], fresh: Mapping[int, WindowStats]) -> dict[int, WindowStats]:
    """Returns the union. Of a window in both, keeps the one that counts more; the fresh one if they count the same."""
    found = dict(stored)
    for start_us, stats in fresh.items():
        if start_us not in found or stats.size >= found[start_us].size:
            found[start_us] = stats
    return found
