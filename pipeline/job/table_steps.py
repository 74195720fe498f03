"""The steps of each table: their Beam transforms and their labels.

Every label is fixed: Dataflow matches the steps of a running job to those of its update by their labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import PCollection

from pipeline.cloud.tables.table_guard import TableGuard
from pipeline.core.panes.firing import Aggregation
from pipeline.core.results.window_results import ResultRules
from pipeline.core.schema.rate import groups_for
from pipeline.job.settings import Settings, Target, runs_here
from pipeline.private_apis.bigtable_writer import ConnectorWriteFn
from pipeline.transforms.aggregate import AggregateWindows, always
from pipeline.transforms.alert_table import WatchedTable, may_watch_windows
from pipeline.transforms.alerts import WatchAlerts, Watched
from pipeline.transforms.rollups import RolledUp, RollUp, WriteThenDueFn, WrittenRows, write_then_due
from pipeline.transforms.tables import Clock
from pipeline.transforms.woken_windows import NoteWindows, NotingTable, WakeListed
from pipeline.transforms.write import CELLS_PER_REQUEST, BulkWriteFn, BulkWriteRows, WriteRawRows, WriteRows, Written

_MICROSECOND = timedelta(microseconds=1)
# In each process of a worker: a thousand of them read one row 500 times a second, and a check takes 0.5 ms of CPU.
_GUARD_EVERY_S = 2.0


@dataclass(frozen=True)
class TableSteps:
    """Adds the steps of one table to the graph.

    Attributes:
        target: the table.
        settings: the job's settings.
        mark: the end of the labels of the table's steps: empty for the first table, ``[table]`` for each further one.
    """

    target: Target
    settings: Settings
    mark: str

    @classmethod
    def of_each(cls, targets: Sequence[Target], settings: Settings) -> "list[TableSteps]":
        """Returns the steps of each table, in the order of the tables."""
        marks = ["", *(f"[{target.name.table}]" for target in targets[1:])]
        return [cls(target, settings, mark) for target, mark in zip(targets, marks, strict=True)]

    def aggregate(
        self,
        readings: PCollection,
        writer: beam.DoFn,
        began_us: int | None,
        clock: Clock,
        *,
        listed: PCollection | None = None,
        noted: bool = False,
    ) -> Any:  # Aggregated
        """Aggregates ``(group, readings)`` in the windows of all tiers, and writes their rows; ``listed`` wakes some.

        There are results if the job publishes those of this table or watches it.
        """
        schema, settings = self.target.schema, self.settings
        # Of several tables, the first: all get the same events, and each window is published once.
        published = None if self.mark else settings.results
        rules, wants_results = published and ResultRules(began_us or 0, published.early), always
        if rules is None and not self.mark and settings.alerts_topic:
            rules = ResultRules(began_us or 0, early=False)
            wants_results = partial(may_watch_windows, self.target.name, began_us or 0)
        here = runs_here(readings.pipeline.options)
        aggregation = settings.aggregation_of(schema, self._before_us(began_us), rules, here=here)
        table = self.target.name, schema, self.target.effective_retention
        aggregate = AggregateWindows(table, aggregation, writer, clock, wants_results)
        parts = [readings, *([] if listed is None else [listed])]
        if noted:
            notes = readings | self._label("NoteWindows") >> NoteWindows(self._noting(aggregation), clock)
            parts.append(notes.wakes)
        if len(parts) > 1:
            readings = parts | self._label("WithWoken") >> beam.Flatten()
        found = readings | self._label("AggregateWindows") >> aggregate
        if noted:
            found = found._replace(listed=(found.listed, notes.rows) | self._label("WithNotes") >> beam.Flatten())
        return found

    def wake_listed(self, readings: PCollection, began_us: int | None, clock: Clock) -> PCollection | None:
        """Wakes the windows that backfills list; returns None for a table that the job alone writes, or can't read."""
        name, schema = self.target[:2]
        if began_us is None or not schema.finds_sensors:
            return None
        wake = WakeListed((name, schema, self.target.effective_retention), began_us, clock)
        woken: PCollection = readings | self._label("WakeListed") >> wake
        return woken

    def roll_up(self, contributions: PCollection | None, clock: Clock) -> RolledUp | None:
        """Rolls up contributions; returns None for a table without roll-ups."""
        if contributions is None:
            return None
        roll_up = RollUp(self.target.name, self.target.schema, self._write_rollups, clock)
        rolled_up: RolledUp = contributions | self._label("RollUp") >> roll_up
        return rolled_up

    def watch(
        self, readings: PCollection, results: PCollection | None, began_us: int | None, clock: Clock
    ) -> Watched | None:
        """Watches ``(group, readings)`` and results of windows for alerts; returns None for a table without alerts.

        Of several tables, the first is watched: all get the same events.
        """
        (name, schema), settings = self.target[:2], self.settings
        if self.mark or settings.alerts_topic is None:
            return None
        table = WatchedTable(
            name,
            schema,
            settings.newest_every // _MICROSECOND,
            settings.max_future // _MICROSECOND,
            began_us or 0,
        )
        watched: Watched = readings | "WatchAlerts" >> WatchAlerts(table, groups_for(schema.rate), clock, results)
        return watched

    def write_raw_rows(self, raw: PCollection) -> Written:
        """Writes ``RawRows`` with the configured writer; returns their readings once they are written."""
        name, schema, guard = self.target.name, self.target.schema, self._guard(raw.pipeline.options)
        write = WriteRawRows(name, schema, guard, bulk=self._writes_in_bulk)
        written: Written = raw | self._label("WriteRawRows") >> write
        return written

    def aggregate_writer(self, options: PipelineOptions) -> beam.DoFn:
        """Returns the configured writer of aggregate rows."""
        (name, schema), guard = self.target[:2], self._guard(options)
        if self._writes_in_bulk:
            return BulkWriteFn(name, self._label("AggregateWindows"), schema=schema, guard=guard)
        return ConnectorWriteFn(name, CELLS_PER_REQUEST, guard)

    def write_other_rows(self, others: Sequence[PCollection]) -> list[PCollection]:
        """Writes rows of several kinds with the configured writer.

        Returns the dead letters of refused rows if that writer has any.
        """
        rows = others | self._label("OtherRows") >> beam.Flatten()
        guard, label = self._guard(rows.pipeline.options), self._label("WriteOtherRows")
        if self._writes_in_bulk:
            return [rows | label >> BulkWriteRows(self.target.name, schema=self.target.schema, guard=guard)]
        _ = rows | label >> WriteRows(self.target.name, guard)
        return []

    def _write_rollups(self, rows: PCollection, label: str) -> WrittenRows:
        """Writes rows of roll-ups with the configured writer; returns what is due once they are written."""
        (name, schema), guard = self.target[:2], self._guard(rows.pipeline.options)
        if self._writes_in_bulk:
            write_fn = WriteThenDueFn(BulkWriteFn(name, label, schema=schema, guard=guard))
        else:
            write_fn = WriteThenDueFn(ConnectorWriteFn(name, CELLS_PER_REQUEST, guard))
        return write_then_due(rows, label, write_fn, refuses=self._writes_in_bulk)

    @property
    def _writes_in_bulk(self) -> bool:
        return self.settings.bigtable_writer == "bulk"

    def _guard(self, options: PipelineOptions) -> TableGuard:
        """Returns the guard of the table. On one machine, it checks each bundle; a worker of many has too many."""
        return self.target.guard(0.0 if runs_here(options) else _GUARD_EVERY_S)

    def _noting(self, aggregation: Aggregation) -> NotingTable:
        """Returns the table to note open windows in."""
        settings = self.settings
        return NotingTable(
            self.target.name,
            self.target.schema,
            self.target.effective_retention,
            aggregation.noted,
            settings.input_subscription or "",
            settings.allowed_lateness // _MICROSECOND,
            settings.late_firing // _MICROSECOND,
        )

    def _before_us(self, began_us: int | None) -> int | None:
        """Returns the time before which windows start that the table may store already; None if it stores none.

        A sensor whose clock is ahead may be in windows that begin after the job, by up to max_future inclusive.
        """
        return None if began_us is None else began_us + self.settings.max_future // _MICROSECOND + 1

    def _label(self, step: str) -> str:
        return f"{step}{self.mark}"
