"""A firing reads the windows of many sensors together: after a restart, and of late events."""

import pytest

from pipeline.core.events.event import Event
from pipeline.core.panes import group_firing
from pipeline.core.panes.firing import END_US
from pipeline.core.panes.group_firing import RESTORED
from pipeline.core.schema.toml import parse_schema
from tests.support.groups import DAY, HOUR, LATENESS, MIDNIGHT, MINUTE, SECOND, Group

SCHEMA = parse_schema('[policies]\nraw = "never"\n[tiers]\n1h = "hours"\n1d = "days"')
HOURS, DAYS = SCHEMA.tiers
SENSORS = [f"s{n}" for n in range(50)]


def events(minutes, value, sensors=SENSORS):
    return [Event(each, MIDNIGHT + minute * MINUTE, {"t": value}, {}) for each in sensors for minute in minutes]


def restarted():
    """A group after a restart, with readings of fifty sensors in three hours.

    A killed job left rows that lack readings, and raw rows without an aggregate row, also of events that were ahead of
    time.
    """
    old = Group(SCHEMA, MIDNIGHT + DAY)
    old.receive(*events([5, 65], 1.0))
    old.pass_time()
    old.store(*events([6, 66], 2.0, SENSORS[::2]), *events([125], 2.0, SENSORS[::5]))
    group = Group(SCHEMA, MIDNIGHT + DAY, before_us=MIDNIGHT + 3 * HOUR, table=old.table)
    group.receive(*events([10, 70, 130], 4.0))
    return group


def assert_exact(group):
    for n, sensor_id in enumerate(SENSORS):
        more, ahead = n % 2 == 0, n % 5 == 0
        for start_us in (MIDNIGHT, MIDNIGHT + HOUR):
            assert group.row(HOURS, sensor_id, start_us) == (2 + more, 5 + 2 * more)
        assert group.row(HOURS, sensor_id, MIDNIGHT + 2 * HOUR) == (1 + ahead, 4 + 2 * ahead)
        assert group.row(DAYS, sensor_id, MIDNIGHT) == (5 + 2 * more + ahead, 14 + 4 * more + 2 * ahead)
    assert not group.listed


def test_a_restart():
    """What a killed job left is found. Fifty sensors' windows cost a few requests."""
    group = restarted()
    reads = group.table.reads
    group.pass_time()
    assert group.table.reads - reads == 3 * 2 + 1  # three hours of 8 and of 42 sensors; a day from its hours
    assert_exact(group)


def test_a_restart_that_takes_long(monkeypatch):
    """A firing restores some sensors' windows, and those of the others follow a second later."""
    monkeypatch.setattr(group_firing, "HELD_S", 0)
    group = restarted()
    group.pass_time()
    assert group.counts[RESTORED] == 3 * 8
    assert group.read_schedule().clock_us == group.now_us + SECOND
    for _ in range(6):
        group.pass_time(SECOND)
    assert group.counts[RESTORED] == 3 * 50
    assert not group.bags.parts
    group.watermark(MIDNIGHT + 3 * HOUR)
    assert_exact(group)


@pytest.mark.parametrize("watermark_us", [MIDNIGHT + 3 * HOUR + LATENESS, END_US])
def test_nothing_is_left_when_windows_close(monkeypatch, watermark_us):
    """The last pane of a window, or of a drain, has all readings, however long it takes."""
    monkeypatch.setattr(group_firing, "HELD_S", 0)
    group = restarted()
    group.pass_time()
    group.watermark(MIDNIGHT + 3 * HOUR)  # on time
    assert group.bags.parts
    group.watermark(watermark_us)
    assert not group.bags.parts
    assert_exact(group)


def test_late_events():
    """Their hours are computed from one read of raw rows, and their days from one of hours."""
    group = Group(SCHEMA, MIDNIGHT + DAY)
    group.receive(*events([5], 1.0))
    group.watermark(MIDNIGHT + 30 * HOUR)
    group.receive(*events([6], 2.0))
    reads = group.table.reads
    group.pass_time()
    assert group.table.reads - reads == 2
    assert {(group.row(HOURS, each, MIDNIGHT), group.row(DAYS, each, MIDNIGHT)) for each in SENSORS} == {((2, 3),) * 2}
    assert not group.listed
