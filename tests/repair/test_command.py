"""``tidetable repair`` against the emulator: what it finds, repairs and skips."""

import json
import os
import pty
import re
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from dataclasses import replace

import pytest
from click.testing import CliRunner
from google.cloud.bigtable import data

from pipeline.cli.root import main
from pipeline.cloud import tables
from pipeline.cloud.names import TableName
from pipeline.cloud.reader import SensorTable
from pipeline.cloud.row_reader import RowReader
from pipeline.cloud.schema_store import read_stored, write_schema
from pipeline.core.aggregates import aggregate_key, aggregate_row
from pipeline.core.events import Event
from pipeline.core.rows import Cell, KeyRange, Row
from pipeline.core.schema.policies import parse_policy
from pipeline.core.schema.toml import parse_schema
from pipeline.core.stats import WindowStats
from pipeline.core.times import format_time, parse_time
from pipeline.core.windows import DAILY, HOURLY, Window
from pipeline.core.work_list import work_key, work_row
from pipeline.repair import run as job
from tests.lasting import lasting

T = parse_time("2026-02-17T00:00:00Z")
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = HOURLY.length_us
DAY = DAILY.length_us
SENSORS = ("a", "a-1", "b")
BOTH_TIERS = "tiers = { 1h = 'hours', 1d = 'days' }\n"
TWO_DAYS = ("--from", "2026-02-17", "--to", "2026-02-19")


def table_of(text=BOTH_TIERS):
    name = TableName("test-project", "test-instance", f"t-{uuid.uuid4().hex[:12]}")
    schema = parse_schema(text)
    assert tables.create(name, lasting(schema))
    return name, schema


def write(name, rows):
    entries = [
        data.RowMutationEntry(
            row.key, [data.SetCell(cell.family, cell.qualifier, cell.value, cell.timestamp_us) for cell in row.cells]
        )
        for row in rows
    ]
    with data.BigtableDataClient(project=name.project) as client:
        client.get_table(name.instance, name.table).bulk_mutate_rows(entries)


def rows_of(name):
    """Returns the whole table, without its schema: key to cells, with times and versions."""
    with RowReader.open(name) as reader:  # the emulator has families in no order
        rows = reader.read(KeyRange(b"", b""))
        return {row.key: sorted(row.cells) for row in rows if not row.key.startswith(b"schema#")}


def events(days=2, sensors=SENSORS, start=T):
    """An event every three hours, with sums whose last digits depend on the order of addition."""
    return [
        Event(
            sensor,
            start + n * 3 * HOUR + n * MINUTE,
            {"t": 20.1 + n / 7, "wind": 0.1 * n},
            {"location": f"l-{sensor}", "model": "m"},
            f"id-{n}",
        )
        for sensor in sensors
        for n in range(days * 8)
    ]


def aggregates(schema, given):
    """The aggregate rows of these events, added in reverse order."""
    stats = defaultdict(WindowStats)
    for event in reversed(given):
        for tier in schema.tiers:
            stats[tier, event.sensor_id, tier.window.start_of(event.event_time_us)].add(event.readings)
    return [
        aggregate_row(tier.window, sensor, start_us, of, tier.family) for (tier, sensor, start_us), of in stats.items()
    ]


def run(name, *arguments):
    which = ["--project", name.project, "--instance", name.instance, "--table", name.table]
    return CliRunner().invoke(main, ["repair", *which, *arguments])


def repaired(name, *arguments):
    """Runs a repair, and returns its findings and totals."""
    result = run(name, "--json", *arguments)
    assert result.exit_code == (1 if "--dry-run" in arguments and '"wrong": 0' not in result.stdout else 0), (
        result.output,
        result.exception,
    )
    *findings, sums = map(json.loads, result.stdout.splitlines())
    return findings, sums


def raw_rows(schema, given):
    return [row for event in given for row in schema.rows(event)]


