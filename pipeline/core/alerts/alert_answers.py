"""Answers about alerts as JSON objects: what fires now, and what fired."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pipeline.core.alerts.alert_rows import AlertRecord
from pipeline.core.alerts.machine import FIRING, Transition
from pipeline.core.notation.text import json_number
from pipeline.core.notation.times import format_time

FIELDS = ("rule", "sensor_id", "kind", "event_time", "since", "value", "unit", "severity")

_NONE: Mapping[str, str] = {}


def firing_now(
    records: Iterable[AlertRecord], prefix: str = "", units: Mapping[str, str] = _NONE
) -> Iterator[dict[str, Any]]:
    """Yields the alerts that fire, of sensors whose ids begin so.

    Args:
        records: the alerts.
        prefix: the beginning of the sensors' ids.
        units: the units of values, by the rule's name.
    """
    for record in records:
        if record.is_firing and record.sensor_id.startswith(prefix):
            yield _answer(record, record.transitions[-1], units)


def history(
    records: Iterable[AlertRecord], start_us: int, end_us: int, prefix: str = "", units: Mapping[str, str] = _NONE
) -> list[dict[str, Any]]:
    """Returns the transitions to firing and resolved within a span of event time, oldest first."""
    found = [
        (each.time_us, each.kind == FIRING, record, each)
        for record in records
        if record.sensor_id.startswith(prefix)
        for each in record.alerts
        if start_us <= each.time_us < end_us
    ]
    return [_answer(record, each, units) for *_, record, each in sorted(found, key=lambda one: one[:2])]


def _answer(record: AlertRecord, transition: Transition, units: Mapping[str, str]) -> dict[str, Any]:
    time_us, kind, value, since_us, _ = transition
    return {
        "rule": record.rule,
        "sensor_id": record.sensor_id,
        "kind": kind,
        "event_time": format_time(time_us),
        "since": format_time(since_us),
        "value": None if value is None else json_number(value),
        "unit": units.get(record.rule),
        "severity": record.severity,
    }
