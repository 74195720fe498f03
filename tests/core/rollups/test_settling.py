"""Batch writers make roll-ups the merge of aggregate rows: beside each other or a job, and if one is stopped."""

from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from pipeline.core.rollups.contributions import Contributions, Order, SensorChanges
from pipeline.core.rollups.group_rules import Group, GroupRules
from pipeline.core.rollups.group_settling import GroupSettling, GroupWindow
from pipeline.core.rollups.group_windows import RollupWindows
from pipeline.core.rollups.settling import MOST_TIMES, Members, ShardSettling, ShardWindow, settled_parts
from pipeline.core.rollups.shard_windows import ShardWindows
from pipeline.core.rollups.sums import NO_SUMS, Sums, sums_bytes
from pipeline.core.rows.aggregate_rows import aggregate_key, encoded_aggregate_row, parse_window_stats
from pipeline.core.rows.mutation_bytes import delete_row
from pipeline.core.rows.rollup_rows import PARTS, members_key, parse_rollup_row, rollup_key
from pipeline.core.rows.rows import EncodedRow, Row
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
        for start, end in selection.ranges:
            assert end == start + b"\x00"  # a row
            for row in self.table.read([start]).values():
                yield Row(row.key, [cell for cell in row.cells if cell.family in selection.cells.families])

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
                row = EncodedRow(aggregate_key(TIER.window, sensor, START_US), delete_row(), 1)
                self.table._rows.pop(row.key, None)
                continue
            stats = self.stats()
            row = encoded_aggregate_row(TIER.window, sensor, START_US, stats, TIER.family, TIER.statistics)
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

    def settle(self, sensors, before=None):
        """Settles the roll-ups of sensors, which were in these groups the last time. Returns their groups."""
        shards, groups = (
            ShardSettling(SCHEMA, RULES, self.read, self.write),
            GroupSettling(RULES, self.read, self.write),
        )
        windows = {
            ShardWindow(0, START_US, shard): [each for each in sensors if group_of(each.encode(), 2) == shard]
            for shard in range(2)
        }
        parts = {}
        done = shards.settle({of: ids for of, ids in windows.items() if ids}, before or {})
        for of, settled in done.items():
            for part in settled_parts(RULES, of, settled, settled.groups):
                parts.setdefault(GroupWindow(0, START_US, part.group), {})[of.shard] = part
        groups.settle(parts)
        for row in shards.forgotten(done) if self.forgets else ():
            self.table.apply(row)
        return {of: settled.groups for of, settled in done.items()}

    def expected(self):
        """What each group has: the number of sensors and events, and the statistics of metrics that merge exactly."""
        found = {}
        for sensor in SENSORS:
            for row in self.table.read([aggregate_key(TIER.window, sensor, START_US)]).values():
                _, stats = parse_window_stats(TIER.window, row, TIER.statistics)
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
                found[record.name, record.value] = record.sensors, record.reading_count, metrics
        return found


class TableWithJob(Table):
    """A table whose window is over, with a job that gets late data of it. Time passes at reads and writes."""

    def __init__(self, random):
        super().__init__(random)
        self.now_s, self.events, self.order = 3700.0, [], count()
        self.shards, self.groups, self.numbers, self.arrival_s = {0: [], 1: []}, [], count(1), {}
        self.written = False

    def at(self, delay_s, does):
        heappush(self.events, (self.now_s + delay_s, next(self.order), does))

    def advance(self, until_s):
        """Lets happen what is due."""
        while self.events and self.events[0][0] <= until_s:
            self.now_s, _, does = heappop(self.events)
            does()
        self.now_s = max(self.now_s, until_s)

    def _disturb(self):
        if self.random.random() < 0.5:
            self.advance(self.now_s + self.random.random())

    def write(self, rows):
        super().write(rows)
        self.written = True

    def apply_later(self, rows, delay_s):
        """Writes rows, each after those of the same key."""
        for row in rows:
            self.arrival_s[row.key] = arrival_s = max(self.now_s + delay_s, self.arrival_s.get(row.key, 0))
            self.at(arrival_s - self.now_s, partial(self.table.apply, row))

    def late_data(self):
        """The job writes the aggregate row of a sensor, and rolls up what it contributes."""
        sensor = self.random.choice(SENSORS).encode()
        stats = self.stats()
        row = encoded_aggregate_row(TIER.window, sensor.decode(), START_US, stats, TIER.family, TIER.statistics)
        self.at(1, lambda: (self.table._rows.pop(row.key, None), self.table.apply(row)))
        shard, now_us = group_of(sensor, 2), self.now_us()
        windows = ShardWindows(RULES, shard, self.table.read, self.shards[shard])
        order = Order(1, next(self.numbers))
        windows.update(
            [SensorChanges(0, START_US, {sensor: Contributions(RULES, 0).of(START_US, stats)}, order)], now_us
        )
        self.shards[shard] = list(windows.chunks(now_us, HOUR_US))
        self.apply_later(windows.rows, 10 * self.random.random())
        self.at(8 * self.random.random(), lambda: self.merge(windows.parts))

    def merge(self, parts):
        windows = RollupWindows(RULES, self.table.read, self.groups)
        windows.update(parts, self.now_us())
        self.groups = list(windows.chunks(self.now_us(), HOUR_US))
        self.apply_later(windows.rows, 2 * self.random.random())

    def now_us(self):
        return START_US + int(self.now_s * 1e6)

    def tool(self):
        """Rewrites or forgets sensors, and settles their roll-ups."""
        sensors = self.change()
        groups = None
        for number in range(MOST_TIMES):
            if number:
                self.advance(self.now_s + 20)
            self.written = False
            groups = self.settle(sensors, groups)
            if number and not self.written:
                return


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
    b"",
    b"\x01",
    b"7.5",
    sums_bytes(NO_SUMS)[:-1],
    sums_bytes(NO_SUMS, "7"),
    sums_bytes(Sums(1, 1, (), ()), "[" * 100_000),
    sums_bytes(Sums(1, 1, ("t",), (1.0, 2.0, 2.0, 2.0, 2.0, 0.0)), '{"site":"north"}') + b"?",
]


