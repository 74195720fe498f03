"""The scope of a repair: the windows that it audits, the listed windows that it settles, and its slices."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import NamedTuple

from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.connection.key_ranges import Sample, sampled_keys
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables import tables
from pipeline.cloud.tables.retention_notes import record_losses, retention_of
from pipeline.cloud.tables.schema_store import schema_of
from pipeline.core.completion.audit import (
    IN_FLIGHT,
    Bounds,
    Extent,
    SkippedWindows,
    bounds_of,
    chains_of,
    extents_of,
    lateness_of,
)
from pipeline.core.completion.work_list import LATE, listing_time, parse_work_key, work_range, work_range_of
from pipeline.core.events.event import LATEST_US
from pipeline.core.queries.reads import ForeignRows
from pipeline.core.queries.sweeps import Span, window_rows
from pipeline.core.rows.aggregate_rows import AggregateKey
from pipeline.core.schema.gc_policies import Policy
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.job.flags import BadFlag
from pipeline.job.settings import runs_here
from pipeline.repair.following import WindowsAbove

MOST_LISTED = 20_000
"""The maximum number of listed windows for one Dataflow job, whose graph contains them."""

MOST_SLICES = 50  # one pipeline each
SLICE_BYTES = 64 << 20
"""The part of the table for each slice."""
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Request:
    """The requested repair.

    Args:
        start_us: the start of the range of windows; ignored with ``listed``.
        end_us: the end of the range.
        sensors: the sensors to repair; None for all.
        listed: whether to repair the windows of the work list instead of a time range.
        force: whether to include windows that may be partly collected, or that a job may still write.
        allowed_lateness: the allowed lateness of the job that writes the table; zero if no job is running.
        late_firing: the late firing interval of that job.
        report: the folder for the findings; None to keep no report.
        rolls_up: whether roll-ups follow the aggregate rows that are rewritten.
    """

    table: TableName
    start_us: int = 0
    end_us: int = LATEST_US + 1
    sensors: frozenset[str] | None = None
    listed: bool = False
    dry_run: bool = False
    force: bool = False
    allowed_lateness: timedelta = timedelta(hours=1)
    late_firing: timedelta = timedelta(minutes=1)
    report: str | None = None
    rolls_up: bool = True


class ListedWindow(NamedTuple):
    """A window of the work list.

    Attributes:
        tier: the shortest tier when the window was listed; a tier added since may be shorter.
        key: the window.
        columns: the columns of its row, one for each listing.
    """

    tier: Tier
    key: AggregateKey
    columns: tuple[bytes, ...] = ()

    @property
    def needs_claim(self) -> bool:
        """Whether a listing does not tell its time, so that a later one may have the same column."""
        return not (self.columns and all(map(listing_time, self.columns)))

    def may_have_panes(self, since_us: int) -> bool:
        """Returns whether a job listed the window since then, and a pane of it may be on its way."""
        listings = filter(None, map(listing_time, self.columns))
        return any(writer == LATE and time_us >= since_us for writer, time_us in listings)


class Slice(NamedTuple):
    """The work of one pipeline.

    Attributes:
        extents: the windows to audit, of tiers that nest: see
            :func:`pipeline.core.completion.audit.chains_of`.
        spans: the spans to read.
    """

    extents: list[Extent]
    spans: list[Span]


@dataclass(frozen=True)
class RepairScope:
    """The windows of a repair, divided into slices.

    Attributes:
        extents: the windows to audit, shortest tier first.
        skipped: the windows to skip.
        listed: the requested windows that are on the work list.
        slices: the work of each pipeline.
        bounds: the bounds of the windows to repair, by tier; None for no bounds.
        foreign: rows with a work list's prefix that are no entries of it.
        longer: the longer windows around the audited ones.
        in_flight_from_us: windows that a job has listed since then may have a pane on its way, and stay listed.
    """

    schema: TableSchema
    extents: list[Extent]
    skipped: list[SkippedWindows]
    listed: list[ListedWindow]
    slices: list[Slice]
    samples: list[Sample]
    bounds: Mapping[Tier, Bounds] | None
    retention: Retention
    foreign: ForeignRows
    longer: WindowsAbove
    in_flight_from_us: int = LATEST_US

    @property
    def nests(self) -> bool:
        """Whether the longest windows contain whole windows of all other tiers: each slice repairs all tiers."""
        return len(chains_of(self.extents)) == 1

    @property
    def open_us(self) -> int | None:
        """The start of the first window of the shortest tier that a job may still write; None without bounds."""
        shortest = self.schema.tiers[0]
        return None if self.bounds is None else shortest.window.start_of(self.bounds[shortest].latest_us)

    def open_ends(self) -> list[int]:
        """Returns the end, in µs, of the last open window around each listed window that has one."""
        if self.bounds is None:
            return []
        ends = (
            [
                tier.window.end_of(tier.window.start_of(each.key.start_us))
                for tier in self.schema.tiers
                if tier.window.end_of(tier.window.start_of(each.key.start_us)) > self.bounds[tier].latest_us
            ]
            for each in self.listed
        )
        return [max(of_window) for of_window in ends if of_window]

    @property
    def expired(self) -> list[ListedWindow]:
        """The listed windows with no aggregate row left to repair."""
        return [each for each in self.listed if self._has_expired(each)]

    def _has_expired(self, window: ListedWindow) -> bool:
        first_us, tiers = window.key.start_us, self.schema.tiers
        last_us = window.tier.window.end_of(first_us) - tiers[0].window.length_us
        return all(aggregates_expired(time_us, tiers, self.bounds) for time_us in (first_us, last_us))

    def settled(self, slices: Iterable[Slice]) -> list[ListedWindow]:
        """Returns the listed windows that these slices settle."""
        spans = [span for each in slices for span in each.spans]
        return [
            each
            for each in self.listed
            if settles(each.key.start_us, self.extents, self.bounds, self.longer.computes)
            and not each.may_have_panes(self.in_flight_from_us)
            and any(
                span.start_us <= each.key.start_us < span.end_us and span.includes(each.key.sensor_id) for span in spans
            )
        ]

    def after(self, windows: Sequence[AggregateKey]) -> tuple[list[Slice], list[AggregateKey]]:
        """Returns slices that audit further windows of the shortest tier, and the windows that these do not settle."""
        tiers = self.schema.tiers
        whole = _enclosing_span([each.start_us for each in windows], tiers, None)
        extents, _ = extents_of(whole.start_us, whole.end_us, tiers, self.bounds)
        left = [each for each in windows if not settles(each.start_us, extents, self.bounds)]
        return [Slice(nested, spans_of(windows, nested)) for nested in chains_of(extents)], left


def scope_of(request: Request, options: PipelineOptions, now_us: int | None = None) -> RepairScope:
    """Returns the scope of a repair, from the content of the table.

    Raises:
        ServerError: the table lacks a tier or a family, or a server can't be reached.
        BadFlag: Dataflow can't run this repair.
    """
    here = checked_here(request, options)
    schema = schema_of(request.table)
    if not schema.tiers:
        raise ServerError(f"table {request.table} has no aggregates to repair: its schema has no tiers")
    now_us = time.time_ns() // 1000 if now_us is None else now_us
    retention, bounds, in_flight_from_us = Retention.of(schema), None, LATEST_US
    if not request.force:
        retention, bounds = _bounds(request, schema, now_us)
        if request.allowed_lateness:
            in_flight_from_us = now_us - IN_FLIGHT // _MICROSECOND
    whole = Span(request.start_us, request.end_us, request.sensors)
    foreign = ForeignRows()
    listed = [each for tier in schema.tiers for each in _read_listed(request.table, schema, tier, whole, foreign)]
    if request.listed:
        _check_length(len(listed), here=here)
        whole = _enclosing_span([each.key.start_us for each in listed], schema.tiers, request.sensors)
    extents, skipped = extents_of(whole.start_us, whole.end_us, schema.tiers, bounds)
    if request.listed:
        skipped = []  # the summary counts the windows that stay on the list
    samples = sampled_keys(request.table)
    slices = _slices(extents, most_slices(samples, here=here), request.sensors, listed if request.listed else None)
    longer = WindowsAbove.of(schema.tiers, bounds, retention, now_us)
    return RepairScope(
        schema, extents, skipped, listed, slices, samples, bounds, retention, foreign, longer, in_flight_from_us
    )


def checked_here(request: Request, options: PipelineOptions) -> bool:
    """Returns whether a repair runs in this process. Raises BadFlag if Dataflow can't run it."""
    here = runs_here(options)
    if not here and not (request.report or "").startswith("gs://"):
        raise BadFlag(
            "--report is required on Dataflow: a folder in a bucket for the findings, like gs://my-bucket/repair"
        )
    return here


