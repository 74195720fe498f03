"""The panes of a group's windows: with a table in memory, and against plain statistics of everything that came."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.events.event import Event
from pipeline.core.panes import group_firing as counted
from pipeline.core.panes.firing import END_US
from pipeline.core.panes.group_windows import GroupWindows
from pipeline.core.rows.aggregate_rows import aggregate_row, parse_aggregate_row
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.window_stats import WindowStats
from tests.support.exhaustive import examples
from tests.support.groups import LATENESS, MINUTE, Group
from tests.support.memory import Memory

SCHEMA = parse_schema('[policies]\nraw = "never"\n[tiers]\n1h = "hours"\n1d = "days"')
HOURS, DAYS = SCHEMA.tiers
ONE_TIER = parse_schema('[policies]\nraw = "never"\n[tiers]\n1h = "hours"')
T = 1_771_286_400_000_000  # midnight
HOUR = HOURS.window.length_us


class Late(Group):
    """A group long after the events of these tests."""

    def __init__(self, schema=SCHEMA, **options):
        super().__init__(schema, T + 100 * 24 * HOUR, **options)

    def row(self, tier=HOURS, sensor_id="a", start_us=T):
        return super().row(tier, sensor_id, start_us)


def event(minutes, value=1.0, sensor_id="a"):
    return Event(sensor_id, round(T + minutes * MINUTE), {"t": value}, {})


def test_late_events_of_any_age():
    """A late event is counted in its hour and its day, with everything that the table stores."""
    group = Late()
    group.receive(event(0), event(70))
    group.watermark(T + 30 * 24 * HOUR)
    assert (group.row(), group.row(DAYS)) == ((1, 1), (2, 2))
    group.receive(event(1, 2.0), event(2, 4.0))
    reads = group.table.reads
    group.pass_time()
    assert (group.row(), group.row(DAYS)) == ((3, 7), (4, 8))
    assert not group.listed
    assert group.counts[counted.RECOMPUTED] == 2
    assert group.counts[counted.LATE_EVENTS] == 2
    group.receive(*(event(3 + n / 100, 0.0) for n in range(500)))
    more = group.table.reads
    group.pass_time()
    assert group.row() == (503, 7)
    assert group.table.reads - more <= more - reads  # however many events


def test_a_late_event_of_a_sensor_that_never_sent():
    """Its window is read, and written with what came; the day, which is open, follows with its next pane."""
    group = Late()
    group.receive(event(0))
    group.watermark(T + 2 * HOUR)
    group.receive(event(1, 2.0, "b"))
    group.pass_time()
    assert group.row(sensor_id="b") == (1, 2)
    group.pass_time()
    assert group.row(DAYS, "b") == (1, 2)


def test_late_events_whose_raw_rows_are_not_written_yet():
    """They stay counted when another late event comes before their raw rows do."""
    group = Late()
    group.receive(event(0))
    group.watermark(T + 2 * HOUR)
    group.receive(event(1, 2.0), stored=False)
    group.pass_time()
    group.receive(event(2, 4.0))
    group.pass_time()
    assert group.row() == (3, 7)
    group.store(event(1, 2.0))
    group.pass_time(25 * MINUTE)
    assert group.chunks == [] or not any(GroupWindows(SCHEMA.tiers, LATENESS, group.chunks).of_tier[0])
    group.receive(event(3, 8.0))
    group.pass_time()
    assert group.row() == (4, 15)
    assert not group.listed


def test_raw_rows_that_come_after_their_window_closed():
    """What was counted before the window closed stays counted, in its day too."""
    group = Late()
    group.receive(event(0), event(70), stored=False)
    group.watermark(T + 30 * HOUR)
    group.receive(event(1, 2.0))
    group.pass_time()
    assert (group.row(), group.row(DAYS)) == ((2, 3), (3, 4))
    assert not group.listed


def test_raw_rows_that_were_lost():
    """The row counts more than is known: it stays, and the window is listed, each time that something comes."""
    group = Late()
    group.receive(event(0), event(1), stored=False)
    group.watermark(T + 2 * HOUR)
    group.pass_time(30 * MINUTE)
    for minute in (2, 3):
        group.receive(event(minute, 5.0))
        group.pass_time(30 * MINUTE)
    assert group.row() == (2, 2)
    assert group.listed == [("a", T)] * 2


@pytest.mark.parametrize(
    "schema",
    [
        parse_schema('key = "{iso_us}#{sensor_id}"'),
        parse_schema('[policies]\nraw = "maxage=1d"\nstats = "never"'),
    ],
    ids=["keys that do not find a sensor", "collected"],
)
def test_where_raw_rows_cannot_serve(schema):
    """The row stays as it is, and the window is listed."""
    group = Late(schema)
    group.receive(event(0), event(1))
    group.watermark(T + 2 * HOUR)
    group.pass_time(30 * MINUTE)
    group.table.write(Row(b"unrelated", [Cell("raw", b"t", T, b"1")]))
    group.receive(event(2, 4.0))
    if schema.finds_sensors:
        group.table = Memory(row for row in stored_rows(group.table) if row.key.startswith(b"agg#"))
    group.pass_time()
    assert group.row(schema.tiers[0]) == (2, 2)
    assert group.listed == [("a", T)]


def test_readings_older_than_their_policy():
    """While nothing is collected yet, late events complete the window each time, also before their raw rows come."""
    group = Late(parse_schema('[policies]\nraw = "maxage=1d"\nstats = "never"'))
    group.receive(event(0), event(1))
    group.watermark(T + 2 * HOUR)
    (tier,) = group.schema.tiers
    for minute in (2, 3, 4):
        group.receive(event(minute, 4.0), stored=minute != 3)
        group.pass_time()
    assert group.row(tier) == (5, 14)
    assert not group.listed
    group.table.write(row_of(tier, 50))  # another writer
    group.receive(event(5))
    group.pass_time()
    assert group.row(tier) == (50, 50)
    assert group.listed == [("a", T)]


def row_of(tier, count):
    stats = WindowStats()
    for _ in range(count):
        stats.add({"t": 1.0})
    return aggregate_row(tier.window, "a", T, stats, tier.family)


def stored_rows(table):
    return [Row(key, list(cells.values())) for key, cells in table._cells.items()]


def test_a_group_that_was_silent():
    """A backfill wrote a window long after its end, while the job had nothing of it: nothing of that is lost."""
    group = Late(before_us=T - 24 * HOUR)
    backfill = Late(table=group.table)
    backfill.receive(event(0), event(1))
    backfill.watermark(END_US)
    group.receive(event(2, 4.0))
    group.pass_time()
    assert (group.row(), group.row(DAYS)) == ((3, 6), (3, 6))
    assert not group.listed


def test_a_backfill_beside_late_events():
    """A pane that replaced a backfill's row without having read its raw rows is replaced in turn."""
    group = Late(before_us=T - 24 * HOUR)
    group.receive(event(0))
    group.watermark(T + 2 * HOUR)
    group.receive(event(1, 2.0))
    group.pass_time()
    group.store(event(2, 4.0))  # and the backfill's aggregate row is replaced by the pane above
    assert group.row() == (2, 3)
    group.pass_time(25 * MINUTE)
    assert (group.row(), group.row(DAYS)) == ((3, 7), (3, 7))
    written = len(group.written)
    group.pass_time(25 * MINUTE)
    group.pass_time(25 * MINUTE)
    assert len(group.written) == written
    assert not group.chunks[1:]  # only the day, which is open
    assert not group.listed


