"""Whatever happens on the way, a group's row is the merge of what its sensors have."""

import json
import math
from collections import Counter
from dataclasses import replace
from random import Random
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.rollups.bucket_parts import Part, parts_of_buckets, read_parts
from pipeline.core.rollups.contributions import NOTHING, Contributions, Order, SensorChanges, batches_of, read_batch
from pipeline.core.rollups.group_rules import Group, GroupRules
from pipeline.core.rollups.group_windows import RollupWindows
from pipeline.core.rollups.shard_windows import ShardWindows
from pipeline.core.rollups.sums import Sums, sums_bytes
from pipeline.core.rows.rollup_rows import MEMBERS, ROLLUP, parse_rollup_row
from pipeline.core.schema.rollup import Rollup, encoded_value
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.member import Member, member_text
from pipeline.core.statistics.window_stats import WindowStats
from tests.support.versioned_table import VersionedTable

SCHEMA = parse_schema(
    """
[tiers]
1h = "hours"
1d = "days"
[statistics]
"water" = ["count", "sum", "avg", "increase", "rate"]
"power" = ["count", "min", "max", "stddev", "p50", "first"]
[rollups]
site = { by = "metadata.site", metrics = ["t*", "water"] }
model = { by = ["metadata.site", "metadata.model"], tiers = ["1h"] }
fleet = { by = [] }
shards = 3
"""
)
RULES = GroupRules(SCHEMA)
HOUR_US, DAY_US = 3_600_000_000, 86_400_000_000
START_US = 20_000 * DAY_US
KEPT_US = HOUR_US // 3
SENSORS = [f"sensor-{number}".encode() for number in range(9)]
SITES = ["north", "sü d", "a/b", "#1", "", "x" * 300, "%2F"]
METRICS = ["temperature", "water", "power", "other"]


