"""The rows of alerts: the transitions of one sensor under one rule, in a family of their own.

The key is ``alert#{rule}#{sensor_id}``. Each transition is a cell: its column is what it leads to, its timestamp the
event time, to the millisecond, and its value JSON. If the time has microseconds besides, the column ends with them, as
in ``firing.042``. So writing it again changes nothing, and the family's policy decides how long history stays.

A late reading may show that a transition did not take place. Then a cell at the same time withdraws it, in the column
``withdrawn_`` with the transition's kind. Of the two cells, the one with the greater version counts.

Each cell has the revision of its rule; that which ends an alert because its rule was changed or removed has none. So
what the rule of today wrote is what follows the last cell with another revision.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, get_args

from pipeline.core.alerts.machine import (
    BEGIN,
    FIRING,
    NEVER_US,
    PENDING,
    RESOLVED,
    Kind,
    Track,
    Transition,
    state_after,
)
from pipeline.core.alerts.rules import RULE_NAME, Rule
from pipeline.core.events.event import checked_sensor_id
from pipeline.core.notation.documents import parse_json
from pipeline.core.notation.text import json_number
from pipeline.core.notation.times import to_datetime
from pipeline.core.rows.rows import Cell, EncodedRow, KeyRange, Row, encoded, prefix_range
from pipeline.core.schema.layouts import CellSelection

FAMILY = "alert"
HISTORY = CellSelection((FAMILY,))
"""The cells that tell all that fired."""
_LATELY_CELLS = 100  # of a column
LATELY = CellSelection((FAMILY,), versions=_LATELY_CELLS)
"""The cells that tell what fires now, and the last transitions, however long the history is.

What late readings withdrew is at the same times, and so it comes too. Only if readings that all came late withdrew the
last hundred transitions of a kind, one before them would count.
"""

_PREFIX = b"alert#"
_WITHDRAWN = "withdrawn_"
_MOST_HISTORY = 100  # transitions that a restored track keeps, to take them back
_BEYOND = re.compile(r"\d{3}")
_KINDS: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}


@dataclass(frozen=True)
class AlertRecord:
    """The alert of one sensor under one rule.

    Attributes:
        rule: the rule's name.
        sensor_id: the sensor.
        severity: the severity at the last transition.
        transitions: the transitions, in order.
        revisions: the revision of the rule at each transition.
        version: the greatest version of a cell.
        told_us: the greatest time of a transition that was told, withdrawn ones included.
        complete_us: a time since which no transition is missing, if only the last cells of each column were read.
    """

    rule: str
    sensor_id: str
    severity: str
    transitions: tuple[Transition, ...]
    revisions: tuple[str, ...]
    version: int
    told_us: int
    complete_us: int

    @property
    def revision(self) -> str:
        """The revision of the rule at the last transition; empty without one."""
        return self.revisions[-1] if self.revisions else ""

    @property
    def alerts(self) -> Iterator[Transition]:
        """The transitions that are told: those to firing and resolved."""
        return (each for each in self.transitions if each.kind in (FIRING, RESOLVED))

    @property
    def last_told(self) -> Transition | None:
        """The transition that was told last: if none is left, that what was told did not take place."""
        withdrawn = None if self.told_us == NEVER_US else Transition(self.told_us, RESOLVED, None, self.told_us)
        return next(reversed(list(self.alerts)), withdrawn)

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
        "value": None if value is None else json_number(value),
        "since_us": since_us,
        "severity": rule.severity,
        "revision": rule.revision,
        "version": version,
    }
    beyond_us = time_us % 1000  # cells have milliseconds
    column = f"{column}.{beyond_us:03d}" if beyond_us else column
    return Cell(FAMILY, column.encode(), time_us - beyond_us, json.dumps(content).encode())


class _Written(NamedTuple):
    """A transition as a cell tells it."""

    transition: Transition
    version: int
    holds: bool
    severity: str
    revision: str


def parse_alert_row(row: Row) -> AlertRecord:
    """Returns the alert that a row contains. Raises ValueError for a row that is not one of an alert."""
    rule, sensor_id = parse_alert_key(row.key)
    found: dict[tuple[int, Kind], _Written] = {}
    times_us: dict[bytes, list[int]] = {}
    for cell in row.cells:
        written = _parse_cell(cell)
        times_us.setdefault(cell.qualifier, []).append(cell.timestamp_us)
        key = written.transition.time_us, written.transition.kind
        if key not in found or found[key].version < written.version:
            found[key] = written
    held = sorted((each for each in found.values() if each.holds), key=lambda each: (each.transition.time_us, each[1]))
    last = held[-1] if held else max(found.values(), key=lambda each: each.version)
    return AlertRecord(
        rule,
        sensor_id,
        last.severity,
        tuple(each.transition for each in held),
        tuple(each.revision for each in held),
        max(each.version for each in found.values()),
        max((time_us for time_us, kind in found if kind in (FIRING, RESOLVED)), default=NEVER_US),
        max((min(times) + 999 for times in times_us.values() if len(times) >= _LATELY_CELLS), default=NEVER_US),
    )


def _parse_cell(cell: Cell) -> _Written:
    column = cell.qualifier.decode(errors="backslashreplace")
    name, dot, beyond = column.removeprefix(_WITHDRAWN).partition(".")
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
        version, severity, revision = int(content["version"]), str(content["severity"]), str(content["revision"])
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise ValueError(f"its column {column} contains no transition") from error
    return _Written(transition, version, not column.startswith(_WITHDRAWN), severity, revision)


def restored(record: AlertRecord, revision: str) -> Track:
    """Returns the track of a rule of this revision after what a row tells. What another one wrote stays as it is."""
    others = [place for place, of in enumerate(record.revisions) if of != revision]
    first = others[-1] + 1 if others else 0
    own = list(record.transitions[first:])
    floor_us = max(record.transitions[first - 1].time_us if first else NEVER_US, record.complete_us)
    if len(own) > _MOST_HISTORY:
        own = own[-_MOST_HISTORY:]
        floor_us = max(floor_us, own[0].time_us)
    last = own[-1] if own else None
    return Track(
        BEGIN if last is None else state_after(last),
        max(floor_us, NEVER_US if last is None else last.time_us),
        # What the watermark alone showed stays shown.
        watermark_us=max((each.time_us + 1 for each in own if each.kind == FIRING), default=NEVER_US),
        told=last is not None and last.kind == FIRING,
        told_us=record.told_us,
        version=record.version,
        history=own,
        floor_us=floor_us,
        revision=revision,
        severity=record.severity,
    )
