"""The work list, and the windows that a repair skips."""

import re
import time
from dataclasses import replace

import pytest

from pipeline.cloud.tables import tables
from pipeline.cloud.tables.schema_store import read_stored, write_schema
from pipeline.core.completion.work_list import BACKFILLED, LATE, listing, work_key, work_row
from pipeline.core.events.event import Event
from pipeline.core.notation.times import format_time
from pipeline.core.rows.aggregate_rows import aggregate_key
from pipeline.core.schema.gc_policies import parse_policy
from pipeline.core.windows import DAILY, HOURLY
from pipeline.repair import run as job
from tests.repair.tables import (
    BOTH_TIERS,
    DAY,
    HOUR,
    MINUTE,
    SCHEMAS,
    TWO_DAYS,
    T,
    aggregates,
    events,
    put,
    raw_rows,
    repaired,
    rows_of,
    run,
    table_of,
    write,
)
from tests.support.exhaustive import cases


@pytest.mark.parametrize("kind", cases(["wide", "wide time first", "wide by location"], ["wide time first"]))
def test_the_work_list(bigtable, kind):
    """Repair settles listed windows with their days and removes them from the list; it reads no other days."""
    name, schema = table_of(f"key = '{SCHEMAS[kind]}'\n" + BOTH_TIERS)
    hours = schema.tiers[0]
    write(name, raw_rows(schema, events()))
    write(name, [work_row(hours, "a", T + 3 * HOUR), work_row(hours, "a", T + 6 * HOUR), work_row(hours, "b", T + DAY)])
    findings, sums = repaired(name, "--listed")
    assert {(each["sensor_id"], each["start"][:10]) for each in findings} == {("a", "2026-02-17"), ("b", "2026-02-18")}
    assert sums["wrong"] == 2 * 9
    assert sums["work_list"] == {"settled": 3, "left": 0}
    assert not [key for key in rows_of(name) if key.startswith(b"repair#")]
    findings, sums = repaired(name, "--listed")
    assert (findings, sums["checked"], sums["work_list"]) == ([], 0, {"settled": 0, "left": 0})
    assert repaired(name, *TWO_DAYS, "--dry-run")[1]["wrong"] == 4 * 9


def test_the_work_list_from_before_a_shorter_tier(bigtable):
    """Windows listed while hours were the shortest tier are settled too; an older job may still list more."""
    name, schema = table_of("tiers = { 15m = 'quarters', 1h = 'hours', 1d = 'days' }")
    write(name, [*raw_rows(schema, events()), work_row(schema.tiers[1], "a", T + 3 * HOUR)])
    findings, sums = repaired(name, "--listed")
    assert {(each["sensor_id"], each["start"][:10]) for each in findings} == {("a", "2026-02-17")}
    assert sums["wrong"] == 2 * 8 + 1
    assert sums["work_list"] == {"settled": 1, "left": 0}
    assert not [key for key in rows_of(name) if key.startswith(b"repair#")]


def test_the_work_list_of_a_range(written):
    """A time range settles the windows listed in it, whole days or not, and no others."""
    name, schema = written
    hours = schema.tiers[0]
    write(name, [work_row(hours, "a", T), work_row(hours, "a", T + DAY), work_row(hours, "b", T)])
    _, sums = repaired(name, "--from", "2026-02-17", "--to", "2026-02-18T12", "--sensor", "a")
    assert sums["work_list"] == {"settled": 2, "left": 0}
    assert [key for key in rows_of(name) if key.startswith(b"repair#")] == [work_key(HOURLY, "b", T)]


def test_an_event_that_comes_late_meanwhile_stays_listed(written, monkeypatch):
    """A window that a job lists during its repair stays listed: the repair may have missed the event."""
    name, schema = written
    write(name, [work_row(schema.tiers[0], "a", T)])
    run_one = job.bounded.run

    def overtaken(*arguments):
        totals = run_one(*arguments)
        write(name, [work_row(schema.tiers[0], "a", T)])
        return totals

    with monkeypatch.context() as patched:
        patched.setattr(job.bounded, "run", overtaken)
        repaired(name, *TWO_DAYS)
    assert rows_of(name)[work_key(HOURLY, "a", T)] == work_row(schema.tiers[0], "a", T).cells
    assert repaired(name, *TWO_DAYS)[1]["work_list"] == {"settled": 1, "left": 0}
    assert work_key(HOURLY, "a", T) not in rows_of(name)