def test_raw_rows_of_a_restored_window_that_are_not_written_yet():
    """Its readings are kept for a while when it closes, as those of any window."""
    group = Late(before_us=T + 24 * HOUR)
    group.receive(event(0), stored=False)
    group.watermark(T + 2 * HOUR)
    group.receive(event(1, 4.0))
    group.pass_time()
    assert group.row() == (2, 5)
    assert not group.listed


def test_a_foreign_row():
    """A window with a row that the schema does not write is left to a repair."""
    group = Late()
    group.receive(event(0))
    group.watermark(T + 2 * HOUR)
    key = next(key for key in group.table._cells if key.startswith(b"agg#hourly"))
    group.table.write(Row(key, [Cell("hours", b"by_hand", T, b"1")]))
    group.receive(event(1))
    group.pass_time()
    assert group.listed == [("a", T)]
    assert not [row for row in group.written[2:] if b"hourly" in row.key]


@pytest.mark.slow
def test_a_pane_never_replaces_a_row_that_knows_more():
    """Whatever is open, late or in between: counts never decrease. The watermark lags, jumps, and stands still."""
    rng = random.Random(5)
    group = Late()
    watermark_us, largest, known = T, {}, set()
    for _ in range(300):
        age = rng.choice([5, 50, 500])
        came = [
            event((group.now_us - T) / MINUTE % 3000 - rng.random() * age, sensor_id=rng.choice("ab")) for _ in range(3)
        ]
        came = [each for each in came if each.event_time_us >= T]
        group.receive(*came)
        known.update((each.sensor_id, each.event_time_us) for each in came)
        group.pass_time(rng.choice([1, MINUTE, 10 * MINUTE]))
        if rng.random() < 0.3:
            watermark_us += rng.choice([0, 30 * MINUTE, 3 * HOUR])
            group.watermark(watermark_us)
        for tier in (HOURS, DAYS):
            for sensor_id in "ab":
                for start_us in range(T, T + 72 * HOUR, tier.window.length_us):
                    events = (group.row(tier, sensor_id, start_us) or (0, 0))[0]
                    assert events >= largest.get((tier, sensor_id, start_us), 0)
                    largest[tier, sensor_id, start_us] = events
    group.watermark(END_US)
    for sensor_id in "ab":
        for tier in (HOURS, DAYS):
            for start_us in range(T, T + 72 * HOUR, tier.window.length_us):
                end_us = start_us + tier.window.length_us
                expected = sum(sensor == sensor_id and start_us <= at_us < end_us for sensor, at_us in known)
                assert (group.row(tier, sensor_id, start_us) or (0, 0))[0] == expected
    assert not group.listed


