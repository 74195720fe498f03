import pytest

from pipeline.cloud.rate_limiter import RateLimiter


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def pace(clock):
    return RateLimiter(8, clock)


def test_exhaustion_halves_the_window(pace, clock):
    """Once for the requests that were in flight at the time, never below one; answers widen it again, step by step."""
    for expected in (4, 2, 1, 1):
        clock.now += 1
        for _ in range(5):
            pace.exhausted(began=clock.now - 0.5)
        assert pace.in_flight == expected
    for _ in range(2):
        pace.answered(clock.now, 0.01)
    assert pace.in_flight == 2
    for _ in range(200):
        pace.answered(clock.now, 0.01)
    assert pace.in_flight == 8


def test_rising_latency_narrows_the_window(pace, clock):
    """A request that takes far longer than usual; not one that is merely not quick."""
    for _ in range(20):
        pace.answered(clock.now, 0.05)
    pace.answered(clock.now, 0.9)
    assert pace.in_flight == 8
    clock.now += 2
    pace.answered(clock.now - 2, 2.0)
    assert pace.in_flight == 6


def test_the_server_says_how_much(pace, clock):
    """The load is multiplied by its factor, once in a period; requests then leave as far apart as that takes."""
    assert [pace.wait_s(100) for _ in range(10)] == [0.0] * 10
    clock.now += 1
    pace.told(0.8, 10)
    assert pace.rows_a_second == pytest.approx(800)
    pace.told(0.8, 10)
    assert pace.rows_a_second == pytest.approx(800)
    assert [pace.wait_s(400) for _ in range(3)] == pytest.approx([0, 0.5, 1.0])
    clock.now += 10
    pace.told(0.01, 10)
    assert pace.rows_a_second == pytest.approx(800 * 0.7)
    clock.now += 10
    pace.told(9, 10)
    assert pace.rows_a_second == pytest.approx(800 * 0.7 * 1.3)


def test_a_server_that_says_no_more(pace, clock):
    """What it said is forgotten; and one that wants more from the first has set no limit."""
    pace.wait_s(100)
    clock.now += 1
    pace.told(1.2, 10)
    assert pace.rows_a_second is None
    clock.now += 11
    pace.wait_s(100)
    pace.told(0.9, 10)
    assert pace.rows_a_second is not None
    clock.now += 400
    pace.wait_s(100)
    assert pace.rows_a_second is None


def test_no_request_waits_for_ever(pace, clock):
    """However low the rate has become."""
    pace.wait_s(1)
    clock.now += 1000
    pace.told(0.7, 1)
    assert pace.wait_s(1000) == 0.0
    assert pace.wait_s(1000) == 10.0
