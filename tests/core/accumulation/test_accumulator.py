import math
import random
from collections import defaultdict
from fractions import Fraction
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.accumulation.accumulator import Pane, WindowReadings, merged
from pipeline.core.accumulation.reading_columns import event_key
from pipeline.core.statistics.member import Member
from pipeline.core.statistics.window_stats import BY_DEFAULT, WindowStats
from tests.support.exact_stats import GREATEST, assert_exact, kinds

# The true events by identity (time and discriminator). Each has one value per metric, however often and in whatever
# parts it is delivered.
truths = kinds.flatmap(
    lambda values: st.dictionaries(
        st.tuples(
            st.integers(0, 3_600_000_000) | st.integers(0, 9_999_999_999_999_999),
            st.sampled_from(["", "north", "é#1"]),
        ),
        st.dictionaries(st.sampled_from("tuvw"), values, min_size=1),
        min_size=1,
        max_size=12,
    )
)


def parts_of(readings, rng):
    """Returns an event as one or two parts, which may overlap."""
    names = sorted(readings)
    cut = rng.randrange(len(names) + 1)
    parts = [{n: readings[n] for n in names[: cut + 1]}, {n: readings[n] for n in names[cut:]}]
    return [part for part in parts if part]


def accumulated(deliveries):
    found = WindowReadings()
    for identity, readings in deliveries:
        time_us, discriminator = identity if isinstance(identity, tuple) else (identity, "")
        found.add(time_us, readings, discriminator)
    return found


def copied(readings):
    return WindowReadings.from_bytes(readings.to_bytes())


def stats_of(truth):
    stats = WindowStats()
    for _, readings in sorted(truth.items()):
        stats.add(readings)
    return stats


def assert_same(found, expected):
    """Compares counts, minima and maxima exactly, and sums with the tolerance for the order of addition."""
    assert found.events == expected.events
    assert found.metrics.keys() == expected.metrics.keys()
    for metric, of_metric in expected.metrics.items():
        got = found.metrics[metric]
        assert (got.count, got.minimum, got.maximum) == (of_metric.count, of_metric.minimum, of_metric.maximum)
        tolerance = 1e-9 * 1e6 * of_metric.count
        assert math.isclose(got.total, of_metric.total, abs_tol=tolerance)
        assert math.isclose(got.deviation, of_metric.deviation, rel_tol=1e-6, abs_tol=1e-3)


def by_metric(truth):
    found = defaultdict(list)
    for readings in truth.values():
        for metric, value in readings.items():
            found[metric].append(value)
    return found


def assert_counts_once(stats, truth):
    """Asserts that the statistics count each true reading once."""
    expected = by_metric(truth)
    assert stats.events == len(truth)
    assert stats.metrics.keys() == expected.keys()
    for metric, values in expected.items():
        assert_exact(stats.metrics[metric], values)


@given(truths, st.randoms(use_true_random=False))
def test_any_order_any_repetition_any_grouping(truth, rng: random.Random):
    """Each reading counts once, however often and in whatever parts and order it arrives, and whatever is merged."""
    deliveries = [(time_us, part) for time_us, readings in truth.items() for part in parts_of(readings, rng)]
    deliveries += rng.choices(deliveries, k=len(deliveries))
    rng.shuffle(deliveries)
    size = rng.randrange(1, len(deliveries) + 1)
    groups = [accumulated(deliveries[i : i + size]) for i in range(0, len(deliveries), size)]
    while len(groups) > 1:
        one, other = groups.pop(rng.randrange(len(groups))), groups.pop(rng.randrange(len(groups)))
        one.merge(copied(other) if rng.randrange(2) else other)
        groups.append(one)
    assert_counts_once(groups[0].pane().stats, truth)
    magnitudes = groups[0].magnitudes()
    for metric, values in by_metric(truth).items():
        expected = sum(abs(Fraction(value)) for value in values)
        assert abs(Fraction(min(magnitudes[metric], GREATEST)) - min(expected, GREATEST)) <= expected / 10**9


def test_restored_statistics():
    """They are added to the readings that come; another accumulator takes only readings, which count once."""
    found = accumulated([(1, {"t": 3.0})])
    found.restore(stats_of({7: {"t": 1.0}, 8: {"t": 2.0}}))
    found.merge(accumulated([(1, {"t": 3.0})]))
    assert_same(found.pane().stats, stats_of({1: {"t": 3.0}, 7: {"t": 1.0}, 8: {"t": 2.0}}))
    other = accumulated([(2, {"t": 4.0})])
    other.merge(found)
    assert_same(other.pane().stats, stats_of({1: {"t": 3.0}, 2: {"t": 4.0}}))
    assert (found.exact, other.exact) == (False, True)


