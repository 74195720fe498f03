import math
from datetime import UTC, datetime

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.core.notation.times import from_datetime
from pipeline.core.queries.reads import RowSelection
from pipeline.core.rows import aggregate_rows
from pipeline.core.rows.aggregate_rows import (
    aggregate_key,
    aggregate_range,
    aggregate_record,
    aggregate_row,
    encoded_aggregate_row,
    parse_aggregate_key,
    parse_aggregate_row,
    parse_window_stats,
    stats_of,
)
from pipeline.core.rows.records import AggregateRecord, MetricSummary
from pipeline.core.rows.rows import Cell, encoded
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.member import Member
from pipeline.core.statistics.window_stats import BY_DEFAULT, DEFAULT, Statistics, WindowStats, split_qualifier
from pipeline.core.windows import DAILY, HOURLY, Window
from tests.support.exhaustive import examples
from tests.support.memory import Memory
from tests.support.strategies import sensor_ids, times

windows = st.sampled_from(["90s", "15m", "1h", "6h", "1d"]).map(Window.parse)
TEN_THIRTY = from_datetime(datetime(2026, 2, 17, 10, 30, 0, 123456, tzinfo=UTC))
TEN = from_datetime(datetime(2026, 2, 17, 10, tzinfo=UTC))


@pytest.mark.parametrize(
    ("window", "key"),
    [
        (HOURLY, b"agg#hourly#balloon-7#2026-02-17T10"),
        (Window.parse("60m"), b"agg#hourly#balloon-7#2026-02-17T10"),
        (DAILY, b"agg#daily#balloon-7#2026-02-17"),
        (Window.parse("15m"), b"agg#15m#balloon-7#2026-02-17T10:30:00"),
    ],
)
def test_keys_of_the_contract(window, key):
    """Hours and days have their own labels; any other window is labelled with its text."""
    assert aggregate_key(window, "balloon-7", window.start_of(TEN_THIRTY)) == key


def test_key_of_another_window():
    """The key of an hour does not parse as that of a day."""
    with pytest.raises(ValueError, match="is not the key of a window of 1d"):
        parse_aggregate_key(DAILY, b"agg#hourly#balloon-7#2026-02-17")


VALUES = st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.lists(st.dictionaries(st.sampled_from(["t", "u.v"]), VALUES, min_size=1), min_size=1, max_size=9),
    times.map(HOURLY.start_of),
    sensor_ids,
)
def test_encoded_rows(events, start_us, sensor_id):
    """The encoded row is the row, byte for byte; the record is what the row parses to."""
    stats = WindowStats()
    for readings in events:
        stats.add(readings)
    declared = Statistics((("t", ("avg", "p50", "last", "rate", "time_weighted_mean:linear")),), every_us=60_000_000)
    times_us, values = range(start_us, start_us + len(events)), [readings.get("t", -0.0) for readings in events]
    for of, statistics in ((stats, BY_DEFAULT), (declared.stats_of(times_us, {"t": values, "u.v": values}), declared)):
        row = aggregate_row(HOURLY, sensor_id, start_us, of, "s", statistics)
        assert encoded_aggregate_row(HOURLY, sensor_id, start_us, of, "s", statistics) == encoded(row)
        parsed = parse_aggregate_row(HOURLY, row, statistics)
        assert aggregate_record(HOURLY, sensor_id, start_us, of, statistics) == parsed


def test_a_statistic_that_is_no_longer_known():
    """It leaves the row: the value that a row of fewer readings has is not that of this one."""
    declared, table = Statistics((("t", ("increase", "p50")),)), Memory()
    one, other = (declared.stats_of([TEN + n], {"t": [1.0]}) for n in range(2))
    other.add({"t": 2.0})
    other.metrics["t"].parts = None  # as of a row from before the statistics were declared
    for stats in (one, other):
        table.write_encoded(encoded_aggregate_row(HOURLY, "a", TEN, stats, "s", declared))
    (row,) = table(RowSelection(aggregate_range(HOURLY, "a", TEN, TEN + 1), CellSelection(("s",), versions=1)))
    assert {cell.qualifier for cell in row.cells} == {b"reading_count", b"count_t"}


def test_a_lesser_row_that_arrives_later():
    """What it alone tells is not read: the newer counts are those of another row."""
    declared, table = Statistics((("t", ("increase", "p50")),)), Memory()
    lesser, greater = (declared.stats_of(range(TEN, TEN + n), {"t": [1.0] * n}) for n in (1, 2))
    lesser.member, greater.metrics["t"].parts = Member(TEN, '{"site":"x"}'), None
    for stats in (greater, lesser):
        table.write_encoded(encoded_aggregate_row(HOURLY, "a", TEN, stats, "s", declared))
    (row,) = table(RowSelection(aggregate_range(HOURLY, "a", TEN, TEN + 1), CellSelection(("s",), versions=1)))
    assert {b"increase_t", b"member"} < {cell.qualifier for cell in row.cells}
    found = parse_window_stats(HOURLY, row, declared)[1]
    assert (found.events, found.member, found.metrics["t"].parts) == (2, None, None)


