"""Merges the results of shorter windows, such as hours, to that of the longer one that contains them, such as a day."""

from collections.abc import Mapping

from pipeline.core.accumulation.pane import Pane
from pipeline.core.statistics.rules import Statistics
from pipeline.core.statistics.window_stats import WindowStats


def merged(shorter: Mapping[int, WindowStats], statistics: Statistics) -> Pane:
    """Returns the result of a longer window.

    Args:
        shorter: the statistics of the shorter windows, by start in µs.
        statistics: the rules that tell which statistics a row contains, and how many metrics fit.
    """
    total = WindowStats()
    for start_us in sorted(shorter):
        stats = shorter[start_us]
        total.merge(stats)
        if stats.events and stats.member is None:
            total.member = None  # the newest event counts even if it does not tell its metadata: no roll-up needed it
    if len(total.metrics) > statistics.most_metrics:
        return Pane(WindowStats(), too_wide=True)
    total.sizes = {start_us: stats.size for start_us, stats in shorter.items()}
    return Pane(total)
