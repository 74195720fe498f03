"""Compares what roll-ups store with what they should: contributions, parts, and the rows of groups.

The order in which windows are merged is not fixed, so sums and what follows from them may differ by rounding, as in
aggregate rows.
"""

from collections.abc import Iterator, Mapping
from math import inf
from sys import float_info
from typing import NamedTuple

from pipeline.core.notation.cell_values import parse_value
from pipeline.core.rollups.contributions import NOTHING
from pipeline.core.rollups.sums import aligned, read_sums, text_in, window_stats_of
from pipeline.core.rows.aggregate_rows import READING_COUNT, parse_statistic, was_quantile
from pipeline.core.rows.rollup_rows import EXPECTED, SENSORS
from pipeline.core.statistics.sketch import Sketch
from pipeline.core.statistics.window_stats import MetricStats, Value, WindowStats, split_qualifier, statistic

_MOMENTS = tuple(map(statistic, ("count", "sum", "min", "max", "avg", "stddev")))
_GREATEST = float_info.max
_MAX_EXACT = 2**53  # doubles represent every integer up to this
_NUMBERS = {SENSORS, EXPECTED, READING_COUNT}


class WrongColumn(NamedTuple):
    """A column of a group's row that is wrong.

    Attributes:
        column: the column's name, like ``sum_temperature``.
        stored: the row's value; None if it lacks the column, text if no such value is ever written.
        merged: the right value, merged from the parts of the group; None if there should be no such column.
    """

    column: str
    stored: Value | str | None
    merged: Value | None


def same_sums(one: bytes, other: bytes) -> bool:
    """Returns whether two contributions, or two parts, say the same; :data:`NOTHING` is one without any sensor."""
    if one == other:
        return True
    try:
        if NOTHING in (one, other):
            return not read_sums(one or other).sensors
        first, second = read_sums(one), read_sums(other)
    except ValueError:
        return False  # of another release, or another program's
    if _newest_in(one) != _newest_in(other) or first[:2] != second[:2] or {*first.names} != {*second.names}:
        return False
    if aligned(first, second.names) == list(second.moments) and first.parts == second.parts:
        return True
    metrics = window_stats_of(second).metrics
    return all(_same_metric(stats, metrics[name]) for name, stats in window_stats_of(first).metrics.items())


def wrong_columns(
    stored: Mapping[str, bytes], merged: Mapping[str, bytes], stats: WindowStats
) -> Iterator[WrongColumn]:
    """Yields the columns of a group's row that are wrong: the numbers first, then by name.

    Args:
        stored: the columns that count in the stored row.
        merged: the right columns.
        stats: the statistics that these are from.
    """
    for name in sorted(stored.keys() | merged.keys(), key=lambda each: (each not in _NUMBERS, each)):
        one, other = stored.get(name), merged.get(name)
        if one == other:
            continue
        value, right = _value(name, one), _value(name, other)
        if not _agree(name, value, right, stats, stored):
            yield WrongColumn(name, value, None if isinstance(right, str) else right)


def value_in_json(value: Value | str | None) -> float | str | None:
    """Returns a value for JSON. Infinite numbers become text, because JSON has none."""
    if isinstance(value, Sketch):
        return f"a sketch of {value.count} values"
    if not isinstance(value, float):
        return value  # type: ignore[return-value]  # rows of groups have no courses
    if not -inf < value < inf:
        return str(value)
    return int(value) if value.is_integer() and abs(value) < _MAX_EXACT else value


def _newest_in(data: bytes) -> bytes:
    """Returns the metadata of a sensor's newest event: what it had before does not count."""
    return text_in(data).partition(b"\n")[0]


def _same_metric(one: MetricStats, other: MetricStats) -> bool:
    if (one.parts or {}).keys() != (other.parts or {}).keys():
        return False
    pairs = zip(_moments(one), _moments(other), _MOMENTS, strict=True)
    if not all(
        _close(first, second, each.tolerance(_magnitude(other), other.count, 0.0)) for first, second, each in pairs
    ):
        return False
    for name, part in (other.parts or {}).items():
        known = (one.parts or {})[name]
        if known == part:
            continue
        if name != "risen":
            return False
        if not all(_close(*each, 1e-9 * abs(each[1])) for each in zip(known, part, strict=True)):
            return False
    return True


def _moments(stats: MetricStats) -> tuple[float, ...]:
    return stats.count, stats.total, stats.minimum, stats.maximum, stats.average, stats.deviation


def _magnitude(stats: MetricStats) -> float:
    return max(-stats.minimum, stats.maximum)


def _agree(
    name: str, stored: Value | str | None, merged: Value | str | None, stats: WindowStats, row: Mapping[str, bytes]
) -> bool:
    if not isinstance(stored, float) or not isinstance(merged, float) or name in _NUMBERS:
        return stored == merged
    if was_quantile(name, stored, merged, row):
        return True
    found, metric = split_qualifier(name)
    of_metric = stats.metrics[metric]
    return _close(stored, merged, found.tolerance(_magnitude(of_metric), of_metric.count, merged))


def _close(one: float, other: float, tolerance: float) -> bool:
    if one == other or (one != one and other != other):
        return True
    # Near the greatest double, one order of addition overflows and another does not.
    one, other = (min(max(value, -_GREATEST), _GREATEST) for value in (one, other))
    return tolerance > 0 and abs(one - other) <= tolerance


def _value(name: str, text: bytes | None) -> Value | str | None:
    if text is None:
        return None
    try:
        return parse_value(text) if name in _NUMBERS else parse_statistic(name.encode(), text)
    except ValueError:
        return text.decode(errors="backslashreplace")
