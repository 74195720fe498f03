"""Notes of the windows that a process is yet to finish, and what the next process makes of them."""

import random
import zlib
from collections import defaultdict

import pytest

from pipeline.core.events.event import Event
from pipeline.core.panes.grouped_readings import GroupedReadings, read_group_readings, start_of_readings
from pipeline.core.panes.woken_windows import NotedWindows, noted_row, notes_range, wakes_of, windows_of
from pipeline.core.results.window_results import ResultRules
from pipeline.core.rows.rows import Cell, Row, delete_row
from pipeline.core.schema.rate import group_of
from pipeline.core.schema.toml import parse_schema
from tests.support.groups import DAY, HOUR, LATENESS, MIDNIGHT, MINUTE, SECOND, Group
from tests.support.results import newest_of
from tests.support.rows import decoded

SCHEMA = parse_schema('[policies]\nraw = "never"\nhours = "never"\ndays = "never"\n[tiers]\n1h = "hours"\n1d = "days"')
ONE_TIER = parse_schema('[policies]\nraw = "never"\n[tiers]\n1h = "hours"')
NOON = MIDNIGHT + 12 * HOUR


class Stored:
    """A process's notes, and their rows in the table, which the processes after it have too."""

    def __init__(self, schema=ONE_TIER, subscription="s", rows=None):
        self.schema, self.subscription = schema, subscription
        self.notes = NotedWindows(schema.tiers, subscription, LATENESS, MINUTE)
        self.rows = {} if rows is None else rows
        self.written = 0

    def bundle(self, now_us, *times_us, sensors="a"):
        """Passes on readings of a bundle."""
        gathered = GroupedReadings(self.schema.tiers[0].window)
        gathered.add([Event(sensor, time_us, {"t": 1.0}, {}) for sensor in sensors for time_us in times_us])
        self.take([part.data for part in gathered.take_groups()], now_us)

    def take(self, parts, now_us):
        for part in parts:
            self.notes.add(part, now_us)
        self.apply(self.notes.take(now_us))

    def apply(self, rows):
        assert len({row.key for row in rows}) == len(rows)
        for row in rows:
            if row.mutations == delete_row():
                del self.rows[row.key]
            else:
                self.rows[row.key] = decoded(row)
                self.written += 1

    def next(self, now_us, certain_us=0):
        """Returns the process after this one, and the windows that it reads."""
        after = Stored(self.schema, self.subscription, self.rows)
        keys = after.notes.range
        found = [
            after.notes.read(row, now_us, certain_us) for key, row in self.rows.items() if keys.start <= key < keys.end
        ]
        return after, found

    @property
    def windows(self):
        return sorted(
            (sensor, start_us)
            for row in self.rows.values()
            for start_us, sensors in windows_of(row).items()
            for sensor in sensors
        )


def test_a_window_is_noted_once():
    """With the first of its readings, in one row for all sensors of a bundle."""
    stored = Stored()
    for minute in range(60):
        stored.bundle(NOON + minute * MINUTE, NOON + minute * MINUTE, sensors="abc")
    assert stored.windows == [(sensor, NOON) for sensor in "abc"]
    assert stored.written == 1
    assert all(notes_range().start <= key < notes_range().end for key in stored.rows)


def test_a_note_is_removed_some_bundles_after_its_window_closed():
    """Panes wait for each other, and only a bundle tells that everything before is written, however long that took."""
    stored = Stored()
    stored.bundle(NOON, NOON)
    closed_us = NOON + HOUR + LATENESS
    for seconds in (-1, 10 * 3600, 10 * 3600 + 20, 10 * 3600 + 40):
        stored.bundle(closed_us + seconds * SECOND)
        assert stored.windows
    stored.bundle(closed_us + (10 * 3600 + 60) * SECOND)
    assert stored.windows == []


def test_a_clock_that_is_set_back_removes_nothing():
    """The time since then is not known."""
    stored = Stored()
    stored.bundle(NOON, NOON)
    for seconds in (0, 20, 40, -3600, -3580, -3560):
        stored.bundle(NOON + HOUR + LATENESS + seconds * SECOND)
        assert stored.windows