def assert_right(name, schema, given):
    """Every aggregate of every tier exists, and matches the events."""
    expected = {(row.key, cell.qualifier): cell.value for row in aggregates(schema, given) for cell in row.cells}
    stored = {
        (key, cell.qualifier): cell.value
        for key, cells in rows_of(name).items()
        if key.startswith(b"agg#")
        for cell in cells
    }
    assert stored.keys() == expected.keys()
    for where, value in stored.items():
        assert float(value) == pytest.approx(float(expected[where]), rel=1e-9, abs=1e-12), where


@pytest.fixture
def written(bigtable):
    """A table of hours and days in which every aggregate is right."""
    name, schema = table_of()
    write(name, [*raw_rows(schema, events()), *aggregates(schema, events())])
    return name, schema


def test_a_table_that_is_right(written):
    """Repair finds and writes nothing; a sum may differ by the order of addition."""
    name, _ = written
    before = rows_of(name)
    findings, sums = repaired(name, *TWO_DAYS)
    assert findings == []
    assert sums == {
        "table": str(name),
        "checked": 3 * 2 * (8 + 1),
        "wrong": 0,
        "rewritten": 0,
        "dry_run": False,
        "foreign": {"rows": 0, "windows": 0},
        "skipped": [],
        "work_list": {"settled": 0, "left": 0},
    }
    assert rows_of(name) == before


def spoil(name, schema):
    """One hour that counted twice, one that is missing, one without raw rows, one with a stale column, a wrong day."""
    given = events()
    twice = WindowStats()
    for _ in range(2):
        twice.add(given[0].readings)
    stale = WindowStats()
    stale.add({**given[1].readings, "ghost": 1.0})
    nothing = WindowStats()
    nothing.add({"t": 1.0})
    hours, days = schema.tiers
    write(
        name,
        [
            aggregate_row(HOURLY, "a", T, twice, hours.family),
            aggregate_row(HOURLY, "a", HOURLY.start_of(given[1].event_time_us), stale, hours.family),
            aggregate_row(HOURLY, "a", T + HOUR, nothing, hours.family),
            aggregate_row(DAILY, "b", T + DAY, twice, days.family),
        ],
    )
    with data.BigtableDataClient(project=name.project) as client:
        key = aggregate_key(HOURLY, "b", T)
        client.get_table(name.instance, name.table).mutate_row(key, data.DeleteAllFromRow())


WRONG = [
    ("a", "1h", "2026-02-17T00:00:00Z", "differs"),
    ("a", "1h", "2026-02-17T01:00:00Z", "no raw rows"),
    ("a", "1h", "2026-02-17T03:00:00Z", "differs"),
    ("b", "1h", "2026-02-17T00:00:00Z", "no aggregate row"),
    ("b", "1d", "2026-02-18T00:00:00Z", "differs"),
]


def of(findings):
    return [(each["sensor_id"], each["window"], each["start"], each["problem"]) for each in findings]


def test_wrong_rows_are_found_and_repaired(written):
    """Repair reports every kind of wrong row with stored and recomputed values, and rewrites it for good."""
    name, schema = written
    spoil(name, schema)
    findings, sums = repaired(name, *TWO_DAYS)
    assert sorted(of(findings)) == sorted(WRONG)
    assert (sums["checked"], sums["wrong"], sums["rewritten"]) == (3 * 2 * 9 + 1, 5, 5)
    by_start = {(each["sensor_id"], each["start"], each["window"]): each["differences"] for each in findings}
    assert by_start["a", "2026-02-17T00:00:00Z", "1h"] == {
        name: {"stored": 2 * value, "recomputed": value}
        for name, value in [
            ("count_t", 1), ("count_wind", 1), ("reading_count", 1), ("sum_t", 20.1),
        ]
    }  # fmt: skip
    ghost = by_start["a", "2026-02-17T03:00:00Z", "1h"]
    assert set(ghost) == {f"{statistic}_ghost" for statistic in ("count", "sum", "min", "max", "avg", "stddev")}
    assert ghost["sum_ghost"] == {"stored": 1.0, "recomputed": None}
    assert_right(name, schema, events())
    after = rows_of(name)
    assert repaired(name, *TWO_DAYS)[0] == []
    assert rows_of(name) == after


