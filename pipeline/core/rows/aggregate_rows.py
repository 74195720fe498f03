"""Writes and parses aggregate rows: one per sensor and window, with decimal text values.

A row of a longer tier also tells how much it counts of each shorter window, in one column: so it can be computed again
without losing anything when raw rows are gone. See :mod:`pipeline.core.notation.size_runs`. If roll-ups group sensors
by metadata, a row also tells that of its newest event, in one column. See :mod:`pipeline.core.statistics.member`.

The key is ``agg#hourly#{sensor_id}#{YYYY-MM-DDTHH}`` (for hourly windows) whatever the schema. The window knows what
follows ``agg#``, and the text of its start.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple, cast

from pipeline.core.events.event import is_sensor_id, name_of
from pipeline.core.notation.cell_values import format_value, parse_values, shown_bytes
from pipeline.core.notation.size_runs import parse_sizes, sizes_text
from pipeline.core.rows.records import AggregateRecord, MetricSummary, summary_of
from pipeline.core.rows.rows import Cell, ColumnBytes, EncodedRow, KeyRange, Row, delete_column, timestamp_of
from pipeline.core.statistics.member import member_bytes, parse_member
from pipeline.core.statistics.parts import Course
from pipeline.core.statistics.sketch import RELATIVE_ERROR, Sketch
from pipeline.core.statistics.window_stats import (
    BY_DEFAULT,
    DEFAULT,
    DEFAULT_STATISTICS,
    MAX_COUNT,
    MetricStats,
    Statistic,
    Statistics,
    Value,
    WindowStats,
    limited,
    parse_count,
    qualifier_of,
    split_qualifier,
)
from pipeline.core.windows import Window

READING_COUNT, WINDOW_SIZES, MEMBER = "reading_count", "window_sizes", "member"
_READING_COUNT, _WINDOW_SIZES, _MEMBER = READING_COUNT.encode(), WINDOW_SIZES.encode(), MEMBER.encode()
OF_WRITERS = frozenset({WINDOW_SIZES, MEMBER})
"""The columns without a statistic: only what computes rows reads them."""

_OF_WRITERS = frozenset({_WINDOW_SIZES, _MEMBER})
_LATEST_VERSION_US = (1 << 56) // 1000 * 1000  # in 4253: another program's row may claim any count
_COUNT = b"count_"
_new = tuple.__new__  # makes an EncodedRow in half the time of its own constructor
_STATES = (Sketch, Course)  # values that are not numbers


class AggregateKey(NamedTuple):
    """The parts of an aggregate row's key."""

    sensor_id: str
    start_us: int


def aggregate_prefix(window: Window) -> str:
    """Returns the common prefix of the keys of all these windows."""
    return f"agg#{window.label}#"


def aggregate_key(window: Window, sensor_id: str, start_us: int) -> bytes:
    """Returns the key of the sensor's window that starts at ``start_us``."""
    before, after = _around_sensor(window, start_us)
    return before + sensor_id.encode() + after


def parse_aggregate_key(window: Window, key: bytes) -> AggregateKey:
    """Parses an aggregate row's key. Raises ValueError if :func:`aggregate_key` does not write such a key."""
    text = key.decode()
    prefix = aggregate_prefix(window)
    if not text.startswith(prefix):
        raise ValueError(f"it is not the key of a window of {window.text}")
    sensor_id, _, start = text.removeprefix(prefix).partition("#")
    try:
        start_us = _parsed_start(window, start)
    except ValueError:
        raise ValueError(f"it is not the key of a window of {window.text}") from None
    if not is_sensor_id(sensor_id):
        raise ValueError("it does not contain a valid sensor_id")
    return AggregateKey(sensor_id, start_us)


def sensor_prefix(key: bytes, _: AggregateKey) -> bytes:
    """Returns the prefix of all windows of the key's sensor."""
    return key[: key.rindex(b"#") + 1]


def starts_in(window: Window, keys: Sequence[bytes]) -> list[int]:
    """Returns the start in µs of each of a sensor's windows. Raises ValueError as :func:`parse_aggregate_key` does."""
    parse_aggregate_key(window, keys[0])
    before = keys[0].rindex(b"#") + 1
    if not all(map(keys[0][:before].__eq__, [key[:before] for key in keys])):
        raise ValueError("they are of several sensors")
    return [_parsed_start(window, key[before:].decode()) for key in keys]


def aggregate_range(window: Window, sensor_id: str, start_us: int, end_us: int) -> KeyRange:
    """Returns the key range of a sensor's windows that start in [``start_us``, ``end_us``), oldest first."""
    first, end = window.first_start(start_us), window.first_start(end_us)
    return KeyRange(aggregate_key(window, sensor_id, first), aggregate_key(window, sensor_id, end))


