"""Runs repairs: recomputes aggregates from their raw rows, slice by slice in this process or as one Dataflow job.

A repair keeps no state besides the rows that it writes. One that was interrupted can be run again, with the same
result. It claims a window of the work list before it reads the window's raw rows, and removes the window once its
aggregates are right. A late event that arrives in between lists the window again.
"""

import secrets
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby, islice, starmap
from typing import Any

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.connection.key_ranges import split_points
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.writing.rewriter import Replacement, Rewriter
from pipeline.core.completion.audit import FOREIGN, Extent
from pipeline.core.completion.column_audit import audits_columns
from pipeline.core.completion.neighbours import Neighbours
from pipeline.core.completion.newest_audit import within
from pipeline.core.completion.work_list import LATE, REPAIRED, listing, listing_time, work_key, work_row
from pipeline.core.events.event import MAX_FUTURE_US
from pipeline.core.notation.times import parse_time
from pipeline.core.queries.sweeps import Span, raw_ranges
from pipeline.core.rows.aggregate_rows import READING_COUNT, AggregateKey, aggregate_prefix, aggregate_range
from pipeline.core.rows.rows import KeyRange, prefix_range, split_range
from pipeline.core.schema.table_schema import Tier
from pipeline.core.statistics.window_stats import split_qualifier
from pipeline.job import bounded
from pipeline.job.settings import runs_here
from pipeline.repair.following import FollowWindows, ListUntouched, RewriteWindows, WindowsAbove, changed_of_finding
from pipeline.repair.newest import AuditNewest, newest_keys
from pipeline.repair.report import (
    WriteReport,
    is_around,
    line_of,
    line_of_foreign,
    line_of_longer,
    read_findings,
    read_foreign,
    read_left,
    shown_row,
    write_lines,
)
from pipeline.repair.scan import MOST_SUSPECTS, Scanned, SensorScan
from pipeline.repair.scope import MOST_LISTED, ListedWindow, RepairScope, Request, Slice, narrowed, spans_of
from pipeline.repair.transforms import LOOKBACK_US, FindWrongWindows, ReadTask
from pipeline.transforms import metrics

_MOST_PASSES = 5  # passes over a slice whose windows keep changing


class Claim:
    """Removes windows from the work list when a repair of them succeeds, unless they are listed again meanwhile.

    It removes the columns that were read before the repair. If one of a row's columns does not tell its time, the row
    is claimed first: a column that is unique to this repair replaces each such column.
    """

    def __init__(self, table: TableName, windows: Sequence[ListedWindow]) -> None:
        self._table = table
        self._windows = windows
        self._column = f"repair-{secrets.token_hex(4)}".encode()

    def __enter__(self) -> None:
        claimed = [each for each in self._windows if each.needs_claim]
        if claimed:
            with Rewriter.open(self._table) as rewriter:
                rewriter.replace(map(self._replacement, claimed))

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if not self._windows or failed is not None:
            return
        keys: dict[tuple[str, bytes], list[bytes]] = defaultdict(list)
        for each in self._windows:
            for column in self._columns(each):
                keys[each.tier.family, column].append(work_key(each.tier.window, *each.key))
        with Rewriter.open(self._table) as rewriter:
            for (family, column), of_column in keys.items():
                rewriter.delete_column(of_column, family, column)

    def _columns(self, window: ListedWindow) -> list[bytes]:
        """Returns the columns that the row has during the repair."""
        timed = [each for each in window.columns if listing_time(each)]
        return [*timed, self._column] if window.needs_claim else timed

    def _replacement(self, window: ListedWindow) -> Replacement:
        rows = [work_row(window.tier, *window.key, column) for column in self._columns(window)]
        return Replacement(rows[0].key, window.tier.family, tuple(cell for row in rows for cell in row.cells))


def list_windows(table: TableName, tier: Tier, windows: Iterable[AggregateKey], now_us: int) -> None:
    """Puts windows of the shortest tier on the work list, for a later repair."""
    column = listing(LATE, now_us)
    rows = [work_row(tier, *window, column) for window in windows]
    if rows:
        with Rewriter.open(table) as rewriter:
            rewriter.replace(Replacement(row.key, tier.family, tuple(row.cells)) for row in rows)