def test_late_readings_are_noted_until_their_pane():
    """Each note covers the readings of some minutes, and no note is removed before the pane of the last ones."""
    stored = Stored()
    for minute in range(60):
        now_us = NOON + minute * MINUTE
        stored.bundle(now_us, NOON - DAY)
        untils_us = [int(key.split(b"#")[3]) for key in stored.rows]
        assert max(untils_us) >= now_us + MINUTE
    assert stored.written < 30
    for minute in range(60, 70):
        stored.bundle(NOON + minute * MINUTE)
    assert stored.rows == {}
    stored.bundle(NOON + 70 * MINUTE, NOON - DAY)
    assert stored.windows == [("a", NOON - DAY)]


def test_the_first_hour_of_a_day_stays_noted():
    """The day goes on with what it stands for, when the others are over."""
    stored = Stored(SCHEMA)
    for minute in range(605):
        stored.bundle(MIDNIGHT + minute * MINUTE, MIDNIGHT + minute * MINUTE)
    assert stored.windows == [("a", MIDNIGHT), ("a", MIDNIGHT + 9 * HOUR), ("a", MIDNIGHT + 10 * HOUR)]
    for minute in range(4):
        stored.bundle(MIDNIGHT + DAY + LATENESS + minute * MINUTE)
    assert stored.windows == []


def test_the_next_process_reads_the_notes():
    """It keeps them until the windows are restored, and until another process after it could do the same."""
    stored = Stored()
    stored.bundle(NOON, NOON, NOON - DAY, sensors="ab")
    Stored(subscription="another", rows=stored.rows).bundle(NOON, NOON, sensors="c")
    for _ in range(2):
        stored, found = stored.next(NOON + 9 * HOUR)
        assert sorted(window for windows in found for window in windows.items()) == [
            (NOON - DAY, ["a", "b"]),
            (NOON, ["a", "b"]),
        ]
    for minute in range(10):
        stored.bundle(NOON + 9 * HOUR + minute * MINUTE)
        assert minute > 1 or len(stored.windows) == 5
    assert stored.windows == [("c", NOON)]


def test_windows_whose_raw_rows_may_be_gone():
    """They are woken if they may not be over, and not if they are noted for the sake of their day alone."""
    stored = Stored(SCHEMA)
    for hour in range(3):
        stored.bundle(MIDNIGHT + hour * HOUR, MIDNIGHT + hour * HOUR)
    now_us = MIDNIGHT + 3 * HOUR
    assert stored.next(now_us)[1][::2] == [{MIDNIGHT: ["a"]}, {MIDNIGHT + 2 * HOUR: ["a"]}]
    assert stored.next(now_us, now_us)[1][0] == {}
    assert stored.next(now_us, now_us)[1][2] == {MIDNIGHT + 2 * HOUR: ["a"]}


def test_a_shorter_tier_since_then():
    """All windows of the new tier in a noted one are woken: readings of any may be missing in the longer one."""
    stored = Stored()
    stored.bundle(NOON + 25 * MINUTE, NOON + 25 * MINUTE)
    tens = 'raw = "never"\nhours = "never"\ntens = "never"\n[tiers]\n10m = "tens"\n1h = "hours"'
    stored.schema = parse_schema(f"[policies]\n{tens}")
    _, (found,) = stored.next(NOON + 30 * MINUTE)
    assert found == {NOON + minute * MINUTE: ["a"] for minute in range(0, 60, 10)}


def test_a_stop_leaves_the_notes_of_open_windows():
    """Every pane is written then; but these windows are not over."""
    stored = Stored()
    stored.bundle(NOON, NOON, NOON - HOUR, NOON - DAY)
    stored.apply(stored.notes.finish(NOON + MINUTE))
    assert stored.windows == [("a", NOON - HOUR), ("a", NOON)]
    stored.apply(stored.notes.finish(NOON + LATENESS))
    assert stored.windows == [("a", NOON)]


def test_a_stop_leaves_the_note_of_a_day_whose_first_reading_was_late():
    """Its hour is written then, after it closed; the day is not over, even if its end is nearer than the late pane."""
    for now_us in (NOON, MIDNIGHT + DAY + LATENESS - SECOND):
        stored = Stored(SCHEMA)
        stored.bundle(now_us, MIDNIGHT)
        stored.apply(stored.notes.finish(now_us))
        assert stored.windows == [("a", MIDNIGHT)]
        stored.apply(stored.notes.finish(MIDNIGHT + DAY + LATENESS))
        assert stored.windows == []


