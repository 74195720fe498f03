"""Statistics that depend on the last reading before a window."""

from itertools import pairwise

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pipeline.core.schema.toml import parse_schema
from tests.core.statistics.test_rows import DAY, HOUR, MIDNIGHT, event, restarted, rows_of
from tests.groups import LATENESS, MINUTE, Group

SCHEMA = """
[policies]
raw = "never"

[tiers]
1h = "hours"
1d = "days"

[statistics]
t = ["increase", "rate", "time_weighted_mean"]
u = ["time_weighted_mean:linear", "increase", "last"]
"""
READINGS = st.dictionaries(
    st.integers(0, 30 * 60 - 1).map(lambda minute: MIDNIGHT + minute * MINUTE),
    st.dictionaries(st.sampled_from(["t", "u", "v"]), st.integers(-50, 50).map(float), min_size=1),
    min_size=1,
    max_size=14,
)


def course_of(events, metric, start_us, end_us):
    """Returns the last reading before a window, if any, and those in it: times and values."""
    readings = [(at, of_event[metric]) for at, of_event in sorted(events.items()) if metric in of_event]
    return [each for each in readings if each[0] < start_us][-1:], [
        each for each in readings if start_us <= each[0] < end_us
    ]


def expected_of(before, inside, start_us, end_us):
    """Returns the statistics, computed plainly from a definition of each."""
    course = before + inside
    increase = sum(b - a if b >= a else max(b, 0) for (_, a), (_, b) in pairwise(course))
    first_us, last_us = inside[0][0], inside[-1][0]
    from_us = start_us if before else first_us
    held = slope = 0.0
    for (at, a), (to, _) in pairwise([*course, (end_us, None)]):
        held += a * (to - max(at, start_us))
    for (at, a), (to, b) in pairwise(course):
        since = max(at, start_us)
        at_since = a + (b - a) * (since - at) / (to - at)
        slope += (at_since + b) / 2 * (to - since)
    return {
        "increase": increase,
        "rate": increase / (end_us - from_us) * 1e6,
        "locf": held / (end_us - from_us),
        "linear": slope / (last_us - from_us) if last_us > from_us else inside[-1][1],
    }


def check(rows, events, windows=(("1h", HOUR), ("1d", DAY))):
    """Compares all rows with the readings they have to be of."""
    lengths = dict(windows)
    assert rows.keys() == {(window, at - at % length_us) for window, length_us in windows for at in events}
    for (window, start_us), record in rows.items():
        end_us = start_us + lengths[window]
        for metric, names in {"t": ("increase", "rate", "locf"), "u": ("increase", "linear")}.items():
            before, inside = course_of(events, metric, start_us, end_us)
            assert (metric in record.metrics) == bool(inside)
            if inside:
                found = record.metrics[metric].statistics()
                for name, value in expected_of(before, inside, start_us, end_us).items():
                    if name in names:
                        of_name = found[name if name in found else "time_weighted_mean"]
                        assert of_name == pytest.approx(value, rel=1e-9, abs=1e-9), (window, start_us, metric, name)


@settings(max_examples=100, phases=[Phase.generate], deadline=None)
@given(READINGS, st.randoms(use_true_random=False))
def test_any_order_gives_the_same_rows(readings, chance):
    """In any batches, however often delivered, with late readings of any age and with restarts."""
    group = Group(parse_schema(SCHEMA), MIDNIGHT + 2 * DAY)
    deliveries = list(readings.items()) * 2
    chance.shuffle(deliveries)
    while deliveries:
        some = [deliveries.pop() for _ in range(min(len(deliveries), chance.randint(1, 5)))]
        group.receive(*(event("s", time_us, of_event) for time_us, of_event in some))
        if chance.random() < 0.3:
            group.watermark(MIDNIGHT + chance.randint(0, 40) * HOUR)
        if chance.random() < 0.3:
            group.pass_time(chance.choice([2, 30]) * MINUTE)
        if chance.random() < 0.2:
            group = restarted(group)
    group.watermark(MIDNIGHT + 3 * DAY + LATENESS)
    group.pass_time(2 * MINUTE)
    check(rows_of(group), readings)
