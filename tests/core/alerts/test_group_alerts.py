"""Tests of a group of sensors, through every history: late, twice, in any bundles, with restarts, kills, new rules."""

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.core.alerts.group_alerts import BEGIN
from pipeline.core.alerts.machine import CALM, FIRING, PENDING, REORDER_US, RESOLVED, Value
from pipeline.core.alerts.rules import AlertCondition, QuietTime, Rule
from tests.support.alerts import HELD_US, MINUTE_US, START_US, WatchedGroup, in_order

_SENSORS = ("freezer-1", "freezer-2", "fridge-1")
_SECOND_US = 1_000_000


def _rule(above: float = 10, for_us: int = 0, sensors: str = "freezer-*", clears: float | None = None) -> Rule:
    limits = None if clears is None else (clears, clears)
    return Rule("warm", sensors, metric="t", condition=AlertCondition("above", above, above, limits), for_us=for_us)


_VALUES = st.sampled_from([5.0, 9.0, 11.0, 12.0])
_READINGS = st.tuples(
    st.sampled_from(("freezer-1", "freezer-1", *_SENSORS)),
    st.lists(st.tuples(st.integers(0, 8), _VALUES), min_size=1, max_size=3),
)
_HAPPENS = st.sampled_from(["restart", "kill", "again", "later", "soon", "watermark", "", ""])
_LIMITS = st.tuples(st.sampled_from([0, 2 * MINUTE_US]), st.sampled_from([None, 8.0]), st.booleans())
_FOLLOWING = [
    Rule("rate", metric="t", condition=AlertCondition("above", 3, 3), per_us=MINUTE_US),
    Rule("still", metric="t", unchanged_for_us=3 * MINUTE_US, tolerance=2),
]


@given(
    st.lists(st.tuples(_HAPPENS, st.lists(st.tuples(st.sampled_from(_SENSORS), _VALUES), min_size=1)), max_size=9),
    st.tuples(st.sampled_from([0, 2 * MINUTE_US]), st.sampled_from([None, 8.0]), st.booleans()),
    st.randoms(use_true_random=False),
)
def test_readings_in_the_order_of_their_times(history, limits, random) -> None:
    """What happens is what the definition says, if those that come together are in any order, and twice.

    So it is over pauses, restarts and kills, while rows are being written.
    """
    for_us, clears, is_slow = limits
    rules = [_rule(for_us=for_us, clears=clears), *_FOLLOWING]
    table, at_us, values = WatchedGroup(*rules), START_US, {sensor: dict[int, float]() for sensor in _SENSORS}
    table.is_slow, watermark_us = is_slow, 0
    for happens, readings in history:
        table.happen(happens)
        found: dict[str, list[tuple[int, float]]] = {}
        for sensor, value in readings:
            at_us += 50 * _SECOND_US
            values[sensor][at_us] = value
            found.setdefault(sensor, []).append((at_us, value))
        for sensor, part in found.items():
            for _ in range(2 if happens == "again" else 1):
                random.shuffle(part)
                table.read(sensor, *part)
        table.pass_time(HELD_US)
        table.check()
        if happens == "watermark":  # nothing comes that is older
            at_us = watermark_us = at_us + 10 * MINUTE_US
            table.pass_watermark(watermark_us)
        expected = {("warm", each): in_order(rules[0], values[each], watermark_us) for each in _SENSORS[:2]}
        records = {key: [*each.transitions] for key, each in table.all_records().items() if key[0] == "warm"}
        assert records == {key: transitions for key, transitions in expected.items() if transitions}


