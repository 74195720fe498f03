"""Brings longer windows and roll-ups in line with the windows that a repair has rewritten, and listed ones."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsIter, PCollection

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.writing.rewriter import Rewriter
from pipeline.core.completion.audit import Extent, Finding
from pipeline.core.completion.work_list import parse_work_key, work_range, work_range_of, work_row
from pipeline.core.queries.sweeps import Span, window_rows
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.repair.longer import Changed, RecomputeLonger, WindowsAbove, is_followed
from pipeline.repair.rollups import ignore
from pipeline.transforms.settle_rollups import SettleRollups, WrittenWindow
from pipeline.transforms.tables import RETRY_S, TableReadingFn


def rolled_up_tiers(schema: TableSchema) -> frozenset[int]:
    """Returns the indexes of the tiers that have roll-ups."""
    return frozenset(index for index, tier in enumerate(schema.tiers) if schema.rollups_of(tier.window))


@dataclass(eq=False)
class _Following:
    """What follows the windows of a repair.

    Args:
        table: the table's name.
        schema: the table's schema.
        retention: the retention of the table's cells.
        longer: the longer windows around those that the repair audits.
        extents: the windows that this part of the repair audits.
        spans: the spans of these windows.
    """

    table: TableName
    schema: TableSchema
    retention: Retention
    longer: WindowsAbove
    extents: Sequence[Extent]
    spans: Sequence[Span]

    def _listed(self, pipeline: beam.Pipeline) -> PCollection:
        """Returns the listed windows: whoever put one on the list may have left what follows to the repair."""
        read_fn = _ReadListedFn(self.table, self.schema)
        return pipeline | "Spans" >> beam.Create(self.spans) | "ReadList" >> beam.ParDo(read_fn)

    def _computed(self, changed: PCollection, listed: PCollection, *, dry_run: bool) -> Any:
        audited = listed | "Audited" >> beam.FlatMap(_changed_of_listed, self.longer.tiers, tuple(self.extents))
        recompute = RecomputeLonger(self.table, self.schema, self.retention, self.longer, dry_run)
        return (changed, audited) | "Changed" >> beam.Flatten() | recompute


@dataclass(eq=False)
class FindWrongAround(_Following, beam.PTransform):
    """Finds the longer windows that a repair of :class:`Finding` elements would rewrite, or leave as they are."""

    def expand(self, findings: PCollection) -> PCollection:
        changed = findings | "ToRewrite" >> beam.Map(_changed_of_finding, self.longer.tiers)
        return self._computed(changed, self._listed(findings.pipeline), dry_run=True).found


@dataclass(eq=False)
class SettleRepaired(_Following, beam.PTransform):
    """Brings longer windows, and then roll-ups, in line with rewritten windows: :class:`WrittenWindow` elements.

    Its output is that of :class:`FindWrongAround`. Rewritten windows are on the work list until then: a repair that is
    stopped in between finds nothing wrong when it is run again.

    Args:
        listing: the column by which rewritten windows are listed.
        rolled_up: the indexes of the tiers whose roll-ups are settled.
    """

    listing: bytes
    rolled_up: frozenset[int]

    def expand(self, rewritten: PCollection) -> PCollection:
        listed = self._listed(rewritten.pipeline)
        changed = rewritten | "Rewritten" >> beam.Map(_changed_of_written)
        found, computed = self._computed(changed, listed, dry_run=False)
        if self.rolled_up:
            audited = listed | "RolledUp" >> beam.FlatMap(_within, self.longer.tiers, tuple(self.extents))
            written = (rewritten, computed, audited) | "All" >> beam.Flatten()
            settled = (
                written
                | "OfRollups" >> beam.Filter(_is_of, self.rolled_up)
                | "SettleRollups" >> SettleRollups(self.table, self.schema, less=True)
            )
        else:
            settled = computed | "Computed" >> beam.FlatMap(_nothing)
        unlist_fn = _UnlistFn(self.table, self.schema, self.listing)
        followed = rewritten | "Followed" >> beam.Filter(is_followed, self.longer, self.rolled_up)
        _ = followed | "Settled" >> beam.ParDo(unlist_fn, AsIter(settled))
        return found


def _changed_of_finding(finding: Finding, tiers: tuple[Tier, ...]) -> Changed:
    return Changed(finding.sensor_id, tiers.index(finding.tier), finding.start_us, cells=finding.cells)


def _changed_of_written(window: WrittenWindow) -> Changed:
    return Changed(window.sensor_id, window.tier, window.start_us)


def _changed_of_listed(
    window: WrittenWindow, tiers: tuple[Tier, ...], extents: tuple[Extent, ...]
) -> Iterator[Changed]:
    """Yields a listed window if it is audited."""
    if any(each.tier == tiers[window.tier] and window.start_us in each for each in extents):
        yield Changed(window.sensor_id, window.tier, window.start_us, rewritten=False)


def _within(window: WrittenWindow, tiers: tuple[Tier, ...], extents: tuple[Extent, ...]) -> Iterator[WrittenWindow]:
    """Yields the audited windows of every tier around a listed one."""
    for extent in extents:
        start_us = extent.tier.window.start_of(window.start_us)
        if start_us in extent:
            yield window._replace(tier=tiers.index(extent.tier), start_us=start_us)


def _is_of(window: WrittenWindow, tiers: frozenset[int]) -> bool:
    return window.tier in tiers


def _nothing(_: object) -> tuple[object, ...]:
    return ()


@beam.typehints.with_output_types(WrittenWindow)
class _ReadListedFn(TableReadingFn):
    def __init__(self, name: TableName, schema: TableSchema) -> None:
        super().__init__(name, RETRY_S)
        self._schema = schema

    def process(self, element: Span) -> Iterator[WrittenWindow]:
        families = CellSelection(tuple(tier.family for tier in self._schema.tiers), keys_only=True)
        for index, listed in enumerate(self._schema.tiers):  # the shortest tier when they were listed
            window = listed.window
            rows = window_rows(
                self._read,
                families,
                work_range(window),
                element,
                partial(parse_work_key, window),
                partial(work_range_of, window),
                ignore,
            )
            yield from (WrittenWindow(index, listed_us, sensor_id) for (sensor_id, listed_us), _ in rows)


class _UnlistFn(TableReadingFn):
    """Takes windows off the work list when all that follows is settled."""

    def __init__(self, name: TableName, schema: TableSchema, listing: bytes) -> None:
        super().__init__(name, RETRY_S)
        self._shortest, self._listing = schema.tiers[0], listing

    def start_bundle(self) -> None:
        self._keys: set[bytes] = set()

    def process(self, element: WrittenWindow, _: Iterable[object]) -> None:
        self._keys.add(work_row(self._shortest, element.sensor_id, element.start_us).key)

    def finish_bundle(self) -> None:
        if self._keys:
            with Rewriter.open(self._name) as rewriter:
                rewriter.delete_column(self._keys, self._shortest.family, self._listing)
