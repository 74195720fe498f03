"""The API's answers about roll-ups: which there are, their groups, and the windows and sensors of a group."""

import time
from collections.abc import Iterator
from itertools import chain, islice
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from pipeline.cloud.reading.frames import GroupRecords
from pipeline.cloud.reading.reader import SensorTable
from pipeline.core.answers.gaps import Fill, check_fill
from pipeline.core.answers.read_arguments import zone_for
from pipeline.core.answers.record_json import aggregate_rows, group_json, group_record_json, optional_time, rollup_json
from pipeline.core.notation.times import format_time, parse_moment
from pipeline.core.queries.windows import group_of, rollup_of, tier_of_rollup
from pipeline.core.rows.records import GroupRecord, SensorGroup
from pipeline.core.schema.rollup import ALL, Rollup
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.windows import Window, parse_window
from pipeline.serve import answers, api
from pipeline.serve.answers import Asked, Forms, declared_in, names_arrow, names_form
from pipeline.serve.parameters import (
    End,
    Filling,
    Limit,
    Metrics,
    OptionalText,
    SensorId,
    Start,
    Text,
    TimeZone,
    as_range,
)
from pipeline.serve.reads import page_by_time

router = APIRouter(
    prefix=f"{api.router.prefix}/rollups",
    dependencies=api.router.dependencies,
    responses=api.router.responses,
    tags=["roll-ups"],
)

RollupName = Annotated[Text, Query(alias="rollup", description="The roll-up's name.")]
GroupText = Annotated[
    OptionalText,
    Query(
        alias="group",
        description="The group, as answers name it: the values of its fields, percent-encoded and joined by slashes. "
        "Not needed if there is only one.",
    ),
]
TierText = Annotated[
    Text, Query(alias="tier", description="The length of the windows, like 1h. By default the roll-up's shortest.")
]
By = Annotated[
    Text,
    Query(
        description="The column by which groups are ranked, the greatest first: a statistic of a metric such as "
        "avg_temperature, sensors, or reading_count."
    ),
]
RangeStart = Annotated[
    Text,
    Query(alias="start", description="The start of a range. By default, groups are those of the newest window."),
]
RangeEnd = Annotated[Text, Query(alias="end", description="The end of the range, exclusive; now by default.")]
Before = Annotated[
    Text, Query(description="The time before which the window starts. By default, it is the group's newest.")
]


@router.get("", summary="The table's roll-ups", response_model=answers.RollupsJson | answers.FlatJson)
async def rollups(asked: Asked) -> Response:
    """The roll-ups, with the fields that they group by, their tiers and their metrics."""

    def read(table: SensorTable) -> Response:
        found = [rollup_json(table.schema, rollup) for rollup in table.schema.rollups]
        names = [rollup.name for rollup in table.schema.rollups]
        form = Forms("rollups", found, ({"rollup": name} for name in names), lambda: names_arrow("rollup", names))
        return asked.page(table, form)

    return await asked.answer(read)


@router.get(
    "/groups",
    summary="The groups of a roll-up, in the order of row keys or ranked",
    response_model=answers.GroupsJson | answers.FlatJson,
)
async def groups(
    asked: Asked,
    metrics: Metrics,
    rollup: RollupName,
    start: RangeStart = "",
    end: RangeEnd = "",
    tier: TierText = "",
    by: By = "",
    time_zone: TimeZone = "",
    limit: Limit = 1000,
) -> Response:
    """The groups in the newest window, or with start what their windows in a range amount to; and the number of all."""
    zone = zone_for(time_zone, _window(asked.schema, rollup, tier))
    span = as_range(start, end or "now", zone) if start else (None, _moment(end, zone) if end else None)

    def read(table: SensorTable) -> Response:
        records = table.groups(
            rollup,
            *span,
            tier=tier or None,
            metrics=metrics or None,
            by=by or None,
            max_rows=api.MOST_ROWS,
        )
        found = list(records)
        page = found[:limit]
        form = _form("groups", page, metrics)
        units = declared_in(table.schema, (record.metrics for record in page))
        return asked.page(table, form, count=len(found), more=len(found) > limit, time_zone=zone, **units)

    return await asked.answer(read)


