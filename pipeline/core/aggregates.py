"""Aggregate rows: one for a sensor and window, under ``agg#hourly#{sensor_id}#{YYYY-MM-DDTHH}``, whatever the schema.

All values are decimal text.
"""

import math
from collections import defaultdict
from datetime import datetime
from typing import NamedTuple

from pipeline.core.events import is_sensor_id, name_of
from pipeline.core.records import AggregateRecord, MetricSummary
from pipeline.core.rows import Cell, KeyRange, Row
from pipeline.core.stats import MetricStats, WindowStats
from pipeline.core.times import from_datetime, to_datetime
from pipeline.core.values import format_value, parse_value, shown_bytes
from pipeline.core.windows import DAILY, HOURLY, Window

READING_COUNT = "reading_count"
_READING_COUNT = READING_COUNT.encode()
STATISTICS = ("count", "sum", "min", "max", "avg", "stddev")

_FORMATS = {HOURLY.length: ("hourly", "%Y-%m-%dT%H"), DAILY.length: ("daily", "%Y-%m-%d")}
_ANY_OTHER_FORMAT = "%Y-%m-%dT%H:%M:%S"
_MOST_COUNTED = 2**53  # up to which every whole number is a double
_OVERFLOWS = {b"inf": math.inf, b"-inf": -math.inf}


class AggregateKey(NamedTuple):
    sensor_id: str
    start_us: int


def aggregate_prefix(window: Window) -> str:
    """What the keys of all sensors' windows of that length begin with."""
    return f"agg#{_label_and_format(window)[0]}#"


def aggregate_key(window: Window, sensor_id: str, start_us: int) -> bytes:
    """The key of the sensor's window that starts then."""
    start = to_datetime(start_us).strftime(_label_and_format(window)[1])
    return f"{aggregate_prefix(window)}{sensor_id}#{start}".encode()


def parse_aggregate_key(window: Window, key: bytes) -> AggregateKey:
    """What an aggregate row's key says. Raises ValueError where it is none that :func:`aggregate_key` writes."""
    text = key.decode()
    prefix = aggregate_prefix(window)
    if not text.startswith(prefix):
        raise ValueError(f"it is not the key of a window of {window.text}")
    sensor_id, _, start = text.removeprefix(prefix).partition("#")
    start_us = from_datetime(datetime.strptime(start, _label_and_format(window)[1]))
    if not is_sensor_id(sensor_id):
        raise ValueError("it has no sensor's id")
    # Of several texts for one time, which strptime takes, one alone is the key of the window.
    if start_us < 0 or start_us % window.length_us or aggregate_key(window, sensor_id, start_us) != key:
        raise ValueError(f"it is not the key of a window of {window.text}")
    return AggregateKey(sensor_id, start_us)


