"""Longer windows and groups around rewritten windows follow, whatever the range of the repair."""

import time

import pytest

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.tables import tables
from pipeline.core.completion.stored_windows import CompletionFromShorterWindows
from pipeline.core.completion.work_list import work_key, work_row
from pipeline.core.events.event import Event
from pipeline.core.notation.times import format_time
from pipeline.core.rows.aggregate_rows import aggregate_key, aggregate_row
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.gc_policies import parse_policy
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.core.windows import DAILY, HOURLY
from tests.repair.tables import (
    DAY,
    HOUR,
    MINUTE,
    T,
    assert_right,
    delete_rows,
    events,
    raw_rows,
    repaired,
    rows_of,
    run,
    table_of,
    write,
)
from tests.support.wrong_rollups import wrong_rollups

TIERS = (
    "tiers = { 1h = 'hours', 1d = 'days', '1d@America/New_York' = 'ny', '1mo@Europe/Berlin' = 'months', "
    "'1mo@America/New_York' = 'nymonths' }\n"
)
ALL = "--from", "2026-01-20", "--to", "2026-03-20", "--allowed-lateness", "0s"
GIVEN = events(days=4, sensors=("a", "b"))
SPIKE = GIVEN[9]  # the second event of a's second day
HOUR_OF_SPIKE = HOURLY.start_of(SPIKE.event_time_us)
ONE_HOUR = "--from", format_time(HOUR_OF_SPIKE), "--to", format_time(HOUR_OF_SPIKE + HOUR), "--allowed-lateness", "0s"
LONGER = [
    ("1d", "2026-02-18T00:00:00Z"),
    ("1d@America/New_York", "2026-02-17T00:00:00-05:00"),
    ("1mo@America/New_York", "2026-02-01T00:00:00-05:00"),
    ("1mo@Europe/Berlin", "2026-02-01T00:00:00+01:00"),
]


def of_longer(findings, problem="contains wrong windows"):
    return sorted((each["window"], each["start"]) for each in findings if each["problem"] == problem)


def without(*deleted):
    return [event for event in GIVEN if event not in deleted]


@pytest.fixture
def table(bigtable):
    """A table in which every aggregate is right, but for those that count a raw row which was deleted since."""
    name, schema = table_of(TIERS)
    write(name, raw_rows(schema, GIVEN))
    repaired(name, *ALL)
    delete_rows(name, [schema.rows(SPIKE)[0].key])
    return name, schema


def test_a_repair_of_an_hour(table):
    """The day, the New York day and the months around it are rewritten too, and nothing else; a second run changes
    nothing. A dry run finds the same."""
    name, schema = table
    before = rows_of(name)
    result = run(name, *ONE_HOUR, "--dry-run")
    assert "\na 1d 2026-02-18T00:00:00Z contains wrong windows: reading_count 8 -> 7, " in result.stdout
    assert "\n4 longer windows around them would be rewritten\n" in result.stdout
    findings, sums = repaired(name, *ONE_HOUR, "--dry-run")
    assert (sums["wrong"], sums["longer"]) == (1, {"differ": 4, "rewritten": 0, "left": 0})
    assert rows_of(name) == before
    found, sums = repaired(name, *ONE_HOUR)
    assert found == findings
    assert of_longer(found) == LONGER
    assert (sums["wrong"], sums["rewritten"]) == (1, 1)
    assert sums["longer"] == {"differ": 4, "rewritten": 4, "left": 0}
    assert sums["work_list"] == {"settled": 0, "left": 0}
    assert_right(name, schema, without(SPIKE))
    after = rows_of(name)
    assert len({key for key in before | after if after.get(key) != before.get(key)}) == 5
    assert repaired(name, *ONE_HOUR)[0] == []
    assert rows_of(name) == after
    assert repaired(name, *ALL)[0] == []


def test_a_repair_of_the_list(table):
    """A listed hour makes the whole day be audited, and so the hours around it: what contains these follows too."""
    name, schema = table
    other = GIVEN[15]  # the last of a's second day, which is in another day of New York
    delete_rows(name, [schema.rows(other)[0].key])
    write(name, [work_row(schema.tiers[0], "a", HOUR_OF_SPIKE)])
    _, sums = repaired(name, "--listed", "--allowed-lateness", "0s")
    assert sums["work_list"] == {"settled": 1, "left": 0}
    assert_right(name, schema, without(SPIKE, other))


