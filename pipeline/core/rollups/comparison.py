"""Compares stored rows with what they should contain: aggregate rows, contributions, parts, and the rows of groups.

Counts, minima and maxima must be equal. The order in which windows are merged is not fixed, so sums may differ by
1e-9 · Σ|x|, averages and deviations by that divided by the count. Deviations and means over time near the smallest
double may differ by count · 5e-324. An infinite sum is compared as the greatest double: near it, one order of addition
overflows and another does not. A quantile beyond the extremes, as earlier releases wrote, is compared as readers show
it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import inf
from sys import float_info
from typing import Any, NamedTuple

from pipeline.core.notation.cell_values import parse_value
from pipeline.core.notation.times import format_time
from pipeline.core.rollups.contributions import NOTHING
from pipeline.core.rollups.group_rules import GroupRules
from pipeline.core.rollups.levels import EMPTY, GroupWindow, merged
from pipeline.core.rollups.sums import aligned, is_sums, moments_of, read_sums, text_in, window_stats_of
from pipeline.core.rows.aggregate_rows import READING_COUNT, parse_statistic, was_quantile
from pipeline.core.rows.rollup_rows import EXPECTED, SENSORS, Versioned
from pipeline.core.schema.table_schema import Tier
from pipeline.core.statistics.parts import Course
from pipeline.core.statistics.sketch import Sketch
from pipeline.core.statistics.window_stats import MetricStats, Value, WindowStats, split_qualifier, statistic

_MOMENTS = tuple(map(statistic, ("count", "sum", "min", "max", "avg", "stddev")))
_GREATEST = float_info.max
_MAX_EXACT = 2**53  # doubles represent every integer up to this
_NUMBERS = {SENSORS, EXPECTED, READING_COUNT}

StoredValue = Value | str | None
"""A column's value; None if the row lacks the column, text if Tidetable never writes such a value, or an event."""


class WrongColumn(NamedTuple):
    """A column of a row that is wrong, like ``sum_temperature``: its stored value and the right one."""

    column: str
    stored: StoredValue
    right: StoredValue


class WrongGroup(NamedTuple):
    """A group's window whose rows are wrong.

    Attributes:
        of: the group's window.
        columns: the wrong columns of its row; none if only parts are wrong, or versions.
        sensors: the number of sensors that it should have.
        missing: whether there is no row.
        shards: the shards whose parts are wrong.
    """

    of: GroupWindow
    columns: tuple[WrongColumn, ...]
    sensors: int
    missing: bool
    shards: frozenset[int]

    def record(self, tiers: Sequence[Tier]) -> dict[str, Any]:
        """Returns this as a JSON object, given the table's tiers."""
        window = tiers[self.of.tier].window
        problem = "no row" if self.missing else "differs"
        if not self.columns:
            problem = "parts differ"
        elif not self.sensors:
            problem = "no sensors"
        return {
            "rollup": self.of.group.name,
            "value": self.of.group.value,
            "window": window.text,
            "start": window.shown(self.of.start_us),
            "problem": problem,
            "differences": differences_in_json(self.columns, "merged"),
        }


def differences_in_json(wrong: Iterable[WrongColumn], right: str) -> dict[str, dict[str, float | str | None]]:
    """Returns wrong columns as a JSON object; ``right`` names the field of the right value."""
    return {each.column: {"stored": _in_json(each.stored), right: _in_json(each.right)} for each in wrong}


def stored_value(name: str, text: bytes | None) -> StoredValue:
    """Parses a stored value. Returns it as text if it is invalid, for which readers skip the row."""
    if text is None:
        return None
    try:
        return parse_value(text) if name in _NUMBERS else parse_statistic(name.encode(), text)
    except ValueError:
        return text.decode(errors="backslashreplace")


def wrong_columns(
    stored: Mapping[str, bytes],
    right: Mapping[str, Value],
    stats: WindowStats,
    magnitudes: Mapping[str, float] | None = None,
    ignored: Collection[str] = (),
) -> Iterator[WrongColumn]:
    """Yields the columns of a row that are wrong: the numbers first, then by name.

    Args:
        stored: the columns that are used of the stored row.
        right: the right values.
        stats: the statistics that these are from.
        magnitudes: Σ|x| by metric, as far as known.
        ignored: columns that are not compared.
    """
    for name in sorted(
        (stored.keys() | right.keys()).difference(ignored), key=lambda each: (each not in _NUMBERS, each)
    ):
        value, expected = stored_value(name, stored.get(name)), right.get(name)
        if value != expected and not _agree(name, value, expected, stats, magnitudes or {}, stored):
            yield WrongColumn(name, value, float(expected) if isinstance(expected, int) else expected)