def test_a_dry_run_writes_nothing(written):
    """A dry run finds the same, exits with code 1, and changes no cell, nor the work list."""
    name, schema = written
    spoil(name, schema)
    write(name, [work_row(schema.tiers[0], "a", T)])
    before = rows_of(name)
    findings, sums = repaired(name, *TWO_DAYS, "--dry-run")
    assert sorted(of(findings)) == sorted(WRONG)
    assert (sums["wrong"], sums["rewritten"], sums["work_list"]) == (5, 0, {"settled": 0, "left": 1})
    assert rows_of(name) == before


def test_for_people(written):
    """Text output has a line for each finding, and ends with a summary."""
    name, schema = written
    spoil(name, schema)
    lines = run(name, *TWO_DAYS, "--dry-run").stdout.splitlines()
    assert lines[0] == (
        "a 1h 2026-02-17T00:00:00Z differs: reading_count 2 -> 1, count_t 2 -> 1, count_wind 2 -> 1 and 1 more"
    )
    assert "a 1h 2026-02-17T01:00:00Z no raw rows" in lines
    assert any(
        line.startswith("b 1h 2026-02-17T00:00:00Z no aggregate row: reading_count nothing -> 1") for line in lines
    )
    assert lines[-1] == "55 windows checked, 5 wrong, nothing written"
    result = run(name, *TWO_DAYS)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1] == "55 windows checked, 5 wrong, 5 rewritten"


def test_only_whole_windows(written):
    """A window that extends beyond the range is skipped, since repair did not read all of its raw rows."""
    name, schema = written
    spoil(name, schema)
    findings, sums = repaired(name, "--from", "2026-02-17T00:30", "--to", "2026-02-18T23:59")
    assert of(findings) == [WRONG[1], WRONG[2]]
    assert sums["checked"] == 3 * 15 + 1  # the hours but the first; the last has no events


def test_one_sensor(written):
    """With --sensor, no other sensor's windows are read or written."""
    name, schema = written
    spoil(name, schema)
    findings, sums = repaired(name, *TWO_DAYS, "--sensor", "b")
    assert sorted(of(findings)) == sorted(wrong for wrong in WRONG if wrong[0] == "b")
    assert sums["checked"] == 2 * 9
    assert repaired(name, *TWO_DAYS)[1]["wrong"] == 3


def test_interrupted_and_run_again(written, monkeypatch):
    """Repaired windows stay repaired, the others stay listed, and a second run repairs the rest."""
    name, schema = written
    spoil(name, schema)
    write(name, [work_row(schema.tiers[0], "a", T), work_row(schema.tiers[0], "b", T + DAY)])
    monkeypatch.setattr(job, "_SLICE_BYTES", 1)  # a slice a day
    with monkeypatch.context() as patched:
        run_one, calls = job.bounded.run, []

        def failing(*arguments):
            calls.append(arguments)
            if len(calls) == 3:  # the second slice: what was rewritten of the first is looked at again
                raise KeyboardInterrupt
            return run_one(*arguments)

        patched.setattr(job.bounded, "run", failing)
        result = run(name, *TWO_DAYS)
    assert result.exit_code == 130
    assert "repaired windows stay repaired" in result.stderr
    assert work_key(HOURLY, "a", T) not in rows_of(name)
    assert work_key(HOURLY, "b", T + DAY) in rows_of(name)
    findings, sums = repaired(name, *TWO_DAYS)
    assert of(findings) == [WRONG[4]]
    assert sums["work_list"] == {"settled": 1, "left": 0}
    assert_right(name, schema, events())


