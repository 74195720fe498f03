"""The answers of the API: models of their JSON, which its documentation shows, and the same records in Arrow.

The thread that reads an answer renders it, without the models: to check ten thousand records would take a second.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from fastapi import Depends
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from pipeline.cloud.reading.frames import WINDOW_START, long_with_units, with_units
from pipeline.cloud.reading.reader import SensorTable
from pipeline.core.answers.points import Points
from pipeline.core.answers.record_json import point_rows, points_json
from pipeline.core.events.file_columns import EVENT_TIME
from pipeline.core.rows.newest_row import LatestRecord
from pipeline.core.schema.table_schema import TableSchema
from pipeline.serve.parameters import ARROW, Format, format_of
from pipeline.serve.reads import Reads

if TYPE_CHECKING:
    import pyarrow


class _Json(BaseModel):
    """A model, which the API's documentation names without ``Json``."""

    def __init_subclass__(cls, **_: Any) -> None:
        cls.__name__ = cls.__qualname__ = cls.__name__.removesuffix("Json")


_LAST: Mapping[str, str] = {}
_UNITS = Field(description="The units of metrics that declare one, by metric.", examples=[{"pm10": "µg/m³"}])
_LABELS = Field(description="The labels of metrics that declare one, by metric.", examples=[{"pm10": "Fine dust"}])
_TIME_ZONE = Field(description="The time zone of times in the request that have no offset.", examples=["UTC"])


class ProblemJson(_Json):
    """The reason why a request has no answer."""

    error: str = Field(description="The problem and its remedy.")


class _UnitsJson(_Json):
    units: dict[str, str] = _UNITS
    labels: dict[str, str] = _LABELS


class TierJson(_Json):
    """The windows of aggregates of one length."""

    window: str = Field(examples=["1h"])
    zone: str = Field(description="The time zone whose days and months the windows follow.", examples=["UTC"])
    seconds: float = Field(description="The usual length; days of a time zone may have 23 to 25 hours.")


class RollupJson(_Json):
    """A roll-up: what its sensors are grouped by."""

    rollup: str
    by: list[str] = Field(description="The metadata fields that name a sensor's group; none if there is one group.")
    tiers: list[str] = Field(description="The shortest first.")
    metrics: list[str] = Field(description="Globs of the metrics that are merged.")


class SchemaJson(_UnitsJson):
    """A table and its schema."""

    project: str
    instance: str
    table: str
    tiers: list[TierJson] = Field(description="The shortest first.")
    latest: bool = Field(description="Whether the table keeps the newest readings of each sensor in a row.")
    rollups: list[RollupJson] = Field(description="What sensors are grouped by.")
    metadata_in_keys: list[str] = Field(description="Metadata that a request needs to find a sensor's events.")
    declared: dict[str, Any] = Field(description="The schema as tidetable table describe --format toml prints it.")


class _PageJson(_Json):
    next: str | None = Field(description="The address of the next page; null on the last one.")
    rows_read: int = Field(description="Rows that Bigtable sent for this answer.")
    foreign_rows: int = Field(description="Rows left out because the schema never writes them.")


class _RangeJson(_PageJson):
    time_zone: str = _TIME_ZONE


class _SearchedJson(_PageJson):
    searched_to: str | None = Field(
        default=None, description="Only with search: the last sensor looked at; null once it has looked at all."
    )


class SensorsJson(_SearchedJson):
    """Ids of sensors."""

    sensors: list[str]


class MetricsJson(_PageJson, _UnitsJson):
    """Names of metrics."""

    metrics: list[str]


class PlacesJson(_Json):
    """The places of a sensor's rows."""

    places: list[dict[str, str]] = Field(
        description="Each combination of the metadata in the sensor's row keys; an empty one if keys have none."
    )


class NewestJson(_Json):
    """The newest readings of a sensor."""

    sensor_id: str
    event_time: str = Field(description="The time of the newest reading or metadata.")
    age_s: float = Field(description="Seconds since then, by the server's clock.")
    readings: dict[str, float]
    times: dict[str, str] = Field(description="The event time of each reading.")
    metadata: dict[str, str] | None = Field(default=None, description="Only in a table with metadata_alone.")
    metadata_times: dict[str, str] | None = Field(default=None, description="The event time of each metadata entry.")


class LatestJson(_SearchedJson, _UnitsJson):
    """The newest readings of sensors."""

    sensors: list[NewestJson]
    more: bool = Field(description="Whether other sensors follow.")
    count: int | None = Field(default=None, description="Only with silent_for: the number of silent sensors.")


class EventJson(_Json):
    """One event."""

    sensor_id: str
    event_time: str
    event_id: str | None = Field(default=None, description="Only if the table stores it.")
    readings: dict[str, float]
    metadata: dict[str, str]


class EventsJson(_RangeJson, _UnitsJson):
    """Events, the newest first."""

    events: list[EventJson]


class AggregateJson(_Json):
    """One window of one sensor."""

    sensor_id: str
    window_start: str
    window: str
    reading_count: int
    filled: bool = Field(default=False, description="Only in windows without a row, if gaps are filled.")
    metrics: dict[str, dict[str, float | str]] = Field(
        description="Statistics by metric and name; a sum that overflowed is the text inf or -inf."
    )


