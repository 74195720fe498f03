"""Tests of rules on silence in a group of sensors: looks, readings on their way, sensors that are gone."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.alerts.group_alerts import BEGIN, SilentSensors, silent_part
from pipeline.core.alerts.machine import FIRING, RESOLVED
from pipeline.core.alerts.rules import Rule
from tests.support.alerts import MINUTE_US, START_US, WatchedGroup

_SILENT = Rule("silent", silent_for_us=30 * MINUTE_US)
_AFTER_US = START_US + 31 * MINUTE_US


def _silent_table(rule: Rule = _SILENT) -> WatchedGroup:
    """A table with a sensor that has been silent since the start."""
    table = WatchedGroup(rule)
    table.now_us = _AFTER_US
    table.store("a", (START_US, 5))
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


def test_sensors_that_never_sent() -> None:
    """A rule that names sensors expects them: one that never sent fires once, at the rule's time, until it sends."""
    rule = replace(_SILENT, sensors=("a", "b"))
    table = WatchedGroup(rule)
    table.now_us += 20 * MINUTE_US
    table.store("a", (START_US, 5))
    for _ in range(2):
        table.process(table.look(rule, table.now_us))
        table.restart()
    assert [(each["sensor_id"], each["event_time"][:19]) for each in table.told] == [("b", "2026-02-17T10:00:00")]
    table.read("b", (table.now_us, 5))
    assert not table.firing()
    table.process(table.look(rule, table.now_us))
    assert table.kinds() == [FIRING, RESOLVED]


def test_a_sensor_that_is_gone() -> None:
    """The alert of a sensor without a row of newest readings ends. If the alert has no row either, it gets none."""
    for forgotten in (True, False):
        table = _silent_table()
        table.raw.clear()
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
    table.store("a", (START_US + 40 * MINUTE_US, 5))
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
    table.store("a", (_AFTER_US + MINUTE_US, 5))
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
    for sensor in "abcd":
        table.store(sensor, (START_US, 5))
    table.process(table.look(_SILENT, _AFTER_US))
    for sensor in "ac":
        table.store(sensor, (_AFTER_US, 5))
    for after, until, left in (("b", None, "abd"), ("", "b", "bd")):
        silent = {each: START_US for each in "bd" if each > after and (until is None or each <= until)}
        table.process(silent_part(SilentSensors(_SILENT.id, _AFTER_US + 1, after, until, silent)))
        assert table.firing() == set(left)


_ACTIONS = ["read", "read", "read", "look", "look", "tell", "tell", "tell", "restart", "forget", "change"]


@given(st.lists(st.sampled_from(_ACTIONS), max_size=80), st.booleans(), st.randoms(use_true_random=False))
def test_any_history_of_silence(actions: list[str], is_slow: bool, order: random.Random) -> None:
    """Whatever happens, in the end the silent sensors fire, and no others.

    Readings and rows come late, looks come late and in any order, jobs restart, rules change, sensors are forgotten.
    """
    table, rule, forgotten = WatchedGroup(_SILENT), _SILENT, set[str]()
    table.is_slow, watermark_us = is_slow, table.now_us
    looks, waiting = list[bytes](), list[tuple[str, tuple[int, float]]]()
    for action in actions:
        table.now_us += order.choice([0, 1, 4]) * MINUTE_US
        watermark_us = max(watermark_us, table.now_us - order.choice([0, 1, 5]) * MINUTE_US)
        sensor = order.choice("abc")
        match action:
            case "read":
                reading = sensor, (table.now_us - order.choice([0, 1, 20, 40]) * MINUTE_US, 1.0)
                table.store(*reading)
                waiting.append(reading)
                if order.choice([True, False]):
                    table.arrive(*waiting.pop(order.randrange(len(waiting))))
            case "look":
                looks.append(table.look(rule, watermark_us))
            case "tell" if looks:
                table.process(looks.pop(order.randrange(len(looks))))
            case "restart":
                looks.clear()
                table.write()
                firing = table.firing()  # not those that are forgotten
                table.latest = {key: alert for key, alert in table.latest.items() if key[1] in firing}
                table.restart()
            case "forget":
                table.write()
                table.raw = {key: value for key, value in table.raw.items() if key[0] != sensor}
                waiting = [each for each in waiting if each[0] != sensor]
                forgotten.add(sensor)
                table.cells = {key: cell for key, cell in table.cells.items() if not key[0].endswith(sensor.encode())}
            case "change":
                rule = replace(_SILENT, silent_for_us=order.choice([10, 30]) * MINUTE_US)
                if order.choice([True, False]):
                    table.use()
                    table.process(BEGIN)
                table.use(rule)
    for reading in waiting:
        table.arrive(*reading)
    table.now_us += 5 * MINUTE_US
    table.process(table.look(rule, table.now_us))
    silent = {each for each, time_us in table.newest_us.items() if time_us + rule.silent_for_us < table.now_us}
    assert table.told_to_fire() - forgotten == silent - forgotten
    if not forgotten:
        table.check()
