"""Days, weeks and months of time zones: their bounds, their texts in row keys, and what is no such window."""

import pickle
import re
import zoneinfo
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.events.event import EARLIEST_US, LATEST_US
from pipeline.core.notation.times import format_time, from_datetime, parse_time, to_datetime, zone_names, zone_of
from pipeline.core.rows.aggregate_rows import aggregate_key, aggregate_range, parse_aggregate_key
from pipeline.core.windows import DAILY, HOURLY, Window, _starts, parse_window

ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "America/St_Johns",  # went back from 00:01, until 2011
    "Asia/Beirut",  # skips midnight
    "Antarctica/Troll",  # changes by two hours
    "UTC",
)
HOUR = HOURLY.length_us
FIRST, LAST = date(2005, 1, 1), date(2020, 12, 31)
TEXTS = [f"{unit}@{zone}" for zone in ZONES for unit in ("1d", "1w", "1mo") if (unit, zone) != ("1d", "UTC")]

windows = st.sampled_from([*TEXTS, "90s", "15m", "1h", "60m", "6h", "1d"]).map(parse_window)
times = st.integers(EARLIEST_US, LATEST_US)


def whole(text):
    """Returns the window, and all its starts from 2005 to 2020."""
    window = parse_window(text)
    return window, list(window.starts(from_datetime(datetime(2005, 1, 1)), from_datetime(datetime(2021, 1, 1))))


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.slow
def test_windows_partition_time(text):
    """From 2005 to 2020, windows follow each other without gap or overlap; their texts are in order, and parse back."""
    window, starts = whole(text)
    texts = [window.start_text(start_us) for start_us in starts]
    assert texts == sorted(set(texts))
    assert [window.parse_start(each) for each in texts] == starts
    for start_us, end_us in pairwise(starts):
        assert start_us < end_us == window.end_of(start_us) <= start_us + window.length_us
        for inside_us in (start_us, (start_us + end_us) // 2, end_us - 1):
            assert window.start_of(inside_us) == start_us
        assert window.first_start(start_us) == start_us
        assert window.first_start(start_us + 1) == window.first_start(end_us) == end_us
    assert window.count(starts[0], starts[-1]) == len(starts) - 1
    assert window.count(starts[3], starts[2]) == 0


@pytest.mark.parametrize("zone", ZONES)
def test_local_dates(zone):
    """A day starts at the first instant of its local date. Every date has one, except those that a zone skips."""
    window, of_zone = parse_window(f"1d@{zone}"), zone_of(zone)
    starts = list(window.starts(*(from_datetime(datetime(each.year, each.month, each.day)) for each in (FIRST, LAST))))
    found = set()
    for start_us in starts:
        start, before = (to_datetime(time_us).astimezone(of_zone) for time_us in (start_us, start_us - 1))
        assert before.date() < start.date()
        found.add(start.date())
    dates = {FIRST + timedelta(number) for number in range(1, (LAST - FIRST).days - 1)}
    assert dates - found == ({date(2011, 12, 30)} if zone == "Pacific/Apia" else set())


@pytest.mark.parametrize("zone", ZONES)
def test_weeks_and_months_consist_of_days(zone):
    """Weeks begin on Mondays, months on the first, at the start of that day."""
    day, week, month = (parse_window(f"{unit}@{zone}") for unit in ("1d", "1w", "1mo"))
    for start_us in whole(f"1w@{zone}")[1]:
        assert date.fromisoformat(week.start_text(start_us)).isoweekday() == 1
        assert day.start_text(start_us) == week.start_text(start_us)
    for start_us in whole(f"1mo@{zone}")[1]:
        assert day.start_text(start_us) == f"{month.start_text(start_us)}-01"
    if zone != "UTC":
        assert day.is_source_of(week)
        assert day.is_source_of(month)
        assert not parse_window("1d@Asia/Tokyo").is_source_of(week)
    assert not week.is_source_of(month)
    assert not week.is_source_of(week)


@pytest.mark.parametrize(
    ("text", "start", "hours"),
    [
        ("1d@Europe/Berlin", "2026-03-29", 23),
        ("1d@Europe/Berlin", "2026-10-25", 25),
        ("1d@Europe/Berlin", "2026-10-26", 24),
        ("1d@Australia/Lord_Howe", "2026-10-04", 23.5),
        ("1d@Australia/Lord_Howe", "2026-04-05", 24.5),
        ("1d@Pacific/Apia", "2011-12-29", 24),
        ("1d@Pacific/Apia", "2011-12-31", 24),
        ("1d@Antarctica/Troll", "2026-10-25", 26),
        ("1d@Asia/Beirut", "2026-03-29", 23),
        ("1w@Europe/Berlin", "2026-03-23", 7 * 24 - 1),
        ("1w@Pacific/Apia", "2011-12-26", 6 * 24),
        ("1w", "2026-03-23", 7 * 24),
        ("1mo@Europe/Berlin", "2026-10", 31 * 24 + 1),
        ("1mo@Pacific/Apia", "2011-12", 30 * 24),
        ("1mo", "2024-02", 29 * 24),
    ],
)
def test_lengths(text, start, hours):
    """The hours of windows in which clocks change."""
    window = parse_window(text)
    start_us = window.parse_start(start)
    assert (window.end_of(start_us) - start_us) / HOUR == hours


@pytest.mark.parametrize(
    ("text", "time", "key", "shown"),
    [
        ("1d@Europe/Berlin", "2026-03-29T12:00Z", "agg#daily@Europe/Berlin#a#2026-03-29", "2026-03-29T00:00:00+01:00"),
        ("1d@Europe/Berlin", "2026-03-29T22:00Z", "agg#daily@Europe/Berlin#a#2026-03-30", "2026-03-30T00:00:00+02:00"),
        ("1w@Asia/Kolkata", "2026-03-29T18:29Z", "agg#weekly@Asia/Kolkata#a#2026-03-23", "2026-03-23T00:00:00+05:30"),
        (
            "1mo@Asia/Kathmandu",
            "2026-02-28T18:15Z",
            "agg#monthly@Asia/Kathmandu#a#2026-03",
            "2026-03-01T00:00:00+05:45",
        ),
        ("1d@Asia/Beirut", "2026-03-29T12:00Z", "agg#daily@Asia/Beirut#a#2026-03-29", "2026-03-29T01:00:00+03:00"),
        ("1w", "2026-03-29T12:00Z", "agg#weekly#a#2026-03-23", "2026-03-23T00:00:00Z"),
        ("1mo@UTC", "2026-03-29T12:00Z", "agg#monthly#a#2026-03", "2026-03-01T00:00:00Z"),
        ("1d@UTC", "2026-03-29T12:00Z", "agg#daily#a#2026-03-29", "2026-03-29T00:00:00Z"),
    ],
)
def test_keys_and_times(text, time, key, shown):
    """The key has the local date, and people see the start with the zone's offset."""
    window = parse_window(text)
    start_us = window.start_of(parse_time(time))
    assert aggregate_key(window, "a", start_us) == key.encode()
    assert window.shown(start_us) == shown
    assert parse_time(shown) == start_us


@given(windows, times, times)
def test_keys(window, one_us, other_us):
    """Keys are in the order of time, parse back, and a range contains the windows that start in it."""
    one_us, other_us = sorted((one_us, other_us))
    first_us, second_us = window.start_of(one_us), window.start_of(other_us)
    first, second = (aggregate_key(window, "a", start_us) for start_us in (first_us, second_us))
    assert (first < second) == (first_us < second_us)
    assert parse_aggregate_key(window, second) == ("a", second_us)
    keys = aggregate_range(window, "a", one_us, other_us)
    assert (keys.start <= first < keys.end) == (one_us <= first_us < other_us)
    assert (keys.start <= second < keys.end) == (one_us <= second_us < other_us)


@pytest.mark.parametrize(
    "key",
    [
        "agg#daily@Pacific/Apia#a#2011-12-30",  # there was no such day
        "agg#daily@Pacific/Apia#a#20111231",
        "agg#daily@Pacific/Apia#a#2011-W52-6",
        "agg#daily@Pacific/Apia#a#2011-12-31T00",
        "agg#daily@Pacific/Apia#a#0001-01-01",
        "agg#daily@Pacific/Apia#a#",
        "agg#daily#a#2011-12-31",
    ],
)
def test_other_keys_do_not_parse(key):
    """Only one key is that of a day."""
    with pytest.raises(ValueError):  # noqa: PT011 - readers say that the row is foreign, and why
        parse_aggregate_key(parse_window("1d@Pacific/Apia"), key.encode())


@pytest.mark.parametrize(("text", "start"), [("1w", "2026-03-24"), ("1mo", "2026-03-01"), ("1mo", "2026-3")])
def test_other_starts_do_not_parse(text, start):
    """Weeks are named by their Mondays, months by year and month."""
    with pytest.raises(ValueError):  # noqa: PT011 - as above
        parse_window(text).parse_start(start)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1d@Europe/Berln", "'Europe/Berln' is not a time zone; did you mean Europe/Berlin?"),
        ("1d@berlin", "'berlin' is not a time zone; did you mean Europe/Berlin?"),
        ("1d@", "'' is not a time zone, like Europe/Berlin"),
        ("1mo@../../etc#x", "'../../etc#x' is not a time zone, like Europe/Berlin"),
        (
            "1h@Europe/Berlin",
            "a window of 1h has no time zone; of a zone there are 1d, 1w and 1mo, like 1d@Europe/Berlin",
        ),
        ("2w", "'2w' is not a duration"),
    ],
)
def test_no_such_window(text, problem):
    """What is wrong, and the nearest zone."""
    with pytest.raises(ValueError, match=f"^{re.escape(problem)}"):
        parse_window(text)