def test_interrupted_in_the_middle_of_a_slice(written, monkeypatch):
    """Rows written before a failure stay right; the next repair rewrites the others."""
    name, schema = written
    spoil(name, schema)
    write(name, [work_row(schema.tiers[0], "a", T)])
    with monkeypatch.context() as patched:
        replace_all = job.Rewriter.replace

        def failing(self, replacements):
            replacements = list(replacements)
            replace_all(self, replacements[:1])
            if len(replacements) > 1:
                raise job.ServerProblem("the server went away")

        patched.setattr(job.Rewriter, "replace", failing)
        result = run(name, *TWO_DAYS)
    assert (result.exit_code, result.stderr) == (1, "Error: the server went away\n")
    assert work_key(HOURLY, "a", T) in rows_of(name)
    findings, sums = repaired(name, *TWO_DAYS)
    assert 0 < len(findings) <= len(WRONG)
    assert sums["work_list"] == {"settled": 1, "left": 0}
    assert_right(name, schema, events())


# Every layout, and keys of every kind: salted, sharded, by metadata, by metric, by time in front of the sensor.
SCHEMAS = {
    "wide": "{sensor_id}#{reverse_us}",
    "wide float64": "shard-{shard:32}#{sensor_id}#{iso_s}",
    "wide by location": "{metadata.location}#{sensor_id}#{time:%Y-%m-%d-%H%M%S}",
    "wide time first": "{reverse_ms}#{sensor_id}",
    "wide by day": "{bucket:1d}#{sensor_id}#{reverse_us}",
    "tall metric first": "{metric}#{sensor_id}#{iso_us}",
    "tall float64": "{salt:2}#{sensor_id}#{reverse_ms}#{metric}",
    "serialized": "{sensor_id}#{reverse_us}",
    "bucket_cells": "{sensor_id}#{bucket:1h}",
    "bucket_columns by location": "{metadata.location}#{sensor_id}#{bucket:1d}#{metric}",
    "bucket_serialized": "{sensor_id}#{bucket:1h}",
}


@pytest.mark.parametrize("kind", SCHEMAS)
def test_every_schema(bigtable, kind, monkeypatch):
    """Every layout gives the same findings and repairs, wherever keys are divided, and with --sensor."""
    layout, _, more = kind.partition(" ")
    name, schema = table_of(
        f"key = '{SCHEMAS[kind]}'\nlayout = '{layout}'\n"
        + ("values = 'float64'\n" if more == "float64" else "")
        + BOTH_TIERS
    )
    raw = raw_rows(schema, events())
    write(name, [*raw, *aggregates(schema, events())])
    spoil(name, schema)
    keys = sorted(rows_of(name))
    monkeypatch.setattr(job, "split_points", lambda _: keys[5::20])
    findings, _ = repaired(name, *TWO_DAYS, "--sensor", "b")
    assert sorted(of(findings)) == sorted(wrong for wrong in WRONG if wrong[0] == "b")
    assert sorted(of(repaired(name, *TWO_DAYS)[0])) == sorted(wrong for wrong in WRONG if wrong[0] == "a")
    assert_right(name, schema, events())
    assert {row.key for row in raw} <= rows_of(name).keys()


@pytest.mark.parametrize(
    "text",
    [
        "key = '{sensor_id}#{reverse_ms}#{event_id}'",
        "key = '{sensor_id}#{reverse_s}#{event_id}'\nlayout = 'serialized'",
        "key = '{metadata.location}#{sensor_id}#{bucket:1h}'\nlayout = 'bucket_cells'",
        "key = '{metadata.location}#{sensor_id}#{reverse_us}#{metric}'\nlayout = 'tall'",
    ],
)
def test_events_of_one_moment(bigtable, text):
    """Events that the table distinguishes count separately: an aggregate of both is right, one of either is wrong."""
    name, schema = table_of(f"{text}\n{BOTH_TIERS}")
    given = [
        event._replace(event_id=event.event_id + place, metadata={"location": place})
        for event in events()
        for place in ("north", "south")
    ]
    write(name, [*raw_rows(schema, given), *aggregates(schema, given)])
    assert repaired(name, *TWO_DAYS)[0] == []
    spoilt = [row for row in aggregates(schema, given[::2]) if row.key == aggregate_key(HOURLY, "a", T)]
    write(name, spoilt)
    assert [finding["start"] for finding in repaired(name, *TWO_DAYS)[0]] == [format_time(T)]
    assert_right(name, schema, given)


