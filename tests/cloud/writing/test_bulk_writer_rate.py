import pytest

from pipeline.cloud.writing.bulk_writer import RateLimiter


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def limiter(clock):
    return RateLimiter(8, clock)


def test_exhaustion_halves_the_window(limiter, clock):
    """Once for the requests in flight at that time, never below one. Responses widen it again, step by step."""
    for expected in (4, 2, 1, 1):
        clock.now += 1
        for _ in range(5):
            limiter.record_exhausted(began=clock.now - 0.5)
        assert limiter.in_flight == expected
    for _ in range(2):
        limiter.record_response(clock.now, 0.01)
    assert limiter.in_flight == 2
    for _ in range(200):
        limiter.record_response(clock.now, 0.01)
    assert limiter.in_flight == 8


def test_rising_latency_narrows_the_window(limiter, clock):
    """A response that takes far longer than typical narrows it; one that is merely not fast does not."""
    for _ in range(20):
        limiter.record_response(clock.now, 0.05)
    limiter.record_response(clock.now, 0.9)
    assert limiter.in_flight == 8
    clock.now += 2
    limiter.record_response(clock.now - 2, 2.0)
    assert limiter.in_flight == 6


def test_flow_control(limiter, clock):
    """The server's factor multiplies the load, once in a period. Requests then leave at that rate."""
    assert [limiter.wait_s(100) for _ in range(10)] == [0.0] * 10
    clock.now += 1
    limiter.adjust(0.8, 10)
    assert limiter.rows_a_second == pytest.approx(800)
    limiter.adjust(0.8, 10)
    assert limiter.rows_a_second == pytest.approx(800)
    assert [limiter.wait_s(400) for _ in range(3)] == pytest.approx([0, 0.5, 1.0])
    clock.now += 10
    limiter.adjust(0.01, 10)
    assert limiter.rows_a_second == pytest.approx(800 * 0.7)
    clock.now += 10
    limiter.adjust(9, 10)
    assert limiter.rows_a_second == pytest.approx(800 * 0.7 * 1.3)


def test_flow_control_expires(limiter, clock):
    """The rate ends if the server sends no other. A first factor above one sets no limit."""
    limiter.wait_s(100)
    clock.now += 1
    limiter.adjust(1.2, 10)
    assert limiter.rows_a_second is None
    clock.now += 11
    limiter.wait_s(100)
    limiter.adjust(0.9, 10)
    assert limiter.rows_a_second is not None
    clock.now += 400
    limiter.wait_s(100)
    assert limiter.rows_a_second is None


def test_waits_are_bounded(limiter, clock):
    """No request waits longer than ten seconds, however low the rate."""
    limiter.wait_s(1)
    clock.now += 1000
    limiter.adjust(0.7, 1)
    assert limiter.wait_s(1000) == 0.0
    assert limiter.wait_s(1000) == 10.0
