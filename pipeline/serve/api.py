"""The HTTP API, version 1: sensors, newest readings, events, aggregates and the schema of one table."""

import time
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from pipeline.cloud.reading.frames import AggregateRecords, RawRecords
from pipeline.cloud.reading.reader import SensorTable
from pipeline.core.answers.gaps import Fill, check_fill
from pipeline.core.answers.read_arguments import zone_for
from pipeline.core.answers.record_json import (
    aggregate_json,
    aggregate_rows,
    event_json,
    event_rows,
    latest_json,
    latest_rows,
    optional_time,
    rollup_json,
)
from pipeline.core.events.event import LATEST_US, checked_sensor_id
from pipeline.core.notation.durations import parse_duration
from pipeline.core.notation.times import format_time
from pipeline.core.queries.events import SensorLocator
from pipeline.core.queries.windows import tier_of
from pipeline.core.schema.key_template import KeyBindings
from pipeline.core.schema.toml import document_of
from pipeline.core.windows import parse_window
from pipeline.serve import answers
from pipeline.serve.answers import Asked, Forms, declared_in, latest_arrow, names_form, rendered_points, the_reads
from pipeline.serve.parameters import (
    After,
    End,
    Filling,
    Fresh,
    Limit,
    MaxPoints,
    Metadata,
    Metric,
    Metrics,
    MinCount,
    MinCoverage,
    Prefix,
    Search,
    SensorId,
    SensorIds,
    SilentFor,
    Start,
    Tier,
    TimeZone,
    as_mapping,
    as_range,
    only_known,
)
from pipeline.serve.reads import Page, Reads, page_by_time, searched_page

_END_US = LATEST_US + 1
_SEEN = 100  # a sensor's newest events, whose metrics are its metrics
MOST_ROWS = 100_000  # that an answer reads
_MOST_SEARCHED = 10_000  # sensors that one page looks through; the next page continues after them

router = APIRouter(
    prefix="/api/v1",
    dependencies=[Depends(only_known)],
    responses={
        400: {
            "model": answers.ProblemJson,
            "description": "A parameter is missing or unknown, or has a value without an answer.",
        },
        503: {"model": answers.ProblemJson, "description": "Bigtable is out of reach or refuses the request."},
        504: {"model": answers.ProblemJson, "description": "The answer took longer than the server allows."},
    },
)

TheReads = Annotated[Reads, Depends(the_reads)]


@router.get("/schema", summary="The table and its schema", tags=["table"])
async def schema(reads: TheReads) -> answers.SchemaJson:
    """The table, its tiers and its schema."""
    found = reads.schema
    return answers.SchemaJson(
        project=reads.name.project,
        instance=reads.name.instance,
        table=reads.name.table,
        tiers=[
            answers.TierJson(window=tier.window.text, zone=tier.window.zone, seconds=tier.window.length.total_seconds())
            for tier in found.tiers
        ],
        latest=found.latest is not None,
        rollups=[answers.RollupJson(**rollup_json(found, rollup)) for rollup in found.rollups],
        units=dict(found.units),
        labels=dict(found.labels),
        metadata_in_keys=found.key.missing_metadata(KeyBindings()),
        declared=document_of(found),
    )


@router.get(
    "/sensors", summary="Ids of sensors", response_model=answers.SensorsJson | answers.FlatJson, tags=["sensors"]
)
async def sensors(
    asked: Asked,
    prefix: Prefix = "",
    search: Search = "",
    after: After = "",
    limit: Limit = 1000,
) -> Response:
    """The ids of sensors, in the table's order: of those with newest readings if the table keeps them.

    With search, a page looks through ten thousand sensors at most, tells how far it came, and the next one continues.
    """

    def read(table: SensorTable) -> Response:
        page = searched_page(table.heard_sensors(prefix, after=after), limit, str, search, _MOST_SEARCHED)
        following = {} if page.last is None else {"after": page.last}
        return asked.page(table, names_form("sensors", "sensor_id", page.records), following, **_searched(search, page))

    return await asked.answer(read)


