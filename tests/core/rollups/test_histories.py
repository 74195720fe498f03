"""Whatever happens on the way, a group's row is the merge of what its sensors have."""

import json
import math
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.accumulation.accumulator import merged
from pipeline.core.panes.firing import RollupRules
from pipeline.core.panes.group_firing import PaneContributions
from pipeline.core.rollups.due import RowsThenDue, due_bytes, read_due, read_written
from pipeline.core.rollups.group_rules import GroupRules
from pipeline.core.rollups.levels import Levels, ShardWindow, key_of_members
from pipeline.core.rollups.settling import RollupSettling
from pipeline.core.rows.aggregate_rows import aggregate_key, encoded_aggregate_row
from pipeline.core.rows.rollup_rows import PARTS, ROLLUP, parse_rollup_row
from pipeline.core.schema.rate import group_of
from pipeline.core.schema.rollup import encoded_value
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.member import Member, member_text, noted
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
SENSORS = [f"sensor-{number}" for number in range(6)]
SITES = ["north", "sü d", "a/b", "#1", "", "x" * 300, "%2F"]
METRICS = ["temperature", "water", "power", "other"]


class Stopped(Exception):
    """A tool was killed."""


class Story:
    """A job, tools beside it, and what is true: the events of each sensor's window.

    Attributes:
        members: rows of members before they are written, with what is due then.
        parts: rows of parts, likewise.
        rows: rows of groups.
        late: rows of jobs that were stopped: they may arrive at any time.
    """

    def __init__(self, random):
        self.random = random
        self.table, self.truth, self.shown = VersionedTable(), {}, Counter()
        self.between, self.fails = None, False
        self.late = []
        self.start()

    def start(self):
        """Begins a job: without any state."""
        self.members, self.parts, self.rows = [], [], []
        self.shards, self.groups = {}, []

    # What happens to sensors

    def touch(self):
        """Some sensors get events, of a window of any age, and a pane fires; or another pane says the same."""
        random, tier = self.random, self.random.randrange(2)
        start_us = START_US + random.randrange(3) * (HOUR_US, DAY_US)[tier]
        sensors = random.sample(SENSORS, random.randint(1, 4))
        for sensor in sensors:
            if random.random() < 0.9:
                self.add_events(tier, start_us, sensor)
        self.pane(tier, start_us, sensors)

    def add_events(self, tier, start_us, sensor):
        """A sensor gets events."""
        random = self.random
        events = self.truth.setdefault((tier, start_us, sensor), {})
        for _ in range(random.randint(1, 3)):
            time_us = start_us + random.randrange(0, HOUR_US, 1_000_000)
            if time_us not in events:
                fields = {"site": random.choice(SITES[: random.choice([2, 7])]), "model": random.choice("ab")}
                for name in [name for name in fields if random.random() < 0.1]:
                    del fields[name]
                metrics = random.sample(METRICS, random.randint(1, 4))
                events[time_us] = {name: random.gauss(1e3, 10) for name in metrics}, fields
        self.write_aggregate(tier, start_us, sensor)

    def stats(self, tier, start_us, sensor):
        """Returns the statistics of a sensor's window; None without any event."""
        events = self.truth.get((tier, start_us, sensor))
        if not events:
            return None
        stats = WindowStats()
        for time_us, (readings, _) in sorted(events.items()):
            stats.merge(SCHEMA.statistics.stats_of([time_us], {name: [value] for name, value in readings.items()}))
        told = [Member(time_us, member_text(("model", "site"), fields)) for time_us, (_, fields) in events.items()]
        stats.member = noted(None, told)[0]
        return stats

    def write_aggregate(self, tier, start_us, sensor):
        """Writes or deletes a sensor's aggregate row."""
        window, family = SCHEMA.tiers[tier].window, SCHEMA.tiers[tier].family
        key, stats = aggregate_key(window, sensor, start_us), self.stats(tier, start_us, sensor)
        self.table.forget(key)
        if stats is not None:
            self.table.apply(encoded_aggregate_row(window, sensor, start_us, stats, family, SCHEMA.statistics))

    def pane(self, tier, start_us, sensors):
        contributions = PaneContributions(RollupRules.of(SCHEMA))
        found = {sensor: self.stats(tier, start_us, sensor) for sensor in sensors}
        contributions.add(tier, start_us, {sensor: stats for sensor, stats in found.items() if stats})
        self.members += map(read_written, contributions.batches())

    # The job

    def write(self, waiting, due_of, most=4):
        """Elements are written: their rows arrive in any order, some twice; then what is due is passed on."""
        self.random.shuffle(waiting)
        for element in self.take(waiting, most):
            rows = [row for row in element.rows for _ in range(self.random.choice([1, 1, 2]))]
            self.random.shuffle(rows)
            self.apply(rows)
            for _ in range(self.random.choice([1, 1, 2])):  # a bundle fails at its end, and comes again
                due_of(element.due)

    def write_members(self, most=4):
        def due_of(due):
            for shard, data in due:
                self.shards.setdefault(shard, []).append(data)

        self.write(self.members, due_of, most)

    def write_parts(self, most=4):
        self.write(self.parts, self.groups.extend, most)

    def derive_parts(self):
        """A shard computes what is due, or some of it."""
        if self.shards:
            shard = self.random.choice(sorted(self.shards))
            derived = self.levels().parts(shard, read_due(self.shards.pop(shard)))
            self.parts += elements(derived.rows, derived.due)
            if derived.rest:
                self.shards.setdefault(shard, []).extend(bytes_of(derived.rest))

    def derive_groups(self):
        """A bucket computes what is due, or some of it."""
        self.random.shuffle(self.groups)
        some = self.take(self.groups, 5)
        if some:
            derived = self.levels().groups(read_due(some))
            self.rows += derived.rows
            self.groups += bytes_of(derived.rest)

    def levels(self):
        return Levels(RULES, self.table.select, self.random.choice([1, 1000, 1 << 20]))

    def write_rows(self, most=10):
        """Some rows of groups arrive, in any order."""
        self.random.shuffle(self.rows)
        self.apply(self.take(self.rows, most))

    def arrive_late(self):
        """Rows of a job that was stopped arrive, or of a worker that lost its lease."""
        self.random.shuffle(self.late)
        self.apply(self.take(self.late, 10))

    def apply(self, rows):
        for row in rows:
            self.table.apply(row)
            if self.random.random() < 0.05:
                self.late.append(row)
        self.check_versions()

    def settle(self):
        """All that is on its way in the job arrives."""
        while self.members or self.parts or self.rows or self.shards or self.groups:
            self.write_members(100)
            self.derive_parts()
            self.write_parts(100)
            self.derive_groups()
            self.write_rows(1000)

    def lose(self):
        """The job is stopped: what waits is lost, besides rows that arrive later. All comes again."""
        rows = [row for element in (*self.members, *self.parts) for row in element.rows]
        for row in [*rows, *self.rows]:
            where = self.random.random()
            if where < 0.4:
                self.table.apply(row)
            elif where < 0.7:
                self.late.append(row)
        self.start()
        for tier, start_us, sensor in list(self.truth):
            self.pane(tier, start_us, [sensor])

    # Tools

    def tool(self, steps, does, *arguments):
        """A tool runs beside the job, which takes such steps; it may be killed, and is run again then."""
        self.fails = self.random.random() < 0.3
        while True:
            self.between = (lambda: self.random.choice(steps)(self)) if self.random.random() < 0.5 else None
            try:
                does(*arguments)
                break
            except Stopped:
                self.fails = self.random.random() < 0.5
            finally:
                self.between = None
        self.fails = False

    def read_between(self, selection):
        self.disturb()
        return self.table.select(selection)

    def write_between(self, rows):
        self.disturb()
        for row in rows:
            if self.fails and self.random.random() < 0.2:
                raise Stopped
            self.table.apply(row)
        self.check_versions()

    def disturb(self):
        between, self.between = self.between, None
        if between is not None:
            for _ in range(self.random.choice([0, 0, 1, 5])):
                between()
            self.between = between

    def backfill(self):
        """A backfill adds events, while the job may have panes of the same windows on their way."""
        windows = self.some_windows()
        for window in windows:
            self.add_events(*window)
        self.tool(STEPS, self.settle_windows, windows, False)

    def repair(self):
        """A repair finds that raw rows were deleted. Nothing of these windows is on its way to rows of members."""
        self.members_arrive()
        windows = self.some_windows()
        for window in windows:
            events = self.truth.get(window, {})
            for time_us in self.random.sample(sorted(events), min(len(events), self.random.randint(1, 4))):
                del events[time_us]
            self.write_aggregate(*window)
        self.tool(STEPS[3:], self.settle_windows, windows, True)

    def forget(self):
        """Sensors are forgotten: no row of members has a cell of them."""
        self.members_arrive()
        sensors = self.random.sample(SENSORS, 2)
        for window in [window for window in self.truth if window[2] in sensors]:
            del self.truth[window]
            self.write_aggregate(*window)
        self.tool(STEPS[3:], self.forget_sensors, sensors)
        for row in self.table.rows(b"rollup_members#"):
            assert not {cell.qualifier.decode() for cell in row.cells} & set(sensors)

    def forget_sensors(self, sensors):
        windows = {}
        for tier, length_us in enumerate((HOUR_US, DAY_US)):
            for start_us in range(START_US, START_US + 3 * length_us, length_us):
                for sensor in sensors:
                    of = ShardWindow(tier, start_us, group_of(sensor.encode(), 3))
                    key = key_of_members(RULES, of)
                    if any(cell.qualifier == sensor.encode() for cell in self.table.cells(key)):
                        windows.setdefault(of, []).append(sensor)
        settling = RollupSettling(RULES, self.read_between, self.write_between, less=True)
        settling.settle(windows)
        settling.forgotten(windows)

    def settle_windows(self, windows, less):
        of_shards = {}
        for tier, start_us, sensor in windows:
            of_shards.setdefault(ShardWindow(tier, start_us, group_of(sensor.encode(), 3)), []).append(sensor)
        RollupSettling(RULES, self.read_between, self.write_between, less=less).settle(of_shards)

    def some_windows(self):
        tier = self.random.randrange(2)
        start_us = START_US + self.random.randrange(3) * (HOUR_US, DAY_US)[tier]
        return [(tier, start_us, sensor) for sensor in self.random.sample(SENSORS, 3)]

    def members_arrive(self):
        """What the job and others have contributed is in the table."""
        while self.members:
            self.write_members()
        self.arrive_all()

    def arrive_all(self):
        late, self.late = self.late, []
        for row in late:
            self.table.apply(row)

    def take(self, waiting, most):
        return [waiting.pop() for _ in range(min(len(waiting), self.random.randint(1, most)))]

    # What has to hold

    def check_versions(self):
        """No part and no row of a group is replaced by an older version."""
        for row in [*self.table.rows(PARTS.encode()), *self.table.rows(ROLLUP.encode() + b"#")]:
            for cell in row.cells:
                if cell.qualifier != b"sensors" and row.key.startswith(f"{ROLLUP}#".encode()):
                    continue  # of a metric that a group may have had, or with the same version
                place = row.key, cell.qualifier
                newest = max(other.timestamp_us for other in row.cells if other.qualifier == cell.qualifier)
                assert newest >= self.shown[place]
                self.shown[place] = newest

    def check(self):
        self.settle()
        self.arrive_all()
        expected = {}
        for tier, start_us, sensor in self.truth:
            stats, window = self.stats(tier, start_us, sensor), SCHEMA.tiers[tier].window
            for name, value in groups_of(stats, tier) if stats else ():
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
                    found[tier.window.text, record.group.rollup, record.group.text, record.start_us] = record
        assert found.keys() == expected.keys()
        for key, record in found.items():
            assert_same(record, *expected[key])


