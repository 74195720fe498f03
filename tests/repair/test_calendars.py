"""Repairs of tiers that do not nest: days, weeks and months of time zones, across a change of clocks."""

import json

import pytest

from pipeline.core.completion.work_list import work_row
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.aggregate_rows import aggregate_key, aggregate_row
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.repair import scope
from tests.repair.tables import (
    DAY,
    aggregates,
    assert_right,
    delete_rows,
    events,
    put,
    raw_rows,
    repaired,
    rows_of,
    run,
    table_of,
    write,
)

TIERS = (
    "tiers = { 30m = 'halves', 1d = 'days', '1d@Europe/Berlin' = 'berlin', '1w@Europe/Berlin' = 'weeks', "
    "'1mo@Asia/Kolkata' = 'months' }"
)
T = parse_time("2026-03-28T00:00Z")
GIVEN = events(days=6, sensors=("a", "b"), start=T)  # Berlin's day of 23 hours, and a change of weeks and of months
MONTHS = "--from", "2026-02-20", "--to", "2026-05-10"


@pytest.fixture
def table(bigtable):
    """A table in which every aggregate is right."""
    name, schema = table_of(TIERS)
    write(name, [*raw_rows(schema, GIVEN), *aggregates(schema, GIVEN)])
    return name, schema


def spoil(name, schema):
    """Spoils a window of each tier, none of which contains another. Returns their windows and starts."""
    wrong = WindowStats()
    wrong.add({"t": 1e6})
    times = [T, T + DAY, T + DAY, T + 4 * DAY, T]
    starts = [tier.window.start_of(time_us) for tier, time_us in zip(schema.tiers, times, strict=True)]
    rows = [
        aggregate_row(tier.window, "a", start_us, wrong, tier.family)
        for tier, start_us in zip(schema.tiers, starts, strict=True)
    ]
    put(name, rows[:-1])
    months = schema.tiers[-1].window
    delete_rows(name, [aggregate_key(months, "a", starts[-1])])
    return {
        (tier.window.text, tier.window.shown(start_us)) for tier, start_us in zip(schema.tiers, starts, strict=True)
    }


@pytest.mark.parametrize("slice_bytes", [pytest.param(scope.SLICE_BYTES, marks=pytest.mark.exhaustive), 20_000])
def test_each_window_is_compared_once(table, monkeypatch, slice_bytes):
    """Repair checks every window of every tier once, in one slice or many, and rewrites those that are wrong."""
    monkeypatch.setattr(scope, "SLICE_BYTES", slice_bytes)
    name, schema = table
    assert repaired(name, *MONTHS)[1]["checked"] == len(aggregates(schema, GIVEN))
    spoilt = spoil(name, schema)
    findings, sums = repaired(name, *MONTHS)
    assert {(each["window"], each["start"]) for each in findings} == spoilt
    assert (sums["wrong"], sums["rewritten"]) == (5, 5)
    assert ("1d@Europe/Berlin", "2026-03-29T00:00:00+01:00") in spoilt
    assert ("1mo@Asia/Kolkata", "2026-03-01T00:00:00+05:30") in spoilt
    assert_right(name, schema, GIVEN)


def test_the_work_list(table):
    """A listed window is settled when the windows of all tiers around it are; other sensors' stay as they are."""
    name, schema = table
    spoil(name, schema)
    halves = schema.tiers[0]
    write(name, [work_row(halves, "a", time_us) for time_us in (T, T + DAY, T + 4 * DAY)])
    findings, sums = repaired(name, "--listed")
    assert len(findings) == sums["wrong"] == sums["rewritten"] == 5
    assert sums["work_list"] == {"settled": 3, "left": 0}
    assert not [key for key in rows_of(name) if key.startswith(b"repair#")]
    assert_right(name, schema, GIVEN)


def test_a_range_that_ends_within_a_month(table):
    """A listed window is settled although the range has a part of a month around it: the month follows its days."""
    name, schema = table
    write(name, [work_row(schema.tiers[0], "a", T + DAY)])
    weeks = "--from", "2026-03-20", "--to", "2026-04-10"
    assert repaired(name, *weeks, "--dry-run")[1]["work_list"] == {"settled": 0, "left": 1}
    assert repaired(name, *weeks)[1]["work_list"] == {"settled": 1, "left": 0}


def test_foreign_rows_are_listed_once(table):
    """A foreign row makes the windows around it stay as they are, in every tier, and its own is listed once."""
    name, schema = table
    (raw,) = schema.rows(GIVEN[10])
    write(name, [raw._replace(cells=[cell._replace(value=b"?") for cell in raw.cells if cell.family == "raw"])])
    result = run(name, "--format=json", *MONTHS)
    assert result.exit_code == 1
    sums = json.loads(result.stdout.splitlines()[-1])
    assert sums["foreign"] == {"rows": 1, "windows": len(schema.tiers)}
    assert sums["work_list"] == {"settled": 0, "left": 1}
