"""Turns Pub/Sub messages into raw rows, readings of windows and dead letters: all work on single events, in one step.

Every element costs time in every step, so events are not elements. An output element is many rows together, or all the
readings of a window in a bundle.
"""

import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms.window import GlobalWindow, TimestampedValue
from apache_beam.typehints import KV
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from pipeline.core.accumulator import WindowReadings
from pipeline.core.events import Event
from pipeline.core.message_types import MessageTypes
from pipeline.core.pre_aggregation import BundlePreAggregator, PreAggregated
from pipeline.core.rows import EncodedRows
from pipeline.core.schema.table_schema import TableSchema
from pipeline.transforms import metrics
from pipeline.transforms.decode import Clock, Decoder
from pipeline.transforms.late import LateWindows

_DEAD_LETTERS = "dead_letters"
_MOST_ROWS = 500  # of a table in an output element
_MOST_BYTES = 4 << 20  # of their cells
_MOST_EVENTS = 100  # formatted before rows are output; one in a layout with a row for each metric
_MOST_WAITING_BYTES = 1 << 20  # of messages whose events wait until there are enough to format them together
_MOST_GATHERED = 20_000  # events of a long bundle before their readings are output
_GLOBAL = (GlobalWindow(),)


class Processed(NamedTuple):
    """The outputs of processing.

    Attributes:
        rows: for each table, ``EncodedRows`` of events, then of the work list.
        readings: for each table, ``(sensor_id, WindowReadings)`` with a timestamp within the shortest window; None for
            a table without aggregates.
        dead_letters: ``Message`` elements.
    """

    rows: list[PCollection]
    readings: list[PCollection | None]
    dead_letters: PCollection


class ProcessMessages(beam.PTransform):
    """Processes ``PubsubMessage`` elements to :class:`Processed`.

    Args:
        schemas: of the tables.
        max_future: how far ahead of the clock an event time may be.
        allowed_lateness: how far behind the watermark a window is kept.
        ahead: how far the watermark may be ahead of the clock.
        deduplicate: whether a repeated reading counts once.
        clock: returns the current time.
        types: the message types.
    """

    def __init__(
        self,
        schemas: Sequence[TableSchema],
        *,
        max_future: timedelta,
        allowed_lateness: timedelta,
        ahead: timedelta = timedelta(0),
        deduplicate: bool = True,
        clock: Clock = time.time,
        types: MessageTypes | None = None,
    ) -> None:
        super().__init__()
        self._types = types
        self._schemas = tuple(schemas)
        self._max_future = max_future
        self._allowed_lateness = allowed_lateness
        self._ahead = ahead
        self._deduplicate = deduplicate
        self._clock = clock

    def expand(self, messages: PCollection) -> Any:  # Processed, which Beam would take for a type hint
        schemas = self._schemas
        decoder = Decoder(self.label, self._max_future, schemas, self._types)
        late = [LateWindows(schema, self._allowed_lateness, self._ahead) for schema in schemas]
        # Tables with the same shortest window and identity of events share the readings of a bundle.
        kinds = [(schema.tiers[0].window, schema.identity) if schema.tiers else None for schema in schemas]
        distinct = list(dict.fromkeys(kind for kind in kinds if kind))
        pre_aggregators = [BundlePreAggregator(*kind, deduplicate=self._deduplicate) for kind in distinct]
        process_fn = _ProcessFn(decoder, schemas, late, pre_aggregators, self._clock)
        tags = [*map(_rows_tag, range(len(schemas))), *map(_readings_tag, range(len(distinct)))]
        outputs = messages | "Process" >> beam.ParDo(process_fn).with_outputs(_DEAD_LETTERS, *tags)
        readings = {
            kind: _typed(outputs[_readings_tag(index)], KV[str, WindowReadings]) for index, kind in enumerate(distinct)
        }
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
        late: Sequence[LateWindows],
        pre_aggregators: Sequence[BundlePreAggregator],
        clock: Clock,
    ) -> None:
        self._decoder = decoder
        self._tables = [
            _Table(_rows_tag(index), *of_table) for index, of_table in enumerate(zip(schemas, late, strict=True))
        ]
        self._pre_aggregators = list(pre_aggregators)
        self._clock = clock
        self._counts = metrics.BundleCounts(metrics.RAW_ROWS)

    def start_bundle(self) -> None:
        self._decoder.start()
        self._counts.start()
        for table in self._tables:
            table.start()
        for pre_aggregator in self._pre_aggregators:
            pre_aggregator.start()
        self._gathered_events = 0
        self._waiting: list[Event] = []  # without rows
        self._waiting_bytes = 0

    def process(self, element: PubsubMessage) -> Iterator[Any]:
        now_us = int(self._clock() * 1_000_000)
        events, dead_letters = self._decoder.decode(element, now_us)
        for letter in dead_letters:
            yield TaggedOutput(_DEAD_LETTERS, letter)
        if not events:
            return
        self._waiting += events
        self._waiting_bytes += len(element.data)
        if len(self._waiting) >= _MOST_EVENTS or self._waiting_bytes >= _MOST_WAITING_BYTES:
            for tag, rows in self._formatted(now_us):
                yield TaggedOutput(tag, rows)
        for pre_aggregator in self._pre_aggregators:
            pre_aggregator.add(events)
        self._gathered_events += len(events)
        if self._gathered_events >= _MOST_GATHERED:
            for tag, gathered in self._taken():
                yield TaggedOutput(tag, TimestampedValue(_keyed(gathered), _time_of(gathered)))

    def finish_bundle(self) -> Iterator[TaggedOutput]:
        self._decoder.finish()
        now = Timestamp(self._clock())
        for tag, rows in self._formatted(now.micros):
            yield TaggedOutput(tag, WindowedValue(rows, now, _GLOBAL))
        self._counts.finish()
        for table in self._tables:
            for rows in (table.take(), table.take_late()):
                if rows:
                    yield TaggedOutput(table.tag, WindowedValue(rows, now, _GLOBAL))
        for tag, gathered in self._taken():
            yield TaggedOutput(tag, WindowedValue(_keyed(gathered), _time_of(gathered), _GLOBAL))

    def _formatted(self, now_us: int) -> Iterator[tuple[str, EncodedRows]]:
        """Formats the events that wait, which costs least for many at once. Yields rows when there are enough."""
        events, self._waiting, self._waiting_bytes = self._waiting, [], 0
        for table in self._tables:
            # Events' rows may be many times their size: some are output before the next are formatted.
            for start in range(0, len(events), table.events_at_once):
                self._counts.of[metrics.RAW_ROWS] += table.add(events[start : start + table.events_at_once], now_us)
                if len(table.rows) >= _MOST_ROWS or table.size_bytes >= _MOST_BYTES:
                    yield table.tag, table.take()

    def _taken(self) -> Iterator[tuple[str, PreAggregated]]:
        self._gathered_events = 0
        for index, pre_aggregator in enumerate(self._pre_aggregators):
            for gathered in pre_aggregator.take():
                yield _readings_tag(index), gathered