@pytest.mark.parametrize("kind", ["wide", "wide time first", "wide by location"])
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
    assert repaired(name, *TWO_DAYS)[1]["wrong"] == 4 * 9


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
    """A time range settles the windows listed in it if it contains their whole day; the rest stay listed."""
    name, schema = written
    hours = schema.tiers[0]
    write(name, [work_row(hours, "a", T), work_row(hours, "a", T + DAY), work_row(hours, "b", T)])
    _, sums = repaired(name, "--from", "2026-02-17", "--to", "2026-02-18T12", "--sensor", "a")
    assert sums["work_list"] == {"settled": 1, "left": 1}
    left = [key for key in rows_of(name) if key.startswith(b"repair#")]
    assert left == [work_key(HOURLY, "a", T + DAY), work_key(HOURLY, "b", T)]


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


def test_windows_that_a_job_may_still_write(bigtable):
    """Repair skips and reports them, and leaves them listed, unless no job is running or --force is set."""
    name, schema = table_of()
    now_us = time.time_ns() // 1000
    first = DAILY.start_of(now_us) - 3 * DAY
    given = events(4, ("a",), first)
    write(name, [*raw_rows(schema, given), *(work_row(schema.tiers[0], "a", first + n * DAY) for n in range(3))])
    kept = "--allowed-lateness", "1d"
    around = ("--from", format_time(first), "--to", format_time(first + 3 * DAY), *kept)
    _, sums = repaired(name, *around, "--dry-run")
    first_hour = HOURLY.start_of(now_us - DAY - 21 * MINUTE)
    first_day = DAILY.start_of(now_us - DAY - HOUR - 22 * MINUTE)
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
    assert repaired(name, *around, "--force")[1]["checked"] == 3 * 9


