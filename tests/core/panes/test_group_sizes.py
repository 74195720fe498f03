"""The arithmetic of a group's state agrees with the state of real groups, and refuses what can't be committed."""

import random
from collections import Counter

import pytest

from pipeline.core.events.event import Event
from pipeline.core.panes.firing import Aggregation, FiringRules
from pipeline.core.panes.group_sizes import commit_problem, group_sizes, largest_group, sensor_bytes
from pipeline.core.panes.group_state import Bags
from pipeline.core.schema.rate import Rate, group_of
from pipeline.core.schema.toml import parse_schema
from tests.support.groups import HOUR, LATENESS, MINUTE, SECOND, Group, Values

START = 1_771_286_400_000_000
STEP = 5 * MINUTE
MORE = '[statistics]\nother = ["first", "last", "p50", "p95", "increase", "rate", "time_weighted_mean"]'


def aggregation(schema, early_us=5 * MINUTE):
    firing = FiringRules(schema.tiers[0].window, early_us, MINUTE, LATENESS)
    return Aggregation(schema.tiers, firing, None, schema.latest)


class Counted(Values):
    """A bag that counts what is read and added, in all bags together."""

    total = 0

    def read(self):
        """Returns what was added."""
        Counted.total += sum(map(len, self))
        return super().read()

    def add(self, value):
        """Adds a value."""
        Counted.total += len(value)
        self.append(value)


def real_state(schema, rate, early_us, hours):
    """Returns for every five minutes the bytes of a group's windows, and the bytes of them that were read and written.

    The readings are those of benchmarks/sizes.py.
    """
    rng = random.Random(1)
    group = Group(schema, START, early_us=early_us)
    group.bags = Bags(Values(), Values(), Counted())
    values = [[rng.uniform(10, 30) for _ in range(rate.metrics)] for _ in range(rate.sensors)]
    phases = [rng.randrange(rate.every_us) for _ in values]
    sizes, traffic = [], []
    for from_us in range(0, hours * HOUR, STEP):
        events = []
        for sensor, (phase, of_sensor) in enumerate(zip(phases, values, strict=True)):
            for time_us in range(from_us + (phase - from_us) % rate.every_us, from_us + STEP, rate.every_us):
                of_sensor[:] = [value + rng.gauss(0, 0.1) for value in of_sensor]
                readings = {f"metric_{number:09}": round(value, 2) for number, value in enumerate(of_sensor)}
                at_us = START + (time_us + rng.randrange(10_000)) // 1000 * 1000
                events.append(Event(f"sensor-{sensor:09}", at_us, readings, {}))
        Counted.total = 0
        group.pass_time_to(START + from_us + STEP - SECOND)
        group.receive(*events)
        group.pass_time_to(START + from_us + STEP)
        sizes.append(sum(map(len, group.chunks)))
        traffic.append(Counted.total)
    return sizes, traffic


@pytest.mark.parametrize(
    ("text", "metrics", "every_us", "early", "hours"),
    [
        ("", 1, MINUTE, 5, 3),
        pytest.param("", 10, MINUTE, 5, 3, marks=pytest.mark.exhaustive),
        pytest.param("", 3, 10 * SECOND, 5, 3, marks=pytest.mark.exhaustive),
        ("", 3, SECOND, 5, 2),
        ("", 3, 30 * MINUTE, 5, 3),
        ("", 3, MINUTE, 0, 3),
        ('tiers = { 15m = "q" }', 3, MINUTE, 5, 3),
        (MORE, 3, 4 * MINUTE, 5, 4),
    ],
)
def test_a_real_group(text, metrics, every_us, early, hours):
    """The state at its peak is within 15 % of the job's own classes', and what firings read and write is near."""
    schema, sensors = parse_schema(text), 4 if every_us < MINUTE else 10 if every_us < 30 * MINUTE else 60
    rate = Rate(every_us, metrics, sensors=sensors)
    sizes, traffic = real_state(schema, rate, early * MINUTE, hours)
    settings = aggregation(schema, early * MINUTE)
    assert sensor_bytes(settings, rate).peak == pytest.approx(max(sizes) / sensors, rel=0.15)
    estimated, found = group_sizes(settings, rate), sum(traffic[-12:]) / 3600 / sensors
    assert 0.65 * found < estimated.traffic_per_second / estimated.sensors < 1.35 * found


@pytest.mark.parametrize(("sensors", "groups"), [(100, 256), (100_000, 256), (300_000, 512)])
def test_the_largest_group(sensors, groups):
    """No group of numbered sensors is larger, and the largest is not much smaller."""
    found = Counter(group_of(f"sensor-{number:06}".encode(), groups) for number in range(sensors))
    assert 0.75 * largest_group(sensors, groups) - 3 <= max(found.values()) <= largest_group(sensors, groups)


def test_few_sensors():
    """A group never has more sensors than there are, and a single sensor may be one."""
    assert largest_group(1, 256) == 1
    assert largest_group(2, 1) == 2


def test_firings():
    """A group fires early and when windows end; one whose sensors seldom send fires less often."""
    settings = aggregation(parse_schema(""))
    busy = group_sizes(settings, Rate(MINUTE, sensors=100_000))
    assert busy.firings_per_second * 3600 == pytest.approx(12 + 2)
    idle = group_sizes(settings, Rate(24 * HOUR, sensors=1))
    assert idle.firings_per_second * 86_400 == pytest.approx(1 + 2)


def test_a_commit_too_large():
    """A firing that Dataflow would not commit is refused with the arithmetic; a shorter window helps."""
    rate = Rate(SECOND, 20, sensors=250_000)
    day = aggregation(parse_schema('tiers = { 1d = "d" }'))
    assert commit_problem(day, rate) == (
        "the largest of 2,048 groups may have 168 sensors × 1,414,098 bytes of windows = 238 MB of state, over the "
        "135 MB that a firing can commit on Dataflow; declare a shorter first tier, or write fewer metrics or sensors "
        "to a table"
    )
    assert commit_problem(aggregation(parse_schema("")), rate) is None


def test_unknown_sizes():
    """Without a rate and a number of sensors, nothing is known."""
    assert commit_problem(aggregation(parse_schema("")), None) is None
    assert commit_problem(aggregation(parse_schema("")), Rate(1)) is None
