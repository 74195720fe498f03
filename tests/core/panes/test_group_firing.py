"""The panes of a group's windows: with a table in memory, and against plain statistics of everything that came."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.events.event import Event
from pipeline.core.panes import group_firing as counted
from pipeline.core.panes.firing import END_US
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.toml import parse_schema
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
    group.counts.clear()
    group.receive(event(1, 2.0), event(2, 4.0))
    reads = group.table.reads
    group.pass_time()
    assert (group.row(), group.row(DAYS)) == ((3, 7), (4, 8))
    assert not group.listed
    assert group.counts[counted.RECOMPUTED] == 1
    group.receive(*(event(3 + n / 100, 0.0) for n in range(500)))
    more = group.table.reads
    group.pass_time()
    assert group.row() == (503, 7)
    assert group.table.reads - more <= more - reads  # however many events


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


def test_a_late_window_of_which_a_part_has_expired():
    """Its other late readings make its first row, and it is listed: some may be collected before they count."""
    group = Late(parse_schema('[policies]\nraw = "maxage=1d"\nstats = "never"'))
    group.receive(event(120))
    group.watermark(T + 5 * HOUR)
    group.listed.clear()
    group.receive(event(0), event(1))
    (gone,) = group.schema.rows(event(1))
    group.table = Memory(row for row in stored_rows(group.table) if row.key != gone.key)
    group.pass_time()
    assert group.row(group.schema.tiers[0]) == (1, 1)
    assert group.listed == [("a", T)]


def stored_rows(table):
    return [Row(key, list(cells.values())) for key, cells in table._cells.items()]


STEPS = st.lists(
    st.one_of(
        st.lists(st.tuples(st.integers(0, 60 * 26), st.sampled_from("ab"), st.sampled_from([1.0, 2.5])), min_size=1),
        st.sampled_from(["minute", "half an hour", "watermark", "far"]),
    ),
    max_size=12,
)


@settings(max_examples=examples(60))
@given(STEPS, st.booleans(), st.booleans(), st.sampled_from([SCHEMA, ONE_TIER]))
def test_any_order(steps, early, began, schema):
    """Any events in any order, with duplicates and any watermark, give the rows of plain statistics."""
    table = Memory()
    if began:
        earlier = Late(schema, table=table)
        earlier.receive(event(5), event(65, 3.0, "b"))
        earlier.pass_time()  # its last panes: the job before is gone
    group = Late(schema, table=table, before_us=T + 3 * HOUR if began else None, early_us=MINUTE if early else 0)
    came = {("a", 5): 1.0, ("b", 65): 3.0} if began else {}
    watermark_us, touched = T, set()
    for step in steps:
        if step == "minute":
            group.pass_time()
        elif step == "half an hour":
            group.pass_time(30 * MINUTE)
        elif step in ("watermark", "far"):
            watermark_us += HOUR if step == "watermark" else 30 * HOUR
            group.watermark(watermark_us)
        else:
            events = [(minutes, sensor, came.setdefault((sensor, minutes), value)) for minutes, sensor, value in step]
            touched |= {(sensor, HOURS.window.start_of(T + minutes * MINUTE)) for minutes, sensor, _ in events}
            group.receive(*(event(minutes, value, sensor) for minutes, sensor, value in events))
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


def test_a_closed_window_leaves_no_state():
    """Late readings leave none either."""
    group = Group(ONE_TIER, T + HOUR)
    group.receive(event(1))
    group.watermark(T + HOUR + LATENESS)
    assert not any(group.bags)
    group.receive(event(2))
    group.pass_time()
    assert not any(group.bags)
    assert group.row(ONE_TIER.tiers[0], "a", T) == (2, 2)


def test_a_foreign_raw_row():
    """A late window with a raw row that the schema does not write is left to a repair."""
    group = Late()
    group.receive(event(0))
    group.watermark(T + 2 * HOUR)
    (raw,) = group.schema.rows(event(1))
    group.table.write(Row(raw.key, [Cell("raw", b"t", T + MINUTE, b"warm")]))
    group.receive(event(2))
    group.pass_time()
    assert group.row() == (1, 1)
    assert group.listed == [("a", T)]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_restart_where_raw_rows_may_be_collected(lost):
    """The window is listed. It continues from its raw rows if they count as much as its row, and else from the row.

    Each pane of a window that continues from its row is listed: a repair may have settled it since the last one.
    """
    old = parse_schema('[policies]\nraw = "maxage=1d"\n[tiers]\n1h = "hours"')
    before = Late(old)
    before.receive(event(0), event(1))
    before.watermark(END_US)
    keys = [key for key in before.table._cells if key.startswith(b"a#")]
    rows = [row for row in stored_rows(before.table) if row.key not in keys[:lost]]
    group = Late(old, before_us=T + HOUR, table=Memory(rows))
    listed = []
    for number in range(2, 5):
        group.receive(event(number))
        group.pass_time()
        listed.append(("a", T) in group.listed)
        group.listed.clear()
    assert group.row(old.tiers[0]) == (5, 5)
    assert listed == ([True] * 3 if lost else [True, False, False])