def _agree(
    name: str,
    stored: StoredValue,
    right: Value | None,
    stats: WindowStats,
    magnitudes: Mapping[str, float],
    row: Mapping[str, bytes],
) -> bool:
    if name in _NUMBERS:
        return False
    if was_quantile(name, stored, right, row):
        return True
    if isinstance(stored, Course) and isinstance(right, Course):
        if stored._replace(amount=right.amount) != right:
            return False
        stored, right = stored.amount, right.amount
    if not isinstance(stored, float) or not isinstance(right, float):
        return False
    found, metric = split_qualifier(name)
    of_metric = stats.metrics[metric]
    # Σ|x| may overflow although no reading does. The greatest magnitude is never less than the mean magnitude.
    magnitude = min(magnitudes.get(metric, inf) / of_metric.count, _magnitude(of_metric))
    return _close(stored, right, found.tolerance(magnitude, of_metric.count, right))


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


def audit_group(
    rules: GroupRules,
    of: GroupWindow,
    parts: Mapping[int, Versioned],
    stored: Mapping[int, Versioned],
    row: Mapping[bytes, Versioned],
) -> tuple[WrongGroup | None, bool]:
    """Returns what is wrong with a group, if anything; and whether the group has sensors, or a row that says so.

    A version is wrong if it is greater than it should be: what counts more could not replace the cell.

    Args:
        rules: the table's roll-ups.
        of: the group's window.
        parts: the parts of all shards that have sensors of the group.
        stored: the stored parts.
        row: the cells of the group's stored row.
    """
    wrong = {shard for shard in parts.keys() | stored.keys() if not _is_part(stored.get(shard), parts.get(shard))}
    right = merged(rules, of, {**{shard: cell for shard, cell in stored.items() if shard not in wrong}, **parts})
    counted = row.get(SENSORS.encode())
    columns = {
        column.decode(errors="backslashreplace"): cell.value
        for column, cell in row.items()
        if counted is not None and cell.version == counted.version
    }
    exists = bool(right.sensors) or columns.get(SENSORS, b"0") != b"0"
    differing: tuple[WrongColumn, ...] = ()
    if exists and columns != right.columns:
        values = {name: _value(name, text) for name, text in right.columns.items()}
        differing = tuple(wrong_columns(columns, values, right.stats))
    version = sum(
        (parts if shard in wrong else stored)[shard].version for shard in parts.keys() | stored.keys() - wrong
    )
    is_ahead = counted is not None and counted.version > version
    if not wrong and not differing and not is_ahead:
        return None, exists
    return WrongGroup(of, differing, right.sensors, counted is None, frozenset(wrong)), True


def _value(name: str, text: bytes) -> Value:
    return parse_value(text) if name in _NUMBERS else parse_statistic(name.encode(), text)


def _is_part(stored: Versioned | None, part: Versioned | None) -> bool:
    """Returns whether a stored part says what it should; of a shard without sensors, it says that there are none."""
    if stored is None or not is_sums(stored.value):
        return False
    return same_sums(stored.value, part.value if part else EMPTY) and (part is None or stored.version <= part.version)


def _in_json(value: StoredValue) -> float | str | None:
    """Returns a value for JSON: infinite numbers, which JSON lacks, sketches and courses become text."""
    if isinstance(value, Sketch):
        return f"a sketch of {value.count} values"
    if isinstance(value, Course):  # the readings at its edges are all that a person can check
        edges = [value.before, value.first, value.last]
        return "a course " + ", ".join(f"{at.value} at {format_time(at.time_us)}" for at in edges if at)
    if not isinstance(value, float):
        return value
    if not -inf < value < inf:
        return str(value)
    return int(value) if value.is_integer() and abs(value) < _MAX_EXACT else value


def _newest_in(data: bytes) -> bytes:
    """Returns the metadata of a sensor's newest event: earlier metadata is not compared."""
    return text_in(data).partition(b"\n")[0]


def _same_metric(one: MetricStats, other: MetricStats) -> bool:
    if (one.parts or {}).keys() != (other.parts or {}).keys():
        return False
    pairs = zip(moments_of(one), moments_of(other), _MOMENTS, strict=True)
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


def _magnitude(stats: MetricStats) -> float:
    return max(-stats.minimum, stats.maximum)


def _close(one: float, other: float, tolerance: float) -> bool:
    if one == other or (one != one and other != other):
        return True
    one, other = (min(max(value, -_GREATEST), _GREATEST) for value in (one, other))
    return tolerance > 0 and abs(one - other) <= tolerance
