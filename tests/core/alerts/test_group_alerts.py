"""Tests of a group of sensors, through every history: late, twice, in any bundles, with restarts and changed rules."""

import json
import random
from collections.abc import Iterable, Iterator

from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.alerts.alert_rows import AlertRecord, parse_alert_row
from pipeline.core.alerts.conditions import AlertCondition
from pipeline.core.alerts.evaluation import Found
from pipeline.core.alerts.group_alerts import BEGIN, AlertState, GroupAlerts, Silent, silent_part
from pipeline.core.alerts.group_tracks import GroupTracks
from pipeline.core.alerts.machine import FIRING, RESOLVED, Value, transitions
from pipeline.core.alerts.rule_set import RuleSet
from pipeline.core.alerts.rules import Rule
from pipeline.core.panes.grouped_readings import Readings, encoded_readings
from pipeline.core.rows.rows import Cell, Row
from tests.support.rows import decoded

_START_US = 1_771_322_400_000_000
_MINUTE_US = 60_000_000
_LATENESS_US = 10 * _MINUTE_US
_SENSORS = ("freezer-1", "freezer-2", "fridge-1")


def _rule(above: float = 10, for_us: int = 0, sensors: str = "freezer-*") -> Rule:
    return Rule("warm", sensors, metric="t", condition=AlertCondition("above", above, above), for_us=for_us)


class _Bag:
    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def read(self) -> Iterable[bytes]:
        return list(self.parts)

    def add(self, element: bytes) -> None:
        self.parts.append(element)

    def clear(self) -> None:
        self.parts.clear()


class _Table:
    """A table, a job with one group of sensors, and the messages that it has published."""

    def __init__(self, *rules: Rule) -> None:
        self.cells: dict[tuple[bytes, bytes, int], Cell] = {}
        self.raw: dict[tuple[str, int], float] = {}
        self.messages: dict[str, dict[str, object]] = {}
        self.fires: dict[tuple[str, str], bool] = {}
        self.now_us = _START_US
        self.reads = 0
        self.use(*rules)
        self.restart()

    def use(self, *rules: Rule) -> None:
        self._alerts = GroupAlerts(
            RuleSet(rules), "table", _LATENESS_US, lambda _: self.open(), self._known, lambda *_: True
        )

    def restart(self) -> None:
        """A new job: its state is empty."""
        self._data: bytes | None = None
        self._bags = _Bag(), _Bag()
        self.timer_us: int | None = None
        self._take(self._alerts.process(0, BEGIN, self._state(), self.now_us))

    def read(self, sensor_id: str, *values: tuple[int, float]) -> None:
        """Readings arrive in one part, of which the raw rows are written too."""
        times, numbers = [time_us for time_us, _ in values], [number for _, number in values]
        self.raw |= {(sensor_id, time_us): number for time_us, number in values}
        for part in encoded_readings(_START_US, [Readings(sensor_id, ("t",), times, numbers)]):
            self._take(self._alerts.process(0, part, self._state(), self.now_us))

    def silence(self, rule: Rule, sensor_id: str, newest_us: int) -> None:
        part = silent_part([Silent(sensor_id, rule.id, newest_us)])
        self._take(self._alerts.process(0, part, self._state(), self.now_us))

    def pass_watermark(self, watermark_us: int) -> None:
        """The watermark passes, and with it the timer."""
        while self.timer_us is not None and self.timer_us <= watermark_us:
            at_us, self.timer_us = self.timer_us, None
            self._take(self._alerts.pass_watermark(0, at_us, self._state(), self.now_us))

    def records(self) -> Iterator[AlertRecord]:
        keys = dict.fromkeys(key for key, _, _ in self.cells)
        for row in keys:
            yield parse_alert_row(Row(row, [cell for (key, _, _), cell in self.cells.items() if key == row]))

    def open(self) -> list[AlertRecord]:
        return [record for record in self.records() if record.is_open]

    def firing(self) -> set[str]:
        return {record.sensor_id for record in self.records() if record.is_firing}

    @property
    def tracks(self) -> list[str]:
        return list(GroupTracks(self._data).sensors())

    def _known(self, sensor_id: str, rule: Rule, from_us: int) -> tuple[int, list[Value]]:
        self.reads += 1
        of_alert = (each.version for each in self.records() if (each.rule, each.sensor_id) == (rule.name, sensor_id))
        return max(of_alert, default=0), [
            Value(at_us, value)
            for (sensor, at_us), value in self.raw.items()
            if sensor == sensor_id >= "" and at_us >= from_us
        ]

    def _state(self) -> AlertState:
        return AlertState(lambda: self._data, self._write, *self._bags, self._set)

    def _write(self, data: bytes) -> None:
        self._data = data

    def _set(self, at_us: int) -> None:
        self.timer_us = at_us

    def _take(self, found: Found) -> None:
        for row in map(decoded, found.rows):
            self.cells |= {(row.key, cell.qualifier, cell.timestamp_us): cell for cell in row.cells}
        for alert in found.alerts:
            content = json.loads(alert.content)
            key = content["rule"], content["sensor_id"]
            fires = content["kind"] == FIRING
            assert fires is not self.fires.get(key, False)
            self.fires[key] = fires
            self.messages[alert.id] = content


