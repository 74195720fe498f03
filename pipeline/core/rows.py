"""The table's format: row keys, families, columns and values, for the writer and the readers alike.

Raw row: ``{sensor_id}#{reverse_us}``, newest first under a sensor's prefix, a column a metric.
Aggregate row: ``agg#hourly#{sensor_id}#{YYYY-MM-DDTHH}``, one for a sensor and window. All values are text.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from pipeline.core.events import LATEST_US, Event
from pipeline.core.stats import WindowStats
from pipeline.core.times import from_datetime, to_datetime
from pipeline.core.windows import DAILY, HOURLY, Window

AGGREGATE_PREFIX = "agg#"
READING_COUNT = "reading_count"
STATISTICS = ("count", "sum", "min", "max", "avg", "stddev")

_FORMATS = {HOURLY.length: ("hourly", "%Y-%m-%dT%H"), DAILY.length: ("daily", "%Y-%m-%d")}
_ANY_OTHER_FORMAT = "%Y-%m-%dT%H:%M:%S"


@dataclass(frozen=True)
class Families:
    """The names of the column families: readings, aggregates, metadata."""

    raw: str = "raw"
    stats: str = "stats"
    meta: str = "meta"


class Cell(NamedTuple):
    """One cell. Its timestamp is in microseconds at Bigtable's grain, the millisecond."""

    family: str
    qualifier: bytes
    timestamp_us: int
    value: bytes


class Row(NamedTuple):
    """What is to be written under one key."""

    key: bytes
    cells: list[Cell]


class KeyRange(NamedTuple):
    """Row keys from ``start``, inclusive, to ``end``, exclusive."""

    start: bytes
    end: bytes


class RawKey(NamedTuple):
    sensor_id: str
    event_time_us: int


class AggregateKey(NamedTuple):
    sensor_id: str
    start_us: int


# Keys


def raw_key(sensor_id: str, event_time_us: int) -> bytes:
    return f"{sensor_id}#{LATEST_US - event_time_us:016d}".encode()


def parse_raw_key(key: bytes) -> RawKey:
    """What a raw row's key says. Raises ValueError where it is no such key."""
    sensor_id, _, reverse_us = key.decode().rpartition("#")
    return RawKey(sensor_id, LATEST_US - int(reverse_us))


def aggregate_key(window: Window, sensor_id: str, start_us: int) -> bytes:
    return f"{_aggregate_prefix(window, sensor_id)}{_format_start(window, start_us)}".encode()


def parse_aggregate_key(window: Window, key: bytes) -> AggregateKey:
    """What an aggregate row's key says. Raises ValueError where it is no such key."""
    prefix, sensor_id, start = key.decode().rsplit("#", 2)
    label, time_format = _label_and_format(window)
    if prefix != f"{AGGREGATE_PREFIX}{label}":
        raise ValueError(f"{key!r} is not the key of a window of {window.text}")
    return AggregateKey(sensor_id, from_datetime(datetime.strptime(start, time_format)))


def _aggregate_prefix(window: Window, sensor_id: str) -> str:
    return f"{AGGREGATE_PREFIX}{_label_and_format(window)[0]}#{sensor_id}#"


def _format_start(window: Window, start_us: int) -> str:
    return to_datetime(start_us).strftime(_label_and_format(window)[1])


def _label_and_format(window: Window) -> tuple[str, str]:
    return _FORMATS.get(window.length, (window.text, _ANY_OTHER_FORMAT))


# Ranges


def sensor_range(sensor_id: str) -> KeyRange:
    """Every raw row of a sensor, newest first."""
    return KeyRange(f"{sensor_id}#".encode(), after_first_segment(sensor_id))


def first_segment(key: bytes) -> str:
    """What a key says before its first '#': a raw row's sensor, or what kind of row it is that is no raw row."""
    return key.decode().partition("#")[0]


def after_first_segment(segment: str) -> bytes:
    """The least key behind all keys whose first segment is ``segment``: '$' follows '#'."""
    return f"{segment}$".encode()


def raw_range(sensor_id: str, start_us: int, end_us: int) -> KeyRange:
    """A sensor's raw rows from ``start_us``, inclusive, to ``end_us``, exclusive, newest first.

    Needs ``start_us < end_us``, both within 0 to :data:`LATEST_US` + 1.
    """
    return KeyRange(raw_key(sensor_id, end_us - 1), raw_key(sensor_id, start_us) + b"\x00")


def aggregate_range(window: Window, sensor_id: str, start_us: int, end_us: int) -> KeyRange:
    """A sensor's windows that start from ``start_us``, inclusive, to ``end_us``, exclusive, oldest first."""
    length_us = window.length_us
    first, end = (-(-time_us // length_us) * length_us for time_us in (start_us, end_us))  # up to a window's start
    return KeyRange(aggregate_key(window, sensor_id, first), aggregate_key(window, sensor_id, end))


# Rows


def raw_row(event: Event, families: Families) -> Row:
    """The row of one event: a column a metric, and a column a metadata name."""
    timestamp_us = event.event_time_us - event.event_time_us % 1000
    cells = [Cell(families.raw, name.encode(), timestamp_us, format_value(x)) for name, x in event.readings.items()]
    cells += [Cell(families.meta, name.encode(), timestamp_us, x.encode()) for name, x in event.metadata.items()]
    return Row(raw_key(event.sensor_id, event.event_time_us), cells)


def aggregate_row(window: Window, sensor_id: str, start_us: int, stats: WindowStats, families: Families) -> Row:
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
    cells = [Cell(families.stats, name.encode(), start_us, format_value(value)) for name, value in values.items()]
    return Row(aggregate_key(window, sensor_id, start_us), cells)


def split_aggregate_qualifier(qualifier: str) -> tuple[str, str]:
    """``"sum_temperature"`` as ``("sum", "temperature")``. Not for :data:`READING_COUNT`."""
    statistic, _, metric = qualifier.partition("_")
    return statistic, metric


# Values


def format_value(value: float) -> bytes:
    """The shortest decimal text that reads back to the same double, without a trailing ``.0``."""
    return repr(value).removesuffix(".0").encode()


def parse_value(text: bytes) -> float:
    return float(text)