def version_us(start_us: int, size: int) -> int:
    """Returns the timestamp of a window's cells: its start, and a millisecond for each event and reading counted.

    So the row that counts most is the newest in whatever order rows arrive, and its age is still that of the window.
    """
    return min(start_us + 1000 * size, _LATEST_VERSION_US)


def size_of(row: Row) -> int:
    """Returns the number of events and readings that an aggregate row counts. Cells that readers refuse count none."""
    size = 0
    for cell in row.cells:
        if cell.qualifier == _READING_COUNT or cell.qualifier.startswith(_COUNT):
            with suppress(ValueError):
                size += int(parse_count(cell.value))
    return size


def aggregate_row(
    window: Window,
    sensor_id: str,
    start_us: int,
    stats: WindowStats,
    family: str,
    statistics: Statistics = BY_DEFAULT,
) -> Row:
    """Returns the complete row of one sensor's window. A row of the same window that counts more hides its cells."""
    values, time_us = values_of(window, start_us, stats, statistics), version_us(start_us, stats.size)
    cells = [Cell(family, name.encode(), time_us, _text(value)) for name, value in values.items()]
    cells += [Cell(family, qualifier, time_us, value) for qualifier, value in _other_cells(stats)]
    return Row(aggregate_key(window, sensor_id, start_us), cells)


def encoded_aggregate_row(
    window: Window,
    sensor_id: str,
    start_us: int,
    stats: WindowStats,
    family: str,
    statistics: Statistics = BY_DEFAULT,
) -> EncodedRow:
    """Returns :func:`aggregate_row` with its cells encoded. This is several times faster than encoding that row.

    If a statistic is not known, as of a window with rows from before the statistic was declared, the row deletes what a
    row that counts less says of it.
    """
    version = version_us(start_us, stats.size)
    time, deletions = timestamp_of(version), list[bytes]()
    text = b"%d" % stats.events
    before, between = _column(family, _READING_COUNT)[len(text)]
    parts = [before, time, between, text]
    for metric, named, values in named_values(window, start_us, stats, statistics):
        plain = named is DEFAULT_STATISTICS  # numbers: this is format_value, without the call
        columns = _columns(family, metric, named)
        for at, value in enumerate(values):  # a strict zip costs a tenth more
            if plain:
                text = repr(value).removesuffix(".0").encode()
            elif value is None:
                deletions.append(delete_column(family, qualifier_of(named[at].name, metric).encode(), version))
                continue
            else:
                text = _text(value)
            before, between = columns[at][len(text)]
            parts += before, time, between, text
    for qualifier, text in _other_cells(stats):
        before, between = _column(family, qualifier)[len(text)]
        parts += before, time, between, text
    count = len(parts) // 4 + len(deletions)
    return _new(EncodedRow, (aggregate_key(window, sensor_id, start_us), b"".join((*parts, *deletions)), count))


def aggregate_record(
    window: Window, sensor_id: str, start_us: int, stats: WindowStats, statistics: Statistics
) -> AggregateRecord:
    """Returns what :func:`parse_aggregate_row` returns for the row with these statistics."""
    metrics = {
        metric: summary_of({each.name: value for each, value in zip(named, values, strict=True) if value is not None})
        for metric, named, values in named_values(window, start_us, stats, statistics)
    }
    return AggregateRecord(sensor_id, start_us, window, stats.events, metrics)


def values_of(window: Window, start_us: int, stats: WindowStats, statistics: Statistics) -> dict[str, Value]:
    """Returns the values of a window's aggregate row by column."""
    found: dict[str, Value] = {READING_COUNT: stats.events}
    for metric, named, values in named_values(window, start_us, stats, statistics):
        for each, value in zip(named, values, strict=True):
            if value is not None:
                found[qualifier_of(each.name, metric)] = value
    return found


def named_values(
    window: Window, start_us: int, stats: WindowStats, statistics: Statistics
) -> Iterator[tuple[str, tuple[Statistic, ...], Sequence[Value | None]]]:
    """Yields each metric, its statistics and their values; None for a value that is not known."""
    span = None
    for metric, of in stats.metrics.items():
        named = statistics.of(metric)
        if named is DEFAULT_STATISTICS:  # the same, without a call for each
            yield metric, named, (of.count, of.total, of.minimum, of.maximum, of.average, of.deviation)
        else:
            span = span or statistics.span(window, start_us)
            yield metric, named, [each.value(of, span) for each in named]


def _other_cells(stats: WindowStats) -> Iterator[tuple[bytes, bytes]]:
    """Yields the columns beside the statistics, and their values."""
    if stats.sizes:
        yield _WINDOW_SIZES, sizes_text(stats.sizes)
    if stats.member is not None:
        yield _MEMBER, member_bytes(stats.member)


