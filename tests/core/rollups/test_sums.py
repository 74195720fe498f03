"""What windows have together, merged in any way, is what merging one after the other gives."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.rollups.sums import Sums, merge, moments_of, read_sums, sums_bytes, text_in, window_stats_of
from pipeline.core.statistics.parts import Risen
from pipeline.core.statistics.sketch import Sketch
from pipeline.core.statistics.window_stats import MetricStats
from tests.support.exact_stats import assert_exact, lists

NAMES = ("a", "b.c", "d_e")


def sums_of(columns, sensors=1):
    names = tuple(columns)
    parts = {name: {"sketch": Sketch.of(columns[name])} for name in names if name != "a"}
    moments = [each for name in names for each in moments_of(MetricStats.of(columns[name]))]
    return Sums(sensors, 3, names, moments, parts)


@given(st.lists(st.integers(1, 30).flatmap(lists), min_size=1, max_size=30))
def test_moments_are_exact(groups):
    """Of values of any magnitude, in few or in many groups."""
    found = window_stats_of(merge([sums_of({"a": values}) for values in groups]))
    assert found.events == 3 * len(groups)
    assert_exact(found.metrics["a"], [value for values in groups for value in values])


@given(
    st.lists(st.dictionaries(st.sampled_from(NAMES), st.lists(st.floats(-100, 100), min_size=1)), min_size=1),
    st.randoms(use_true_random=False),
)
def test_any_metrics(parts, random):
    """Each part has its own metrics; a metric's sketch is that of all its values."""
    merged = merge([sums_of(columns) for columns in parts])
    random.shuffle(parts)
    (half, other) = parts[::2], parts[1::2]
    again = merge([merge([sums_of(columns) for columns in some]) for some in (half, other) if some])
    for sums in (merged, again, read_sums(sums_bytes(merged))):
        stats = window_stats_of(sums)
        assert sums.sensors == len(parts)
        assert list(stats.metrics) == sorted({name for columns in parts for name in columns})
        for name, of in stats.metrics.items():
            values = [value for columns in parts for value in columns.get(name, ())]
            assert_exact(of, values)
            assert of.parts == (None if name == "a" else {"sketch": Sketch.of(values)})


def test_what_one_lacks_is_not_known_of_all():
    """A part or a statistic that is not known of one sensor is not known of the group, unless it has no readings."""
    known = Sums(1, 1, ("a",), moments_of(MetricStats.of([1.0, 2.0])), {"a": {"risen": Risen(1.0, 0.5)}})
    assert merge([known, known]).parts == {"a": {"risen": Risen(2.0, 1.0)}}
    assert merge([known, known._replace(parts={})]).parts == {}
    assert merge([known, Sums(1, 1, ("a",), (0.0, 0.0, math.inf, -math.inf, 0.0, 0.0))]).parts == known.parts
    assert merge([known, Sums(1, 1, (), ())]).parts == known.parts
    for unknown in range(1, 6):
        moments = list(known.moments)
        moments[unknown] = math.nan
        for many in (1, 20):
            merged = merge([known] * many + [known._replace(moments=moments)] + [known] * many).moments
            assert math.isnan(merged[unknown]) or unknown in (1, 4)  # a sum and an average give each other
            assert merged[0] == 4 * many + 2


def test_other_bytes():
    """Bytes of another release, and bytes that are cut off, are refused."""
    data = sums_bytes(sums_of({"a": [1.0], "b.c": [2.0]}), "text")
    assert text_in(data) == b"text"
    for other in (b"", data[:4], data[:-1], b"\x07" + data[1:], data + b"\x00"):
        with pytest.raises(ValueError, match=r"part of a roll-up|statistics|sketch"):
            read_sums(other)
