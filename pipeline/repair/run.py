"""Repairs: aggregates made again what their raw rows say, slice by slice here, or as one job on Dataflow.

Nothing is kept of a repair but what it has written: interrupted anywhere and started again, it comes to the same end.
A window of the work list is claimed before its raw rows are read, and taken off when its aggregates are right; an event
that comes late in between puts it there once more.
"""

import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.io.textio import WriteToText
from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.cloud import tables
from pipeline.cloud.errors import ServerProblem
from pipeline.cloud.key_ranges import Sample, cuts, divided, sampled_keys
from pipeline.cloud.names import TableName
from pipeline.cloud.retention_notes import record_losses, retention_of
from pipeline.cloud.rewriter import Replacement, Rewriter
from pipeline.cloud.row_filters import row_filter
from pipeline.cloud.row_reader import RowReader
from pipeline.cloud.schema_store import schema_of
from pipeline.core.aggregates import AggregateKey, aggregate_prefix, aggregate_range
from pipeline.core.audit import FOREIGN, Extent
from pipeline.core.events import LATEST_US
from pipeline.core.extents import Bounds, Skipped, bounds_of, extents_of, lateness_of
from pipeline.core.rows import KeyRange, Row, prefix_range
from pipeline.core.schema.declared import DeclaredSchema
from pipeline.core.schema.foreign import ForeignRows
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.sweeps import Span, raw_ranges, window_rows
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.times import parse_time
from pipeline.core.work_list import parse_work_key, work_range, work_range_of, work_row
from pipeline.job import bounded
from pipeline.job.settings import BadFlag, runs_here
from pipeline.repair.plan import past, settled, slices_of, spans_of
from pipeline.repair.report import line_of, line_of_foreign, read_findings, read_foreign
from pipeline.repair.transforms import (
    FindWrongWindows,
    ListUntouched,
    Part,
    RewriteWindows,
)
from pipeline.transforms import metrics

_MOST_SLICES = 50  # a pipeline each
_SLICE_BYTES = 64 << 20  # of the whole table, of which a slice is a part
_MOST_LOOKS = 5  # at a slice of which windows were rewritten
_MOST_LISTED = 20_000  # windows of the work list that one job takes on Dataflow: they are part of its graph


@dataclass(frozen=True)
class Request:
    """What is to be repaired.

    Args:
        table: which table.
        said: what is said of its schema.
        start_us: windows from then on; ignored for the work list.
        end_us: windows up to then.
        sensors: whose; None for everybody's.
        listed: the windows of the work list, instead of those between two times.
        dry_run: whether nothing is written.
        force: whether windows are touched that may be collected, or still written by a job.
        allowed_lateness: of the job that writes the table; zero where none runs.
        late_firing: of that job.
        report: the folder of the findings; None for none that stays.
    """

    table: TableName
    declared: DeclaredSchema
    start_us: int = 0
    end_us: int = LATEST_US + 1
    sensors: frozenset[str] | None = None
    listed: bool = False
    dry_run: bool = False
    force: bool = False
    allowed_lateness: timedelta = timedelta(days=1)
    late_firing: timedelta = timedelta(minutes=1)
    report: str | None = None


class ListedWindow(NamedTuple):
    """A window of the work list."""

    tier: Tier  # the table's shortest when it was listed: one that was added since may be shorter
    key: AggregateKey


class Plan(NamedTuple):
    """What a repair will do.

    Attributes:
        schema: the table's.
        extents: the windows that are looked at, the shortest tier first.
        skipped: those that are left alone.
        listed: the windows of the work list, of those that were asked for.
        past: those of them of which no aggregate row is kept any longer, so that there is nothing to repair.
        slices: what is read at a time, each the work of a pipeline.
        samples: of the table's keys.
        bounds: which windows may be touched; None for all.
        foreign: the rows among those of the work list that are none.
    """

    schema: TableSchema
    extents: list[Extent]
    skipped: list[Skipped]
    listed: list[ListedWindow]
    past: list[ListedWindow]
    slices: list[list[Span]]
    samples: list[Sample]
    bounds: Mapping[Tier, Bounds] | None
    foreign: ForeignRows