STEPS = st.lists(
    st.one_of(
        st.lists(st.tuples(st.integers(0, 60 * 26), st.sampled_from("ab"), st.sampled_from([1.0, 2.5])), min_size=1),
        st.sampled_from(["minute", "half an hour", "watermark", "far"]),
    ),
    max_size=12,
)


@settings(max_examples=examples(60))
@given(STEPS, st.booleans(), st.booleans(), st.sampled_from([SCHEMA, ONE_TIER]), st.booleans())
def test_any_order(steps, early, began, schema, stored):
    """Any events in any order, with duplicates and any watermark, give the rows of plain statistics, even if raw rows
    are written later than their panes."""
    table = Memory()
    if began:
        earlier = Late(schema, table=table)
        earlier.receive(event(5), event(65, 3.0, "b"))
        earlier.pass_time()  # its last panes: the job before is gone
    group = Late(schema, table=table, before_us=T + 3 * HOUR if began else None, early_us=MINUTE if early else 0)
    came = {("a", 5): 1.0, ("b", 65): 3.0} if began else {}
    watermark_us, touched, waiting = T, set(), []
    for step in steps:
        if step == "minute":
            group.pass_time()
        elif step == "half an hour":
            group.store(*waiting)
            waiting.clear()
            group.pass_time(30 * MINUTE)
        elif step in ("watermark", "far"):
            watermark_us += HOUR if step == "watermark" else 30 * HOUR
            group.watermark(watermark_us)
        else:
            events = [(minutes, sensor, came.setdefault((sensor, minutes), value)) for minutes, sensor, value in step]
            touched |= {(sensor, HOURS.window.start_of(T + minutes * MINUTE)) for minutes, sensor, _ in events}
            received = [event(minutes, value, sensor) for minutes, sensor, value in events]
            group.receive(*received, stored=stored)
            waiting += received
    group.watermark(END_US)
    assert not group.chunks
    for sensor_id, start_us in touched:
        for tier in schema.tiers:
            first_us = tier.window.start_of(start_us)
            values = [
                value
                for (sensor, minutes), value in came.items()
                if sensor == sensor_id and tier.window.start_of(T + minutes * MINUTE) == first_us
            ]
            assert group.row(tier, sensor_id, first_us) == (len(values), pytest.approx(sum(values)))
    assert not group.listed


