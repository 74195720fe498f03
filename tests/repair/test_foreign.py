"""Foreign rows are left alone, with the windows that they may belong to."""

import json

from pipeline.core.completion.work_list import work_key, work_row
from pipeline.core.notation.times import format_time
from pipeline.core.rows.aggregate_rows import aggregate_key, version_us
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.windows import DAILY, HOURLY
from tests.repair.tables import (
    DAY,
    HOUR,
    ODD_KEYS,
    TWO_DAYS,
    WRONG,
    T,
    assert_right,
    delete_rows,
    events,
    of,
    repaired,
    rows_of,
    run,
    spoil,
    write,
)

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
        Cell(hours.family, column.encode(), version_us(T + 3 * HOUR, 3), value) for column, value in wrong.items()
    ])])  # fmt: skip
    write(name, [work_row(hours, "a", T), work_row(hours, "a", odd_hour)])
    before = rows_of(name)
    result = run(name, *TWO_DAYS, "--format=json")
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
    again = run(name, *TWO_DAYS, "--format=json", "--dry-run")
    assert json.loads(again.stdout.splitlines()[-1])["wrong"] == 0
    assert again.exit_code == 1
    write(name, [odd_row])
    result = run(name, "--listed", "--format=json")
    assert json.loads(result.stdout.splitlines()[-1])["work_list"] == {"settled": 1, "left": 0}
    delete_rows(name, [row.key for row in foreign[1:]])
    assert repaired(name, *TWO_DAYS)[1]["wrong"] == 0
    assert_right(name, schema, given)


def test_windows_of_foreign_rows_are_listed(written):
    """A window that can't be audited goes on the work list, except in a dry run."""
    name, schema = written
    (row,) = schema.rows(events()[0])
    write(name, [Row(row.key, [Cell("raw", b"x" * 300, T, b"1")])])
    sums = json.loads(run(name, *TWO_DAYS, "--format=json", "--dry-run").stdout.splitlines()[-1])
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
    assert run(name, "--listed", "--format=json").exit_code == 1
    assert work_key(HOURLY, "a", T) in rows_of(name)