def _text(value: Value) -> bytes:
    if isinstance(value, _STATES):
        return value.to_bytes()
    return format_value(value)


def parse_aggregate_row(
    window: Window, row: Row, statistics: Statistics = BY_DEFAULT, *, counted: bool = True
) -> AggregateRecord:
    """Parses an aggregate row. :func:`stats_of` turns the record into statistics that can be merged.

    A metric whose statistics the schema declares may lack those that were declared later, and those that are older than
    the metric's count, from a row that counts less. If the number of events was not ``counted`` among the columns that
    were read, it is 0.

    Raises:
        ValueError: :func:`aggregate_row` does not write such a row: the key, a column or a value is invalid, the number
            of events is missing, or a metric lacks a statistic or has a minimum above its maximum.
    """
    sensor_id, start_us = parse_aggregate_key(window, row.key)
    events: Value = 0.0
    found: dict[str, dict[str, Value]] = defaultdict(dict)
    counted_us = _counted_us(row)
    for cell in row.cells:
        try:
            value = parse_statistic(cell.qualifier, cell.value)
        except ValueError as error:
            raise ValueError(f"{shown_bytes(cell.qualifier)}: {error}") from error
        if cell.qualifier == _READING_COUNT:
            events = value
        elif cell.qualifier not in _OF_WRITERS and cell.timestamp_us >= counted_us:
            statistic, metric = split_qualifier(cell.qualifier.decode())
            found[metric][statistic.name] = value
    if not found or (counted and not events):
        raise ValueError(f"it has no {READING_COUNT}" if found else "it has no metric")
    metrics = {metric: _summary(metric, of_metric, statistics.of(metric)) for metric, of_metric in found.items()}
    return AggregateRecord(sensor_id, start_us, window, int(cast(float, events)), metrics)


def _counted_us(row: Row) -> int:
    """Returns the timestamp of a row's counts: older cells are from a row that counts less."""
    return max([cell.timestamp_us for cell in row.cells if cell.qualifier.startswith(_COUNT)], default=0)


def qualifiers(metrics: Iterable[str], statistics: Statistics = BY_DEFAULT) -> tuple[bytes, ...]:
    """Returns the columns of these metrics, and that of the number of events."""
    return (_READING_COUNT, *columns_of(metrics, statistics))


def columns_of(metrics: Iterable[str], statistics: Statistics = BY_DEFAULT) -> tuple[bytes, ...]:
    """Returns only the columns of these metrics: a read of them leaves out rows that have none of the metrics."""
    return tuple(qualifier_of(each.name, metric).encode() for metric in metrics for each in statistics.of(metric))


def only_counts_events(row: Row) -> bool:
    """Whether the row has no column but the number of events: the requested metrics are not in it."""
    return all(cell.qualifier == _READING_COUNT for cell in row.cells)


def parse_statistic(qualifier: bytes, value: bytes) -> Value:
    """Parses the value of a column of an aggregate row. Readers refuse what it refuses, and audits rewrite it.

    Counts are whole numbers from 1 to 2**53. Sums and deviations may be infinite; the other values are finite. The
    value of the sizes of windows is their number, and that of the newest event its time.

    Raises:
        ValueError: aggregate rows have no such column, or it never contains such a value.
    """
    if qualifier == _READING_COUNT:
        return parse_count(value)
    if qualifier == _WINDOW_SIZES:
        return float(len(parse_sizes(value)))
    if qualifier == _MEMBER:
        return float(parse_member(value).time_us)
    statistic, metric = split_qualifier(qualifier.decode())
    name_of(metric.encode())
    return statistic.parse(value)


def as_read(column: str, value: float, row: Mapping[str, bytes]) -> float:
    """Returns the value of a column as readers show it.

    Args:
        column: the column's name, like ``p95_temperature``.
        value: the value that is stored.
        row: the stored values of the row, by column.
    """
    found, metric = split_qualifier(column)
    if not found.limited:
        return value
    extremes = (row.get(qualifier_of(name, metric), b"nan") for name in ("min", "max"))
    try:
        return limited(value, *map(float, extremes))
    except ValueError:  # another program wrote them
        return value


def was_quantile(column: str, value: object, right: Value | None, row: Mapping[str, bytes]) -> bool:
    """Returns whether a value is a quantile beyond the extremes, as earlier releases wrote, and reads as right.

    Arguments are those of :func:`as_read`, and the right value.
    """
    if not isinstance(value, float) or not isinstance(right, float) or split_qualifier(column)[0].part != "sketch":
        return False
    return abs(value - right) <= 2 * RELATIVE_ERROR * abs(right) and as_read(column, value, row) == right


