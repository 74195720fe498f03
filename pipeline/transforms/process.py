"""Turns Pub/Sub messages into raw rows, readings of windows and dead letters: all work on single events, in one step.

Every element costs time in every step, so events are not elements. An output element is many rows together, or all the
readings of a window in a bundle.
"""

import gc
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms.window import GlobalWindow, TimestampedValue
from apache_beam.typehints import KV
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from pipeline.core.decoding.message_types import MessageTypes
from pipeline.core.events.event import Event
from pipeline.core.events.message import Message
from pipeline.core.panes.grouped_readings import GroupedReadings, GroupReadings
from pipeline.core.rows.newest_row import NewestOfBundle
from pipeline.core.rows.rows import EncodedRows
from pipeline.core.schema.rate import groups_for
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema
from pipeline.transforms import (
    coders,  # noqa: F401 (registers the coder of rows)
    metrics,
)
from pipeline.transforms.decode import Clock, Decoder
from pipeline.transforms.expired import Expired

_DEAD_LETTERS = "dead_letters"
_MOST_ROWS = 500  # of a table in an output element
_MOST_BYTES = 4 << 20  # of their cells
_MOST_EVENTS = 100  # formatted before rows are output; one in a layout with a row for each metric
_MOST_MESSAGES = 100  # that wait, to be decoded together
_MOST_WAITING_BYTES = 8 << 10  # of their payloads: about as many events
_MOST_GATHERED = 20_000  # events of a long bundle before their readings are output
_MOST_NEWEST = 5_000  # events of a long bundle with newest readings before these are output
_MICROSECOND = timedelta(microseconds=1)
_MOST_ALLOCATIONS = 10_000  # of objects that are still there, before Python looks for unused cycles among them
_GLOBAL = (GlobalWindow(),)


class Processed(NamedTuple):
    """The outputs of processing.

    Attributes:
        rows: each table's ``EncodedRows`` of events.
        readings: each table's ``(group, readings)`` of one of the shortest windows, with a timestamp within it, in the
            encoding of :mod:`pipeline.core.panes.grouped_readings`; None for a table without aggregates.
        dead_letters: ``Message`` elements.
    """

    rows: list[PCollection]
    readings: list[PCollection | None]
    dead_letters: PCollection


class ProcessMessages(beam.PTransform):
    """Processes ``PubsubMessage`` elements to :class:`Processed`.

    Args:
        schemas: the schemas of the tables.
        max_future: the longest time that an event may be ahead of the clock.
        clock: returns the current time.
        types: the message types.
        newest_every: the event time between two writes of a sensor's newest readings; zero for one in each bundle.
    """

    def __init__(
        self,
        schemas: Sequence[TableSchema],
        *,
        max_future: timedelta,
        clock: Clock = time.time,
        types: MessageTypes | None = None,
        newest_every: timedelta = timedelta(0),
    ) -> None:
        super().__init__()
        self._types = types
        self._schemas = tuple(schemas)
        self._max_future = max_future
        self._clock = clock
        self._newest_every_us = newest_every // _MICROSECOND

    def expand(self, messages: PCollection) -> Any:  # Processed, which Beam would take for a type hint
        schemas = self._schemas
        decoder = Decoder(self.label, self._max_future, schemas, self._types)
        # Tables with the same shortest window, identity of events, number of groups and fields of roll-ups share the
        # readings of a bundle.
        kinds = [
            (schema.tiers[0].window, schema.identity, groups_for(schema.rate), schema.member_fields)
            if schema.tiers
            else None
            for schema in schemas
        ]
        distinct = list(dict.fromkeys(kind for kind in kinds if kind))
        gathered = [GroupedReadings(*kind) for kind in distinct]
        process_fn = _ProcessFn(decoder, schemas, gathered, self._clock, self._newest_every_us)
        tags = [*map(_rows_tag, range(len(schemas))), *map(_readings_tag, range(len(distinct)))]
        outputs = messages | "Process" >> beam.ParDo(process_fn).with_outputs(_DEAD_LETTERS, *tags)
        readings = {kind: _typed(outputs[_readings_tag(index)], KV[int, bytes]) for index, kind in enumerate(distinct)}
        return Processed(
            [_typed(outputs[_rows_tag(index)], EncodedRows) for index in range(len(schemas))],
            [kind and readings[kind] for kind in kinds],
            outputs[_DEAD_LETTERS],
        )