@dataclass(frozen=True)
class SliceResult:
    """The result of one slice.

    Attributes:
        checked: the number of audited windows.
        wrong: the number of wrong windows.
        rewritten: the number of rewritten windows.
        settled: the number of windows removed from the work list.
        listed: the number of windows that are new on the work list.
        findings: wrong windows, untouched ones, and longer windows around wrong ones.
        untouched: the number of windows, of every length, that foreign raw rows may belong to.
        foreign: the problem of each foreign row, by its key.
        unnamed: the number of further foreign rows, some of them perhaps counted more than once.
        newest: the number of wrong rows of newest readings.
        left: the number of further results, as far as that is known.
    """

    checked: int = 0
    wrong: int = 0
    rewritten: int = 0
    settled: int = 0
    listed: int = 0
    findings: Iterable[dict[str, Any]] = ()
    untouched: int = 0
    foreign: Mapping[str, str] = field(default_factory=dict)
    unnamed: int = 0
    newest: int = 0
    left: int = 0


def carry_out(request: Request, scope: RepairScope, options: PipelineOptions) -> Iterator[SliceResult]:
    """Repairs slice after slice; a dry run only reports wrong windows.

    Yields:
        the result of each slice. Read its findings before asking for the next one.

    Raises:
        ServerError: the job failed. Earlier slices stay repaired; the next repair does the rest.
        BadFlag: Beam's validation refused an option.
    """
    if scope.expired and not request.dry_run:
        with Claim(request.table, scope.expired):
            pass
        yield SliceResult(settled=len(scope.expired))
    # A listed window is settled once each tier is audited. If tiers do not nest, that takes several slices.
    whole = [] if scope.nests or request.dry_run else scope.settled(scope.slices)
    with tempfile.TemporaryDirectory(prefix="tidetable-repair-") as folder:
        run = _RepairRun(request, scope, options, folder)
        with Claim(request.table, whole):
            yield from run.results()
    if whole:
        yield SliceResult(settled=run.settled_of(whole))


