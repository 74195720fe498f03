"""A repair on this machine scans the table first, and recomputes only the windows that may be wrong."""

import json

import pytest

from pipeline.core.rows.aggregate_rows import aggregate_key, aggregate_row
from pipeline.core.rows.rows import Row
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.core.windows import HOURLY
from pipeline.repair import command, scan
from pipeline.repair import run as job
from tests.repair.tables import (
    DAY,
    HOUR,
    TWO_DAYS,
    WRONG,
    T,
    aggregates,
    assert_right,
    events,
    of,
    put,
    raw_rows,
    repaired,
    rows_of,
    run,
    spoil,
    table_of,
    write,
)


@pytest.fixture
def slices(monkeypatch):
    """The slices that are recomputed."""
    found, inspect = [], job._inspect

    def noting(*arguments):
        found.append(arguments[3])
        return inspect(*arguments)

    monkeypatch.setattr(job, "_inspect", noting)
    return found


def test_what_is_right_is_not_recomputed(written, slices, tmp_path):
    """No pipeline runs, all windows are checked, nothing is written, and the report is a file without lines. A sum may
    differ by the order of addition."""
    name, _ = written
    before = rows_of(name)
    findings, sums = repaired(name, *TWO_DAYS, "--report", str(tmp_path))
    assert (findings, slices) == ([], [])
    assert sums == {
        "table": str(name),
        "checked": 3 * 2 * (8 + 1),
        "wrong": 0,
        "behind": 0,
        "rewritten": 0,
        "longer": {"differ": 0, "rewritten": 0, "left": 0},
        "newest": {"differ": 0, "rewritten": 0},
        "dry_run": False,
        "foreign": {"rows": 0, "windows": 0},
        "skipped": [],
        "work_list": {"settled": 0, "left": 0},
    }
    assert rows_of(name) == before
    (file,) = tmp_path.iterdir()
    assert not file.read_text()


def test_only_days_with_wrong_windows_are_recomputed(written, slices):
    """The day of a sensor whose hour is wrong is recomputed as a whole; no window counts twice."""
    name, schema = written
    twice = WindowStats()
    for _ in range(2):
        twice.add(events()[0].readings)
    put(name, [aggregate_row(HOURLY, "a", T, twice, schema.tiers[0].family)])
    findings, sums = repaired(name, *TWO_DAYS, "--dry-run")
    assert of(findings) == [WRONG[0]]
    assert (sums["checked"], sums["wrong"]) == (3 * 2 * (8 + 1), 1)
    assert [tuple(span) for part in slices for span in part.spans] == [(T, T + DAY, frozenset("a"))]


def test_of_some_sensors(written, slices):
    """Only their windows are scanned."""
    name, schema = written
    spoil(name, schema)
    findings, sums = repaired(name, *TWO_DAYS, "--dry-run", "--sensor", "a-1")
    assert (findings, sums["checked"], slices) == ([], 2 * (8 + 1), [])
    assert of(repaired(name, *TWO_DAYS, "--dry-run", "--sensor", "b")[0]) == WRONG[3:]


def test_too_many_to_name(written, monkeypatch, slices):
    """If most windows may be wrong, all are recomputed, with the same findings."""
    name, schema = written
    spoil(name, schema)
    monkeypatch.setattr(job, "MOST_SUSPECTS", 1)
    findings, sums = repaired(name, *TWO_DAYS, "--dry-run")
    assert (of(findings), sums["checked"], sums["wrong"]) == (WRONG, 55, 5)
    assert [span.sensors for part in slices for span in part.spans] == [None]


def test_in_several_processes(written, monkeypatch, slices):
    """A large table is scanned by ranges of sensors, in as many processes as there are cores."""
    name, schema = written
    spoil(name, schema)
    monkeypatch.setattr(scan, "_LARGE_BYTES", 0)
    monkeypatch.setattr(scan, "split_points", lambda _: [b"a-1#8228", b"a#1", b"agg#hourly#b#2026", b"b#7"])
    monkeypatch.setattr(scan.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(command, "_SAID_EVERY_S", 0)
    result = run(name, *TWO_DAYS, "--dry-run", "--format=json")
    *findings, sums = map(json.loads, result.stdout.splitlines())
    assert (of(findings), sums["checked"], sums["wrong"]) == (WRONG, 55, 5)
    assert "checking: 1 of 5 parts" in result.stderr
    assert len(slices) == 1
    findings, _ = repaired(name, *TWO_DAYS)
    assert of(findings) == WRONG
    assert_right(name, schema, events())


def test_a_row_that_is_no_row(written, slices):
    """A sensor that has one is recomputed as a whole; the other sensors are not."""
    name, schema = written
    foreign = [cell._replace(value=b"warm") for cell in schema.rows(events()[0])[0].cells]
    put(name, [Row(schema.rows(events()[0])[0].key, foreign)])
    stats = WindowStats()
    stats.add({"t": 1.0})
    row = aggregate_row(HOURLY, "b", T + HOUR, stats, schema.tiers[0].family)
    write(name, [Row(row.key, [cell._replace(value=b"") for cell in row.cells])])
    result = run(name, *TWO_DAYS, "--dry-run", "--format=json")
    *findings, sums = map(json.loads, result.stdout.splitlines())
    assert [(each["sensor_id"], each["problem"]) for each in findings] == [
        ("a", "foreign raw rows"),
        ("a", "foreign raw rows"),
        ("b", "no raw rows"),
    ]
    assert sums["foreign"]["rows"] == 1
    assert {each for part in slices for span in part.spans for each in span.sensors} == {"a", "b"}


def test_sensors_with_many_metrics(bigtable, slices):
    """Rows that no block has room for are scanned one by one."""
    name, schema = table_of()
    given = [each._replace(readings={f"m{n}": n / 7 for n in range(80)}) for each in events(1, ("a",))]
    write(name, [*raw_rows(schema, given), *aggregates(schema, given)])
    findings, sums = repaired(name, *TWO_DAYS, "--dry-run")
    assert (findings, sums["checked"], slices) == ([], 8 + 1, [])
    put(name, [Row(aggregate_key(HOURLY, "a", T), aggregates(schema, given[1:2])[0].cells)])
    assert repaired(name, *TWO_DAYS, "--dry-run")[1]["wrong"] == 1
