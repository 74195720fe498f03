"""Wakes windows that the table tells of: those that backfills list, and those that the process before noted.

A job looks through the list in a step with state, and a timer of the clock that sets itself. On one machine, a step
notes which windows the process is yet to finish. See :mod:`pipeline.core.panes.woken_windows`.
"""

import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from threading import Lock
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.pvalue import PCollection
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import (
    ReadModifyWriteRuntimeState,
    ReadModifyWriteStateSpec,
    RuntimeTimer,
    TimerSpec,
    on_timer,
)
from apache_beam.transforms.window import GlobalWindow
from apache_beam.typehints import KV
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.writing.bulk_writer import BulkWriter
from pipeline.core.panes.firing import END_US
from pipeline.core.panes.woken_windows import Look, NotedWindows, listed_windows, wakes_of
from pipeline.core.queries.reads import RowSelection
from pipeline.core.rows.rows import EncodedRows
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.rate import groups_for
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.private_apis.worker_state import clock_is_set_forward, set_clock_timer
from pipeline.transforms import metrics
from pipeline.transforms.tables import RETRY_S, Clock, StatefulFn, TableReadingFn

_EVERY_US = 30_000_000
_SHARE = 20  # a look takes at most this part of the time
_MOST_ROWS = 50_000  # in a bundle

_LOOK_SPEC = ReadModifyWriteStateSpec("look", BytesCoder())
_NEXT_SPEC = TimerSpec("next_look", TimeDomain.REAL_TIME)
_DRAINED_SPEC = TimerSpec("looks_drained", TimeDomain.WATERMARK)
_LOOK = beam.DoFn.StateParam(_LOOK_SPEC)
_NEXT, _DRAINED = map(beam.DoFn.TimerParam, (_NEXT_SPEC, _DRAINED_SPEC))


class WakeListed(beam.PTransform):
    """Returns ``(group, readings)`` without any reading, for the windows that backfills list.

    Takes ``(group, readings)``, of which only the watermark counts: it tells of a drain.
    """

    def __init__(
        self, table: tuple[TableName, TableSchema, Retention], began_us: int, clock: Clock = time.time
    ) -> None:
        super().__init__()
        self._look_fn = _LookFn(*table, began_us, clock)

    def expand(self, readings: PCollection) -> PCollection:
        of_type = KV[int, bytes]
        begin = readings.pipeline | beam.Impulse() | "Begin" >> beam.Map(_begin).with_output_types(of_type)
        watermark = readings | "Watermark" >> beam.FlatMap(_nothing).with_output_types(of_type)
        both = (begin, watermark) | "WithWatermark" >> beam.Flatten()
        return both | "Look" >> beam.ParDo(self._look_fn).with_output_types(of_type)


def _begin(_: bytes) -> tuple[int, bytes]:
    return 0, b""


def _nothing(_: tuple[int, bytes]) -> Iterable[tuple[int, bytes]]:
    return ()


class _LookFn(StatefulFn, TableReadingFn):
    def __init__(self, name: TableName, schema: TableSchema, retention: Retention, began_us: int, clock: Clock) -> None:
        super().__init__(name, RETRY_S)
        self._schema, self._retention, self._began_us, self._clock = schema, retention, began_us, clock
        self._groups = groups_for(schema.rate)  # at the launch, as those of readings
        self._woken = metrics.counter(metrics.WINDOWS_WOKEN)

    def process(
        self,
        _: tuple[int, bytes],
        look: ReadModifyWriteRuntimeState = _LOOK,
        next_look: RuntimeTimer = _NEXT,
        drained: RuntimeTimer = _DRAINED,
    ) -> None:
        look.write(Look.before_first(self._began_us).to_bytes())
        set_clock_timer(next_look, Timestamp(micros=self._now_us()))
        drained.set(Timestamp(micros=END_US))

    @on_timer(_NEXT_SPEC)
    def look(
        self,
        at: Any = beam.DoFn.TimestampParam,
        look: ReadModifyWriteRuntimeState = _LOOK,
        next_look: RuntimeTimer = _NEXT,
    ) -> Iterator[tuple[int, bytes]]:
        """Looks through the list, or the next part of it."""
        if not (data := look.read()):
            return  # a drain has ended the looks
        now_us = self._now_us()
        found = Look.from_bytes(data).next(now_us)
        after = yield from self._wake(found)
        look.write(found._replace(after=after).to_bytes())
        took_us = self._now_us() - now_us
        next_us = now_us if after else now_us + max(_EVERY_US, _SHARE * took_us)
        if not clock_is_set_forward(next_look, at, now_us, _EVERY_US):
            set_clock_timer(next_look, Timestamp(micros=next_us))

    @on_timer(_DRAINED_SPEC)
    def drained(
        self, look: ReadModifyWriteRuntimeState = _LOOK, next_look: RuntimeTimer = _NEXT
    ) -> Iterator[tuple[int, bytes]]:
        """Looks through the list for the last time."""
        if data := look.read():
            yield from self._wake(Look.from_bytes(data).next(self._now_us()))
        look.clear()
        next_look.clear()  # a drain would wait for it

    def _wake(self, look: Look) -> Generator[tuple[int, bytes], None, str]:
        """Yields the wakes of a part of the list. Returns the key after which something may be left; "" if not."""
        tier, certain_us = self._schema.tiers[0], self._retention.readings_from_us(self._now_us())
        rows = list(islice(self._read(look.selection(tier)), _MOST_ROWS))
        windows = listed_windows(rows, tier, certain_us)
        self._woken.inc(sum(map(len, windows.values())))
        yield from wakes_of(windows, self._groups)
        return rows[-1].key.decode() if len(rows) == _MOST_ROWS else ""

    def _now_us(self) -> int:
        return int(self._clock() * 1_000_000)


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


@dataclass(eq=False)
class NoteWindows(beam.PTransform):
    """Notes the windows of ``(group, readings)``, and returns :class:`Notes`."""

    table: NotingTable
    clock: Clock = time.time

    def expand(self, readings: PCollection) -> Any:  # Notes, which Beam would take for a type hint
        begin = readings.pipeline | "Begin" >> beam.Create([None], reshuffle=False)
        wakes = begin | "Wake" >> beam.ParDo(_WakeFn(self.table, self.clock)).with_output_types(KV[int, bytes])
        rows = readings | "Note" >> beam.ParDo(_NoteFn(self.table, self.clock)).with_output_types(EncodedRows)
        return Notes(rows, wakes)


class NotesHere:
    """The notes of this process, by table. The end of the process removes them, when its steps have ended."""

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

        Raises ServerError if a table is out of reach.
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
