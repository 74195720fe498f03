"""Tests of a group of sensors, through every history: late, twice, in any bundles, with restarts and changed rules."""

import random

from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.alerts.conditions import AlertCondition
from pipeline.core.alerts.machine import CALM, FIRING, PENDING, RESOLVED, Value, transitions
from pipeline.core.alerts.rules import Rule
from tests.support.alerts import MINUTE_US, START_US, WatchedGroup

_SENSORS = ("freezer-1", "freezer-2", "fridge-1")


def _rule(above: float = 10, for_us: int = 0, sensors: str = "freezer-*") -> Rule:
    return Rule("warm", sensors, metric="t", condition=AlertCondition("above", above, above), for_us=for_us)


_HISTORIES = st.lists(
    st.tuples(st.sampled_from(_SENSORS), st.integers(0, 20), st.sampled_from([5.0, 11.0])), max_size=25
)


@given(
    _HISTORIES,
    st.sampled_from([0, 2 * MINUTE_US]),
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
    readings = {(sensor, START_US + step * 25_000_000): value for sensor, step, value in history}
    arriving = list(readings.items())
    order.shuffle(arriving)
    table, watermark_us = WatchedGroup(rule), 0
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
    end_us = START_US + 3600_000_000
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
    table = WatchedGroup(_rule())
    before = table.data
    table.read("freezer-1", (START_US, 5))
    table.read("fridge-1", (START_US, 50))
    assert table.data is before
    assert not table.reads


def test_readings_in_order_are_told_once() -> None:
    """A transition is told when it comes, and nothing is told again at a restart or a repeated reading."""
    table = WatchedGroup(_rule())
    table.read("freezer-1", (START_US, 11))
    table.restart()
    table.read("freezer-1", (START_US, 11))
    table.read("freezer-1", (START_US + 1_000_000, 12))
    assert [message["kind"] for message in table.messages.values()] == [FIRING]
    table.restart()
    table.read("freezer-1", (START_US + 2_000_000, 9))
    assert [message["kind"] for message in table.messages.values()] == [FIRING, RESOLVED]
    assert not table.open()


def test_a_changed_rule_ends_its_alerts() -> None:
    """If a rule fires for something else, or is removed, its alerts end; what still holds fires under the new one."""
    table = WatchedGroup(_rule())
    table.read("freezer-1", (START_US, 11))
    table.use(_rule(above=20))
    table.read("freezer-1", (START_US + 1_000_000, 12))
    assert not table.firing()
    table.read("freezer-1", (START_US + 2_000_000, 22))
    assert table.firing() == {"freezer-1"}
    table.use()
    table.read("freezer-2", (START_US, 5))
    assert not table.firing()
    assert [message["kind"] for message in table.messages.values()] == [FIRING, RESOLVED] * 2


def test_a_change_of_severity_ends_nothing() -> None:
    """Alerts go on if only their severity changes."""
    table = WatchedGroup(_rule())
    table.read("freezer-1", (START_US, 11))
    table.use(Rule("warm", "freezer-*", severity="page", metric="t", condition=AlertCondition("above", 10, 10)))
    table.read("freezer-1", (START_US + 1_000_000, 12))
    assert table.firing() == {"freezer-1"}
    assert len(table.messages) == 1


def test_a_late_reading_after_a_restart() -> None:
    """What comes after a restart may be older than what the row tells: the readings within the lateness count again."""
    rule = _rule(for_us=2 * MINUTE_US)
    table = WatchedGroup(rule)
    table.read("freezer-1", (START_US + 125_000_000, 11))
    table.restart()
    table.read("freezer-1", (START_US, 11))
    assert table.firing() == {"freezer-1"}
    table.restart()
    table.read("freezer-1", (START_US + 50_000_000, 5))
    assert not table.firing()
    assert [message["kind"] for message in table.messages.values()] == [FIRING, RESOLVED]


def test_the_end_of_a_rule_whose_condition_held_by_the_watermark() -> None:
    """The alert ends after it fired, though its last reading is older."""
    table = WatchedGroup(_rule(for_us=2 * MINUTE_US))
    table.read("freezer-1", (START_US, 11))
    table.pass_watermark(START_US + 5 * MINUTE_US)
    assert table.firing() == {"freezer-1"}
    table.use()
    table.read("freezer-2", (START_US, 5))
    assert not table.firing()


def test_what_a_drain_fired() -> None:
    """A drain may show that a condition has held before all readings came: the next job withdraws it by those."""
    table = WatchedGroup(_rule(for_us=2 * MINUTE_US))
    table.now_us += 3600_000_000
    table.read("freezer-1", (START_US, 11))
    table.pass_watermark(START_US + 3 * MINUTE_US)
    assert table.firing() == {"freezer-1"}
    table.restart()
    table.read("freezer-1", (START_US + MINUTE_US, 5))
    assert not table.firing()
    assert [message["kind"] for message in table.messages.values()] == [FIRING, RESOLVED]
    assert [each.kind for record in table.records() for each in record.transitions] == [PENDING, CALM]