class Story:
    """A job, what disturbs it, and what is true."""

    def __init__(self, random):
        self.random = random
        self.table = VersionedTable()
        self.truth = {}
        self.now_us = START_US
        self.number = 0
        self.encoders = [Contributions(RULES, tier) for tier in range(2)]
        self.changes, self.parts, self.rows = [], [], []
        self.shown = Counter()
        self.start()

    def start(self):
        """Begins a job: without any state."""
        self.now_us += 60_000_000
        self.began_us = self.now_us
        self.shards, self.groups = {}, {}

    def touch(self):
        """A pane of some sensors fires: with more readings, another member, or other metrics."""
        random, tier = self.random, self.random.randrange(2)
        span_us = (HOUR_US, DAY_US)[tier]
        start_us = (self.now_us - random.choice([0, 0, 0, HOUR_US // 2])) // span_us * span_us
        self.pane(tier, start_us, random.sample(SENSORS, random.randint(1, 4)))

    def pane(self, tier, start_us, sensors):
        found = {}
        for sensor in sensors:
            stats = self.truth[tier, start_us, sensor] = self.stats_of(start_us)
            found[sensor] = self.encoders[tier].of(start_us, stats)
        self.number += 1
        for shard in range(3):
            of_shard = {sensor: data for sensor, data in found.items() if crc32(sensor) % 3 == shard}
            if of_shard:
                order = Order(self.began_us, self.number)
                self.changes.append((shard, SensorChanges(tier, start_us, of_shard, order)))

    def stats_of(self, start_us):
        random = self.random
        names = random.sample(METRICS, random.randint(1, 4))
        count = random.randint(1, 4)
        times = sorted(random.sample(range(start_us, start_us + HOUR_US, 1000), count))
        columns = {name: [random.gauss(1e3, 10) for _ in times] for name in names}
        stats = SCHEMA.statistics.stats_of(times, columns)
        if random.random() < 0.9:
            fields = {"site": random.choice(SITES), "model": random.choice("ab")}
            for name in [name for name in fields if random.random() < 0.1]:
                del fields[name]
            stats.member = Member(times[-1], member_text(("model", "site"), fields))
        return stats

    def merge_shards(self, most=4):
        """Some elements reach their shards: in any order, and one may come again. A shard merges those together."""
        random = self.random
        random.shuffle(self.changes)
        together = {}
        for shard, changes in self.take(self.changes, most):
            (batch,) = batches_of([changes[:3]], changes.order)
            together.setdefault(shard, []).extend(read_batch(batch) * random.choice([1, 1, 2]))
        for shard, changes in together.items():
            windows = ShardWindows(RULES, shard, self.table.read, self.shards.get(shard, ()))
            windows.update(changes, self.now_us)
            self.shards[shard] = list(windows.chunks(self.now_us, KEPT_US))
            self.rows += windows.rows
            self.parts += (part for _, some in parts_of_buckets(windows.parts, 2) for part in read_parts(some))

    def merge_groups(self, most=5):
        """Some parts reach their groups: in any order."""
        self.random.shuffle(self.parts)
        buckets = {}
        for part in self.take(self.parts, most):
            buckets.setdefault(crc32(part.group.value.encode()) % 2, []).append(part)
        for bucket, parts in buckets.items():
            windows = RollupWindows(RULES, self.table.read, self.groups.get(bucket, ()))
            windows.update(parts, self.now_us)
            self.groups[bucket] = list(windows.chunks(self.now_us, KEPT_US))
            self.rows += windows.rows

    def write(self, most=10):
        """Some rows reach the table: in any order, and one may come again."""
        self.random.shuffle(self.rows)
        for row in self.take(self.rows, most):
            for _ in range(self.random.choice([1, 1, 2])):
                self.table.apply(row)
        self.check_versions()

    def check_versions(self):
        """No row is replaced by an older version."""
        for row in self.table.rows(b"rollup"):
            for cell in row.cells:
                place = row.key, cell.qualifier
                newest = max(other.timestamp_us for other in row.cells if other.qualifier == cell.qualifier)
                assert newest >= self.shown[place]
                self.shown[place] = newest

    def settle(self):
        """All that is on its way arrives."""
        while self.changes or self.parts or self.rows:
            self.merge_shards(100)
            self.merge_groups(100)
            self.write(1000)

    def forget_state(self):
        """Nothing comes for so long that the state keeps nothing."""
        self.settle()
        self.now_us += KEPT_US + 1

    def restart(self):
        """The job is drained, and another one begins."""
        self.settle()
        self.start()

    def lose(self):
        """The job is stopped: what waits is lost, except for rows that are on their way. Panes fire again.

        Rows of members are written seconds before those that follow from them: they have arrived.
        """
        rows = [row for row in self.rows if self.random.random() < 0.5]
        for row in self.rows:
            if row.key.startswith(MEMBERS.encode()):
                self.table.apply(row)
        self.changes, self.parts, self.rows = [], [], []
        self.start()
        for tier, start_us in {key[:2] for key in self.truth}:
            for shard in range(3):
                found = {
                    sensor: self.encoders[tier].of(start_us, stats)
                    for (of_tier, of_start_us, sensor), stats in self.truth.items()
                    if (of_tier, of_start_us) == (tier, start_us) and crc32(sensor) % 3 == shard and stats
                }
                if found:
                    order = Order(self.began_us, self.number)
                    self.changes.append((shard, SensorChanges(tier, start_us, found, order)))
        self.merge_shards(1)
        self.merge_groups(1)
        self.rows += rows

    def batch(self):
        """Another writer changes a window that is over: sensors count more, or are forgotten."""
        self.settle()
        over = {
            (tier, start_us) for tier, start_us, _ in self.truth if start_us + (HOUR_US, DAY_US)[tier] <= self.now_us
        }
        if not over:
            return
        tier, start_us = self.random.choice(sorted(over))
        self.change(tier, start_us, self.random.sample(SENSORS, 3), forgets=0.5)

    def beside(self):
        """Sensors are forgotten in a window in progress, and then panes of them fire."""
        self.settle()
        tier = self.random.randrange(2)
        span_us = (HOUR_US, DAY_US)[tier]
        start_us = self.now_us // span_us * span_us
        sensors = self.random.sample(SENSORS, 3)
        self.change(tier, start_us, sensors, forgets=1)
        self.now_us += 60_000_000
        if self.now_us < start_us + span_us:
            for sensor in sensors:
                self.pane(tier, start_us, [sensor])
            self.check()

    def change(self, tier, start_us, sensors, forgets):
        for sensor in sensors:
            if (tier, start_us, sensor) in self.truth or self.random.random() < 0.3:
                stays = self.random.random() >= forgets
                self.truth[tier, start_us, sensor] = self.stats_of(start_us) if stays else None
        groups = RollupWindows(RULES, self.table.read)
        for shard in range(3):
            found = {
                sensor: self.encoders[tier].of(start_us, stats) if stats else NOTHING
                for (of_tier, of_start_us, sensor), stats in self.truth.items()
                if (of_tier, of_start_us) == (tier, start_us) and crc32(sensor) % 3 == shard
            }
            windows = ShardWindows(RULES, shard, self.table.read)
            windows.update([SensorChanges(tier, start_us, found)], self.now_us)
            groups.update(windows.parts, self.now_us)
            self.rows += windows.rows
        self.rows += groups.rows
        self.settle()

    def wait(self):
        """Time passes, and nothing is on its way for long."""
        self.settle()
        self.now_us += self.random.choice([1, KEPT_US // 2, HOUR_US, HOUR_US, DAY_US])

    def take(self, waiting, most):
        taken = [waiting.pop() for _ in range(min(len(waiting), self.random.randint(1, most)))]
        return taken + self.random.sample(taken, len(taken) // 3)

    def check(self):
        self.settle()
        self.check_rows()

    def check_rows(self):
        expected = {}
        for (tier, start_us, _), stats in self.truth.items():
            if stats is None:
                continue
            window = SCHEMA.tiers[tier].window
            for name, value in groups_of(stats, tier):
                merged, sensors = expected.setdefault((window.text, name, value, start_us), (WindowStats(), []))
                of_group = WindowStats()
                of_group.events = stats.events
                of_group.metrics = {
                    metric: of for metric, of in stats.metrics.items() if name != "site" or metric[0] in "tw"
                }
                merged.merge(of_group)
                sensors.append(stats)
        found = {}
        for tier in SCHEMA.tiers:
            for row in self.table.rows(f"{ROLLUP}#{tier.window.label}#".encode()):
                record = parse_rollup_row(tier.window, row)
                if record is not None:
                    found[tier.window.text, record.name, record.value, record.start_us] = record
        assert found.keys() == expected.keys()
        for key, record in found.items():
            assert_same(record, *expected[key])


def groups_of(stats, tier):
    fields = {} if stats.member is None else json.loads(stats.member.text)
    yield "fleet", "all"
    if fields.get("site") is not None:
        yield "site", encoded_value([fields["site"]])
        if fields.get("model") is not None and tier == 0:
            yield "model", encoded_value([fields["site"], fields["model"]])


def assert_same(record, merged, sensors):
    assert (record.sensors, record.reading_count) == (len(sensors), merged.events)
    assert record.metrics.keys() == merged.metrics.keys()
    for metric, summary in record.metrics.items():
        of = merged.metrics[metric]
        assert summary.count == of.count
        assert (summary.min, summary.max) in ((None, None), (of.minimum, of.maximum))
        for one, other in ((summary.sum, of.total), (summary.avg, of.average), (summary.stddev, of.deviation)):
            assert one is None or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-6)
        if metric == "power":
            sketch = None
            for stats in sensors:
                if metric in stats.metrics:
                    one = stats.metrics[metric].parts["sketch"]
                    sketch = one if sketch is None else sketch_of_both(sketch, one)
            assert summary.sketch == sketch
            assert summary.more["p50"] == min(max(sketch.quantile(0.5), of.minimum), of.maximum)
            assert "first" not in summary.more
        if metric == "water":
            rises = [stats.metrics[metric].parts["rises"] for stats in sensors if metric in stats.metrics]
            assert math.isclose(summary.more["increase"], sum(course.amount for course in rises), rel_tol=1e-9)


def sketch_of_both(one, other):
    both = type(one)()
    both.merge(one)
    both.merge(other)
    return both


ACTS = (
    *[Story.touch] * 6,
    *[Story.merge_shards] * 6,
    *[Story.merge_groups] * 4,
    *[Story.write] * 4,
    Story.forget_state,
    Story.restart,
    Story.lose,
    *[Story.batch] * 2,
    Story.beside,
    *[Story.wait] * 2,
)


@given(st.integers(0, 1 << 64), st.integers(1, 80))
def test_any_history_leads_to_what_sensors_have(seed, length):
    """Every row is the merge of its sensors' newest contributions, and no cell is replaced by an older version."""
    story = Story(Random(seed))
    for _ in range(length):
        story.random.choice(ACTS)(story)
    story.check()


def test_a_sensor_that_moves_again_and_again():
    """However often, the row that tells where sensors were stays short, and a job that is stopped leaves no group."""
    story = Story(Random(1))
    for number in range(400):
        if number == 399:
            story.parts, story.rows = [], []  # nothing more than members is written
            story.start()
        story.now_us += 1_000_000
        stats = SCHEMA.statistics.stats_of([START_US], {"temperature": [1.0]})
        stats.member = Member(START_US, member_text(("site",), {"site": f"{number}{'x' * 1000}"}))
        story.truth[0, START_US, SENSORS[0]] = stats
        order = Order(story.began_us, number)
        change = SensorChanges(0, START_US, {SENSORS[0]: story.encoders[0].of(START_US, stats)}, order)
        story.changes.append((crc32(SENSORS[0]) % 3, change))
        story.merge_shards(1)
        assert sum(len(row.mutations) for row in story.rows) < 100_000
        story.write(1)
        if number != 398:
            story.settle()
    story.check()


@pytest.mark.parametrize("keeps_state", [True, False])
def test_fewer_metrics(keeps_state):
    """A row has no metric that its roll-up no longer merges: some of its parts may still have it, and others not."""
    table, chunks, group, now_us = VersionedTable(), [], Group("fleet", "all"), START_US + DAY_US
    for version, merged in enumerate([("temperature", "other"), ("temperature",)], 1):
        rules = GroupRules(replace(SCHEMA, rollups=(Rollup("fleet", metrics=merged),)))
        windows = RollupWindows(rules, table.read, chunks if keeps_state else ())
        data = sums_bytes(Sums(1, 1, merged, (1.0, 2.0, 2.0, 2.0, 2.0, 0.0) * len(merged)))
        shards = range(2) if version == 1 else range(1)
        windows.update([Part(group, 0, START_US, shard, version, data) for shard in shards], now_us)
        chunks = list(windows.chunks(now_us, KEPT_US))
        for row in windows.rows:
            table.apply(row)
        (row,) = table.rows(f"{ROLLUP}#".encode())
        record = parse_rollup_row(SCHEMA.tiers[0].window, row)
        assert (record.sensors, record.metrics.keys()) == (2, set(merged))
        assert record.metrics["temperature"].count == 2


def test_batches_are_bounded():
    """Sensors with many metrics share a batch with few others."""
    sizes = [10, 700_000, 5_000_000, 0, *[10_000] * 500]
    contributions = {b"s%d" % number: b"x" * size for number, size in enumerate(sizes)}
    batches = list(batches_of([(0, START_US, contributions), (1, START_US, contributions)], Order(1, 2)))
    assert max(map(len, batches)) < 5_000_000 + 3_000_000
    assert sum(len(batch) > 4_500_000 for batch in batches) == 2
    found = {}
    for change in (change for batch in batches for change in read_batch(batch)):
        assert found.setdefault(change.tier, {}).keys().isdisjoint(change.contributions)
        found[change.tier].update(change.contributions)
    assert found == {0: contributions, 1: contributions}
