"""Aggregate rows: one for a sensor and window, under ``agg#hourly#{sensor_id}#{YYYY-MM-DDTHH}``, whatever the schema.

All values are decimal text.
"""

from collections import defaultdict
from datetime import datetime
from typing import NamedTuple

from pipeline.core.records import AggregateRecord, MetricSummary
from pipeline.core.rows import Cell, KeyRange, Row
from pipeline.core.stats import MetricStats, WindowStats
from pipeline.core.times import from_datetime, to_datetime
from pipeline.core.values import format_value, parse_value
from pipeline.core.windows import DAILY, HOURLY, Window

READING_COUNT = "reading_count"
STATISTICS = ("count", "sum", "min", "max", "avg", "stddev")

_FORMATS = {HOURLY.length: ("hourly", "%Y-%m-%dT%H"), DAILY.length: ("daily", "%Y-%m-%d")}
_ANY_OTHER_FORMAT = "%Y-%m-%dT%H:%M:%S"


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
    """What an aggregate row's key says. Raises ValueError where it is no such key."""
    text = key.decode()
    prefix = aggregate_prefix(window)
    if not text.startswith(prefix):
        raise ValueError(f"{key!r} is not the key of a window of {window.text}")
    sensor_id, _, start = text.removeprefix(prefix).partition("#")
    return AggregateKey(sensor_id, from_datetime(datetime.strptime(start, _label_and_format(window)[1])))


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
    """What an aggregate row says. Raises ValueError where it is no such row."""
    key = parse_aggregate_key(window, row.key)
    reading_count = 0
    statistics: dict[str, dict[str, float]] = defaultdict(dict)
    for cell in row.cells:
        qualifier, value = cell.qualifier.decode(), parse_value(cell.value)
        if qualifier == READING_COUNT:
            reading_count = int(value)
        else:
            statistic, metric = split_qualifier(qualifier)
            statistics[metric][statistic] = value
    try:
        metrics = {metric: _metric_summary(of_metric) for metric, of_metric in statistics.items()}
    except KeyError as error:
        raise ValueError(f"there is no {error.args[0]}") from error
    return AggregateRecord(key.sensor_id, key.start_us, window, reading_count, metrics)


def _metric_summary(statistics: dict[str, float]) -> MetricSummary:
    count, *others = (statistics[name] for name in STATISTICS)
    return MetricSummary(int(count), *others)


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


def _label_and_format(window: Window) -> tuple[str, str]:
    return _FORMATS.get(window.length, (window.text, _ANY_OTHER_FORMAT))
