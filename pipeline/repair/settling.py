"""Settles the roll-ups of windows that a repair has rewritten, and of the listed windows that it settles."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import apache_beam as beam
from apache_beam.pvalue import AsSingleton, PCollection

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.writing.rewriter import Rewriter
from pipeline.core.completion.audit import Extent
from pipeline.core.completion.work_list import parse_work_key, work_range, work_range_of, work_row
from pipeline.core.queries.sweeps import Span, window_rows
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.repair.rollups import ignore
from pipeline.transforms.settle_rollups import SettleRollups, WrittenWindow
from pipeline.transforms.tables import RETRY_S, TableReadingFn


def rolled_up_tiers(schema: TableSchema) -> dict[Tier, int]:
    """Returns the tiers that have roll-ups, with their indexes."""
    return {tier: index for index, tier in enumerate(schema.tiers) if schema.rollups_of(tier.window)}


@dataclass(eq=False)
class SettleRepaired(beam.PTransform):
    """Settles the roll-ups of rewritten windows, as :class:`WrittenWindow` elements. Has no output.

    Rewritten windows are on the work list until then: a repair that is stopped in between finds nothing wrong when it
    is run again. Whoever put a window on the list may have left its roll-ups to the repair, so those of other listed
    windows are settled as well.

    Args:
        table: the table's name.
        schema: the table's schema, with roll-ups.
        extents: the windows that the repair audits.
        spans: the spans of these windows.
        listing: the column by which rewritten windows are listed.
    """

    table: TableName
    schema: TableSchema
    extents: Sequence[Extent]
    spans: Sequence[Span]
    listing: bytes

    def expand(self, rewritten: PCollection) -> PCollection:
        listed = (
            rewritten.pipeline
            | "Spans" >> beam.Create(self.spans)
            | "ReadList" >> beam.ParDo(_ReadListedFn(self.table, self.schema, self.extents))
        )
        settled = (
            (rewritten, listed) | "All" >> beam.Flatten() | "SettleRollups" >> SettleRollups(self.table, self.schema)
        )
        unlist_fn = _UnlistFn(self.table, self.schema, self.listing)
        return rewritten | "Settled" >> beam.ParDo(unlist_fn, AsSingleton(settled))


@beam.typehints.with_output_types(WrittenWindow)
class _ReadListedFn(TableReadingFn):
    def __init__(self, name: TableName, schema: TableSchema, extents: Sequence[Extent]) -> None:
        super().__init__(name, RETRY_S)
        self._schema, self._extents, self._rolled_up = schema, extents, rolled_up_tiers(schema)

    def process(self, element: Span) -> Iterator[WrittenWindow]:
        families = CellSelection(tuple(tier.family for tier in self._schema.tiers), keys_only=True)
        for listed in self._schema.tiers:  # the shortest tier when they were listed
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
            for (sensor_id, listed_us), _ in rows:
                for extent in self._extents:
                    start_us = extent.tier.window.start_of(listed_us)
                    if start_us in extent and extent.tier in self._rolled_up:
                        yield WrittenWindow(self._rolled_up[extent.tier], start_us, sensor_id)


class _UnlistFn(TableReadingFn):
    """Takes windows off the work list when their roll-ups are settled; none if a job still changes them."""

    def __init__(self, name: TableName, schema: TableSchema, listing: bytes) -> None:
        super().__init__(name, RETRY_S)
        self._shortest, self._listing = schema.tiers[0], listing

    def start_bundle(self) -> None:
        self._keys: set[bytes] = set()

    def process(self, element: WrittenWindow, written_s: float) -> None:
        if not written_s:
            self._keys.add(work_row(self._shortest, element.sensor_id, element.start_us).key)

    def finish_bundle(self) -> None:
        if self._keys:
            with Rewriter.open(self._name) as rewriter:
                rewriter.delete_column(self._keys, self._shortest.family, self._listing)
