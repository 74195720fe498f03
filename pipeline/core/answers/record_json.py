"""Records as JSON objects, as the command line prints and the HTTP API sends them. Times are ISO 8601."""

from collections.abc import Iterable, Iterator
from typing import Any

from pipeline.core.answers.points import Points
from pipeline.core.events import protobuf_json
from pipeline.core.notation.text import json_number
from pipeline.core.notation.times import format_time
from pipeline.core.queries.windows import tiers_of
from pipeline.core.rows.newest_row import LatestRecord
from pipeline.core.rows.records import AggregateRecord, GroupRecord, RawRecord, SensorGroup
from pipeline.core.schema.rollup import Rollup
from pipeline.core.schema.table_schema import TableSchema


def event_json(record: RawRecord) -> dict[str, Any]:
    """Returns the fields of an event; ``event_id`` only if it has one."""
    event_time = format_time(record.event_time_us)
    return protobuf_json.event_json(record.sensor_id, event_time, record.event_id, record.readings, record.metadata)


def latest_json(record: LatestRecord) -> dict[str, Any]:
    """Returns a sensor with its newest readings, and the time of each; ``metadata`` likewise, only if it has any."""
    found = {
        "sensor_id": record.sensor_id,
        "event_time": format_time(record.event_time_us),
        "readings": {metric: at.value for metric, at in record.readings.items()},
        "times": {metric: format_time(at.time_us) for metric, at in record.readings.items()},
    }
    if record.metadata:
        found["metadata"] = {name: at.text for name, at in record.metadata.items()}
        found["metadata_times"] = {name: format_time(at.time_us) for name, at in record.metadata.items()}
    return found


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
        "metrics": _metrics(record),
    }


def rollup_json(schema: TableSchema, rollup: Rollup) -> dict[str, Any]:
    """Returns a roll-up, with its tiers in the schema."""
    tiers = [tier.window.text for tier in tiers_of(schema, rollup)]
    return {"rollup": rollup.name, "by": list(rollup.by), "tiers": tiers, "metrics": list(rollup.metrics)}


def group_json(group: SensorGroup) -> dict[str, Any]:
    """Returns a group: the roll-up's name, the text that names the group in row keys, and the values by field."""
    return {"rollup": group.rollup, "group": group.text, "fields": dict(group.fields)}


def group_record_json(record: GroupRecord) -> dict[str, Any]:
    """Returns a group's window with the statistics of each metric; what several amount to has ``windows``."""
    return {
        **group_json(record.group),
        "window_start": record.window.shown(record.start_us),
        "window": record.window.text,
        **({"windows": record.windows} if record.windows > 1 else {}),
        "sensors": record.sensors,
        **({"expected": record.expected} if record.expected is not None else {}),
        "reading_count": record.reading_count,
        **({"filled": True} if record.filled else {}),
        "metrics": _metrics(record),
    }


def _metrics(record: AggregateRecord | GroupRecord) -> dict[str, dict[str, float | str]]:
    return {
        metric: {statistic: json_number(value) for statistic, value in summary.statistics().items()}
        for metric, summary in record.metrics.items()
    }


def event_rows(record: RawRecord) -> Iterator[dict[str, Any]]:
    """Yields an object for each reading of an event, all with the same names."""
    common = {"time": format_time(record.event_time_us), "sensor_id": record.sensor_id}
    for metric, value in record.readings.items():
        yield common | {"metric": metric, "value": value}


def latest_rows(record: LatestRecord) -> Iterator[dict[str, Any]]:
    """Yields an object for each newest reading of a sensor, all with the same names."""
    for metric, at in record.readings.items():
        yield {"time": format_time(at.time_us), "sensor_id": record.sensor_id, "metric": metric, "value": at.value}


def aggregate_rows(record: AggregateRecord | GroupRecord, metrics: Iterable[str] = ()) -> Iterator[dict[str, Any]]:
    """Yields an object for each metric of a window, with its statistics by name.

    A window without a row that was filled has one for each of ``metrics``.
    """
    common: dict[str, Any] = {"time": record.window.shown(record.start_us)}
    if isinstance(record, GroupRecord):
        common |= {"rollup": record.group.rollup, "group": record.group.text, "label": record.group.label}
        common |= {"sensors": record.sensors}
    else:
        common |= {"sensor_id": record.sensor_id}
    common |= {"window": record.window.text, **({"filled": True} if record.filled else {})}
    for metric in dict.fromkeys([*record.metrics, *(metrics if record.filled else ())]):
        statistics = record.metrics[metric].statistics() if metric in record.metrics else {}
        yield common | {"metric": metric} | {name: json_number(value) for name, value in statistics.items()}


def point_rows(points: Points) -> Iterator[dict[str, Any]]:
    """Yields an object for each point of a line, all with the same names."""
    common = {"sensor_id": points.sensor_id, "metric": points.metric}
    for point in points.points:
        yield {"time": format_time(point.time_us), "value": point.value} | common


def optional_time(time_us: int | None) -> str | None:
    """Returns a time as text; None for None."""
    return None if time_us is None else format_time(time_us)


def points_json(points: Points, schema: TableSchema) -> dict[str, Any]:
    """Returns the points of a line, and where they come from."""
    return {
        "sensor_id": points.sensor_id,
        "metric": points.metric,
        "unit": schema.unit_of(points.metric),
        "label": schema.labels.get(points.metric),
        "source": points.source,
        "exact": points.exact,
        "incomplete_before": optional_time(points.incomplete_before_us),
        "start": format_time(points.start_us),
        "column_s": points.column_us / 1e6,
        "points": [{"time": format_time(point.time_us), "value": point.value} for point in points.points],
    }
