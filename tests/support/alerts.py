"""A group of sensors whose readings are watched for alerts, with its table, without Beam and without a server."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.core.alerts.alert_rows import AlertRecord, parse_alert_row
from pipeline.core.alerts.evaluation import Found
from pipeline.core.alerts.group_alerts import BEGIN, AlertState, GroupAlerts, WindowValue, silent_part, windows_part
from pipeline.core.alerts.group_tracks import GroupTracks
from pipeline.core.alerts.machine import CALM, FIRING, RESOLVED, Value
from pipeline.core.alerts.rule_set import RuleSet
from pipeline.core.alerts.rules import Rule
from pipeline.core.alerts.silence import SilentSensors
from pipeline.core.alerts.stored_alerts import AlertKey, StoredAlerts, StoredSensors, StoredValues, ValuesWanted
from pipeline.core.notation.times import parse_time
from pipeline.core.panes.grouped_readings import Readings, encoded_readings
from pipeline.core.rows.rows import Cell, Row
from tests.support.rows import decoded

START_US = 1_771_322_400_000_000
MINUTE_US = 60_000_000
LATENESS_US = 10 * MINUTE_US

_Cells = dict[tuple[bytes, bytes, int], Cell]


class _Bag:
    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.added = 0

    def read(self) -> Iterable[bytes]:
        return list(self.parts)

    def add(self, element: bytes) -> None:
        self.parts.append(element)
        self.added += 1

    def clear(self) -> None:
        self.parts.clear()


class WatchedGroup:
    """A table, a job with one group of sensors, and the messages that it has published.

    Attributes:
        cells: the cells of alerts' rows.
        raw: the readings that the table has.
        windows: the statistics of windows that the table has, by sensor and end.
        complete_us: the time from which the table has all readings.
        newest_us: the times in rows of newest readings.
        told: the alerts that were published, in order.
        latest: the alert with the greatest number, by rule and sensor.
        is_slow: whether rows are written after some minutes.
    """

    def __init__(self, *rules: Rule) -> None:
        self.cells: dict[tuple[bytes, bytes, int], Cell] = {}
        self.raw: dict[tuple[str, int], float] = {}
        self.windows: dict[tuple[str, int], float] = {}
        self.complete_us = 0
        self.newest_us: dict[str, int] = {}
        self.told: list[dict[str, Any]] = []
        self.latest: dict[tuple[str, str], dict[str, Any]] = {}
        self.now_us = START_US
        self.reads = 0
        self.is_slow = False
        self._unwritten: list[tuple[int, Row]] = []
        self._number = 0
        self._killed, self._latest_before = False, self.latest
        self.use(*rules)
        self._alerts = GroupAlerts("table", LATENESS_US, self)
        self.restart()

    def use(self, *rules: Rule) -> None:
        self._number += 1
        self._rules = RuleSet(rules, self._number)

    def restart(self) -> None:
        """A new job: its state is empty."""
        self.write()
        self.data: bytes | None = None
        self._bags = _Bag(), _Bag()
        self.timer_us: int | None = None
        self.process(BEGIN)

    def read(self, sensor_id: str, *values: tuple[int, float]) -> None:
        """Readings arrive in one part, every other one in an event with a second metric. Raw rows are written too."""
        times, numbers = [time_us for time_us, _ in values], [number for _, number in values]
        readings = [Readings(sensor_id, ("t",), times[::2], numbers[::2])]
        if len(values) > 1:
            pairs = [each for number in numbers[1::2] for each in (number, 0.0)]
            readings.append(Readings(sensor_id, ("t", "u"), times[1::2], pairs))
        for part in encoded_readings(START_US, readings):
            self.process(part)
        self.raw |= {(sensor_id, time_us): number for time_us, number in values}

    def result(self, rule: Rule, sensor_id: str, end_us: int, value: float) -> None:
        """The result of a window that is over arrives."""
        self.windows[sensor_id, end_us] = value
        self.process(windows_part([WindowValue(sensor_id, rule.id, end_us, value)]))

    def look(self, rule: Rule, watermark_us: int) -> bytes:
        """Returns what a look for silent sensors finds."""
        until_us = watermark_us - rule.silent_for_us
        silent = {sensor_id: time_us for sensor_id, time_us in sorted(self.newest_us.items()) if time_us < until_us}
        return silent_part(SilentSensors(rule.id, watermark_us, "", None, silent))

    def process(self, part: bytes) -> None:
        """An element arrives: readings, or the answer of a look."""
        self._run(lambda state: self._alerts.process(0, part, state, self.now_us))

    def pass_watermark(self, watermark_us: int) -> None:
        """The watermark passes, and with it the timer."""
        while self.timer_us is not None and self.timer_us <= watermark_us:
            at_us, self.timer_us = self.timer_us, None
            self._run(lambda state, at_us=at_us: self._alerts.pass_watermark(0, at_us, state, self.now_us))  # type: ignore[misc]

    def happen(self, what: str) -> None:
        """Time passes, or a new job begins, perhaps because the one before was killed."""
        self.now_us += {"later": 3_600_000_000, "soon": 400_000_000}.get(what, 1_000_000)
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

    def all_records(self) -> list[AlertRecord]:
        """The alerts as the table has them once all rows are written."""
        cells = dict(self.cells)
        for _, row in self._unwritten:
            cells |= _by_place(row)
        return list(_records(cells))

    def open(self) -> list[AlertRecord]:
        return [record for record in self.all_records() if record.is_open]

    def firing(self) -> set[str]:
        return {record.sensor_id for record in self.all_records() if record.is_firing}

    @property
    def kept(self) -> list[bytes]:
        """The readings in the state."""
        return [part for bag in self._bags for part in bag.parts]

    @property
    def added(self) -> int:
        """The number of readings that were added to the state so far."""
        return sum(bag.added for bag in self._bags)

    @property
    def tracks(self) -> list[str]:
        return list(GroupTracks(self.data).sensors())

    def told_to_fire(self) -> set[str]:
        """The sensors that fire by the messages."""
        return {sensor_id for (_, sensor_id), alert in self.latest.items() if alert["kind"] == FIRING}

    def kinds(self) -> list[str]:
        return [alert["kind"] for alert in self.told]

    def check(self) -> None:
        """What was told last of each alert is what its row says, and what it says of the past is possible."""
        records = {(record.rule, record.sensor_id): record for record in self.all_records()}
        assert {key for key, alert in self.latest.items() if alert["kind"] == FIRING} == {
            key for key, record in records.items() if record.is_firing
        }
        for record in records.values():
            kinds = [each.kind for each in record.alerts]
            assert kinds == [FIRING, RESOLVED] * (len(kinds) // 2) + [FIRING] * (len(kinds) % 2)
            for last, before, after in zip(record.transitions, record.revisions, record.revisions[1:], strict=False):
                assert after in (before, "") or last.kind in (RESOLVED, CALM)

    # What the step reads

    def rules(self, least: int = 0) -> RuleSet:
        assert least <= self._rules.number
        return self._rules

    def restored(self, group: int) -> StoredAlerts:
        records = list(_records(self.cells))
        over = {
            (each.rule, each.sensor_id): each.transitions[-1].time_us
            for each in records
            if each.transitions and not each.is_open
        }
        return StoredAlerts([each for each in records if each.is_open], over, records if self._killed else ())

    def records(self, keys: Sequence[AlertKey]) -> dict[AlertKey, AlertRecord]:
        self.reads += 1
        return {key: record for record in _records(self.cells) if (key := (record.rule, record.sensor_id)) in keys}

    def values(self, wanted: Sequence[ValuesWanted]) -> list[StoredValues]:
        return [
            StoredValues(
                max(each.from_us, self.complete_us),
                [
                    Value(time_us, value)
                    for (sensor_id, time_us), value in (self.windows if each.rule.of else self.raw).items()
                    if sensor_id == each.sensor_id and each.from_us <= time_us
                    if not each.rule.of or time_us <= each.until_us
                ],
            )
            for each in wanted
        ]

    def sensors(self, rule: Rule, sensors: Sequence[str]) -> StoredSensors:
        newest_us = {sensor_id: self.newest_us[sensor_id] for sensor_id in sensors if sensor_id in self.newest_us}
        return StoredSensors(newest_us, {each.sensor_id for each in _records(self.cells) if each.rule == rule.name})

    def fits(self, sensor_id: str, rule: Rule) -> bool:
        return True

    def fitting(self, rule: Rule, newest_us: Mapping[str, int]) -> list[str]:
        return list(newest_us)

    # A bundle

    def _run(self, bundle: Callable[[AlertState], Found]) -> None:
        """Runs a bundle, after a first attempt that fails: the second one finds the same."""
        self.write(self.now_us - 5 * MINUTE_US)
        before = self.data, [list(bag.parts) for bag in self._bags], self.timer_us
        failed = bundle(self._state())
        self.data, bags, self.timer_us = before
        for bag, parts in zip(self._bags, bags, strict=True):
            bag.parts = parts
        found = bundle(self._state())
        assert found == failed
        self._unwritten += [(self.now_us, decoded(row)) for row in found.rows]
        if not self.is_slow:
            self.write()
        self._latest_before = dict(self.latest)
        for alert in found.alerts:
            content = json.loads(alert.content)
            key = content["rule"], content["sensor_id"]
            if self._killed:  # what is told once more is what was told, or what its row tells
                same = content["number"] == self.latest.get(key, content)["number"]
                assert not same or content["kind"] == self.latest.get(key, content)["kind"]
                self.latest[key] = content
                continue
            before_it = self.latest.get(key, {"kind": RESOLVED, "number": 0, "event_time": ""})
            assert content["kind"] != before_it["kind"]
            assert content["number"] > before_it["number"]
            assert parse_time(content["event_time"]) >= parse_time(before_it["event_time"] or "2000-01-01T00:00:00Z")
            assert alert.id not in {each["event_id"] for each in self.told}
            self.latest[key] = content
            self.told.append(content)

    def _state(self) -> AlertState:
        return AlertState(lambda: self.data, self._write, self._bags, self._set)

    def _write(self, data: bytes) -> None:
        self.data = data

    def _set(self, at_us: int) -> None:
        self.timer_us = at_us


def _by_place(row: Row) -> _Cells:
    return {(row.key, cell.qualifier, cell.timestamp_us): cell for cell in row.cells}


def _records(cells: _Cells) -> Iterator[AlertRecord]:
    for row in dict.fromkeys(key for key, _, _ in cells):
        yield parse_alert_row(Row(row, [cell for (key, _, _), cell in cells.items() if key == row]))