def test_an_audit_that_checks_nothing_fails(bigtable):
    """The window in progress is skipped even if no job runs; the line names --force, which includes it. A dry run that
    checked nothing says so, with exit code 1, whatever the cause."""
    name, schema = table_of("tiers = { 1h = 'hours' }")
    hour = HOURLY.start_of(time.time_ns() // 1000)
    write(name, raw_rows(schema, [Event("a", hour, {"t": 1.0}, {})]))
    around = ("--from", format_time(hour), "--to", format_time(hour + 2 * HOUR), "--dry-run", "--allowed-lateness=0s")
    result = run(name, *around)
    assert result.exit_code == 1
    assert re.search("skipped, for each sensor: .* of 1h .* have not ended yet; --force includes them", result.stdout)
    assert "0 windows checked" in result.stdout
    assert result.stderr == "nothing was checked: all windows of the range were skipped\n"
    forced = run(name, *around, "--force")
    assert forced.stdout.endswith("\n1 window checked, 1 wrong, nothing written\n")
    within = run(name, "--from", format_time(hour + MINUTE), "--to", format_time(hour + 2 * MINUTE), "--dry-run")
    assert within.exit_code == 1
    assert within.stderr == "nothing was checked: no window that lies entirely between --from and --to has rows\n"
    assert run(name, "--listed", "--dry-run").exit_code == 0
    write(name, [work_row(schema.tiers[0], "a", hour)])
    listed = run(name, "--listed", "--dry-run")
    assert listed.exit_code == 1
    assert "nothing was checked: a running job may still write the listed windows" in listed.stderr


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
    assert sums["work_list"] == {"settled": 0, "left": 1}
    left = [key for key in rows_of(name) if key.startswith(b"agg#daily")]
    assert left == [aggregate_key(DAILY, "a", today - n * DAY) for n in (12, 11, 10, 9)]
    assert repaired(name, *around, "--force")[1]["wrong"] > 0
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


def test_a_report(written, tmp_path):
    """The findings are also in files of the folder, a line of JSON each."""
    name, schema = written
    spoil(name, schema)
    findings, _ = repaired(name, *TWO_DAYS, "--report", str(tmp_path))
    (file,) = tmp_path.iterdir()
    assert sorted(of(map(json.loads, file.read_text().splitlines()))) == sorted(of(findings))


def test_many_slices_are_the_same(written, monkeypatch):
    """One slice or one a day: the findings are the same, once each, in time order."""
    name, schema = written
    spoil(name, schema)
    monkeypatch.setattr(job, "_SLICE_BYTES", 1)
    findings, sums = repaired(name, *TWO_DAYS, "--dry-run")
    assert of(findings) == WRONG
    assert sums["checked"] == 55


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        ([], "choose the windows: pass --from and --to, or --listed"),
        (["--listed", "--from", "2026-02-17"], "omit --from and --to"),
        (["--from", "2026-02-18", "--to", "2026-02-17"], "is not before --to"),
        ([*TWO_DAYS, "--sensor", "a#b"], "can't be a sensor's id"),
        ([*TWO_DAYS, "--", "--rgion=x"], "unknown argument --rgion=x; did you mean --region?"),
        ([*TWO_DAYS, "--", "--runner=DataflowRunner"], "--region is needed"),
        (
            [*TWO_DAYS, "--", "--runner=DataflowRunner", "--region=europe-west4", "--temp_location=gs://bucket/t",
             "--sdk_container_image=i"],
            "--report is required on Dataflow",
        ),
        ([*TWO_DAYS, "--sensor", "Käller"], "'Käller' can't be a sensor's id: it contains 'ä', and only"),
        ([*TWO_DAYS, "--allowed-lateness", "999999999d"], "'999999999d' is longer than 36500d"),
    ],
)  # fmt: skip
def test_wrong_usage(bigtable, arguments, reported):
    """Wrong usage is one line on standard error, and exit code 2."""
    result = run(TableName("test-project", "test-instance", "none"), *arguments)
    assert result.exit_code == 2
    assert reported in result.stderr


def test_problems_are_one_line(bigtable):
    """A missing table, or one without tiers."""
    none = TableName("test-project", "test-instance", "none")
    result = run(none, *TWO_DAYS)
    assert (result.exit_code, result.stderr) == (1, f"Error: {none.is_missing}\n")
    name, _ = table_of("[tiers]")
    result = run(name, *TWO_DAYS)
    assert result.exit_code == 1
    assert result.stderr.endswith("has no aggregates to repair: its schema has no tiers\n")


ODD_KEYS = [
    b"!",
    b"a",
    b"a#",
    b"a#8228",
    b"a-1#x",
    b"b#9",
    b"not#ours",
    b"user-7",
    b"zzz",
    b"\xff\xfe",
    b"agg",
    "ü#1".encode(),
]
ODD_WINDOWS = [
    b"agg#hourly#a#",
    b"agg#hourly##2026-02-17T00",
    b"agg#hourly#a#2026-2-17T1",
    b"agg#daily#a#x",
    b"agg#hourly#a-0",
]
ODD_LISTED = [b"repair#hourly#a#", b"repair#hourly#x", b"repair#hourly#z#2026-02-17T00:30"]


