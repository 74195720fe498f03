from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.charts.charts import time_ticks
from pipeline.core.notation.times import parse_time

EARLIEST, LATEST = parse_time("0001-01-01"), parse_time("9999-12-31T23:59:59.999999")


@pytest.mark.parametrize(
    ("start", "end", "labels"),
    [
        ("2026-02-17", "2026-02-18", "02-17 04:00 08:00 12:00 16:00 20:00 02-18"),
        ("2026-02-17T10:05", "2026-02-17T10:15", "10:06 10:08 10:10 10:12 10:14"),
        ("2026-02-17T10:05:00", "2026-02-17T10:05:20", "10:05:00 10:05:05 10:05:10 10:05:15 10:05:20"),
        ("2026-02-17T10:05:00", "2026-02-17T10:05:01", "10:05:00.0 10:05:00.5 10:05:01.0"),
        ("2026-02-17", "2026-02-24", "02-17 02-18 02-19 02-20 02-21 02-22 02-23 02-24"),
        ("2025-12-31", "2026-08-01", "2026-01 2026-03 2026-05 2026-07"),
        ("2024-01-01", "2030-06-01", "2024 2025 2026 2027 2028 2029 2030"),
        ("0001-01-01", "9999-12-31", "1000 2000 3000 4000 5000 6000 7000 8000 9000"),
    ],
)
def test_labels(start, end, labels):
    """A label shows what changes between ticks, and at midnight the new day."""
    assert " ".join(time_ticks(parse_time(start), parse_time(end), 80).values()) == labels


@pytest.mark.parametrize(
    ("start", "end", "labels"),
    [
        ("2026-10-24", "2026-10-28", "10-24 10-25 10-26 10-27 10-28"),
        ("2026-10-25", "2026-10-26", "10-25 04:00 08:00 12:00 16:00 20:00 10-26"),  # 25 hours
        ("2026-10-25T01:00", "2026-10-25T05:00", "01:00 02:00 02:00 03:00 04:00 05:00"),
        ("2026-03-29T01:00", "2026-03-29T05:00", "01:00 01:30 03:00 03:30 04:00 04:30 05:00"),
        ("2025-12-31", "2026-08-01", "2026-01 2026-03 2026-05 2026-07"),
    ],
)
def test_labels_of_a_zone(start, end, labels):
    """Ticks are where the zone's clocks show whole hours, days and months, also after they changed."""
    ends = (parse_time(each, "Europe/Berlin") for each in (start, end))
    assert " ".join(time_ticks(*ends, 80, "Europe/Berlin").values()) == labels


@given(
    start=st.integers(EARLIEST, LATEST - 1_000_000),
    length=st.floats(6, 17.5).map(lambda exponent: int(10**exponent)),
    width=st.integers(60, 200),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu", "Australia/Lord_Howe", "America/St_Johns"]),
)
def test_room(start, length, width, zone):
    """Every axis has at least two labels, in order, within the axis, and apart from each other."""
    if zone != "UTC":
        start = max(start, parse_time("1970-01-01"))  # earlier, clocks changed at any second
    end = min(start + length, LATEST - (zone != "UTC") * 86_400_000_000)
    start = min(start, end - 1_000_000)
    ticks = time_ticks(start, end, width, zone)
    assert len(ticks) >= 2
    assert list(ticks) == sorted(ticks)
    assert start <= min(ticks)
    assert max(ticks) <= end
    for (one, label), (next_one, _) in pairwise(ticks.items()):
        assert (next_one - one) / (end - start) * width >= len(label) + 1


def test_a_day_without_midnight():
    """Where clocks skip midnight, the day has a tick at its first instant."""
    start, end = parse_time("2026-04-23", "Africa/Cairo"), parse_time("2026-04-26", "Africa/Cairo")
    ticks = time_ticks(start, end, 80, "Africa/Cairo")
    assert list(ticks.values()) == ["04-23", "12:00", "04-24", "12:00", "04-25", "12:00", "04-26"]
    assert parse_time("2026-04-24T01:00+03:00") in ticks
