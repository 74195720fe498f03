"""Tests of rules on silence in a group of sensors: looks, readings on their way, sensors that are gone."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.alerts.group_alerts import BEGIN, silent_part
from pipeline.core.alerts.machine import FIRING, RESOLVED
from pipeline.core.alerts.rules import Rule
from pipeline.core.alerts.silence import SilentSensors
from tests.support.alerts import MINUTE_US, START_US, WatchedGroup

_SILENT = Rule("silent", silent_for_us=30 * MINUTE_US)
_AFTER_US = START_US + 31 * MINUTE_US


def _silent_table(rule: Rule = _SILENT) -> WatchedGroup:
    """A table with a sensor that has been silent since the start."""
    table = WatchedGroup(rule)
    table.now_us = _AFTER_US
    table.newest_us["a"] = START_US
    table.process(table.look(rule, _AFTER_US))
    assert table.firing() == {"a"}
    return table


def test_silence() -> None:
    """A silent sensor fires once, over restarts too, and resolves with a reading that is not as old itself."""
    table = _silent_table()
    table.restart()
    table.now_us = START_US + 60 * MINUTE_US
    table.process(table.look(_SILENT, table.now_us))
    assert [message["event_time"] for message in table.told] == ["2026-02-17T10:30:00Z"]
    table.read("a", (START_US + 5 * MINUTE_US, 5))
    assert table.firing() == {"a"}
    table.read("a", (START_US + 55 * MINUTE_US, 5))
    assert not table.firing()
    assert table.kinds() == [FIRING, RESOLVED]


@pytest.mark.parametrize("late", [True, False])
def test_silence_ends_after_it_began(late: bool) -> None:
    """A late reading, or the end of the rule, resolves the alert in its row too."""
    table = _silent_table()
    if not late:
        table.use()
    table.read("a", (START_US + 20 * MINUTE_US, 5))
    assert not table.firing()
    assert table.kinds() == [FIRING, RESOLVED]


def test_a_reading_on_its_way_to_the_table() -> None:
    """A sensor whose reading the group has heard is silent by that reading alone, whatever its row says."""
    table = WatchedGroup(_SILENT)
    table.newest_us["a"] = START_US
    heard_us = START_US + 20 * MINUTE_US
    table.read("a", (heard_us, 5))
    table.process(table.look(_SILENT, _AFTER_US))
    assert not table.firing()
    table.process(table.look(_SILENT, heard_us + 31 * MINUTE_US))
    assert [message["event_time"] for message in table.told] == ["2026-02-17T10:50:00Z"]


def test_readings_of_other_sensors_are_not_kept() -> None:
    """Readings of sensors without any rule stay out of the state."""
    table = WatchedGroup(Rule("silent", "freezer-*", silent_for_us=30 * MINUTE_US))
    table.read("fridge-1", (START_US, 5))
    assert not table.kept
    table.read("freezer-1", (START_US, 5))
    assert table.kept


def test_a_sensor_that_is_gone() -> None:
    """The alert of a sensor without a row of newest readings ends. If the alert has no row either, it gets none."""
    for forgotten in (True, False):
        table = _silent_table()
        table.newest_us.clear()
        if forgotten:
            table.cells.clear()
        table.process(table.look(_SILENT, _AFTER_US + MINUTE_US))
        assert table.kinds() == [FIRING, RESOLVED]
        assert not table.firing()
        assert not (table.tracks and forgotten)
        assert bool(table.cells) is not forgotten


def test_a_sensor_that_the_job_before_heard() -> None:
    """An alert that fires in its row ends if the table has a newer reading."""
    table = _silent_table()
    table.restart()
    table.newest_us["a"] = START_US + 40 * MINUTE_US
    table.process(table.look(_SILENT, START_US + 50 * MINUTE_US))
    assert not table.firing()
    assert [message["event_time"] for message in table.told][1:] == ["2026-02-17T10:40:00Z"]


def test_a_watermark_of_a_backlog() -> None:
    """After a restart the watermark may be behind: what fires by a later one goes on."""
    table = _silent_table()
    table.restart()
    table.process(table.look(_SILENT, START_US + 10 * MINUTE_US))
    assert table.firing() == {"a"}
    assert table.kinds() == [FIRING]


def test_an_older_look_changes_nothing() -> None:
    """What a later look found stays, if the answer of an older one comes after it."""
    table = _silent_table()
    before = table.look(_SILENT, _AFTER_US + MINUTE_US)
    table.newest_us["a"] = _AFTER_US + MINUTE_US
    table.process(table.look(_SILENT, _AFTER_US + 2 * MINUTE_US))
    assert not table.firing()
    table.process(before)
    assert not table.told_to_fire()


def test_a_rule_with_a_shorter_time() -> None:
    """The alert of a changed rule fires after the one before has ended, also in its row, and after a restart."""
    table, rule = _silent_table(), replace(_SILENT, silent_for_us=10 * MINUTE_US)
    table.use(rule)
    table.process(table.look(rule, _AFTER_US))
    assert table.kinds() == [FIRING, RESOLVED, FIRING]
    table.check()
    table.restart()
    table.read("a", (START_US + 25 * MINUTE_US, 5))
    assert not table.firing()
    table.check()


def test_each_range_of_ids_stands_alone() -> None:
    """A look tells ranges of ids: each says who is silent in it, and nothing of the others, in whatever order."""
    table = WatchedGroup(_SILENT)
    table.newest_us = dict.fromkeys("abcd", START_US)
    table.process(table.look(_SILENT, _AFTER_US))
    table.newest_us = dict.fromkeys("bd", START_US)
    for after, until, left in (("b", None, "abd"), ("", "b", "bd")):
        silent = {each: START_US for each in "bd" if each > after and (until is None or each <= until)}
        table.process(silent_part(SilentSensors(_SILENT.id, _AFTER_US + 1, after, until, silent)))
        assert table.firing() == set(left)


_DELAY_US = 10 * MINUTE_US  # of a row of newest readings at most: as long as the group keeps what it heard
_ACTIONS = ["read", "read", "read", "write", "look", "look", "tell", "tell", "tell", "restart", "forget", "change"]


@given(
    st.lists(st.sampled_from(_ACTIONS), max_size=80),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_any_history_of_silence(actions: list[str], is_slow: bool, order: random.Random) -> None:
    """Whatever happens, no sensor is paged that is not silent by what the group has heard; in the end all is right.

    Rows are written late, looks come late and in any order, jobs restart, rules change, sensors are forgotten.
    """
    table, sensors, rule = WatchedGroup(_SILENT), "abc", _SILENT
    table.is_slow = is_slow
    looks: list[tuple[int, bytes]] = []  # and the time before which a sensor is silent
    heard_us, truth_us, waiting = dict[str, int](), dict[str, int](), list[tuple[int, str, int]]()
    forgotten, watermark_us = set[str](), table.now_us

    def write(until_us: int) -> None:
        for each in [each for each in waiting if each[0] <= until_us]:
            waiting.remove(each)
            table.newest_us[each[1]] = max(each[2], table.newest_us.get(each[1], 0))

    def look() -> tuple[int, bytes]:
        return watermark_us - rule.silent_for_us, table.look(rule, watermark_us)

    def tell(until_us: int, part: bytes) -> None:
        before = table.told_to_fire()
        table.process(part)
        assert all(heard_us.get(sensor, 0) < until_us for sensor in table.told_to_fire() - before)

    for action in actions:
        table.now_us += order.choice([0, 1, 4]) * MINUTE_US
        watermark_us = max(watermark_us, table.now_us - order.choice([0, 1, 5]) * MINUTE_US)
        sensor = order.choice(sensors)
        write(table.now_us - _DELAY_US)
        match action:
            case "read":
                time_us = table.now_us - order.choice([0, 1, 20, 40]) * MINUTE_US
                waiting.append((table.now_us, sensor, time_us))
                heard_us[sensor] = max(time_us, heard_us.get(sensor, 0))
                truth_us[sensor] = max(time_us, truth_us.get(sensor, 0))
                table.read(sensor, (time_us, 1))
            case "write" if waiting:
                waiting.insert(0, (0, *waiting.pop(order.randrange(len(waiting)))[1:]))
                write(0)
            case "look":
                looks.append(look())
            case "tell" if looks:
                tell(*looks.pop(order.randrange(len(looks))))
            case "restart":
                write(table.now_us)  # a job writes before it ends
                looks.clear()
                firing = table.firing()  # not those that are forgotten
                table.latest = {key: alert for key, alert in table.latest.items() if key[1] in firing}
                table.restart()
                heard_us.clear()
            case "forget":
                write(table.now_us)
                table.write()
                table.newest_us.pop(sensor, None)
                truth_us.pop(sensor, None)
                heard_us.pop(sensor, None)
                forgotten.add(sensor)
                table.cells = {key: cell for key, cell in table.cells.items() if not key[0].endswith(sensor.encode())}
            case "change":
                rule = replace(_SILENT, silent_for_us=order.choice([10, 30]) * MINUTE_US)
                if order.choice([True, False]):
                    table.use()
                    table.process(BEGIN)
                table.use(rule)
    write(table.now_us)
    watermark_us = table.now_us = table.now_us + 5 * MINUTE_US
    tell(*look())
    silent = {each for each, time_us in truth_us.items() if time_us + rule.silent_for_us < watermark_us}
    # Of a sensor that was forgotten and sends again, the group may still know readings from before.
    assert table.told_to_fire() - forgotten == silent - forgotten
    assert table.told_to_fire() <= silent
    if not forgotten:
        table.check()
