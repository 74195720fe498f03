"""Inspects a table without a stored schema: checks a sample of its rows, aggregates included, against a schema."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from google.cloud.bigtable_v2.types import RowFilter

from pipeline.cloud.connection.key_ranges import sampled_keys
from pipeline.cloud.scanning.row_reader import RowReader, row_filter
from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.accumulation.reading_columns import event_key
from pipeline.core.completion.audit import (
    Audited,
    Finding,
    Recomputed,
    StoredRow,
    audit,
    bounds_of,
    chains_of,
    extents_of,
)
from pipeline.core.notation.text import counted
from pipeline.core.notation.times import format_time
from pipeline.core.queries.reads import ForeignRow, RowSelection
from pipeline.core.queries.sweeps import Span, events_within, raw_ranges
from pipeline.core.rows.aggregate_rows import MEMBER, aggregate_prefix, aggregate_range, parse_aggregate_key
from pipeline.core.rows.rollup_rows import ROLLUP
from pipeline.core.rows.rows import KeyRange, Row, prefix_range, split_range
from pipeline.core.schema.gc_policies import Policy
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.statistics.member import Member, member_text
from pipeline.core.windows import chains
from pipeline.table.fitting import (
    KINDS,
    Mismatch,
    aggregate_window,
    check_listed,
    check_rollup_row,
    prefix_ranges,
    raw_events,
    raw_key_ranges,
    shown_key,
)

_MOST_NAMED = 3  # misfits of each kind in the report
_MOST_PARTS = 20  # parts of the table to sample from
_MOST_WINDOWS = 200  # windows to compare with raw rows
_ROWS_A_SAMPLE = 100  # rows to read for comparing windows, for each row of the sample
_STILL_WRITTEN = timedelta(hours=1)  # for so long after its end, a window may be incomplete
_KEYS_ALONE = row_filter(CellSelection((), keys_only=True))
_MOST_CELLS = RowFilter(cells_per_row_limit_filter=10_000)  # a bucket's row may have very many
_NEWEST = RowFilter(cells_per_column_limit_filter=1)


@dataclass
class InspectionReport:
    """The result of an inspection: counts of checked rows, and misfits."""

    families: list[str] = field(default_factory=list)
    """A line for each family of the schema, and for each further family of the table."""
    inspected: dict[str, int] = field(default_factory=dict)
    """The number of checked rows, by kind."""
    all_of: dict[str, bool] = field(default_factory=dict)
    """Whether these are all rows of the kind."""
    windows: int = 0
    """The number of windows compared with their raw rows."""
    misfits: dict[str, int] = field(default_factory=dict)
    """The number of misfits, by kind."""
    named: dict[str, list[str]] = field(default_factory=dict)
    """The first misfits, by kind."""
    notes: list[str] = field(default_factory=list)

    @property
    def fits(self) -> bool:
        return not self.misfits

    def mismatch(self, kind: str, what: str) -> None:
        """Counts a misfit, and keeps its description if it is one of the first."""
        self.misfits[kind] = self.misfits.get(kind, 0) + 1
        if len(named := self.named.setdefault(kind, [])) < _MOST_NAMED:
            named.append(what)


class Inspection:
    """One inspection of a table. Puts its results into a report."""

    def __init__(
        self,
        reader: RowReader,
        schema: TableSchema,
        policies: Mapping[str, Policy],
        sample: int,
        report: InspectionReport,
    ) -> None:
        self._reader = reader
        self._schema = schema
        self._policies = policies
        self._sample = sample
        self._report = report
        # Sensor, number of a chain of tiers, and start of its longest window, of each row that fits.
        self._windows: dict[tuple[str, int, int], None] = {}
        windows = tuple(tier.window for tier in schema.tiers)
        self._longest = [windows[chain[-1]] for chain in chains(windows)]
        self._rows_left = sample * _ROWS_A_SAMPLE

    def run(self) -> None:
        """Checks raw rows and aggregate rows, and compares both for some windows."""
        self._samples = [sample.key for sample in sampled_keys(self._reader.name)]
        for row in self._rows("raw rows", raw_key_ranges(), 0, _MOST_CELLS):
            try:
                for record in raw_events(self._schema, row):
                    self._pick(record.sensor_id, record.event_time_us)
            except Mismatch as mismatch:
                self._report.mismatch("raw rows", f"{shown_key(row.key)}: {mismatch}")
        for tier in self._schema.tiers:
            kind, prefix = _kind(tier), aggregate_prefix(tier.window).encode()
            for row in self._rows(kind, [prefix_range(prefix)], len(prefix), _NEWEST):
                try:
                    self._pick(*aggregate_window(tier, row, self._schema.families))
                except Mismatch as mismatch:
                    self._report.mismatch(kind, f"{shown_key(row.key)}: {mismatch}")
        self._check_other_windows()
        self._check_work_list()
        self._check_rollups()
        if self._schema.tiers and all(family in self._policies for family in self._schema.families):
            self._compare()

    def _rows(self, kind: str, ranges: list[KeyRange], skip: int, cells: RowFilter | None = None) -> Iterator[Row]:
        """Returns all rows in the ranges, or a sample from all over them if they have too many. Counts the rows."""
        self._report.inspected[kind] = 0
        self._report.all_of[kind] = few = self._count(ranges) <= self._sample
        for row in self._all(ranges, cells) if few else self._sampled(ranges, skip, cells):
            self._report.inspected[kind] += 1
            yield row

    def _all(self, ranges: list[KeyRange], cells: RowFilter | None) -> Iterator[Row]:
        for keys in ranges:
            yield from self._reader.read(keys, cells)

    def _sampled(self, ranges: list[KeyRange], skip: int, cells: RowFilter | None) -> Iterator[Row]:
        """Returns the first and the last rows of each place: if keys end in a time, the newest and the oldest."""
        places = self._places(ranges, skip)
        most = max(self._sample // len(places), 1)
        for keys in places:
            last = keys.start
            for row in self._reader.read(keys, cells, most - most // 2):
                last = row.key
                yield row
            rest = keys._replace(start=last + b"\x00")
            yield from self._reader.read(rest, cells, most // 2, reverse=True) if most > 1 else ()

    def _count(self, ranges: list[KeyRange]) -> int:
        """Returns the number of rows, but at most one more than the sample size."""
        found = 0
        for keys in ranges:
            found += sum(1 for _ in self._reader.read(keys, _KEYS_ALONE, self._sample + 1 - found))
            if found > self._sample:
                break
        return found

    def _places(self, ranges: list[KeyRange], skip: int) -> list[KeyRange]:
        """Returns prefix ranges from every part of the table: a tenth of the sample size, or one for each part."""
        at = self._samples[:: len(self._samples) // _MOST_PARTS + 1]
        parts = [prefix_ranges(self._first_key, part, skip) for keys in ranges for part in split_range(keys, at)]
        places: list[KeyRange] = []
        while parts and len(places) < self._sample // 10:
            found = [(part, place) for part in parts if (place := next(part, None)) is not None]
            parts = [part for part, _ in found]
            places += [place for _, place in found]
        return places or ranges

    def _first_key(self, keys: KeyRange) -> bytes | None:
        row = next(self._reader.read(keys, _KEYS_ALONE, 1), None)
        return row.key if row else None

    def _pick(self, sensor_id: str, time_us: int) -> None:
        for number, window in enumerate(self._longest):
            self._windows[sensor_id, number, window.start_of(time_us)] = None

    def _check_other_windows(self) -> None:
        known = {aggregate_prefix(tier.window).encode() for tier in self._schema.tiers}
        for keys in _some(prefix_ranges(self._first_key, prefix_range(b"agg#"), len(b"agg#")), _MOST_WINDOWS):
            prefix = keys.start[: keys.start.find(b"#", len(b"agg#")) + 1]
            if prefix not in known:
                self._report.mismatch(
                    "aggregate rows", f"{shown_key(keys.start)}: the schema has no tier of such windows"
                )

    def _check_work_list(self) -> None:
        if not self._schema.tiers:
            return
        kind = "rows of the work list"
        for row in self._rows(kind, [prefix_range(b"repair#")], len(b"repair#"), _KEYS_ALONE):
            try:
                check_listed(self._schema.tiers[0], row.key)
            except Mismatch as mismatch:
                self._report.mismatch(kind, f"{shown_key(row.key)}: {mismatch}")

    def _check_rollups(self) -> None:
        for kind, name in KINDS.items():
            keys = prefix_range(f"{kind}#".encode())
            if not self._schema.rollups and self._first_key(keys) is None:
                continue
            for row in self._rows(name, [keys], len(kind) + 1):
                try:
                    check_rollup_row(self._schema, kind, row)
                except Mismatch as mismatch:
                    self._report.mismatch(name, f"{shown_key(row.key)}: {mismatch}")
        if self._schema.rollups and not self._report.inspected[KINDS[ROLLUP]]:
            self._report.notes.append(f"the table has no {KINDS[ROLLUP]}: 'tidetable repair --rollups' creates them")

    # Compares aggregates with raw rows, as a repair does

    def _compare(self) -> None:
        picked, without_member = list(self._windows), 0
        for sensor_id, number, start_us in picked[:: len(picked) // _MOST_WINDOWS + 1]:
            try:
                for audited in self._audit(sensor_id, number, start_us):
                    self._report.windows += 1
                    if audited.finding is None or self._lacks_all(audited.finding):
                        continue
                    if _lacks_member_alone(audited.finding):
                        without_member += 1
                    else:
                        self._report.mismatch("windows", _shown_finding(audited.finding))
            except _TooManyRows:
                self._report.notes.append("the remaining windows were not compared: they have too many raw rows")
                return
            except (ForeignRow, ValueError) as problem:
                self._report.mismatch("windows", f"of {sensor_id} from {format_time(start_us)}: {problem}")
        if without_member:
            self._report.notes.append(
                f"{counted(without_member, 'aggregate row')} of those do not tell their sensors' groups: "
                "'tidetable repair --rollups' adds them"
            )
        for tier in self._schema.tiers:
            if not self._report.inspected[_kind(tier)]:
                self._report.notes.append(f"the table has no {_kind(tier)}: 'tidetable repair' creates them")

    def _lacks_all(self, finding: Finding) -> bool:
        """Whether the table has no rows of the finding's tier, which a repair will create."""
        return not self._report.inspected[_kind(finding.tier)]

    def _audit(self, sensor_id: str, number: int, start_us: int) -> list[Audited]:
        """Audits a sensor's windows in the longest one of a chain, if they are complete and not partly collected."""
        tiers = self._schema.tiers
        end_us = self._longest[number].end_of(start_us)
        now_us = time.time_ns() // 1000
        bounds = bounds_of(tiers, Retention.of(self._schema, self._policies), _STILL_WRITTEN, now_us)
        extents = chains_of(extents_of(start_us, end_us, tiers, bounds)[0])[number]
        if not any(extent.windows for extent in extents):
            return []
        identity, fields = self._schema.identity.of_record, self._schema.member_fields
        span = Span(start_us, end_us, frozenset({sensor_id}))
        shortest: dict[int, WindowReadings] = {}
        for keys in raw_ranges(self._schema, span.sensors):
            for record in events_within(self._schema, self._read, keys, span):
                if not record.readings:  # metadata alone is in no window
                    continue
                window_us = tiers[0].window.start_of(record.event_time_us)
                of_window, (time_us, discriminator) = shortest.setdefault(window_us, WindowReadings()), identity(record)
                of_window.add(time_us, record.readings, discriminator)
                if fields:
                    of_window.note(Member(event_key(time_us, discriminator), member_text(fields, record.metadata)))
        stored: dict[tuple[Tier, int], StoredRow] = {}
        for tier, first_us, last_us in extents:
            keys = aggregate_range(tier.window, sensor_id, first_us, last_us)
            for row in self._read(RowSelection(keys, CellSelection((tier.family,), versions=1))):
                stored[tier, parse_aggregate_key(tier.window, row.key).start_us] = StoredRow.of(row)
        statistics = tiers[0].statistics
        recomputed = {window_us: Recomputed.of(readings, statistics) for window_us, readings in shortest.items()}
        return [each for each in audit(sensor_id, extents, recomputed, stored) if isinstance(each, Audited)]

    def _read(self, selection: RowSelection) -> Iterator[Row]:
        for row in self._reader.read_selection(selection):
            self._rows_left -= 1
            if self._rows_left < 0:
                raise _TooManyRows
            yield row


class _TooManyRows(Exception):
    """The inspection has read as many rows to compare windows as it may."""


def _some(ranges: Iterator[KeyRange], most: int) -> Iterator[KeyRange]:
    return (keys for keys, _ in zip(ranges, range(most), strict=False))


def _kind(tier: Tier) -> str:
    return f"aggregate rows of {tier.window.text}"


def _lacks_member_alone(finding: Finding) -> bool:
    """Whether a row is right, but was written without the metadata that roll-ups group by."""
    return all(each.column == MEMBER and each.stored is None for each in finding.differences)


def _shown_finding(finding: Finding) -> str:
    first, *others = finding.differences
    stored = "missing" if first.stored is None else first.stored
    recomputed = "nothing" if first.right is None else first.right
    more = f" (and {len(others)} more)" if others else ""
    return f"{shown_key(finding.key)}: {first.column} is {stored}, but {recomputed} by its raw rows{more}"
