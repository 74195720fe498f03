"""The API's answer about alerts: what fires now, and what fired."""

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from pipeline.cloud.reading.alerts import alert_records
from pipeline.cloud.reading.reader import SensorTable
from pipeline.core.alerts.alert_answers import FIELDS, firing_now, history
from pipeline.core.alerts.rules import RULE_NAME
from pipeline.core.answers.read_arguments import zone_for
from pipeline.core.notation.text import shown
from pipeline.core.notation.times import parse_time
from pipeline.serve import answers, api
from pipeline.serve.answers import Forms, rendered
from pipeline.serve.api import AnswerFormat, TheReads
from pipeline.serve.parameters import Limit, Prefix, Text, TimeZone, as_range

if TYPE_CHECKING:
    import pyarrow

router = APIRouter(prefix=api.router.prefix, dependencies=api.router.dependencies, responses=api.router.responses)

Rule = Annotated[Text, Query(description="Only alerts of this rule.")]
Since = Annotated[
    Text, Query(description="The start of a range: what fired and resolved in it, instead of what fires now.")
]
Until = Annotated[Text, Query(description="The end of that range, exclusive; now by default.")]


@router.get(
    "/alerts",
    summary="Alerts that fire now, or fired and resolved in a range, the newest first",
    response_model=answers.AlertsJson | answers.FlatJson,
    tags=["alerts"],
)
async def alerts(
    request: Request,
    reads: TheReads,
    asked: AnswerFormat,
    rule: Rule = "",
    prefix: Prefix = "",
    start: Since = "",
    end: Until = "",
    time_zone: TimeZone = "",
    limit: Limit = 1000,
) -> Response:
    """The alerts that fire now, or with start what fired and resolved in a range: one page, and the number of all."""
    if rule and not RULE_NAME.fullmatch(rule):
        raise ValueError(f"{shown(rule)} can't be a rule's name")
    if end and not start:
        raise ValueError("end needs start: without a range, the answer is what fires now")
    zone = zone_for(time_zone)
    span = as_range(start, end or "now", zone) if start else None

    def read(table: SensorTable) -> Response:
        records = alert_records(table, rule or None, lately=span is None)
        if span is None:
            found = sorted(firing_now(records, prefix), key=lambda each: parse_time(each["event_time"]), reverse=True)
        else:
            found = history(records, *span, prefix)[::-1]
        page = found[:limit]
        now_us = time.time_ns() // 1000
        form = Forms(
            "alerts",
            (each | {"age_s": round((now_us - parse_time(each["event_time"])) / 1e6, 3)} for each in page),
            page,
            lambda: _arrow(page),
        )
        return rendered(request, table, asked, form, {}, count=len(found), more=len(found) > limit, time_zone=zone)

    return await reads.answer(request, read)


def _arrow(found: Iterable[Mapping[str, Any]]) -> "pyarrow.Table":
    import pyarrow as arrow

    types = {"event_time": arrow.timestamp("us", tz="UTC"), "since": arrow.timestamp("us", tz="UTC")}
    types |= {"value": arrow.float64()}
    schema = arrow.schema([(field, types.get(field, arrow.string())) for field in FIELDS])
    times = ("event_time", "since")
    rows = [{field: parse_time(value) if field in times else value for field, value in each.items()} for each in found]
    return arrow.Table.from_pylist(rows, schema)
