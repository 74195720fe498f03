import math
import random
import statistics
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.accumulation.accumulator import read_window, window_bytes
from pipeline.core.rows.aggregate_rows import aggregate_row, stats_of
from pipeline.core.rows.records import AggregateRecord, MetricSummary
from pipeline.core.statistics.window_stats import MetricStats, WindowStats
from pipeline.core.windows import HOURLY
from tests.support.exact_stats import GREATEST, LEAST, any_finite, assert_exact, lists
from tests.support.exhaustive import examples


def one_by_one(values):
    stats = MetricStats()
    for value in values:
        stats.add(value)
    return stats


def merged(*parts):
    """Merges all parts into a new accumulator; the parts stay unchanged."""
    return reduce(lambda into, part: (into.merge(part), into)[1], parts, MetricStats())


def as_bytes(window):
    """Returns the window after serialization, as a runner does between steps."""
    return read_window(window_bytes(window))


def as_row(window):
    """Returns the window after a round trip through an aggregate row, as after a restart of the job."""
    cells = {cell.qualifier: float(cell.value) for cell in aggregate_row(HOURLY, "a", 0, window, "s").cells}
    statistics = [cells[b"%s_t" % name] for name in (b"sum", b"min", b"max", b"avg", b"stddev")]
    summary = MetricSummary(int(cells[b"count_t"]), *statistics)
    return stats_of(AggregateRecord("a", 0, HOURLY, int(cells[b"reading_count"]), {"t": summary}))


def accumulated(values, rng):
    """Accumulates the values in parts, one by one or at once, converted at random and merged in any order."""
    parts = []
    values = list(values)
    while values:
        part = [values.pop(rng.randrange(len(values))) for _ in range(min(rng.choice([1, 2, 3, 10, 100]), len(values)))]
        window = WindowStats()
        if rng.randrange(2):
            window.extend([("t", part)], len(part))
        else:
            for value in part:
                window.add({"t": value})
        parts.append(window)
    conversions = [as_bytes, as_row, lambda window: window, lambda window: window]
    while len(parts) > 1:
        one, other = (rng.choice(conversions)(parts.pop(rng.randrange(len(parts)))) for _ in range(2))
        one.merge(other)
        parts.append(one)
    return rng.choice(conversions)(parts[0])


@settings(max_examples=examples(1000))
@given(lists(max_size=50), st.randoms(use_true_random=False))
def test_exact_at_every_magnitude(values, rng: random.Random):
    """The statistics are as exact as promised, whatever doubles the values are and however they are accumulated."""
    window = accumulated(values, rng)
    assert window.events == len(values)
    assert_exact(window.metrics["t"], values)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([65.2] * 10, id="a sum that is rounded up"),
        pytest.param([0.1] * 10, id="a sum that is rounded down"),
        pytest.param([math.nextafter(65.2, 0)] + [65.2] * 20, id="a sum that is rounded up, of values that differ"),
        pytest.param([1.3e154, -1.4e154] * 3, id="squares that overflow"),
        pytest.param([1e-200, 3e-200] * 3, id="squares that vanish"),
        pytest.param([1e150, 1e-150] * 3, id="both"),
        pytest.param([GREATEST, -GREATEST] * 3, id="a deviation that is rounded beyond the doubles"),
        pytest.param([GREATEST, -GREATEST] * 500, id="a distance and a norm that overflow"),
        pytest.param([GREATEST] * 1000, id="the greatest double"),
        pytest.param([LEAST * i for i in range(1000)], id="the least doubles"),
        pytest.param([1e308, 1e308, -1e308, 1.0], id="a sum that comes back into range"),
        pytest.param([1e300] + [1.0] * 1000, id="one that is all of it"),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_exact_at_the_edges(values, seed):
    """The statistics are as exact as promised where plain formulas fail: at once, one by one and in parts."""
    assert_exact(MetricStats.of(values), values)
    assert_exact(one_by_one(values), values)
    assert_exact(accumulated(values, random.Random(seed)).metrics["t"], values)


@pytest.mark.slow
def test_large_and_lopsided():
    """The rounding errors of tens of thousands of steps stay within the tolerance."""
    values = [1e300] + [1.0] * 50_000
    assert_exact(one_by_one(values), values)
    assert_exact(merged(*map(MetricStats.of, zip(values))), values)


@pytest.mark.parametrize(("offset", "spread"), [(1e9 + 1 / 3, 1e-4), (1e12, 0.01), (1.7e9, 1e-4)])
@pytest.mark.parametrize("count", [3600, 100_000])
def test_a_large_block_far_from_zero(offset, spread, count):
    """The mean of many values is exact, so its error does not affect the deviation."""
    rng = random.Random(count)
    values = [offset + rng.gauss(0, spread) for _ in range(count)]
    assert math.isclose(MetricStats.of(values).deviation, statistics.pstdev(values), rel_tol=1e-4)


@pytest.mark.parametrize(
    ("values", "total"),
    [
        ([1e308] * 2, math.inf),
        ([-1e308] * 2, -math.inf),
        ([1e308, 1e308, -1e308], 1e308),
        ([-1e308] * 3 + [1e308] * 3, 0.0),
    ],
)
def test_a_sum_that_overflows(values, total):
    """A sum is infinite only if its exact value exceeds a double, not if partial sums do. Averages are finite."""
    both = merged(one_by_one(values), MetricStats.of([-value for value in values]))
    for stats in (one_by_one(values), MetricStats.of(values), merged(*map(MetricStats.of, zip(values)))):
        assert stats.total == pytest.approx(total, abs=1e300)
        assert stats.average == pytest.approx(sum(value / len(values) for value in values), abs=1e300)
    assert (both.total, both.average) == pytest.approx((0, 0), abs=1e300)


@given(st.lists(any_finite, min_size=1, max_size=20))
def test_the_empty_one_is_neutral(values):
    """Merging with an empty accumulator changes nothing, from either side."""
    alone, before, after = (
        one_by_one(values),
        *(merged(*p) for p in ((MetricStats(), one_by_one(values)), (one_by_one(values), MetricStats()))),
    )
    for name in MetricStats.__slots__:
        assert getattr(before, name) == getattr(after, name) == getattr(alone, name)


def test_merge_leaves_the_other_alone():
    """A merged accumulator can keep counting without changing the target."""
    one, other = WindowStats(), WindowStats()
    other.add({"temperature": 1.0})
    one.merge(other)
    other.add({"temperature": 2.0})
    assert (one.events, one.metrics["temperature"].count) == (1, 1)