@given(truths, st.randoms(use_true_random=False))
def test_without_another_accumulator(truth, rng: random.Random):
    """``without`` removes exactly the other's readings, also of events that both contain in part."""
    some = {
        t: dict(rng.sample(sorted(of_event.items()), rng.randrange(len(of_event) + 1))) for t, of_event in truth.items()
    }
    rest = accumulated(truth.items()).without(accumulated(some.items()))
    left = {t: {m: x for m, x in of_event.items() if m not in some[t]} for t, of_event in truth.items()}
    got, expected = rest.pane().stats, stats_of({t: of_event for t, of_event in left.items() if of_event})
    assert got.events == expected.events
    assert {m: (s.count, s.minimum, s.maximum) for m, s in got.metrics.items()} == {
        m: (s.count, s.minimum, s.maximum) for m, s in expected.metrics.items()
    }


@given(truths, truths, st.randoms(use_true_random=False))
def test_a_merge_leaves_the_other_alone(truth, more, rng: random.Random):
    """The merged accumulator stays the same to the last byte, also when the target accumulates more."""
    one, other = accumulated(truth.items()), accumulated(more.items())
    if rng.randrange(2):
        other = WindowReadings.from_bytes(other.to_bytes())
    before = other.to_bytes()
    one.merge(other)
    for time_us in (3, 4, 5, 6):
        one.add(time_us, {"t": 1.0, "w": 2.0})
    one.pane()
    one.merge(other)
    assert other.to_bytes() == before
    assert_counts_once(other.pane().stats, more)


@pytest.mark.parametrize("count", [2, 100])
def test_metrics_in_any_order(count):
    """The order of metrics does not matter. A protobuf map has its entries in any order."""
    ordered = accumulated((i, {"t": float(i), "u": -1.0}) for i in range(count))
    mixed = accumulated((i, {"t": float(i), "u": -1.0} if i % 2 else {"u": -1.0, "t": float(i)}) for i in range(count))
    assert_same(mixed.pane().stats, ordered.pane().stats)
    mixed.merge(accumulated((i, {"u": -1.0, "t": float(i)}) for i in range(count)))
    assert_same(mixed.pane().stats, ordered.pane().stats)
    if count == 100:
        assert len(mixed.to_bytes()) == len(ordered.to_bytes())  # one group


def test_a_row_of_metadata_alone():
    """A row without readings is not counted as an event, and the accumulator still serializes."""
    found = accumulated([(5, {"t": 1.0})])
    found.merge(accumulated([(6, {})]))
    assert copied(found).pane().stats.events == 1


def test_a_pane_stays_as_it_is():
    """A pane and the given readings do not change when more readings are added."""
    readings = {"t": 1.0}
    found = accumulated([(5, readings)])
    pane = found.pane()
    found.add(5, {"u": 1.0})
    found.add(6, {"t": 1.0})
    assert pane == Pane(pane.stats)
    assert (pane.stats.events, pane.stats.metrics.keys(), readings) == (1, {"t"}, {"t": 1.0})


wide_or_not = st.integers(0, 40) | st.integers(0, 3).flatmap(lambda time: st.sampled_from([time << 64 | 7, time << 64]))
deliveries = st.lists(
    st.tuples(wide_or_not, st.dictionaries(st.sampled_from("tuv"), kinds.flatmap(lambda each: each), min_size=1)),
    max_size=30,
)


@given(deliveries, st.integers(1, 6), st.randoms(use_true_random=False))
def test_what_is_sealed_is_known(arriving, least, rng: random.Random):
    """A reading counts once, wherever it is kept: sealed, in columns or fresh; of several values, the last counts."""
    truth = {}
    found = WindowReadings()
    with patch("pipeline.core.accumulation.accumulator.SEAL_AT", least):
        while arriving:
            size = rng.randrange(1, 8)
            part, arriving = arriving[:size], arriving[size:]
            into = found if rng.randrange(3) else WindowReadings()
            metrics = tuple(rng.sample(sorted(part[0][1]), len(part[0][1])))
            if rng.randrange(2):  # many at once, all with the metrics of the first
                part = [(time, {metric: readings.get(metric, 0.5) for metric in metrics}) for time, readings in part]
                into.extend(metrics, [time for time, _ in part], [x for _, of_event in part for x in of_event.values()])
            else:
                for time, readings in part:
                    into.add(time, readings)
            for time, readings in part:
                truth[time] = {**truth.get(time, {}), **readings}
            if into is not found:
                found.merge(copied(into) if rng.randrange(2) else into)
            if rng.randrange(2):
                encoded = found.to_bytes()
                found = WindowReadings.from_bytes(encoded)
                assert found.to_bytes() == encoded
    assert_counts_once(found.pane().stats, truth)
    assert found._by_time() == truth
    assert not copied(found).without(found).pane().stats.events


def walking(metrics, hertz, seconds):
    """Yields events of values that move a little from each to the next, with two decimals."""
    rng = random.Random(1)
    values = [rng.uniform(10, 30) for _ in range(metrics)]
    for i in range(seconds * hertz):
        values = [value + rng.gauss(0, 0.1) for value in values]
        yield 10**15 + i * 1_000_000 // hertz, {f"m{m}": round(value, 2) for m, value in enumerate(values)}