def test_a_corrected_value_beside_a_large_one(bigtable):
    """The day follows, also if it changes by little beside its largest reading."""
    name, schema = table_of("tiers = { 1h = 'hours', 1d = 'days' }")
    given = [Event("a", T + n * MINUTE, {"t": 1e-3}, {}) for n in range(200)] + [
        Event("a", T + HOUR * 9, {"t": 1e6}, {})
    ]
    write(name, raw_rows(schema, given))
    repaired(name, *ALL)
    given[3] = given[3]._replace(readings={"t": 0.1})
    write(name, raw_rows(schema, given[3:4]))
    _, sums = repaired(name, "--from", format_time(T), "--to", format_time(T + HOUR), "--allowed-lateness", "0s")
    assert sums["longer"] == {"differ": 1, "rewritten": 1, "left": 0}
    assert repaired(name, *ALL)[0] == []


def test_the_last_raw_row_of_a_window(table):
    """If nothing is left in a day, its row goes; the month around it counts the other days."""
    name, schema = table
    day = [event for event in GIVEN if event.sensor_id == "a" and T + DAY <= event.event_time_us < T + 2 * DAY]
    delete_rows(name, [schema.rows(event)[0].key for event in day])
    repaired(name, "--from", "2026-02-18", "--to", "2026-02-18T23:00", "--allowed-lateness", "0s")
    assert_right(name, schema, without(*day))


