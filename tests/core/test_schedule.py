"""When panes fire."""

import pytest

from pipeline.core.schedule import END_US, NEVER_US, Firing, Schedule, Timers
from pipeline.core.windows import HOURLY

HOUR = HOURLY.length_us
MINUTE = HOUR // 60
FIRING = Firing(HOURLY, early_us=5 * MINUTE, late_us=MINUTE, lateness_us=10 * MINUTE)
NOW = 1000 * HOUR


def test_an_early_pane_and_the_end_of_the_window():
    """The first readings of a window set both timers, further readings none."""
    schedule = Schedule()
    assert schedule.expect(0, NOW, FIRING) == Timers(HOUR, NOW + 5 * MINUTE)
    assert schedule.expect(0, NOW + 1, FIRING) is None
    assert schedule.expect(HOUR, NOW + 1, FIRING) == Timers(None, None)
    assert schedule.pass_time(NOW + 5 * MINUTE) == {0}
    schedule.done({0})
    assert schedule.rearm(NEVER_US, NEVER_US, FIRING) == Timers(None, NOW + 5 * MINUTE + 1000)
    assert schedule.pass_watermark(2 * HOUR, FIRING) == {HOUR}


def test_without_early_panes():
    """Readings wait for the watermark alone."""
    firing = Firing(HOURLY, 0, MINUTE, 10 * MINUTE)
    schedule = Schedule()
    assert schedule.expect(0, NOW, firing) == Timers(HOUR, None)
    assert not schedule.pass_time(NOW + HOUR)
    assert schedule.pass_watermark(HOUR, firing) == {0}


def test_late_readings():
    """They wait for the late interval, for the watermark that closes their window, or for the end of time."""
    schedule = Schedule()
    schedule.pass_watermark(HOUR + MINUTE, FIRING)
    assert schedule.expect(0, NOW, FIRING) == Timers(HOUR + 10 * MINUTE, NOW + MINUTE)
    assert schedule.expect(-HOUR, NOW, FIRING) == Timers(None, None)  # closed before
    assert schedule.pass_watermark(HOUR + 10 * MINUTE, FIRING) == {0}
    schedule.done({0})
    assert schedule.closed_us == HOUR
    assert not schedule.pass_watermark(100 * HOUR, FIRING)
    assert schedule.pass_watermark(END_US, FIRING) == {-HOUR}


def test_what_is_closed_stays_closed():
    """An update of the job to more lateness reopens no window: its state is gone."""
    schedule = Schedule()
    schedule.pass_watermark(2 * HOUR, Firing(HOURLY, 0, 0, 0))
    assert schedule.closed_us == 2 * HOUR
    schedule.pass_watermark(3 * HOUR, Firing(HOURLY, 0, 0, 10 * HOUR))
    assert schedule.closed_us == 2 * HOUR


def test_a_timer_that_was_replaced_by_an_earlier_one():
    """A runner may deliver it as well: it changes nothing."""
    schedule = Schedule()
    schedule.expect(0, NOW, FIRING)
    schedule.pass_watermark(HOUR, FIRING)
    schedule.done({0})
    assert not schedule.pass_watermark(HOUR, FIRING)
    assert not schedule.pass_time(NOW + HOUR)


def test_timers_are_whole_milliseconds():
    """A runner rounds them down: half a millisecond too early, nothing would be due yet."""
    schedule = Schedule()
    timers = schedule.expect(0, NOW + 500, FIRING)
    assert timers == Timers(HOUR, NOW + 5 * MINUTE + 1000)
    assert schedule.pass_time(timers.clock_us) == {0}


def test_a_timer_that_is_delivered_twice():
    """The second delivery may clear the timer that was set after the first: it is set again."""
    schedule = Schedule()
    schedule.expect(0, NOW, FIRING)
    schedule.done(schedule.pass_time(NOW + 5 * MINUTE))
    assert schedule.rearm(2 * HOUR, NEVER_US, FIRING) == Timers(None, None)
    assert schedule.expect(HOUR, NOW + 6 * MINUTE, FIRING) == Timers(None, NOW + 11 * MINUTE)
    assert not schedule.pass_time(NOW + 6 * MINUTE)
    assert schedule.rearm(2 * HOUR, NEVER_US, FIRING) == Timers(None, NOW + 11 * MINUTE)
    assert not schedule.pass_watermark(HOUR // 2, FIRING)
    assert schedule.rearm(2 * HOUR, NEVER_US, FIRING) == Timers(2 * HOUR, None)


def test_the_bytes_of_this_release():
    schedule = Schedule(1, 2, 3, 4, 5, {6: 7})
    assert schedule.to_bytes().hex() == "01" + "".join(f"{number:02x}" + "00" * 7 for number in range(1, 8))
    assert Schedule.from_bytes(schedule.to_bytes()) == schedule
    assert Schedule.from_bytes(None) == Schedule()


@pytest.mark.parametrize("data", [b"", b"\x02" + bytes(40), b"\x01" + bytes(41), b"\x01" + bytes(48)])
def test_other_bytes(data):
    with pytest.raises(ValueError, match="another release wrote this schedule"):
        Schedule.from_bytes(data)
