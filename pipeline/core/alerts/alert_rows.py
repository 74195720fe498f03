"""Rows of alerts: one for each rule and sensor, with what happened, as it happened.

The key is ``alert#{rule}#{sensor_id}``. A transition is a cell in the column of its kind, whose timestamp is the event
time: what happened is never rewritten, and the family's policy decides how long history stays. Cells have whole
milliseconds; the microseconds beyond follow the kind in the column, as in ``firing.042``. The transition with the
greatest time tells the state.

Each cell has the revision of its rule; the one that ends an alert because its rule was changed or removed has none.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

from pipeline.core.alerts.machine import CALM, FIRING, PENDING, RESOLVED, Kind, Track, Transition
from pipeline.core.alerts.rules import RULE_NAME, Rule
from pipeline.core.events.event import checked_sensor_id
from pipeline.core.notation.documents import parse_json
from pipeline.core.notation.text import json_number
from pipeline.core.notation.times import format_time, to_datetime
from pipeline.core.rows.rows import Cell, EncodedRow, KeyRange, Row, encoded, prefix_range
from pipeline.core.schema.layouts import CellSelection

FAMILY = "alert"
HISTORY = CellSelection((FAMILY,))
"""The cells that tell all that fired."""
LATELY = CellSelection((FAMILY,), versions=1)
"""The cells that tell what fires now, however long the history is."""

FIELDS = ("rule", "sensor_id", "kind", "event_time", "since", "value", "unit", "label", "severity")
"""The fields of an alert in answers."""

_PREFIX = b"alert#"
_BEYOND = re.compile(r"\d{3}")
_KINDS: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}


class ValueFacts(NamedTuple):
    """The unit of the values that a rule looks at, and the label of their metric, if the schema has them."""

    unit: str | None = None
    label: str | None = None


_NONE: Mapping[str, ValueFacts] = {}


@dataclass(frozen=True)
class AlertRecord:
    """The alert of one sensor under one rule.

    Attributes:
        rule: the rule's name.
        sensor_id: the sensor.
        severity: the severity at the last transition.
        revision: the revision of the rule at the last transition.
        transitions: the transitions, in order; one at least.
    """

    rule: str
    sensor_id: str
    severity: str
    revision: str
    transitions: tuple[Transition, ...]

    @property
    def last(self) -> Transition:
        """The last transition."""
        return self.transitions[-1]

    @property
    def alerts(self) -> Iterator[Transition]:
        """The transitions that are told: those to firing and resolved."""
        return (each for each in self.transitions if each.kind in (FIRING, RESOLVED))

    @property
    def is_firing(self) -> bool:
        """Whether the alert fires."""
        return self.last.kind == FIRING

    @property
    def is_open(self) -> bool:
        """Whether the alert fires, or will unless a reading contradicts."""
        return self.last.kind in (FIRING, PENDING)

    def track(self) -> Track:
        """Returns the track after what the row tells."""
        time_us, kind, value, since_us, _ = self.last
        phase, rule_id = kind if self.is_open else CALM, f"{self.rule}@{self.revision}"
        # The row does not tell which readings came after that time: the newest one still moves the state.
        return Track(rule_id, phase, since_us, value or 0.0, time_us, since_us, told=self.is_firing)


def alert_key(rule: str, sensor_id: str) -> bytes:
    """Returns the key of a sensor's alert."""
    return _PREFIX + f"{rule}#{sensor_id}".encode()


def alert_range(rule: str | None = None) -> KeyRange:
    """Returns the keys of a rule's alerts, or of all."""
    return prefix_range(_PREFIX if rule is None else alert_key(rule, ""))


def parse_alert_key(key: bytes) -> tuple[str, str]:
    """Returns the rule and the sensor. Raises ValueError for another key."""
    parts = key.decode("ascii", errors="replace").split("#")
    if len(parts) != 3 or parts[0] != "alert" or not RULE_NAME.fullmatch(parts[1]):
        raise ValueError("it has not the form alert#RULE#SENSOR")
    return parts[1], checked_sensor_id(parts[2])


