"""``tidetable table adopt``: takes over a table that another program created and filled in Tidetable's format.

An inspection checks a sample of the table's rows against a schema, and compares aggregates with their raw rows.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import chain, islice
from typing import Any

import click
from google.cloud.bigtable_v2.types import RowFilter

from pipeline.cli.console import print_json_line
from pipeline.cli.options import dry_run_option, json_option, table_options
from pipeline.cloud.connection.key_ranges import sampled_keys
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader, row_filter
from pipeline.cloud.tables import schema_store, tables
from pipeline.cloud.tables.retention_notes import record_added_tiers, tiers_without_rows
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
from pipeline.core.queries.reads import ForeignRow, RowSelection, raise_foreign, raw_keys, skip_scan
from pipeline.core.queries.sweeps import Span, events_within, raw_ranges
from pipeline.core.rows.aggregate_rows import MEMBER, aggregate_prefix, aggregate_range, parse_aggregate_key
from pipeline.core.rows.rollup_rows import ROLLUP
from pipeline.core.rows.rows import KeyRange, Row, after_prefix, prefix_range, split_range
from pipeline.core.schema.gc_policies import Never, Policy, format_policy, same_policy
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import SCHEMA_FAMILY, SchemaError, TableSchema, Tier
from pipeline.core.schema.toml import document_of
from pipeline.core.statistics.member import Member, member_text
from pipeline.core.windows import chains
from pipeline.table.comparison import summary
from pipeline.table.fitting import (
    KINDS,
    Mismatch,
    aggregate_window,
    check_listed,
    check_rollup_row,
    raw_events,
    shown_key,
)
from pipeline.table.schema_flags import SchemaFlags, schema_flags

_MOST_NAMED = 3  # misfits of each kind in the report
_MOST_PARTS = 20  # parts of the table to sample from
_MOST_WINDOWS = 200  # windows to compare with raw rows
_ROWS_A_SAMPLE = 100  # rows to read for comparing windows, for each row of the sample
_STILL_WRITTEN = timedelta(hours=1)  # for so long after its end, a window may be incomplete
_KEYS_ONLY = row_filter(CellSelection((), keys_only=True))
_MOST_CELLS = RowFilter(cells_per_row_limit_filter=10_000)  # a bucket's row may have very many
_NEWEST = RowFilter(cells_per_column_limit_filter=1)


class Inspection:
    """An inspection of a table, and its results.

    Attributes:
        families: a line for each family of the schema, and for each further family of the table.
        inspected: the number of checked rows, by kind.
        all_of: whether these are all rows of the kind.
        windows: the number of windows compared with their raw rows.
        misfits: the number of misfits, by kind.
        named: the first misfits, by kind.
        notes: further lines.
        schema: the requested schema with the table's policies.
    """

    def __init__(self, requested: TableSchema, policies: Mapping[str, Policy], sample: int) -> None:
        self.families: list[str] = []
        self.inspected: dict[str, int] = {}
        self.all_of: dict[str, bool] = {}
        self.windows = 0
        self.misfits: dict[str, int] = {}
        self.named: dict[str, list[str]] = {}
        self.notes: list[str] = []
        self._policies, self._sample = policies, sample
        self.schema = self._with_policies(requested)
        # Sensor, number of a chain of tiers, and start of its longest window, of each row that fits.
        self._windows: dict[tuple[str, int, int], None] = {}
        windows = tuple(tier.window for tier in self.schema.tiers)
        self._longest = [windows[chain[-1]] for chain in chains(windows)]
        self._rows_left = sample * _ROWS_A_SAMPLE

    @property
    def fits(self) -> bool:
        """Whether there is no misfit."""
        return not self.misfits

    def mismatch(self, kind: str, what: str) -> None:
        """Counts a misfit, and keeps its description if it is one of the first."""
        self.misfits[kind] = self.misfits.get(kind, 0) + 1
        if len(named := self.named.setdefault(kind, [])) < _MOST_NAMED:
            named.append(what)

    def run(self, reader: RowReader) -> None:
        """Checks raw rows and aggregate rows, and compares both for some windows."""
        self._reader, self._samples = reader, [sample.key for sample in sampled_keys(reader.name)]
        self._check_rows("raw rows", raw_keys(), 0, _MOST_CELLS, self._check_raw)
        for tier in self.schema.tiers:
            self._check_aggregates(tier)
        self._check_other_windows()
        if self.schema.tiers:
            (first, *_) = self.schema.tiers
            listed = prefix_range(b"repair#")
            self._check_rows(
                "rows of the work list", [listed], len(b"repair#"), _KEYS_ONLY, lambda row: check_listed(first, row.key)
            )
        self._check_rollups()
        if self.schema.tiers and all(family in self._policies for family in self.schema.families):
            self._compare()

    def _with_policies(self, requested: TableSchema) -> TableSchema:
        """Returns the schema with the table's policies. Reports families and policies that do not fit."""
        actual, defaults = self._policies, replace(requested, policies={}).policies
        for family in requested.families:
            policy = requested.policies[family]
            if family not in actual:
                self.mismatch("families", f"family {family} is missing; create it, or name the existing one")
                continue
            completed = requested.completed(family, actual[family])
            if same_policy(policy, completed) or same_policy(policy, defaults[family]):
                adds = "" if completed == actual[family] else "; 'tidetable table apply' adds maxversions=1"
                self.families.append(f"family {family}: policy is {format_policy(actual[family])}{adds}")
            else:
                difference = tables.Difference(family, actual[family], policy)
                self.mismatch("families", f"{difference}; change the policy, or do not request one")
        if SCHEMA_FAMILY in actual and actual[SCHEMA_FAMILY] != Never():
            self.mismatch("families", str(tables.Difference(SCHEMA_FAMILY, actual[SCHEMA_FAMILY], Never())))
        for family in sorted(actual.keys() - {*requested.families, SCHEMA_FAMILY}):
            self.families.append(str(tables.Difference(family, actual[family], None)))
        try:
            return replace(
                requested, policies={family: actual.get(family, requested.policies[family]) for family in defaults}
            )
        except SchemaError as error:
            self.mismatch("families", str(error))
            return requested

    def _check_rows(
        self, kind: str, ranges: list[KeyRange], skip: int, cells: RowFilter | None, check: Callable[[Row], None]
    ) -> None:
        """Checks all rows in the ranges, or a sample from all over them if they have too many."""
        self.all_of[kind] = few = self._count(ranges) <= self._sample
        self.inspected[kind] = 0
        all_rows = chain.from_iterable(self._reader.read(keys, cells) for keys in ranges)
        for row in all_rows if few else self._sampled(ranges, skip, cells):
            self.inspected[kind] += 1
            try:
                check(row)
            except Mismatch as mismatch:
                self.mismatch(kind, f"{shown_key(row.key)}: {mismatch}")

    def _check_raw(self, row: Row) -> None:
        for record in raw_events(self.schema, row):
            self._pick(record.sensor_id, record.event_time_us)

    def _check_aggregates(self, tier: Tier) -> None:
        prefix = aggregate_prefix(tier.window).encode()

        def check(row: Row) -> None:
            self._pick(*aggregate_window(tier, row, self.schema.families))

        self._check_rows(_kind(tier), [prefix_range(prefix)], len(prefix), _NEWEST, check)

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
            found += sum(1 for _ in self._reader.read(keys, _KEYS_ONLY, self._sample + 1 - found))
            if found > self._sample:
                break
        return found

    def _places(self, ranges: list[KeyRange], skip: int) -> list[KeyRange]:
        """Returns prefix ranges from every part of the table: a tenth of the sample size, or one for each part."""
        at = self._samples[:: len(self._samples) // _MOST_PARTS + 1]
        parts = [self._prefixes(part, skip) for keys in ranges for part in split_range(keys, at)]
        places: list[KeyRange] = []
        while parts and len(places) < self._sample // 10:
            found = [(part, place) for part in parts if (place := next(part, None)) is not None]
            parts = [part for part, _ in found]
            places += [place for _, place in found]
        return places or ranges

    def _prefixes(self, keys: KeyRange, skip: int) -> Iterator[KeyRange]:
        """Yields a range for each distinct prefix of keys that ends at a ``#`` after ``skip`` bytes: each sensor's."""

        def prefix_of(key: bytes, _: bytes) -> bytes:
            return key[: key.find(b"#", skip) + 1] or key + b"\x00"

        for key, _ in skip_scan(self._reader.read_selection, keys, bytes, prefix_of, raise_foreign, skip=()):
            ends = after_prefix(prefix_of(key, key)), keys.end
            yield KeyRange(key, min(filter(None, ends), default=b""))

    def _pick(self, sensor_id: str, time_us: int) -> None:
        for number, window in enumerate(self._longest):
            self._windows[sensor_id, number, window.start_of(time_us)] = None

    def _check_other_windows(self) -> None:
        known = {aggregate_prefix(tier.window).encode() for tier in self.schema.tiers}
        for start, _ in islice(self._prefixes(prefix_range(b"agg#"), len(b"agg#")), _MOST_WINDOWS):
            if start[: start.find(b"#", len(b"agg#")) + 1] not in known:
                self.mismatch("aggregate rows", f"{shown_key(start)}: the schema has no tier of such windows")

    def _check_rollups(self) -> None:
        for kind, name in KINDS.items():
            keys = prefix_range(f"{kind}#".encode())
            if self.schema.rollups or any(self._reader.read(keys, _KEYS_ONLY, 1)):
                check = partial(check_rollup_row, self.schema, kind)
                self._check_rows(name, [keys], len(kind) + 1, None, check)
        if self.schema.rollups and not self.inspected[KINDS[ROLLUP]]:
            self.notes.append(f"the table has no {KINDS[ROLLUP]}: 'tidetable repair --rollups' creates them")

    # Compares aggregates with raw rows, as a repair does

    def _compare(self) -> None:
        picked, without_member = list(self._windows), 0
        for sensor_id, number, start_us in picked[:: len(picked) // _MOST_WINDOWS + 1]:
            try:
                for audited in self._audit(sensor_id, number, start_us):
                    self.windows += 1
                    # A repair will create the rows of a tier that has none.
                    if audited.finding is None or not self.inspected[_kind(audited.finding.tier)]:
                        continue
                    if _lacks_only_member(audited.finding):
                        without_member += 1
                    else:
                        self.mismatch("windows", _shown_finding(audited.finding))
            except _TooManyRows:
                self.notes.append("the remaining windows were not compared: they have too many raw rows")
                return
            except (ForeignRow, ValueError) as problem:
                self.mismatch("windows", f"of {sensor_id} from {format_time(start_us)}: {problem}")
        if without_member:
            self.notes.append(
                f"{counted(without_member, 'aggregate row')} of those do not tell their sensors' groups: "
                "'tidetable repair --rollups' adds them"
            )
        for tier in self.schema.tiers:
            if not self.inspected[_kind(tier)]:
                self.notes.append(f"the table has no {_kind(tier)}: 'tidetable repair' creates them")

    def _audit(self, sensor_id: str, number: int, start_us: int) -> list[Audited]:
        """Audits a sensor's windows in the longest one of a chain, if they are complete and not partly collected."""
        tiers = self.schema.tiers
        end_us = self._longest[number].end_of(start_us)
        now_us = time.time_ns() // 1000
        bounds = bounds_of(tiers, Retention.of(self.schema, self._policies), _STILL_WRITTEN, now_us)
        extents = chains_of(extents_of(start_us, end_us, tiers, bounds)[0])[number]
        if not any(extent.windows for extent in extents):
            return []
        identity, fields = self.schema.identity.of_record, self.schema.member_fields
        span = Span(start_us, end_us, frozenset({sensor_id}))
        shortest: dict[int, WindowReadings] = {}
        for keys in raw_ranges(self.schema, span.sensors):
            for record in events_within(self.schema, self._read, keys, span):
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


def _kind(tier: Tier) -> str:
    return f"aggregate rows of {tier.window.text}"


def _lacks_only_member(finding: Finding) -> bool:
    """Whether a row is right, but was written without the metadata that roll-ups group by."""
    return all(each.column == MEMBER and each.stored is None for each in finding.differences)


def _shown_finding(finding: Finding) -> str:
    first, *others = finding.differences
    stored = "missing" if first.stored is None else first.stored
    recomputed = "nothing" if first.right is None else first.right
    more = f" (and {len(others)} more)" if others else ""
    return f"{shown_key(finding.key)}: {first.column} is {stored}, but {recomputed} by its raw rows{more}"


@click.command()
@table_options
@schema_flags
@click.option(
    "--sample",
    type=click.IntRange(1, 1_000_000),
    default=1000,
    show_default=True,
    help="The number of raw rows, and of aggregate rows of each tier, to check; all if the table has no more.",
)
@dry_run_option
@json_option
def adopt(table: TableName, flags: SchemaFlags, sample: int, dry_run: bool, as_json: bool) -> None:
    """Take over a table that another program created and filled in Tidetable's format.

    Checks the table's families, and a sample of its raw rows and aggregate rows from all over the table. Compares
    aggregates with their raw rows. If everything fits the schema, adds the family 'tidetable' and stores the schema in
    it. Otherwise, reports what does not fit and changes nothing. Never changes a policy: the schema takes the table's
    policies.

    \b
    Exit code:
      0  the schema is stored; with --dry-run, it would be
      1  nothing was changed: something does not fit, or the table has a schema already, or no rows
      2  wrong usage
    """  # noqa: D301 (\b is click's mark for a paragraph with fixed line breaks)
    requested = flags.requested(TableSchema.default())
    policies = tables.describe(table)
    if schema_store.read_stored(table) is not None:
        raise click.ClickException(f"table {table} has a schema already; 'tidetable table describe' prints it")
    found = Inspection(requested, policies, sample)
    with RowReader.open(table) as reader:
        found.run(reader)
    if not any(found.inspected.values()):
        raise click.ClickException(f"table {table} has no rows; 'tidetable table apply' stores a schema")
    if found.fits and not dry_run:
        _store(table, found.schema, policies)
    if as_json:
        print_json_line(_record(table, found, dry_run=dry_run))
    else:
        _print(found)
        if found.fits:
            click.echo(f"table {table} {'fits; nothing was changed' if dry_run else 'has this schema now'}")
    if not found.fits:
        click.echo(f"table {table} is unchanged: it does not fit", err=True)
        sys.exit(1)


def _store(table: TableName, schema: TableSchema, policies: Mapping[str, Policy]) -> None:
    if SCHEMA_FAMILY not in policies:
        tables.apply(table, [tables.Difference(SCHEMA_FAMILY, None, Never())])
    record_added_tiers(table, tiers_without_rows(table, schema.tiers))
    if not schema_store.replace_text(table, None, schema_store.text_of(schema)):
        raise click.ClickException(f"table {table} is unchanged: another program has stored a schema meanwhile")


def _print(found: Inspection) -> None:
    click.echo(f"schema: {summary(found.schema)}")
    for line in found.families:
        click.echo(line)
    for kind, count in found.inspected.items():
        rows = kind.replace("rows", "row", 1) if count == 1 else kind
        click.echo(f"checked {'all ' if count > 1 and found.all_of[kind] else ''}{count:,} {rows}")
    click.echo(f"compared {counted(found.windows, 'window')} with the raw rows")
    for note in found.notes:
        click.echo(note)
    for kind, count in found.misfits.items():
        click.echo(f"{kind} that do not fit: {count:,}")
        for what in found.named[kind]:
            click.echo(f"  {what}")


def _record(table: TableName, found: Inspection, *, dry_run: bool) -> dict[str, Any]:
    return {
        "table": str(table),
        "schema": document_of(found.schema),
        "fits": found.fits,
        "stored": found.fits and not dry_run,
        "families": found.families,
        "looked_at": {kind: {"rows": count, "all": found.all_of[kind]} for kind, count in found.inspected.items()},
        "windows_compared": found.windows,
        "notes": found.notes,
        "misfits": {kind: {"count": count, "first": found.named[kind]} for kind, count in found.misfits.items()},
    }
