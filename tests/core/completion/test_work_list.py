import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.completion.work_list import (
    LATE,
    listing,
    listing_time,
    parse_work_key,
    work_key,
    work_range,
    work_range_of,
    work_row,
)
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.aggregate_rows import aggregate_key
from pipeline.core.rows.rows import Cell
from pipeline.core.schema.table_schema import Tier
from pipeline.core.windows import DAILY, HOURLY, Window
from tests.support.strategies import sensor_ids

START_US = parse_time("2026-02-17T10:00:00Z")


def test_the_format():
    """A row has the aggregate's key with another first segment, and a cell that no policy by age collects."""
    row = work_row(Tier(HOURLY, "stats"), "sensor-1", START_US)
    assert row.key == b"repair#hourly#sensor-1#2026-02-17T10"
    assert row.cells == [Cell("stats", b"late", 9_999_999_999_999_000, b"1")]
    assert work_row(Tier(Window.parse("15m"), "s"), "x", START_US).key == b"repair#15m#x#2026-02-17T10:00:00"


@given(st.sampled_from([LATE, b"backfill", b"a-b"]), st.integers(0, 10**16 - 1))
def test_listings_round_trip(writer, now_us):
    """A listing's column tells its writer and its time."""
    assert listing_time(listing(writer, now_us)) == (writer, now_us)


@pytest.mark.parametrize(
    "column", [LATE, b"repair-0a1b2c3d", b"repair-12345678", b"-1771322400000000", b"late-17", b""]
)
def test_columns_without_a_time(column):
    """Columns of earlier releases, claims, and others tell no time."""
    assert listing_time(column) is None


@given(sensor_ids, st.sampled_from([HOURLY, DAILY, Window.parse("15m")]), st.integers(0, 10**6))
def test_keys_round_trip(sensor_id, window, number):
    """A key parses back into sensor and start, and lies in the ranges that are read."""
    start_us = number * window.length_us
    key = work_key(window, sensor_id, start_us)
    assert parse_work_key(window, key) == (sensor_id, start_us)
    for start, end in (work_range(window), work_range_of(window, sensor_id, start_us, start_us + 1)):
        assert start <= key < end


@pytest.mark.parametrize(
    "key", [aggregate_key(HOURLY, "a", START_US), b"repair#daily#a#2026-02-17", b"repair#hourly#a#soon", b"repair#"]
)
def test_other_keys_are_refused(key):
    """Keys of aggregate rows, of windows of another length, and without a valid time are refused."""
    with pytest.raises(ValueError, match=r"time data|is not the key"):
        parse_work_key(HOURLY, key)
