"""Computes the exact statistics of values with fractions and checks accumulators against them."""

import math
import sys
from fractions import Fraction

from hypothesis import strategies as st

GREATEST, LEAST = sys.float_info.max, math.ulp(0.0)

any_finite = st.floats(allow_nan=False, allow_infinity=False)
of_one_magnitude = st.integers(-323, 308).map(lambda exponent: st.floats(-1, 1).map(lambda x: x * 10.0**exponent))
neighbours = st.floats(-1e308, 1e308).map(lambda base: st.integers(0, 2).map(lambda ulps: base + ulps * math.ulp(base)))
edges = st.sampled_from([GREATEST, -GREATEST, 1e308, -1e308, 1.3e154, -1.3e154, 1.0, LEAST, -LEAST, 0.0, -0.0])
kinds = st.sampled_from([any_finite, edges]) | of_one_magnitude | neighbours | any_finite.map(st.just)
"""Strategies of values that share their magnitude, nearly all digits, or everything."""


def lists(max_size):
    """Returns a strategy of lists of one or more values, all of one kind."""
    return kinds.flatmap(lambda values: st.lists(values, min_size=1, max_size=max_size))


def assert_exact(stats, values):
    """Asserts everything that :class:`MetricStats` promises about an accumulator of these values."""
    count = len(values)
    assert (stats.count, stats.minimum, stats.maximum) == (count, min(values), max(values))
    assert stats.minimum <= stats.average <= stats.maximum
    exact = [Fraction(value) for value in values]
    total, tolerance = sum(exact), sum(map(abs, exact)) / 10**9
    if math.isinf(stats.total):
        assert abs(total) + tolerance > GREATEST
        assert (stats.total > 0) == (total > 0)
    else:
        assert abs(Fraction(stats.total) - total) <= tolerance
    mean = total / count
    assert abs(Fraction(stats.average) - mean) <= max(tolerance / count, LEAST)
    variance = sum((value - mean) ** 2 for value in exact) / count
    off = max(tolerance / count, count * Fraction(LEAST))
    deviation = Fraction(stats.deviation)  # raises unless it is finite
    assert max(deviation - off, 0) ** 2 <= variance <= (deviation + off) ** 2
    if stats.minimum == stats.maximum:
        assert stats.deviation == 0
    elif variance > off**2:
        assert stats.deviation > 0
