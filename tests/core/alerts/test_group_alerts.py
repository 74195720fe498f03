"""Tests of a group of sensors, through every history: late, twice, in any bundles, with restarts, kills, new rules."""

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.core.alerts.conditions import AlertCondition
from pipeline.core.alerts.machine import CALM, FIRING, PENDING, RESOLVED, Value, transitions
from pipeline.core.alerts.rules import Rule
from tests.support.alerts import MINUTE_US, START_US, WatchedGroup

_SENSORS = ("freezer-1", "freezer-2", "fridge-1")


def _rule(above: float = 10, for_us: int = 0, sensors: str = "freezer-*", clears: float | None = None) -> Rule:
    limits = None if clears is None else (clears, clears)
    return Rule("warm", sensors, metric="t", condition=AlertCondition("above", above, above, limits), for_us=for_us)


_VALUES = st.sampled_from([5.0, 9.0, 11.0, 12.0])
_READINGS = st.tuples(
    st.sampled_from(("freezer-1", "freezer-1", *_SENSORS)),
    st.lists(st.tuples(st.integers(0, 8), _VALUES), min_size=1, max_size=3),
)
_HAPPENS = st.sampled_from(["restart", "kill", "again", "later", "soon", "watermark", "", ""])
_Part = tuple[str, list[tuple[int, float]]]


def _of_one(*history: tuple[str, int, float]) -> list[tuple[str, _Part]]:
    """Returns the history of a sensor, a reading at a time; where the watermark passes, it is another's reading."""
    return [(what, (_SENSORS[what == "watermark"], [(step, value)])) for what, step, value in history]


@given(
    st.lists(st.tuples(_HAPPENS, _READINGS), max_size=12),
    st.sampled_from([0, 2 * MINUTE_US]),
    st.sampled_from([None, 8.0]),
    st.booleans(),
)
# Nothing is told again at a restart.
@example(_of_one(("", 0, 11), ("restart", 0, 11), ("", 1, 12), ("restart", 2, 9)), 0, None, False)
# What comes after a restart is older than what the row tells.
@example(_of_one(("", 3, 11), ("restart", 0, 11), ("restart", 1, 5)), 2 * MINUTE_US, None, False)
# A reading that fires nothing shows that what was over when the job began did not take place.
@example(_of_one(("", 0, 11), ("", 1, 5), ("restart", 0, 5)), 0, None, False)
# A late reading makes an alert fire earlier than was told: its end is told after that all the same.
@example(_of_one(("", 1, 11), ("watermark", 6, 5), ("", 0, 11), ("", 3, 5)), 2 * MINUTE_US, None, False)
# A reading is corrected again and again while rows are being written.
@example(_of_one(*[("", 0, 11), ("", 0, 5)] * 2, ("", 1, 11), ("", 2, 5)), 0, None, True)
def test_any_history_leads_to_what_the_definition_says(
    history: list[tuple[str, _Part]], for_us: int, clears: float | None, is_slow: bool
) -> None:
    """Whatever comes late, twice or with another value, over pauses, restarts and kills, rows are those of readings.

    Messages tell the same state, each transition once, in the order of their times and numbers.
    """
    rule = _rule(for_us=for_us, clears=clears)
    table, watermark_us, values = WatchedGroup(rule), 0, {sensor: dict[int, float]() for sensor in _SENSORS}
    table.is_slow = is_slow
    for happens, (sensor, readings) in history:
        part = {START_US + step * 50_000_000: value for step, value in readings}
        table.happen(happens)
        for _ in range(2 if happens == "again" else 1):
            table.read(sensor, *part.items())
        values[sensor] |= part
        if happens == "watermark":
            watermark_us = max([watermark_us, *part])
        table.pass_watermark(watermark_us)
        table.check()
        found = {record.sensor_id: list(record.transitions) for record in table.all_records() if record.transitions}
        expected = {
            each: transitions(rule, [Value(*pair) for pair in sorted(values[each].items())], watermark_us)[0]
            for each in _SENSORS
            if rule.matches(each)
        }
        assert found == {each: of_sensor for each, of_sensor in expected.items() if of_sensor}


