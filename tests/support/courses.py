"""What rows of statistics that depend on the reading before a window have to contain."""

from itertools import pairwise

import pytest
from hypothesis import strategies as st

from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.core.queries.reads import RowSelection
from pipeline.core.rows.aggregate_rows import aggregate_range, parse_aggregate_row
from pipeline.core.schema.layouts import CellSelection
from tests.support.groups import event, restarted

HOUR, DAY = 3_600_000_000, 86_400_000_000
_MINUTE, _MIDNIGHT = HOUR // 60, 20_501 * DAY
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
    st.integers(0, 30 * 60 - 1).map(lambda minute: _MIDNIGHT + minute * _MINUTE),
    st.dictionaries(st.sampled_from(["t", "u", "v"]), st.integers(-50, 50).map(float), min_size=1),
    min_size=1,
    max_size=14,
)


def deliver(group, readings, chance, more=()):
    """Gives a group a sensor's readings twice, in any batches, with late ones of any age, and with restarts.

    Args:
        group: the group, whose readings are of the sensor ``s``.
        readings: the values of each event by its time.
        chance: decides the order of readings, and what happens between them.
        more: further times with values.

    Returns:
        The group, or the one after its last restart.
    """
    deliveries = [*readings.items(), *readings.items(), *more]
    chance.shuffle(deliveries)
    while deliveries:
        some = [deliveries.pop() for _ in range(min(len(deliveries), chance.randint(1, 5)))]
        group.receive(*(event("s", time_us, of_event) for time_us, of_event in some))
        if chance.random() < 0.3:
            group.watermark(_MIDNIGHT + chance.randint(0, 40) * HOUR)
        if chance.random() < 0.3:
            group.pass_time(chance.choice([2, 30]) * _MINUTE)
        if chance.random() < 0.2:
            group = restarted(group)
    return group


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


def stored(name, schema, sensor_id="a"):
    """Returns the records of a sensor's aggregate rows, by window and start."""
    found = {}
    with RowReader.open(name) as reader:
        for tier in schema.tiers:
            keys = aggregate_range(tier.window, sensor_id, 0, 1 << 52)
            for row in reader.read_selection(RowSelection(keys, CellSelection((tier.family,), versions=1))):
                record = parse_aggregate_row(tier.window, row, tier.statistics)
                found[tier.window.text, record.start_us] = record
    return found
