"""The API's answers about alerts: what fires, what fired, and the rules that there are."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response

from pipeline.cloud.reading.alert_reader import AlertReader
from pipeline.cloud.reading.reader import SensorTable
from pipeline.core.alerts.alert_rows import FIELDS, ValueFacts, firing_now, history
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

_RULE_FIELDS = (
    "rule",
    "condition",
    "severity",
    "metric",
    "of",
    "tier",
    "kind",
    "low",
    "high",
    "per_s",
    "unit",
    "label",
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
            firing = firing_now(records, prefix, reader.values)
            found = sorted(firing, key=lambda each: parse_time(each["event_time"]), reverse=True)
        else:
            found = history(records, *span, prefix, reader.values)[::-1]
        page = found[:limit]
        now_us = time.time_ns() // 1000
        form = Forms(
            "alerts",
            (each | api.age(now_us, parse_time(each["event_time"])) for each in page),
            page,
            lambda: _arrow(page, FIELDS),
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
        rows = [_rule_row(rule, reader.values.get(rule.name, ValueFacts())) for rule in watching]
        records = (row | {"metadata": dict(rule.metadata)} for rule, row in zip(watching, rows, strict=True))
        return asked.page(table, Forms("rules", records, rows, lambda: _arrow(rows, _RULE_FIELDS)))

    return await asked.answer(read)


def _rule_row(rule: Rule, facts: ValueFacts) -> dict[str, Any]:
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
        "unit": facts.unit,
        "label": facts.label,
    }


def _arrow(rows: Iterable[Mapping[str, Any]], fields: Sequence[str]) -> "pyarrow.Table":
    import pyarrow as arrow

    times = ("event_time", "since")
    types = dict.fromkeys(times, arrow.timestamp("us", tz="UTC"))
    types |= dict.fromkeys(("value", "low", "high", "per_s"), arrow.float64())
    schema = arrow.schema([(field, types.get(field, arrow.string())) for field in fields])
    parsed = [{field: parse_time(row[field]) if field in times else row[field] for field in fields} for row in rows]
    return arrow.Table.from_pylist(parsed, schema)
