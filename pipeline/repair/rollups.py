"""Repairs the rows of roll-ups, slice by slice in this process or as one Dataflow job.

Roll-ups are computed from aggregate rows, also where raw rows are gone. If these lack metadata that a new roll-up
groups by, and raw rows tell it, they are repaired first. What differs from the stored rows is settled:

    aggregate rows ─ contributions ─┐
    rows of members ────────────────┴─ CompareShards ─ parts of groups ─┐
    rows of groups, and of their parts ─────────────────────────────────┴─ CompareGroups ─ wrong rows

Each step has the rows of one window of a shard, or of a group, in memory.
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsSingleton, PBegin, PCollection, TaggedOutput
from apache_beam.transforms.window import GlobalWindows
from apache_beam.typehints import KV

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.connection.key_ranges import Sample, sampled_keys, split_points
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables.retention_notes import retention_of
from pipeline.cloud.tables.schema_store import schema_of
from pipeline.core.completion.audit import Bounds, Extent, SkippedWindows, extents_of, lateness_of
from pipeline.core.completion.neighbours import leave_out
from pipeline.core.notation.text import json_line
from pipeline.core.notation.times import parse_time
from pipeline.core.queries.reads import RowSelection, in_batches
from pipeline.core.queries.sweeps import Span, window_rows
from pipeline.core.rollups.comparison import WrongGroup, audit_group, same_sums
from pipeline.core.rollups.contributions import NOTHING, Contributions
from pipeline.core.rollups.group_rules import Group, GroupRules
from pipeline.core.rollups.levels import NEWEST, NO_MEMBERS, Members, ShardWindow, parts_in, parts_of
from pipeline.core.rows.aggregate_rows import AggregateKey, aggregate_prefix, aggregate_range, parse_aggregate_key
from pipeline.core.rows.rollup_rows import (
    FAMILY,
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
from pipeline.core.rows.rows import KeyRange, prefix_range, split_range
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.rate import group_of
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.statistics.member import tells
from pipeline.job import bounded
from pipeline.job.settings import runs_here
from pipeline.repair.report import WriteReport, read_findings
from pipeline.repair.run import SliceResult, carry_out
from pipeline.repair.scope import Request, checked_here, most_slices, policies_of, scope_of, slices_of
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

_MICROSECOND = timedelta(microseconds=1)
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


@dataclass(frozen=True)
class RollupScope:
    """The windows of a repair of roll-ups.

    Attributes:
        extents: the windows, of the tiers that have roll-ups.
        skipped: the windows to skip.
        slices: spans of time, one pipeline each.
        recomputable_us: the start from which windows have all their raw rows, by the index of the tier.
    """

    schema: TableSchema
    extents: list[Extent]
    skipped: list[SkippedWindows]
    slices: list[Span]
    samples: list[Sample]
    recomputable_us: list[int]


class RollupResult(NamedTuple):
    """The result of one slice.

    Attributes:
        counts: the job's counters.
        findings: wrong rows of groups.
        repaired: the results of the repair of aggregate rows that came first, if any did.
    """

    counts: Mapping[str, int]
    findings: list[dict[str, Any]]
    repaired: list[SliceResult]


def rollup_scope_of(request: Request, options: PipelineOptions) -> RollupScope:
    """Returns the scope of a repair of roll-ups.

    Raises:
        ServerError: the table has no roll-ups, or a server can't be reached.
        BadFlag: Dataflow can't run this repair.
    """
    here = checked_here(request, options)
    schema = schema_of(request.table)
    tiers = [tier for tier in schema.tiers if schema.rollups_of(tier.window)]
    if not tiers:
        raise ServerError(f"table {request.table} has no roll-ups to repair: its schema declares none")
    now_us = time.time_ns() // 1000
    policies = policies_of(request.table, schema)
    retention = retention_of(request.table, schema, policies)
    bounds = None if request.force else _bounds(request, schema, retention, Retention.of(schema, policies), now_us)
    extents, skipped = extents_of(request.start_us, request.end_us, tiers, bounds)
    samples = sampled_keys(request.table)
    most = most_slices(samples, here=here)
    readings_us = retention.readings_from_us(now_us)
    recomputable_us = [tier.window.first_start(min(readings_us, request.end_us)) for tier in schema.tiers]
    return RollupScope(schema, extents, skipped, slices_of(extents, most), samples, recomputable_us)


def _bounds(
    request: Request, schema: TableSchema, retention: Retention, present: Retention, now_us: int
) -> dict[Tier, Bounds]:
    """Returns which windows have all their aggregate rows, keep those of roll-ups, and are not written by a job."""
    of_jobs = retention.lateness_of_jobs(request.allowed_lateness, request.late_firing)
    kept_us, latest_us = present.cells_stay_from_us(FAMILY, now_us), now_us - lateness_of(*of_jobs) // _MICROSECOND
    return {tier: Bounds(retention.aggregates_from_us(tier, now_us), kept_us, latest_us) for tier in schema.tiers}


def repair_rollups(request: Request, scope: RollupScope, options: PipelineOptions) -> Iterator[RollupResult]:
    """Repairs the roll-ups of slice after slice; a dry run only reports wrong ones.

    Raises:
        ServerError: the job failed. Earlier slices stay repaired.
        BadFlag: Beam's validation refused an option.
    """
    started = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    with tempfile.TemporaryDirectory(prefix="tidetable-repair-") as folder:
        for number, span in enumerate(scope.slices):
            prefix = FileSystems.join(request.report or folder, f"rollups-{started}-{number:02}")
            extents = [each for each in (_within(extent, span) for extent in scope.extents) if each.windows]
            counts = _inspect(request, scope, extents, options, prefix, waits=not request.dry_run)
            repaired: list[SliceResult] = []
            if counts.get(metrics.REPAIR_ROWS_TO_RECOMPUTE, 0) and not request.dry_run:
                start_us, end_us = min(each.start_us for each in extents), max(each.end_us for each in extents)
                of_slice = replace(request, start_us=start_us, end_us=end_us, force=False, rolls_up=False)
                repaired = list(carry_out(of_slice, scope_of(of_slice, options), options))
                counts = _inspect(request, scope, extents, options, prefix, waits=False)
            yield RollupResult(counts, sorted(read_findings(prefix, in_order=False), key=_in_order), repaired)


def _in_order(record: Mapping[str, Any]) -> tuple[str, str, str, int]:
    return record["rollup"], record["value"], record["window"], parse_time(record["start"])


def _inspect(
    request: Request,
    scope: RollupScope,
    extents: Sequence[Extent],
    options: PipelineOptions,
    prefix: str,
    *,
    waits: bool,
) -> dict[str, int]:
    """Finds the wrong rows of windows and, unless it is a dry run, settles them. Returns the job's counters."""
    schema, tasks = scope.schema, list(_tasks(scope, extents))

    def build(pipeline: beam.Pipeline) -> None:
        writes = not request.dry_run
        audit = AuditRollups(request.table, schema, tasks, scope.recomputable_us, writes=writes, waits=waits)
        wrong = pipeline | "AuditRollups" >> audit
        lines = wrong | "ToJson" >> beam.Map(lambda each, tiers: json_line(each.record(tiers)), schema.tiers)
        _ = lines | "Report" >> WriteReport(prefix, here=runs_here(options))

    return bounded.run(options, build, [schema])


