"""The runs through an hour that clocks show twice."""

from datetime import datetime, timedelta
from itertools import chain, zip_longest
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.decoding.clock_runs import UNKNOWN, ClockRuns
from pipeline.core.notation.times import from_datetime, parse_time, to_datetime

BERLIN = ZoneInfo("Europe/Berlin")
LORD_HOWE = ZoneInfo("Australia/Lord_Howe")  # whose clocks show half an hour twice
MINUTE_US = 60_000_000
FLOW, LEVEL = frozenset({"flow"}), frozenset({"level"})


def told(runs: ClockRuns, sensor_id: str, local: datetime, zone: ZoneInfo, metrics: frozenset[str]) -> str:
    """Passes a record to the runs by what a clock shows, and returns its run; empty for a time shown once."""
    first, second = (from_datetime(local.replace(tzinfo=zone, fold=fold)) for fold in (0, 1))
    if first == second:
        runs.pass_by(sensor_id, first)
        return ""
    return runs.run_of(sensor_id, first, second, metrics)


@given(
    st.sampled_from([(BERLIN, "2026-10-25T01:00:00Z", 60), (LORD_HOWE, "2026-04-04T15:00:00Z", 30)]),
    st.lists(
        st.tuples(st.sampled_from([1, 5, 10, 15, 30]), st.integers(-400, -60), st.integers(1, 400), st.booleans()),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
)
def test_what_a_clock_shows(change: tuple, sensors: list[tuple[int, int, int, bool]], by_time: bool) -> None:
    """Regular readings are told apart: of sensors in any order, with a row for each time or for each metric."""
    zone, back, _ = change
    back_us = parse_time(back)
    of_sensors = []
    for number, (every, begin, end, is_long) in enumerate(sensors):
        minutes = range(begin - begin % every, end, every)
        rows = [FLOW, LEVEL] if is_long else [FLOW | LEVEL]
        of_sensors.append([(f"s-{number}", minute, metrics) for minute in minutes for metrics in rows])
    merged = zip_longest(*of_sensors) if by_time else [chain(*of_sensors)]
    runs = ClockRuns()
    for sensor_id, minute, metrics in filter(None, chain(*merged)):
        local = to_datetime(back_us + minute * MINUTE_US).astimezone(zone)
        is_twice = local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset()
        expected = ("second" if local.fold else "first") if is_twice else ""
        assert told(runs, sensor_id, local.replace(tzinfo=None, fold=0), zone, metrics) == expected


@pytest.mark.parametrize(
    ("clock", "expected"),
    [
        ("01:00 02:00 02:00 03:00", ["", "first", "second", ""]),  # hourly readings
        ("02:30 02:00 03:00", ["first", "second", ""]),  # a file that begins in the first run
        ("02:30 02:40 03:00", ["first", "first", ""]),  # or in the second one, which nothing tells
        ("03:00 02:30 02:00 02:30", ["", UNKNOWN, UNKNOWN, UNKNOWN]),  # newest first
        ("02:00 02:30 02:00 02:30 02:00", ["first", "first", "second", "second", UNKNOWN]),  # a third time
        ("02:30 03:00 02:40", ["first", "", UNKNOWN]),  # out of order
        ("02:00 02:00 03:00 +02:00 +02:30 +02:10", ["first", "second", "", "first", "first", "second"]),  # next year
        ("+02:00 +02:10 02:00", ["first", "first", UNKNOWN]),  # the year before after it
    ],
)
def test_orders(clock: str, expected: list[str]) -> None:
    """A run is told only by what came before it of the same sensor."""
    runs, found = ClockRuns(), []
    for text in clock.split():
        day = datetime(2027, 10, 31) if text.startswith("+") else datetime(2026, 10, 25)
        hours, minutes = text.removeprefix("+").split(":")
        found.append(told(runs, "a", day + timedelta(hours=int(hours), minutes=int(minutes)), BERLIN, FLOW))
    assert found == expected