class AggregatesJson(_RangeJson, _UnitsJson):
    """Windows, the oldest first."""

    aggregates: list[AggregateJson]
    incomplete_before: str | None = Field(
        description="The start before which windows may be missing: collected, or older than the tier; null for none."
    )


class RollupsJson(_PageJson):
    """Roll-ups."""

    rollups: list[RollupJson]


class GroupJson(_Json):
    """A group of sensors."""

    rollup: str
    group: str = Field(description="What the parameter group takes.", examples=["north/m1"])
    fields: dict[str, str] = Field(description="The values by field; the last one is cut off if they are very long.")


class GroupsOfSensorJson(_PageJson):
    """The groups of a sensor."""

    groups: list[GroupJson]


class GroupWindowJson(GroupJson):
    """One window of a group, or what several amount to."""

    window_start: str
    window: str
    windows: int = Field(default=1, description="Only if the record is what several windows amount to.")
    sensors: int = Field(description="The number of sensors that contributed; of several windows, the most.")
    expected: int | None = Field(default=None, description="Only of a roll-up of all sensors whose number is declared.")
    reading_count: int
    filled: bool = Field(default=False, description="Only in windows without a row, if gaps are filled.")
    metrics: dict[str, dict[str, float | str]] = Field(
        description="Statistics by metric and name; a sum that overflowed is the text inf or -inf."
    )


class GroupsJson(_RangeJson, _UnitsJson):
    """Groups of a roll-up."""

    groups: list[GroupWindowJson]
    more: bool = Field(description="Whether there are more than the limit.")
    count: int = Field(description="The number of all.")


class GroupWindowsJson(_RangeJson, _UnitsJson):
    """Windows of a group, the oldest first."""

    windows: list[GroupWindowJson]
    incomplete_before: str | None = Field(
        description="The start before which windows may be missing, because they were collected; null for none."
    )


class PointJson(_Json):
    """One point of a line."""

    time: str
    value: float


class PointsJson(_Json):
    """The points of a line."""

    sensor_id: str
    metric: str
    unit: str | None = Field(description="The unit of the values, if the schema declares it.")
    label: str | None = Field(description="The label of the metric, if the schema declares it.")
    source: str = Field(description="raw, or the tier whose windows answer.", examples=["raw", "1m"])
    exact: bool = Field(description="Whether the line looks like one through all readings, in columns of this width.")
    incomplete_before: str | None = Field(
        description="The time before which readings may be missing: collected, or never in this tier; null for none."
    )
    start: str = Field(description="The start of the first column.")
    column_s: float = Field(description="The width of a column in seconds.")
    points: list[PointJson]
    time_zone: str = _TIME_ZONE
    rows_read: int = Field(description="Rows that Bigtable sent for this answer.")


class AlertJson(_Json):
    """A transition of an alert."""

    rule: str
    sensor_id: str
    kind: str = Field(description="firing or resolved.")
    event_time: str
    since: str = Field(description="The time from which the condition had held.")
    value: float | str | None = Field(description="The value that led to it; null for silence.")
    unit: str | None = Field(description="The unit of the value, if the schema declares it.")
    label: str | None = Field(description="The label of the metric, if the schema declares it.")
    severity: str
    age_s: float = Field(description="Seconds since the event time, by the server's clock.")


class AlertsJson(_RangeJson):
    """Alerts that fire now, or transitions in a range."""

    alerts: list[AlertJson]
    more: bool = Field(description="Whether there are more than the limit.")
    count: int = Field(description="The number of all.")


class RuleJson(_Json):
    """A rule of alerts."""

    rule: str
    condition: str = Field(description="What it fires for, in a few words.", examples=["temperature above -15 for 10m"])
    metadata: dict[str, str] = Field(description="What the sensor's newest metadata has to have.")
    severity: str
    metric: str | None = Field(description="Null for silence.")
    of: str | None = Field(description="A statistic of windows; null for readings.")
    tier: str | None = Field(description="The windows; null for readings.")
    kind: str | None = Field(
        description="above, below, outside or inside; null for silence and for a value that stands."
    )
    low: float | None = Field(description="The lower limit.")
    high: float | None = Field(description="The upper limit; the same if there is only one.")
    per_s: float | None = Field(description="The seconds to which the limits of a change refer; null for other limits.")
    unit: str | None = Field(description="The unit of the limits, if the schema declares it.")
    label: str | None = Field(description="The label of the metric, if the schema declares it.")


class RulesJson(_PageJson):
    """Rules of alerts."""

    rules: list[RuleJson]


class FlatJson(_Json):
    """An answer with ``format=flat``: one row for each sensor, metric and time, and the same facts beside the list."""

    rows: list[dict[str, float | str | bool | None]] = Field(
        description="time, sensor_id, metric, and value or statistics such as avg; lists of names have only the name."
    )
    next: str | None = Field(default=None, description="The address of the next page; null on the last one.")