def _tasks(scope: RollupScope, extents: Iterable[Extent]) -> Iterator[RowsTask]:
    """Yields the rows to read for an audit of windows, in parts."""
    schema, at = scope.schema, split_points(scope.samples)
    for extent in extents:
        window = extent.tier.window
        for keys in split_range(prefix_range(aggregate_prefix(window).encode()), at):
            yield RowsTask(AGGREGATES, extent, (keys,))
        shards = range(schema.shards_of_rollups)
        of_shards = [members_range(window, shard, extent.start_us, extent.end_us) for shard in shards]
        size = -(-len(of_shards) // _TASKS)
        for first in range(0, len(of_shards), size):
            yield RowsTask(MEMBERS, extent, tuple(of_shards[first : first + size]))
        for rollup in schema.rollups_of(window):
            for kind in (ROLLUP, PARTS):
                yield RowsTask(kind, extent, (groups_range(window, rollup.name, kind),), rollup.name)


def _within(extent: Extent, span: Span) -> Extent:
    first, last = (extent.tier.window.first_start(each) for each in (span.start_us, span.end_us))
    start_us = max(extent.start_us, first)
    return Extent(extent.tier, start_us, max(min(extent.end_us, last), start_us))


@dataclass(eq=False)
class AuditRollups(beam.PTransform):
    """Audits roll-ups: from the start of a pipeline to a :class:`WrongGroup` for each wrong window of a group.

    Args:
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
        super().__init__(name, schema, less=True)
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
        self._settling.members(waiting)
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
        self._settling.parts(shards)
        self._settling.groups([wrong.of for wrong in waiting])
        self._written.inc(sum(bool(wrong.columns) for wrong in waiting))


def _is_same(stored: Versioned | None, right: Versioned | None) -> bool:
    """Returns whether a sensor's cell is right; that of a sensor without an aggregate row may tell that it has none."""
    if right is None:
        return stored is None or stored.value == NOTHING
    return stored is not None and stored.version == right.version and same_sums(stored.value, right.value)