def test_foreign_rows(written):
    """Foreign rows are named, counted and left alone, with their windows; all other windows are repaired."""
    name, schema = written
    hours = schema.tiers[0]
    given = events()
    spoil(name, schema)
    odd = given[9]  # the second event of a's second day
    (odd_row,) = schema.rows(odd)
    odd_hour = HOURLY.start_of(odd.event_time_us)
    foreign = [
        Row(odd_row.key, [Cell("raw", b"t", odd.event_time_us, b"\0\0\0\0\0\0\0\7")]),
        *(Row(key, [Cell("raw", b"t", 0, b"1")]) for key in ODD_KEYS),
        *(Row(key, [Cell(hours.family, b"reading_count", 0, b"1")]) for key in [*ODD_WINDOWS, *ODD_LISTED]),
    ]
    write(name, foreign)
    wrong = {"reading_count": b"inf", "count_t": b"-1", "stddev_t": b"1e200", "x" * 300: b"1"}
    # Odd cells under a key of ours are a wrong row, which raw rows make right.
    write(name, [Row(aggregate_key(HOURLY, "b", T + 3 * HOUR), [
        Cell(hours.family, column.encode(), T + 3 * HOUR, value) for column, value in wrong.items()
    ])])  # fmt: skip
    write(name, [work_row(hours, "a", T), work_row(hours, "a", odd_hour)])
    before = rows_of(name)
    result = run(name, *TWO_DAYS, "--json")
    *found, sums = map(json.loads, result.stdout.splitlines())
    assert result.exit_code == 1
    assert result.stderr.count(" is not one of this schema: ") == 3
    assert result.stderr.endswith(f"foreign rows left alone: {sums['foreign']['rows']}\n")
    seen = [*ODD_WINDOWS[:3], *ODD_LISTED]
    assert len(seen) < sums["foreign"]["rows"] <= len(foreign)
    untouched = [each for each in found if each["problem"] == "foreign raw rows"]
    assert of(untouched) == [
        ("a", "1d", "2026-02-18T00:00:00Z", "foreign raw rows"),
        ("a", "1h", format_time(odd_hour), "foreign raw rows"),
    ]
    assert sums["foreign"]["windows"] == 2
    assert sorted(of(each for each in found if each not in untouched)) == sorted(
        [*WRONG, ("b", "1h", "2026-02-17T03:00:00Z", "differs")]
    )
    assert sums["work_list"] == {"settled": 1, "left": 1}
    after = rows_of(name)
    left = [row.key for row in foreign]
    left += [aggregate_key(HOURLY, "a", odd_hour), aggregate_key(DAILY, "a", T + DAY), work_key(HOURLY, "a", odd_hour)]
    assert {key: after[key] for key in left} == {key: before[key] for key in left}
    assert work_key(HOURLY, "a", T) not in after
    # All others are right; and where the foreign cell is put right, so is its window.
    again = run(name, *TWO_DAYS, "--json", "--dry-run")
    assert json.loads(again.stdout.splitlines()[-1])["wrong"] == 0
    assert again.exit_code == 1
    write(name, [odd_row])
    result = run(name, "--listed", "--json")
    assert json.loads(result.stdout.splitlines()[-1])["work_list"] == {"settled": 1, "left": 0}
    with data.BigtableDataClient(project=name.project) as client:
        client.get_table(name.instance, name.table).bulk_mutate_rows(
            [data.RowMutationEntry(row.key, [data.DeleteAllFromRow()]) for row in foreign[1:]]
        )
    assert repaired(name, *TWO_DAYS)[1]["wrong"] == 0
    assert_right(name, schema, given)


