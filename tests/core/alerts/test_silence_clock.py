"""The time for a look while the watermark stands: the clock's, unless the job works off a backlog."""

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.alerts.silence_clock import Heard, SilenceClock
from tests.support.alerts import MINUTE_US, START_US

_SILENT_US = 30 * MINUTE_US
_EVERY_US = _SILENT_US // 10


def _time_us(clock: SilenceClock, shortest_us: int = _SILENT_US) -> int | None:
    return clock.time_us(_EVERY_US, shortest_us)


def _after(minutes: int, clock: SilenceClock | None = None) -> SilenceClock:
    """A clock that has ticked for so long, without a break."""
    clock = clock or SilenceClock(START_US, START_US)
    for _ in range(minutes):
        clock = clock.tick(clock.ticked_us + MINUTE_US, _EVERY_US)
    return clock


def test_nobody_sends() -> None:
    """Once the job has run for ten minutes, the clock tells the time; the state keeps what is known."""
    clock = _after(9)
    assert _time_us(clock) is None
    clock = _after(1, clock)
    assert _time_us(SilenceClock.from_bytes(clock.to_bytes())) == START_US + 10 * MINUTE_US


def test_a_job_that_begins() -> None:
    """Two minutes after the start, the age of the readings that come tells the time."""
    clock = SilenceClock(START_US, START_US).hear(Heard(START_US + 1, 5 * MINUTE_US))
    assert _time_us(_after(1, clock)) is None
    assert _time_us(_after(2, clock)) == START_US - 3 * MINUTE_US


def test_the_watermark_tells_the_time() -> None:
    """A look by the clock would find what the watermark's look finds. Neither goes back."""
    clock = _after(40)
    assert _time_us(clock._replace(watermark_us=clock.ticked_us - 5 * MINUTE_US)) is None
    assert _time_us(clock._replace(watermark_us=clock.ticked_us - 7 * MINUTE_US)) == clock.ticked_us
    assert _time_us(clock._replace(looked_us=clock.ticked_us)) is None


def test_what_comes_from_a_backlog() -> None:
    """Looks are as far behind as what comes; some sensors that are always late do not matter."""
    clock = _after(60)
    for number in range(12):
        late_us = 600 * MINUTE_US if number % 6 == 0 else 20 * MINUTE_US
        clock = clock.hear(Heard(clock.ticked_us, late_us))
    assert _time_us(clock) == clock.ticked_us - 20 * MINUTE_US
    assert _time_us(_after(30, clock)) == clock.ticked_us + 30 * MINUTE_US  # nothing has come since


def test_after_a_break() -> None:
    """A job that was away gets what waits before any look by the clock."""
    clock = _after(60)
    clock = clock.tick(clock.ticked_us + 10 * MINUTE_US, _EVERY_US)
    assert _time_us(clock) is None
    assert _time_us(_after(10, clock)) == clock.ticked_us + 10 * MINUTE_US


def test_many_are_heard() -> None:
    """The state stays small, and what is known of the last readings counts."""
    clock = _after(60)
    for age in range(10_000):
        clock = clock.hear(Heard(clock.ticked_us, age))
    assert len(clock.to_bytes()) < 3_000
    assert _time_us(clock) == clock.ticked_us - 9_985


@given(
    st.lists(
        st.tuples(st.sampled_from(["runs", "away", "slow", "stuck"]), st.integers(1, 180)), min_size=1, max_size=8
    ),
    st.integers(1, 20),
)
def test_no_outage_makes_a_sensor_silent(history: list[tuple[str, int]], speed: int) -> None:
    """A sensor sends every minute. Whatever happens to the job and its messages, no look calls the sensor silent."""
    clock, newest_us = SilenceClock(START_US, START_US), START_US
    for now_us, what in _minutes(history):
        if what == "away":
            continue
        for _ in range({"runs": speed + 1, "slow": now_us // MINUTE_US % 2, "stuck": 0}[what]):
            if newest_us + MINUTE_US <= now_us:
                newest_us += MINUTE_US
                clock = clock.hear(Heard(now_us, now_us - newest_us))
        clock = clock.tick(now_us, _EVERY_US)
        time_us = _time_us(clock)
        assert time_us is None or time_us - _SILENT_US <= newest_us


def _minutes(history: list[tuple[str, int]]) -> Iterator[tuple[int, str]]:
    now_us = START_US
    for what, minutes in [("runs", 60), *history]:
        # Without anything for ten minutes, a job can't tell silence from messages that nobody delivers.
        for _ in range(min(minutes, 9) if what == "stuck" else minutes):
            now_us += MINUTE_US
            yield now_us, what
        if what == "stuck":
            now_us += MINUTE_US
            yield now_us, "runs"