@given(st.lists(st.tuples(_HAPPENS, _READINGS, st.booleans()), max_size=12), st.sampled_from([0, 2 * MINUTE_US]))
@example([("", ("freezer-1", [(3, 11.0)]), False), ("", ("freezer-1", [(0, 5.0)]), True)], 0)
@example(
    [
        ("", ("freezer-1", [(0, 11.0)]), False),
        ("watermark", ("freezer-1", [(0, 11.0)]), False),
        ("restart", ("freezer-1", [(1, 5.0)]), False),
    ],
    2 * MINUTE_US,
)
@example(
    [
        ("", ("freezer-1", [(1, 9.0)]), True),
        ("again", ("freezer-1", [(5, 9.0), (6, 5.0)]), False),
        ("restart", ("freezer-1", [(0, 9.0)]), False),
    ],
    0,
)
def test_any_order_and_any_delay(history, for_us: int) -> None:
    """Whatever comes late, twice or never until the end: the newest reading tells whether an alert fires.

    Messages tell the same state, with growing numbers, and history is never rewritten.
    """
    table, waiting, newest = WatchedGroup(_rule(for_us=for_us), *_FOLLOWING), [], dict[str, tuple[int, float]]()
    for happens, (sensor, readings), is_late in history:
        table.happen(happens)
        part = {START_US + step * 50 * _SECOND_US: value for step, value in readings}
        part = {time_us: table.raw.get((sensor, time_us), value) for time_us, value in part.items()}
        table.store(sensor, *part.items())
        newest[sensor] = max([newest.get(sensor, (0, 0.0)), *part.items()])
        waiting.append((sensor, list(part.items())))
        if not is_late:
            for late in [*waiting] if happens == "again" else [waiting.pop()]:
                table.arrive(*late[:1], *late[1])
        if happens == "watermark":
            table.pass_watermark(START_US + 9 * 50 * _SECOND_US)
        before = {key: record.transitions for key, record in table.all_records().items()}
        table.check()
        table.pass_time(HELD_US)
        table.check()
        for key, transitions in before.items():
            assert table.all_records()[key].transitions[: len(transitions)] == transitions
    for sensor, readings in waiting:
        table.arrive(sensor, *readings)
    table.pass_time(HELD_US)
    table.pass_watermark(START_US + 3600 * _SECOND_US)
    table.check()
    firing = {sensor for (name, sensor), each in table.all_records().items() if name == "warm" and each.is_firing}
    assert firing == {each for each, (_, value) in newest.items() if value > 10 and each.startswith("freezer")}


_RULES = [
    [_rule()],
    [_rule(10.5)],
    [_rule(clears=8)],
    [_rule(for_us=MINUTE_US)],
    [],
]


@given(st.lists(st.tuples(st.one_of(st.sampled_from(range(len(_RULES))), _HAPPENS), _READINGS), max_size=12))
def test_rules_that_change_at_any_time(history) -> None:
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
    table.pass_time(HELD_US)
    told, records = len(table.told), table.all_records()
    table.restart()
    assert (len(table.told), table.all_records()) == (told, records)
    table.use(_rule())
    for value, firing in ((12.0, {"freezer-1"}), (5.0, set())):
        newest_us += 10 * MINUTE_US
        table.read("freezer-1", (newest_us, value))
        table.pass_time(HELD_US)
        table.check()
        assert table.firing() & {"freezer-1"} == firing


def test_what_costs_nothing() -> None:
    """Readings that move no state are not read about, and rewrite nothing: within the limits, beyond them, and late."""
    table = WatchedGroup(_rule())
    table.read("freezer-1", (START_US, 5))
    table.read("fridge-1", (START_US, 50))
    assert (table.reads, table.writes) == (0, 1)  # that of the beginning
    table.read("freezer-1", (START_US + MINUTE_US, 11))
    table.pass_time(HELD_US)
    reads, writes = table.reads, table.writes
    for second in range(100):
        table.read("freezer-1", (START_US + 2 * MINUTE_US + second * _SECOND_US, 12))
    table.read("freezer-1", (START_US + MINUTE_US, 5), (START_US, 5))
    assert (table.reads, table.writes) == (reads, writes)
    assert len(table.data or b"") < 200  # with the names of a rule and a sensor


def test_a_late_reading() -> None:
    """One that is behind the newest by more than half a minute changes nothing; until then, order is that of times."""
    for behind_us, kinds in ((REORDER_US + 1000, []), (REORDER_US, [FIRING, RESOLVED])):
        table = WatchedGroup(_rule())
        table.read("freezer-1", (START_US + MINUTE_US, 5))
        table.read("freezer-1", (START_US + MINUTE_US - behind_us, 11))
        table.pass_time(HELD_US)
        assert table.kinds() == kinds
    table = WatchedGroup(_rule(for_us=2 * MINUTE_US))
    for minute, value in ((0, 11), (3, 11), (2, 5)):  # the last one overtook the reading that contradicts
        table.read("freezer-1", (START_US + minute * MINUTE_US, value))
    table.pass_time(HELD_US)
    assert not table.told


def test_a_late_reading_beside_the_newest_one() -> None:
    """A reading is late by what the table has, whatever comes with it; several that are new count one by one."""
    late, now = (START_US, 11.0), (START_US + 10 * MINUTE_US, 5.0)
    for parts in ([[late, now]], [[late], [now]], [[now], [late]]):
        for has_newer, locates in ((True, True), (False, True), (False, False)):
            table = WatchedGroup(_rule())
            table.locates = locates
            if has_newer:
                table.read("freezer-1", (START_US + 9 * MINUTE_US, 5.0))
            table.store("freezer-1", *[each for part in parts for each in part])
            for part in parts:
                table.arrive("freezer-1", *part)
            table.pass_time(HELD_US)
            # Where keys do not locate a sensor, nothing tells a late reading from the first one of several.
            tells = not has_newer and locates and parts[0][0] == late
            assert table.kinds() == [FIRING, RESOLVED] * tells