def test_a_month_whose_raw_rows_are_gone(bigtable):
    """It is computed from its hours, whose rows are kept longer, and a listed window in it is settled."""
    name, schema = table_of("tiers = { 1h = 'hours', '1mo@Europe/Berlin' = 'months' }")
    month = schema.tiers[1].window
    last = month.start_of(month.start_of(time.time_ns() // 1000) - DAY)
    given = [Event("a", last + n * DAY, {"t": 1.0 * n}, {}) for n in range(20)]
    write(name, raw_rows(schema, given))
    repaired(name, "--from", format_time(last - DAY), "--to", format_time(last + 50 * DAY), "--allowed-lateness=0s")
    spike = given[-1]
    delete_rows(name, [schema.rows(event)[0].key for event in (*given[:10], spike)])
    age_days = (time.time_ns() // 1000 - spike.event_time_us) // DAY + 4
    tables.apply(name, [tables.Difference("raw", parse_policy("never"), parse_policy(f"maxage={age_days}d"))])
    write(name, [work_row(schema.tiers[0], "a", spike.event_time_us)])
    hour = HOURLY.start_of(spike.event_time_us)
    between = "--from", format_time(hour), "--to", format_time(hour + HOUR), "--allowed-lateness", "0s"
    _, sums = repaired(name, *between)
    assert sums["longer"] == {"differ": 1, "rewritten": 1, "left": 0}
    assert sums["work_list"] == {"settled": 1, "left": 0}
    assert_right(name, schema, given[:-1])


def test_a_window_that_a_job_may_still_write(bigtable):
    """A day in progress stays as it is, is listed for later, and the summary says so."""
    name, schema = table_of("tiers = { 1m = 'minutes', 1d = 'days', '1d@Pacific/Auckland' = 'others' }")
    first = HOURLY.start_of(time.time_ns() // 1000) - 2 * HOUR  # not both of these days are over by now
    given = [Event("a", first + n * MINUTE, {"t": 1.0}, {}) for n in range(3)]
    write(name, raw_rows(schema, given))
    between = "--from", format_time(first), "--to", format_time(first + 3 * MINUTE)
    found, sums = repaired(name, *between, "--allowed-lateness", "1m")
    still_open = of_longer(found, "still open")
    assert still_open
    assert (sums["longer"]["left"], sums["work_list"]["left"]) == (len(still_open), len(still_open))
    assert len([key for key in rows_of(name) if key.startswith(b"agg#daily")]) == 2 - len(still_open)
    repaired(name, "--listed", "--allowed-lateness", "0s")
    assert_right(name, schema, given)
    assert not [key for key in rows_of(name) if key.startswith(b"repair#")]


def test_an_hour_beside_it_that_is_foreign(table):
    """Where another hour's row can't be read, the day stays as it is and is listed: a repair of the list computes it
    from raw rows."""
    name, schema = table
    write(name, [Row(aggregate_key(HOURLY, "a", T + DAY), [Cell("hours", b"sum_t", T + 2 * DAY, b"junk")])])
    before = rows_of(name)
    found, sums = repaired(name, *ONE_HOUR)
    assert of_longer(found, "its shorter windows lack something")[0] == LONGER[0]
    assert sums["longer"]["left"] == sums["work_list"]["left"] > 0
    day = aggregate_key(DAILY, "a", T + DAY)
    assert rows_of(name)[day] == before[day]
    assert "unchanged, and listed: " in run(name, *ONE_HOUR, "--dry-run").stdout or sums["rewritten"] == 1
    repaired(name, "--listed", "--allowed-lateness", "0s")
    assert_right(name, schema, without(SPIKE))
    assert not [key for key in rows_of(name) if key.startswith(b"repair#")]


def test_an_hour_beside_it_without_a_row(table):
    """An interrupted backfill leaves such an hour: what is around it counts the hour's raw rows, as everywhere."""
    name, schema = table
    key = aggregate_key(HOURLY, "a", T + DAY)
    missing = rows_of(name)[key]
    delete_rows(name, [key])
    assert repaired(name, *ONE_HOUR, "--dry-run")[0] == repaired(name, *ONE_HOUR)[0] != []
    write(name, [Row(key, missing)])
    assert_right(name, schema, without(SPIKE))


def test_a_repair_that_was_stopped_in_between(table, monkeypatch):
    """The hour is on the work list until all that follows is written: the same command does the rest."""
    name, schema = table
    with monkeypatch.context() as patched:

        def failing(*_):
            raise ServerError("the server went away")

        patched.setattr(CompletionFromShorterWindows, "completed", failing)
        assert run(name, *ONE_HOUR).stderr == "Error: the server went away\n"
    assert work_key(HOURLY, "a", HOUR_OF_SPIKE) in rows_of(name)
    findings, sums = repaired(name, *ONE_HOUR)
    assert (of_longer(findings), sums["wrong"]) == (LONGER, 0)
    assert sums["work_list"] == {"settled": 1, "left": 0}
    assert_right(name, schema, without(SPIKE))


def test_another_writer_meanwhile(table, monkeypatch):
    """A longer window is compared again once it is written: whoever wrote an hour meanwhile is counted."""
    name, schema = table
    late = Event("a", T + DAY + HOUR, {"t": 3.0}, {})
    stats = WindowStats()
    stats.add(late.readings)
    hours = schema.tiers[0]
    original, written = CompletionFromShorterWindows.completed, []

    def overtaken(*arguments):
        found = original(*arguments)
        if not written:
            written.append(late)
            write(name, raw_rows(schema, written))
            write(name, [aggregate_row(HOURLY, "a", T + DAY + HOUR, stats, hours.family)])
        return found

    monkeypatch.setattr(CompletionFromShorterWindows, "completed", overtaken)
    repaired(name, *ONE_HOUR)
    assert_right(name, schema, [*without(SPIKE), late])


def test_the_groups_around_it(bigtable):
    """The rows of groups follow those of sensors, in every tier."""
    rollups = "[rollups]\nplace = { by = 'metadata.location' }\nfleet = { by = [] }\nshards = 2\n"
    name, schema = table_of(TIERS + rollups)
    write(name, raw_rows(schema, GIVEN))
    repaired(name, *ALL)
    assert wrong_rollups(name, schema) == []
    delete_rows(name, [schema.rows(SPIKE)[0].key])
    repaired(name, *ONE_HOUR)
    assert repaired(name, *ALL, "--dry-run")[1]["wrong"] == 0
    assert wrong_rollups(name, schema) == []
    assert not [key for key in rows_of(name) if key.startswith(b"repair#")]
