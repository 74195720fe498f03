from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("90s", timedelta(seconds=90)),
        ("15m", timedelta(minutes=15)),
        ("1h", timedelta(hours=1)),
        ("5000d", timedelta(days=5000)),
        ("0", timedelta(0)),
        ("0s", timedelta(0)),
    ],
)
def test_parse(text, duration):
    """A whole number and a unit is a duration; nothing at all needs no unit."""
    assert parse_duration(text) == duration


@pytest.mark.parametrize(
    "text", ["", "60", "1.5h", "-1s", "1 h", "1w", "h", "1h30m", "1H", "１h", "1h\n", "9" * 30 + "d"]
)
def test_refuse(text):
    """Anything else is refused with the text itself and an example of what would do."""
    with pytest.raises(ValueError, match="is not a duration") as error:
        parse_duration(text)
    assert repr(text) in str(error.value)


@given(st.integers(0, 10**8))
def test_format_reads_back(seconds):
    """The text of a duration reads back as the same duration."""
    duration = timedelta(seconds=seconds)
    assert parse_duration(format_duration(duration)) == duration
