"""The points of a line, against the line through all readings."""

from datetime import timedelta
from itertools import pairwise
from time import time_ns

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pipeline.core.answers.points import PointQuery, points_of
from pipeline.core.completion.work_list import work_row
from pipeline.core.events.event import Event
from pipeline.core.queries.reads import raise_foreign
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.schema.gc_policies import MaxAge, Never
from pipeline.core.schema.retention import FOR_EVER_US, Retention
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.window_stats import WindowStats
from tests.support.exhaustive import examples
from tests.support.memory import Memory

START = 1_700_000_000_000_000 // 3_600_000_000 * 3_600_000_000
SECOND, MINUTE, HOUR = 1_000_000, 60_000_000, 3_600_000_000
TIERS = """
[policies]
raw = "never"

[tiers]
1m = "minutes"
1h = "hours"

[statistics]
"*" = ["first", "last", "min", "max"]
"""
NOTHING = {"": Never()}
SCHEMAS = {
    "raw rows only": '[policies]\nraw = "never"\n',
    "minutes and hours": TIERS,
    "buckets": 'key = "{sensor_id}#{bucket:1h}"\nlayout = "bucket_cells"\n' + TIERS,
    "metric first": 'key = "{sensor_id}#{metric}#{reverse_us}"\nlayout = "tall"\n' + TIERS,
    "time first": 'key = "{iso_us}#{sensor_id}"\n' + TIERS,
}