_HISTORIES = st.lists(
    st.tuples(st.sampled_from(_SENSORS), st.integers(0, 20), st.sampled_from([5.0, 11.0])), max_size=25
)


@given(
    _HISTORIES,
    st.sampled_from([0, 2 * _MINUTE_US]),
    st.randoms(use_true_random=False),
    st.lists(st.sampled_from(["restart", "again", "later", "watermark", ""]), max_size=25),
)
def test_any_history_leads_to_what_the_definition_says(
    history: list[tuple[str, int, float]], for_us: int, order: random.Random, actions: list[str]
) -> None:
    """After late and repeated readings and long pauses, rows are those of readings in order; after restarts, the state.

    A new job does not know the alerts that are over, so a late reading may leave the time of their end as it was.
    """
    rule = _rule(for_us=for_us)
    readings = {(sensor, _START_US + step * 25_000_000): value for sensor, step, value in history}
    arriving = list(readings.items())
    order.shuffle(arriving)
    table, watermark_us = _Table(rule), 0
    for index, ((sensor, time_us), value) in enumerate(arriving):
        action = actions[index] if index < len(actions) else ""
        table.now_us += 3_600_000_000 if action == "later" else 1_000_000
        if action == "restart":
            table.restart()
        elif action == "watermark":
            watermark_us = max(watermark_us, time_us)
            table.pass_watermark(watermark_us)
        table.read(sensor, (time_us, value))
        if action == "again":
            table.read(sensor, (time_us, value))
    end_us = _START_US + 3600_000_000
    table.pass_watermark(end_us)
    for sensor in _SENSORS:
        values = sorted(Value(time_us, value) for (of, time_us), value in readings.items() if of == sensor)
        expected, state = transitions(rule, values, end_us) if sensor != "fridge-1" else ([], None)
        found = [record.transitions for record in table.records() if record.sensor_id == sensor and record.transitions]
        if "restart" not in actions:
            assert found == ([tuple(expected)] if expected else [])
        assert table.fires.get(("warm", sensor), False) is (sensor in table.firing()) is bool(state and state.firing)


def test_calm_sensors_touch_nothing() -> None:
    """Readings that fire nothing leave no tracks, and read nothing."""
    table = _Table(_rule())
    before = table._data
    table.read("freezer-1", (_START_US, 5))
    table.read("fridge-1", (_START_US, 50))
    assert table._data is before
    assert not table.reads


def test_readings_in_order_are_told_once() -> None:
    """A transition is told when it comes, and nothing is told again at a restart or a repeated reading."""
    table = _Table(_rule())
    table.read("freezer-1", (_START_US, 11))
    table.restart()
    table.read("freezer-1", (_START_US, 11))
    table.read("freezer-1", (_START_US + 1_000_000, 12))
    assert [message["kind"] for message in table.messages.values()] == [FIRING]
    table.restart()
    table.read("freezer-1", (_START_US + 2_000_000, 9))
    assert [message["kind"] for message in table.messages.values()] == [FIRING, RESOLVED]
    assert not table.open()