class Forms(NamedTuple):
    """A page in each format, of which only the one asked for is made.

    Attributes:
        name: the name of the list in JSON.
        records: the list's values.
        rows: the flat rows.
        arrow: a function that returns the Arrow table.
    """

    name: str
    records: Iterable[Any]
    rows: Iterable[dict[str, Any]]
    arrow: Callable[[], "pyarrow.Table"]


@dataclass(frozen=True)
class Question:
    """A request for a page.

    Attributes:
        request: the request.
        reads: the connection to the table.
        format: the format of the answer.
    """

    request: Request
    reads: Reads
    format: Format

    @property
    def schema(self) -> TableSchema:
        """The table's schema."""
        return self.reads.schema

    async def answer(self, read: Callable[[SensorTable], Response]) -> Response:
        """Calls ``read`` as :meth:`Reads.answer` does."""
        return await self.reads.answer(self.request, read)

    def page(self, table: SensorTable, page: Forms, following: Mapping[str, str] = _LAST, **more: Any) -> Response:
        """Renders a page.

        Args:
            table: the table that was read.
            page: the page.
            following: the parameters that the next page changes; empty on the last page.
            more: the page's fields beside the list.
        """
        url = self.request.url.include_query_params(**following)
        next_page = f"{url.path}?{url.query}" if following else None
        link = {"Link": f'<{next_page}>; rel="next"'} if next_page else {}
        if self.format == Format.ARROW:
            facts = {name: value for name, value in more.items() if isinstance(value, str)}
            rows = _with_units(page.arrow(), table.schema).replace_schema_metadata(facts)
            return Response(_ipc(rows), media_type=ARROW, headers=link)
        counts = {"rows_read": table.rows.rows_read, "foreign_rows": table.foreign.count}
        listed = {"rows": list(page.rows)} if self.format == Format.FLAT else {page.name: list(page.records)}
        content = {**listed, **more, "next": next_page, **counts}
        return Response(_as_json(content), media_type="application/json", headers=link)


def _with_units(table: "pyarrow.Table", schema: TableSchema) -> "pyarrow.Table":
    if {"metric", "value"} <= set(table.column_names):
        return long_with_units(table, schema)
    time = WINDOW_START if WINDOW_START in table.column_names else EVENT_TIME
    return with_units(table.to_reader(), schema, time).read_all()


def declared_in(schema: TableSchema, names: Iterable[Iterable[str]]) -> dict[str, dict[str, str]]:
    """Returns the units and the labels of the metrics that records have."""
    metrics = set(chain.from_iterable(names))
    return {
        name: {metric: text for metric, text in declared.items() if metric in metrics}
        for name, declared in (("units", schema.units), ("labels", schema.labels))
    }


def the_reads(request: Request) -> Reads:
    """Returns the connection to the table."""
    return request.app.state.reads


def _question(request: Request, asked: Annotated[Format, Depends(format_of)]) -> Question:
    return Question(request, the_reads(request), asked)


Asked = Annotated[Question, Depends(_question)]


def rendered_points(points: Points, asked: Format, zone: str, schema: TableSchema) -> Response:
    """Renders the points of a line, and the zone of the range that was asked for."""
    content = points_json(points, schema)
    if asked != Format.ARROW:
        content |= {"rows_read": points.rows_read, "time_zone": zone}
        if asked == Format.FLAT:
            del content["points"]
            content["rows"] = list(point_rows(points))
        return Response(_as_json(content), media_type="application/json")
    import pyarrow

    times = pyarrow.array([point.time_us for point in points.points], pyarrow.timestamp("us", tz="UTC"))
    values = pyarrow.array([point.value for point in points.points], pyarrow.float64())
    facts = {name: str(value) for name, value in content.items() if name != "points" and value is not None}
    facts["time_zone"] = zone
    return Response(_ipc(pyarrow.table({"time": times, "value": values}, metadata=facts)), media_type=ARROW)


def latest_arrow(records: Iterable[LatestRecord]) -> "pyarrow.Table":
    """Returns a row for each reading: ``sensor_id``, ``metric``, ``event_time`` and ``value``."""
    import pyarrow as arrow

    flat = [(each.sensor_id, metric, at) for each in records for metric, at in each.readings.items()]
    return arrow.table(
        {
            "sensor_id": arrow.array([sensor for sensor, _, _ in flat], arrow.string()),
            "metric": arrow.array([metric for _, metric, _ in flat], arrow.string()),
            "event_time": arrow.array([at.time_us for _, _, at in flat], arrow.timestamp("us", tz="UTC")),
            "value": arrow.array([at.value for _, _, at in flat], arrow.float64()),
        }
    )


def names_form(name: str, column: str, names: Sequence[str]) -> Forms:
    """Returns a list of names; in flat rows and in Arrow, it is a column of that name."""
    return Forms(name, names, ({column: each} for each in names), lambda: names_arrow(column, names))


def names_arrow(column: str, names: Sequence[str]) -> "pyarrow.Table":
    """Returns one column of text."""
    import pyarrow as arrow

    return arrow.table({column: arrow.array(names, arrow.string())})


def _as_json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _ipc(table: "pyarrow.Table") -> bytes:
    import pyarrow as arrow

    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()
