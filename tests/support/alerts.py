"""A group of sensors whose readings are watched for alerts, with its table, without Beam and without a server."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline.core.alerts.alert_rows import AlertRecord, parse_alert_row
from pipeline.core.alerts.group_alerts import (
    BEGIN,
    AlertKey,
    AlertState,
    Found,
    GroupAlerts,
    SensorMetric,
    SilentSensors,
    StoredAlerts,
    WindowValue,
    silent_part,
    windows_part,
)
from pipeline.core.alerts.group_tracks import GroupTracks
from pipeline.core.alerts.machine import FIRING, RESOLVED, Track, Transition, Value, fire_if_due, step
from pipeline.core.alerts.rule_set import RuleSet
from pipeline.core.alerts.rules import Rule
from pipeline.core.notation.times import parse_time
from pipeline.core.panes.grouped_readings import Readings, encoded_readings
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.declared_metric import DeclaredMetric
from pipeline.core.schema.table_schema import TableSchema
from tests.support.rows import decoded

START_US = 1_771_322_400_000_000
MINUTE_US = 60_000_000
HELD_US = 2_000_000

_Cells = dict[tuple[bytes, bytes, int], Cell]


class WatchedGroup:
    """A table, a job with one group of sensors, and the messages that it has published.

    Attributes:
        cells: the cells of alerts' rows.
        raw: the readings that the table has.
        windows: the statistics of windows that the table has, by sensor and end.
        told: the alerts that were published, in order.
        latest: the alert with the greatest number, by rule and sensor.
        mutes: the times until which messages of rules wait.
        writes: the number of times that the state was written.
        reads: the number of times that the table was read.
        is_slow: whether rows are written after some minutes.
        locates: whether the keys of raw rows locate sensors.
        fits: whether the metadata of freezers is what rules ask for.
    """

    def __init__(self, *rules: Rule) -> None:
        self.cells: dict[tuple[bytes, bytes, int], Cell] = {}
        self.raw: dict[tuple[str, int], float] = {}
        self.windows: dict[tuple[str, int], int] = {}
        self.told: list[dict[str, Any]] = []
        self.latest: dict[tuple[str, str], dict[str, Any]] = {}
        self.mutes: dict[tuple[str, str], int] = {}
        self.now_us = START_US
        self.writes = self.reads = 0
        self.is_slow, self.locates, self.fits = False, True, True
        self._unwritten: list[tuple[int, Row]] = []
        self._number = START_US
        self._killed, self._latest_before = False, self.latest
        self.use(*rules)
        self._alerts = GroupAlerts(
            "table", self, replace(TableSchema.for_new_table(), declared={"t": DeclaredMetric("°C", "Air")})
        )
        self.restart()

    def use(self, *rules: Rule) -> None:
        self._number += 1
        self._rules = RuleSet(rules, self._number, self.mutes)

    def restart(self) -> None:
        """A new job: its state is empty."""
        self.write()
        self.data: bytes | None = None
        self.due_us: int | None = None
        self.wake_us: int | None = None
        self.process(BEGIN)

    def store(self, sensor_id: str, *values: tuple[int, float]) -> None:
        """Raw rows and rows of newest readings are written."""
        self.raw |= {(sensor_id, time_us): number for time_us, number in values}

    def read(self, sensor_id: str, *values: tuple[int, float]) -> None:
        """Readings are written, and arrive in one part, every other one in an event with a second metric."""
        self.store(sensor_id, *values)
        self.arrive(sensor_id, *values)

    def arrive(self, sensor_id: str, *values: tuple[int, float]) -> None:
        """Readings arrive that were written before."""
        times, numbers = [time_us for time_us, _ in values], [number for _, number in values]
        readings = [Readings(sensor_id, ("t",), times[::2], numbers[::2])]
        if len(values) > 1:
            pairs = [each for number in numbers[1::2] for each in (number, 0.0)]
            readings.append(Readings(sensor_id, ("t", "u"), times[1::2], pairs))
        for part in encoded_readings(START_US, readings):
            self.process(part)

    def result(self, rule: Rule, sensor_id: str, value: Value) -> None:
        """The result of a window that is over arrives."""
        key = sensor_id, value.time_us
        self.windows[key] = max(self.windows.get(key, 0), value.version)
        self.process(windows_part([WindowValue(sensor_id, rule.id, value)]))

    def look(self, rule: Rule, watermark_us: int) -> bytes:
        """Returns what a look for silent sensors finds."""
        until_us, newest_us = watermark_us - rule.silent_for_us, self.newest_us
        silent: dict[str, int | None] = {
            sensor_id: time_us for sensor_id, time_us in sorted(newest_us.items()) if time_us < until_us
        }
        silent |= {sensor_id: None for sensor_id in rule.expected if sensor_id not in newest_us}
        return silent_part(SilentSensors(rule.id, watermark_us, "", None, silent))

    @property
    def newest_us(self) -> dict[str, int]:
        """The times of the newest readings."""
        found: dict[str, int] = {}
        for sensor_id, time_us in self.raw:
            found[sensor_id] = max(found.get(sensor_id, 0), time_us)
        return found

    def process(self, part: bytes) -> None:
        """An element arrives: readings, or the answer of a look."""
        self._run(lambda state: self._alerts.process(0, part, state, self.now_us))

    def pass_time(self, duration_us: int) -> None:
        """The clock goes on, and fires its timer on the way."""
        until_us = self.now_us + duration_us
        while self.wake_us is not None and self.wake_us <= until_us:
            self.now_us, self.wake_us = max(self.now_us, self.wake_us), None
            self._run(lambda state: self._alerts.settle(0, state, self.now_us))
        self.now_us = until_us

    def pass_watermark(self, watermark_us: int) -> None:
        """The watermark passes, and with it the timer."""
        while self.due_us is not None and self.due_us <= watermark_us:
            at_us, self.due_us = self.due_us, None
            self._pass(at_us, drains=False)

    def drain(self) -> None:
        """The watermark passes all times."""
        if (at_us := self.due_us) is not None:
            self.due_us = None
            self._pass(at_us, drains=True)

    def _pass(self, at_us: int, *, drains: bool) -> None:
        self._run(lambda state: self._alerts.settle(0, state, self.now_us, at_us, ends=drains))

    def happen(self, what: str) -> None:
        """Time passes, or a new job begins, perhaps because the one before was killed."""
        self.pass_time({"later": 3_600_000_000, "soon": 400_000_000}.get(what, 3_000_000))
        if what == "kill":  # the rows of the last bundle were written, and its messages waited
            self.latest, self._killed = self._latest_before, True
        if what in ("restart", "kill"):
            self.restart()
            self._killed = False

    def write(self, before_us: int = 1 << 62) -> None:
        """Rows that have waited since before that time are in the table."""
        for since_us, row in self._unwritten:
            if since_us < before_us:
                self.cells |= _by_place(row)
        self._unwritten = [each for each in self._unwritten if each[0] >= before_us]

    def all_records(self) -> dict[AlertKey, AlertRecord]:
        """The alerts as the table has them once all rows are written."""
        cells = dict(self.cells)
        for _, row in self._unwritten:
            cells |= _by_place(row)
        return {(record.rule, record.sensor_id): record for record in _records(cells)}

    def firing(self) -> set[str]:
        return {record.sensor_id for record in self.all_records().values() if record.is_firing}

    @property
    def tracks(self) -> dict[str, dict[str, Track]]:
        found: dict[str, dict[str, Track]] = {}
        for sensor_id, name, track in GroupTracks(self.data).all():
            found.setdefault(sensor_id, {})[name] = track
        return found

    def told_to_fire(self) -> set[str]:
        """The sensors that fire by the messages."""
        return {sensor_id for (_, sensor_id), alert in self.latest.items() if alert["kind"] == FIRING}

    def kinds(self) -> list[str]:
        return [alert["kind"] for alert in self.told]

    def check(self) -> None:
        """What was told last of each alert is what its row says, and what it says of the past is possible."""
        records = self.all_records()
        assert {key for key, alert in self.latest.items() if alert["kind"] == FIRING} == {
            key for key, record in records.items() if record.is_firing
        }
        for record in records.values():
            kinds = [each.kind for each in record.alerts]
            assert kinds == [FIRING, RESOLVED] * (len(kinds) // 2) + [FIRING] * (len(kinds) % 2)

    # What the step reads

    def rules(self, least: int = 0) -> RuleSet:
        assert least <= self._rules.number
        return self._rules

    def restored(self, group: int) -> StoredAlerts:
        records = list(_records(self.cells))
        return StoredAlerts([each for each in records if each.is_open], records if self._killed else [])

    def records(self, keys: Sequence[AlertKey]) -> dict[AlertKey, AlertRecord]:
        self.reads += 1
        return {key: record for record in _records(self.cells) if (key := (record.rule, record.sensor_id)) in keys}

    def newest(self, came: Mapping[SensorMetric, Sequence[Value]]) -> dict[SensorMetric, Value]:
        self.reads += 1
        found: dict[SensorMetric, Value] = {}
        for (sensor_id, time_us), value in sorted(self.raw.items(), key=lambda each: each[0][1]):
            own = {each.time_us for each in came.get((sensor_id, "t"), ())}
            if not self.locates:  # rows of newest readings tell whole milliseconds
                found[sensor_id, "t"] = Value(time_us // 1000 * 1000, value)
            elif time_us not in own:
                found[sensor_id, "t"] = Value(time_us, value)
        return found

    def newer_windows(self, rule: Rule, newest: Mapping[str, Value]) -> set[str]:
        return {
            sensor_id
            for (sensor_id, end_us), version in self.windows.items()
            if sensor_id in newest and (end_us, version) > (newest[sensor_id].time_us, newest[sensor_id].version)
        }

    def unchanged_since(self, rule: Rule, sensor_id: str, value: float, before_us: int) -> int:
        self.reads += 1
        since_us = before_us
        times_us = sorted((time_us for sensor, time_us in self.raw if sensor == sensor_id), reverse=True)
        for time_us in times_us:
            if before_us - rule.unchanged_for_us <= time_us < before_us:
                if abs(self.raw[sensor_id, time_us] - value) > rule.tolerance:
                    break
                since_us = time_us
        return since_us

    def stored(self, rule: Rule, sensors: Sequence[str]) -> tuple[dict[str, int], set[str]]:
        newest_us = {sensor_id: time_us for sensor_id, time_us in self.newest_us.items() if sensor_id in sensors}
        return newest_us, {each.sensor_id for each in _records(self.cells) if each.rule == rule.name}

    def fitting(self, rule: Rule, newest_us: Mapping[str, int]) -> list[str]:
        return [
            sensor_id for sensor_id in newest_us if not rule.metadata or (self.fits and sensor_id.startswith("freezer"))
        ]

    # A bundle

    def _run(self, bundle: Callable[[AlertState], Found]) -> None:
        """Runs a bundle, after a first attempt that fails: the second one finds the same."""
        self.write(self.now_us - 5 * MINUTE_US)
        before = self.data, self.due_us, self.wake_us, self.writes
        failed = bundle(self._state())
        self.data, self.due_us, self.wake_us, self.writes = before
        found = bundle(self._state())
        assert found == failed
        self._unwritten += [(self.now_us, decoded(row)) for row in found.rows]
        if not self.is_slow:
            self.write()
        self._latest_before = dict(self.latest)
        for alert in found.alerts:
            content = json.loads(alert.content)
            key = content["rule"], content["sensor_id"]
            before_it = self.latest.get(key, {"kind": RESOLVED, "number": 0, "event_time": ""})
            if content["event_id"] == before_it.get("event_id"):  # told once more, which receivers drop
                continue
            assert content["number"] > before_it["number"]
            assert self._killed or content["kind"] != before_it["kind"]
            assert parse_time(content["event_time"]) == content["number"]
            self.latest[key] = content
            self.told.append(content)

    def _state(self) -> AlertState:
        return AlertState(lambda: self.data, self._write, self._set_due, self._set_wake)

    def _write(self, data: bytes) -> None:
        self.data = data
        self.writes += 1

    def _set_due(self, at_us: int) -> None:
        self.due_us = at_us

    def _set_wake(self, at_us: int) -> None:
        self.wake_us = at_us


def in_order(rule: Rule, values: Mapping[int, float], watermark_us: int = 0) -> list[Transition]:
    """Returns the transitions that values lead to that come in the order of their times: the definition of a rule."""
    track, found = Track(rule.id), list[Transition]()
    for time_us, value in sorted(values.items()):
        found += step(rule, track, Value(time_us, value))
    return found + fire_if_due(rule, track, watermark_us)


def _by_place(row: Row) -> _Cells:
    return {(row.key, cell.qualifier, cell.timestamp_us): cell for cell in row.cells}


def _records(cells: _Cells) -> Iterator[AlertRecord]:
    for row in dict.fromkeys(key for key, _, _ in cells):
        yield parse_alert_row(Row(row, [cell for (key, _, _), cell in cells.items() if key == row]))