class _RepairRun:
    """One run of a repair.

    Args:
        scope: the windows to audit, and the slices.
        folder: a temporary folder on this machine.
    """

    def __init__(self, request: Request, scope: RepairScope, options: PipelineOptions, folder: str) -> None:
        self._request = request
        self._scope = scope
        self._options = options
        self._shortest = scope.schema.tiers[0]
        self._here = runs_here(options)
        self._folder = request.report or folder
        self._folder_of_passes = folder if self._here else self._folder
        self._name = f"repair-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        self._untouched: set[tuple[str, AggregateKey]] = set()  # untouched windows of all slices
        self._left: set[AggregateKey] = set()  # windows that were listed for longer ones around them
        self._following: set[AggregateKey] = set()  # windows that continue from rewritten ones
        self._first = scope.slices

    def results(self) -> Iterator[SliceResult]:
        """Repairs each slice, and the windows after rewritten ones that continue from them."""
        if self._here and not self._request.listed and audits_columns(self._scope.schema):
            yield from self._scan()
        for number, part in enumerate(self._slices()):
            name = f"{self._name}-{number:02}"
            prefixes = [
                FileSystems.join(self._folder, name),
                *(FileSystems.join(self._folder_of_passes, f"{name}-again{n}") for n in range(1, _MOST_PASSES)),
            ]
            yield replace(self._repair(part, prefixes), left=max(len(self._first) - number - 1, 0))
            if self._scope.schema.statistics.carries and not self._request.dry_run:
                self._following.update(self._after(part, read_findings(prefixes[0], in_order=False)))

    def _scan(self) -> Iterator[SliceResult]:
        """Leaves in the slices only windows that may be wrong, unless they are too many to name."""
        scope, self._first, foreign = self._scope, [], dict[bytes, str]()
        size_bytes = scope.samples[-1].offset_bytes if scope.samples else 0
        for extents, group in groupby(scope.slices, key=lambda part: part.extents):
            slices = list(group)
            spans = [span for part in slices for span in part.spans]
            listed = defaultdict[str, set[AggregateKey]](set)
            for span in spans_of((each.key for each in scope.listed), extents):
                for sensor_id in span.sensors or ():
                    listed[sensor_id].add(AggregateKey(sensor_id, span.start_us))
            whole, suspects = spans[0]._replace(end_us=spans[-1].end_us), set[AggregateKey]().union(*listed.values())
            scan = SensorScan(self._request.table, scope.schema, scope.retention, extents, whole, listed)
            parts, of_scan = scan.parts(scope.samples), list[Scanned]()
            for scanned in scan.results(parts, size_bytes):
                of_scan.append(scanned)
                suspects |= scanned.suspects
                if len(suspects) > MOST_SUSPECTS:
                    break
                yield SliceResult(left=len(parts) - len(of_scan))
            if len(suspects) > MOST_SUSPECTS:
                self._first += slices
                continue
            self._first += narrowed(slices, suspects)
            found = {key: detail for each in of_scan for key, detail in each.foreign.items()}
            foreign |= found
            yield SliceResult(
                checked=sum(each.checked for each in of_scan),
                foreign={shown_row(key): detail for key, detail in found.items()},
                unnamed=sum(each.unnamed for each in of_scan),
                left=len(self._first),
            )
        if self._request.report and (foreign or not self._first):  # a report without lines is a file too
            write_lines(FileSystems.join(self._folder, self._name), starmap(line_of_foreign, foreign.items()))

    def _slices(self) -> Iterator[Slice]:
        self._longer = self._scope.longer.beside(self._scope.slices)
        yield from self._first
        known: set[AggregateKey] = set()
        while more := sorted(self._following - known):
            known.update(more)
            slices, left = self._scope.after(more)
            list_windows(self._request.table, self._shortest, left, time.time_ns() // 1000)
            self._longer = self._scope.longer.beside(slices)
            yield from slices

    def _after(self, part: Slice, rewritten: Iterable[dict[str, Any]]) -> Iterator[AggregateKey]:
        """Yields windows of the shortest tier whose rows may not continue from the last readings before them.

        These are rows that the table has, and those of a running job that may be on their way.
        """
        schema, open_us, shortest = self._scope.schema, self._scope.open_us, part.extents[0]
        window, longest = self._shortest.window, part.extents[-1].tier.window
        names: dict[tuple[str, int], set[str]] = {}  # of metrics, by sensor and end of the audited windows
        for finding in rewritten:
            if finding["window"] == window.text:
                end_us = min(longest.end_of(longest.start_of(parse_time(finding["start"]))), shortest.end_us)
                of_window = names.setdefault((finding["sensor_id"], end_us), set())
                for name in finding["differences"].keys() - {READING_COUNT}:
                    with suppress(ValueError):  # another program's column
                        of_window.add(split_qualifier(name)[1])
        now_us = time.time_ns() // 1000
        with RowReader.open(self._request.table) as reader:
            neighbours = Neighbours(schema, self._scope.retention, reader.read_selection, LOOKBACK_US)
            for (sensor_id, end_us), metric_names in names.items():
                carried = [name for name in metric_names if schema.statistics.carries_to(name)]
                lasts = neighbours.before(sensor_id, carried, 0, end_us, now_us)
                found, until_us = neighbours.following(sensor_id, lasts, end_us)
                after = {start_us for start_us, continues in found.items() if not continues}
                if lasts and open_us is not None:
                    after.update(window.starts(max(open_us, end_us), min(until_us, now_us + MAX_FUTURE_US + 1)))
                yield from (AggregateKey(sensor_id, start_us) for start_us in sorted(after))

    def _repair(self, part: Slice, prefixes: list[str]) -> SliceResult:
        """Repairs a slice, then audits the rewritten windows again: a backfill may have written raw rows meanwhile.

        A backfill writes its raw rows before their aggregate row. Thus the last writer of an aggregate row has read all
        raw rows.
        """
        settling = self._scope.settled([part]) if self._scope.nests and not self._request.dry_run else []
        passes: list[dict[str, int]] = []
        with Claim(self._request.table, settling):
            for prefix in prefixes:
                passes.append(_inspect(self._request, self._scope, self._longer, part, self._options, prefix))
                if not passes[-1].get(metrics.REPAIR_WINDOWS_REWRITTEN):
                    break
                part = part._replace(spans=_spans_again(read_findings(prefix, in_order=False), part))
            else:
                raise ServerError(
                    f"table {self._request.table}: windows keep changing during the repair. If a job still writes "
                    "them, pass its --allowed-lateness and --late-firing; if it still receives late events of them, "
                    "repair them later"
                )
        untouched, foreign = read_foreign(prefixes[: len(passes)])
        untouched -= self._untouched
        self._untouched |= untouched
        still_listed = self._of_the_shortest(untouched)
        new = still_listed | read_left(prefixes[: len(passes)], self._shortest.window) - self._left
        self._left |= new
        first = passes[0]
        return SliceResult(
            checked=first.get(metrics.REPAIR_WINDOWS_CHECKED, 0),
            wrong=first.get(metrics.REPAIR_WINDOWS_WRONG, 0),
            rewritten=sum(counters.get(metrics.REPAIR_WINDOWS_REWRITTEN, 0) for counters in passes),
            settled=sum(each.key not in still_listed for each in settling),
            listed=0 if self._request.dry_run else len(new - {each.key for each in self._scope.listed}),
            findings=read_findings(prefixes[0], in_order=self._here),
            untouched=len(untouched),
            foreign=foreign,
            unnamed=first.get(metrics.REPAIR_FOREIGN_ROWS_UNNAMED, 0),
            newest=first.get(metrics.REPAIR_NEWEST_WRONG, 0),
        )

    def settled_of(self, listed: Iterable[ListedWindow]) -> int:
        """Returns the number of these listed windows that no slice has left untouched."""
        still_listed = self._of_the_shortest(self._untouched)
        return sum(each.key not in still_listed for each in listed)

    def _of_the_shortest(self, windows: Iterable[tuple[str, AggregateKey]]) -> set[AggregateKey]:
        return {key for window, key in windows if window == self._shortest.window.text}


def _inspect(
    request: Request, scope: RepairScope, longer: WindowsAbove, part: Slice, options: PipelineOptions, prefix: str
) -> dict[str, int]:
    """Finds the wrong windows of the spans and, unless it is a dry run, rewrites them. Returns the job's counters."""
    at = split_points(scope.samples)
    tasks = list(_tasks(scope, part, at))
    column = listing(REPAIRED, time.time_ns() // 1000)

    def build(pipeline: beam.Pipeline) -> None:
        found = pipeline | "FindWrongWindows" >> FindWrongWindows(
            request.table, scope.schema, part.extents, part.spans, tasks, scope.retention
        )
        tiers = scope.schema.tiers
        rolled_up = frozenset(
            n for n, each in enumerate(tiers) if request.rolls_up and scope.schema.rollups_of(each.window)
        )
        if request.dry_run:
            changed = found.wrong | "ToRewrite" >> beam.Map(changed_of_finding, tiers)
        else:
            changed = found.wrong | "RewriteWindows" >> RewriteWindows(request.table, rolled_up, longer, column)
        around = changed | "FollowWindows" >> FollowWindows(
            request.table,
            scope.schema,
            scope.retention,
            longer,
            part.extents,
            part.spans,
            column,
            rolled_up,
            request.dry_run,
        )
        lines = (
            found.wrong | "ToJson" >> beam.Map(line_of),
            around | "AroundToJson" >> beam.Map(line_of_longer),
            found.untouched | "UntouchedToJson" >> beam.Map(line_of),
            found.foreign | "ForeignToJson" >> beam.MapTuple(line_of_foreign),
        ) | beam.Flatten()
        _ = lines | "Report" >> WriteReport(prefix, here=runs_here(options))
        if not request.dry_run:
            _ = found.untouched | "ListUntouched" >> ListUntouched(request.table, scope.schema.tiers[0])
        if scope.schema.latest is not None and (spans := within(part.spans, part.extents[0])):
            table, schema, retention = request.table, scope.schema, scope.retention
            audit = AuditNewest(table, schema, retention, spans, newest_keys(spans, at), request.dry_run)
            _ = (found.newest, changed) | "AuditNewest" >> audit

    return bounded.run(options, build, [scope.schema])


def _spans_again(findings: Iterator[dict[str, Any]], part: Slice) -> list[Span]:
    """Returns spans around the rewritten windows; the slice's own spans if the windows are too many."""
    found = list(
        islice((each for each in findings if each["problem"] != FOREIGN and not is_around(each)), MOST_LISTED + 1)
    )
    if len(found) > MOST_LISTED:
        return part.spans
    return spans_of((AggregateKey(each["sensor_id"], parse_time(each["start"])) for each in found), part.extents)


def _tasks(scope: RepairScope, part: Slice, at: list[bytes]) -> Iterator[ReadTask]:
    """Returns the reading tasks of a slice, which workers can do in parallel."""
    for number, span in enumerate(part.spans):
        for keys in raw_ranges(scope.schema, span.sensors):
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
