"""The messages about alerts: one for each transition, and one that sums up a storm of them."""

import hashlib
import json
from collections.abc import Sequence
from typing import NamedTuple

from pipeline.core.alerts.machine import Transition
from pipeline.core.alerts.rules import Rule
from pipeline.core.events.message import EVENT_ID, EVENT_TIME, MESSAGE_TYPE, Message
from pipeline.core.notation.times import format_time

ALERT_TYPE = "tidetable.v1.Alert"
MOST_TOLD = 100
"""The most messages about one rule that are published together; more are summed up in one."""


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


def alert_of(rule: Rule, sensor_id: str, transition: Transition, table: str) -> Alert:
    """Returns what is told about a transition.

    Args:
        rule: the rule.
        sensor_id: the sensor.
        transition: the transition.
        table: the id of the table.
    """
    time_us, kind, value, since_us = transition
    parts = (table, rule.name, rule.revision, sensor_id, time_us, kind)
    event_id = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
    content = {
        "rule": rule.name,
        "kind": kind,
        "sensor_id": sensor_id,
        "event_time": format_time(time_us),
        "since": format_time(since_us),
        "value": value,
        "condition": rule.summary,
        "severity": rule.severity,
        "table": table,
        "event_id": event_id,
    }
    return Alert(rule.name, event_id, kind, json.dumps(content))


def messages_of(alerts: Sequence[Alert]) -> list[Message]:
    """Returns the messages about alerts of one rule that are told together: one each, or one for all of a storm."""
    told = list({alert.id: alert for alert in alerts}.values())
    if len(told) <= MOST_TOLD:
        return [_message(json.loads(alert.content)) for alert in told]
    contents = [json.loads(alert.content) for alert in told]
    kinds = [content["kind"] for content in contents]
    times = [content["event_time"] for content in contents]
    ids = "\n".join(sorted(alert.id for alert in told))
    return [
        _message(
            {key: contents[0][key] for key in ("rule", "condition", "severity", "table")}
            | {
                "kind": "summary",
                "event_time": max(times),
                "since": min(times),
                "firing": kinds.count("firing"),
                "resolved": kinds.count("resolved"),
                "sensors": sorted({content["sensor_id"] for content in contents})[:10],
                "event_id": hashlib.sha256(ids.encode()).hexdigest()[:32],
            }
        )
    ]


def _message(content: dict[str, object]) -> Message:
    attributes = {MESSAGE_TYPE: ALERT_TYPE, EVENT_TIME: str(content["event_time"]), EVENT_ID: str(content["event_id"])}
    attributes |= {name: str(content[name]) for name in ("rule", "kind", "severity", "sensor_id") if name in content}
    return Message(json.dumps(content).encode(), attributes)
