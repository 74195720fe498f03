"""Runs repairs: recomputes aggregates from their raw rows, slice by slice in this process or as one Dataflow job.

A repair keeps no state besides the rows that it writes. One that was interrupted can be run again, with the same
result. It claims a window of the work list before it reads the window's raw rows, and removes the window once its
aggregates are right. A late event that arrives in between lists the window again.
"""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import count, islice
from types import MappingProxyType
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.io.textio import WriteToText
from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.cloud.connection.errors import ServerProblem
from pipeline.cloud.connection.key_ranges import Sample, sampled_keys, split_points, split_range
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables import tables
from pipeline.cloud.tables.retention_notes import record_losses, retention_of
from pipeline.cloud.tables.schema_store import schema_of
from pipeline.core.completion.audit import FOREIGN, Extent
from pipeline.core.completion.auditable_windows import (
    Bounds,
    SkippedWindows,
    bounds_of,
    chains_of,
    extents_of,
    lateness_of,
)
from pipeline.core.completion.work_list import parse_work_key, work_range, work_range_of
from pipeline.core.notation.times import parse_time
from pipeline.core.queries.foreign import ForeignRows
from pipeline.core.queries.sweeps import Span, raw_ranges, window_rows
from pipeline.core.rows.aggregate_rows import AggregateKey, aggregate_prefix, aggregate_range
from pipeline.core.rows.rows import KeyRange, prefix_range
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.job import bounded
from pipeline.job.settings import BadFlag, runs_here
from pipeline.repair.claims import Claim, ListedWindow, list_windows
from pipeline.repair.following import windows_after
from pipeline.repair.plan import aggregates_expired, settles, slices_of, spans_of
from pipeline.repair.report import line_of, line_of_foreign, read_findings, read_foreign
from pipeline.repair.request import Request
from pipeline.repair.transforms import (
    FindWrongWindows,
    ListUntouched,
    ReadTask,
    RewriteWindows,
)
from pipeline.transforms import metrics
from pipeline.transforms.write import WriteRows

_MOST_SLICES = 50  # one pipeline each
_SLICE_BYTES = 64 << 20  # of the table, for each slice
_MOST_PASSES = 5  # over a slice whose windows keep changing
_MOST_LISTED = 20_000  # windows of the work list in one Dataflow job, whose graph contains them


class Slice(NamedTuple):
    """What a pipeline repairs.

    Attributes:
        extents: the windows to audit, of tiers that nest: see
            :func:`pipeline.core.completion.auditable_windows.chains_of`.
        spans: the spans to read.
    """

    extents: list[Extent]
    spans: list[Span]


class Plan(NamedTuple):
    """What a repair will do.

    Attributes:
        schema: the table's schema.
        extents: the windows to audit, shortest tier first.
        skipped: the windows to skip.
        listed: the requested windows that are on the work list.
        expired: the listed windows with no aggregate row left to repair.
        slices: what each pipeline repairs.
        samples: sampled row keys of the table.
        bounds: which windows of each tier may be repaired; None for all.
        retention: what Bigtable may have collected.
        foreign: rows with a work list's prefix that are no entries of it.
    """

    schema: TableSchema
    extents: list[Extent]
    skipped: list[SkippedWindows]
    listed: list[ListedWindow]
    expired: list[ListedWindow]
    slices: list[Slice]
    samples: list[Sample]
    bounds: Mapping[Tier, Bounds] | None
    retention: Retention
    foreign: ForeignRows

    @property
    def nests(self) -> bool:
        """Whether the longest windows contain whole windows of all other tiers: each slice repairs all tiers."""
        return len(chains_of(self.extents)) == 1

    def settles(self, window: ListedWindow, *slices: Slice) -> bool:
        """Returns whether these slices, or all of them if none is given, settle a listed window."""
        sensor_id, start_us = window.key
        spans = (span for part in slices or self.slices for span in part.spans)
        inside = any(span.start_us <= start_us < span.end_us and span.includes(sensor_id) for span in spans)
        return inside and settles(start_us, self.extents, self.bounds)

    def after(self, windows: Sequence[AggregateKey]) -> tuple[list[Slice], list[AggregateKey]]:
        """Returns the slices that audit further windows of the shortest tier, and those that they don't settle."""
        tiers = self.schema.tiers
        whole = _enclosing_span([each.start_us for each in windows], tiers, None)
        extents, _ = extents_of(whole.start_us, whole.end_us, tiers, self.bounds)
        left = [each for each in windows if not settles(each.start_us, extents, self.bounds)]
        return [Slice(nested, spans_of(windows, nested)) for nested in chains_of(extents)], left


