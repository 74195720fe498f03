"""A group of sensors without a runner: its state, its timers, and a table in memory."""

from collections import Counter

from pipeline.core.completion.stored_windows import Completion
from pipeline.core.events.event import Event
from pipeline.core.panes.firing import END_US, Aggregation, FiringRules
from pipeline.core.panes.group_firing import GroupFiring
from pipeline.core.panes.group_state import Bags, GroupState, read_schedule
from pipeline.core.panes.grouped_readings import GroupedReadings, read_group_readings, start_of_readings, wakes
from pipeline.core.results.window_results import batches_of, read_batch
from pipeline.core.rows.aggregate_rows import parse_aggregate_row
from pipeline.core.schema.retention import Retention
from pipeline.proto.window_result_pb2 import WindowResult
from tests.support.memory import Memory
from tests.support.rows import decoded

SECOND = 1_000_000
MINUTE = 60 * SECOND
LATENESS = 10 * MINUTE
HOUR, DAY = 3_600_000_000, 86_400_000_000
MIDNIGHT = 20_501 * DAY


class Values(list):
    """A bag of state."""

    add = list.append

    def read(self):
        """Returns what was added."""
        return list(self)


class CountingBag(Values):
    """A bag that counts how often it is read, and the bytes that are read and added."""

    def __init__(self, name, counts):
        super().__init__()
        self.name, self.counts = name, counts

    def read(self):
        """Returns what was added."""
        self.counts[self.name, "reads"] += 1
        self.counts[self.name, "read"] += sum(map(len, self))
        return super().read()

    def add(self, value):
        """Adds a value."""
        self.counts[self.name, "added"] += len(value)
        self.append(value)


class Group:
    """A group with its state, as a runner keeps it, and a table."""

    def __init__(
        self,
        schema,
        now_us,
        before_us=None,
        table=None,
        *,
        early_us=MINUTE,
        late_us=MINUTE,
        results=None,
        rollups=None,
        commit=None,
    ):
        self.schema, self.table, self.now_us = schema, table or Memory(), now_us
        firing = FiringRules(schema.tiers[0].window, early_us, late_us, LATENESS, commit=commit)
        self.aggregation = Aggregation(schema.tiers, firing, before_us, schema.latest, results, rollups)
        self.retention = Retention.of(schema)
        self.schedule, self.bags = b"", Bags(Values(), Values(), Values())
        self.listed, self.written, self.counts, self.published, self.contributed = [], [], Counter(), [], []

    @property
    def chunks(self):
        """The bytes of all windows."""
        return list(self.bags.open)

    def receive(self, *events):
        """Takes events, whose raw rows are written first."""
        self.store(*events)
        gathered = GroupedReadings(self.schema.tiers[0].window, self.schema.identity, fields=self.schema.member_fields)
        gathered.add(events)
        self.take([part.data for part in gathered.take_groups()])

    def take(self, parts):
        """Takes readings, encoded as a job gathers them."""
        schedule = self.read_schedule()
        for part in parts:
            start_us = start_of_readings(part)
            if schedule.is_late(start_us):
                for mark in wakes(start_us, {each.sensor_id for each in read_group_readings(part)}):
                    self.bags.marks.add(mark)
            else:
                self.bags.parts.add(part)
            schedule.expect(start_us, self.now_us)
        self.schedule = schedule.to_bytes()

    def store(self, *events):
        for event in events:
            for row in self.schema.rows(event):
                self.table.write(row)

    def watermark(self, time_us):
        """Passes the watermark, timer by timer."""
        while True:
            schedule = self.read_schedule()
            at_us = min(schedule.watermark_us, time_us)
            self._fire(schedule, schedule.pass_watermark(at_us))
            if at_us == time_us and not (at_us == END_US and schedule.due_us):
                return

    def pass_time(self, microseconds=MINUTE):
        self.now_us += microseconds
        schedule = self.read_schedule()
        self._fire(schedule, schedule.pass_time(self.now_us))

    def pass_time_to(self, now_us):
        """Passes the clock, and a watermark a second behind it, timer by timer."""
        while self.schedule:
            schedule = self.read_schedule()
            next_us = min(schedule.clock_us, schedule.watermark_us + SECOND)
            if next_us > now_us:
                break
            self.now_us = max(self.now_us, next_us)
            if schedule.watermark_us + SECOND == next_us:
                self.watermark(schedule.watermark_us)
            else:
                self.pass_time(0)
        self.now_us = now_us

    def read_schedule(self):
        return read_schedule(self.schedule or None, self.bags, self.aggregation, self.now_us)

    def _fire(self, schedule, due):
        completion = Completion(self.schema, self.retention, self.table, raw_until_us=self.aggregation.before_us or 0)
        state = GroupState(self.bags, self.aggregation, schedule, due, self.now_us, completion)
        firing = GroupFiring(state)
        firing.fire()
        if firing.results:
            self.publish(firing.results.found, schedule.firings)
        if firing.contributions:
            self.contributed += firing.contributions.batches()
        schedule.firings += 1
        schedule.group = 1  # in the first group, longer windows follow just when hours end
        state.write(firing.left)
        self.schedule = schedule.to_bytes()
        assert len({row.key for row in firing.rows}) == len(firing.rows)
        for row in map(decoded, firing.rows):
            self.table.write(row)
            self.written.append(row)
        self.listed += firing.incomplete
        self.counts += firing.counts

    def publish(self, results, number):
        """Publishes the results of the firing with this number."""
        for batch in batches_of(results, self.schema.tiers, self.aggregation.results.began_us, number):
            self.published += map(WindowResult.FromString, read_batch(batch))

    def row(self, tier, sensor_id, start_us):
        """Returns the number of events and the sum of ``t`` in an aggregate row; None without a row."""
        for found in Completion(self.schema, self.retention, self.table).rows(
            tier, sensor_id, start_us, tier.window.end_of(start_us)
        ):
            return found[1].events, found[1].metrics["t"].total
        return None


def event(sensor_id, time_us, readings):
    """Returns an event without metadata."""
    return Event(sensor_id, time_us, readings, {})


def rows_of(group):
    """Returns the last version of each aggregate row: tier, start and record."""
    rows = {row.key: row for row in group.written}
    found = {}
    for tier in group.schema.tiers:
        for row in rows.values():
            if row.cells[0].family == tier.family:
                record = parse_aggregate_row(tier.window, row, tier.statistics)
                found[tier.window.text, record.start_us] = record
    return found


def restarted(group):
    """Returns the group of a new job after the old one is drained."""
    group.watermark(END_US)
    new = Group(
        group.schema,
        group.now_us,
        before_us=MIDNIGHT + 9 * DAY,
        table=group.table,
        results=group.aggregation.results and group.aggregation.results._replace(began_us=group.now_us + 1),
        rollups=group.aggregation.rollups,
    )
    new.now_us += 1
    new.written, new.published, new.contributed = group.written, group.published, group.contributed
    return new
