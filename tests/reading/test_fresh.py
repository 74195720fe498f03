"""``tidetable read aggregates`` of open windows and of gaps, and ``read chart-points``."""

import json
import time

import pytest

from pipeline.cloud.tables.retention_notes import record_added_tiers
from pipeline.core.events.event import Event
from pipeline.core.notation.times import format_time
from tests.reading.running import run
from tests.serve.serving import table_of
from tests.support.tables import raw_row, write

MINUTE, HOUR = 60_000_000, 3_600_000_000
NOW = time.time_ns() // 1000
START = NOW - NOW % HOUR - 3 * HOUR
ADDED = '[tiers]\n1m = "minutes"\n1h = "stats"\n[statistics]\n"*" = ["first", "last", "min", "max", "avg"]\n'
RANGE = ["--from", format_time(START - HOUR), "--to", format_time(NOW)]


@pytest.fixture(scope="module")
def table(bigtable):
    """Four readings an hour, of which aggregate rows count those of closed windows, without the second hour."""
    events = [
        Event("a", START + n * 15 * MINUTE, {"t": float(n)}, {})
        for n in range((NOW - START) // (15 * MINUTE) + 1)
        if not 4 <= n < 8
    ]
    name = table_of([event for event in events if event.event_time_us < NOW - NOW % HOUR])
    write(name, map(raw_row, events))
    return name, events


def windows(result):
    assert result.exit_code == 0, result.output
    return {
        (record["window_start"], record["reading_count"]): record
        for record in map(json.loads, result.stdout.splitlines())
    }


def test_open_windows(table):
    """With --fresh, windows that no aggregate row closes yet are computed from raw rows."""
    name, events = table
    closed = windows(run(name, "aggregates", "a", *RANGE, "--format=json"))
    fresh = windows(run(name, "aggregates", "a", *RANGE, "--fresh", "--format=json"))
    now_open = [event for event in events if event.event_time_us >= NOW - NOW % HOUR]
    assert list(fresh) == [*closed, (format_time(NOW - NOW % HOUR), len(now_open))]
    assert list(fresh.values())[-1]["metrics"]["t"]["sum"] == sum(event.readings["t"] for event in now_open)


def test_gaps(table):
    """A window without a row is printed, and marked in JSON."""
    name, _ = table
    found = windows(run(name, "aggregates", "a", *RANGE, "--fill", "linear", "--format=json"))
    gaps = {start: record for (start, _), record in found.items() if record.get("filled")}
    assert list(gaps)[:2] == [format_time(START - HOUR), format_time(START + HOUR)]
    assert gaps[format_time(START + HOUR)]["metrics"]["t"] == {"count": 0, "min": 4.0, "max": 7.0, "avg": 5.5}
    assert gaps[format_time(START - HOUR)]["metrics"] == {}
    lines = run(name, "aggregates", "a", *RANGE, "--fill", "null").stdout.splitlines()
    assert any(line.split()[:2] == [format_time(START + HOUR), "0"] for line in lines)
    assert ",True," in run(name, "aggregates", "a", *RANGE, "--fill", "null", "--format", "csv").stdout


def test_too_many_gaps(table):
    """More gaps than can be filled are refused with their number."""
    name, _ = table
    result = run(name, "aggregates", "a", "--from", "2000-01-01", "--to", "2026-01-01", "--fill", "null")
    assert result.exit_code == 2
    assert "more than 100,000 windows of 1h, too many to fill their gaps" in result.stderr


def test_points(table):
    """A short range prints every reading."""
    name, events = table
    result = run(name, "chart-points", "a", "--metric", "t", *RANGE, "--format=json")
    assert [json.loads(line)["readings"]["t"] for line in result.stdout.splitlines()] == [
        event.readings["t"] for event in events
    ]
    assert f"{len(events)} points from raw rows" in result.stderr
    assert "the picture of all readings in columns of" in result.stderr
    assert (
        len(
            run(
                name, "chart-points", "a", "--metric", "t", *RANGE, "--max-points", "4", "--format=json"
            ).stdout.splitlines()
        )
        <= 4
    )
    assert "a has no u in this range" in run(name, "chart-points", "a", "--metric", "u", *RANGE).stderr


def test_a_tier_that_was_added_later(table):
    """Standard error tells from when on windows are there; points come from raw rows before that."""
    name = table_of([Event("a", START + n * MINUTE, {"t": float(n)}, {}) for n in range(180)], ADDED)
    record_added_tiers(name, ["minutes"])
    asked = ["--from", format_time(START), "--to", format_time(START + 2 * HOUR)]
    lost = f"windows before {format_time(START + 2 * HOUR)} may be missing: collected, or older than their tier"
    for more in [], ["--fill", "null"], ["--fresh"]:
        assert run(name, "aggregates", "a", *asked, "--tier", "1m", *more).stderr.endswith(lost + "\n")
    assert run(name, "aggregates", "a", *asked, "--tier", "1h").stderr == ""
    drawn = run(name, "plot", "a", "--metric", "t", *asked, "--format=json")
    assert drawn.stderr == f"drawn: 120 windows of 1m, the shortest that the table has; 120 events; {lost}\n"
    points = run(name, "chart-points", "a", "--metric", "t", *asked)
    assert "from raw rows, 240 rows read: the picture of all readings" in points.stderr
