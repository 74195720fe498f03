import math
import pickle
import random
import statistics
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.stats import MetricStats, WindowStats

sane = st.floats(-1e12, 1e12)
any_finite = st.floats(allow_nan=False, allow_infinity=False)


def stats_of(values):
    stats = MetricStats()
    for value in values:
        stats.add(value)
    return stats


def merged(*parts):
    """A new accumulator of all parts, which stay as they are."""
    return reduce(lambda into, part: (into.merge(part), into)[1], parts, MetricStats())


def assert_agree(one, other, values):
    """Counts and extremes are equal; what depends on the order of adding differs by at most 1e-9 · Σ|x|."""
    assert (one.count, one.minimum, one.maximum) == (other.count, other.minimum, other.maximum)
    tolerance = 1e-9 * math.fsum(map(abs, values))
    assert one.total == pytest.approx(other.total, rel=0, abs=tolerance)
    assert one.average == pytest.approx(other.average, rel=0, abs=tolerance)
    assert one.deviation == pytest.approx(other.deviation, rel=0, abs=tolerance)


@given(st.lists(sane, min_size=1, max_size=60))
def test_agrees_with_numpy(values):
    """Count, minimum and maximum are NumPy's exactly, the rest within the contract's tolerance."""
    stats = stats_of(values)
    tolerance = 1e-9 * math.fsum(map(abs, values))
    assert (stats.count, stats.minimum, stats.maximum) == (len(values), np.min(values), np.max(values))
    assert abs(stats.total - np.sum(values)) <= tolerance
    assert abs(stats.average - np.mean(values)) <= tolerance
    assert abs(stats.deviation - np.std(values)) <= tolerance


def test_numerically_stable():
    """A spread of one on top of a billion keeps its digits, which a sum of squares would lose."""
    values = [1e9 + x for x in (4.0, 7.0, 13.0, 16.0)]
    assert stats_of(values).deviation == pytest.approx(math.sqrt(22.5), rel=1e-12)


@given(st.lists(st.lists(sane, max_size=20), min_size=2, max_size=4).filter(any))
def test_merge_is_commutative_and_like_adding(parts):
    """Parts merged in either order are what adding every value one by one gives."""
    values = [value for part in parts for value in part]
    accumulators = [stats_of(part) for part in parts]
    assert_agree(merged(*accumulators), stats_of(values), values)
    assert_agree(merged(*reversed(accumulators)), stats_of(values), values)


@given(st.lists(sane, max_size=20), st.lists(sane, max_size=20), st.lists(sane, min_size=1, max_size=20))
def test_merge_is_associative(a, b, c):
    """(a + b) + c is a + (b + c)."""
    left = merged(merged(stats_of(a), stats_of(b)), stats_of(c))
    right = merged(stats_of(a), merged(stats_of(b), stats_of(c)))
    assert_agree(left, right, [*a, *b, *c])


adversarial = any_finite | st.sampled_from([1e308, -1e308, 1.7976931348623157e308, 5e-324, -5e-324, 0.0, -0.0, 1e9])


def window_of(values):
    """One by one."""
    window = WindowStats()
    for value in values:
        window.add({"t": value})
    return window


@given(
    st.lists(adversarial, max_size=20),
    st.lists(adversarial, min_size=1, max_size=40)
    | st.builds(lambda value, count: [value] * count, adversarial, st.integers(1, 40)),
)
def test_a_block_is_like_its_values(before, values):
    """A block is what its values are one by one, alone and added to others: huge, tiny, equal or a single one."""
    window = window_of(before)
    window.extend([("t", values)], len(values))
    every = [*before, *values]
    for found, expected, of in (
        (MetricStats.of(values), window_of(values).metrics["t"], values),
        (window.metrics["t"], window_of(every).metrics["t"], every),
    ):
        assert (found.count, found.minimum, found.maximum) == (expected.count, expected.minimum, expected.maximum)
        assert not any(math.isnan(getattr(found, name)) for name in MetricStats.__slots__)
        scale = max(map(abs, of))
        assert found.mean == pytest.approx(expected.mean, rel=0, abs=1e-9 * scale + 1e-320)
        if scale * len(of) < 1e300:  # far from where sums overflow, and in which order matters
            assert found.total == pytest.approx(expected.total, rel=0, abs=1e-9 * scale * len(of) + 1e-320)
        if scale < 1e150:  # so it is with squares
            assert found.deviation == pytest.approx(expected.deviation, rel=0, abs=1e-7 * scale + 1e-150)
    assert window.events == len(every)


