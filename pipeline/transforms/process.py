"""Pub/Sub messages in; rows, windows' readings and dead letters out: all that is done for each event, in one step.

Beam charges a step for every element: so an event is none. What comes out is many rows together, and what a bundle has
gathered of a window.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms.window import GlobalWindow, TimestampedValue
from apache_beam.typehints import KV
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from pipeline.core.events import Event
from pipeline.core.gather import Gathered, Gatherer
from pipeline.core.mutation_bytes import encoded
from pipeline.core.readings import WindowReadings
from pipeline.core.rows import EncodedRows
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.windows import HOURLY, Window
from pipeline.transforms import metrics
from pipeline.transforms.decode import Clock, Decoder
from pipeline.transforms.late import LateWindows

_DEAD_LETTERS = "dead_letters"
_MOST_ROWS = 500  # of a table, before they go on
_MOST_BYTES = 4 << 20  # of messages, before their rows go on
_MOST_GATHERED = 20_000  # events, before what a long bundle has gathered goes on
_GLOBAL = (GlobalWindow(),)


class Processed(NamedTuple):
    """What comes out.

    Attributes:
        rows: for each table, ``EncodedRows``: of events, and of the list of windows to repair.
        gathered: for each window, ``(sensor_id, WindowReadings)`` at a time within it.
        dead_letters: ``Message`` elements.
    """

    rows: list[PCollection]
    gathered: Mapping[Window, PCollection]
    dead_letters: PCollection


class ProcessMessages(beam.PTransform):
    """``PubsubMessage`` elements to :class:`Processed`.

    Args:
        tables: that are written: the schema of each, and the windows in which its events are counted.
        max_future: how far ahead of the clock an event time may be.
        allowed_lateness: how far behind the watermark a window is kept.
        deduplicate: whether a reading that comes again is known and counts once.
        clock: what time it is.
    """

    def __init__(
        self,
        tables: Sequence[tuple[TableSchema, Window | None]],
        *,
        max_future: timedelta,
        allowed_lateness: timedelta,
        deduplicate: bool = True,
        clock: Clock = time.time,
    ) -> None:
        super().__init__()
        self._tables = tuple(tables)
        self._max_future = max_future
        self._allowed_lateness = allowed_lateness
        self._deduplicate = deduplicate
        self._clock = clock

    def expand(self, messages: PCollection) -> Any:  # Processed; Beam takes the annotation for a type hint and warns
        schemas = [schema for schema, _ in self._tables]
        windows = list(dict.fromkeys(window for _, window in self._tables if window is not None))
        decoder = Decoder(self.label, self._max_future, schemas)
        late = [LateWindows(schema, window or HOURLY, self._allowed_lateness) for schema, window in self._tables]
        identity = min((schema.identity for schema in schemas), key=lambda each: each.grain_us)
        gatherers = [Gatherer(window, identity, deduplicate=self._deduplicate) for window in windows]
        process_fn = _ProcessFn(decoder, schemas, late, gatherers, self._clock)
        tags = [*map(_rows_tag, range(len(schemas))), *map(_gathered_tag, range(len(windows)))]
        outputs = messages | "Process" >> beam.ParDo(process_fn).with_outputs(_DEAD_LETTERS, *tags)
        return Processed(
            [_typed(outputs[_rows_tag(index)], EncodedRows) for index in range(len(schemas))],
            {
                window: _typed(outputs[_gathered_tag(index)], KV[str, WindowReadings])
                for index, window in enumerate(windows)
            },
            outputs[_DEAD_LETTERS],
        )


class _ProcessFn(beam.DoFn):
    def __init__(
        self,
        decoder: Decoder,
        schemas: Sequence[TableSchema],
        late: Sequence[LateWindows],
        gatherers: Sequence[Gatherer],
        clock: Clock,
    ) -> None:
        self._decoder = decoder
        self._tables = [
            _Table(_rows_tag(index), *of_table) for index, of_table in enumerate(zip(schemas, late, strict=True))
        ]
        self._gatherers = list(gatherers)
        self._clock = clock
        self._counts = metrics.BundleCounts(metrics.RAW_ROWS)

    def start_bundle(self) -> None:
        self._decoder.start()
        self._counts.start()
        for table in self._tables:
            table.start()
        for gatherer in self._gatherers:
            gatherer.start()
        self._held = 0
        self._size_bytes = 0

    def process(self, element: PubsubMessage) -> list[Any]:
        now_us = int(self._clock() * 1_000_000)
        events, dead_letters = self._decoder.decode(element, now_us)
        outputs = [TaggedOutput(_DEAD_LETTERS, letter) for letter in dead_letters]
        if not events:
            return outputs
        self._size_bytes += len(element.data)
        for table in self._tables:
            self._counts.of[metrics.RAW_ROWS] += table.add(events, now_us)
            if len(table.rows) >= _MOST_ROWS or self._size_bytes >= _MOST_BYTES:
                outputs.append(TaggedOutput(table.tag, table.take()))
        if self._size_bytes >= _MOST_BYTES:
            self._size_bytes = 0
        for gatherer in self._gatherers:
            gatherer.add(events)
        self._held += len(events)
        if self._held >= _MOST_GATHERED:
            outputs += [
                TaggedOutput(tag, TimestampedValue(_keyed(gathered), _time_of(gathered)))
                for tag, gathered in self._taken()
            ]
        return outputs

    def finish_bundle(self) -> Iterator[TaggedOutput]:
        self._decoder.finish()
        self._counts.finish()
        now = Timestamp(self._clock())
        for table in self._tables:
            if table.rows:
                yield TaggedOutput(table.tag, WindowedValue(table.take(), now, _GLOBAL))
        for tag, gathered in self._taken():
            yield TaggedOutput(tag, WindowedValue(_keyed(gathered), _time_of(gathered), _GLOBAL))

    def _taken(self) -> Iterator[tuple[str, Gathered]]:
        self._held = 0
        for index, gatherer in enumerate(self._gatherers):
            for gathered in gatherer.take():
                yield _gathered_tag(index), gathered


class _Table:
    """Rows of a table that have yet to go on.

    Attributes:
        tag: where to.
        rows: these.
    """

    def __init__(self, tag: str, schema: TableSchema, late: LateWindows) -> None:
        self.tag = tag
        self._schema = schema
        self._late = late
        self.start()

    def start(self) -> None:
        """Begins a bundle: what one that failed has left comes again."""
        self.rows = EncodedRows()
        self._late.start()

    def add(self, events: Sequence[Event], now_us: int) -> int:
        """Adds the events' rows, and those of windows that may have missed one; returns how many are of events."""
        of_events = self._schema.encoded_rows(events)
        self.rows += of_events
        self.rows += map(encoded, self._late.rows(events, now_us))
        return len(of_events)

    def take(self) -> EncodedRows:
        """All of them."""
        taken, self.rows = self.rows, EncodedRows()
        return taken


def _keyed(gathered: Gathered) -> tuple[str, WindowReadings]:
    return gathered.sensor_id, gathered.readings


def _time_of(gathered: Gathered) -> Timestamp:
    return Timestamp(micros=gathered.time_us)


def _rows_tag(index: int) -> str:
    return f"rows_{index}"


def _gathered_tag(index: int) -> str:
    return f"gathered_{index}"


def _typed(elements: PCollection, element_type: Any) -> PCollection:
    elements.element_type = element_type
    return elements
