"""Repairs the rows of roll-ups, slice by slice in this process or as one Dataflow job.

Roll-ups are computed from aggregate rows, also where raw rows are gone. If these lack metadata that a new roll-up
groups by, and raw rows tell it, they are repaired first.
"""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.cloud.connection.errors import ServerProblem
from pipeline.cloud.connection.key_ranges import Sample, sampled_keys, split_points
from pipeline.cloud.tables import tables
from pipeline.cloud.tables.retention_notes import retention_of
from pipeline.cloud.tables.schema_store import schema_of
from pipeline.core.completion.audit import Extent
from pipeline.core.completion.auditable_windows import Bounds, SkippedWindows, extents_of, lateness_of
from pipeline.core.notation.text import json_line
from pipeline.core.notation.times import parse_time
from pipeline.core.queries.sweeps import Span
from pipeline.core.rollups.comparison import WrongGroup
from pipeline.core.rows.aggregate_rows import aggregate_prefix
from pipeline.core.rows.rollup_rows import FAMILY
from pipeline.core.rows.rows import prefix_range, split_range
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.job import bounded
from pipeline.job.flag_values import BadFlag
from pipeline.job.settings import runs_here
from pipeline.repair.report import WriteReport, read_findings
from pipeline.repair.request import Request
from pipeline.repair.rollups import AuditRollups, tasks_of
from pipeline.repair.run import SliceResult, carry_out
from pipeline.repair.scope import MOST_SLICES, SLICE_BYTES, scope_of, slices_of
from pipeline.transforms import metrics

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class RollupScope:
    """The windows of a repair of roll-ups.

    Attributes:
        schema: the table's schema.
        extents: the windows, of the tiers that have roll-ups.
        skipped: the windows to skip.
        slices: spans of time, one pipeline each.
        samples: sampled row keys of the table.
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
        ServerProblem: the table has no roll-ups, or a server can't be reached.
        BadFlag: Dataflow can't run this repair.
    """
    here = runs_here(options)
    if not here and not (request.report or "").startswith("gs://"):
        raise BadFlag(
            "--report is required on Dataflow: a folder in a bucket for the findings, like gs://my-bucket/repair"
        )
    schema = schema_of(request.table, request.declared)
    tiers = [tier for tier in schema.tiers if schema.rollups_of(tier.window)]
    if not tiers:
        raise ServerProblem(f"table {request.table} has no roll-ups to repair: its schema declares none")
    now_us = time.time_ns() // 1000
    policies = tables.describe(request.table)
    if missing := [family for family in schema.families if family not in policies]:
        raise ServerProblem(f"table {request.table} lacks the families that its schema names: {', '.join(missing)}")
    retention = retention_of(request.table, schema, policies)
    bounds = None if request.force else _bounds(request, schema, retention, Retention.of(schema, policies), now_us)
    extents, skipped = extents_of(request.start_us, request.end_us, tiers, bounds)
    samples = sampled_keys(request.table)
    most = min(1 + samples[-1].offset_bytes // SLICE_BYTES, MOST_SLICES) if samples and here else 1
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
        ServerProblem: the job failed. Earlier slices stay repaired.
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
    at = split_points(scope.samples)
    aggregates = {
        extent: split_range(prefix_range(aggregate_prefix(extent.tier.window).encode()), at) for extent in extents
    }
    tasks = tasks_of(scope.schema, extents, aggregates)

    def build(pipeline: beam.Pipeline) -> None:
        writes = not request.dry_run
        audit = AuditRollups(request.table, scope.schema, tasks, scope.recomputable_us, writes=writes, waits=waits)
        wrong = pipeline | "AuditRollups" >> audit
        lines = wrong | "ToJson" >> beam.Map(_line_of, scope.schema.tiers)
        _ = lines | "Report" >> WriteReport(prefix, here=runs_here(options))

    return bounded.run(options, build, [scope.schema])


def _within(extent: Extent, span: Span) -> Extent:
    first, last = (extent.tier.window.first_start(each) for each in (span.start_us, span.end_us))
    start_us = max(extent.start_us, first)
    return Extent(extent.tier, start_us, max(min(extent.end_us, last), start_us))


def _line_of(wrong: WrongGroup, tiers: tuple[Tier, ...]) -> str:
    return json_line(wrong.record(tiers))