def test_a_message_about_a_reading() -> None:
    """A message has the value with its unit."""
    table = WatchedGroup(_rule())
    table.read("freezer-1", (START_US, 11))
    table.pass_time(HELD_US)
    (told,) = table.told
    assert (told["value"], told["unit"], told["label"], told["number"]) == (11, "°C", "Air", START_US)
    assert "window" not in told


def test_a_changed_rule_ends_its_alerts() -> None:
    """If a rule fires for something else, or is removed, its alerts end; what still holds fires under the new one."""
    table = WatchedGroup(_rule())
    table.read("freezer-1", (START_US, 11))
    table.pass_time(HELD_US)
    table.use(_rule(above=20))
    table.read("freezer-1", (START_US + 1_000_000, 12))
    assert not table.firing()
    table.read("freezer-1", (START_US + 2_000_000, 22))
    table.pass_time(HELD_US)
    assert table.firing() == {"freezer-1"}
    table.use()
    table.read("freezer-2", (START_US, 5))
    assert not table.firing()
    assert table.kinds() == [FIRING, RESOLVED] * 2


def test_the_end_of_a_rule_has_its_severity() -> None:
    """Whoever was told that it fires is told of its end, also by the next job. A change of severity ends nothing."""
    rule = replace(_rule(), severity="page")
    for restarts in (False, True):
        table = WatchedGroup(rule)
        table.read("freezer-1", (START_US, 11))
        table.pass_time(HELD_US)
        table.use(replace(rule, severity="warning"))
        table.read("freezer-1", (START_US + 1_000_000, 12))
        assert table.firing() == {"freezer-1"}
        if restarts:
            table.restart()
        table.use()
        table.read("freezer-2", (START_US, 5))
        assert [each["severity"] for each in table.told] == ["page", "page"]


def test_a_condition_that_holds_by_the_watermark() -> None:
    """It fires without a reading, stays over a restart, and ends with its rule after it fired."""
    table = WatchedGroup(_rule(for_us=2 * MINUTE_US))
    table.read("freezer-1", (START_US, 11))
    table.pass_time(HELD_US)
    table.pass_watermark(START_US + 5 * MINUTE_US)
    assert table.firing() == {"freezer-1"}
    table.restart()
    table.read("freezer-1", (START_US + MINUTE_US, 12))
    table.pass_time(HELD_US)
    assert table.kinds() == [FIRING]
    table.use()
    table.read("freezer-2", (START_US, 5))
    assert not table.firing()
    (record,) = table.all_records().values()
    assert [each.kind for each in record.transitions] == [PENDING, FIRING, RESOLVED]


def test_a_drain() -> None:
    """What is held is decided; a condition that is about to hold is left to the next job."""
    table = WatchedGroup(_rule(), replace(_rule(for_us=2 * MINUTE_US), name="lasting"))
    table.read("freezer-1", (START_US, 11))
    table.drain()
    assert [each["rule"] for each in table.told] == ["warm"]
    table.restart()
    table.pass_time(2 * MINUTE_US)
    table.read("freezer-1", (START_US + 2 * MINUTE_US, 12))
    table.pass_time(HELD_US)
    assert [each["rule"] for each in table.told] == ["warm", "lasting"]


def test_a_drain_that_is_none() -> None:
    """A watermark ahead of the clock may be no drain's: later conditions fire by it, and held readings are decided."""
    quiet = QuietTime(9 * 60, 11 * 60, "UTC")
    table = WatchedGroup(_rule(for_us=2 * MINUTE_US), replace(_rule(), name="quiet", quiet=(quiet,)))
    table.read("freezer-1", (START_US, 11))
    table.wake_us = None
    table.drain()
    assert table.wake_us is table.due_us is None  # a drain would wait for them
    table.pass_time(2 * 60 * MINUTE_US)
    table.read("freezer-2", (START_US + MINUTE_US, 11))
    table.pass_time(HELD_US)
    table.pass_watermark(START_US + 30 * MINUTE_US)
    assert sorted((each["rule"], each["sensor_id"]) for each in table.told) == [
        (rule, sensor) for rule in ("quiet", "warm") for sensor in _SENSORS[:2]
    ]