class _Table:
    """The rows of a table that are not output yet.

    Attributes:
        tag: of their output.
        rows: the rows of events.
        size_bytes: of their cells.
        events_at_once: of how many events rows are formatted before some may be output.
    """

    def __init__(self, tag: str, schema: TableSchema, late: LateWindows) -> None:
        self.tag = tag
        self._schema = schema
        self._late = late
        self.events_at_once = 1 if schema.layout.row_per_metric else _MOST_EVENTS
        self.start()

    def start(self) -> None:
        """Begins a bundle. Drops the rows of a bundle that failed: its messages come again."""
        self.rows, self.size_bytes = EncodedRows(), 0
        self._late.start()

    def add(self, events: Sequence[Event], now_us: int) -> int:
        """Adds the rows of events, and records the windows that may miss one. Returns the number of rows added."""
        added = self._schema.encoded_rows(events)
        self.rows += added
        self.size_bytes += sum([len(row[1]) for row in added])
        self._late.inspect(events, now_us)
        return len(added)

    def take(self) -> EncodedRows:
        """Returns and removes the rows of events."""
        taken, self.rows, self.size_bytes = self.rows, EncodedRows(), 0
        return taken

    def take_late(self) -> EncodedRows:
        """Returns the work list rows of windows that may miss an event. They come last: a repair needs the others."""
        return self._late.take()


def _keyed(gathered: PreAggregated) -> tuple[str, WindowReadings]:
    return gathered.sensor_id, gathered.readings


def _time_of(gathered: PreAggregated) -> Timestamp:
    return Timestamp(micros=gathered.time_us)


def _rows_tag(index: int) -> str:
    return f"rows_{index}"


def _readings_tag(index: int) -> str:
    return f"gathered_{index}"


def _typed(elements: PCollection, element_type: Any) -> PCollection:
    elements.element_type = element_type
    return elements