def test_a_changed_rule_ends_its_alerts() -> None:
    """If a rule fires for something else, or is removed, its alerts end; what still holds fires under the new one."""
    table = _Table(_rule())
    table.read("freezer-1", (_START_US, 11))
    table.use(_rule(above=20))
    table.read("freezer-1", (_START_US + 1_000_000, 12))
    assert not table.firing()
    table.read("freezer-1", (_START_US + 2_000_000, 22))
    assert table.firing() == {"freezer-1"}
    table.use()
    table.read("freezer-2", (_START_US, 5))
    assert not table.firing()
    assert [message["kind"] for message in table.messages.values()] == [FIRING, RESOLVED] * 2


def test_a_change_of_severity_ends_nothing() -> None:
    """Alerts go on if only their severity changes."""
    table = _Table(_rule())
    table.read("freezer-1", (_START_US, 11))
    table.use(Rule("warm", "freezer-*", severity="page", metric="t", condition=AlertCondition("above", 10, 10)))
    table.read("freezer-1", (_START_US + 1_000_000, 12))
    assert table.firing() == {"freezer-1"}
    assert len(table.messages) == 1


def test_silence() -> None:
    """A silent sensor fires once, over restarts too, and resolves with a reading that is not as old itself."""
    rule = Rule("silent", silent_for_us=30 * _MINUTE_US)
    table = _Table(rule)
    table.now_us += 3_600_000_000
    table.silence(rule, "freezer-1", _START_US)
    table.restart()
    table.silence(rule, "freezer-1", _START_US)
    assert [message["event_time"] for message in table.messages.values()] == ["2026-02-17T10:30:00Z"]
    table.read("freezer-1", (_START_US + 5 * _MINUTE_US, 5))
    assert table.firing() == {"freezer-1"}
    table.read("freezer-1", (_START_US + 55 * _MINUTE_US, 5))
    assert not table.firing()
    assert [message["kind"] for message in table.messages.values()] == [FIRING, RESOLVED]


def test_a_late_reading_after_a_restart() -> None:
    """What comes after a restart may be older than what the row tells: the readings within the lateness count again."""
    rule = _rule(for_us=2 * _MINUTE_US)
    table = _Table(rule)
    table.read("freezer-1", (_START_US + 125_000_000, 11))
    table.restart()
    table.read("freezer-1", (_START_US, 11))
    assert table.firing() == {"freezer-1"}
    table.restart()
    table.read("freezer-1", (_START_US + 50_000_000, 5))
    assert not table.firing()
    assert [message["kind"] for message in table.messages.values()] == [FIRING, RESOLVED]


def test_silence_ends_after_it_began() -> None:
    """A late reading, or the end of the rule, resolves the alert in its row too."""
    rule = Rule("silent", silent_for_us=30 * _MINUTE_US)
    for late in (True, False):
        table = _Table(rule)
        table.now_us = _START_US + 31 * _MINUTE_US
        table.silence(rule, "freezer-1", _START_US)
        assert table.firing() == {"freezer-1"}
        if not late:
            table.use()
        table.read("freezer-1", (_START_US + 20 * _MINUTE_US, 5))
        assert not table.firing()
        assert [message["kind"] for message in table.messages.values()] == [FIRING, RESOLVED]


def test_the_end_of_a_rule_whose_condition_held_by_the_watermark() -> None:
    """The alert ends after it fired, though its last reading is older."""
    table = _Table(_rule(for_us=2 * _MINUTE_US))
    table.read("freezer-1", (_START_US, 11))
    table.pass_watermark(_START_US + 5 * _MINUTE_US)
    assert table.firing() == {"freezer-1"}
    table.use()
    table.read("freezer-2", (_START_US, 5))
    assert not table.firing()
