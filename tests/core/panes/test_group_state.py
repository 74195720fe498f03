"""What a firing reads and writes of a group's state."""

from collections import Counter

from pipeline.core.panes.firing import END_US, NEVER_US, Schedule
from pipeline.core.panes.group_state import Bags
from pipeline.core.schema.toml import parse_schema
from tests.support.groups import LATENESS, MINUTE, CountingBag, Group, event, rows_of

SCHEMA = parse_schema('[policies]\nraw = "never"\n[tiers]\n1h = "hours"')
(HOURS,) = SCHEMA.tiers
HOUR = HOURS.window.length_us
T = 1_771_286_400_000_000  # midnight
NAMES = ("parts", "late", "open", "closed", "resting", "resting2", "deferred")


def counting(counts):
    parts, late, opened, closed, *resting, deferred = (CountingBag(name, counts) for name in NAMES)
    return Bags(parts, late, opened, closed, tuple(resting), deferred)


def group_of(schema=SCHEMA, sensors=20):
    """Returns a group at the end of its first hour, in which each sensor has sent something, and its counts."""
    group, counts = Group(schema, T + HOUR), Counter()
    group.bags = counting(counts)
    send(group, 1, *range(sensors))
    send(group, 61, *range(sensors))
    group.pass_time()
    return group, counts


def send(group, minutes, *sensors, stored=True, value=1.0):
    group.receive(*(event(f"s-{n}", T + minutes * MINUTE, {"t": value}) for n in sensors), stored=stored)


def read_by(counts, call):
    """Returns the bags that a call reads."""
    counts.clear()
    call()
    return {name for (name, what), number in counts.items() if what == "reads" and number}


def test_what_each_firing_reads():
    """Early panes read open windows, late panes closed ones, and a window that closes is not read again."""
    group, counts = group_of()
    send(group, 62, 1)
    assert read_by(counts, group.pass_time) == {"parts", "open"}
    assert read_by(counts, lambda: group.watermark(T + HOUR + LATENESS)) == {"open"}
    assert group.bags.resting[0]
    assert not group.bags.closed
    send(group, 63, 1)
    assert read_by(counts, group.pass_time) == {"parts", "open"}
    send(group, 2, 1)
    assert read_by(counts, group.pass_time) == {"late", "closed", "resting"}
    assert counts["open", "added"] == counts["resting", "added"] == 0
    send(group, -30, 1)
    assert read_by(counts, group.pass_time) == {"late", "closed"}  # no window of that time rests
    assert read_by(counts, lambda: group.pass_time(20 * MINUTE)) == {"closed"}
    assert not group.chunks[1:]  # the open hour


def test_a_late_firing_writes_only_what_changed():
    """However many sensors a group has, a late reading writes its own sensor's window."""
    written = []
    for sensors in (20, 200):
        group, counts = group_of(sensors=sensors)
        group.watermark(T + HOUR + LATENESS)
        send(group, 2, 1)
        counts.clear()
        group.pass_time()
        written.append(sum(number for (_, what), number in counts.items() if what == "added"))
    assert written[1] < 1.1 * written[0] < 500


def test_what_rests_is_counted_although_its_raw_rows_are_not_written_yet():
    """A late reading is added to what its sensor's window had when it closed, and to what came late before."""
    group, _ = group_of()
    send(group, 3, 1, 2, stored=False)
    group.watermark(T + HOUR + LATENESS)
    send(group, 4, 1, stored=False)
    group.pass_time()
    assert group.row(HOURS, "s-1", T) == (3, 3)
    send(group, 5, 1, 2, stored=False)
    group.pass_time(18 * MINUTE)
    assert [group.row(HOURS, f"s-{n}", T) for n in (1, 2)] == [(4, 4), (3, 3)]
    assert sum(map(len, group.bags.closed)) < sum(map(len, group.bags.resting[0]))  # what came since, and no more
    group.store(event("s-1", T + 3 * MINUTE, {"t": 1.0}))
    group.pass_time(5 * MINUTE)  # what rested has expired, the closed windows have not
    assert not group.bags.resting[0]
    send(group, 6, 1, stored=False)
    group.pass_time()
    assert group.row(HOURS, "s-1", T) == (5, 5)
    assert not group.listed