def parse_window_stats(window: Window, row: Row, statistics: Statistics = BY_DEFAULT) -> tuple[int, WindowStats]:
    """Returns the start in µs and all statistics of an aggregate row. Raises as :func:`parse_aggregate_row` does."""
    stats = _plain_stats(row.cells, statistics)
    if stats is not None:
        start_us = parse_aggregate_key(window, row.key).start_us
    else:
        record = parse_aggregate_row(window, row, statistics)
        start_us, stats = record.start_us, stats_of(record)
    for cell in row.cells:
        if cell.qualifier not in _OF_WRITERS or cell.timestamp_us < _counted_us(row):
            continue
        try:
            if cell.qualifier == _WINDOW_SIZES:
                stats.sizes = parse_sizes(cell.value)
            else:
                stats.member = parse_member(cell.value)
        except ValueError as error:
            raise ValueError(f"{shown_bytes(cell.qualifier)}: {error}") from error
    return start_us, stats


class _PlainColumns(NamedTuple):
    """Where a row with certain columns has what."""

    metrics: tuple[str, ...]
    numbers: tuple[int, ...]


def _plain_stats(cells: Sequence[Cell], statistics: Statistics) -> WindowStats | None:
    """Returns the default statistics of a row, parsed together: several times as fast as column by column.

    None of a row with anything else, or with a value that such a row never has.
    """
    columns = _plain_columns(tuple([cell.qualifier for cell in cells]), statistics)
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
def _plain_columns(qualifiers: tuple[bytes, ...], statistics: Statistics) -> _PlainColumns | None:
    """Returns where a row with these columns has what; None if it is not a plain one."""
    places: dict[str, dict[str, int]] = {}
    events = None
    for index, qualifier in enumerate(qualifiers):
        if qualifier == _READING_COUNT:
            events = index
        elif qualifier not in _OF_WRITERS:
            try:
                statistic, metric = split_qualifier(qualifier.decode())
                name_of(metric.encode())
            except ValueError:
                return None
            places.setdefault(metric, {})[statistic.name] = index
    if events is None or not places or len(set(qualifiers)) < len(qualifiers):
        return None
    if any(set(each) != set(DEFAULT) for each in places.values()):
        return None
    if any(statistics.of(metric) is not DEFAULT_STATISTICS for metric in places):
        return None
    return _PlainColumns(tuple(places), (events, *(each[name] for each in places.values() for name in DEFAULT)))


def stats_of(record: AggregateRecord) -> WindowStats:
    """Returns the statistics that the row was made from.

    A deviation is at most half the width of the range of readings: earlier releases wrote infinite ones of very large
    readings. What the row does not contain is NaN.
    """
    stats = WindowStats()
    stats.events = record.reading_count
    for metric, summary in record.metrics.items():
        of_metric = stats.metrics[metric] = MetricStats()
        of_metric.count = summary.count
        of_metric.total = _or_nan(summary.sum)
        of_metric.minimum = least = _or_nan(summary.min)
        of_metric.maximum = most = _or_nan(summary.max)
        of_metric.average = _or_nan(summary.avg)
        of_metric.deviation = min(_or_nan(summary.stddev), most / 2 - least / 2)  # the first, if the other is NaN
        of_metric.parts = summary.parts
    return stats


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


@lru_cache(maxsize=1024)
def _columns(family: str, metric: str, named: tuple[Statistic, ...]) -> tuple[ColumnBytes, ...]:
    return tuple(_column(family, qualifier_of(each.name, metric).encode()) for each in named)


@lru_cache(maxsize=8192)
def _column(family: str, qualifier: bytes) -> ColumnBytes:
    return ColumnBytes(family, qualifier)


@lru_cache(maxsize=1024)
def _around_sensor(window: Window, start_us: int) -> tuple[bytes, bytes]:
    """Returns what is before and after the sensor's id in the keys of windows with this start."""
    return aggregate_prefix(window).encode(), f"#{window.start_text(start_us)}".encode()


@lru_cache(maxsize=8192)
def _parsed_start(window: Window, start: str) -> int:
    return window.parse_start(start)


def _summary(metric: str, found: dict[str, Value], named: tuple[Statistic, ...]) -> MetricSummary:
    required = [each.name for each in named] if named is DEFAULT_STATISTICS else ["count"]
    if missing := [name for name in required if name not in found]:
        raise ValueError(f"metric {metric} has no {', '.join(missing)}")
    if "min" in found and "max" in found and found["min"] > found["max"]:  # type: ignore[operator]
        raise ValueError(f"metric {metric} has a minimum above its maximum")
    return summary_of(found)