@pytest.mark.parametrize("key", ["{iso_us}#{sensor_id}", "{sensor_id}#{reverse_us}"])
def test_a_late_event_before_the_last_pane_has_arrived(key):
    """A row that is still on its way is not taken for one that never was, whatever else the table can tell."""
    group = Late(parse_schema(f'key = "{key}"\n[policies]\nraw = "never"'))
    group.receive(event(0))
    group.watermark(T + 2 * HOUR)
    group.table = Memory()
    group.receive(event(1, 4.0))
    group.pass_time()
    assert group.row(group.schema.tiers[0]) == (2, 5)


def test_rows_are_those_of_the_format():
    """The aggregate rows parse."""
    group = Late()
    group.receive(event(0), event(1, 3.0))
    group.watermark(T + HOUR)
    rows = [row for row in stored_rows(group.table) if row.key.startswith(b"agg#hourly")]
    record = parse_aggregate_row(HOURS.window, rows[0])
    assert (record.reading_count, record.metrics["t"].avg) == (2, 2.0)


def test_a_week_that_began_before_the_job():
    """Its row never counts less than before: days that began after the job are not restored, but still to fire."""
    schema = parse_schema('[policies]\nraw = "never"\n[tiers]\n1h = "hours"\n1d = "days"\n1w = "weeks"')
    monday = schema.tiers[2].window.start_of(T)
    began = monday + 48 * HOUR
    group = Group(schema, began, before_us=began)
    group.receive(*(Event("a", monday + hour * HOUR, {"t": 1.0}, {}) for hour in (25, 57, 63)))
    counts = []
    for hour in (24, 26, 58, 64, 24 * 8):
        group.watermark(monday + hour * HOUR)
        if row := group.row(schema.tiers[2], "a", monday):
            counts.append(row[0])
    assert counts == [1, 2, 3, 3]


def test_a_late_event_keeps_only_its_own_window():
    """Of a closed window of many sensors, late events keep that of their sensor, and no other."""

    def kept():
        hours = GroupWindows(SCHEMA.tiers, LATENESS, group.chunks).of_tier[0]
        return {sensor_id for window in hours.values() for sensor_id in window.entries}

    group = Group(SCHEMA, T + HOUR)
    group.receive(*(event(1, sensor_id=f"s-{n}") for n in range(10)))
    group.watermark(T + HOUR + LATENESS)
    assert len(kept()) == 10
    for n in range(3):
        group.pass_time(15 * MINUTE)
        group.receive(event(2 + n, sensor_id="s-3"))
        group.pass_time()
    assert kept() == {"s-3"}
    assert group.row(HOURS, "s-3", T) == (4, 4)
    group.pass_time(21 * MINUTE)
    group.pass_time(21 * MINUTE)
    assert not kept()


def test_a_window_that_continues_from_its_row_is_listed_with_each_pane():
    """Its row may lack something or count it twice, and a repair may have settled it since the last pane."""
    old = parse_schema('[policies]\nraw = "maxage=1d"\n[tiers]\n1h = "hours"')
    group = Late(old, before_us=T + HOUR)
    for number in range(3):
        group.receive(event(number))
        group.pass_time()
        assert ("a", T) in group.listed
        group.listed.clear()
    assert group.row() == (3, 3)
