"""A job looks through the work list, and its windows get what backfills wrote."""

from pipeline.core.completion.work_list import BACKFILLED, LATE, REPAIRED, listing, work_row
from pipeline.core.panes import group_firing
from pipeline.core.panes.firing import IN_FLIGHT_US
from pipeline.core.panes.woken_windows import Look, listed_windows, wakes_of
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.toml import parse_schema
from tests.support.groups import DAY, HOUR, LATENESS, MIDNIGHT, MINUTE, SECOND, Group, event, rows_of
from tests.support.memory import Memory

SCHEMA = parse_schema('[policies]\nraw = "never"\n[tiers]\n1h = "hours"')
(HOURS,) = SCHEMA.tiers
NOW = MIDNIGHT + 30 * MINUTE


def found(look, table):
    return listed_windows(table(look.selection(HOURS)), HOURS, 0)


def backfilled(table, sensor_id, start_us, at_us, writer=BACKFILLED):
    table.write(work_row(HOURS, sensor_id, start_us, listing(writer, at_us)))


def test_a_look_covers_what_backfills_have_listed_since_the_last_one():
    """It finds neither what a job or a repair lists, nor what was listed long ago, nor rows of other programs."""
    table, look = Memory(), Look.before_first(NOW)
    backfilled(table, "old", MIDNIGHT, NOW - HOUR)
    backfilled(table, "before", MIDNIGHT, NOW - 2 * MINUTE)
    look = look.next(NOW)
    assert found(look, table) == {MIDNIGHT: ["before"]}
    for number, writer in enumerate((BACKFILLED, LATE, REPAIRED)):
        backfilled(table, f"s{number}", MIDNIGHT + HOUR, NOW + SECOND, writer)
    table.write(Row(b"repair#hourly#what", [Cell("hours", listing(BACKFILLED, NOW), 0, b"1")]))
    look = Look.from_bytes(look.to_bytes()).next(NOW + 2 * MINUTE)
    assert found(look, table) == {MIDNIGHT + HOUR: ["s0"]}
    assert found(look.next(NOW + 4 * MINUTE), table) == {}


def test_a_listing_that_takes_long_to_arrive_is_found():
    """It is found in the 40 minutes after it was made, though looks of later listings have passed it."""
    table, look = Memory(), Look.before_first(NOW).next(NOW)
    for minute in range(1, 15):
        look = look.next(NOW + minute * MINUTE)
    backfilled(table, "a", MIDNIGHT, NOW + 5 * MINUTE)
    found_in = []
    for minute in range(15, 80):
        look = look.next(NOW + minute * MINUTE)
        found_in += [minute] * bool(found(look, table))
    assert len(found_in) == 2
    assert found_in[0] * MINUTE <= 5 * MINUTE + 2 * IN_FLIGHT_US


def test_a_clock_that_is_set_back_ends_no_looks():
    """What is listed by the clock that was set back is found."""
    table, look = Memory(), Look.before_first(NOW + HOUR).next(NOW + HOUR)
    backfilled(table, "a", MIDNIGHT, NOW)
    assert found(look.next(NOW + SECOND), table) == {MIDNIGHT: ["a"]}


def test_a_long_list_is_read_in_parts():
    """The next part begins after the last row of the part before."""
    table, look = Memory(), Look.before_first(NOW).next(NOW)
    for sensor_id in "abcd":
        backfilled(table, sensor_id, MIDNIGHT, NOW)
    first = table(look.selection(HOURS))
    key = [next(first).key for _ in range(2)][-1]
    rest = look._replace(after=key.decode()).next(NOW + MINUTE)
    assert found(rest, table) == {MIDNIGHT: ["c", "d"]}


def test_windows_whose_raw_rows_may_be_gone_wait_for_a_repair():
    """The job could not compute them."""
    rows = [work_row(HOURS, "a", start_us) for start_us in (MIDNIGHT, MIDNIGHT + HOUR)]
    assert listed_windows(rows, HOURS, MIDNIGHT + 1) == {MIDNIGHT + HOUR: ["a"]}


