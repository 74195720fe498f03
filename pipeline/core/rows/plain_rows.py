"""Parses aggregate rows of the default statistics together: several times as fast as column by column.

A row with anything else, or with a value that such a row never has, is left to the caller.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from pipeline.core.events.event import name_of
from pipeline.core.notation.cell_values import parse_values
from pipeline.core.rows.rows import Cell
from pipeline.core.statistics.window_stats import (
    DEFAULT_STATISTICS,
    MAX_COUNT,
    MetricStats,
    Statistics,
    WindowStats,
    split_qualifier,
)

_NAMES = ("count", "sum", "min", "max", "avg", "stddev")


class _PlainColumns(NamedTuple):
    """Where a row with certain columns has what.

    Attributes:
        metrics: the metrics, in the order of their first columns.
        numbers: the indexes of the number of events, and of each metric's statistics.
    """

    metrics: tuple[str, ...]
    numbers: tuple[int, ...]


def plain_stats(cells: Sequence[Cell], of_writers: frozenset[bytes], statistics: Statistics) -> WindowStats | None:
    """Returns the statistics of a row, without what only writers read; None if another parser has to look at it.

    Args:
        cells: the row's cells.
        of_writers: the columns that only writers read.
        statistics: the rules that tell which statistics a row contains.
    """
    columns = _columns(tuple([cell.qualifier for cell in cells]), of_writers, statistics)
    if columns is None:
        return None
    try:
        events, *numbers = parse_values([cells[index].value for index in columns.numbers])
    except ValueError:
        return None  # also for sums that are infinite
    found = WindowStats()
    found.events = int(events)
    fits = 1 <= events <= MAX_COUNT and events.is_integer()
    first = 0
    for metric in columns.metrics:
        count, total, least, most, average, deviation = numbers[first : first + 6]
        first += 6
        fits = fits and 1 <= count <= MAX_COUNT and count.is_integer() and least <= most and deviation >= 0
        of_metric = found.metrics[metric] = MetricStats()
        of_metric.count, of_metric.total, of_metric.minimum, of_metric.maximum = int(count), total, least, most
        of_metric.average = min(max(average, least), most)
        of_metric.deviation = min(deviation, most / 2 - least / 2)
    return found if fits else None


@lru_cache(maxsize=4096)
def _columns(
    qualifiers: tuple[bytes, ...], of_writers: frozenset[bytes], statistics: Statistics
) -> _PlainColumns | None:
    """Returns where a row with these columns has what; None if it is not a plain one."""
    places: dict[str, dict[str, int]] = {}
    events = None
    for index, qualifier in enumerate(qualifiers):
        if qualifier == b"reading_count":
            events = index
        elif qualifier not in of_writers:
            try:
                statistic, metric = split_qualifier(qualifier.decode())
                name_of(metric.encode())
            except ValueError:
                return None
            places.setdefault(metric, {})[statistic.name] = index
    if events is None or not places or len(set(qualifiers)) < len(qualifiers):
        return None
    if any(set(each) != set(_NAMES) for each in places.values()):
        return None
    if any(statistics.of(metric) is not DEFAULT_STATISTICS for metric in places):
        return None
    return _PlainColumns(tuple(places), (events, *(each[name] for each in places.values() for name in _NAMES)))