@given(adversarial, st.integers(1, 40))
def test_a_block_of_equal_values(value, count):
    """It has no spread, and its mean is the value."""
    stats = MetricStats.of([value] * count)
    assert (stats.minimum, stats.mean, stats.maximum, stats.m2) == (value, value, value, 0)


@pytest.mark.parametrize(("offset", "spread"), [(1e9 + 1 / 3, 1e-4), (1e12, 0.01), (1.7e9, 1e-4)])
@pytest.mark.parametrize("count", [3600, 100_000])
def test_a_large_block_far_from_zero(offset, spread, count):
    """The mean of many is exact, so that no error of it is in the spread."""
    rng = random.Random(count)
    values = [offset + rng.gauss(0, spread) for _ in range(count)]
    assert math.isclose(MetricStats.of(values).deviation, statistics.pstdev(values), rel_tol=1e-4)


def test_a_block_is_numerically_stable():
    """So are blocks, which a sum of squares would make nothing of."""
    stats = MetricStats.of([1e9 + x for x in (4.0, 7.0, 13.0, 16.0)])
    assert stats.deviation == pytest.approx(math.sqrt(22.5), rel=1e-12)


@pytest.mark.parametrize(
    ("values", "total"),
    [([1e308] * 2, math.inf), ([-1e308] * 2, -math.inf), ([1e308, 1e308, -1e308], math.inf)],
)
def test_a_block_whose_sum_overflows(values, total):
    """Its sum is infinite, its average still that of the values; and so it stays beside the opposite."""
    stats = MetricStats.of(values)
    assert stats.total == total
    assert stats.average == pytest.approx(sum(value / len(values) for value in values))
    assert merged(stats, MetricStats.of([-value for value in values])).total == math.inf


@given(st.lists(any_finite, min_size=1, max_size=20))
def test_the_empty_one_is_neutral(values):
    """Merging with an accumulator that has seen nothing changes nothing at all, from either side."""
    alone, before, after = (
        stats_of(values),
        *(merged(*p) for p in ((MetricStats(), stats_of(values)), (stats_of(values), MetricStats()))),
    )
    for name in MetricStats.__slots__:
        assert getattr(before, name) == getattr(after, name) == getattr(alone, name)


@given(st.lists(any_finite, min_size=1, max_size=30), st.integers(0, 30))
def test_never_nan(values, cut):
    """Whatever finite values come, in parts or not, nothing is NaN, and minimum, average and maximum are finite."""
    for stats in (stats_of(values), merged(stats_of(values[:cut]), stats_of(values[cut:]))):
        assert not math.isnan(stats.total)
        assert not math.isnan(stats.deviation)
        assert math.isfinite(stats.average)
        assert stats.minimum == min(values)
        assert stats.maximum == max(values)


@pytest.mark.parametrize(
    ("values", "total"),
    [
        ([1e308, 1e308], math.inf),
        ([-1e308, -1e308], -math.inf),
        ([1e308, 1e308, -1e308], math.inf),
    ],
)
def test_overflowing_sum_is_infinite(values, total):
    """A sum that overflows is infinite and stays so; the average is still that of the values."""
    stats = stats_of(values)
    assert stats.total == total
    assert stats.average == pytest.approx(sum(value / len(values) for value in values))


def test_opposite_overflows_are_no_nan():
    """+inf and −inf, two sums that have both overflowed, make an infinity."""
    both = merged(stats_of([1e308, 1e308]), stats_of([-1e308, -1e308]))
    assert both.total == math.inf
    assert both.average == 0


def test_events_are_counted_once_and_metrics_apart():
    """A window counts events; a metric counts the events that have it."""
    window = WindowStats()
    window.add({"temperature": 20.0, "humidity": 50.0})
    window.add({"temperature": 22.0})
    assert window.events == 2
    assert (window.metrics["temperature"].count, window.metrics["humidity"].count) == (2, 1)


def test_merge_leaves_the_other_alone():
    """What was merged can go on counting without being seen in what it was merged into."""
    one, other = WindowStats(), WindowStats()
    other.add({"temperature": 1.0})
    one.merge(other)
    other.add({"temperature": 2.0})
    assert (one.events, one.metrics["temperature"].count) == (1, 1)


def test_pickles():
    """Accumulators travel between workers."""
    window = WindowStats()
    window.add({"temperature": 1.5})
    copy = pickle.loads(pickle.dumps(window))  # noqa: S301 (our own)
    assert copy.events == 1
    assert copy.metrics["temperature"].total == 1.5