def elements(rows, due):
    """Returns rows one by one, with the group that is due because of each."""
    pairs = zip(rows, due, strict=True)
    return [RowsThenDue([row], bytes_of({window: {name: None}})) for row, (window, name) in pairs]


def bytes_of(due):
    return list(due_bytes(due))


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


STEPS = (
    *[Story.touch] * 3,
    *[Story.write_members] * 3,
    *[Story.derive_parts] * 3,
    *[Story.write_parts] * 3,
    *[Story.derive_groups] * 3,
    *[Story.write_rows] * 3,
    Story.arrive_late,
)
ACTS = (*STEPS, *STEPS, Story.settle, Story.lose, Story.backfill, Story.backfill, Story.repair, Story.forget)


@given(st.integers(0, 1 << 64), st.integers(1, 80))
def test_any_history_leads_to_what_sensors_have(seed, length):
    """Every row is the merge of its sensors' newest contributions, and no cell is replaced by an older version."""
    story = Story(Random(seed))
    for _ in range(length):
        story.random.choice(ACTS)(story)
    story.check()


@pytest.mark.parametrize("number", range(3))
def test_a_job_that_is_stopped_when_a_sensor_has_moved(number):
    """Late data moves a sensor in an old window; the job stops after a level, and all comes again: one site has it."""
    story = Story(Random(1))
    window = 0, START_US, SENSORS[0]
    for site in ("north", "south"):
        events = story.truth.setdefault(window, {})
        events[START_US + 1_000_000 * len(events)] = {"temperature": 1.0}, {"site": site}
        story.write_aggregate(*window)
        story.pane(0, START_US, [SENSORS[0]])
        if site == "north":
            story.settle()
    for level in (story.write_members, story.derive_parts, story.write_parts)[: number + 1]:
        level()
    story.start()
    story.pane(0, START_US, [SENSORS[0]])
    story.check()


def test_what_was_before_is_told_by_longer_windows():
    """A day tells the texts of its hours' events, also of those before an hour's newest."""
    hours = {}
    for hour, sites in enumerate(("ab", "c", "a")):
        stats = SCHEMA.statistics.stats_of([START_US + hour * HOUR_US], {"water": [1.0]})
        told = [
            Member(START_US + hour * HOUR_US + number, member_text(("site",), {"site": site}))
            for number, site in enumerate(sites)
        ]
        stats.member = noted(None, told)[0]
        hours[START_US + hour * HOUR_US] = stats
    member = merged(hours, SCHEMA.statistics).stats.member
    assert member.text == '{"site":"a"}'
    assert set(member.before) == {'{"site":"b"}', '{"site":"c"}'}
