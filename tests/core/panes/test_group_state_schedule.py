"""When panes fire."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.panes.firing import END_US, NEVER_US, Aggregation, FiringRules
from pipeline.core.panes.group_state import Schedule, Timers
from pipeline.core.schema.table_schema import Tier
from pipeline.core.schema.toml import parse_schema
from pipeline.core.windows import HOURLY

HOUR = HOURLY.length_us
MINUTE = HOUR // 60
SECOND = MINUTE // 60
FIRING = FiringRules(HOURLY, early_us=5 * MINUTE, late_us=MINUTE, lateness_us=10 * MINUTE)
NOW = 1000 * HOUR


def test_an_early_pane_and_the_end_of_the_window():
    """The first readings of a window set both timers, further readings none."""
    schedule = Schedule(FIRING)
    assert schedule.expect(0, NOW) == Timers(HOUR, NOW + 5 * MINUTE)
    assert schedule.expect(0, NOW + 1) is None
    assert schedule.expect(HOUR, NOW + 1) == Timers(None, None)
    assert schedule.expect(2 * HOUR, NOW + 5 * MINUTE) == Timers(None, None)
    assert schedule.pass_time(NOW + 5 * MINUTE) == {0, HOUR}
    schedule.done({0, HOUR})
    assert schedule.rearm() == Timers(None, NOW + 10 * MINUTE)
    assert schedule.pass_watermark(3 * HOUR) == {2 * HOUR}


def test_a_clock_that_nothing_waits_for_is_cleared_at_the_end():
    """A window's end fires what waited for the clock: the timer that is still set would hold up a drain."""
    schedule = Schedule(FIRING)
    schedule.expect(0, NOW)
    schedule.done(schedule.pass_watermark(HOUR))
    assert schedule.rearm() == Timers(END_US, None)
    schedule.pass_watermark(END_US)
    assert schedule.is_over