def test_row_of_the_contract():
    """One row contains the whole window; its cells' timestamp is the window's start, and 1 ms for what each counts."""
    stats = WindowStats()
    stats.add({"temperature": 20.0})
    stats.add({"temperature": 23.0, "humidity": 50.0})
    key, cells = aggregate_row(HOURLY, "balloon-7", TEN, stats, "s")
    assert key == b"agg#hourly#balloon-7#2026-02-17T10"
    assert cells[0] == Cell("s", b"reading_count", TEN + 5_000, b"2")
    assert {(cell.family, cell.timestamp_us) for cell in cells} == {("s", TEN + 5_000)}
    assert {cell.qualifier.decode(): cell.value.decode() for cell in cells} == {
        "reading_count": "2",
        "count_temperature": "2",
        "sum_temperature": "43",
        "min_temperature": "20",
        "max_temperature": "23",
        "avg_temperature": "21.5",
        "stddev_temperature": "1.5",
        "count_humidity": "1",
        "sum_humidity": "50",
        "min_humidity": "50",
        "max_humidity": "50",
        "avg_humidity": "50",
        "stddev_humidity": "0",
    }


@pytest.mark.parametrize("metric", ["temperature", "sum", "count_sum", "a_b.c-d"])
def test_qualifier_splits_back(metric):
    """A qualifier splits into the statistic and the metric, whatever the metric's name."""
    for statistic in DEFAULT:
        found, of_metric = split_qualifier(f"{statistic}_{metric}")
        assert (found.name, of_metric) == (statistic, metric)


def test_rows_of_an_earlier_release():
    """Overflowed deviations are limited."""
    summaries = {"u": MetricSummary(2, 0.0, -2e154, 2e154, 0.0, math.inf)}
    metrics = stats_of(AggregateRecord("a", TEN, HOURLY, 10, summaries)).metrics
    assert (metrics["u"].average, metrics["u"].deviation) == (0, 2e154)


HOURS, _ = parse_schema('[tiers]\n1h = "hours"\n1d = "days"').tiers
T = 1_771_286_400_000_000
ODD = [b"", b"0", b"-1", b"1.5", b"nan", b"inf", b"-inf", b" 1", b"1_0", b"1e400", b"9007199254740994", b"7", b"text"]


def outcome(row):
    """Returns all that is parsed of a row, or what is wrong with it."""
    try:
        start_us, stats = parse_window_stats(HOURS.window, row)
    except ValueError as error:
        return str(error)
    of_metrics = {
        metric: [getattr(each, name) for name in each.__slots__] for metric, each in sorted(stats.metrics.items())
    }
    return start_us, stats.events, stats.sizes, list(stats.metrics), repr(of_metrics)


readings = st.dictionaries(st.sampled_from(["t", "sum", "time_t"]), st.floats(-1e9, 1e9) | st.just(1e308), min_size=1)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(readings, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from([*ODD, None])), max_size=2),
    st.sampled_from([[], [Cell("hours", b"other", T, b"1")], [Cell("hours", b"p50_t", T, b"1")]]),
)
@example([{"t": 1e308, "sum": 1e308}], [(13, b"0")], [])
def test_the_same_result(events, changes, more):
    """Of rows that a job writes, and of others, with the same errors."""
    stats = WindowStats()
    for each in events:
        stats.add(each)
    stats.sizes = {T: 3}
    row = aggregate_row(HOURS.window, "s", T, stats, HOURS.family)
    cells = [*row.cells, *more]
    for index, value in changes:
        if value is None and cells:
            cells = cells[: index % len(cells)] + cells[index % len(cells) + 1 :]
        elif cells:
            cells[index % len(cells)] = cells[index % len(cells)]._replace(value=value)
    row = row._replace(cells=cells)
    found = outcome(row)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(aggregate_rows, "_plain_stats", lambda *_: None)
        assert outcome(row) == found


def test_rows_of_a_job_are_plain():
    """What a job writes by default takes the fast way."""
    stats = WindowStats()
    stats.add({"t": 1.0, "u": 2.0})
    row = aggregate_row(HOURS.window, "s", T, stats, HOURS.family)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(aggregate_rows, "parse_aggregate_row", None)
        assert parse_window_stats(HOURS.window, row)[1].events == 1
