"""Raw rows read again, their aggregates recomputed and compared with those that are stored, and wrong ones rewritten.

| counter | counts |
|---|---|
| ``repair_events`` | events read again; one whose parts lie in several rows may count more than once |
| ``repair_windows_checked`` | windows that have raw rows or an aggregate row, of every length |
| ``repair_windows_wrong`` | those of them whose aggregate row is missing, differs, or has no raw rows |
| ``repair_windows_rewritten`` | those whose row was replaced or deleted |
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PBegin, PCollection

from pipeline.cloud.errors import ServerProblem
from pipeline.cloud.names import TableName
from pipeline.cloud.rewriter import Replacement, Rewriter
from pipeline.cloud.row_filters import row_filter
from pipeline.cloud.row_reader import RowReader
from pipeline.core.aggregates import aggregate_range, parse_aggregate_key
from pipeline.core.audit import Extent, Finding, Recomputed, Stored, audit
from pipeline.core.readings import WindowReadings
from pipeline.core.rows import KeyRange, Row
from pipeline.core.schema.foreign import ForeignRow
from pipeline.core.schema.layouts import Wanted
from pipeline.core.schema.sweeps import Span, events_within, window_rows
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.transforms import metrics

EVENTS = "repair_events"
WINDOWS_CHECKED = "repair_windows_checked"
WINDOWS_WRONG = "repair_windows_wrong"
WINDOWS_REWRITTEN = "repair_windows_rewritten"

_MOST_HELD = 50_000  # events, before what is gathered of windows goes on

_Key = tuple[str, int]  # a sensor and a window's start


class Part(NamedTuple):
    """What is read at a stretch: the rows with these keys that are of a span.

    Attributes:
        keys: which keys.
        span: which of the spans that are read, counted from 0.
        extent: the windows whose aggregate rows these are; None for raw rows.
    """

    keys: KeyRange
    span: int
    extent: Extent | None = None


class FindWrongWindows(beam.PTransform):
    """Parts of a table to a :class:`Finding` for each window whose aggregate row is wrong.

    Args:
        table: which table.
        schema: what it looks like.
        extents: the windows that are looked at, the shortest tier first.
        spans: what of it is read: all raw rows of these windows, and their aggregate rows.
        parts: the same in parts.
    """

    def __init__(
        self,
        table: TableName,
        schema: TableSchema,
        extents: Sequence[Extent],
        spans: Sequence[Span],
        parts: Sequence[Part],
    ) -> None:
        super().__init__()
        self._table = table
        self._schema = schema
        self._extents = tuple(extents)
        self._spans = tuple(spans)
        self._raw = [part for part in parts if part.extent is None]
        self._aggregates = [part for part in parts if part.extent is not None]

    def expand(self, pipeline: PBegin) -> PCollection:
        recomputed = (
            pipeline
            | "RawParts" >> beam.Create(self._raw)
            | "SpreadRawParts" >> beam.Reshuffle()
            | "ReadRaw" >> beam.ParDo(_ReadRawFn(self._table, self._spans, self._schema))
            | "Merge" >> beam.CombinePerKey(_MergeFn()).with_output_types(tuple[_Key, WindowReadings])
            | "Recompute" >> beam.Map(_recomputed, self._extents[-1].tier).with_output_types(tuple[_Key, Any])
        )
        stored = (
            pipeline
            | "AggregateParts" >> beam.Create(self._aggregates)
            | "SpreadAggregateParts" >> beam.Reshuffle()
            | "ReadAggregates" >> beam.ParDo(_ReadAggregatesFn(self._table, self._spans, self._extents[-1].tier))
        )
        return (
            {"recomputed": recomputed, "stored": stored}
            | "Join" >> beam.CoGroupByKey()
            | "Compare" >> beam.ParDo(_CompareFn(self._extents))
        )


class RewriteWindows(beam.PTransform):
    """Makes the aggregate row of each :class:`Finding` what it has to be; nothing comes out."""

    def __init__(self, table: TableName) -> None:
        super().__init__()
        self._table = table

    def expand(self, findings: PCollection) -> PCollection:
        return findings | "Rewrite" >> beam.ParDo(_RewriteFn(self._table))


class _ReadFn(beam.DoFn):
    """Reads rows of a table, over one connection for all of its bundles."""

    def __init__(self, table: TableName, spans: tuple[Span, ...]) -> None:
        self._table = table
        self._spans = spans

    def setup(self) -> None:
        self._stack = ExitStack()
        self._reader = self._stack.enter_context(RowReader.open(self._table))

    def teardown(self) -> None:
        self._stack.close()

    def _read(
        self, key_range: KeyRange, wanted: Wanted, pattern: str | None, page_rows: int | None, *, reverse: bool
    ) -> Iterator[Row]:
        return self._reader.read(key_range, row_filter(wanted, pattern), page_rows=page_rows, reverse=reverse)


@beam.typehints.with_output_types(tuple[_Key, WindowReadings])
class _ReadRawFn(_ReadFn):
    """Parts to the readings of each shortest window that they hold, in as many pieces as memory asks for."""

    def __init__(self, table: TableName, spans: tuple[Span, ...], schema: TableSchema) -> None:
        super().__init__(table, spans)
        self._schema = schema
        self._events = metrics.counter(EVENTS)

    def process(self, element: Part) -> Iterator[tuple[_Key, WindowReadings]]:
        window, identity = self._schema.tiers[0].window, self._schema.identity
        gathered: dict[_Key, WindowReadings] = {}
        held = 0
        try:
            for record in events_within(self._schema, self._read, element.keys, self._spans[element.span]):
                time_us, apart = identity.of_record(record)
                key = record.sensor_id, window.start_of(time_us)
                gathered.setdefault(key, WindowReadings()).add(time_us, record.readings, apart)
                held += 1
                if held == _MOST_HELD:
                    self._events.inc(held)
                    yield from gathered.items()
                    gathered, held = {}, 0
        except ForeignRow as problem:
            raise ServerProblem(f"table {self._table}: {problem}") from problem
        self._events.inc(held)
        yield from gathered.items()


@beam.typehints.with_output_types(tuple[_Key, Any])
class _ReadAggregatesFn(_ReadFn):
    """Parts to ``((sensor, start of the longest window), (tier, start, values))``, one for each aggregate row."""

    def __init__(self, table: TableName, spans: tuple[Span, ...], longest: Tier) -> None:
        super().__init__(table, spans)
        self._longest = longest

    def process(self, element: Part) -> Iterator[tuple[_Key, tuple[Tier, int, Stored]]]:
        if element.extent is None:
            raise ValueError(f"{element} is of raw rows")
        tier, start_us, end_us = element.extent
        span = self._spans[element.span]
        rows = window_rows(
            self._read,
            Wanted((tier.family,), versions=1),
            element.keys,
            span._replace(start_us=max(span.start_us, start_us), end_us=min(span.end_us, end_us)),
            lambda key: parse_aggregate_key(tier.window, key),
            lambda *windows: aggregate_range(tier.window, *windows),
        )
        try:
            for key, row in rows:
                values = {cell.qualifier.decode(errors="backslashreplace"): cell.value for cell in row.cells}
                longest_us = self._longest.window.start_of(key.start_us)
                yield (key.sensor_id, longest_us), (tier, key.start_us, values)
        except ForeignRow as problem:
            raise ServerProblem(f"table {self._table}: {problem}") from problem


class _MergeFn(beam.CombineFn):
    """Pieces of a window's readings combined into one, in which each reading is once."""

    def create_accumulator(self) -> WindowReadings:
        return WindowReadings()

    def add_input(self, mutable_accumulator: WindowReadings, element: WindowReadings) -> WindowReadings:
        mutable_accumulator.merge(element)
        return mutable_accumulator

    def merge_accumulators(self, accumulators: Iterable[WindowReadings], *_: Any) -> WindowReadings:
        merged = WindowReadings()
        for accumulator in accumulators:
            merged.merge(accumulator)
        return merged

    def extract_output(self, accumulator: WindowReadings) -> WindowReadings:
        return accumulator