def alert_row(rule: Rule, sensor_id: str, transitions: Sequence[Transition]) -> EncodedRow:
    """Returns the row that adds transitions."""
    return encoded(Row(alert_key(rule.name, sensor_id), [_cell(each, rule) for each in transitions]))


def _cell(transition: Transition, rule: Rule) -> Cell:
    time_us, kind, value, since_us, _ = transition
    content = {
        "time_us": time_us,
        "value": None if value is None else json_number(value),
        "since_us": since_us,
        "severity": rule.severity,
        "revision": rule.revision,
    }
    beyond_us = time_us % 1000  # cells have milliseconds
    column = f"{kind}.{beyond_us:03d}" if beyond_us else kind
    return Cell(FAMILY, column.encode(), time_us - beyond_us, json.dumps(content).encode())


def parse_alert_row(row: Row) -> AlertRecord:
    """Returns the alert that a row contains. Raises ValueError for a row that is not one of an alert."""
    rule, sensor_id = parse_alert_key(row.key)
    found = sorted(map(_parse_cell, row.cells), key=lambda each: each[0].time_us)
    _, severity, revision = found[-1]
    return AlertRecord(rule, sensor_id, severity, revision, tuple(transition for transition, *_ in found))


def _parse_cell(cell: Cell) -> tuple[Transition, str, str]:
    """Returns a transition, with the severity and the revision of its rule."""
    column = cell.qualifier.decode(errors="backslashreplace")
    name, dot, beyond = column.partition(".")
    kind = _KINDS.get(name)
    if kind is None or (dot and not _BEYOND.fullmatch(beyond)):
        raise ValueError(f"an alert has no column {column}")
    try:
        content = parse_json(cell.value)
        value = content["value"]
        transition = Transition(
            int(content["time_us"]), kind, None if value is None else float(value), int(content["since_us"])
        )
        to_datetime(transition.time_us), to_datetime(transition.since_us)  # others may have written any number
        return transition, str(content["severity"]), str(content["revision"])
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise ValueError(f"its column {column} contains no transition") from error


def firing_now(
    records: Iterable[AlertRecord], prefix: str = "", values: Mapping[str, ValueFacts] = _NONE
) -> Iterator[dict[str, Any]]:
    """Yields the alerts that fire, of sensors whose ids begin so.

    Args:
        records: the alerts.
        prefix: the beginning of the sensors' ids.
        values: the units and labels of values, by the rule's name.
    """
    for record in records:
        if record.is_firing and record.sensor_id.startswith(prefix):
            yield _answer(record, record.transitions[-1], values)


def history(
    records: Iterable[AlertRecord],
    start_us: int,
    end_us: int,
    prefix: str = "",
    values: Mapping[str, ValueFacts] = _NONE,
) -> list[dict[str, Any]]:
    """Returns the transitions to firing and resolved within a span of event time, oldest first."""
    found = [
        (each.time_us, each.kind == FIRING, record, each)
        for record in records
        if record.sensor_id.startswith(prefix)
        for each in record.alerts
        if start_us <= each.time_us < end_us
    ]
    return [_answer(record, each, values) for *_, record, each in sorted(found, key=lambda one: one[:2])]


def _answer(record: AlertRecord, transition: Transition, values: Mapping[str, ValueFacts]) -> dict[str, Any]:
    facts = values.get(record.rule, ValueFacts())
    time_us, kind, value, since_us, _ = transition
    return {
        "rule": record.rule,
        "sensor_id": record.sensor_id,
        "kind": kind,
        "event_time": format_time(time_us),
        "since": format_time(since_us),
        "value": None if value is None else json_number(value),
        "unit": facts.unit,
        "label": facts.label,
        "severity": record.severity,
    }
