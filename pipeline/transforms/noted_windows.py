"""Notes which windows a process on one machine is yet to finish, and wakes those that the process before noted.

See :mod:`pipeline.core.panes.noted_windows`.
"""

import time
from collections.abc import Iterable, Iterator
from threading import Lock
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindow
from apache_beam.typehints import KV
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.writing.bulk_writer import BulkWriter
from pipeline.core.panes.noted_windows import NotedWindows, wakes_of
from pipeline.core.queries.reads import RowSelection
from pipeline.core.rows.rows import EncodedRows
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.rate import groups_for
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.transforms.decode import Clock
from pipeline.transforms.tables import RETRY_S, TableReadingFn

_PATIENCE_S = 5.0  # when a process stops


class NotingTable(NamedTuple):
    """A table, and what decides how long the notes in it stay.

    Attributes:
        name: the table.
        schema: the table's schema, with tiers.
        retention: the retention of the table's cells.
        tiers: the tiers whose windows are noted: the shortest, and those of which the job has to tell when they end.
        subscription: the subscription that the job reads.
        lateness_us: the allowed lateness.
        late_us: the time from late readings to their pane.
    """

    name: TableName
    schema: TableSchema
    retention: Retention
    tiers: tuple[Tier, ...]
    subscription: str
    lateness_us: int
    late_us: int


class Notes(NamedTuple):
    """The outputs of :class:`NoteWindows`.

    Attributes:
        rows: ``EncodedRows`` of notes, to be written before the messages are acknowledged.
        wakes: ``(group, readings)`` without any reading, for the windows that the process before noted.
    """

    rows: PCollection
    wakes: PCollection


class NoteWindows(beam.PTransform):
    """Notes the windows of ``(group, readings)``, and returns :class:`Notes`.

    Args:
        table: the table.
        clock: a function that returns the current time.
    """

    def __init__(self, table: NotingTable, clock: Clock = time.time) -> None:
        super().__init__()
        self._table, self._clock = table, clock

    def expand(self, readings: PCollection) -> Any:  # Notes, which Beam would take for a type hint
        begin = readings.pipeline | "Begin" >> beam.Create([None], reshuffle=False)
        wakes = begin | "Wake" >> beam.ParDo(_WakeFn(self._table, self._clock)).with_output_types(KV[int, bytes])
        rows = readings | "Note" >> beam.ParDo(_NoteFn(self._table, self._clock)).with_output_types(EncodedRows)
        return Notes(rows, wakes)


class NotesHere:
    """The notes of this process, by table. The DirectRunner copies a step for each bundle, so steps can't keep them."""

    def __init__(self) -> None:
        self._of_tables: dict[TableName, NotedWindows] = {}
        self._lock = Lock()

    def of(self, table: NotingTable) -> NotedWindows:
        """Returns the notes in a table."""
        with self._lock:
            if table.name not in self._of_tables:
                rules = table.subscription, table.lateness_us, table.late_us
                self._of_tables[table.name] = NotedWindows(table.tiers, *rules)
            return self._of_tables[table.name]

    def clear(self) -> None:
        """Forgets all notes: a job begins."""
        self._of_tables.clear()

    def finish(self) -> None:
        """Removes all notes but those of open windows, when every pane that waited has been written.

        Raises ServerProblem if a table is out of reach.
        """
        for name, notes in self._of_tables.items():
            with BulkWriter.open(name, deadline_s=_PATIENCE_S, attempt_s=_PATIENCE_S) as writer:
                writer.add_encoded(notes.finish(time.time_ns() // 1000))
                writer.finish()


NOTES_HERE = NotesHere()


class _NoteFn(beam.DoFn):
    def __init__(self, table: NotingTable, clock: Clock) -> None:
        self._table, self._clock = table, clock

    def process(self, element: tuple[int, bytes]) -> Iterable[EncodedRows]:
        NOTES_HERE.of(self._table).add(element[1], int(self._clock() * 1_000_000))
        return ()  # Beam warns of None at each start of a job

    def finish_bundle(self) -> Iterator[WindowedValue]:
        now_s = self._clock()
        if rows := NOTES_HERE.of(self._table).take(int(now_s * 1_000_000)):
            yield WindowedValue(rows, Timestamp(now_s), (GlobalWindow(),))


class _WakeFn(TableReadingFn):
    def __init__(self, table: NotingTable, clock: Clock) -> None:
        super().__init__(table.name, RETRY_S)
        self._table, self._clock = table, clock

    def process(self, _: None) -> Iterator[tuple[int, bytes]]:
        table, notes, now_us = self._table, NOTES_HERE.of(self._table), int(self._clock() * 1_000_000)
        certain_us = table.retention.readings_from_us(now_us)
        if not table.schema.finds_sensors:
            certain_us = now_us
        cells = CellSelection(tuple(tier.family for tier in table.schema.tiers), versions=1)  # a shorter one may be new
        for row in self._read(RowSelection(notes.range, cells)):
            yield from wakes_of(notes.read(row, now_us, certain_us), groups_for(table.schema.rate))