def test_groups_share_the_load():
    """Each group has its own times of early panes, at most an interval from now, and all are spread evenly."""
    waits = [Schedule(FIRING, group).expect(0, NOW).clock_us - NOW for group in range(256)]
    assert all(0 < wait <= 5 * MINUTE for wait in waits)
    assert all(24 <= sum(wait * 10 // (5 * MINUTE + 1000) == part for wait in waits) <= 27 for part in range(10))


def test_phases():
    """Groups of a phase fire together, and the phases at different times."""
    firing = replace(FIRING, phases=64)
    times = [Schedule(firing, group).expect(0, NOW).clock_us for group in range(256)]
    assert times[:64] * 4 == times
    assert len(set(times)) == 64


@pytest.mark.parametrize(("early_s", "minutes"), [(1, 5), (25, 5), (30, 6), (300, 60)])
def test_when_longer_windows_follow(early_s, minutes):
    """They follow at times of the group's own, twelve early panes apart, and at most twelve times in an hour."""
    firing = replace(FIRING, early_us=early_s * SECOND)
    every_us = Aggregation((Tier(HOURLY, "hours"),), firing).follow_every_us
    schedule, now_us, times = Schedule(firing, group=7), NOW, []
    while now_us < NOW + 3 * HOUR:
        schedule.follow(now_us, every_us)
        now_us = schedule.follow_us
        times.append(now_us)
    assert {after - before for before, after in pairwise(times)} == {minutes * MINUTE}
    schedule = Schedule(firing, group=8)
    schedule.follow(NOW, every_us)
    assert 0 < schedule.follow_us - NOW <= minutes * MINUTE
    assert schedule.follow_us != times[0]


def test_a_spread_of_watermarks():
    """Each group passes the end of a window at a time of its own, the last watermark at once."""
    firing = replace(FIRING, early_us=0, spread_us=MINUTE)
    lags = []
    for group in range(256):
        schedule = Schedule(firing, group)
        at_us = schedule.expect(0, NOW).watermark_us
        lags.append(at_us - HOUR)
        assert not schedule.pass_watermark(at_us - 1000)
        assert schedule.rearm().watermark_us == at_us
        assert schedule.pass_watermark(at_us) == {0}
        schedule.done({0})
        schedule.open_watermark_us = HOUR + 10 * MINUTE
        assert schedule.rearm().watermark_us == pytest.approx(HOUR + 10 * MINUTE + lags[-1], abs=1000)
        schedule.expect(HOUR, NOW)
        assert schedule.pass_watermark(END_US) == {HOUR}
        assert schedule.passed_us == END_US
    assert all(0 <= lag <= MINUTE for lag in lags)
    assert all(24 <= sum(lag * 10 // (MINUTE + 1000) == part for lag in lags) <= 27 for part in range(10))


def test_late_readings():
    """They wait for the late interval, for the watermark that closes their window, or for the end of time."""
    schedule = Schedule(FIRING)
    schedule.pass_watermark(HOUR + MINUTE)
    assert schedule.expect(0, NOW) == Timers(HOUR + 10 * MINUTE, NOW + MINUTE)
    assert schedule.expect(-HOUR, NOW) == Timers(None, None)  # closed before
    assert schedule.pass_watermark(HOUR + 10 * MINUTE) == {0}
    schedule.done({0})
    assert schedule.closed_us == HOUR
    assert not schedule.pass_watermark(100 * HOUR)
    assert schedule.pass_watermark(END_US) == {-HOUR}


def test_what_is_closed_stays_closed():
    """An update of the job to more lateness reopens no window: its state is gone."""
    schedule = Schedule(FiringRules(HOURLY, 0, 0, 0))
    schedule.pass_watermark(2 * HOUR)
    assert schedule.closed_us == 2 * HOUR
    schedule, _ = Schedule.from_bytes(schedule.to_bytes(), FiringRules(HOURLY, 0, 0, 10 * HOUR))
    schedule.pass_watermark(3 * HOUR)
    assert schedule.closed_us == 2 * HOUR


class Runner:
    """The timers of a group as a runner keeps them: in whole milliseconds, rounded down."""

    def __init__(self, firing):
        self.schedule, self.now_us, self.watermark_us = Schedule(firing), NOW, 0
        self.timers = {"watermark": NEVER_US, "clock": NEVER_US}

    def set(self, timers):
        for name, time_us in zip(self.timers, timers or (None, None), strict=True):
            if time_us is not None:
                self.timers[name] = time_us // 1000 * 1000

    def deliver(self, name, at_us):
        """Delivers a timer, and clears it, whatever it is set to now."""
        self.timers[name] = NEVER_US
        if name == "clock":
            due = self.schedule.pass_time(max(at_us, self.now_us))
        else:
            due = self.schedule.pass_watermark(at_us)
        self.schedule.done(due)
        self.set(self.schedule.rearm())

    def deliver_all(self, times):
        for name, passed_us in (("watermark", self.watermark_us), ("clock", self.now_us)):
            if (at_us := self.timers[name]) <= passed_us:
                for _ in range(times):
                    self.deliver(name, at_us)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("readings"), st.integers(0, 5)),
        st.tuples(st.just("time"), st.sampled_from([1, 999, 1001, MINUTE, 7 * MINUTE + 1, HOUR])),
        st.tuples(st.just("watermark"), st.sampled_from([1, MINUTE, HOUR, 3 * HOUR])),
        st.tuples(st.just("again"), st.sampled_from(["watermark", "clock"])),
        st.tuples(st.just("deliver"), st.integers(1, 3)),
    )
)


@given(STEPS, st.sampled_from([0, 5 * MINUTE]), st.sampled_from([0, MINUTE]))
def test_no_readings_wait_for_ever(steps, early_us, late_us):
    """Whenever timers come, however often, readings are in a pane when the last timer has fired."""
    runner = Runner(FiringRules(HOURLY, early_us, late_us, 10 * MINUTE))
    for what, value in steps:
        match what:
            case "readings":
                runner.set(runner.schedule.expect(value * HOUR, runner.now_us))
            case "time":
                runner.now_us += value
            case "watermark":
                runner.watermark_us += value
            case "again":
                runner.deliver(value, runner.now_us if value == "clock" else runner.watermark_us)
            case "deliver":
                runner.deliver_all(value)
    if not early_us:
        runner.watermark_us = END_US
    for _ in range(50):
        runner.now_us = max(runner.now_us, 0 if runner.timers["clock"] == NEVER_US else runner.timers["clock"])
        runner.deliver_all(1)
    assert not runner.schedule.due_us
    assert runner.timers["clock"] == NEVER_US


def test_the_bytes_of_this_release():
    """A schedule's bytes stay as they are, so that an update keeps what is in the state."""
    schedule = Schedule(FIRING, 0, 1, 2, 3, 4, 5, 6, True, 7, {8: 9})
    assert schedule.to_bytes().hex() == "06071d" + "".join(
        f"{number:02x}" + "00" * 7 for number in (1, 2, 5, 3, 4, 6, 1, 7, 8, 9)
    )
    assert Schedule.from_bytes(schedule.to_bytes(), FIRING) == (schedule, True)


def test_another_release():
    """It knows what has passed, what is closed, and the number of firings; not which timers are set."""
    data = Schedule(FIRING, 0, 1, 2, 3, 4, 5, 6, True, 7, {8: 9}).to_bytes()
    data = data[:1] + b"\x00" + data[2:]
    assert Schedule.from_bytes(data, FIRING) == (Schedule(FIRING, 0, 1, 2, firings=5), False)


@pytest.mark.parametrize("start_us", [0, HOUR])
def test_what_another_release_left_fires(start_us):
    """The next readings set the timers for all that is due."""
    schedule = Schedule(FIRING, due_us={0: NOW})
    assert schedule.expect(start_us, NOW) == Timers(HOUR, NOW)


@pytest.mark.parametrize(
    ("tiers", "early_s", "waiting", "noted", "every_s"),
    [
        (["1h", "1d", "1mo"], 300, [], ["1h"], 3600),
        (["1h", "1mo"], 300, ["1mo"], ["1h", "1mo"], 3600),
        (["1m", "1h", "1d"], 300, ["1h"], ["1m", "1h"], 900),
        (["1m", "1h", "1d"], 10, ["1h"], ["1m", "1h"], 120),
        (["1m", "1d"], 300, ["1d"], ["1m", "1d"], 3600),
        (["1m", "1d"], 0, ["1d"], ["1m", "1d"], 5),
        (["1m", "1h", "1d@Europe/Berlin"], 0, ["1h"], ["1m", "1h", "1d@Europe/Berlin"], 5),
        (["1h"], 300, [], ["1h"], 3600),
    ],
)
def test_longer_windows_that_wait(tiers, early_s, waiting, noted, every_s):
    """They have more than 48 windows of the shortest tier; a process on one machine notes them."""
    text = ", ".join(f'"{window}" = "f{index}"' for index, window in enumerate(tiers))
    schema = parse_schema(f"tiers = {{ {text} }}")
    rules = FiringRules(schema.tiers[0].window, early_s * SECOND, 0, 0)
    aggregation = Aggregation(schema.tiers, rules)
    waits = zip(schema.tiers, aggregation.waits, strict=True)
    assert [tier.window.text for tier, each in waits if each] == waiting
    assert [tier.window.text for tier in aggregation.noted] == noted
    assert aggregation.follow_every_us == every_s * SECOND
