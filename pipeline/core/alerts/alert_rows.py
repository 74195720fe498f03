"""The rows of alerts: the transitions of one sensor under one rule, in a family of their own.

The key is ``alert#{rule}#{sensor_id}``. Each transition is a cell: its column is what it leads to, its timestamp the
event time, to the millisecond, and its value JSON. So writing it again changes nothing, and the family's policy decides
how long history stays.

A late reading may show that a transition did not take place. Then a cell at the same time withdraws it, in the column
``withdrawn_`` with the transition's kind. Of the two cells, the one with the greater version counts.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from pipeline.core.alerts.machine import FIRING, PENDING, RESOLVED, Kind, Track, Transition
from pipeline.core.alerts.rules import RULE_NAME, Rule
from pipeline.core.events.event import checked_sensor_id
from pipeline.core.rows.mutation_bytes import encoded
from pipeline.core.rows.rows import Cell, EncodedRow, KeyRange, Row, prefix_range
from pipeline.core.schema.layouts import CellSelection

FAMILY = "alert"
HISTORY = CellSelection((FAMILY,))
"""The cells that tell all that fired."""
LATELY = CellSelection((FAMILY,), versions=100)
"""The cells that tell what fires now, and the last transitions, however long the history is.

What late readings withdrew is at the same times, and so it comes too. Only if readings that all came late withdrew the
last hundred transitions of a kind, one before them would count.
"""

_PREFIX = b"alert#"
_WITHDRAWN = "withdrawn_"
_KINDS: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}


@dataclass(frozen=True)
class AlertRecord:
    """The alert of one sensor under one rule.

    Attributes:
        rule: the rule's name.
        sensor_id: the sensor.
        severity: the severity at the last transition.
        revision: the revision of the rule at the last transition.
        transitions: the transitions, in order.
        version: the greatest version of a cell.
    """

    rule: str
    sensor_id: str
    severity: str
    revision: str
    transitions: tuple[Transition, ...]
    version: int

    @property
    def rule_id(self) -> str:
        """The name and the revision, as :attr:`Rule.id` has them."""
        return f"{self.rule}@{self.revision}"

    @property
    def alerts(self) -> Iterator[Transition]:
        """The transitions that are told: those to firing and resolved."""
        return (each for each in self.transitions if each.kind in (FIRING, RESOLVED))

    @property
    def is_firing(self) -> bool:
        """Whether the alert fires."""
        return bool(self.transitions) and self.transitions[-1].kind == FIRING

    @property
    def is_open(self) -> bool:
        """Whether the alert fires, or will unless a reading contradicts."""
        return bool(self.transitions) and self.transitions[-1].kind in (FIRING, PENDING)


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


def alert_row(
    rule: Rule, sensor_id: str, added: Sequence[Transition], withdrawn: Sequence[Transition], track: Track
) -> EncodedRow:
    """Returns the row that records the changes of a track."""
    cells = [_cell(each.kind, each, rule, track.version) for each in added]
    cells += [_cell(f"{_WITHDRAWN}{each.kind}", each, rule, track.version) for each in withdrawn]
    return encoded(Row(alert_key(rule.name, sensor_id), cells))


def _cell(column: str, transition: Transition, rule: Rule, version: int) -> Cell:
    time_us, _, value, since_us = transition
    content = {
        "time_us": time_us,
        "value": value,
        "since_us": since_us,
        "severity": rule.severity,
        "revision": rule.revision,
        "version": version,
    }
    return Cell(FAMILY, column.encode(), time_us - time_us % 1000, json.dumps(content).encode())


def parse_alert_row(row: Row) -> AlertRecord:
    """Returns the alert that a row contains. Raises ValueError for a row that is not one of an alert."""
    rule, sensor_id = parse_alert_key(row.key)
    found: dict[tuple[int, Kind], tuple[int, bool, Transition, str, str]] = {}
    for cell in row.cells:
        column = cell.qualifier.decode(errors="backslashreplace")
        kind = _KINDS.get(column.removeprefix(_WITHDRAWN))
        if kind is None:
            raise ValueError(f"an alert has no column {column}")
        try:
            content = json.loads(cell.value)
            value = content["value"]
            transition = Transition(
                int(content["time_us"]), kind, None if value is None else float(value), int(content["since_us"])
            )
            version, severity, revision = int(content["version"]), str(content["severity"]), str(content["revision"])
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"its column {column} contains no transition") from error
        key = transition.time_us, kind
        if key not in found or found[key][0] < version:
            found[key] = version, column == kind, transition, severity, revision
    kept = sorted((each for each in found.values() if each[1]), key=lambda each: (each[2].time_us, each[0]))
    last = max(found.values(), key=lambda each: each[0]) if not kept else kept[-1]
    return AlertRecord(
        rule, sensor_id, last[3], last[4], tuple(each[2] for each in kept), max(each[0] for each in found.values())
    )