def test_notes_of_many_windows():
    """No row has more than some thousands of them, nor an element that wakes them more than its share."""
    stored = Stored()
    sensors = [f"sensor-{number}" for number in range(50_000)]
    stored.bundle(NOON, NOON, sensors=sensors)
    assert max(len(windows_of(row)[NOON]) for row in stored.rows.values()) <= 20_000
    found = [(group, part) for row in stored.rows.values() for group, part in wakes_of(windows_of(row), 16)]
    assert sorted(each.sensor_id for _, part in found for each in read_group_readings(part)) == sorted(sensors)
    for group, part in found:
        assert start_of_readings(part) == NOON
        for sensor_id, _, times, values, _ in read_group_readings(part):
            assert (group_of(sensor_id.encode(), 16), len(times), len(values)) == (group, 0, 0)


def test_another_cell_in_the_row():
    """It tells nothing."""
    row = noted_row(b"k", "stats", {NOON: ["a"]})
    assert windows_of(row) == {NOON: ["a"]}
    assert windows_of(row._replace(cells=[row.cells[0]._replace(qualifier=b"x")])) == {}


@pytest.mark.parametrize("schema", [ONE_TIER, SCHEMA], ids=["hours", "days"])
@pytest.mark.parametrize("seed", range(4))
def test_a_process_that_is_killed_at_any_moment(schema, seed):
    """Whatever it had in memory: in the end each row is what its raw rows say, and so is the greatest result."""
    rng = random.Random(seed)
    now_us, end_us = NOON, MIDNIGHT + DAY + 3 * HOUR
    stored, events = Stored(schema), {}
    group = Group(schema, now_us, results=ResultRules(now_us, early=False))
    while now_us < end_us:
        now_us += rng.choice([SECOND, 5 * SECOND, MINUTE, 10 * MINUTE])
        group.pass_time_to(now_us)
        came = []
        for _ in range(rng.choice([0, 0, 1, 3])):
            behind_us = rng.choice([0, MINUTE, HOUR, 30 * HOUR])
            time_us = now_us - rng.randrange(behind_us + 1)
            came.append(Event(rng.choice("abc"), time_us, {"t": float(time_us % 97)}, {}))
        events |= {(each.sensor_id, each.event_time_us): each for each in came}
        gathered = GroupedReadings(schema.tiers[0].window)
        gathered.add(came)
        parts = [part.data for part in gathered.take_groups()]
        group.store(*came)
        stored.take(parts, now_us)
        if rng.random() < 0.1:
            group, stored = next_process(group, stored)
        else:
            group.take(parts)
    group, stored = next_process(group, stored)
    group.pass_time_to(end_us + 2 * DAY)
    assert group.listed == []
    results = {window: (count, of["t"]["sum"]) for window, (count, of) in newest_of(group.published).items()}
    for tier in schema.tiers:
        values = defaultdict(list)
        for each in events.values():
            values[each.sensor_id, tier.window.start_of(each.event_time_us)].append(each.readings["t"])
        for (sensor_id, start_us), of_window in values.items():
            expected = len(of_window), pytest.approx(sum(of_window))
            assert group.row(tier, sensor_id, start_us) == expected
            assert results[tier.window.text, sensor_id, start_us] == expected


def next_process(group, stored):
    """Returns the group and the notes of the process after one that was killed: it has the table."""
    rules = group.aggregation.results._replace(began_us=group.now_us)
    after = Group(group.schema, group.now_us, group.now_us + HOUR, group.table, results=rules)
    after.published, after.listed = group.published, group.listed
    stored, found = stored.next(group.now_us)
    after.take(part for windows in found for _, part in wakes_of(windows, 1))
    return after, stored


@pytest.mark.parametrize("value", [b"", b"junk", zlib.compress(b"0" * (17 << 20)), zlib.compress(b"{}")[:-1]])
def test_bytes_of_another_program(value):
    """They are named, and not unpacked beyond the size of a note."""
    row = Row(b"schema#windows#x", [Cell("hours", b"windows", 0, value)])
    with pytest.raises(ValueError, match=r"^another program wrote row schema#windows#x; delete the row$"):
        windows_of(row)