def test_windows_of_foreign_rows_are_listed(written):
    """A window that can't be audited goes on the work list, except in a dry run."""
    name, schema = written
    (row,) = schema.rows(events()[0])
    write(name, [Row(row.key, [Cell("raw", b"x" * 300, T, b"1")])])
    sums = json.loads(run(name, *TWO_DAYS, "--json", "--dry-run").stdout.splitlines()[-1])
    assert sums["work_list"] == {"settled": 0, "left": 0}
    lines = run(name, *TWO_DAYS).stdout.splitlines()
    assert lines == [
        "a 1d 2026-02-17T00:00:00Z foreign raw rows: left as it is",
        "a 1h 2026-02-17T00:00:00Z foreign raw rows: left as it is",
        "52 windows checked, 0 wrong, 0 rewritten",
        "1 foreign row; 2 windows unchanged, since foreign rows may belong to them",
        "work list: 0 windows settled, 1 left",
    ]
    assert rows_of(name)[work_key(HOURLY, "a", T)] == work_row(schema.tiers[0], "a", T).cells
    assert run(name, "--listed", "--json").exit_code == 1
    assert work_key(HOURLY, "a", T) in rows_of(name)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_foreign_rows_of_every_schema(bigtable, kind, monkeypatch):
    """In every layout, a foreign cell leaves the windows of its row untouched, and no others."""
    layout, _, more = kind.partition(" ")
    name, schema = table_of(
        f"key = '{SCHEMAS[kind]}'\nlayout = '{layout}'\n"
        + ("values = 'float64'\n" if more == "float64" else "")
        + BOTH_TIERS
    )
    given = events()
    write(name, raw_rows(schema, given))
    odd = given[9]
    row = schema.rows(odd)[0]
    cell = row.cells[0]
    value, qualifier = (
        (cell.value, b"x" * 300) if layout.startswith("bucket_columns") else (b"\xff\xff", cell.qualifier)
    )
    write(name, [Row(row.key, [cell._replace(qualifier=qualifier, value=value)])])
    write(name, [Row(key, [Cell("raw", b"t", 0, b"1")]) for key in ODD_KEYS])
    keys = sorted(rows_of(name))
    monkeypatch.setattr(job, "split_points", lambda _: keys[5::20])
    result = run(name, *TWO_DAYS, "--json")
    assert result.exit_code == 1
    *found, sums = map(json.loads, result.stdout.splitlines())
    held_up = {
        (each["window"], each["start"])
        for each in found
        if each["problem"] == "foreign raw rows" and each["sensor_id"] == "a"
    }
    assert ("1d", "2026-02-18T00:00:00Z") in held_up
    assert ("1h", format_time(HOURLY.start_of(odd.event_time_us))) in held_up
    assert len(held_up) == 2 or ("{bucket:1d}" in SCHEMAS[kind] and layout.startswith("bucket"))
    assert sums["foreign"]["windows"] == len(held_up)
    left = {aggregate_key(Window.parse(window), "a", parse_time(start)) for window, start in held_up}
    stored = {key for key in rows_of(name) if key.startswith(b"agg#")}
    assert stored == {row.key for row in aggregates(schema, given)} - left


def test_what_it_writes_is_what_readers_read(written):
    """Repaired rows are read like any other."""
    name, schema = written
    spoil(name, schema)
    repaired(name, *TWO_DAYS)
    with SensorTable.open(name.project, name.instance, name.table) as table:
        days = list(table.aggregates("b", T, T + 2 * DAY, tier="1d"))
        assert [day.reading_count for day in days] == [8, 8]
        assert replace(days[0], start_us=0).metrics["wind"].min == 0.0


def test_progress_is_for_a_terminal(written):
    """Progress goes to standard error if it is a terminal; findings still go to standard output."""
    name, schema = written
    spoil(name, schema)
    which = ["--project", name.project, "--instance", name.instance, "--table", name.table]
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from pipeline.cli.root import main; main()", "repair"]
    arguments = [*which, *TWO_DAYS, "--dry-run"]
    finished = subprocess.run(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=theirs, text=True, timeout=60, check=False
    )
    assert finished.returncode == 1
    assert len(finished.stdout.splitlines()) == len(WRONG) + 1
    shown = os.read(ours, 1 << 16).decode(errors="replace")  # a read may end within a character
    os.close(theirs)
    os.close(ours)
    assert "checking" in shown
    assert "differs" not in shown
