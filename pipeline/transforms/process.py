"""Pub/Sub messages in; rows, windows' readings and dead letters out: all that is done for each event, in one step.

Beam charges a step for every element: so an event is none. What comes out is many rows together, and what a bundle has
gathered of a window.
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
from pipeline.core.pre_aggregation import BundlePreAggregator, PreAggregated
from pipeline.core.rows import EncodedRows
from pipeline.core.schema.table_schema import TableSchema
from pipeline.transforms import metrics
from pipeline.transforms.decode import Clock, Decoder
from pipeline.transforms.late import LateWindows

_DEAD_LETTERS = "dead_letters"
_MOST_ROWS = 500  # of a table, before they go on
_MOST_BYTES = 4 << 20  # of their cells
_MOST_EVENTS = 100  # whose rows are made before some go on; one, where it has a row for each metric
_MOST_GATHERED = 20_000  # events, before what a long bundle has gathered goes on
_GLOBAL = (GlobalWindow(),)


class Processed(NamedTuple):
    """What comes out.

    Attributes:
        rows: for each table, ``EncodedRows``: of events, and then of windows to repair.
        gathered: for each table, ``(sensor_id, WindowReadings)`` at a time within its shortest window; None where it
            has no aggregates.
        dead_letters: ``Message`` elements.
    """

    rows: list[PCollection]
    gathered: list[PCollection | None]
    dead_letters: PCollection


class ProcessMessages(beam.PTransform):
    """``PubsubMessage`` elements to :class:`Processed`.

    Args:
        schemas: of the tables that are written.
        max_future: how far ahead of the clock an event time may be.
        allowed_lateness: how far behind the watermark a window is kept.
        ahead: how far the watermark may be ahead of the clock.
        deduplicate: whether a reading that comes again is known and counts once.
        clock: what time it is.
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
    ) -> None:
        super().__init__()
        self._schemas = tuple(schemas)
        self._max_future = max_future
        self._allowed_lateness = allowed_lateness
        self._ahead = ahead
        self._deduplicate = deduplicate
        self._clock = clock

    def expand(self, messages: PCollection) -> Any:  # Processed; Beam takes the annotation for a type hint and warns
        schemas = self._schemas
        decoder = Decoder(self.label, self._max_future, schemas)
        late = [LateWindows(schema, self._allowed_lateness, self._ahead) for schema in schemas]
        # Tables that count alike share what is gathered of a bundle.
        alike = [(schema.tiers[0].window, schema.identity) if schema.tiers else None for schema in schemas]
        kinds = list(dict.fromkeys(kind for kind in alike if kind))
        gatherers = [BundlePreAggregator(*kind, deduplicate=self._deduplicate) for kind in kinds]
        process_fn = _ProcessFn(decoder, schemas, late, gatherers, self._clock)
        tags = [*map(_rows_tag, range(len(schemas))), *map(_gathered_tag, range(len(kinds)))]
        outputs = messages | "Process" >> beam.ParDo(process_fn).with_outputs(_DEAD_LETTERS, *tags)
        gathered = {
            kind: _typed(outputs[_gathered_tag(index)], KV[str, WindowReadings]) for index, kind in enumerate(kinds)
        }
        return Processed(
            [_typed(outputs[_rows_tag(index)], EncodedRows) for index in range(len(schemas))],
            [kind and gathered[kind] for kind in alike],
            outputs[_DEAD_LETTERS],
        )


class _ProcessFn(beam.DoFn):
    def __init__(
        self,
        decoder: Decoder,
        schemas: Sequence[TableSchema],
        late: Sequence[LateWindows],
        gatherers: Sequence[BundlePreAggregator],
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
        for pre_aggregator in self._gatherers:
            pre_aggregator.start()
        self._held = 0

    def process(self, element: PubsubMessage) -> Iterator[Any]:
        now_us = int(self._clock() * 1_000_000)
        events, dead_letters = self._decoder.decode(element, now_us)
        for letter in dead_letters:
            yield TaggedOutput(_DEAD_LETTERS, letter)
        if not events:
            return
        for table in self._tables:
            # A message's rows may be many times its size: some go on before the next are made.
            for start in range(0, len(events), table.at_a_time):
                self._counts.of[metrics.RAW_ROWS] += table.add(events[start : start + table.at_a_time], now_us)
                if len(table.rows) >= _MOST_ROWS or table.size_bytes >= _MOST_BYTES:
                    yield TaggedOutput(table.tag, table.take())
        for pre_aggregator in self._gatherers:
            pre_aggregator.add(events)
        self._held += len(events)
        if self._held >= _MOST_GATHERED:
            for tag, gathered in self._taken():
                yield TaggedOutput(tag, TimestampedValue(_keyed(gathered), _time_of(gathered)))

    def finish_bundle(self) -> Iterator[TaggedOutput]:
        self._decoder.finish()
        self._counts.finish()
        now = Timestamp(self._clock())
        for table in self._tables:
            for rows in (table.take(), table.take_late()):
                if rows:
                    yield TaggedOutput(table.tag, WindowedValue(rows, now, _GLOBAL))
        for tag, gathered in self._taken():
            yield TaggedOutput(tag, WindowedValue(_keyed(gathered), _time_of(gathered), _GLOBAL))

    def _taken(self) -> Iterator[tuple[str, PreAggregated]]:
        self._held = 0
        for index, pre_aggregator in enumerate(self._gatherers):
            for gathered in pre_aggregator.take():
                yield _gathered_tag(index), gathered


class _Table:
    """Rows of a table that have yet to go on.

    Attributes:
        tag: where to.
        rows: these.
        size_bytes: of their cells, where they are of events.
        at_a_time: of how many events rows are made before some go on.
    """

    def __init__(self, tag: str, schema: TableSchema, late: LateWindows) -> None:
        self.tag = tag
        self._schema = schema
        self._late = late
        self.at_a_time = 1 if schema.layout.row_per_metric else _MOST_EVENTS
        self.start()

    def start(self) -> None:
        """Begins a bundle: what one that failed has left comes again."""
        self.rows, self.size_bytes = EncodedRows(), 0
        self._late.start()

    def add(self, events: Sequence[Event], now_us: int) -> int:
        """Adds the events' rows, and looks for windows that may miss one; returns how many rows there are."""
        of_events = self._schema.encoded_rows(events)
        self.rows += of_events
        self.size_bytes += sum([len(row[1]) for row in of_events])
        self._late.inspect(events, now_us)
        return len(of_events)

    def take(self) -> EncodedRows:
        """All of them."""
        taken, self.rows, self.size_bytes = self.rows, EncodedRows(), 0
        return taken

    def take_late(self) -> EncodedRows:
        """Rows of windows that may have missed an event: behind all rows of the bundle, which have to be there then."""
        return self._late.take()


def _keyed(gathered: PreAggregated) -> tuple[str, WindowReadings]:
    return gathered.sensor_id, gathered.readings


def _time_of(gathered: PreAggregated) -> Timestamp:
    return Timestamp(micros=gathered.time_us)


def _rows_tag(index: int) -> str:
    return f"rows_{index}"


def _gathered_tag(index: int) -> str:
    return f"gathered_{index}"


def _typed(elements: PCollection, element_type: Any) -> PCollection:
    elements.element_type = element_type
    return elements