@pytest.mark.parametrize(
    ("writer", "minutes", "lateness", "settled"),
    [(LATE, 19, "1h", 0), (LATE, 21, "1h", 1), (LATE, 19, "0s", 1), (BACKFILLED, 1, "1h", 1)],
)
def test_a_window_listed_while_a_pane_may_be_on_its_way(written, writer, minutes, lateness, settled):
    """It is corrected, and stays listed until the pane has arrived. One that counts less changes nothing."""
    name, schema = written
    hours, now_us = schema.tiers[0], time.time_ns() // 1000
    write(name, [work_row(hours, "a", T, listing(writer, now_us - n * MINUTE)) for n in (minutes, 60)])
    pane = aggregates(schema, [Event("a", T, {"t": 1.0}, {})])[0]  # as if one of the readings had come later
    put(name, [pane])
    findings, sums = repaired(name, "--listed", "--allowed-lateness", lateness)
    assert sums["wrong"] > 0, findings
    assert sums["work_list"] == {"settled": settled, "left": 1 - settled}
    told = "1 window listed by a job in the last 20 minutes"
    assert (told in run(name, "--listed", "--allowed-lateness", lateness).stdout) != settled
    write(name, [pane])  # it arrives
    assert repaired(name, "--listed", "--allowed-lateness", "0s")[1]["wrong"] == 0