def _recomputed(element: tuple[_Key, WindowReadings], longest: Tier) -> tuple[_Key, tuple[int, Recomputed]]:
    (sensor_id, start_us), readings = element
    return (sensor_id, longest.window.start_of(start_us)), (start_us, Recomputed.of(readings))


class _CompareFn(beam.DoFn):
    def __init__(self, extents: tuple[Extent, ...]) -> None:
        self._extents = extents
        self._checked = metrics.counter(WINDOWS_CHECKED)
        self._wrong = metrics.counter(WINDOWS_WRONG)

    def process(self, element: tuple[_Key, Mapping[str, Iterable[Any]]]) -> Iterator[Finding]:
        (sensor_id, _), found = element
        stored = {(tier, start_us): values for tier, start_us, values in found["stored"]}
        for audited in audit(sensor_id, self._extents, dict(found["recomputed"]), stored):
            self._checked.inc()
            if audited.finding is not None:
                self._wrong.inc()
                yield audited.finding


class _RewriteFn(beam.DoFn):
    """Rewrites a bundle's rows together. Done again, as a bundle that fails is, it leaves the same."""

    def __init__(self, table: TableName) -> None:
        self._table = table
        self._rewritten = metrics.counter(WINDOWS_REWRITTEN)

    def setup(self) -> None:
        self._stack = ExitStack()
        self._rewriter = self._stack.enter_context(Rewriter.open(self._table))

    def teardown(self) -> None:
        self._stack.close()

    def start_bundle(self) -> None:
        self._replacements: list[Replacement] = []

    def process(self, element: Finding) -> None:
        self._replacements.append(Replacement(element.key, element.tier.family, element.cells))

    def finish_bundle(self) -> None:
        self._rewriter.replace(self._replacements)
        self._rewritten.inc(len(self._replacements))
