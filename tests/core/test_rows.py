import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core import rows
from pipeline.core.events import EARLIEST_US, LATEST_US, RESERVED_SENSOR_IDS, Event
from pipeline.core.rows import Cell, Families
from pipeline.core.stats import WindowStats
from pipeline.core.times import from_datetime
from pipeline.core.windows import DAILY, HOURLY, Window

sensor_ids = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="#"), min_size=1, max_size=40
).filter(lambda text: text not in RESERVED_SENSOR_IDS)
times = st.integers(EARLIEST_US, LATEST_US)
windows = st.sampled_from(["90s", "15m", "1h", "6h", "1d"]).map(Window.parse)
TEN_THIRTY = from_datetime(datetime(2026, 2, 17, 10, 30, 0, 123456, tzinfo=UTC))
TEN = from_datetime(datetime(2026, 2, 17, 10, tzinfo=UTC))


@given(sensor_ids, times)
def test_raw_key_round_trip(sensor_id, time_us):
    """A raw key says its sensor and its time to the microsecond, over the whole valid range."""
    assert rows.parse_raw_key(rows.raw_key(sensor_id, time_us)) == (sensor_id, time_us)


@given(sensor_ids, times, times)
def test_newer_sorts_first(sensor_id, one, other):
    """Under a sensor, keys are in the opposite order of times."""
    assert (rows.raw_key(sensor_id, one) < rows.raw_key(sensor_id, other)) == (one > other)


@given(sensor_ids, sensor_ids, times)
def test_prefix_safety(sensor_id, other, time_us):
    """A sensor's range holds its own rows and no other sensor's, even one whose name begins with its name."""
    start, end = rows.sensor_range(sensor_id)
    assert start <= rows.raw_key(sensor_id, time_us) < end
    if other != sensor_id:
        assert not start <= rows.raw_key(other, time_us) < end
        assert not start <= rows.raw_key(sensor_id + other, time_us) < end


@given(sensor_ids, st.lists(times, min_size=2, max_size=2, unique=True).map(sorted), times)
def test_raw_range_is_half_open(sensor_id, bounds, time_us):
    """A range of keys holds a time exactly when start <= time < end."""
    key_range = rows.raw_range(sensor_id, *bounds)
    inside = key_range.start <= rows.raw_key(sensor_id, time_us) < key_range.end
    assert inside == (bounds[0] <= time_us < bounds[1])


@given(windows, sensor_ids, times)
def test_aggregate_key_round_trip(window, sensor_id, time_us):
    """An aggregate key says its sensor and the start of its window."""
    start_us = window.start_of(time_us)
    assert rows.parse_aggregate_key(window, rows.aggregate_key(window, sensor_id, start_us)) == (sensor_id, start_us)


@given(windows, sensor_ids, st.lists(times, min_size=2, max_size=2, unique=True).map(sorted), times)
def test_aggregate_range_holds_the_windows_that_start_inside(window, sensor_id, bounds, time_us):
    """A range of keys holds a window exactly when its start is in the half-open range of times."""
    bounds = [min(bound, LATEST_US - window.length_us) for bound in bounds]
    start_us = window.start_of(min(time_us, LATEST_US - window.length_us))
    key_range = rows.aggregate_range(window, sensor_id, *bounds)
    inside = key_range.start <= rows.aggregate_key(window, sensor_id, start_us) < key_range.end
    assert inside == (bounds[0] <= start_us < bounds[1])


@pytest.mark.parametrize(
    ("window", "key"),
    [
        (HOURLY, b"agg#hourly#balloon-7#2026-02-17T10"),
        (Window.parse("60m"), b"agg#hourly#balloon-7#2026-02-17T10"),
        (DAILY, b"agg#daily#balloon-7#2026-02-17"),
        (Window.parse("15m"), b"agg#15m#balloon-7#2026-02-17T10:30:00"),
    ],
)
def test_aggregate_keys_of_the_contract(window, key):
    """Hours and days have names of their own; any other window is named as it was given."""
    assert rows.aggregate_key(window, "balloon-7", window.start_of(TEN_THIRTY)) == key


def test_aggregate_key_of_another_window():
    """A key of hours is not read as one of days."""
    with pytest.raises(ValueError, match="is not the key of a window of 1d"):
        rows.parse_aggregate_key(DAILY, b"agg#hourly#balloon-7#2026-02-17")


def test_raw_row_of_the_contract():
    """One row: the reversed microsecond in the key, readings and metadata in their families, the time in the cells."""
    event = Event("balloon-7", TEN_THIRTY, {"pressure": 94558.0, "temperature": 23.5}, {"place": "Zürich"})
    key, cells = rows.raw_row(event, Families())
    at = TEN_THIRTY - 456
    assert key == b"balloon-7#8228675799876543"
    assert cells == [
        Cell("raw", b"pressure", at, b"94558"),
        Cell("raw", b"temperature", at, b"23.5"),
        Cell("meta", b"place", at, "Zürich".encode()),
    ]


def test_aggregate_row_of_the_contract():
    """One row of the whole window, every cell at the window's start."""
    stats = WindowStats()
    stats.add({"temperature": 20.0})
    stats.add({"temperature": 23.0, "humidity": 50.0})
    key, cells = rows.aggregate_row(HOURLY, "balloon-7", TEN, stats, Families(stats="s"))
    assert key == b"agg#hourly#balloon-7#2026-02-17T10"
    assert {(cell.family, cell.timestamp_us) for cell in cells} == {("s", TEN)}
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


@given(st.floats(allow_nan=False))
def test_value_round_trip(value):
    """The text of a double reads back as the same double, sign of zero included, without a trailing .0."""
    text = rows.format_value(value)
    read = rows.parse_value(text)
    assert read == value
    assert math.copysign(1, read) == math.copysign(1, value)
    assert not text.endswith(b".0")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (23.5, b"23.5"),
        (94558.0, b"94558"),
        (1e22, b"1e+22"),
        (-0.0, b"-0"),
        (5e-324, b"5e-324"),
        (0.1 + 0.2, b"0.30000000000000004"),
        (1e308, b"1e+308"),
        (math.inf, b"inf"),
        (60, b"60"),
    ],
)
def test_value_text(value, text):
    """The shortest text there is, as the contract has it."""
    assert rows.format_value(value) == text


@pytest.mark.parametrize("metric", ["temperature", "sum", "count_sum", "a_b.c-d"])
def test_aggregate_qualifier_splits_back(metric):
    """A statistic's column splits into the statistic and the metric, whatever the metric is called."""
    for statistic in rows.STATISTICS:
        assert rows.split_aggregate_qualifier(f"{statistic}_{metric}") == (statistic, metric)
