"""What panes contribute to roll-ups: of each window of a sensor, the newest contribution is the window's row."""

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pipeline.core.panes.firing import END_US, RollupRules
from pipeline.core.rollups.due import read_written
from pipeline.core.rollups.levels import Members
from pipeline.core.rollups.sums import read_sums, window_stats_of
from pipeline.core.rows.rollup_rows import MEMBERS, parse_members_key
from pipeline.core.schema.rate import group_of
from pipeline.core.schema.toml import parse_schema
from tests.support.courses import READINGS, SCHEMA, deliver
from tests.support.exhaustive import examples
from tests.support.groups import DAY, HOUR, MIDNIGHT, MINUTE, Group, event, rows_of
from tests.support.rollups import set_cells
from tests.support.versioned_table import VersionedTable

HOURS = '[policies]\nraw = "never"\n[tiers]\n1h = "hours"\n1d = "days"\n[rollups]\n'


def newest_contributions(group):
    """Returns what rows of members have by tier, start and sensor, in the order of panes."""
    table, found = VersionedTable(), {}
    rows = [row for batch in group.contributed for row in read_written(batch).rows]
    for row in rows:  # of equal versions, the last counts
        table.apply(row)
    for tier in group.schema.tiers:
        for row in table.rows(f"{MEMBERS}#{tier.window.label}#".encode()):
            _, start_us = parse_members_key(tier.window, row.key)
            for sensor, cell in Members.of(row, start_us).cells.items():
                stats = window_stats_of(read_sums(cell.value))
                found[tier.window.text, start_us, sensor.decode()] = stats
    return found


@settings(max_examples=examples(40), phases=[Phase.generate], deadline=None)
@given(READINGS, st.randoms(use_true_random=False))
def test_the_newest_contribution_is_the_row(readings, chance):
    """In any batches, with late readings of any age, readings before others, drains and restarts."""
    schema = parse_schema(f"{SCHEMA}\n[rollups]\nfleet = {{ by = [] }}")
    begin_us = MIDNIGHT + chance.choice([0, 10 * HOUR, 2 * DAY])
    group = deliver(Group(schema, begin_us, rollups=RollupRules.of(schema)), readings, chance)
    group.watermark(END_US)
    found = {}
    for key, stats in newest_contributions(group).items():
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
    group = Group(schema, MIDNIGHT, rollups=RollupRules.of(schema))
    names = [f"s{number}" for number in range(20)]
    group.receive(*(event(name, MIDNIGHT, {"t": 1.0, "u": 2.0}) for name in names))
    group.pass_time(2 * MINUTE)
    assert {key: list(stats.metrics) for key, stats in newest_contributions(group).items()} == {
        ("1d", MIDNIGHT, name): ["t"] for name in names
    }
    for written in map(read_written, group.contributed):
        shards = {parse_members_key(schema.tiers[1].window, row.key)[0]: row for row in written.rows}
        assert {shard for shard, _ in written.due} == shards.keys()
        for shard, row in shards.items():
            assert {group_of(cell.qualifier, 4) for cell in set_cells(row).cells} == {shard}