def test_a_rule_that_changes_after_an_alert() -> None:
    """A rule that is changed, or removed and put back, begins after what was told, while its row is being written."""
    for changed in (_rule(10.5), _rule()):
        table = WatchedGroup(_rule())
        table.is_slow = True
        for second, value in ((0, 11), (20, 5)):
            table.read("freezer-1", (START_US + second * _SECOND_US, value))
            table.pass_time(HELD_US)
        if changed == _rule():
            table.use()
            table.process(BEGIN)
        table.use(changed)
        table.read("freezer-1", (START_US + 10 * _SECOND_US, 12))
        table.pass_time(HELD_US)
        assert table.kinds() == [FIRING, RESOLVED]


def test_rules_of_one_name_follow_each_other() -> None:
    """What fired under the old limit ends; row, messages and a new job tell what fires under the new one since then."""
    table = WatchedGroup(_rule())
    for step, above in enumerate((10, 10.5, 10, 10.5, 10.5)):
        table.use(_rule(above))
        table.read("freezer-1", (START_US + step * _SECOND_US, 11.4))
        table.pass_time(HELD_US)
        table.check()
        table.restart()
    assert table.kinds() == [FIRING, *[RESOLVED, FIRING] * 3]
    assert table.firing() == {"freezer-1"}


def _window(minute: int, value: float, version: int = 1) -> Value:
    return Value(START_US + minute * MINUTE_US, value, version, 3, 0.5)


def test_windows() -> None:
    """The newest window that is over moves the state, and a correction of it; older ones and older versions do not."""
    rule = replace(_rule(), of="avg", tier="1m")
    table = WatchedGroup(rule)

    def kinds(*values: Value) -> list[str]:
        for value in values:
            table.result(rule, "freezer-1", value)
            table.check()
        return table.kinds()

    assert kinds(_window(1, 5), _window(2, 11)) == [FIRING]
    (told,) = table.told
    assert told["window"] == {
        "tier": "1m", "start": "2026-02-17T10:01:00Z", "end": "2026-02-17T10:02:00Z", "zone": "UTC",
        "count": 3, "coverage": 0.5,
    }  # fmt: skip
    assert kinds(_window(1, 5, 2), _window(2, 12, 2)) == [FIRING]
    assert kinds(_window(2, 9, 3)) == [FIRING, RESOLVED]
    assert kinds(_window(2, 11, 2)) == [FIRING, RESOLVED]  # which the correction has overtaken
    assert kinds(_window(3, 5), _window(2, 11, 4)) == [FIRING, RESOLVED]
    table.restart()
    assert kinds(_window(2, 11, 5)) == [FIRING, RESOLVED]
    assert kinds(_window(4, 12)) == [FIRING, RESOLVED, FIRING]


def test_a_value_that_does_not_move() -> None:
    """It fires since the first reading that tells it, also if that came to the job before, and ends when it moves."""
    rule = Rule("still", metric="t", unchanged_for_us=8 * MINUTE_US, tolerance=0.1)
    table = WatchedGroup(rule)
    for minute in range(6):
        table.read("freezer-1", (START_US + minute * MINUTE_US, 5.0 + (not minute)))
    table.restart()
    for minute in range(6, 10):
        assert not table.told
        table.read("freezer-1", (START_US + minute * MINUTE_US, 5.05))
    (told,) = table.told
    assert (told["since"], told["event_time"]) == ("2026-02-17T10:01:00Z", "2026-02-17T10:09:00Z")
    assert told["condition"] == "t does not move by more than 0.1 for 8m"
    table.restart()
    table.read("freezer-1", (START_US + 11 * MINUTE_US, 4.99))
    assert table.firing()
    table.read("freezer-1", (START_US + 12 * MINUTE_US, 5.3))
    assert table.kinds() == [FIRING, RESOLVED]


def test_a_rate_of_change() -> None:
    """It is that between two readings that follow each other, whatever comes late."""
    rule = Rule("rate", metric="t", condition=AlertCondition("above", 2, 2), per_us=MINUTE_US)
    table = WatchedGroup(rule)
    for minute, value in ((0, 5), (2, 9), (1, 99), (4, 14), (5, 15)):
        table.read("freezer-1", (START_US + minute * MINUTE_US, value))
    assert [(each["kind"], each["value"], each["unit"], each["event_time"][14:16]) for each in table.told] == [
        (FIRING, 2.5, "°C/min", "04"),
        (RESOLVED, 1, "°C/min", "05"),
    ]
    table.read("other", (START_US, 5), (START_US + MINUTE_US, 50))
    assert table.firing() == {"other"}
    table.restart()  # the value before is not known
    table.read("other", (START_US + 2 * MINUTE_US, -50))
    assert table.firing() == {"other"}
    table.read("other", (START_US + 3 * MINUTE_US, -50))
    assert not table.firing()
    assert all(len(track.rule_id) < 20 for tracks in table.tracks.values() for track in tracks.values())


