"""Audits the rows of roll-ups: computes them from the aggregate rows of all sensors, and settles those that are wrong.

    aggregate rows ─ contributions ─┐
    rows of members ────────────────┴─ CompareShards ─ parts of groups ─┐
    rows of groups, and of their parts ─────────────────────────────────┴─ CompareGroups ─ wrong rows

Each step has the rows of one window of a shard, or of a group, in memory.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import AsSingleton, PBegin, PCollection, TaggedOutput
from apache_beam.transforms.window import GlobalWindows
from apache_beam.typehints import KV

from pipeline.cloud.connection.names import TableName
from pipeline.core.completion.audit import Extent
from pipeline.core.completion.neighbours import leave_out
from pipeline.core.queries.reads import RowSelection, in_batches
from pipeline.core.queries.sweeps import Span, window_rows
from pipeline.core.rollups.comparison import WrongGroup, audit_group, same_sums
from pipeline.core.rollups.contributions import NOTHING, Contributions
from pipeline.core.rollups.group_rules import Group, GroupRules
from pipeline.core.rollups.levels import NEWEST, NO_MEMBERS, Members, ShardWindow, parts_in, parts_of
from pipeline.core.rows.aggregate_rows import AggregateKey, aggregate_range, parse_aggregate_key
from pipeline.core.rows.rollup_rows import (
    PARTS,
    ROLLUP,
    Versioned,
    groups_range,
    members_range,
    parse_members_key,
    parse_rollup_key,
    rollup_key,
    versions_in,
)
from pipeline.core.rows.rows import KeyRange
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.rate import group_of
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.member import tells
from pipeline.transforms import metrics
from pipeline.transforms.settle_rollups import (
    MOST_SENSORS,
    MOST_WINDOWS,
    GroupKey,
    SettlingFn,
    ShardKey,
    group_window,
)
from pipeline.transforms.tables import RETRY_S, TableReadingFn

_MOST_ROWS = 20_000  # aggregate rows in memory, before their contributions are passed on
_TASKS = 16  # in which the rows of members of a tier are read
_CONTRIBUTIONS, _MEMBERS, _LACKING = "contributions", "members", "lacking"
_PARTS, _STORED = "parts", "stored"


class RowsTask(NamedTuple):
    """Rows that one worker reads.

    Attributes:
        kind: whether they are aggregate rows, rows of members, of groups, or of their parts.
        extent: the windows.
        keys: a range that contains only such rows; several of rows of members.
        name: the roll-up, of rows of groups and their parts.
    """

    kind: str
    extent: Extent
    keys: tuple[KeyRange, ...]
    name: str = ""


AGGREGATES, MEMBERS = "aggregates", "members"


def tasks_of(
    schema: TableSchema, extents: Iterable[Extent], aggregates: Mapping[Extent, list[KeyRange]]
) -> list[RowsTask]:
    """Returns the rows to read for an audit of these windows, in parts.

    Args:
        schema: the table's schema.
        extents: the windows.
        aggregates: ranges of keys that contain the aggregate rows of the windows.
    """
    found: list[RowsTask] = []
    for extent in extents:
        window, start_us, end_us = extent.tier.window, extent.start_us, extent.end_us
        found += [RowsTask(AGGREGATES, extent, (keys,)) for keys in aggregates[extent]]
        shards = [members_range(window, shard, start_us, end_us) for shard in range(schema.shards_of_rollups)]
        size = -(-len(shards) // _TASKS)
        found += [RowsTask(MEMBERS, extent, tuple(shards[at : at + size])) for at in range(0, len(shards), size)]
        found += [
            RowsTask(kind, extent, (groups_range(window, rollup.name, kind),), rollup.name)
            for rollup in schema.rollups_of(window)
            for kind in (ROLLUP, PARTS)
        ]
    return found


@dataclass(eq=False)
class AuditRollups(beam.PTransform):
    """Audits roll-ups: from the start of a pipeline to a :class:`WrongGroup` for each wrong window of a group.

    Args:
        table: the table's name.
        schema: the table's schema.
        tasks: the rows to read.
        recomputable_us: the start from which windows have all their raw rows, by the index of the tier.
        writes: whether wrong rows are settled.
        waits: whether nothing is compared if aggregate rows lack metadata that raw rows tell. They are counted.
    """

    table: TableName
    schema: TableSchema
    tasks: Sequence[RowsTask]
    recomputable_us: Sequence[int]
    writes: bool
    waits: bool

    def expand(self, pipeline: PBegin) -> PCollection:
        name, schema = self.table, self.schema
        read = (
            pipeline
            | "Tasks" >> beam.Create(self.tasks)
            | "SpreadTasks" >> beam.Reshuffle()
            | "ReadRows"
            >> beam.ParDo(_ReadRowsFn(name, schema, self.recomputable_us)).with_outputs(
                _MEMBERS, _STORED, _LACKING, main=_CONTRIBUTIONS
            )
        )
        read[_MEMBERS].element_type, read[_STORED].element_type = KV[ShardKey, Any], KV[GroupKey, Any]
        read[_LACKING].element_type = int
        lacking = AsSingleton(read[_LACKING] | "Lacking" >> beam.CombineGlobally(sum))
        shards = {_CONTRIBUTIONS: read[_CONTRIBUTIONS], _MEMBERS: read[_MEMBERS]}
        parts = (
            shards
            | "GatherShards" >> beam.CoGroupByKey()
            | "CompareShards"
            >> beam.ParDo(_CompareShardsFn(name, schema, writes=self.writes, waits=self.waits), lacking)
        )
        return (
            {_PARTS: parts, _STORED: read[_STORED]}
            | "GatherGroups" >> beam.CoGroupByKey()
            | "CompareGroups"
            >> beam.ParDo(_CompareGroupsFn(name, schema, writes=self.writes, waits=self.waits), lacking)
        )


@beam.typehints.with_output_types(tuple[ShardKey, Any])
class _ReadRowsFn(TableReadingFn):
    """Reads the rows of tasks: contributions by shard. Further outputs have members, rows of groups, and a number."""

    def __init__(self, name: TableName, schema: TableSchema, recomputable_us: Sequence[int]) -> None:
        super().__init__(name, RETRY_S)
        self._schema, self._recomputable_us = schema, recomputable_us
        self._left_out = metrics.counter(metrics.REPAIR_ROWS_WITHOUT_MEMBER)
        self._lacking = metrics.counter(metrics.REPAIR_ROWS_TO_RECOMPUTE)

    def setup(self) -> None:
        super().setup()
        self._rules = GroupRules(self._schema)

    def process(self, element: RowsTask) -> Iterator[Any]:
        tier = self._schema.tiers.index(element.extent.tier)
        if element.kind == AGGREGATES:
            yield from self._aggregates(tier, element)
        elif element.kind == MEMBERS:
            yield from self._members(tier, element)
        else:
            yield from self._groups(tier, element)

    def _aggregates(self, tier: int, task: RowsTask) -> Iterator[Any]:
        of_tier, first_us, end_us = task.extent
        contributions, shards = Contributions(self._rules, tier), self._schema.shards_of_rollups
        found: dict[ShardKey, list[tuple[bytes, int, bytes]]] = defaultdict(list)
        held = lacking = 0
        rows = window_rows(
            self._read,
            CellSelection((of_tier.family,), versions=1),
            task.keys[0],
            Span(first_us, end_us),
            lambda key: parse_aggregate_key(of_tier.window, key),
            lambda *windows: aggregate_range(of_tier.window, *windows),
            leave_out,
        )
        for (sensor_id, start_us), row in rows:
            window = contributions.stats_of(row)
            if window is None:
                continue  # another program's
            if not tells(window[1].member, contributions.fields):
                if start_us >= self._recomputable_us[tier]:
                    lacking += 1
                    self._lacking.inc()
                else:
                    self._left_out.inc()
            sensor = sensor_id.encode()
            found[tier, start_us, group_of(sensor, shards)].append((sensor, *contributions.of(*window).cell))
            held += 1
            if held == _MOST_ROWS:
                yield from found.items()
                held = 0
                found.clear()
        yield from found.items()
        yield TaggedOutput(_LACKING, lacking)

    def _members(self, tier: int, task: RowsTask) -> Iterator[TaggedOutput]:
        window = task.extent.tier.window
        for ranges in in_batches(task.keys):
            for row in self._read(RowSelection(ranges, NEWEST)):
                try:
                    shard, start_us = parse_members_key(window, row.key)
                except ValueError:
                    continue  # another program's
                yield TaggedOutput(_MEMBERS, ((tier, start_us, shard), row))

    def _groups(self, tier: int, task: RowsTask) -> Iterator[TaggedOutput]:
        start_us, end_us, window = task.extent.start_us, task.extent.end_us, task.extent.tier.window

        def parse(key: bytes) -> AggregateKey:
            found = parse_rollup_key(window, key, task.kind)
            return AggregateKey(found.value, found.start_us)

        def range_of(value: str, first_us: int, last_us: int) -> KeyRange:
            first, last = window.first_start(first_us), window.first_start(last_us)
            return KeyRange(*(rollup_key(window, task.name, value, each, task.kind) for each in (first, last)))

        for (value, at_us), row in window_rows(
            self._read, NEWEST, task.keys[0], Span(start_us, end_us), parse, range_of, leave_out
        ):
            yield TaggedOutput(_STORED, ((tier, at_us, task.name, value), (task.kind, row)))


class _ComparingFn(SettlingFn):
    def __init__(self, name: TableName, schema: TableSchema, *, writes: bool, waits: bool) -> None:
        super().__init__(name, schema)
        self._writes, self._waits = writes, waits


@beam.typehints.with_output_types(tuple[GroupKey, tuple[int, int, bytes]])
class _CompareShardsFn(_ComparingFn):
    """Compares contributions with those that are stored, and yields the parts of all groups."""

    def __init__(self, name: TableName, schema: TableSchema, *, writes: bool, waits: bool) -> None:
        super().__init__(name, schema, writes=writes, waits=waits)
        self._wrong = metrics.counter(metrics.REPAIR_CONTRIBUTIONS_WRONG)

    def start_bundle(self) -> None:
        self._waiting: dict[ShardWindow, Collection[str]] = {}

    def process(self, element: tuple[ShardKey, Mapping[str, Iterable[Any]]], lacking: int) -> Iterator[Any]:
        if self._waits and lacking:
            return
        key, found = element
        of = ShardWindow(*key)
        right = {sensor: Versioned(*cell) for some in found[_CONTRIBUTIONS] for sensor, *cell in some}
        members = next((Members.of(row, of.start_us) for row in found[_MEMBERS]), NO_MEMBERS)
        unreadable = members.unreadable
        wrong = [
            sensor
            for sensor in right.keys() | members.cells.keys()
            if sensor in unreadable or not _is_same(members.cells.get(sensor), right.get(sensor))
        ]
        self._wrong.inc(len(wrong))
        if wrong and self._writes:
            self._waiting[of] = [sensor.decode(errors="replace") for sensor in wrong]
            if len(self._waiting) >= MOST_WINDOWS or sum(map(len, self._waiting.values())) >= MOST_SENSORS:
                yield from self._settle()
        else:
            counted = members.left.version + sum(cell.version for cell in right.values())
            version = max(members.version + 1, counted) if wrong else members.version  # once it is mended
            yield from self._parts(of, Members(version, right, members.left))

    def finish_bundle(self) -> Iterator[Any]:
        """Settles what is waiting. Beam asks for windowed values here."""
        return map(GlobalWindows.windowed_value, self._settle())

    def _settle(self) -> Iterator[Any]:
        waiting, self._waiting = self._waiting, {}
        self._settling.members(waiting, less=True)
        for of, members in self._settling.stored(waiting).items():
            yield from self._parts(of, members)

    def _parts(self, of: ShardWindow, members: Members) -> Iterator[tuple[GroupKey, tuple[int, int, bytes]]]:
        for (name, value), part in parts_of(self._rules, of.tier, members).items():
            yield (of.tier, of.start_us, name, value), (of.shard, *part)


class _CompareGroupsFn(_ComparingFn):
    """Compares the rows of groups with what their parts say, and yields those that are wrong."""

    def __init__(self, name: TableName, schema: TableSchema, *, writes: bool, waits: bool) -> None:
        super().__init__(name, schema, writes=writes, waits=waits)
        self._checked = metrics.counter(metrics.REPAIR_ROLLUPS_CHECKED)
        self._wrong = metrics.counter(metrics.REPAIR_ROLLUPS_WRONG)
        self._written = metrics.counter(metrics.ROLLUP_ROWS)

    def start_bundle(self) -> None:
        self._waiting: list[WrongGroup] = []

    def process(self, element: tuple[GroupKey, Mapping[str, Iterable[Any]]], lacking: int) -> Iterator[WrongGroup]:
        if self._waits and lacking:
            return
        key, found = element
        of, rows = group_window(key), dict(found[_STORED])
        stored = parts_in(rows[PARTS], of.start_us) if PARTS in rows else {}
        row = versions_in(rows[ROLLUP], of.start_us) if ROLLUP in rows else {}
        parts = {shard: Versioned(*part) for shard, *part in found[_PARTS]}
        wrong, exists = audit_group(self._rules, of, parts, stored, row)
        self._checked.inc(exists)
        if wrong is None:
            return
        self._wrong.inc()
        yield wrong
        if self._writes:
            self._waiting.append(wrong)
            if len(self._waiting) >= MOST_WINDOWS:
                self.finish_bundle()

    def finish_bundle(self) -> None:
        """Settles what is waiting."""
        waiting, self._waiting = self._waiting, []
        shards: dict[ShardWindow, list[Group]] = defaultdict(list)
        for wrong in waiting:
            for shard in wrong.shards:
                shards[ShardWindow(*wrong.of[:2], shard)].append(wrong.of.group)
        self._settling.parts(shards, resets=True)
        self._settling.groups([wrong.of for wrong in waiting], resets=True)
        self._written.inc(sum(bool(wrong.columns) for wrong in waiting))


def _is_same(stored: Versioned | None, right: Versioned | None) -> bool:
    """Returns whether a sensor's cell is right; that of a sensor without an aggregate row may tell that it has none."""
    if right is None:
        return stored is None or stored.value == NOTHING
    return stored is not None and stored.version == right.version and same_sums(stored.value, right.value)
