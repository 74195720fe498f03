"""What panes contribute to roll-ups: of each window of a sensor, the last contribution is the window's row."""

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pipeline.core.panes.firing import END_US
from pipeline.core.panes.pane_contributions import RollupRules
from pipeline.core.rollups.contributions import read_batch
from pipeline.core.rollups.sums import read_sums, window_stats_of
from pipeline.core.schema.rate import group_of
from pipeline.core.schema.toml import parse_schema
from tests.support.courses import READINGS, SCHEMA
from tests.support.exhaustive import examples
from tests.support.groups import DAY, HOUR, MIDNIGHT, MINUTE, Group, event, restarted, rows_of

HOURS = '[policies]\nraw = "never"\n[tiers]\n1h = "hours"\n1d = "days"\n[rollups]\n'


def last_contributions(group):
    """Returns the last contribution by tier, start and sensor, whatever the order of batches."""
    found = {}
    changes = [each for _, batch in group.contributed for each in read_batch(batch)]
    for tier, start_us, contributions, _ in sorted(changes, key=lambda each: each.order):
        text = group.schema.tiers[tier].window.text
        for sensor, data in contributions.items():
            found[text, start_us, sensor.decode()] = window_stats_of(read_sums(data))
    return found


@settings(max_examples=examples(40), phases=[Phase.generate], deadline=None)
@given(READINGS, st.randoms(use_true_random=False))
def test_the_last_contribution_is_the_row(readings, chance):
    """In any batches, with late readings of any age, readings before others, drains and restarts."""
    schema = parse_schema(f"{SCHEMA}\n[rollups]\nfleet = {{ by = [] }}")
    begin_us = MIDNIGHT + chance.choice([0, 10 * HOUR, 2 * DAY])
    group = Group(schema, begin_us, rollups=RollupRules.of(schema, begin_us))
    deliveries = [(time_us, of_event) for time_us, of_event in readings.items() for _ in range(2)]
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
    group.watermark(END_US)
    found = {}
    for key, stats in last_contributions(group).items():
        increases = {metric: (each.parts or {}).get("risen") for metric, each in stats.metrics.items()}
        found[key] = stats.events, {metric: risen and risen.increase for metric, risen in increases.items()}
    assert found == {
        (text, start_us, "s"): (
            record.reading_count,
            {metric: summary.statistics().get("increase") for metric, summary in record.metrics.items()},
        )
        for (text, start_us), record in rows_of(group).items()
    }


def test_tiers_metrics_and_shards():
    """Only tiers and metrics of roll-ups contribute, and each sensor to its shard."""
    schema = parse_schema(f'{HOURS}shards = 4\na = {{ by = [], tiers = ["1d"], metrics = ["t"] }}')
    group = Group(schema, MIDNIGHT, rollups=RollupRules.of(schema, MIDNIGHT))
    names = [f"s{number}" for number in range(20)]
    group.receive(*(event(name, MIDNIGHT, {"t": 1.0, "u": 2.0}) for name in names))
    group.pass_time(2 * MINUTE)
    assert {key: list(stats.metrics) for key, stats in last_contributions(group).items()} == {
        ("1d", MIDNIGHT, name): ["t"] for name in names
    }
    for shard, batch in group.contributed:
        assert {group_of(sensor, 4) for each in read_batch(batch) for sensor in each.contributions} == {shard}
