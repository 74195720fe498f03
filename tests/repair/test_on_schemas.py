"""Repairs of tables of every layout, with keys of every kind."""

import json

import pytest

from pipeline.core.notation.times import format_time, parse_time
from pipeline.core.rows.aggregate_rows import aggregate_key
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.windows import HOURLY, Window
from pipeline.repair import run as job
from tests.repair.tables import (
    BOTH_TIERS,
    ODD_KEYS,
    SCHEMAS,
    TWO_DAYS,
    WRONG,
    T,
    aggregates,
    assert_right,
    delete_rows,
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
from tests.support.exhaustive import cases

KINDS_OF_KEYS = ["wide time first", "bucket_columns by location"]


@pytest.mark.parametrize("kind", cases(list(SCHEMAS), KINDS_OF_KEYS))
def test_every_schema(bigtable, kind, monkeypatch):
    """Every layout gives the same findings and repairs, wherever keys are divided, and with --sensor. A foreign cell
    leaves the windows of its row as they are, and no others."""
    layout, _, more = kind.partition(" ")
    name, schema = table_of(
        f"key = '{SCHEMAS[kind]}'\nlayout = '{layout}'\n"
        + ("values = 'float64'\n" if more == "float64" else "")
        + BOTH_TIERS
    )
    given = events()
    raw = raw_rows(schema, given)
    write(name, [*raw, *aggregates(schema, given)])
    spoil(name, schema)
    odd = given[9]  # the second event of a's second day
    write(name, [foreign_row(layout, schema.rows(odd)[0])])
    write(name, [Row(key, [Cell("raw", b"t", 0, b"1")]) for key in ODD_KEYS])
    of_odd = ("1d", "2026-02-18T00:00:00Z"), ("1h", format_time(HOURLY.start_of(odd.event_time_us)))
    unsure = [aggregate_key(Window.parse(window), "a", parse_time(start)) for window, start in of_odd]
    delete_rows(name, unsure)
    keys = sorted(rows_of(name))
    monkeypatch.setattr(job, "split_points", lambda _: keys[5::20])

    *findings, _ = map(
        json.loads, run(name, *TWO_DAYS, "--sensor", "b", "--dry-run", "--format=json").stdout.splitlines()
    )
    assert sorted(of(wrong(findings))) == sorted(each for each in WRONG if each[0] == "b")
    result = run(name, *TWO_DAYS, "--format=json")
    assert result.exit_code == 1
    *findings, sums = map(json.loads, result.stdout.splitlines())
    assert sorted(of(wrong(findings))) == sorted(WRONG)
    held_up = {(each["window"], each["start"]) for each in findings if each not in wrong(findings)}
    assert held_up.issuperset(of_odd)
    assert len(held_up) == 2 or ("{bucket:1d}" in SCHEMAS[kind] and layout.startswith("bucket"))
    assert sums["foreign"]["windows"] == len(held_up)
    stored = rows_of(name)
    assert {row.key for row in raw} <= stored.keys()
    assert not stored.keys() & set(unsure)
    write(name, [row for row in aggregates(schema, given) if row.key in unsure])
    assert_right(name, schema, given)


def foreign_row(layout, row):
    """Returns the row with a cell that is none of the layout's."""
    cell = row.cells[0]
    if layout.startswith("bucket_columns"):
        return Row(row.key, [cell._replace(qualifier=b"x" * 300)])
    return Row(row.key, [cell._replace(value=b"\xff\xff")])


def wrong(findings):
    return [each for each in findings if each["problem"] != "foreign raw rows"]


@pytest.mark.parametrize(
    "text",
    [
        "key = '{sensor_id}#{reverse_ms}#{event_id}'",
        pytest.param("key = '{sensor_id}#{reverse_s}#{event_id}'\nlayout = 'serialized'", marks=pytest.mark.exhaustive),
        "key = '{metadata.location}#{sensor_id}#{bucket:1h}'\nlayout = 'bucket_cells'",
        pytest.param(
            "key = '{metadata.location}#{sensor_id}#{reverse_us}#{metric}'\nlayout = 'tall'",
            marks=pytest.mark.exhaustive,
        ),
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
    put(name, spoilt)
    assert [finding["start"] for finding in repaired(name, *TWO_DAYS)[0]] == [format_time(T)]
    assert_right(name, schema, given)
