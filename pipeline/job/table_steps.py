"""The steps of one table: what Beam transforms they are, and how they are labelled.

Every label is fixed: Dataflow matches the steps of a running job to those of its update by their labels.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PCollection

from pipeline.core.schema.table_schema import Tier
from pipeline.job.settings import Settings, Target
from pipeline.job.windows import Aggregates, aggregate
from pipeline.transforms.bulk import BulkWriteRows
from pipeline.transforms.late import ListWindows
from pipeline.transforms.rows import FormatAggregateRows
from pipeline.transforms.write import WriteRows


class TableSteps(NamedTuple):
    """Adds the steps of one table to the graph.

    Attributes:
        target: the table.
        settings: of the job.
        mark: ends the labels of the table's steps: empty for the first table, ``[table]`` for each further one.
    """

    target: Target
    settings: Settings
    mark: str

    @classmethod
    def of_each(cls, targets: Sequence[Target], settings: Settings) -> "list[TableSteps]":
        """Returns the steps of each table, in the order of the tables."""
        marks = ["", *(f"[{target.name.table}]" for target in targets[1:])]
        return [cls(target, settings, mark) for target, mark in zip(targets, marks, strict=True)]

    def aggregate(self, readings: PCollection | None, began_us: int | None) -> Aggregates:
        """Aggregates the readings of events in the windows of each tier; see :func:`pipeline.job.windows.aggregate`."""
        return aggregate(readings, self.target, self.settings, began_us, self.mark)

    def format_aggregate_rows(self, panes: Mapping[Tier, PCollection]) -> dict[Tier, PCollection]:
        """Formats the panes of each tier as ``Row`` elements."""
        return {
            tier: of_tier | self._label("FormatAggregateRows", tier) >> FormatAggregateRows(tier)
            for tier, of_tier in panes.items()
        }

    def list_windows(self, incomplete: Iterable[PCollection]) -> list[PCollection]:
        """Formats windows as ``EncodedRows`` of the work list."""
        return [
            windows | f"ListWindows{index or ''}{self.mark}" >> ListWindows(self.target.schema)
            for index, windows in enumerate(incomplete)
        ]

    def write_raw_rows(self, raw_rows: PCollection, listed: Iterable[PCollection]) -> list[PCollection]:
        """Writes raw rows and rows of the work list; returns the dead letters, as :meth:`_write` does."""
        rows = (raw_rows, *listed) | self._label("WithListed") >> beam.Flatten()
        return self._write(rows, self._label("WriteRawRows"))

    def write_aggregate_rows(self, aggregate_rows: Mapping[Tier, PCollection]) -> list[PCollection]:
        """Writes the aggregate rows of each tier; returns the dead letters, as :meth:`_write` does."""
        return [
            dead_letters
            for tier, rows in aggregate_rows.items()
            for dead_letters in self._write(rows, self._label("WriteAggregateRows", tier))
        ]

    def _write(self, rows: PCollection, label: str) -> list[PCollection]:
        """Writes with the configured writer; returns the dead letters of refused rows if that writer has any."""
        name, schema, _ = self.target
        if self.settings.bigtable_writer == "bulk":
            bulk = BulkWriteRows(name.project, name.instance, name.table, self.settings.app_profile, schema=schema)
            return [rows | label >> bulk]
        _ = rows | label >> WriteRows(name.project, name.instance, name.table)
        return []

    def _label(self, step: str, tier: Tier | None = None) -> str:
        """Returns the step with the table's mark; a longer window is named in it, like ``[table, window 1d]``."""
        if tier is None or tier is self.target.schema.tiers[0]:
            return f"{step}{self.mark}"
        window = f"window {tier.window.text}"
        return f"{step}[{window}]" if not self.mark else f"{step}{self.mark.removesuffix(']')}, {window}]"