@given(
    st.lists(st.tuples(_HAPPENS, st.sampled_from(_SENSORS[:2]), st.integers(0, 5), _VALUES), max_size=12),
    st.sampled_from([0, 2 * MINUTE_US]),
    st.sampled_from([None, 8.0]),
    st.booleans(),
)
def test_any_history_of_windows(
    history: list[tuple[str, str, int, float]], for_us: int, clears: float | None, is_slow: bool
) -> None:
    """However results of windows that are over come late, twice, corrected or after a restart, rows are as by order."""
    rule = replace(_rule(for_us=for_us, clears=clears), of="avg", tier="1m")
    table, values = WatchedGroup(rule), {sensor: dict[int, float]() for sensor in _SENSORS[:2]}
    table.is_slow, table.now_us = is_slow, START_US + 10 * MINUTE_US
    for happens, sensor, step, value in history:
        table.happen(happens)
        table.pass_watermark(table.now_us)
        for _ in range(2 if happens == "again" else 1):
            table.result(rule, sensor, START_US + step * MINUTE_US, value)
        values[sensor][START_US + step * MINUTE_US] = value
        table.pass_watermark(table.now_us)
        table.check()
        found = {record.sensor_id: list(record.transitions) for record in table.all_records() if record.transitions}
        expected = {
            each: transitions(rule, [Value(*pair) for pair in sorted(of_sensor.items())], table.now_us)[0]
            for each, of_sensor in values.items()
        }
        assert found == {each: of_sensor for each, of_sensor in expected.items() if of_sensor}


_RULES = [
    [_rule()],
    [_rule(10.5)],
    [_rule(clears=8)],
    [_rule(for_us=MINUTE_US)],
    [],
]


@given(st.lists(st.tuples(st.one_of(st.sampled_from(range(len(_RULES))), _HAPPENS), _READINGS), max_size=12))
def test_rules_that_change_at_any_time(history: list[tuple[str | int, _Part]]) -> None:
    """However rules change, are removed and put back, rows, messages and a new job agree."""
    table, newest_us = WatchedGroup(*_RULES[0]), START_US
    for happens, (sensor, readings) in history:
        part = {START_US + step * 50_000_000: value for step, value in readings}
        newest_us = max([newest_us, *part])
        if isinstance(happens, int):
            table.use(*_RULES[happens])
        else:
            table.happen(happens)
        table.read(sensor, *part.items())
        if happens == "watermark":
            table.pass_watermark(newest_us)
        table.check()
    told, records = len(table.told), table.all_records()
    table.restart()
    assert (len(table.told), table.all_records()) == (told, records)
    table.use(_rule())
    for value, firing in ((12.0, {"freezer-1"}), (5.0, set())):
        newest_us += 10 * MINUTE_US
        table.read("freezer-1", (newest_us, value))
        table.check()
        assert table.firing() & {"freezer-1"} == firing


def test_calm_sensors_touch_nothing() -> None:
    """Readings that fire nothing leave no tracks, and read nothing."""
    table = WatchedGroup(_rule())
    before = table.data
    table.read("freezer-1", (START_US, 5))
    table.read("fridge-1", (START_US, 50))
    assert table.data is before
    assert not table.reads


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
    assert table.kinds() == [FIRING, RESOLVED] * 2


def test_the_end_of_a_rule_has_its_severity() -> None:
    """Whoever was told that it fires is told of its end too, also by the next job."""
    rule = Rule("warm", "freezer-*", severity="page", metric="t", condition=AlertCondition("above", 10, 10))
    for restarts in (False, True):
        table = WatchedGroup(rule)
        table.read("freezer-1", (START_US, 11))
        if restarts:
            table.restart()
        table.use()
        table.read("freezer-2", (START_US, 5))
        assert [each["severity"] for each in table.told] == ["page", "page"]


def test_a_change_of_severity_ends_nothing() -> None:
    """Alerts go on if only their severity changes."""
    table = WatchedGroup(_rule())
    table.read("freezer-1", (START_US, 11))
    table.use(Rule("warm", "freezer-*", severity="page", metric="t", condition=AlertCondition("above", 10, 10)))
    table.read("freezer-1", (START_US + 1_000_000, 12))
    assert table.firing() == {"freezer-1"}
    assert len(table.told) == 1


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
    assert table.kinds() == [FIRING, RESOLVED]
    assert [each.kind for record in table.all_records() for each in record.transitions] == [PENDING, CALM]


