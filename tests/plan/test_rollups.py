"""Sizes, rates and state of roll-ups, against those of the job's own code and by hand."""

import random
from dataclasses import replace

import pytest

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.rollups.contributions import Contributions, SensorChanges
from pipeline.core.rollups.group_rules import GroupRules
from pipeline.core.rollups.group_windows import RollupWindows
from pipeline.core.rollups.shard_windows import ShardWindows
from pipeline.core.rows.rows import EncodedRow
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.member import Member, member_text
from pipeline.plan import rollups
from pipeline.plan.estimate import estimate_of, tier_writes
from pipeline.plan.limits import limits_passed
from pipeline.plan.storage import counts_versions_of
from pipeline.plan.workload import START_US, Workload, names

SECOND = 1_000_000
SITES = '[rollups]\nsite = { by = ["metadata.field_0000000000"] }\n'
SCHEMAS = {
    "default": SITES,
    "quantiles": '[statistics]\nother = ["avg", "p95", "last"]\n' + SITES,
    "counters": '[statistics]\nother = ["increase", "time_weighted_mean"]\n' + SITES,
}


def rows_of(schema: TableSchema, workload: Workload, sensors: int) -> tuple[bytes, list[list[EncodedRow]]]:
    """Returns a contribution, and versions of the rows of a shard's sensors, of a group's parts, and of the group."""
    (tier,) = schema.tiers
    rules, chance = GroupRules(schema), random.Random(1)
    contributions = {}
    for sensor_id in (b"%016d" % number for number in range(sensors)):
        readings = WindowReadings()
        for time_us in range(START_US, tier.window.end_of(START_US), workload.every_us):
            readings.add(time_us, {name: round(chance.uniform(10, 30), 2) for name in workload.metrics})
        stats = readings.pane(schema.statistics).stats
        stats.member = Member(START_US, member_text(schema.member_fields, {"field_0000000000": "v" * 16}))
        contributions[sensor_id] = Contributions(rules, 0).of(START_US, stats)
    versions = []
    for now_us in range(START_US, START_US + 64 * SECOND, SECOND):  # some delete those before
        shard, group = ShardWindows(rules, 100, lambda _: {}), RollupWindows(rules, lambda _: {})
        shard.update([SensorChanges(0, START_US, contributions)], now_us)
        (part,) = shard.parts
        group.update([part._replace(shard=100 + number) for number in range(sensors)], now_us)
        versions.append([*shard.rows, *group.rows])
    return contributions[sensor_id], [list(rows) for rows in zip(*versions, strict=True)]


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("seconds", [60, 3600])
def test_sizes(name: str, seconds: int) -> None:
    """Contributions and rows are at most 15 % smaller or larger than planned."""
    schema = parse_schema(SCHEMAS[name])
    workload = Workload(schema, 100, seconds * SECOND, names("metric", 4), names("field", 1), rollup_groups=1)
    data, rows = rows_of(schema, workload, 100)
    (tier,), (rollup,) = schema.tiers, schema.rollups
    assert rollups.contribution_bytes(workload, tier) == pytest.approx(len(data), rel=0.15)
    planned = [
        rollups.members_size(workload, tier, 100),
        rollups.parts_size(tier, rollup, rollups.part_bytes(workload, tier, 100), 100),
        rollups.group_size(workload, tier, rollup),
    ]
    for versions, size in zip(rows, planned, strict=True):
        mean = sum(len(row.key) + len(row.mutations) for row in versions) / len(versions)
        assert size.encoded == pytest.approx(mean, rel=0.15), versions[0].key


def test_rates() -> None:
    """With a pane each five minutes and one at the end, each shard changes as often as its sensors' group fires."""
    schema = parse_schema('[rollups]\nfleet = { by = [] }\nsite = { by = "metadata.site" }\n')
    workload = Workload(schema, 100_000, 60 * SECOND, names("metric", 3), rollup_groups=100)
    (tier,) = schema.tiers
    tiers = tier_writes(workload)
    changes = 256 * 13 / 3600
    assert rollups.shard_changes(workload, tier, tiers["1h"].rows) == pytest.approx(changes)
    found = rollups.rollups_of(workload, tiers)
    assert found is not None
    assert found.groups == 101
    updates = {1: changes, 100: 100 * changes}  # by groups
    of_groups = sum(all_of / (1 + 8 * all_of / groups) for groups, all_of in updates.items())
    assert found.writes.rows == pytest.approx(changes + 2 * of_groups)
    begins_and_ends = 2 * 256 + 101 * 4  # of shards; of groups, with three changes of a window that is over
    assert found.reads_per_second == pytest.approx(begins_and_ends / 3600)
    kept = 1 + 20 / 60
    assert found.state_bytes == pytest.approx(
        kept
        * (
            100_000 * (rollups.contribution_bytes(workload, tier) + 16 + 17)
            + 256 * (rollups.part_bytes(workload, tier, 100_000 / 256) + 17)
            + 25_600 * (rollups.part_bytes(workload, tier, 1000 / 256) + 17)
        )
    )


def test_one_sensor_and_few_shards() -> None:
    """No more changes, groups and parts are planned than the sensors can make."""
    schema = parse_schema(SITES)
    one = rollups.rollups_of(workload := Workload(schema, 1, 60 * SECOND, ("t",)), tier_writes(workload))
    assert one is not None
    assert one.groups == 1
    assert one.writes.rows <= 3 * tier_writes(workload)["1h"].rows
    few = replace(workload, schema=parse_schema(SITES + "shards = 7"), sensors=1000)
    (tier,) = few.schema.tiers
    assert rollups.shard_changes(few, tier, 1e9) == pytest.approx(64 * 13 / 3600 * 7)
    even = replace(few, schema=parse_schema(SITES + "shards = 128"))
    assert rollups.shard_changes(even, tier, 1e9) == pytest.approx(128 * 13 / 3600)


def test_the_estimate_contains_roll_ups() -> None:
    """Writes, vCPUs, state, traffic and storage grow by what roll-ups take; older versions are no loss."""
    workload = Workload(parse_schema(SITES), 100_000, 60 * SECOND, names("metric", 3))
    found, without = estimate_of(workload), estimate_of(replace(workload, schema=parse_schema("")))
    assert without.rollups is None
    assert found.rollups is not None
    assert found.tiers["roll-ups"] == found.rollups.writes
    assert found.growth["rollup"] == found.rollups.stored_per_day > 0
    assert found.vcpus_for_panes - without.vcpus_for_panes > 2e-6 * found.rollups.cpu_us_per_second
    assert found.state_bytes - without.state_bytes == pytest.approx(found.rollups.state_bytes)
    assert found.streaming_bytes_per_second > without.streaming_bytes_per_second + found.rollups.traffic_per_second
    assert counts_versions_of(workload) == []


def test_more_groups_than_a_bucket_holds() -> None:
    """What is read and committed with the groups of a bucket is limited."""
    schema = parse_schema(SITES + '[rate]\nevery = "10m"\nsensors = 10_000_000\nmetrics = 3')
    fleet = Workload(schema, 10_000_000, 600 * SECOND, names("metric", 3), rollup_groups=100_000)
    assert not [line for line in limits_passed(fleet, estimate_of(fleet)) if "bucket" in line]
    undeclared = replace(fleet, schema=parse_schema(SITES))
    (line,) = (line for line in limits_passed(undeclared, estimate_of(undeclared)) if "bucket" in line)
    assert line.startswith("100,000 groups of roll-ups have 1,580 MB of state in each of 2 buckets, over the 180 MB")
