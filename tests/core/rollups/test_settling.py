"""Batch writers make roll-ups the merge of aggregate rows: beside each other, and if one is stopped."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline.core.rollups.comparison import audit_group
from pipeline.core.rollups.group_rules import Group, GroupRules
from pipeline.core.rollups.levels import (
    GroupWindow,
    Levels,
    Members,
    ShardWindow,
    key_of_group,
    key_of_members,
    parts_in,
    parts_of,
)
from pipeline.core.rollups.settling import RollupSettling
from pipeline.core.rollups.sums import NO_SUMS, Sums, read_sums, sums_bytes
from pipeline.core.rows.aggregate_rows import aggregate_key, encoded_aggregate_row, parse_window_stats
from pipeline.core.rows.rollup_rows import PARTS, parse_rollup_row, versions_in
from pipeline.core.rows.rows import Cell, Row, encoded
from pipeline.core.schema.rate import group_of
from pipeline.core.schema.rollup import Rollup
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.member import Member, member_fields, member_text
from tests.support.versioned_table import VersionedTable

SCHEMA = parse_schema(
    """
tiers = { 1h = "hours" }
statistics = { water = ["count", "sum", "increase"], power = ["count", "p50", "stddev"] }
[rollups]
site = { by = "metadata.site", metrics = ["t", "water"] }
fleet = { by = [] }
shards = 2
"""
)
RULES, (TIER,) = GroupRules(SCHEMA), SCHEMA.tiers
HOUR_US = 3_600_000_000
START_US = 480_000 * HOUR_US
SENSORS = [f"sensor-{number}" for number in range(6)]


class Stopped(Exception):
    """A writer was killed."""


class Table:
    """A table with one window; another writer may come before any read or write, and a writer may be stopped."""

    def __init__(self, random):
        self.random, self.table, self.between, self.fails = random, VersionedTable(), None, False
        self.forgets = random.random() < 0.5

    def read(self, selection):
        self._disturb()
        return self.table.select(selection)

    def write(self, rows):
        self._disturb()
        if self.fails and self.random.random() < 0.3:
            raise Stopped
        for row in rows:
            self.table.apply(row)

    def _disturb(self):
        between, self.between = self.between, None
        if between is not None and self.random.random() < 0.3:
            between()
        else:
            self.between = between

    def change(self):
        """Writes aggregate rows of some sensors, or deletes them. Returns the sensors."""
        random = self.random
        sensors = random.sample(SENSORS, random.randint(1, 3))
        for sensor in sensors:
            if random.random() < 0.2:
                self.table.forget(aggregate_key(TIER.window, sensor, START_US))
                continue
            stats = self.stats()
            row = encoded_aggregate_row(TIER.window, sensor, START_US, stats, TIER.family, TIER.statistics)
            self.table.forget(row.key)
            self.table.apply(row)
        return sensors

    def stats(self):
        """Returns the statistics of a window."""
        random = self.random
        times = sorted(random.sample(range(START_US, START_US + HOUR_US, 1000), random.randint(1, 4)))
        names = random.sample(["t", "water", "power"], random.randint(1, 3))
        stats = SCHEMA.statistics.stats_of(times, {name: [random.gauss(1e3, 1) for _ in times] for name in names})
        if random.random() < 0.9:
            site = random.choice([{"site": "north"}, {"site": "south"}, {}])
            stats.member = Member(times[-1], member_text(("site",), site))
        return stats

    def settle(self, sensors):
        """Settles the roll-ups of sensors."""
        settling = RollupSettling(RULES, self.read, self.write, less=True)
        windows = {
            ShardWindow(0, START_US, shard): [each for each in sensors if group_of(each.encode(), 2) == shard]
            for shard in range(2)
        }
        settling.settle({of: ids for of, ids in windows.items() if ids})
        if self.forgets:
            settling.forgotten(windows)

    def newest(self):
        """Returns the newest cells."""
        return {(key, cell.qualifier): cell for key in self.table._rows for cell in reversed(self.table.row(key).cells)}

    def newest_place(self, key, column):
        return max((place for place in self.table._rows[key] if place[1] == column), key=lambda place: place[2])

    def expected(self):
        """What each group has: the number of sensors and events, and the statistics of metrics that merge exactly."""
        found = {}
        for sensor in SENSORS:
            key = aggregate_key(TIER.window, sensor, START_US)
            if cells := self.table.cells(key):
                _, stats = parse_window_stats(TIER.window, Row(key, cells), TIER.statistics)
                site = member_fields(stats.member.text)["site"] if stats.member else None
                for group in [("fleet", "all"), *([("site", site)] if site else [])]:
                    sensors, events, metrics = found.get(group, (0, 0, {}))
                    for name, of in stats.metrics.items():
                        if group[0] == "fleet" or name != "power":
                            count, total = metrics.get(name, (0, 0.0))
                            metrics[name] = count + of.count, total + (0.0 if name == "power" else of.total)
                    found[group] = sensors + 1, events + stats.events, metrics
        return found

    def found(self):
        found = {}
        for row in self.table.rows(b"rollup#"):
            record = parse_rollup_row(TIER.window, row)
            if record is not None:
                metrics = {name: (each.count, each.sum or 0.0) for name, each in record.metrics.items()}
                found[record.group.rollup, record.group.text] = record.sensors, record.reading_count, metrics
        return found


def assert_right(table):
    found, expected = table.found(), table.expected()
    assert found.keys() == expected.keys()
    for group, (sensors, events, metrics) in expected.items():
        assert found[group][:2] == (sensors, events)
        assert found[group][2] == {name: pytest.approx(of) for name, of in metrics.items()}


@given(st.integers(0, 1 << 32))
def test_batch_writers_beside_each_other(seed):
    """Writers that change rows settle them; others do so meanwhile; one that was stopped is run again."""
    random = Random(seed)
    table = Table(random)
    for _ in range(random.randint(1, 4)):
        sensors = table.change()
        table.fails = random.random() < 0.3
        table.between = None if table.fails or random.random() < 0.3 else lambda: table.settle(table.change())
        while True:
            try:
                table.settle(sensors)
                break
            except Stopped:
                if random.random() < 0.5:
                    table.fails = False
        table.fails = False
    assert_right(table)


NO_CONTRIBUTIONS = [
    b"\x01",
    b"7.5",
    sums_bytes(NO_SUMS)[:-1],
    sums_bytes(NO_SUMS, "7"),
    sums_bytes(Sums(1, 1, (), ()), "[" * 100_000),
    sums_bytes(Sums(1, 1, ("t",), (1.0, 2.0, 2.0, 2.0, 2.0, 0.0)), '{"site":"north"}') + b"?",
]


@given(st.integers(0, 1 << 32))
def test_cells_of_other_programs(seed):
    """A batch writer writes a cell of members again that nobody can read; a job tells what to do."""
    random = Random(seed)
    table = Table(random)
    table.forgets = False
    table.settle(table.change())
    of = ShardWindow(0, START_US, random.randrange(2))
    cells = table.table._rows.get(key_of_members(RULES, of))
    assume(cells)
    for family, column, time_us in random.sample(sorted(cells), random.randint(1, len(cells))):
        name = random.choice([column, column, b"\xff", b"another"])
        later_us = random.choice([0, 1000, 10_000_000])
        cells[family, name, time_us + later_us] = random.choice(NO_CONTRIBUTIONS)
    levels, due = Levels(RULES, table.table.select, 1 << 20), {(0, START_US): {b'{"site":"north"}': None}}
    if Members.of(table.table.row(key_of_members(RULES, of)), START_US).unreadable:
        with pytest.raises(ValueError, match=r"another program wrote column .* of row rollup_members#.* --rollups'"):
            levels.parts(of.shard, due)
    table.settle(SENSORS)
    assert_right(table)
    assert len(levels.parts(of.shard, due).rows) == 2


@given(st.integers(0, 1 << 32))
def test_right_roll_ups_stay(seed):
    """Settling what is right changes no cell that counts."""
    table = Table(Random(seed))
    table.settle(table.change())
    before = table.newest()
    table.settle(SENSORS)
    assert table.newest() == before


def audit(table, rules=RULES):
    """Returns what is wrong, by group."""
    parts, found = {}, {}
    for shard in range(2):
        of = ShardWindow(0, START_US, shard)
        members = Members.of(Row(b"", table.table.cells(key_of_members(rules, of))), START_US)
        for group, part in parts_of(rules, 0, members).items():
            parts.setdefault(group, {})[shard] = part
    for group in (Group("fleet", "all"), Group("site", "north"), Group("site", "south")):
        of = GroupWindow(0, START_US, group)
        stored, row = (Row(b"", table.table.cells(key_of_group(rules, of, *kind))) for kind in ((PARTS,), ()))
        found[group.value] = audit_group(
            rules, of, parts.get(group, {}), parts_in(stored, START_US), versions_in(row, START_US)
        )[0]
    return {value: wrong for value, wrong in found.items() if wrong is not None}


def mend(table, wrong):
    settling = RollupSettling(RULES, table.read, table.write, less=True)
    settling.parts({ShardWindow(0, START_US, shard): [wrong.of.group] for shard in wrong.shards})
    settling.groups([wrong.of])


@given(st.integers(0, 1 << 32))
def test_an_audit_of_groups(seed):
    """An audit finds a wrong column, part or version, a part that is left, and a row that is missing; all are mended.

    What earlier releases wrote has versions by the clock, which may be greater.
    """
    table = Table(Random(seed))
    while not {("site", "north"), ("site", "south")} <= table.expected().keys():
        table.settle(table.change())
    assert audit(table) == {}
    key, key_of_parts = (
        key_of_group(RULES, GroupWindow(0, START_US, Group("site", "north")), *kind) for kind in ((), (PARTS,))
    )

    def delete_row():
        table.table.forget(key)

    def wrong_column():
        place = table.newest_place(key, b"reading_count")
        table.table._rows[key][place] = b"77"

    def old_part():
        (family, column, time_us), data = next(
            item for item in table.table._rows[key_of_parts].items() if read_sums(item[1]).sensors
        )
        table.table._rows[key_of_parts][family, column, time_us + 10_000_000] = data

    def other_shard():
        part = sums_bytes(Sums(1, 1, (), ()))
        table.table._rows[key_of_parts]["rollup", b"7", START_US + 5000] = part

    def newer_row():
        cells = table.table._rows[key]
        cells |= {(family, column, START_US + 10**10): value for (family, column, _), value in cells.items()}

    for spoil, problem in (
        (delete_row, "no row"), (wrong_column, "differs"), (old_part, "parts differ"), (other_shard, "parts differ"),
        (newer_row, "parts differ"),
    ):  # fmt: skip
        spoil()
        ((value, wrong),) = audit(table).items()
        assert (value, wrong.record(SCHEMA.tiers)["problem"]) == ("north", problem)
        mend(table, wrong)
        assert audit(table) == {}
        assert_right(table)
    table.settle(table.change())
    assert_right(table)


def test_fewer_metrics():
    """A group's row has no metric that its roll-up no longer merges, though parts of other shards have it."""
    table = Table(Random(1))
    while {group: each[2].keys() for group, each in table.found().items()} != {
        ("fleet", "all"): {"t", "water", "power"}
    }:
        table.settle(table.change())
    rules = GroupRules(replace(SCHEMA, rollups=(Rollup("fleet", metrics=("t",)),)))
    of = GroupWindow(0, START_US, Group("fleet", "all"))
    key = key_of_group(rules, of)
    table.table.forget(key)
    RollupSettling(rules, table.read, table.write).groups([of])
    assert table.found()["fleet", "all"][2].keys() == {"t"}


def test_more_than_any_sensor_can_count():
    """Another program's row may claim so much that the sum of versions would be no timestamp."""
    table, sensors = Table(Random(1)), SENSORS[:2]
    texts = {"reading_count": b"1", "count_t": b"%d" % 2**53}
    texts |= dict.fromkeys(("sum_t", "min_t", "max_t", "avg_t", "stddev_t"), b"0")
    for sensor in sensors:
        cells = [Cell("hours", column.encode(), START_US, text) for column, text in texts.items()]
        table.table.apply(encoded(Row(aggregate_key(TIER.window, sensor, START_US), cells)))
    table.settle(sensors)
    (row,) = table.table.rows(b"rollup#hourly#fleet#")
    assert {cell.qualifier: cell.value for cell in row.cells}[b"sensors"] == b"2"
    assert all(START_US < cell.timestamp_us < 2**63 for cell in row.cells)