class Beside(Group):
    """A group, and a backfill beside its job, which began before that hour."""

    def __init__(self, schema=SCHEMA, **options):
        super().__init__(schema, MIDNIGHT + 20 * MINUTE, before_us=MIDNIGHT - HOUR, **options)

    def backfill(self, *events):
        """Writes the raw rows of events, and wakes their windows."""
        self.store(*events)
        windows = {}
        for each in events:
            windows.setdefault(each.event_time_us // HOUR * HOUR, set()).add(each.sensor_id)
        self.take(part for _, part in wakes_of(windows, 1))


def at(minutes, value=1.0, sensor_id="a"):
    return event(sensor_id, MIDNIGHT + round(minutes * MINUTE), {"t": value})


def test_a_woken_window_of_the_state_counts_each_reading_once():
    """It counts what it has, what was backfilled, what the job has written since, and what comes later."""
    group = Beside()
    group.receive(at(1), at(2))
    group.pass_time()
    group.backfill(at(2), at(3, 2.0), at(3, 4.0, "b"))
    group.receive(at(4))
    group.pass_time()
    assert (group.row(HOURS, "a", MIDNIGHT), group.row(HOURS, "b", MIDNIGHT)) == ((4, 5), (1, 4))
    group.receive(at(5), at(5, sensor_id="b"))
    group.pass_time()
    group.watermark(MIDNIGHT + HOUR + LATENESS)
    assert (group.row(HOURS, "a", MIDNIGHT), group.row(HOURS, "b", MIDNIGHT)) == ((5, 6), (2, 5))
    assert not group.listed


def test_a_corrected_value_counts():
    """A backfill that corrects a value corrects the window in the state."""
    group = Beside()
    group.receive(at(1), at(2))
    group.pass_time()
    group.backfill(at(2, 9.0))
    group.pass_time()
    assert group.row(HOURS, "a", MIDNIGHT) == (2, 10)


def test_a_window_that_is_woken_again_is_not_written_again():
    """Looks that overlap write nothing."""
    group = Beside()
    group.receive(at(1))
    group.backfill(at(2))
    group.pass_time()
    written = len(group.written)
    group.backfill(at(2))
    group.pass_time()
    assert len(group.written) == written


def test_a_woken_window_that_waits_for_another_firing(monkeypatch):
    """A firing that reads for too long leaves woken windows, and what came for them, to the next."""
    monkeypatch.setattr(group_firing, "HELD_S", 0)
    group, sensors = Beside(), [f"s{number}" for number in range(20)]
    group.receive(*(at(1, sensor_id=each) for each in sensors))
    group.pass_time()
    group.backfill(*(at(2, sensor_id=each) for each in sensors))
    group.receive(*(at(3, sensor_id=each) for each in sensors))
    group.pass_time()
    assert {group.row(HOURS, each, MIDNIGHT)[0] for each in sensors} == {1, 3}
    for _ in range(3):
        group.pass_time(SECOND)
    assert {group.row(HOURS, each, MIDNIGHT)[0] for each in sensors} == {3}


def test_a_woken_window_that_is_closed_is_computed_from_the_table():
    """It gets a late pane."""
    group = Beside()
    group.receive(at(1))
    group.watermark(MIDNIGHT + HOUR + LATENESS)
    group.backfill(at(2))
    group.pass_time()
    assert group.row(HOURS, "a", MIDNIGHT) == (2, 2)


def test_a_woken_window_continues_from_a_backfilled_reading():
    """An increase counts from the last reading before the window, which a backfill wrote."""
    schema = parse_schema('[policies]\nraw = "never"\nstats = "never"\n[statistics]\nt = ["increase"]')
    group = Beside(schema)
    group.receive(at(61, 10.0))
    group.pass_time()
    group.store(at(59, 4.0))
    group.take(part for _, part in wakes_of({MIDNIGHT + HOUR: ["a"]}, 1))
    group.pass_time()
    assert rows_of(group)["1h", MIDNIGHT + HOUR].metrics["t"].more["increase"] == 6


def test_a_woken_window_without_readings_is_not_listed():
    """A backfill lists a day as its first hour, in which the sensor may have sent nothing."""
    group = Beside()
    group.receive(at(1))
    group.watermark(MIDNIGHT + HOUR + LATENESS)
    group.take(part for start_us in (MIDNIGHT, MIDNIGHT + HOUR) for _, part in wakes_of({start_us: ["b"]}, 1))
    group.pass_time()
    assert group.row(HOURS, "b", MIDNIGHT) is None
    assert not group.listed


def test_longer_windows_follow_a_woken_one():
    """A backfill lists an open day as its first hour, in which the sensor may have sent nothing."""
    schema = parse_schema('[policies]\nraw = "never"\n[tiers]\n1h = "hours"\n1d = "days"')
    group, other = Beside(schema), Beside(schema)
    other.table = group.table
    other.receive(at(65))
    other.pass_time()  # as a backfill, it writes the hour and the day
    group.take(part for _, part in wakes_of({MIDNIGHT: ["a"]}, 1))
    for end_us in (MIDNIGHT + HOUR, MIDNIGHT + DAY):
        group.watermark(end_us)
        group.pass_time()
        assert [row.key for row in group.written] == [b"agg#daily#a#2026-02-17"]
