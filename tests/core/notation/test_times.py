from datetime import UTC, date, datetime, timedelta, timezone

import numpy
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.events.event import EARLIEST_US, LATEST_US
from pipeline.core.notation.times import (
    format_time,
    from_datetime,
    local_text,
    parse_moment,
    parse_time,
    to_datetime,
    to_us,
)


@given(st.integers(EARLIEST_US, LATEST_US))
def test_text_reads_back(time_us):
    """RFC 3339 text and datetimes convert back to the same time, to the microsecond."""
    assert parse_time(format_time(time_us)) == time_us
    assert from_datetime(to_datetime(time_us)) == time_us


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_500_000, "1970-01-01T00:00:01.500Z"),
        (1_000_001, "1970-01-01T00:00:01.000001Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
    ],
)
def test_format(time_us, text):
    """The text has the fewest decimals that are exact: none, three or six."""
    assert format_time(time_us) == text


@pytest.mark.parametrize("text", ["", "yesterday", "1771324200", "2026-13-01", "2026-02-17T25:00"])
def test_refuse(text):
    """Text that is not a time is refused with an example."""
    with pytest.raises(ValueError, match="is not an ISO 8601 time"):
        parse_time(text)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59.999999-00:01"])
def test_refuse_outside_the_calendar(text):
    """A time that its offset moves out of the calendar is refused, since nothing can show it."""
    with pytest.raises(ValueError, match="is outside the years 1 to 9999 in UTC"):
        parse_time(text)


NOW = parse_time("2026-02-17T10:30:00.25Z")


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("now", "2026-02-17T10:30:00.250Z"),
        ("today", "2026-02-17T00:00:00Z"),
        ("Yesterday", "2026-02-16T00:00:00Z"),
        ("-1d", "2026-02-16T10:30:00.250Z"),
        (" -90s", "2026-02-17T10:28:30.250Z"),
        ("2026-02-01T12:00+02:00", "2026-02-01T10:00:00Z"),
    ],
)
def test_moments(text, time):
    """Times are also typed relative to now; days begin at midnight in UTC."""
    assert format_time(parse_moment(text, NOW)) == time


@pytest.mark.parametrize(
    ("text", "now", "time"),
    [
        ("2026-10-24", "2026-10-30", "2026-10-24T00:00:00+02:00"),
        ("2026-10-25T02:30", "2026-10-30", "2026-10-25T02:30:00+02:00"),  # twice: the first
        ("2026-03-29T02:30", "2026-10-30", "2026-03-29T03:30:00+02:00"),  # never: as if clocks had not changed
        ("2026-10-24T10:00+05:30", "2026-10-30", "2026-10-24T06:30:00+02:00"),
        ("-1d", "2026-10-25T12:00Z", "2026-10-24T14:00:00+02:00"),  # a duration, whatever the clocks do
        ("today", "2026-10-24T22:30Z", "2026-10-25T00:00:00+02:00"),
        ("yesterday", "2026-10-25T23:30Z", "2026-10-25T00:00:00+02:00"),  # 25 hours long
    ],
)
def test_moments_in_a_zone(text, now, time):
    """What has no offset is what the zone's clocks show; all else is the same in every zone."""
    assert local_text(parse_moment(text, parse_time(now), "Europe/Berlin"), "Europe/Berlin") == time


def test_the_ends_of_the_calendar_in_a_zone():
    """A local time outside the years 1 to 9999 in UTC is refused; a moment that has no local time is shown in UTC."""
    for text, zone in (("0001-01-01", "Europe/Berlin"), ("9999-12-31T23:00", "America/New_York")):
        with pytest.raises(ValueError, match="is outside the years 1 to 9999 in UTC"):
            parse_moment(text, NOW, zone)
    assert local_text(parse_time("0001-01-01"), "America/New_York") == "0001-01-01T00:00:00+00:00"


@pytest.mark.parametrize("text", ["", "tomorrow", "-", "1d", "-1w", "- 1d", "18", "-999999999d"])
def test_refuse_moment(text):
    """Text that is not a time is refused with every form that is."""
    with pytest.raises(ValueError, match=f"^'{text}' is not a time; write 2026-.*, now, today, yesterday or -1d$"):
        parse_moment(text, NOW)


@pytest.mark.parametrize(
    "time",
    [
        1_771_322_400_000_000,
        numpy.int64(1_771_322_400_000_000),
        *("2026-02-17T10", "2026-02-17T10Z", "2026-02-17T10:00:00Z", "2026-02-17 12:00+02:00", " 2026-02-17T10:00 "),
        datetime(2026, 2, 17, 10, tzinfo=UTC),
        datetime(2026, 2, 17, 12, tzinfo=timezone(timedelta(hours=2))),
        pandas.Timestamp("2026-02-17T12:00:00+02:00"),
    ],
)
def test_whatever_is_a_time(time):
    """Microseconds, ISO 8601 text and aware datetimes are times, also those of numpy and pandas."""
    assert to_us(time) == 1_771_322_400_000_000
    assert type(to_us(time)) is int


@pytest.mark.parametrize(
    ("time", "error", "problem"),
    [
        (datetime(2026, 2, 17, 10), ValueError, r" has no time zone; give it one, such as tzinfo=timezone\.utc$"),
        (pandas.Timestamp("2026-02-17T10"), ValueError, " has no time zone; give it one"),
        (1.5, TypeError, " is not a time; pass an aware datetime, ISO 8601 text like .*, or whole"),
        (date(2026, 2, 17), TypeError, " is not a time; pass"),
    ],
)
def test_what_is_no_time(time, error, problem):
    """A datetime without a time zone may be meant in local time: it and anything else are refused with the way out."""
    with pytest.raises(error, match=problem):
        to_us(time)
