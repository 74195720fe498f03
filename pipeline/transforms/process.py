"""Turns Pub/Sub messages into raw rows with their readings and dead letters: all work on single events, in one step.

Every element costs time in every step, so events are not elements. An output element is all rows of a bundle and the
readings that count once these rows are written. Of a long bundle, it is a part.
"""

import gc
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from pipeline.core.decoding.message_types import MessageTypes
from pipeline.core.events.event import Event
from pipeline.core.panes.grouped_readings import GroupedReadings, RawRows, kind_of
from pipeline.core.rows.newest_row import NewestOfBundle
from pipeline.core.rows.rows import EncodedRows
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema
from pipeline.transforms import (
    coders,  # noqa: F401 (registers the coder of rows)
    metrics,
)
from pipeline.transforms.decode import Clock, Decoder
from pipeline.transforms.expired import Expired

_DEAD_LETTERS = "dead_letters"
_MOST_EVENTS = 20_000  # of a long bundle in an output element
_MOST_BYTES = 4 << 20  # of a table's cells in an output element
_EVENTS_AT_ONCE = 100  # formatted before rows are output; one in a layout with a row for each metric
_MOST_MESSAGES = 100  # that wait, to be decoded together
_MOST_WAITING_BYTES = 8 << 10  # of their payloads: about as many events
_MOST_NEWEST = 5_000  # events of a long bundle with newest readings before their rows are formatted
_MICROSECOND = timedelta(microseconds=1)
_MOST_ALLOCATIONS = 10_000  # of objects that are still there, before Python looks for unused cycles among them
_GLOBAL = (GlobalWindow(),)


class Processed(NamedTuple):
    """The outputs of processing.

    Attributes:
        raw: each table's ``RawRows``, with a timestamp that is no later than that of any of their readings.
        dead_letters: ``Message`` elements.
    """

    raw: list[PCollection]
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
        decoder = Decoder(self.label, self._max_future, self._schemas, self._types)
        process_fn = _ProcessFn(decoder, self._schemas, self._clock, self._newest_every_us)
        tags = [_tag(index) for index in range(len(self._schemas))]
        outputs = messages | "Process" >> beam.ParDo(process_fn).with_outputs(_DEAD_LETTERS, *tags)
        for tag in tags:
            outputs[tag].element_type = RawRows
        return Processed([outputs[tag] for tag in tags], outputs[_DEAD_LETTERS])


class _ProcessFn(beam.DoFn):
    def __init__(
        self,
        decoder: Decoder,
        schemas: Sequence[TableSchema],
        clock: Clock,
        newest_every_us: int,
    ) -> None:
        self._decoder = decoder
        self._tables = [_Table(_tag(index), schema, newest_every_us) for index, schema in enumerate(schemas)]
        # Tables with the same shortest window, identity of events, number of groups and fields of roll-ups share the
        # readings of a bundle.
        self._gathered = {table.kind: GroupedReadings(*table.kind) for table in self._tables if table.kind}
        self._events_at_once = min(table.events_at_once for table in self._tables)
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
        for gathered in self._gathered.values():
            gathered.start()
        self._events = 0
        self._waiting: list[PubsubMessage] = []
        self._waiting_bytes = 0

    def process(self, element: PubsubMessage) -> Iterable[Any]:
        # Not a generator itself: most messages only wait.
        self._waiting.append(element)
        self._waiting_bytes += len(element.data or b"")
        if len(self._waiting) < _MOST_MESSAGES and self._waiting_bytes < _MOST_WAITING_BYTES:
            return ()
        return self._decoded(Timestamp(self._clock()))

    def finish_bundle(self) -> Iterator[TaggedOutput]:
        now = Timestamp(self._clock())
        yield from self._decoded(now)
        self._decoder.finish()
        self._counts.finish()
        for table in self._tables:
            table.take_newest(now.micros)
        yield from self._taken(now)

    def _decoded(self, now: Timestamp) -> Iterator[TaggedOutput]:
        """Decodes the messages that wait, gathers and formats their events. Yields dead letters, and rows if enough."""
        messages, self._waiting, self._waiting_bytes = self._waiting, [], 0
        events, dead_letters = self._decoder.decode(messages, now.micros)
        for letter in dead_letters:
            yield _output(_DEAD_LETTERS, letter, now)
        # Events' rows may be many times their size: some are output before the next are formatted.
        for start in range(0, len(events), self._events_at_once):
            some = events[start : start + self._events_at_once]
            with_readings = [event for event in some if event.readings] if self._metadata_alone else some
            for gathered in self._gathered.values():
                gathered.add(with_readings)
            for table in self._tables:
                self._counts.of[metrics.RAW_ROWS] += table.add(some, now.micros)
            self._events += len(some)
            if self._events >= _MOST_EVENTS or any(table.is_full for table in self._tables):
                yield from self._taken(now)

    def _taken(self, now: Timestamp) -> Iterator[TaggedOutput]:
        """Yields the rows and readings of all events."""
        self._events = 0
        readings = {kind: list(gathered.take_groups()) for kind, gathered in self._gathered.items()}
        for table in self._tables:
            of_table = readings[table.kind] if table.kind else []
            if rows := table.take():
                # The readings leave the next step at their own times, which its watermark must not have passed.
                at_us = min([part.time_us for part in of_table], default=now.micros)
                yield _output(table.tag, RawRows(rows, of_table), Timestamp(micros=at_us))


class _Table:
    """The rows of a table that are not output yet.

    Attributes:
        tag: the tag of their output.
        kind: the arguments by which its readings are gathered; None for a table without aggregates.
        events_at_once: the number of events whose rows are formatted before some may be output.
    """

    def __init__(self, tag: str, schema: TableSchema, newest_every_us: int) -> None:
        self.tag = tag
        self.kind = kind_of(schema)
        self._schema = schema
        self._expired = Expired(schema)
        self._newest: NewestOfBundle | None = None
        if schema.latest is not None:
            self._latest, self._retention = schema.latest, Retention.of(schema)
            self._newest = NewestOfBundle(schema.latest, newest_every_us, metadata=schema.metadata_alone)
        self.events_at_once = 1 if schema.layout.row_per_metric else _EVENTS_AT_ONCE
        self.start()

    def start(self) -> None:
        """Begins a bundle. Drops the rows of one that failed: its messages come again."""
        self._rows, self._size_bytes = EncodedRows(), 0
        if self._newest is not None:
            self._newest.start()

    @property
    def is_full(self) -> bool:
        """Whether the rows should be output before others are formatted."""
        return self._size_bytes >= _MOST_BYTES

    def add(self, events: Sequence[Event], now_us: int) -> int:
        """Adds the rows of events. Returns the number of rows of these events."""
        added = self._schema.encoded_rows(events)
        self._rows += added
        self._size_bytes += sum([len(row[1]) for row in added])
        self._expired.count(events, now_us)
        if self._newest is not None:
            self._newest.add(events)
            if len(self._newest) >= _MOST_NEWEST:
                self.take_newest(now_us)
        return len(added)

    def take_newest(self, now_us: int) -> None:
        """Adds the rows of the newest readings of the bundle so far."""
        if self._newest is not None:
            self._rows.extend(self._newest.take(self._retention.cells_stay_from_us(self._latest, now_us)))

    def take(self) -> EncodedRows:
        """Returns and removes the rows."""
        taken, self._rows, self._size_bytes = self._rows, EncodedRows(), 0
        return taken


def _tag(index: int) -> str:
    return f"table_{index}"


def _output(tag: str, value: Any, at: Timestamp) -> TaggedOutput:
    return TaggedOutput(tag, WindowedValue(value, at, _GLOBAL))