class Outcome(NamedTuple):
    """What became of one slice."""

    checked: int
    wrong: int
    rewritten: int
    settled: int  # windows taken off the work list
    findings: Iterator[dict[str, Any]]  # the windows that were wrong, and those that were left untouched
    listed: int = 0  # windows that are new on the work list: they were left untouched
    untouched: int = 0  # windows, of every length, that foreign raw rows may be part of
    foreign: Mapping[str, str] = MappingProxyType({})  # foreign rows by their keys, with what is wrong with them
    unnamed: int = 0  # further foreign rows; one may be counted more than once


def plan(request: Request, options: PipelineOptions, now_us: int | None = None) -> Plan:
    """What there is to do, and what is left alone.

    Raises:
        ServerProblem: the table is missing something, or out of reach.
        BadFlag: what is asked for does not go on Dataflow.
    """
    _check_report(request, options)
    schema = schema_of(request.table, request.declared)
    if not schema.tiers:
        raise ServerProblem(f"table {request.table} has no aggregates that could be repaired: its schema has no tiers")
    bounds = None if request.force else _bounds(request, schema, time.time_ns() // 1000 if now_us is None else now_us)
    whole = Span(request.start_us, request.end_us, request.sensors)
    foreign = ForeignRows()
    listed = [each for tier in schema.tiers for each in _read_listed(request.table, tier, whole, foreign)]
    if request.listed:
        if len(listed) > _MOST_LISTED and not runs_here(options):
            raise BadFlag(
                f"--listed: the work list has {len(listed):,} windows, and a job on Dataflow takes {_MOST_LISTED:,}; "
                "say --from and --to around them"
            )
        whole = _around(listed, schema.tiers[-1], request.sensors)
    extents, skipped = extents_of(whole.start_us, whole.end_us, schema.tiers, bounds)
    samples = sampled_keys(request.table)
    most = _most_slices(samples, options)
    if request.listed:
        slices = _grouped(spans_of((each.key for each in listed), extents), most)
        skipped = []  # by time alone; what is left of the list tells more
    else:
        slices = [[span] for span in slices_of(extents, most, request.sensors)]
    nothing_left = [each for each in listed if _is_past(each, schema.tiers, bounds)]
    return Plan(schema, extents, skipped, listed, nothing_left, slices, samples, bounds, foreign)


def carry_out(request: Request, planned: Plan, options: PipelineOptions) -> Iterator[Outcome]:
    """Repairs slice after slice, or finds what is wrong where it is a dry run.

    Yields:
        what became of each slice; its findings have to be taken before the next.

    Raises:
        ServerProblem: the job failed; what came before stays repaired, and the next repair does the rest.
        BadFlag: what Beam's own validation found.
    """
    if planned.past and not request.dry_run:
        with _Claim(request.table, planned.past):
            pass
        yield Outcome(0, 0, 0, len(planned.past), iter(()))
    with ExitStack() as stack:
        here = stack.enter_context(tempfile.TemporaryDirectory(prefix="tidetable-repair-"))
        folder = request.report or here
        looks = here if runs_here(options) else folder
        run = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        for number, spans in enumerate(planned.slices):
            file = f"repair-{run}-{number:02}"
            prefixes = [
                FileSystems.join(folder, file),
                *(FileSystems.join(looks, f"{file}-again{look}") for look in range(1, _MOST_LOOKS)),
            ]
            yield _repair(request, planned, spans, options, prefixes)


def _repair(
    request: Request, planned: Plan, spans: list[Span], options: PipelineOptions, prefixes: Sequence[str]
) -> Outcome:
    """Repairs a slice. What was rewritten is looked at again: a backfill may have written raw rows in between.

    Whoever writes an aggregate row last has seen all raw rows that were there then; and who writes raw rows writes the
    aggregate row behind them.
    """
    settling = [] if request.dry_run else [each for each in planned.listed if _is_settled_by(each, spans, planned)]
    shortest = planned.schema.tiers[0]
    with _Claim(request.table, settling):
        looks = []
        for prefix in prefixes:
            looks.append(_inspect(request, planned, spans, options, prefix))
            if not looks[-1].get(metrics.REPAIR_WINDOWS_REWRITTEN):
                break
            spans = _spans_again(read_findings(prefix, in_order=False), spans, planned)
        else:
            raise ServerProblem(
                f"table {request.table}: windows change while they are repaired; does a job still write them? Pass its "
                "--allowed-lateness and --late-firing"
            )
    untouched, foreign = read_foreign(prefixes[: len(looks)])
    held_up = {window for tier, window in untouched if tier == shortest.window.text}
    return Outcome(
        looks[0].get(metrics.REPAIR_WINDOWS_CHECKED, 0),
        looks[0].get(metrics.REPAIR_WINDOWS_WRONG, 0),
        sum(look.get(metrics.REPAIR_WINDOWS_REWRITTEN, 0) for look in looks),
        sum(each.key not in held_up for each in settling),
        read_findings(prefixes[0], in_order=runs_here(options)),
        0 if request.dry_run else len(held_up.difference(each.key for each in planned.listed)),
        len(untouched),
        foreign,
        looks[0].get(metrics.REPAIR_FOREIGN_ROWS_UNNAMED, 0),
    )


def _inspect(
    request: Request, planned: Plan, spans: list[Span], options: PipelineOptions, prefix: str
) -> dict[str, int]:
    """Finds the wrong windows of these spans, and rewrites them where it is no dry run; returns the job's counters."""
    parts = list(_parts(planned, spans))

    def build(pipeline: beam.Pipeline) -> None:
        found = pipeline | "FindWrongWindows" >> FindWrongWindows(
            request.table, planned.schema, planned.extents, spans, parts
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

    return bounded.run(options, build, [planned.schema])


def _spans_again(findings: Iterator[dict[str, Any]], spans: list[Span], planned: Plan) -> list[Span]:
    """Where the windows lie that were rewritten; all of the spans where these are many."""
    found = list(islice((each for each in findings if each["problem"] != FOREIGN), _MOST_LISTED + 1))
    if len(found) > _MOST_LISTED:
        return spans
    return spans_of((AggregateKey(each["sensor_id"], parse_time(each["start"])) for each in found), planned.extents)


def _parts(planned: Plan, spans: list[Span]) -> Iterator[Part]:
    """All that is read for these spans, in parts that can be read side by side."""
    at = cuts(planned.samples)
    for number, span in enumerate(spans):
        for keys in raw_ranges(planned.schema, span.sensors):
            yield from (Part(part, number) for part in divided(keys, at))
        for extent in planned.extents:
            yield from (Part(keys, number, extent) for keys in _aggregate_ranges(extent, span, at))


def _aggregate_ranges(extent: Extent, span: Span, at: list[bytes]) -> list[KeyRange]:
    """Where the aggregate rows of the extent lie that are of the span."""
    start_us, end_us = max(extent.start_us, span.start_us), min(extent.end_us, span.end_us)
    if start_us >= end_us:
        return []
    window = extent.tier.window
    if span.sensors is None:
        return divided(prefix_range(aggregate_prefix(window).encode()), at)
    return [aggregate_range(window, sensor_id, start_us, end_us) for sensor_id in sorted(span.sensors)]


class _Claim:
    """Windows of the work list while they are repaired: claimed by this repair, then taken off, or left as they are.

    A claim is a column of this repair's own in place of the others. What a job writes meanwhile stays when the claim
    is taken away, and so does another repair's claim.
    """

    def __init__(self, table: TableName, windows: Sequence[ListedWindow]) -> None:
        self._table = table
        self._column = f"repair-{secrets.token_hex(4)}".encode()
        self._rows: dict[str, list[Row]] = {}  # by family
        for window in windows:
            self._rows.setdefault(window.tier.family, []).append(work_row(window.tier, *window.key, self._column))

    def __enter__(self) -> None:
        if self._rows:
            with Rewriter.open(self._table) as rewriter:
                for family, rows in self._rows.items():
                    rewriter.replace(Replacement(row.key, family, tuple(row.cells)) for row in rows)

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if self._rows and failed is None:
            with Rewriter.open(self._table) as rewriter:
                for family, rows in self._rows.items():
                    rewriter.delete_column((row.key for row in rows), family, self._column)


def _is_past(window: ListedWindow, tiers: Sequence[Tier], bounds: Mapping[Tier, Bounds] | None) -> bool:
    first_us = window.key.start_us
    last_us = first_us + window.tier.window.length_us - tiers[0].window.length_us
    return past(first_us, tiers, bounds) and past(last_us, tiers, bounds)


def _is_settled_by(window: ListedWindow, spans: list[Span], planned: Plan) -> bool:
    sensor_id, start_us = window.key
    inside = any(span.start_us <= start_us < span.end_us and span.has(sensor_id) for span in spans)
    return inside and settled(start_us, planned.extents, planned.bounds)


def _bounds(request: Request, schema: TableSchema, now_us: int) -> dict[Tier, Bounds]:
    """Which windows may be touched, by the policies that the table really has."""
    policies = tables.describe(request.table)
    if missing := [family for family in schema.families if family not in policies]:
        raise ServerProblem(f"table {request.table} has no family {', '.join(missing)}, which its schema names")
    retention = retention_of(request.table, schema, policies)
    if not request.dry_run:
        record_losses(request.table, schema, retention, policies)
    lateness = lateness_of(schema.tiers, request.allowed_lateness, request.late_firing)
    return bounds_of(retention, lateness, now_us, Retention.of(schema, policies))


def _most_slices(samples: Sequence[Sample], options: PipelineOptions) -> int:
    """One on Dataflow, which has room; here as many as the table is large, so that memory holds each of them."""
    if not samples or not runs_here(options):
        return 1
    return min(1 + samples[-1].offset_bytes // _SLICE_BYTES, _MOST_SLICES)


def _read_listed(table: TableName, tier: Tier, span: Span, foreign: ForeignRows) -> list[ListedWindow]:
    """The windows of the work list that are of the span, and were listed when the tier was the table's shortest."""
    with RowReader.open(table) as reader:
        rows = window_rows(
            lambda keys, wanted, pattern, page_rows, *, reverse: reader.read(
                keys, row_filter(wanted, pattern), page_rows=page_rows, reverse=reverse
            ),
            CellSelection((), keys_only=True),
            work_range(tier.window),
            span,
            lambda key: parse_work_key(tier.window, key),
            lambda *windows: work_range_of(tier.window, *windows),
            foreign.add,
        )
        return [ListedWindow(tier, key) for key, _ in rows]


def _around(listed: list[ListedWindow], longest: Tier, sensors: frozenset[str] | None) -> Span:
    """The time of all these windows, widened to whole longest ones."""
    starts = [longest.window.start_of(each.key.start_us) for each in listed]
    return Span(min(starts), max(starts) + longest.window.length_us, sensors) if starts else Span(0, 0, sensors)


def _grouped(spans: list[Span], most: int) -> list[list[Span]]:
    size = max(-(-len(spans) // most), 1)
    return [spans[start : start + size] for start in range(0, len(spans), size)]


def _check_report(request: Request, options: PipelineOptions) -> None:
    if runs_here(options):
        return
    if request.report is None or not request.report.startswith("gs://"):
        raise BadFlag(
            "--report is needed on Dataflow: a folder in a bucket for the findings, like gs://my-bucket/repair"
        )
