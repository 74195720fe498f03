"""The messages for empty results: nothing at all, or nothing in the requested range."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pipeline.core.events.event import LATEST_US
from pipeline.core.notation.text import joined, plain
from pipeline.core.notation.times import format_time
from pipeline.core.windows import Window

if TYPE_CHECKING:  # --help does not wait for Google's clients
    from pipeline.cloud.reading.reader import SensorTable

_NEVER = ", or at any other time"


def no_readings(
    table: "SensorTable",
    sensor_id: str,
    metadata: Mapping[str, str],
    metrics: Sequence[str],
    span_us: tuple[int, int] | None = None,
) -> str:
    """Returns the message for a sensor without readings of these metrics, in the range or at all.

    Reads the newest event of the sensor.
    """
    newest = table.latest(sensor_id, metadata=metadata)
    what = "readings" if newest is None or not metrics else " or ".join(metrics)
    text = f"no {what} of {sensor_id}{_with(metadata)}{_between(span_us)}"
    if newest is None:
        return text + _NEVER if span_us else text
    if metrics and newest.readings and not newest.readings.keys() & set(metrics):
        return f"{text}; its newest event has {plain(', '.join(newest.readings))}"
    return f"{text}; its newest event is at {format_time(newest.event_time_us)}"


def no_readings_of_many(
    table: "SensorTable", sensors: str, metadata: Mapping[str, str], metrics: Sequence[str], span_us: tuple[int, int]
) -> str:
    """Returns the message for all sensors whose ids begin with ``sensors``. Reads one or two keys."""
    exists = next(table.sensors(sensors, metadata), None) is not None
    what = " or ".join(metrics) if metrics and exists else "readings"
    text = f"no {what} of sensors{_with_prefix(sensors)}{_with(metadata)}{_between(span_us)}"
    return text if exists else text + _NEVER


def no_aggregates(
    table: "SensorTable", sensor_id: str, window: Window, metrics: Sequence[str], span_us: tuple[int, int]
) -> str:
    """Returns the message for a sensor without aggregates of these metrics, in the range or at all.

    Reads the sensor's oldest aggregate.
    """
    exists = next(table.aggregates(sensor_id, 0, LATEST_US + 1, tier=window, metrics=metrics or None), None) is not None
    what = f"{' or '.join(metrics)} of {sensor_id}" if metrics else sensor_id
    text = f"no aggregates of {what} in windows of {window.text} that start{_between(span_us)}"
    return text if exists else text + _NEVER


def missing_before(time_us: int | None, what: str) -> str:
    """Returns the message for what may be missing of an answer; empty for None."""
    if time_us is None:
        return ""
    shown = format_time(-(-time_us // 1_000_000) * 1_000_000)
    return f"{what} before {shown} may be missing: collected, or older than their tier"


def no_sensors_message(table: "SensorTable", prefix: str, metadata: Mapping[str, str]) -> str:
    """Returns the message for a table without sensors, or without any that match."""
    return f"no sensors{_with_prefix(prefix)}{_with(metadata)} in table {table.rows.name}"


def _with_prefix(prefix: str) -> str:
    return f" whose ids begin with {prefix}" if prefix else ""


def _with(metadata: Mapping[str, str]) -> str:
    return f" with {joined(metadata)}" if metadata else ""


def _between(span_us: tuple[int, int] | None) -> str:
    return "" if span_us is None else f" between {format_time(span_us[0])} and {format_time(span_us[1])}"