def test_a_window_listed_after_the_list_was_read(written, monkeypatch):
    """It stays listed by the later listing, even if that comes before the repair begins with the window."""
    name, schema = written
    first, second = (listing(LATE, time.time_ns() // 1000 - n * MINUTE) for n in (30, 1))
    write(name, [work_row(schema.tiers[0], "a", T, first)])
    carry_out = job.carry_out

    def later(*arguments):
        write(name, [work_row(schema.tiers[0], "a", T, second)])
        return carry_out(*arguments)

    monkeypatch.setattr(job, "carry_out", later)
    repaired(name, "--listed")
    assert rows_of(name)[work_key(HOURLY, "a", T)] == work_row(schema.tiers[0], "a", T, second).cells


def test_windows_that_a_job_may_still_write(bigtable):
    """Repair skips and reports them, and leaves them listed, unless no job is running or --include-unsettled is set."""
    name, schema = table_of()
    now_us = time.time_ns() // 1000
    first = DAILY.start_of(now_us) - 3 * DAY
    given = events(4, ("a",), first)
    write(name, [*raw_rows(schema, given), *(work_row(schema.tiers[0], "a", first + n * DAY) for n in range(3))])
    kept = "--allowed-lateness", "1d"
    around = ("--from", format_time(first), "--to", format_time(first + 3 * DAY), *kept)
    _, sums = repaired(name, *around, "--dry-run")
    first_hour = HOURLY.start_of(now_us - DAY - 21 * MINUTE)
    first_day = DAILY.start_of(now_us - DAY - 21 * MINUTE)
    end = first + 3 * DAY
    assert sums["skipped"] == [
        {
            "window": window,
            "reason": "still open",
            "from": format_time(open_us),
            "to": format_time(end),
            "windows": (end - open_us) // length,
        }
        for window, open_us, length in (("1h", first_hour, HOUR), ("1d", first_day, DAY))
    ]
    text = run(name, *around, "--dry-run").stdout
    assert "still open: a running job may still write them; pass its --allowed-lateness and --late-firing" in text
    open_days = sums["skipped"][1]["windows"]
    assert repaired(name, "--listed", *kept)[1]["work_list"] == {"settled": 3 - open_days, "left": open_days}
    _, sums = repaired(name, *around, "--allowed-lateness", "0s")
    assert sums["skipped"] == []
    assert sums["work_list"] == {"settled": open_days, "left": 0}
    assert repaired(name, *around, "--include-unsettled")[1]["checked"] == 3 * 9


def test_an_audit_that_checks_nothing_fails(bigtable):
    """The window in progress is skipped even if no job runs; the line names --include-unsettled, which includes it. A
    dry run that checked nothing says so, with exit code 1, whatever the cause."""
    name, schema = table_of("tiers = { 1h = 'hours' }")
    hour = HOURLY.start_of(time.time_ns() // 1000)
    write(name, raw_rows(schema, [Event("a", hour, {"t": 1.0}, {})]))
    around = ("--from", format_time(hour), "--to", format_time(hour + 2 * HOUR), "--dry-run", "--allowed-lateness=0s")
    result = run(name, *around)
    assert result.exit_code == 1
    assert re.search(
        "skipped, for each sensor: .* of 1h .* have not ended yet; --include-unsettled includes them", result.stdout
    )
    assert "0 windows checked" in result.stdout
    assert result.stderr == "nothing was checked: all windows of the range were skipped\n"
    forced = run(name, *around, "--include-unsettled")
    assert "\n1 window checked, 1 wrong, nothing written\n" in forced.stdout
    within = run(name, "--from", format_time(hour + MINUTE), "--to", format_time(hour + 2 * MINUTE), "--dry-run")
    assert within.exit_code == 1
    assert within.stderr == "nothing was checked: no window that lies entirely between --from and --to has rows\n"
    assert run(name, "--listed", "--dry-run").exit_code == 0
    write(name, [work_row(schema.tiers[0], "a", hour)])
    listed = run(name, "--listed", "--dry-run")
    assert listed.exit_code == 1
    assert "nothing was checked: a running job may still write the listed windows" in listed.stderr


def test_a_listed_window_in_progress(bigtable):
    """It stays listed while a job may write it, which is told; without a job, it is settled."""
    name, schema = table_of("tiers = { 1h = 'hours', 1d = 'days' }")
    now_us = time.time_ns() // 1000
    today_us = DAILY.start_of(now_us)
    write(name, [*raw_rows(schema, [Event("a", now_us, {"t": 1.0}, {})]), work_row(schema.tiers[0], "a", today_us)])
    result = run(name, "--listed")
    assert "work list: 0 windows settled, 1 left\n" in result.stdout
    assert f"may still write 1 listed window, or a longer one around it, until {format_time(today_us + DAY)}" in (
        result.stdout
    )
    findings, sums = repaired(name, "--listed", "--allowed-lateness", "0s")
    assert {each["window"] for each in findings} == {"1h", "1d"}
    assert sums["work_list"] == {"settled": 1, "left": 0}


def test_windows_that_may_be_collected(bigtable):
    """Repair skips and reports windows whose raw rows may be collected in part."""
    name, schema = table_of()
    now_us = time.time_ns() // 1000
    today = DAILY.start_of(now_us)
    given = events(9, ("a",), today - 12 * DAY)
    write(name, [*aggregates(schema, given), work_row(schema.tiers[0], "a", today - 11 * DAY)])
    actual, wanted = parse_policy("never"), parse_policy("maxage=10d || maxversions=3")
    tables.apply(name, [tables.Difference("raw", actual, wanted)])
    around = ("--from", format_time(today - 12 * DAY), "--to", format_time(today - 3 * DAY))
    _, sums = repaired(name, *around)
    assert [(each["window"], each["reason"], each["windows"]) for each in sums["skipped"]] == [
        ("1h", "may be collected", (now_us - today) // HOUR + 1 + 3 * 24),
        ("1d", "may be collected", 4),
    ]
    assert sums["skipped"][1]["to"] == format_time(today - 8 * DAY)
    # Late in the day, no hour of the last day with events is left to be audited; before, some are deleted.
    last_us = today - 9 * DAY + ((now_us - today) // HOUR + 1) * HOUR
    in_part = any(last_us <= each.event_time_us < today - 8 * DAY for each in given)
    assert sums["longer"]["left"] == in_part
    assert sums["work_list"] == {"settled": 0, "left": 1 + in_part}
    left = [key for key in rows_of(name) if key.startswith(b"agg#daily")]
    assert left == [aggregate_key(DAILY, "a", today - n * DAY) for n in (12, 11, 10, 9)]
    assert repaired(name, *around, "--include-unsettled")[1]["wrong"] > 0
    assert not [key for key in rows_of(name) if key.startswith(b"agg#")]


@pytest.mark.parametrize(("once", "now"), [("maxage=2d", "never"), ("maxage=12h", "maxage=12h")])
def test_a_listed_window_whose_row_stays(bigtable, once, now):
    """It is repaired before it is removed, however soon its row expires under this policy or another."""
    name, schema = table_of("tiers = { 1h = 'hours' }")
    start_us = HOURLY.start_of(time.time_ns() // 1000) - 5 * HOUR
    given = [Event("a", start_us + n * MINUTE, {"t": 1.0}, {}) for n in range(3)]
    write(name, [*raw_rows(schema, given), *aggregates(schema, given[:2]), work_row(schema.tiers[0], "a", start_us)])
    write_schema(name, replace(schema, policies={"hours": parse_policy(once)}), read_stored(name).text)
    tables.apply(name, [tables.Difference("hours", parse_policy("never"), parse_policy(now))])
    findings, sums = repaired(name, "--listed", "--allowed-lateness", "0s")
    assert [each["problem"] for each in findings] == ["differs"]
    assert sums["work_list"] == {"settled": 1, "left": 0}
