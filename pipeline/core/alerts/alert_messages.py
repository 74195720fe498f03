"""The messages about alerts: one for each transition, and one that sums up a storm of them."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from pipeline.core.alerts.machine import FIRING, RESOLVED, Transition
from pipeline.core.alerts.rules import Rule
from pipeline.core.events.message import EVENT_ID, EVENT_TIME, MESSAGE_TYPE, Message
from pipeline.core.notation.text import json_number
from pipeline.core.notation.times import format_time

ALERT_TYPE = "tidetable.v1.Alert"
MOST_TOLD = 100
"""The most messages about one rule that are published together; more are summed up in one."""
_SENSORS_OF_STORM = 10


class Alert(NamedTuple):
    """A transition to tell about.

    Attributes:
        rule: the rule's name.
        id: a text that is the same whenever this transition is told.
        kind: the state that the transition leads to.
        content: the message's content, as JSON.
    """

    rule: str
    id: str
    kind: str
    content: str


def alert_of(
    rule: Rule, sensor_id: str, transition: Transition, table: str, unit: str | None = None, label: str | None = None
) -> Alert:
    """Returns what is told about a transition.

    Args:
        rule: the rule.
        sensor_id: the sensor.
        transition: the transition. Its time is the alert's number.
        table: the id of the table.
        unit: the unit of the rule's metric, if the schema has one.
        label: the label of the rule's metric, if the schema has one.
    """
    time_us, kind, value, since_us, of_window = transition
    parts = (table, rule.name, sensor_id, kind, time_us)
    event_id = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
    content: dict[str, Any] = {
        "rule": rule.name,
        "kind": kind,
        "sensor_id": sensor_id,
        "event_time": format_time(time_us),
        "since": format_time(since_us),
        "value": None if value is None else json_number(value),
        "unit": unit,
        "label": label,
        "condition": rule.summary,
        "severity": rule.severity,
        "table": table,
        "number": time_us,
        "event_id": event_id,
    }
    if of_window is not None and (window := rule.window) is not None:
        content["window"] = {
            "tier": rule.tier,
            "start": format_time(window.start_of(of_window.time_us - 1)),
            "end": format_time(of_window.time_us),
            "zone": window.zone,
            "count": of_window.readings,
            "coverage": of_window.coverage,
        }
    return Alert(rule.name, event_id, kind, json.dumps(content))


def messages_of(alerts: Iterable[Alert]) -> list[Message]:
    """Returns the messages about alerts of one rule that are told together: one each, or one for all of a storm.

    Of a storm, the contents are not kept in memory.
    """
    contents, ids, kinds, sensors = list[dict[str, Any]](), set[str](), Counter[str](), list[str]()
    begin, end = "~", ""
    for alert in alerts:
        if alert.id not in ids:
            ids.add(alert.id)
            content = json.loads(alert.content)
            if len(contents) < MOST_TOLD:
                contents.append(content)
            kinds[alert.kind] += 1
            sensors = sorted({*sensors, content["sensor_id"]})[:_SENSORS_OF_STORM]
            time = content["event_time"].removesuffix("Z")  # without it, the order of texts is that of times
            begin, end = min(begin, time), max(end, time)
    if len(ids) <= MOST_TOLD:
        return [_message(content) for content in contents]
    return [
        _message(
            {key: contents[0][key] for key in ("rule", "condition", "severity", "table")}
            | {
                "kind": "summary",
                "event_time": f"{end}Z",
                "since": f"{begin}Z",
                "firing": kinds[FIRING],
                "resolved": kinds[RESOLVED],
                "sensors": sensors,
                "event_id": hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:32],
            }
        )
    ]


def _message(content: dict[str, object]) -> Message:
    attributes = {MESSAGE_TYPE: ALERT_TYPE, EVENT_TIME: str(content["event_time"]), EVENT_ID: str(content["event_id"])}
    attributes |= {name: str(content[name]) for name in ("rule", "kind", "severity", "sensor_id") if name in content}
    return Message(json.dumps(content).encode(), attributes)