def test_what_the_watermark_showed_stays_over_a_restart() -> None:
    """The watermark of a new job may be behind, and resolves nothing."""
    table = WatchedGroup(_rule(for_us=2 * MINUTE_US))
    table.read("freezer-1", (START_US, 11))
    table.pass_watermark(START_US + 5 * MINUTE_US)
    table.restart()
    table.read("freezer-1", (START_US + MINUTE_US, 12))
    assert table.kinds() == [FIRING]


def test_where_the_table_does_not_tell_values_its_alerts_stay() -> None:
    """Without the readings of the time before, nothing of that time is withdrawn."""
    for is_over in (True, False):
        table = WatchedGroup(_rule())
        table.read("freezer-1", (START_US, 11), *[(START_US + MINUTE_US, 5)] * is_over)
        before = table.all_records()
        table.restart()
        table.raw.clear()
        table.complete_us = START_US + 2 * MINUTE_US
        table.read("freezer-1", (START_US + MINUTE_US // 2, 12))
        assert table.all_records() == before


def test_rules_of_one_name_follow_each_other() -> None:
    """What fired under the old limit ends; row, messages and a new job tell what fires under the new one since then."""
    table = WatchedGroup(_rule())
    for step, above in enumerate((10, 10.5, 10, 10.5, 10.5)):
        table.use(_rule(above))
        table.read("freezer-1", (START_US + step, 11.4))
        assert table.firing() == {"freezer-1"}
        table.check()
        table.restart()
    assert table.kinds() == [FIRING, *[RESOLVED, FIRING] * 3]
    (record,) = table.all_records()
    assert [each.time_us - START_US for each in record.alerts] == [0, 0, 1, 1, 2, 2, 3]


def test_windows_in_progress_do_not_count() -> None:
    """Of the windows that the table has, those count that end by the last result: later ones may be incomplete."""
    rule = replace(_rule(), of="avg", tier="1m")
    table = WatchedGroup(rule)
    end_us = [START_US + step * MINUTE_US for step in range(6)]
    table.windows = {("freezer-1", end_us[1]): 5, ("freezer-1", end_us[3]): 5, ("freezer-2", end_us[3]): 11}
    table.result(rule, "freezer-1", end_us[2], 11)
    assert table.firing() == {"freezer-1"}
    table.result(rule, "fridge-1", end_us[4], 5)
    table.restart()
    table.result(rule, "freezer-2", end_us[2], 12)
    assert table.firing() == {"freezer-1", "freezer-2"}
    (record,) = [each for each in table.all_records() if each.sensor_id == "freezer-2"]
    assert [(each.time_us, each.value) for each in record.transitions] == [(end_us[2], 12)]
    table.result(rule, "freezer-1", end_us[3], 5)
    assert table.firing() == {"freezer-2"}


def test_a_new_rule_leaves_the_time_of_the_old_one_alone() -> None:
    """A reading that comes late after the rule has changed is of the old rule's time."""
    table = WatchedGroup(_rule())
    table.read("freezer-1", (START_US, 11), (START_US + 2 * MINUTE_US, 5))
    table.use(_rule(10.5))
    table.read("freezer-1", (START_US + 3 * MINUTE_US, 12))
    before = table.all_records()
    table.read("freezer-1", (START_US + MINUTE_US, 12))
    assert table.all_records() == before


def test_what_readings_cost_the_state() -> None:
    """Each is written once, and stays for the allowed lateness and a minute, but not for more than twice as long."""
    table, before = WatchedGroup(_rule()), 0
    for minute in range(60):
        table.now_us += MINUTE_US
        table.read("freezer-1", (START_US + minute * MINUTE_US, 5.0))
        assert min(minute + 1, 11) <= len(table.kept) <= 24
        assert table.added == before + 2, "two attempts of a bundle, of one reading"
        before = table.added