def pixels(points, start_us, column_us, height=24):
    """Returns the pixels that a line colours: exact spans of values by column, from segments clipped to columns."""
    found = {}

    def colour(column, *values):
        least, greatest = found.get(column, (values[0], values[0]))
        found[column] = min(least, *values), max(greatest, *values)

    for time_us, value in points:
        colour((time_us - start_us) // column_us, value)
    for one, other in pairwise(points):
        # Within a column, pixels depend on the extremes alone; between columns, on the segment that joins them.
        first, last = (one[0] - start_us) // column_us, (other[0] - start_us) // column_us
        for column in range(first, last):
            edge_us = start_us + (column + 1) * column_us
            value = one[1] + (other[1] - one[1]) * (edge_us - one[0]) / (other[0] - one[0])
            colour(column, value)
            colour(column + 1, value)
    return {column: (round(least, 9), round(greatest, 9)) for column, (least, greatest) in found.items()}


def table_of(schema, readings, windows_from_us=0):
    """Returns a table with the raw rows of readings by time, and the aggregate rows of windows from a start on."""
    table = Memory()
    for time_us, value in readings.items():
        for row in schema.rows(Event("s", time_us, {"t": value}, {})):
            table.write(row)
    for tier in schema.tiers:
        windows = {}
        for time_us, value in sorted(readings.items()):
            if tier.window.start_of(time_us) >= windows_from_us:
                windows.setdefault(tier.window.start_of(time_us), []).append((time_us, value))
        for start_us, of_window in windows.items():
            times, values = zip(*of_window, strict=True)
            stats = _plain(values)
            if tier.statistics.has_parts:
                stats = tier.statistics.stats_of(times, {"t": values})
            table.write(aggregate_row(tier.window, "s", start_us, stats, tier.family, tier.statistics))
    table.rows = 0
    return table


def _plain(values):
    stats = WindowStats()
    for value in values:
        stats.add({"t": value})
    return stats


def found(
    schema, table, start_us, end_us, max_points, max_rows=100_000, open_for=timedelta(0), retention=None, **collected
):
    """Returns the points of a table that keeps everything, or has ``collected`` families at an age."""
    query = PointQuery("s", "t", start_us, end_us, max_points, {}, open_for, max_rows)
    retention = retention or Retention.of(schema, {family: MaxAge(age) for family, age in collected.items()} or NOTHING)
    return points_of(schema, retention, table, query, raise_foreign)


@pytest.mark.parametrize("text", SCHEMAS.values(), ids=SCHEMAS)
@settings(max_examples=examples(40), phases=[Phase.generate], deadline=None)
@given(
    # Cells of buckets have times in milliseconds.
    st.dictionaries(
        st.integers(0, 6 * HOUR // 1000 - 1).map(lambda time_ms: time_ms * 1000),
        st.integers(-20, 20).map(float),
        min_size=1,
        max_size=60,
    ),
    st.integers(0, 3 * HOUR),
    st.integers(1, 3 * HOUR),
    st.integers(4, 400),
)
def test_the_line_colours_the_same_pixels(text, readings, offset_us, length_us, max_points):
    """At most the requested points colour the same pixels as all readings do."""
    schema = parse_schema(text)
    readings = {START + time_us: value for time_us, value in readings.items()}
    start_us, end_us = START + offset_us, START + offset_us + length_us
    points = found(schema, table_of(schema, readings), start_us, end_us, max_points)
    everything = [(time_us, value) for time_us, value in sorted(readings.items()) if start_us <= time_us < end_us]
    assert points.exact
    assert len(points.points) <= max_points
    assert list(points.points) == sorted(points.points)
    assert pixels(points.points, points.start_us, points.column_us) == pixels(
        everything, points.start_us, points.column_us
    )
    assert (end_us - points.start_us) / points.column_us <= max_points // 4


DAY_AT_1_HZ = {START + n * SECOND: float((n * 7919) % 1013) for n in range(86_400)}


@pytest.fixture(scope="module")
def day():
    schema = parse_schema(TIERS)
    return schema, table_of(schema, DAY_AT_1_HZ)


@pytest.mark.slow
def test_a_day_at_1_hz_is_read_from_minutes(day):
    """A thousand pixels: at most four thousand points from 1,440 rows, not 86,400."""
    schema, table = day
    points = found(schema, table, START, START + 24 * HOUR, 4000)
    assert (points.source, points.exact, points.column_us) == ("1m", True, 2 * MINUTE)
    assert len(points.points) <= 4000
    assert points.rows_read == 1440
    assert pixels(points.points, START, points.column_us) == pixels(
        sorted(DAY_AT_1_HZ.items()), START, points.column_us
    )


def test_the_longest_windows_that_answer(day):
    """A day is read from its 24 hours if they suffice for the columns."""
    schema, table = day
    assert found(schema, table, START, START + 24 * HOUR, 64).rows_read == 24


def test_zoomed_in_readings_answer(day):
    """A range with fewer readings than points is read from raw rows."""
    schema, table = day
    points = found(schema, table, START, START + 10 * MINUTE, 4000)
    assert (points.source, len(points.points)) == ("raw", 600)
    assert points.rows_read == 600 + 10  # the aggregates counted them first


def test_the_end_of_the_range_is_from_raw_rows():
    """Windows that are still open may have an early row or none."""
    schema = parse_schema(TIERS)
    now_us = time_ns() // 1000
    start_us = now_us - now_us % MINUTE - 30 * MINUTE
    readings = {start_us + n * 10 * SECOND: float(n) for n in range(6 * 30)}
    table = table_of(schema, {time_us: value for time_us, value in readings.items() if time_us < now_us - 5 * MINUTE})
    for time_us, value in readings.items():
        for row in schema.rows(Event("s", time_us, {"t": value}, {})):
            table.write(row)
    points = found(schema, table, start_us, start_us + 31 * MINUTE, 80, open_for=timedelta(minutes=15))
    assert points.source == "1m"
    assert points.points[-1] == (max(readings), readings[max(readings)])


def test_rows_written_before_the_statistics_were_declared(day):
    """Aggregate rows without first and last do not answer; raw rows do."""
    schema, _ = day
    readings = {START + n * SECOND: float(n) for n in range(7200)}
    older = parse_schema(TIERS.replace('"first", "last", ', ""))
    table = table_of(older, readings)
    points = found(schema, table, START, START + 2 * HOUR, 400)
    assert (points.source, points.exact) == ("raw", True)


@pytest.mark.slow
def test_too_many_rows():
    """Aggregates that lack the first and the last reading answer nearly."""
    schema = parse_schema('[policies]\nraw = "never"\n')
    table = table_of(schema, DAY_AT_1_HZ)
    points = found(schema, table, START, START + 24 * HOUR, 4000, max_rows=1000)
    assert (points.source, points.exact) == ("1h", False)
    assert points.rows_read == 24
    assert max(point.value for point in points.points) == 1012
    with pytest.raises(ValueError, match="more than 10 rows in this range"):
        found(schema, table, START, START + 24 * HOUR, 4000, max_rows=10)


HALF_US = START + HOUR
TWO_HOURS = {START + n * SECOND: float((n * 7919) % 1013) for n in range(0, 7200, 10)}
LATER = [
    pytest.param({"added": {"minutes": HALF_US, "hours": HALF_US}}, id="both tiers were added later"),
    pytest.param({"added": {"minutes": HALF_US, "hours": FOR_EVER_US}}, id="no job has written one of them"),
    pytest.param({"since": {"minutes": HALF_US, "hours": HALF_US}}, id="a policy was shorter before"),
]


@pytest.mark.parametrize("columns", [2, 20, 120])
@pytest.mark.parametrize("known", LATER)
def test_a_tier_without_rows_of_the_beginning(known, columns):
    """Raw rows answer for the time before a tier has rows: its first hour here, or all of it."""
    schema = parse_schema(TIERS)
    table = table_of(schema, TWO_HOURS, HALF_US)
    retention = Retention.of(schema, NOTHING, **known)
    points = found(schema, table, START, START + 2 * HOUR, 4 * columns, retention=retention)
    assert (points.exact, points.incomplete_before_us) == (True, None)
    assert pixels(points.points, START, points.column_us) == pixels(TWO_HOURS.items(), START, points.column_us)


@pytest.mark.parametrize("columns", [2, 20, 120])
def test_rows_that_are_gone_though_policies_keep_them(columns):
    """If a policy was shorter for a time and nobody noted it, raw rows answer, or the answer tells what is missing."""
    schema = parse_schema(TIERS)
    table = table_of(schema, TWO_HOURS, HALF_US)
    points = found(schema, table, START, START + 2 * HOUR, 4 * columns)
    assert (points.exact, points.incomplete_before_us) == (True, None)
    assert pixels(points.points, START, points.column_us) == pixels(TWO_HOURS.items(), START, points.column_us)
    few = found(schema, table, START, START + 2 * HOUR, 4 * columns, max_rows=150)
    assert (few.exact, few.incomplete_before_us) == (False, HALF_US)


def test_a_sensor_that_is_younger_than_the_range(day):
    """It has no readings before its first window: windows answer, and looking for readings costs no rows."""
    schema, table = day
    points = found(schema, table, START - 24 * HOUR, START + 24 * HOUR, 4000)
    assert (points.source, points.exact, points.rows_read) == ("1m", True, 1440)


def test_collected_raw_rows_are_no_picture():
    """Neither of the whole range, nor of its ends, which windows leave to them: windows answer, and not exactly."""
    schema = parse_schema(TIERS)
    table = table_of(schema, TWO_HOURS)
    day = timedelta(days=1)
    points = found(schema, table, START, START + 2 * HOUR, 4000, raw=day)
    assert (points.source, points.exact, points.incomplete_before_us) == ("1m", False, None)
    whole = found(schema, table, START, START + 2 * HOUR, 400, raw=day)
    assert (whole.source, whole.exact) == ("1m", True)
    unaligned = found(schema, table, START + SECOND, START + 2 * HOUR, 400, raw=day)
    assert not unaligned.exact
    both = found(schema, table, START, START + 2 * HOUR, 400, raw=day, minutes=day, hours=day)
    assert (both.exact, both.incomplete_before_us) == (False, START + 2 * HOUR)
    unknown = found(schema, table, START, START + 2 * HOUR, 400, retention=Retention.unknown(schema))
    assert not unknown.exact


def test_the_source_with_most_of_the_range_comes_first():
    """A tier that is kept longer answers, however narrow the windows of another are; of these, raw rows."""
    schema = parse_schema(TIERS)
    table = table_of(schema, TWO_HOURS)
    day = timedelta(days=1)
    assert found(schema, table, START, START + 2 * HOUR, 4000, raw=day, minutes=day).source == "1h"
    assert found(schema, table, START, START + 2 * HOUR, 4000, raw=day, minutes=day, hours=day).source == "raw"


@pytest.mark.parametrize("shortest", [0, 1])
def test_a_window_that_awaits_its_repair(shortest):
    """Its row may count too little: raw rows answer, whichever tier was the shortest when it was listed."""
    schema = parse_schema(TIERS)
    table = table_of(schema, TWO_HOURS)
    assert found(schema, table, START, START + 2 * HOUR, 8).source == "1h"
    table.write(work_row(schema.tiers[shortest], "s", START + 90 * MINUTE))
    assert found(schema, table, START, START + 2 * HOUR, 8).source == "raw"


def test_nothing_there():
    """An empty table has no points."""
    assert found(parse_schema(""), Memory(), START, START + HOUR, 4000).points == ()


def test_too_few_points():
    """Fewer than four points cannot show a column, and are refused."""
    with pytest.raises(ValueError, match="max_points is 3"):
        found(parse_schema(""), Memory(), START, START + HOUR, 3)