class _ProcessFn(beam.DoFn):
    def __init__(
        self,
        decoder: Decoder,
        schemas: Sequence[TableSchema],
        gathered: Sequence[GroupedReadings],
        clock: Clock,
        newest_every_us: int,
    ) -> None:
        self._decoder = decoder
        self._tables = [_Table(_rows_tag(index), schema, newest_every_us) for index, schema in enumerate(schemas)]
        self._gathered = list(gathered)
        self._metadata_alone = any(schema.metadata_alone for schema in schemas)
        self._clock = clock
        self._counts = metrics.BundleCounts(metrics.RAW_ROWS)

    def setup(self) -> None:
        # Events are many objects and no cycles. Looking for cycles as often as after Python's 700 objects takes a
        # twentieth of a worker's CPU time.
        if 0 < gc.get_threshold()[0] < _MOST_ALLOCATIONS:
            gc.set_threshold(_MOST_ALLOCATIONS)

    def start_bundle(self) -> None:
        self._decoder.start()
        self._counts.start()
        for table in self._tables:
            table.start()
        for gathered in self._gathered:
            gathered.start()
        self._gathered_events = 0
        self._waiting: list[PubsubMessage] = []
        self._waiting_bytes = 0

    def process(self, element: PubsubMessage) -> Iterable[Any]:
        # Not a generator itself: most messages only wait.
        self._waiting.append(element)
        self._waiting_bytes += len(element.data or b"")
        if len(self._waiting) < _MOST_MESSAGES and self._waiting_bytes < _MOST_WAITING_BYTES:
            return ()
        return self._outputs()

    def _outputs(self) -> Iterator[Any]:
        for tag, output in self._decoded(int(self._clock() * 1_000_000)):
            yield TaggedOutput(tag, output)
        if self._gathered_events >= _MOST_GATHERED:
            for tag, part in self._taken():
                yield TaggedOutput(tag, TimestampedValue((part.group, part.data), Timestamp(micros=part.time_us)))

    def finish_bundle(self) -> Iterator[TaggedOutput]:
        now = Timestamp(self._clock())
        for tag, output in self._decoded(now.micros):
            yield TaggedOutput(tag, WindowedValue(output, now, _GLOBAL))
        self._decoder.finish()
        self._counts.finish()
        for table in self._tables:
            if rows := table.finish(now.micros):
                yield TaggedOutput(table.tag, WindowedValue(rows, now, _GLOBAL))
        for tag, part in self._taken():
            at = Timestamp(micros=part.time_us)
            yield TaggedOutput(tag, WindowedValue((part.group, part.data), at, _GLOBAL))

    def _decoded(self, now_us: int) -> Iterator[tuple[str, Message | EncodedRows]]:
        """Decodes the messages that wait, gathers and formats their events. Yields dead letters, and rows if enough."""
        messages, self._waiting, self._waiting_bytes = self._waiting, [], 0
        events, dead_letters = self._decoder.decode(messages, now_us)
        for letter in dead_letters:
            yield _DEAD_LETTERS, letter
        with_readings = [event for event in events if event.readings] if self._metadata_alone else events
        for gathered in self._gathered:
            gathered.add(with_readings)
        self._gathered_events += len(events)
        for table in self._tables:
            # Events' rows may be many times their size: some are output before the next are formatted.
            for start in range(0, len(events), table.events_at_once):
                self._counts.of[metrics.RAW_ROWS] += table.add(events[start : start + table.events_at_once], now_us)
                if len(table.rows) >= _MOST_ROWS or table.size_bytes >= _MOST_BYTES:
                    yield table.tag, table.take()
            if table.newest and len(table.newest) >= _MOST_NEWEST:
                yield table.tag, table.finish(now_us)

    def _taken(self) -> Iterator[tuple[str, GroupReadings]]:
        self._gathered_events = 0
        for index, gathered in enumerate(self._gathered):
            for part in gathered.take_groups():
                yield _readings_tag(index), part


class _Table:
    """The rows of a table that are not output yet.

    Attributes:
        tag: the tag of their output.
        rows: the rows of events.
        size_bytes: the size of their cells.
        newest: the newest events; None for a table without rows of newest readings.
        events_at_once: the number of events whose rows are formatted before some may be output.
    """

    def __init__(self, tag: str, schema: TableSchema, newest_every_us: int) -> None:
        self.tag = tag
        self._schema = schema
        self._expired = Expired(schema)
        self.newest: NewestOfBundle | None = None
        if schema.latest is not None:
            self._latest, self._retention = schema.latest, Retention.of(schema)
            self.newest = NewestOfBundle(schema.latest, newest_every_us, metadata=schema.metadata_alone)
        self.events_at_once = 1 if schema.layout.row_per_metric else _MOST_EVENTS
        self.start()

    def start(self) -> None:
        """Begins a bundle. Drops the rows of one that failed: its messages come again."""
        self.rows, self.size_bytes = EncodedRows(), 0
        if self.newest is not None:
            self.newest.start()

    def add(self, events: Sequence[Event], now_us: int) -> int:
        """Adds the rows of events. Returns the number of rows added."""
        added = self._schema.encoded_rows(events)
        self.rows += added
        self.size_bytes += sum([len(row[1]) for row in added])
        self._expired.count(events, now_us)
        if self.newest is not None:
            self.newest.add(events)
        return len(added)

    def take(self) -> EncodedRows:
        """Returns and removes the rows of events."""
        taken, self.rows, self.size_bytes = self.rows, EncodedRows(), 0
        return taken

    def finish(self, now_us: int) -> EncodedRows:
        """Returns and removes the rows of events, and those of their newest readings."""
        taken = self.take()
        if self.newest is not None:
            taken.extend(self.newest.take(self._retention.cells_stay_from_us(self._latest, now_us)))
        return taken


def _rows_tag(index: int) -> str:
    return f"rows_{index}"


def _readings_tag(index: int) -> str:
    return f"gathered_{index}"


def _typed(elements: PCollection, element_type: Any) -> PCollection:
    elements.element_type = element_type
    return elements
