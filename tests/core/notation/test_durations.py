from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.notation.durations import format_duration, format_interval, parse_duration, parse_interval


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("90s", timedelta(seconds=90)),
        ("5000d", timedelta(days=5000)),
        ("0", timedelta(0)),
        ("0s", timedelta(0)),
    ],
)
def test_parse(text, duration):
    """A whole number and a unit is a duration; zero needs no unit."""
    assert parse_duration(text) == duration


@pytest.mark.parametrize(
    ("text", "interval_us"),
    [
        ("250us", 250),
        ("10ms", 10_000),
        ("1500ms", 1_500_000),
        ("1s", 1_000_000),
        ("15m", 900_000_000),
        ("7d", 604_800_000_000),
    ],
)
def test_interval(text, interval_us):
    """An interval may be shorter than a second, and is formatted in the largest unit that is exact."""
    assert parse_interval(text) == interval_us
    assert format_interval(interval_us) == text


def test_interval_in_its_largest_unit():
    """An interval is formatted in the largest unit, whatever unit it was parsed from."""
    units = {"1000us": "1ms", "60000ms": "1m", "90m": "90m", "24h": "1d", "3600s": "1h"}
    assert {text: format_interval(parse_interval(text)) for text in units} == units


@pytest.mark.parametrize("text", ["", "10", "1.5s", "-1s", "1 s", "1w", "h", "1H", "１h", "1h\n", "9" * 30 + "d"])
def test_refuse(text):
    """Any other text is refused with a message that contains the text and every unit."""
    for parse, units in ((parse_duration, "s, m, h or d"), (parse_interval, "us, ms, s, m, h or d")):
        with pytest.raises(ValueError, match=f"is not a duration; write a whole number and {units}, like") as error:
            parse(text)
        assert repr(text) in str(error.value)
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration("10ms")


@pytest.mark.parametrize("text", ["0", "0s", "0ms", "000us"])
def test_refuse_zero_intervals(text):
    """An interval of zero is refused."""
    with pytest.raises(ValueError, match="must be longer than zero, like 10ms, 1s or 15m"):
        parse_interval(text)


@given(st.integers(1, 36_500), st.sampled_from(["us", "ms", "s", "m", "h", "d"]))
def test_interval_reads_back(amount, unit):
    """The text of an interval or a duration parses back to the same."""
    interval_us = parse_interval(f"{amount}{unit}")
    assert parse_interval(format_interval(interval_us)) == interval_us
    duration = timedelta(microseconds=interval_us // 1_000_000 * 1_000_000)
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize("parse", [parse_duration, parse_interval])
def test_refuse_more_than_a_hundred_years(parse):
    """A hundred years are a duration; anything longer is a typing error, and sums of such times would overflow."""
    assert parse("36500d")
    with pytest.raises(ValueError, match=r"^'999999999d' is longer than 36500d, the longest duration allowed$"):
        parse("999999999d")
