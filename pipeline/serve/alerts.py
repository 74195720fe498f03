"""The API's answers about alerts: what fires, what fired, and the rules that there are."""

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response

from pipeline.cloud.reading.alert_reader import AlertReader
from pipeline.cloud.reading.reader import SensorTable
from pipeline.core.alerts.alert_rows import FIELDS, firing_now, history
from pipeline.core.alerts.rules import RULE_NAME, Rule
from pipeline.core.answers.read_arguments import zone_for
from pipeline.core.events.event import checked_sensor_id
from pipeline.core.notation.text import shown
from pipeline.core.notation.times import parse_time
from pipeline.serve import answers, api
from pipeline.serve.answers import Asked, Forms
from pipeline.serve.parameters import Limit, Prefix, Text, TimeZone, as_range

if TYPE_CHECKING:
    import pyarrow

router = APIRouter(
    prefix=api.router.prefix, dependencies=api.router.dependencies, responses=api.router.responses, tags=["alerts"]
)

RuleName = Annotated[Text, Query(alias="rule", description="Only alerts of this rule.")]
OfSensor = Annotated[
    Text, Query(alias="sensor", description="Only alerts of this sensor, under the rules that the table stores.")
]
Watching = Annotated[Text, Query(alias="sensor", description="Only rules for sensors with this id.")]
Since = Annotated[
    Text, Query(description="The start of a range: what fired and resolved in it, instead of what fires now.")
]
Until = Annotated[Text, Query(description="The end of that range, exclusive; now by default.")]


@router.get(
    "/alerts",
    summary="Alerts that fire now, or fired and resolved in a range, the newest first",
    response_model=answers.AlertsJson | answers.FlatJson,
)
async def alerts(
    asked: Asked,
    rule: RuleName = "",
    sensor_id: OfSensor = "",
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
    sensor = checked_sensor_id(sensor_id) if sensor_id else None

    def read(table: SensorTable) -> Response:
        reader = AlertReader(table, asked.reads.rules)
        records = reader.records(rule or None, sensor, lately=span is None)
        if span is None:
            firing = firing_now(records, prefix, reader.units)
            found = sorted(firing, key=lambda each: parse_time(each["event_time"]), reverse=True)
        else:
            found = history(records, *span, prefix, reader.units)[::-1]
        page = found[:limit]
        now_us = time.time_ns() // 1000
        form = Forms(
            "alerts",
            (each | api.age(now_us, parse_time(each["event_time"])) for each in page),
            page,
            lambda: _alerts_arrow(page),
        )
        return asked.page(table, form, count=len(found), more=len(found) > limit, time_zone=zone)

    return await asked.answer(read)


@router.get(
    "/rules",
    summary="Rules of alerts, of all sensors or one",
    response_model=answers.RulesJson | answers.FlatJson,
)
async def rules(asked: Asked, sensor_id: Watching = "") -> Response:
    """The rules that the table stores. One on metadata also needs a sensor whose newest metadata fits."""

    def read(table: SensorTable) -> Response:
        reader = AlertReader(table, asked.reads.rules)
        watching = [rule for rule in reader.rules.rules if not sensor_id or rule.matches(sensor_id)]
        rows = [_rule_row(rule, reader.units.get(rule.name)) for rule in watching]
        records = (row | {"metadata": dict(rule.metadata)} for rule, row in zip(watching, rows, strict=True))
        return asked.page(table, Forms("rules", records, rows, lambda: _rules_arrow(rows)))

    return await asked.answer(read)


def _rule_row(rule: Rule, unit: str | None) -> dict[str, Any]:
    condition = rule.condition
    return {
        "rule": rule.name,
        "condition": rule.summary,
        "severity": rule.severity,
        "metric": rule.metric,
        "of": rule.of,
        "tier": rule.tier,
        "kind": condition and condition.kind,
        "low": condition and condition.low,
        "high": condition and condition.high,
        "per_s": rule.per_us / 1e6 or None,
        "unit": unit,
    }


def _alerts_arrow(found: Iterable[Mapping[str, Any]]) -> "pyarrow.Table":
    import pyarrow as arrow

    types = {"event_time": arrow.timestamp("us", tz="UTC"), "since": arrow.timestamp("us", tz="UTC")}
    types |= {"value": arrow.float64()}
    schema = arrow.schema([(field, types.get(field, arrow.string())) for field in FIELDS])
    times = ("event_time", "since")
    rows = [{field: parse_time(value) if field in times else value for field, value in each.items()} for each in found]
    return arrow.Table.from_pylist(rows, schema)


def _rules_arrow(rows: Iterable[Mapping[str, Any]]) -> "pyarrow.Table":
    import pyarrow as arrow

    names = ("rule", "condition", "severity", "metric", "of", "tier", "kind", "low", "high", "per_s", "unit")
    types = dict.fromkeys(("low", "high", "per_s"), arrow.float64())
    schema = arrow.schema([(name, types.get(name, arrow.string())) for name in names])
    return arrow.Table.from_pylist(list(rows), schema)