def aggregate_range(window: Window, sensor_id: str, start_us: int, end_us: int) -> KeyRange:
    """A sensor's windows that start from ``start_us``, inclusive, to ``end_us``, exclusive, oldest first."""
    length_us = window.length_us
    first, end = (-(-time_us // length_us) * length_us for time_us in (start_us, end_us))  # up to a window's start
    return KeyRange(aggregate_key(window, sensor_id, first), aggregate_key(window, sensor_id, end))


def aggregate_row(window: Window, sensor_id: str, start_us: int, stats: WindowStats, family: str) -> Row:
    """The row of one sensor's window, complete: whoever writes it later replaces every cell."""
    values: dict[str, float] = {READING_COUNT: stats.events}
    for metric, of_metric in stats.metrics.items():
        values |= {
            f"count_{metric}": of_metric.count,
            f"sum_{metric}": of_metric.total,
            f"min_{metric}": of_metric.minimum,
            f"max_{metric}": of_metric.maximum,
            f"avg_{metric}": of_metric.average,
            f"stddev_{metric}": of_metric.deviation,
        }
    cells = [Cell(family, name.encode(), start_us, format_value(value)) for name, value in values.items()]
    return Row(aggregate_key(window, sensor_id, start_us), cells)


def parse_aggregate_row(window: Window, row: Row) -> AggregateRecord:
    """The record that the row is, of which :func:`stats_of` makes an accumulator.

    Raises:
        ValueError: it is none that :func:`aggregate_row` writes: its key, a column, or a value that can't be; no number
            of events; a metric without all of its statistics, or whose minimum is above its maximum.
    """
    sensor_id, start_us = parse_aggregate_key(window, row.key)
    events = 0.0
    statistics: dict[str, dict[str, float]] = defaultdict(dict)
    for cell in row.cells:
        try:
            value = parse_statistic(cell.qualifier, cell.value)
        except ValueError as error:
            raise ValueError(f"{shown_bytes(cell.qualifier)}: {error}") from error
        if cell.qualifier == _READING_COUNT:
            events = value
        else:
            statistic, metric = split_qualifier(cell.qualifier.decode())
            statistics[metric][statistic] = value
    if not events or not statistics:
        raise ValueError(f"it has no {READING_COUNT}" if statistics else "it has no metric")
    metrics = {metric: _summary(metric, of_metric) for metric, of_metric in statistics.items()}
    return AggregateRecord(sensor_id, start_us, window, int(events), metrics)


def parse_statistic(qualifier: bytes, value: bytes) -> float:
    """The value of a column of an aggregate row.

    Counts are whole numbers from 1 to 2**53. A sum that overflowed is infinite, and a deviation may be; the other
    values are finite.

    Raises:
        ValueError: there is no such column, or it has no such value.
    """
    if qualifier == _READING_COUNT:
        return _parse_count(value)
    statistic, _, metric = qualifier.partition(b"_")
    name_of(metric)
    match statistic:
        case b"count":
            return _parse_count(value)
        case b"min" | b"max" | b"avg":
            return parse_value(value)
        case b"sum":
            return _OVERFLOWS[value] if value in _OVERFLOWS else parse_value(value)
        case b"stddev":
            deviation = math.inf if value == b"inf" else parse_value(value)
            if deviation < 0:
                raise ValueError(f"{shown_bytes(value)} is no deviation")
            return deviation
    raise ValueError(f"an aggregate has no column {shown_bytes(qualifier)}")


def stats_of(record: AggregateRecord) -> WindowStats:
    """The accumulator that the row was made of.

    An average outside of [minimum, maximum], and a deviation above half their distance, are taken to these bounds: rows
    that an earlier release wrote have such an average by rounding, and an infinite deviation of very large readings.
    """
    stats = WindowStats()
    stats.events = record.reading_count
    for metric, summary in record.metrics.items():
        of_metric = stats.metrics[metric] = MetricStats()
        of_metric.count = summary.count
        of_metric.total = summary.sum
        of_metric.minimum = summary.min
        of_metric.maximum = summary.max
        of_metric.average = min(max(summary.avg, summary.min), summary.max)
        of_metric.deviation = min(summary.stddev, summary.max / 2 - summary.min / 2)
    return stats


def split_qualifier(qualifier: str) -> tuple[str, str]:
    """``"sum_temperature"`` as ``("sum", "temperature")``. Not for :data:`READING_COUNT`."""
    statistic, _, metric = qualifier.partition("_")
    return statistic, metric


def _parse_count(value: bytes) -> float:
    count = parse_value(value)
    if not 1 <= count <= _MOST_COUNTED or not count.is_integer():
        raise ValueError(f"{shown_bytes(value)} is no count")
    return count


def _summary(metric: str, statistics: dict[str, float]) -> MetricSummary:
    if missing := [name for name in STATISTICS if name not in statistics]:
        raise ValueError(f"it has no {', '.join(missing)} of {metric}")
    count, *others = (statistics[name] for name in STATISTICS)
    if statistics["min"] > statistics["max"]:
        raise ValueError(f"its minimum of {metric} is above its maximum")
    return MetricSummary(int(count), *others)


def _label_and_format(window: Window) -> tuple[str, str]:
    return _FORMATS.get(window.length, (window.text, _ANY_OTHER_FORMAT))