@given(st.integers(0, 1 << 32))
def test_cells_of_other_programs(seed):
    """A batch writer writes a cell again that nobody can read, whosever it is; a job tells what to do."""
    random = Random(seed)
    table = Table(random)
    table.forgets = False
    table.settle(table.change())
    keys = [key for key in table.table._rows if key.startswith(b"rollup_")]
    assume(keys)
    key, spoilt = random.choice(keys), 0
    cells = table.table._rows[key]
    for family, column, time_us in random.sample(sorted(cells), random.randint(1, len(cells))):
        name = random.choice([column, column, b"\xff", b"another"]) if b"members" in key else column
        later_us = random.choice([0, 1000, 10_000_000])
        if not name.startswith(b"#"):
            spoilt += 1
            cells[family, name, time_us + later_us] = random.choice(NO_CONTRIBUTIONS[b"members" in key :])
    of_shard = random.randrange(2)
    changes = [SensorChanges(0, START_US, {b"late": sums_bytes(Sums(1, 1, (), ()), '{"site":"north"}')})]
    job = ShardWindows(RULES, of_shard, table.table.read)
    if spoilt and key == members_key(TIER.window, of_shard, START_US):
        with pytest.raises(
            ValueError, match=r"another program wrote column .* of row rollup_members#.*repair --rollups'"
        ):
            job.update(changes, START_US + 2 * HOUR_US)
    table.settle(SENSORS)
    assert_right(table)
    job = ShardWindows(RULES, of_shard, table.table.read)
    job.update(changes, START_US + 2 * HOUR_US)
    windows = RollupWindows(RULES, table.table.read)
    windows.update(job.parts, START_US + 2 * HOUR_US)
    assert len(windows.rows) == 2 * len(job.parts) > 0


@given(st.integers(0, 1 << 32))
def test_right_roll_ups_stay(seed):
    """What is right is not written again."""
    table = Table(Random(seed))
    table.forgets = False
    table.settle(table.change())
    before = {key: dict(cells) for key, cells in table.table._rows.items()}
    table.settle(SENSORS)
    assert table.table._rows == before


def test_a_complete_audit_of_groups():
    """An audit finds a wrong column, a part that is left, and a row that is missing; settling mends each."""
    table = Table(Random(1))
    while not {("site", "north"), ("site", "south")} <= table.expected().keys():
        table.settle(table.change())
    right = table.found()
    groups = GroupSettling(RULES, table.read, table.write)
    of = GroupWindow(0, START_US, RULES.groups_of(0, b'{"site":"north"}')[0])

    def parts():
        found = {}
        for shard in range(2):
            key = members_key(TIER.window, shard, START_US)
            members = Members.of(table.table.row(key), START_US)
            window = ShardWindow(0, START_US, shard)
            for part in settled_parts(RULES, window, members.settled):
                if part.group == of.group:
                    found[shard] = part
        return found

    key, key_of_parts = (rollup_key(TIER.window, *of.group, START_US, *kind) for kind in ((), (PARTS,)))
    assert groups.audit(of, parts(), groups.states([of])[of]) == (None, True)
    del table.table._rows[key]
    wrong, _ = groups.audit(of, parts(), groups.states([of])[of])
    assert (wrong.problem, wrong.columns[0].column, wrong.columns[0].stored) == ("no row", "reading_count", None)
    assert groups.settle({of: parts()}, complete=True)
    assert table.found() == right
    cells = table.table._rows[key]
    column = next(place for place in cells if place[1] == b"reading_count")
    cells[column] = b"77"
    wrong, _ = groups.audit(of, parts(), groups.states([of])[of])
    assert (wrong.problem, [each.column for each in wrong.columns]) == ("differs", ["reading_count"])
    groups.settle({of: parts()}, complete=True)
    of_parts = table.table._rows[key_of_parts]
    (family, _, time_us), data = next((place, data) for place, data in of_parts.items() if len(data) > 40)
    of_parts[family, b"7", time_us] = data  # of a shard without sensors
    wrong, _ = groups.audit(of, parts(), groups.states([of])[of])
    assert (wrong.problem, wrong.columns) == ("parts differ", ())
    groups.settle({of: parts()}, complete=True)
    assert table.found() == right
    assert groups.audit(of, parts(), groups.states([of])[of]) == (None, True)


@given(st.integers(0, 1 << 32))
def test_a_job_beside_batch_writers(seed):
    """Whatever is on its way when a batch writer comes, roll-ups end up as what aggregate rows tell."""
    random = Random(seed)
    table = TableWithJob(random)
    for _ in range(random.randint(1, 12)):
        table.at(random.expovariate(1 / 20), table.late_data)
    for _ in range(random.randint(1, 3)):
        table.advance(table.now_s + random.expovariate(1 / 10))
        table.tool()
        event("the job keeps changing roll-ups" if table.written else "settled")
        assume(not table.written)  # a warning names it
    table.advance(table.now_s + 1000)
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
    assert GroupSettling(rules, table.read, table.write).settle({of: {}}) == {of}
    assert table.found()["fleet", "all"][2].keys() == {"t"}