def most_slices(samples: Sequence[Sample], *, here: bool) -> int:
    """Returns the most slices of a repair: on this machine, each has to fit in memory."""
    return min(1 + samples[-1].offset_bytes // SLICE_BYTES, MOST_SLICES) if samples and here else 1


def policies_of(table: TableName, schema: TableSchema) -> dict[str, Policy]:
    """Returns the policies of a table's families. Raises ServerError if it lacks a family of the schema."""
    policies = tables.describe(table)
    if missing := [family for family in schema.families if family not in policies]:
        raise ServerError(f"table {table} lacks the families that its schema names: {', '.join(missing)}")
    return policies


def _check_length(listed: int, *, here: bool) -> None:
    if listed > MOST_LISTED and not here:
        raise BadFlag(
            f"--listed: the work list has {listed:,} windows, and a Dataflow job takes at most {MOST_LISTED:,}; "
            "pass --from and --to instead"
        )


def _slices(
    extents: list[Extent], most: int, sensors: frozenset[str] | None, listed: list[ListedWindow] | None
) -> list[Slice]:
    """Returns at most ``most`` slices for each chain of nesting tiers: of listed windows, or of all if None."""
    slices = []
    for nested in chains_of(extents):
        if listed is None:
            slices += [Slice(nested, [span]) for span in slices_of(nested, most, sensors)]
        else:
            spans = spans_of((each.key for each in listed), nested)
            size = max(-(-len(spans) // most), 1)
            slices += [Slice(nested, spans[first : first + size]) for first in range(0, len(spans), size)]
    return slices


def _bounds(request: Request, schema: TableSchema, now_us: int) -> tuple[Retention, dict[Tier, Bounds]]:
    """Returns what may be collected under the table's present policies, and the bounds of the windows to repair."""
    policies = policies_of(request.table, schema)
    retention = retention_of(request.table, schema, policies)
    if not request.dry_run:
        record_losses(request.table, schema, retention, policies)
    of_jobs = retention.lateness_of_jobs(request.allowed_lateness, request.late_firing)
    bounds = bounds_of(schema.tiers, retention, lateness_of(*of_jobs), now_us, Retention.of(schema, policies))
    if request.listed and not request.allowed_lateness:  # without a job, nobody writes the windows in progress
        bounds = {tier: each._replace(latest_us=LATEST_US + 1) for tier, each in bounds.items()}
    return retention, bounds


def _read_listed(
    table: TableName, schema: TableSchema, tier: Tier, span: Span, foreign: ForeignRows
) -> list[ListedWindow]:
    """Reads the windows of the span that were listed while the tier was the table's shortest."""
    with RowReader.open(table) as reader:
        rows = window_rows(
            reader.read_selection,
            CellSelection(schema.families, versions=1),
            work_range(tier.window),
            span,
            lambda key: parse_work_key(tier.window, key),
            lambda *windows: work_range_of(tier.window, *windows),
            foreign.add,
        )
        return [
            ListedWindow(tier, key, tuple(cell.qualifier for cell in row.cells if cell.family == tier.family))
            for key, row in rows
        ]


def _enclosing_span(starts: list[int], tiers: Sequence[Tier], sensors: frozenset[str] | None) -> Span:
    """Returns the span of windows with these starts, widened to whole windows of each tier."""
    if not starts:
        return Span(0, 0, sensors)
    windows = [tier.window for tier in tiers]
    first_us = min(window.start_of(min(starts)) for window in windows)
    return Span(first_us, max(window.end_of(window.start_of(max(starts))) for window in windows), sensors)


def slices_of(extents: Sequence[Extent], most: int, sensors: frozenset[str] | None = None) -> list[Span]:
    """Returns the spans to read for these windows, in time order; each slice covers whole windows of the longest tier.

    Args:
        extents: the windows to audit, of tiers that nest.
        most: the maximum number of slices, at least one.
        sensors: the sensors to audit; None for all.
    """
    inspected = [extent for extent in extents if extent.start_us < extent.end_us]
    if not inspected:
        return []
    start_us, end_us = min(extent.start_us for extent in inspected), max(extent.end_us for extent in inspected)
    longest = extents[-1].tier.window
    cuts = {longest.start_of(start_us + (end_us - start_us) * part // most) for part in range(1, most)}
    bounds = [start_us, *sorted(cut for cut in cuts if cut > start_us), end_us]
    return [Span(*each, sensors) for each in pairwise(bounds)]


def spans_of(listed: Iterable[AggregateKey], extents: Sequence[Extent]) -> list[Span]:
    """Returns the spans to read for listed windows, each widened to the longest window that contains it.

    Skips a span that contains no window of the extents.
    """
    longest = extents[-1].tier.window
    sensors: dict[int, set[str]] = {}
    for sensor_id, start_us in listed:
        sensors.setdefault(longest.start_of(start_us), set()).add(sensor_id)
    return [
        Span(start_us, longest.end_of(start_us), frozenset(sensors[start_us]))
        for start_us in sorted(sensors)
        if any(extent.start_us < longest.end_of(start_us) and start_us < extent.end_us for extent in extents)
    ]


def narrowed(slices: Iterable[Slice], windows: Collection[AggregateKey]) -> list[Slice]:
    """Returns what is left of slices, each of one span, if only these of their longest windows are audited."""
    found = []
    for extents, (whole,) in slices:
        first_us = extents[-1].tier.window.start_of(whole.start_us)
        spans = [
            span._replace(start_us=max(span.start_us, whole.start_us), end_us=min(span.end_us, whole.end_us))
            for span in spans_of((each for each in windows if first_us <= each.start_us < whole.end_us), extents)
        ]
        if spans:
            found.append(Slice(extents, spans))
    return found


def settles(
    start_us: int,
    extents: Iterable[Extent],
    bounds: Mapping[Tier, Bounds] | None,
    computes: Callable[[Tier, int], bool] = lambda _tier, _start_us: False,
) -> bool:
    """Whether auditing the extents settles a window of the shortest tier, which starts at ``start_us``.

    It does if the extents cover that window and every longer window around it, but for those that are computed from
    shorter ones. Windows whose aggregate rows have expired need no audit.
    """
    return all(
        extent.tier.window.start_of(start_us) in extent
        or computes(extent.tier, extent.tier.window.start_of(start_us))
        or _is_expired(extent.tier, start_us, bounds)
        for extent in extents
    )


def aggregates_expired(start_us: int, tiers: Iterable[Tier], bounds: Mapping[Tier, Bounds] | None) -> bool:
    """Whether every tier's aggregate row for this time has expired."""
    return all(_is_expired(tier, start_us, bounds) for tier in tiers)


def _is_expired(tier: Tier, start_us: int, bounds: Mapping[Tier, Bounds] | None) -> bool:
    return bounds is not None and tier.window.start_of(start_us) < bounds[tier].kept_us