@router.get(
    "/latest",
    summary="Newest readings of sensors, or of the silent ones",
    response_model=answers.LatestJson | answers.FlatJson,
    tags=["sensors"],
)
async def latest(
    asked: Asked,
    metrics: Metrics,
    prefix: Prefix = "",
    search: Search = "",
    after: After = "",
    silent_for: SilentFor = "",
    limit: Limit = 1000,
) -> Response:
    """The newest reading of each metric, and the number of silent sensors.

    With silent_for, one page, the longest silent sensors first. With search alone, a page looks through ten thousand
    sensors at most, tells how far it came, and the next one continues.
    """
    silence = parse_duration(silent_for) if silent_for else None
    wanted = metrics or None

    def read(table: SensorTable) -> Response:
        now_us = time.time_ns() // 1000
        facts: dict[str, Any] = {}
        if silence is not None:
            heard = table.silent(silence, prefix, after=after, metrics=wanted)
            silent = [each.sensor_id for each in heard if search.lower() in each.sensor_id.lower()]
            records, last = list(table.latest_readings_of(silent[:limit], metrics=wanted)), None
            facts = {"more": len(silent) > limit, "count": len(silent)}
        elif search:
            found = searched_page(table.heard_sensors(prefix, after=after), limit, str, search, _MOST_SEARCHED)
            records, last = list(table.latest_readings_of(found.records, metrics=wanted)), found.last
            facts = {"more": last is not None} | _searched(search, found)
        else:
            newest = table.latest_readings(prefix, after=after, metrics=wanted, limit=limit + 1)
            records, last = searched_page(newest, limit, attrgetter("sensor_id"), "", limit + 1)
            facts = {"more": last is not None}
        return asked.page(
            table,
            Forms(
                "sensors",
                (latest_json(record) | age(now_us, record.event_time_us) for record in records),
                (
                    row | age(now_us, at.time_us)
                    for record in records
                    for row, at in zip(latest_rows(record), record.readings.values(), strict=True)
                ),
                lambda: latest_arrow(records),
            ),
            {} if last is None else {"after": last},
            **declared_in(table.schema, (record.readings for record in records)),
            **facts,
        )

    return await asked.answer(read)


@router.get(
    "/metrics",
    summary="Names of a sensor's metrics",
    response_model=answers.MetricsJson | answers.FlatJson,
    tags=["sensors"],
)
async def metrics(asked: Asked, sensor_id: SensorId, metadata: Metadata) -> Response:
    """The metrics of a sensor: of its newest readings, or else of its last events."""
    fields = as_mapping(metadata)

    def read(table: SensorTable) -> Response:
        checked_sensor_id(sensor_id)
        if table.schema.latest is not None:
            newest = table.latest_readings(sensor_id, limit=1)  # the id itself comes before all that begin with it
            found = {metric for record in newest if record.sensor_id == sensor_id for metric in record.readings}
        else:
            last = table.events(sensor_id, 0, _END_US, limit=_SEEN, metadata=fields)
            found = {metric for record in last for metric in record.readings}
        return asked.page(table, names_form("metrics", "metric", sorted(found)), **declared_in(table.schema, [found]))

    return await asked.answer(read)


@router.get("/places", summary="Metadata in a sensor's row keys", tags=["sensors"])
async def places(request: Request, reads: TheReads, sensor_id: SensorId) -> answers.PlacesJson:
    """The metadata that finds a sensor's events, if row keys contain it: a seek or two for each value in the table."""

    def read(table: SensorTable) -> answers.PlacesJson:
        possible = SensorLocator(table.schema, table.rows.read_selection).of(checked_sensor_id(sensor_id))
        return answers.PlacesJson(
            places=[place for place in possible if table.latest_events(sensor_id, metadata=place)]
        )

    return await reads.answer(request, read)


