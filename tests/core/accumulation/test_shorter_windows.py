import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.accumulation.accumulator import merged
from pipeline.core.statistics.member import Member
from pipeline.core.statistics.window_stats import BY_DEFAULT, WindowStats

HOUR_US = 3_600_000_000

# The events of each hour.
days = st.dictionaries(
    st.integers(0, 23),
    st.lists(st.dictionaries(st.sampled_from("tuv"), st.floats(-1e6, 1e6)), min_size=1, max_size=6),
    min_size=1,
)


def stats_of(events):
    stats = WindowStats()
    for readings in events:
        stats.add(readings)
    return stats


def contents(stats):
    """Returns all content of the statistics, bit for bit."""
    return stats.events, {
        metric: [getattr(of_metric, name) for name in of_metric.__slots__]
        for metric, of_metric in sorted(stats.metrics.items())
    }


@given(days, st.randoms(use_true_random=False))
def test_any_order(day, rng):
    """A day counts all of its hours, bit for bit the same in whatever order they are given."""
    hours = [(hour * HOUR_US, stats_of(events)) for hour, events in sorted(day.items())]
    found = merged(dict(hours), BY_DEFAULT).stats
    assert found.events == sum(map(len, day.values()))
    assert found.sizes == {start_us: stats.size for start_us, stats in hours}
    rng.shuffle(hours)
    assert contents(merged(dict(hours), BY_DEFAULT).stats) == contents(found)


@pytest.mark.parametrize("told", [{0: True, 1: False}, {0: False, 1: True}, {1: False, 0: True, 3: True}])
def test_a_newest_event_that_tells_nothing(told):
    """A day tells what its newest event tells, also if an hour before tells metadata."""
    hours = {}
    for hour, tells in told.items():
        stats = hours[hour * HOUR_US] = stats_of([{"t": 1.0}])
        stats.member = Member(hour * HOUR_US, "{}") if tells else None
    newest = max(told)
    expected = Member(newest * HOUR_US, "{}") if told[newest] else None
    assert merged(hours, BY_DEFAULT).stats.member == expected
