"""Repairs of statistics that depend on the last reading before a window."""

import time

from pipeline.core.completion.work_list import work_row
from pipeline.core.events.event import Event
from pipeline.core.notation.times import format_time
from pipeline.core.rows.aggregate_rows import aggregate_key, aggregate_row
from tests.repair.tables import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    TWO_DAYS,
    T,
    delete_rows,
    raw_rows,
    repaired,
    rows_of,
    table_of,
    write,
)
from tests.support.courses import SCHEMA, check, stored

READINGS = {
    T + day * DAY + n * 5 * HOUR + MINUTE: {"t": float(7 * n % 5), "u": float(n - day)}
    for day in range(4)
    for n in range(4)
} | {T + 3 * HOUR: {"t": 40.0}, T - 6 * DAY: {"t": 1.0, "u": 2.0}}


def events_of(readings):
    return [Event("a", time_us, of_event, {}, f"id-{time_us}") for time_us, of_event in readings.items()]


def test_the_windows_after_those_that_were_repaired(bigtable):
    """They continue from other readings, and are repaired as well, whether or not they are in the range."""
    name, schema = table_of(SCHEMA)
    write(name, raw_rows(schema, events_of(READINGS)))
    everything = "--from", "2026-02-10", "--to", "2026-02-21"
    repaired(name, *everything)
    check(stored(name, schema), READINGS)
    readings = READINGS | {T + 2 * DAY - SECOND: {"t": 33.0, "u": 2.0}, T + HOUR: {"u": 99.0}}
    write(name, raw_rows(schema, events_of(readings)))
    delete_rows(name, [aggregate_key(schema.tiers[0].window, "a", T + 5 * HOUR)])
    before = stored(name, schema)
    findings, sums = repaired(name, *TWO_DAYS, "--dry-run")
    assert (sums["wrong"], stored(name, schema)) == (5, before), findings
    findings, sums = repaired(name, *TWO_DAYS)
    check(stored(name, schema), readings)
    assert repaired(name, *everything, "--dry-run")[1]["wrong"] == 0


def test_the_day_after_a_listed_window(bigtable):
    """A listed window at a day's end corrects the next day as well."""
    name, schema = table_of(SCHEMA)
    write(name, raw_rows(schema, events_of(READINGS)))
    everything = "--from", "2026-02-10", "--to", "2026-02-21"
    repaired(name, *everything)
    readings = READINGS | {T + DAY - SECOND: {"t": 33.0}}
    write(name, raw_rows(schema, events_of(readings)))
    write(name, [work_row(schema.tiers[0], "a", T + 23 * HOUR, b"job")])
    repaired(name, "--listed")
    check(stored(name, schema), readings)


def test_a_following_window_that_a_job_may_still_write(bigtable):
    """It is listed for a later repair."""
    name, schema = table_of(SCHEMA)
    this_hour = time.time_ns() // 1000 // HOUR * HOUR
    day = (this_hour - DAY) // DAY * DAY
    readings = {day + HOUR: {"t": 5.0}, this_hour: {"t": 9.0}}
    write(name, raw_rows(schema, events_of(readings)))
    hours = schema.tiers[0]
    stats = schema.statistics.stats_of([this_hour], {"t": [9.0]})
    write(name, [aggregate_row(hours.window, "a", this_hour, stats, hours.family, hours.statistics)])
    span = [format_time(each_us)[:10] for each_us in (day, day + DAY)]
    repaired(name, "--from", span[0], "--to", span[1])
    assert work_row(hours, "a", this_hour, b"x").key in rows_of(name)


def test_hours_of_the_same_day_that_a_repair_leaves_out(bigtable):
    """They continue from its readings: those that are over are repaired, and those that a job may write are listed."""
    name, schema = table_of('[tiers]\n1h = "hours"\n1d = "days"\n[statistics]\nt = ["increase"]')
    write(name, raw_rows(schema, events_of({T + HOUR: {"t": 1.0}, T + 5 * HOUR: {"t": 9.0}})))
    repaired(name, *TWO_DAYS)
    write(name, raw_rows(schema, events_of({T + HOUR + MINUTE: {"t": 4.0}})))
    repaired(name, "--from", "2026-02-17", "--to", "2026-02-17T03")
    rows = {start_us: record.metrics["t"].more["increase"] for (_, start_us), record in stored(name, schema).items()}
    assert rows == {T: 8, T + HOUR: 3, T + 5 * HOUR: 5}
    hours, now_us = schema.tiers[0], time.time_ns() // 1000
    write(name, raw_rows(schema, events_of({now_us - 3 * HOUR: {"t": 9.0}})))
    repaired(name, "--from", format_time(now_us - DAY), "--to", format_time(now_us + DAY))
    assert work_row(hours, "a", now_us, b"x").key in rows_of(name)


def test_the_month_after_a_repaired_window(bigtable):
    """The windows that were audited as a whole are longer than the time for which raw rows are read."""
    name, schema = table_of('[tiers]\n1h = "hours"\n1mo = "months"\n[statistics]\nt = ["increase"]')
    readings = {T - 10 * DAY: {"t": 1.0}, T + 20 * DAY: {"t": 9.0}}  # of February and of March
    write(name, raw_rows(schema, events_of(readings)))
    repaired(name, "--from", "2026-02-01", "--to", "2026-04-01")
    write(name, raw_rows(schema, events_of({T - 10 * DAY + MINUTE: {"t": 4.0}})))
    repaired(name, "--from", "2026-02-01", "--to", "2026-03-01")
    found = {start_us: record.metrics["t"].more["increase"] for (_, start_us), record in stored(name, schema).items()}
    months = [schema.tiers[1].window.start_of(each_us) for each_us in readings]
    assert found == {T - 10 * DAY: 3, T + 20 * DAY: 5, months[0]: 3, months[1]: 5}
