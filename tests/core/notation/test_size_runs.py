"""How much of each shorter window a row counts, as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.notation.size_runs import MOST_SIZES, parse_sizes, sizes_text

HOUR_US = 3_600_000_000
DAY_US = 1_771_286_400_000_000


@given(st.dictionaries(st.integers(0, 1 << 54), st.integers(1, 1 << 60)))
def test_what_was_written_is_read(sizes):
    """Every text reads as a number, which an aggregate row's values do."""
    text = sizes_text(sizes)
    assert parse_sizes(text) == sizes
    assert not text or float(text) > 0
    assert b"_" not in text


def test_regular_sensors_take_little():
    """A day of hours with 60 events of three metrics each."""
    text = sizes_text({DAY_US + hour * HOUR_US: 240 for hour in range(24)})
    assert len(text) < 50


@pytest.mark.parametrize("text", [b"1", b"19", b"1929", b"a919", b"19291", "1９29".encode(), b"-191919", b"1_19291929"])
def test_other_texts(text):
    """They are refused."""
    with pytest.raises(ValueError, match=r"not the sizes of windows|ordinal not in range"):
        parse_sizes(text)


def test_too_many_windows():
    """They are not told, and no text makes a reader list more."""
    assert sizes_text(dict.fromkeys(range(MOST_SIZES + 1), 2)) == b""
    text = sizes_text(dict.fromkeys(range(MOST_SIZES), 2))
    assert len(parse_sizes(text)) == MOST_SIZES
    with pytest.raises(ValueError, match="more than 10,000 windows have a size"):
        parse_sizes(text + text)
