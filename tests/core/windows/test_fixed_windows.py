import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.events.event import EARLIEST_US, LATEST_US
from pipeline.core.windows import Window

windows = st.sampled_from(["1s", "90s", "15m", "1h", "60m", "6h", "1d"]).map(Window.parse)


@given(windows, st.integers(EARLIEST_US, LATEST_US))
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