@router.get(
    "/range",
    summary="Events of sensors, the newest first",
    response_model=answers.EventsJson | answers.FlatJson,
    tags=["readings"],
)
async def events(
    asked: Asked,
    sensor_ids: SensorIds,
    metrics: Metrics,
    metadata: Metadata,
    start: Start = "",
    end: End = "now",
    time_zone: TimeZone = "",
    limit: Limit = 1000,
) -> Response:
    """The events of one sensor or several, the newest first."""
    zone = zone_for(time_zone)
    start_us, end_us = as_range(start, end, zone)
    fields = as_mapping(metadata)

    def read(table: SensorTable) -> Response:
        wanted = partial(table.events, sensor_ids, start_us, end_us, metrics=metrics or None, metadata=fields)
        page = page_by_time(wanted, limit, lambda record: record.event_time_us)
        return asked.page(
            table,
            Forms(
                "events",
                map(event_json, page.records),
                chain.from_iterable(map(event_rows, page.records)),
                RawRecords(page.records, metrics).to_arrow,
            ),
            # The next page covers the same range, however far "now" has moved.
            {} if page.last is None else {"start": format_time(start_us), "end": format_time(page.last)},
            time_zone=zone,
            **declared_in(table.schema, (record.readings for record in page.records)),
        )

    return await asked.answer(read)


@router.get(
    "/aggregates",
    summary="Windows of sensors, the oldest first",
    response_model=answers.AggregatesJson | answers.FlatJson,
    tags=["readings"],
)
async def aggregates(
    asked: Asked,
    sensor_ids: SensorIds,
    metrics: Metrics,
    start: Start = "",
    end: End = "now",
    tier: Tier = "",
    fill: Filling = Fill.NONE,
    fresh: Fresh = False,
    min_coverage: MinCoverage = 0.0,
    min_count: MinCount = 0,
    time_zone: TimeZone = "",
    limit: Limit = 1000,
) -> Response:
    """The windows of one sensor or several that start in a range, the oldest first."""
    window = tier_of(asked.schema, parse_window(tier) if tier else None).window
    zone = zone_for(time_zone, window)
    start_us, end_us = as_range(start, end, zone)
    if fill != Fill.NONE:
        check_fill(window, start_us, end_us, limit // len(sensor_ids))  # they are filled on one page only

    def read(table: SensorTable) -> Response:
        def found() -> AggregateRecords:
            return table.aggregates(
                sensor_ids,
                start_us,
                end_us,
                tier=window,
                metrics=metrics or None,
                fill=fill,
                fresh=fresh,
                max_rows=MOST_ROWS,
                min_coverage=min_coverage,
                min_count=min_count,
            )

        first = found()
        page = page_by_time(lambda limit: found() if limit is None else first, limit, lambda record: record.start_us)
        return asked.page(
            table,
            Forms(
                "aggregates",
                map(aggregate_json, page.records),
                chain.from_iterable(aggregate_rows(record, metrics) for record in page.records),
                AggregateRecords(page.records).to_arrow,
            ),
            {} if page.last is None else {"start": format_time(page.last + 1), "end": format_time(end_us)},
            incomplete_before=optional_time(first.incomplete_before_us),
            time_zone=zone,
            **declared_in(table.schema, (record.metrics for record in page.records)),
        )

    return await asked.answer(read)


@router.get(
    "/points", summary="Points of a line chart", response_model=answers.PointsJson | answers.FlatJson, tags=["readings"]
)
async def points(
    asked: Asked,
    sensor_id: SensorId,
    metric: Metric,
    metadata: Metadata,
    start: Start = "",
    end: End = "now",
    max_points: MaxPoints = 4000,
    time_zone: TimeZone = "",
) -> Response:
    """The points that a line chart of a metric needs: at most four for each column of pixels, the oldest first."""
    zone = zone_for(time_zone)
    start_us, end_us = as_range(start, end, zone)
    fields = as_mapping(metadata)

    def read(table: SensorTable) -> Response:
        found = table.points(sensor_id, metric, start_us, end_us, max_points, metadata=fields, max_rows=MOST_ROWS)
        return rendered_points(found, asked.format, zone, table.schema)

    return await asked.answer(read)


def _searched(search: str, page: Page[str, str]) -> dict[str, str | None]:
    return {"searched_to": page.last} if search else {}


def age(now_us: int, time_us: int) -> dict[str, float]:
    """Returns the field of an answer that tells how long ago a time was."""
    return {"age_s": round((now_us - time_us) / 1e6, 3)}