@pytest.mark.parametrize(("hertz", "metrics"), [(1, 1), (1, 3), (10, 3), (10, 1)])
@pytest.mark.slow
def test_the_state_s_size(hertz, metrics):
    """A sealed reading of a sensor takes at most two bytes. Fewer than 256 events wait to be sealed."""
    found = WindowReadings()
    size = 0
    for index, (time_us, readings) in enumerate(walking(metrics, hertz, 3600), 1):
        found.add(time_us, readings)
        if index % (60 * hertz) == 0:
            size = len(found.to_bytes())
            found = WindowReadings.from_bytes(found.to_bytes())
            assert size < 2 * index * metrics + 256 * (4 + 8 * metrics) + 700
    assert size < 2 * 3600 * hertz * metrics + 256 * (4 + 8 * metrics) + 700
    assert not found.without(accumulated(walking(metrics, hertz, 3600))).pane().stats.events


def test_the_size_of_wide_times():
    """A time takes eight bytes more if events are identified by more than their time."""
    found = WindowReadings()
    for i, (time_us, readings) in enumerate(walking(1, 1, 3600)):
        found.add(time_us, readings, f"e-{i}")
    assert 3600 * 8 < len(found.to_bytes()) < 3600 * 10 + 256 * 8


def test_too_many_metrics(monkeypatch):
    """A window with too many metrics drops its content and stays too wide, whatever it is merged with."""
    monkeypatch.setattr("pipeline.core.accumulation.accumulator.MAX_METRICS", 10)
    accumulators = []
    for part in range(4):
        found = WindowReadings()
        for i in range(4):
            found.add(part * 4 + i, {f"m{part * 4 + i}": 1.0})
        accumulators.append(WindowReadings.from_bytes(found.to_bytes()))
    merged = WindowReadings()
    too_wide = []
    for each in accumulators:
        merged.merge(each)
        too_wide.append(merged.pane().too_wide)
    assert too_wide == [False, False, True, True]
    assert not merged.pane().stats.events
    merged.add(99, {"m0": 1.0})
    assert len(merged.to_bytes()) == 2
    assert WindowReadings.from_bytes(merged.to_bytes()).pane().too_wide
    accumulators[0].merge(merged)
    assert accumulators[0].pane().too_wide


@pytest.mark.parametrize("discriminator", ["", "id"])
@pytest.mark.parametrize("events", [1, 100])
def test_an_event_before_roll_ups_needed_its_metadata(discriminator, events):
    """It stays the newest one of its window, which tells nothing until a newer one comes."""
    found = WindowReadings()
    for time_us in range(1000, 1000 + events):
        found.add(time_us, {"t": 1.0}, discriminator)
    found = WindowReadings.from_bytes(found.to_bytes())
    older, newer = (Member(event_key(time_us, discriminator), "{}") for time_us in (999, 1000 + events))
    for member, expected in ((older, None), (newer, newer), (older, newer)):
        found.add(member.event_time_us, {"t": 1.0}, discriminator)
        found.note(member)
        assert found.pane().stats.member == expected


def test_the_newest_event_of_readings_that_are_known_tells_the_texts_before():
    """The readings of raw rows come before their events: a group that the sensor has left is not forgotten."""
    found = WindowReadings()
    for time_us in (1, 2):
        found.add(time_us, {"t": 1.0})
    found.note(Member(event_key(1, ""), '{"room":"a"}'), Member(event_key(2, ""), '{"room":"b"}'))
    assert (found.member.text, found.member.before) == ('{"room":"b"}', ('{"room":"a"}',))


HOUR_US = 3_600_000_000

# The events of each hour.
days = st.dictionaries(
    st.integers(0, 23),
    st.lists(st.dictionaries(st.sampled_from("tuv"), st.floats(-1e6, 1e6)), min_size=1, max_size=6),
    min_size=1,
)


def hour_stats(events):
    stats = WindowStats()
    for readings in events:
        stats.add(readings)
    return stats


def bits_of(stats):
    """Returns all content of the statistics, bit for bit."""
    return stats.events, {
        metric: [getattr(of_metric, name) for name in of_metric.__slots__]
        for metric, of_metric in sorted(stats.metrics.items())
    }


@given(days, st.randoms(use_true_random=False))
def test_longer_windows_in_any_order(day, rng):
    """A day counts all of its hours, bit for bit the same in whatever order they are given."""
    hours = [(hour * HOUR_US, hour_stats(events)) for hour, events in sorted(day.items())]
    found = merged(dict(hours), BY_DEFAULT).stats
    assert found.events == sum(map(len, day.values()))
    assert found.sizes == {start_us: stats.size for start_us, stats in hours}
    rng.shuffle(hours)
    assert bits_of(merged(dict(hours), BY_DEFAULT).stats) == bits_of(found)


@pytest.mark.parametrize("told", [{0: True, 1: False}, {0: False, 1: True}, {1: False, 0: True, 3: True}])
def test_a_newest_event_that_tells_nothing(told):
    """A day tells what its newest event tells, also if an hour before tells metadata."""
    hours = {}
    for hour, tells in told.items():
        stats = hours[hour * HOUR_US] = hour_stats([{"t": 1.0}])
        stats.member = Member(hour * HOUR_US, "{}") if tells else None
    newest = max(told)
    expected = Member(newest * HOUR_US, "{}") if told[newest] else None
    assert merged(hours, BY_DEFAULT).stats.member == expected