@pytest.mark.parametrize("text", ["1d@Europe/Berlin", "1w", "1mo"])
def test_windows_of_events_are_fixed(text):
    """The window of --window is that of the first tier, which has to be fixed."""
    with pytest.raises(ValueError, match="declare them as a further tier"):
        Window.parse(text)


def test_utc():
    """A day of UTC is the fixed one, with its keys."""
    assert parse_window("1d@UTC") is DAILY
    assert parse_window("1w@UTC") == parse_window("1w")
    assert parse_window("60m") == Window.parse("60m")


def test_zones_come_from_the_package(monkeypatch):
    """What the system says about zones does not matter, and a window survives the way to a worker."""
    monkeypatch.setattr(zoneinfo, "TZPATH", ())
    window = parse_window("1mo@Europe/Berlin")
    assert pickle.loads(pickle.dumps(window)) == window  # noqa: S301 - our own bytes
    assert zone_of("Europe/Berlin") is not ZoneInfo("Europe/Berlin")
    assert all("#" not in name and name.isprintable() and name.isascii() for name in zone_names())
    for name in zone_names():
        assert zone_of(name).key == name


def test_zones_agree_with_those_of_the_package():
    """Starts agree with the standard library's arithmetic on the package's data, where midnight exists."""
    _starts.cache_clear()
    window, zone = parse_window("1d@America/New_York"), zone_of("America/New_York")
    for day in (FIRST + timedelta(number) for number in range((LAST - FIRST).days)):
        midnight = datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)
        assert format_time(window.parse_start(str(day))) == format_time(from_datetime(midnight))


fixed_windows = st.sampled_from(["1s", "90s", "15m", "1h", "60m", "6h", "1d"]).map(Window.parse)


@given(fixed_windows, st.integers(EARLIEST_US, LATEST_US))
def test_every_instant_is_in_its_window(window, time_us):
    """A window's start is a multiple of its length since the epoch, and less than its length before the time."""
    start_us = window.start_of(time_us)
    assert start_us % window.length_us == 0
    assert 0 <= time_us - start_us < window.length_us


@pytest.mark.parametrize("text", ["0", "7h", "25h", "2d", "7s"])
def test_refuse_what_does_not_divide_a_day(text):
    """A window must divide a day, so that each day starts with a window."""
    with pytest.raises(ValueError, match="does not divide a day"):
        Window.parse(text)