@router.get(
    "/windows",
    summary="Windows of a group, the oldest first",
    response_model=answers.GroupWindowsJson | answers.FlatJson,
)
async def windows(
    asked: Asked,
    metrics: Metrics,
    rollup: RollupName,
    group: GroupText = None,
    start: Start = "",
    end: End = "now",
    tier: TierText = "",
    fill: Filling = Fill.NONE,
    time_zone: TimeZone = "",
    limit: Limit = 1000,
) -> Response:
    """The windows of a group of sensors that start in a range, the oldest first."""
    named = _group(rollup_of(asked.schema, rollup), group)
    window = _window(asked.schema, rollup, tier)
    zone = zone_for(time_zone, window)
    start_us, end_us = as_range(start, end, zone)
    if fill != Fill.NONE:
        check_fill(window, start_us, end_us, limit)  # they are filled on one page only

    def read(table: SensorTable) -> Response:
        def found() -> GroupRecords:
            return table.rollups(rollup, named, start_us, end_us, tier=window, metrics=metrics or None, fill=fill)

        first = found()
        page = page_by_time(lambda limit: found() if limit is None else first, limit, lambda record: record.start_us)
        return asked.page(
            table,
            _form("windows", page.records, metrics),
            {} if page.last is None else {"start": format_time(page.last + 1), "end": format_time(end_us)},
            incomplete_before=optional_time(first.incomplete_before_us),
            time_zone=zone,
            **declared_in(table.schema, (record.metrics for record in page.records)),
        )

    return await asked.answer(read)


@router.get(
    "/sensors",
    summary="The sensors of a group in a window",
    response_model=answers.SensorsJson | answers.FlatJson,
)
async def sensors(
    asked: Asked,
    rollup: RollupName,
    group: GroupText = None,
    before: Before = "",
    tier: TierText = "",
    time_zone: TimeZone = "",
    limit: Limit = 1000,
) -> Response:
    """The sensors that belong to a group in its newest window, or in the last one that starts before a time."""
    named = _group(rollup_of(asked.schema, rollup), group)
    zone = zone_for(time_zone, _window(asked.schema, rollup, tier))
    before_us = _moment(before, zone) if before else None

    def read(table: SensorTable) -> Response:
        of_group: Iterator[str] = table.sensors_of_group(rollup, named, before_us, tier=tier or None)
        found = sorted(islice(of_group, limit))
        more = next(of_group, None) is not None
        return asked.page(table, names_form("sensors", "sensor_id", found), more=more)

    return await asked.answer(read)


@router.get("/of", summary="The groups of a sensor", response_model=answers.GroupsOfSensorJson | answers.FlatJson)
async def groups_of_sensor(asked: Asked, sensor_id: SensorId) -> Response:
    """The groups that a sensor belongs to in its newest window."""

    def read(table: SensorTable) -> Response:
        found = table.groups_of_sensor(sensor_id)
        rows = ({"rollup": each.rollup, "group": each.text, "label": each.label} for each in found)
        names = [f"{each.rollup}/{each.text}" for each in found]
        form = Forms("groups", map(group_json, found), rows, lambda: names_arrow("group", names))
        return asked.page(table, form)

    return await asked.answer(read)


def _group(rollup: Rollup, text: str | None) -> SensorGroup:
    if not rollup.by:
        return group_of(rollup, text or ALL)
    if text is None:
        raise ValueError(f"group is missing; the roll-up {rollup.name} is by {' and '.join(rollup.by)}")
    return group_of(rollup, text)


def _form(name: str, records: list[GroupRecord], metrics: list[str]) -> Forms:
    return Forms(
        name,
        map(group_record_json, records),
        chain.from_iterable(aggregate_rows(record, metrics) for record in records),
        GroupRecords(records).to_arrow,
    )


def _window(schema: TableSchema, rollup: str, tier: str) -> Window:
    return tier_of_rollup(schema, rollup_of(schema, rollup), parse_window(tier) if tier else None).window


def _moment(text: str, zone: str) -> int:
    return parse_moment(text, time.time_ns() // 1000, zone)
