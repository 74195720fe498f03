"""Records as JSON objects, as the command line prints and the HTTP API sends them. Times are ISO 8601."""

from typing import Any

from pipeline.core.answers.points import Points
from pipeline.core.events import protobuf_json
from pipeline.core.notation.text import json_number
from pipeline.core.notation.times import format_time
from pipeline.core.rows.newest_row import LatestRecord
from pipeline.core.rows.records import AggregateRecord, RawRecord


def event_json(record: RawRecord) -> dict[str, Any]:
    """Returns the fields of an event; ``event_id`` only if it has one."""
    event_time = format_time(record.event_time_us)
    return protobuf_json.event_json(record.sensor_id, event_time, record.event_id, record.readings, record.metadata)


def latest_json(record: LatestRecord) -> dict[str, Any]:
    """Returns a sensor with its newest readings, and the time of each."""
    return {
        "sensor_id": record.sensor_id,
        "event_time": format_time(record.event_time_us),
        "readings": {metric: at.value for metric, at in record.readings.items()},
        "times": {metric: format_time(at.time_us) for metric, at in record.readings.items()},
    }


def aggregate_json(record: AggregateRecord) -> dict[str, Any]:
    """Returns a window with the statistics of each metric. An infinite sum is the text of its cell.

    A window without a row that was filled has ``filled``.
    """
    return {
        "sensor_id": record.sensor_id,
        "window_start": record.window.shown(record.start_us),
        "window": record.window.text,
        "reading_count": record.reading_count,
        **({"filled": True} if record.filled else {}),
        "metrics": {
            metric: {statistic: json_number(value) for statistic, value in summary.statistics().items()}
            for metric, summary in record.metrics.items()
        },
    }


def optional_time(time_us: int | None) -> str | None:
    """Returns a time as text; None for None."""
    return None if time_us is None else format_time(time_us)


def points_json(points: Points) -> dict[str, Any]:
    """Returns the points of a line, and where they come from."""
    return {
        "sensor_id": points.sensor_id,
        "metric": points.metric,
        "source": points.source,
        "exact": points.exact,
        "incomplete_before": optional_time(points.incomplete_before_us),
        "start": format_time(points.start_us),
        "column_s": points.column_us / 1e6,
        "points": [{"time": format_time(point.time_us), "value": point.value} for point in points.points],
    }