class SliceResult(NamedTuple):
    """The result of one slice."""

    checked: int
    wrong: int
    rewritten: int
    settled: int  # windows removed from the work list
    findings: Iterator[dict[str, Any]]  # wrong windows and untouched ones
    listed: int = 0  # untouched windows that are new on the work list
    untouched: int = 0  # windows, of every length, that foreign raw rows may belong to
    foreign: Mapping[str, str] = MappingProxyType({})  # foreign rows: key to what is wrong with the row
    unnamed: int = 0  # further foreign rows; a row may count more than once


def plan(request: Request, options: PipelineOptions, now_us: int | None = None) -> Plan:
    """Plans a repair from what the table contains.

    Raises:
        ServerProblem: the table lacks a tier or a family, or a server can't be reached.
        BadFlag: Dataflow can't run this repair.
    """
    _check_report(request, options)
    schema = schema_of(request.table, request.declared)
    if not schema.tiers:
        raise ServerProblem(f"table {request.table} has no aggregates to repair: its schema has no tiers")
    retention, bounds = Retention.of(schema), None
    if not request.force:
        retention, bounds = _bounds(request, schema, time.time_ns() // 1000 if now_us is None else now_us)
    whole = Span(request.start_us, request.end_us, request.sensors)
    foreign = ForeignRows()
    listed = [each for tier in schema.tiers for each in _read_listed(request.table, tier, whole, foreign)]
    if request.listed:
        if len(listed) > _MOST_LISTED and not runs_here(options):
            raise BadFlag(
                f"--listed: the work list has {len(listed):,} windows, and a Dataflow job takes at most "
                f"{_MOST_LISTED:,}; pass --from and --to instead"
            )
        whole = _enclosing_span([each.key.start_us for each in listed], schema.tiers, request.sensors)
    extents, skipped = extents_of(whole.start_us, whole.end_us, schema.tiers, bounds)
    samples = sampled_keys(request.table)
    most = _most_slices(samples, options)
    slices = []
    for nested in chains_of(extents):
        if request.listed:
            spans = _chunks(spans_of((each.key for each in listed), nested), most)
        else:
            spans = [[span] for span in slices_of(nested, most, request.sensors)]
        slices += [Slice(nested, each) for each in spans]
    if request.listed:
        skipped = []  # the summary counts what is left on the list
    expired = [each for each in listed if _is_expired(each, schema.tiers, bounds)]
    return Plan(schema, extents, skipped, listed, expired, slices, samples, bounds, retention, foreign)


def carry_out(request: Request, planned: Plan, options: PipelineOptions) -> Iterator[SliceResult]:
    """Repairs slice after slice; a dry run only reports what is wrong.

    Yields:
        the outcome of each slice. Read its findings before asking for the next one.

    Raises:
        ServerProblem: the job failed. Earlier slices stay repaired; the next repair does the rest.
        BadFlag: Beam's validation refused an option.
    """
    if planned.expired and not request.dry_run:
        with Claim(request.table, planned.expired):
            pass
        yield SliceResult(0, 0, 0, len(planned.expired), iter(()))
    with ExitStack() as stack:
        local = stack.enter_context(tempfile.TemporaryDirectory(prefix="tidetable-repair-"))
        folder = request.report or local
        again = local if runs_here(options) else folder
        run = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        # A listed window is settled once each tier is audited. If tiers do not nest, that takes several slices.
        whole = [] if planned.nests or request.dry_run else [each for each in planned.listed if planned.settles(each)]
        seen: set[tuple[str, AggregateKey]] = set()
        stack.enter_context(Claim(request.table, whole))
        slices, following, known = list(planned.slices), set[AggregateKey](), set[AggregateKey]()
        for number in count():
            if not slices and (more := sorted(following - known)):
                known |= following
                slices, left = planned.after(more)
                list_windows(request.table, planned.schema.tiers[0], left)
            if not slices:
                break
            part = slices.pop(0)
            file = f"repair-{run}-{number:02}"
            prefixes = [
                FileSystems.join(folder, file),
                *(FileSystems.join(again, f"{file}-again{attempt}") for attempt in range(1, _MOST_PASSES)),
            ]
            yield _repair(request, planned, part, options, prefixes, seen)
            if planned.schema.statistics.carries and not request.dry_run:
                longest, rewritten = part.extents[-1].tier.window, read_findings(prefixes[0], in_order=False)
                following |= set(windows_after(request.table, planned.schema, planned.retention, longest, rewritten))
    if whole:
        still_listed = {key for window, key in seen if window == planned.schema.tiers[0].window.text}
        yield SliceResult(0, 0, 0, sum(each.key not in still_listed for each in whole), iter(()))


def _repair(
    request: Request,
    planned: Plan,
    part: Slice,
    options: PipelineOptions,
    prefixes: Sequence[str],
    seen: set[tuple[str, AggregateKey]],  # untouched windows of earlier slices, and then of this one
) -> SliceResult:
    """Repairs a slice, then audits the rewritten windows again: a backfill may have written raw rows meanwhile.

    A backfill writes its raw rows before their aggregate row. Thus the last writer of an aggregate row has read all
    raw rows.
    """
    settling = []
    if planned.nests and not request.dry_run:
        settling = [each for each in planned.listed if planned.settles(each, part)]
    shortest = planned.schema.tiers[0]
    with Claim(request.table, settling):
        passes = []
        for prefix in prefixes:
            passes.append(_inspect(request, planned, part, options, prefix))
            if not passes[-1].get(metrics.REPAIR_WINDOWS_REWRITTEN):
                break
            part = part._replace(spans=_spans_again(read_findings(prefix, in_order=False), part))
        else:
            raise ServerProblem(
                f"table {request.table}: windows keep changing during the repair. If a job still writes them, pass its "
                "--allowed-lateness and --late-firing; if it still receives late events of them, repair them later"
            )
    untouched, foreign = read_foreign(prefixes[: len(passes)])
    untouched = untouched - seen
    seen |= untouched
    still_listed = {window for tier, window in untouched if tier == shortest.window.text}
    return SliceResult(
        passes[0].get(metrics.REPAIR_WINDOWS_CHECKED, 0),
        passes[0].get(metrics.REPAIR_WINDOWS_WRONG, 0),
        sum(counters.get(metrics.REPAIR_WINDOWS_REWRITTEN, 0) for counters in passes),
        sum(each.key not in still_listed for each in settling),
        read_findings(prefixes[0], in_order=runs_here(options)),
        0 if request.dry_run else len(still_listed.difference(each.key for each in planned.listed)),
        len(untouched),
        foreign,
        passes[0].get(metrics.REPAIR_FOREIGN_ROWS_UNNAMED, 0),
    )


def _inspect(request: Request, planned: Plan, part: Slice, options: PipelineOptions, prefix: str) -> dict[str, int]:
    """Finds the wrong windows of the spans and, unless it is a dry run, rewrites them. Returns the job's counters."""
    parts = list(_parts(planned, part))

    def build(pipeline: beam.Pipeline) -> None:
        found = pipeline | "FindWrongWindows" >> FindWrongWindows(
            request.table, planned.schema, part.extents, part.spans, parts, planned.retention
        )
        lines = (
            found.wrong | "ToJson" >> beam.Map(line_of),
            found.untouched | "UntouchedToJson" >> beam.Map(line_of),
            found.foreign | "ForeignToJson" >> beam.MapTuple(line_of_foreign),
        ) | beam.Flatten()
        _ = lines | "Report" >> WriteToText(prefix, ".ndjson", num_shards=1 if runs_here(options) else 0)
        if not request.dry_run:
            _ = found.wrong | "RewriteWindows" >> RewriteWindows(request.table)
            _ = found.untouched | "ListUntouched" >> ListUntouched(request.table, planned.schema.tiers[0])
            if planned.schema.latest is not None:
                write = WriteRows(request.table.project, request.table.instance, request.table.table)
                _ = found.newest | "WriteNewest" >> write

    return bounded.run(options, build, [planned.schema])


def _spans_again(findings: Iterator[dict[str, Any]], part: Slice) -> list[Span]:
    """Returns spans around the rewritten windows; all of the spans if there are too many windows."""
    found = list(islice((each for each in findings if each["problem"] != FOREIGN), _MOST_LISTED + 1))
    if len(found) > _MOST_LISTED:
        return part.spans
    return spans_of((AggregateKey(each["sensor_id"], parse_time(each["start"])) for each in found), part.extents)


def _parts(planned: Plan, part: Slice) -> Iterator[ReadTask]:
    """Returns everything to read for a slice, in parts that workers can read in parallel."""
    at = split_points(planned.samples)
    for number, span in enumerate(part.spans):
        for keys in raw_ranges(planned.schema, span.sensors):
            yield from (ReadTask(each, number) for each in split_range(keys, at))
        for extent in part.extents:
            yield from (ReadTask(keys, number, extent) for keys in _aggregate_ranges(extent, span, at))


def _aggregate_ranges(extent: Extent, span: Span, at: list[bytes]) -> list[KeyRange]:
    """Returns the key ranges of the aggregate rows in both the extent and the span."""
    start_us, end_us = max(extent.start_us, span.start_us), min(extent.end_us, span.end_us)
    if start_us >= end_us:
        return []
    window = extent.tier.window
    if span.sensors is None:
        return split_range(prefix_range(aggregate_prefix(window).encode()), at)
    return [aggregate_range(window, sensor_id, start_us, end_us) for sensor_id in sorted(span.sensors)]


def _is_expired(window: ListedWindow, tiers: Sequence[Tier], bounds: Mapping[Tier, Bounds] | None) -> bool:
    first_us = window.key.start_us
    last_us = window.tier.window.end_of(first_us) - tiers[0].window.length_us
    return aggregates_expired(first_us, tiers, bounds) and aggregates_expired(last_us, tiers, bounds)


def _bounds(request: Request, schema: TableSchema, now_us: int) -> tuple[Retention, dict[Tier, Bounds]]:
    """Returns what may be collected under the table's present policies, and which windows may be repaired."""
    policies = tables.describe(request.table)
    if missing := [family for family in schema.families if family not in policies]:
        raise ServerProblem(f"table {request.table} lacks the families that its schema names: {', '.join(missing)}")
    retention = retention_of(request.table, schema, policies)
    if not request.dry_run:
        record_losses(request.table, schema, retention, policies)
    lateness = lateness_of(schema.tiers, request.allowed_lateness, request.late_firing)
    return retention, bounds_of(retention, lateness, now_us, Retention.of(schema, policies))


def _most_slices(samples: Sequence[Sample], options: PipelineOptions) -> int:
    """Returns 1 for Dataflow; here, a number by the table's size, since each slice has to fit in memory."""
    if not samples or not runs_here(options):
        return 1
    return min(1 + samples[-1].offset_bytes // _SLICE_BYTES, _MOST_SLICES)


def _read_listed(table: TableName, tier: Tier, span: Span, foreign: ForeignRows) -> list[ListedWindow]:
    """Reads the listed windows in the span that were listed while the tier was the table's shortest."""
    with RowReader.open(table) as reader:
        rows = window_rows(
            reader.read_selection,
            CellSelection((), keys_only=True),
            work_range(tier.window),
            span,
            lambda key: parse_work_key(tier.window, key),
            lambda *windows: work_range_of(tier.window, *windows),
            foreign.add,
        )
        return [ListedWindow(tier, key) for key, _ in rows]


def _enclosing_span(starts: list[int], tiers: Sequence[Tier], sensors: frozenset[str] | None) -> Span:
    """Returns the span of windows with these starts, widened to whole windows of each tier."""
    if not starts:
        return Span(0, 0, sensors)
    windows = [tier.window for tier in tiers]
    first_us = min(window.start_of(min(starts)) for window in windows)
    return Span(first_us, max(window.end_of(window.start_of(max(starts))) for window in windows), sensors)


def _chunks(spans: list[Span], most: int) -> list[list[Span]]:
    size = max(-(-len(spans) // most), 1)
    return [spans[start : start + size] for start in range(0, len(spans), size)]


def _check_report(request: Request, options: PipelineOptions) -> None:
    if runs_here(options):
        return
    if request.report is None or not request.report.startswith("gs://"):
        raise BadFlag(
            "--report is required on Dataflow: a folder in a bucket for the findings, like gs://my-bucket/repair"
        )