def test_windows_that_close_all_the_time():
    """Two generations of resting windows take turns; each is dropped as a whole, unread."""
    schema = parse_schema('[policies]\nraw = "never"\n[tiers]\n1m = "minutes"')
    group, counts = Group(schema, T), Counter()
    group.bags = counting(counts)
    for minute in range(200):
        send(group, minute, 1)
        group.pass_time_to(T + minute * MINUTE + 50_000_000)
        resting = [Schedule.from_bytes(group.schedule).resting[n] for n in (0, 1)]
        for bag, generation in zip(group.bags.resting, resting, strict=True):
            assert bool(bag) == (generation.until_us != NEVER_US)
        assert sum(map(len, group.bags.resting)) <= 41
    assert not counts["resting", "read"] + counts["resting2", "read"]
    assert counts["resting", "added"]
    assert counts["resting2", "added"]
    group.watermark(END_US)
    assert not group.chunks


def test_a_timer_that_is_late():
    """The workers were away until both generations of resting windows had expired."""
    group, _ = group_of()
    send(group, 121, 1)
    for hour in range(1, 4):
        group.pass_time(10 * MINUTE)
        group.watermark(T + hour * HOUR + LATENESS)
    assert all(group.bags.resting)
    send(group, 2, 1)
    group.pass_time(2 * HOUR)
    assert not any(group.bags.resting)
    assert group.row(HOURS, "s-1", T) == (2, 2)


def test_a_clock_that_was_set_back():
    """Windows that close rest, although neither generation is young enough, nor old enough to be cleared."""
    group, _ = group_of()
    group.watermark(T + HOUR + LATENESS)
    began_us = group.now_us
    for hour, minutes in enumerate((-25, -4, 14, 18, 60, 90), 2):
        group.now_us = began_us + minutes * MINUTE
        send(group, hour * 60 + 1, 1)
        group.watermark(T + (hour + 1) * HOUR + LATENESS)
    assert sum(map(len, group.bags.resting)) == 1
    assert [group.row(HOURS, "s-1", T + hour * HOUR) for hour in range(2, 8)] == [(1, 1)] * 6


def test_a_table_with_longer_tiers():
    """A late pane defers the open day to its next early pane, whatever fires before; a closed day is read with it."""
    group, counts = group_of(parse_schema('[policies]\nraw = "never"\n[tiers]\n1h = "hours"\n1d = "days"'))
    days = group.schema.tiers[1]
    group.watermark(T + HOUR + LATENESS)
    assert group.bags.resting[0]
    send(group, 62, 1)
    assert read_by(counts, group.pass_time) == {"parts", "open", "deferred"}
    send(group, 2, 1)
    assert read_by(counts, group.pass_time) == {"late", "closed", "resting"}
    assert (group.row(HOURS, "s-1", T), group.row(days, "s-1", T)) == ((2, 2), (3, 3))
    assert read_by(counts, group.pass_time) == {"parts", "open", "deferred"}
    assert group.row(days, "s-1", T) == (4, 4)
    assert not group.bags.deferred
    group.pass_time(20 * MINUTE)
    group.watermark(T + 24 * HOUR)
    send(group, 3, 1)
    group.pass_time()
    assert group.bags.deferred
    group.watermark(T + 24 * HOUR + LATENESS)  # the day closes
    assert group.row(days, "s-1", T) == (5, 5)
    send(group, 4, 1, 2)
    group.pass_time()
    assert [group.row(days, f"s-{n}", T) for n in (1, 2)] == [(6, 6), (3, 3)]


def test_statistics_that_continue_from_the_window_before():
    """Late panes read the windows around theirs, but not the open ones: what these continue from waits for them."""
    group, counts = group_of(
        parse_schema('[policies]\nraw = "never"\n[tiers]\n1h = "hours"\n[statistics]\nt = ["increase"]'), sensors=1
    )
    group.watermark(T + HOUR + LATENESS)
    assert group.bags.resting[0]
    assert not group.bags.closed
    send(group, 62, 0)
    assert read_by(counts, group.pass_time) == {"parts", "open", "closed", "resting", "deferred"}
    send(group, 59, 0, value=-3.0)
    assert read_by(counts, group.pass_time) == {"late", "closed", "resting"}
    assert counts["open", "added"] == counts["resting", "added"] == 0
    assert group.bags.deferred
    group.pass_time()  # nothing comes any more
    assert not group.bags.deferred
    increases = [
        record.metrics["t"].more["increase"] for record in map(rows_of(group).get, [("1h", T), ("1h", T + HOUR)])
    ]
    assert increases == [0.0, 4.0]