def test_rules_that_compare_readings_ask_for_metadata() -> None:
    """A sensor whose metadata differs fires nothing; what fires goes on until readings resolve it."""
    rule = replace(_FOLLOWING[0], metadata=(("site", "north"),))
    table = WatchedGroup(rule, replace(_rule(sensors="*"), metadata=(("site", "north"),)))
    for sensor in _SENSORS:
        table.read(sensor, (START_US, 5), (START_US + MINUTE_US, 50))
    table.pass_time(HELD_US)
    assert table.firing() == {"freezer-1", "freezer-2"}
    table.fits = False
    table.read("freezer-1", (START_US + 2 * MINUTE_US, 5))
    table.pass_time(HELD_US)
    assert table.firing() == {"freezer-2"}


def test_quiet_hours_and_mutes() -> None:
    """Messages wait until the quiet hours or a mute end, and only what still fires is told then."""
    quiet = QuietTime(9 * 60, 10 * 60 + 30, "UTC")  # it is ten o'clock
    for ends_us, of in ((START_US + 30 * MINUTE_US, quiet), (START_US + 20 * MINUTE_US, None)):
        for restarts in (False, True):
            table = WatchedGroup(replace(_rule(), quiet=(of,) if of else ()))
            if of is None:
                table.mutes[("warm", "freezer-1")] = table.mutes[("warm", "freezer-2")] = ends_us
                table.use(_rule())
            for sensor in _SENSORS[:2]:
                table.read(sensor, (START_US, 11))
            table.pass_time(HELD_US)
            table.read("freezer-2", (START_US + MINUTE_US, 5))
            table.pass_time(HELD_US)
            assert table.firing() == {"freezer-1"}
            assert not table.told
            if restarts:
                table.restart()
            table.pass_time(ends_us - table.now_us - 1)
            assert not table.told
            table.pass_time(1)
            table.check()
            assert [each["sensor_id"] for each in table.told] == ["freezer-1"]
            table.read("freezer-1", (START_US + 2 * MINUTE_US, 5))
            table.pass_time(HELD_US)
            assert table.kinds() == [FIRING, RESOLVED]


def test_a_mute_that_ends_early() -> None:
    """What still fires is told within a minute."""
    table = WatchedGroup(_rule())
    table.mutes[("warm", "")] = START_US + 1000 * MINUTE_US
    table.use(_rule())
    table.read("freezer-1", (START_US, 11))
    table.pass_time(10 * MINUTE_US)
    assert not table.told
    table.mutes.clear()
    table.pass_time(MINUTE_US)
    assert table.kinds() == [FIRING]


def test_a_new_job_while_messages_wait() -> None:
    """One does not know what the job before has told: it tells the end in any case, and the beginning once it may."""
    for mutes_before in (False, True):
        table = WatchedGroup(_rule())
        mutes = {("warm", ""): START_US + 60 * MINUTE_US}
        table.mutes |= mutes if mutes_before else {}
        table.use(_rule())
        table.read("freezer-1", (START_US, 11))
        table.pass_time(HELD_US)
        assert bool(table.told) is not mutes_before
        table.mutes |= mutes
        table.use(_rule())
        table.happen("kill" if mutes_before else "restart")
        assert bool(table.told) is not mutes_before
        table.pass_time(60 * MINUTE_US if mutes_before else 0)
        table.read("freezer-1", (START_US + 10 * MINUTE_US, 5))
        table.pass_time(HELD_US)
        assert table.kinds() == [FIRING, RESOLVED]
        table.check()


def test_another_release() -> None:
    """The state of another release is as good as none: the table tells what fires."""
    table = WatchedGroup(_rule())
    table.read("freezer-1", (START_US, 11))
    table.pass_time(HELD_US)
    table.data = b"\x02" + (table.data or b"")[1:]
    table.read("freezer-1", (START_US + MINUTE_US, 5))
    table.pass_time(HELD_US)
    assert table.kinds() == [FIRING, RESOLVED]
    assert [each.kind for record in table.all_records().values() for each in record.transitions if each.kind != CALM]
