"""Sizes and rates of roll-ups, against those of the job's own code and by hand."""

import random
from dataclasses import replace

import pytest

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.rollups.contributions import Contributions
from pipeline.core.rollups.group_rules import Group, GroupRules
from pipeline.core.rollups.levels import GroupWindow, Members, group_row, merged, part_row, parts_of
from pipeline.core.rows.rollup_rows import Versioned, members_key, versioned_row
from pipeline.core.rows.rows import EncodedRow
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.member import Member, member_text
from pipeline.plan import rollups
from pipeline.plan.estimate import estimate_of, tier_writes
from pipeline.plan.sizes import counts_versions_of
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
        contributions[sensor_id] = Contributions(rules, 0).of(START_US, stats).cell
    versions = []
    (rollup,) = schema.rollups
    of = GroupWindow(0, START_US, Group(rollup.name, rollup.value_of({"field_0000000000": "v" * 16}) or ""))
    for version in range(1, 65):  # some delete those before
        cells = {sensor: cell._replace(version=version) for sensor, cell in contributions.items()}
        members = Members(version, cells, Versioned(0, b""))
        (part,) = parts_of(rules, 0, members).values()
        found = merged(rules, of, dict.fromkeys(range(100, 200), part))
        row = versioned_row(members_key(tier.window, 100, START_US), START_US, cells.items())
        versions.append([row, part_row(rules, of, 100, part), group_row(rules, of, found)])
    return contributions[sensor_id].value, [list(rows) for rows in zip(*versions, strict=True)]


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
        rollups.parts_size(tier, rollup, rollups.part_bytes(workload, tier, 100), 1),
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
    assert found.writes.rows == pytest.approx(changes + sum(updates.values()) + of_groups)
    assert found.reads_per_second == pytest.approx(changes + of_groups)
    assert found.traffic_per_second < found.writes.bytes


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
    """Writes, vCPUs, traffic and storage grow by what roll-ups take, and state does not; older versions are no loss."""
    workload = Workload(parse_schema(SITES), 100_000, 60 * SECOND, names("metric", 3))
    found, without = estimate_of(workload), estimate_of(replace(workload, schema=parse_schema("")))
    assert without.rollups is None
    assert found.rollups is not None
    assert found.tiers["roll-ups"] == found.rollups.writes
    assert found.growth["rollup"] == found.rollups.stored_per_day > 0
    assert found.vcpus_for_panes - without.vcpus_for_panes > 2e-6 * found.rollups.cpu_us_per_second
    assert found.state_bytes == without.state_bytes
    assert found.streaming_bytes_per_second > without.streaming_bytes_per_second + found.rollups.traffic_per_second
    assert counts_versions_of(workload) == []
