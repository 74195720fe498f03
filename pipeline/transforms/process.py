"""Turns Pub/Sub messages into raw rows with their readings and dead letters: all work on single events, in one step.

Every element costs time in every step, so events are not elements. An output element is all rows of a bundle and the
readings that count once these rows are written. Of a long bundle, it is a part.

:class:`DecodeMessages` is for pipelines that have events as elements.
"""

import gc
import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain, product
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms.window import GlobalWindow, TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from pipeline.core.decoding.message_types import Check, Decoded, MessageTypes, TableRules, valid_events
from pipeline.core.events.dead_letter import dead_letter, replays_of, returns_too_often
from pipeline.core.events.event import Event
from pipeline.core.events.invalid_readings import Invalid, RangeCheck
from pipeline.core.events.message import Message, message_of, sensor_event
from pipeline.core.events.reasons import REFUSALS, BadData, Reason
from pipeline.core.notation.text import shown
from pipeline.core.notation.times import to_datetime
from pipeline.core.panes.grouped_readings import GroupedReadings, Kind, RawRows, kind_of
from pipeline.core.rows.newest_row import NewestOfBundle
from pipeline.core.rows.rows import EncodedRows
from pipeline.core.schema.retention import Expiry, Retention
from pipeline.core.schema.table_schema import TableSchema
from pipeline.transforms import (
    coders,  # noqa: F401 (registers the coder of rows)
    metrics,
)
from pipeline.transforms.tables import Clock

DEAD_LETTERS = "dead_letters"
"""The tag of ``Message`` elements that are dead letters."""

_EVENTS = "events"
_SAMPLED_EVERY_US = 60_000_000
_MOST_SAMPLED = 10_000  # metrics and reasons
_log = logging.getLogger(__name__)
_new = tuple.__new__


class CheckedEvents(NamedTuple):
    """Events of a file that its reader has checked, but for the rules of tables."""

    attributes: dict[str, str]
    events: list[Event]

    def message_at(self, position: int) -> Message:
        """Returns an event as a message of its own."""
        event = self.events[position]
        part = message_of([event.message or sensor_event(*event[:5])])
        return part._replace(attributes={**part.attributes, **self.attributes})


class Decoder:
    """Decodes messages, validates their events, and counts both. Part of a DoFn: it pickles.

    The counters are incremented when a bundle ends, in :meth:`finish`.

    An event that any of the tables cannot store is a dead letter for all of them: the aggregates of each table must
    match its raw rows. Likewise, a reading that is not valid for one table is left out of all.
    """

    def __init__(
        self, step: str, max_future: timedelta, schemas: Sequence[TableSchema], types: MessageTypes | None = None
    ) -> None:
        self._types = types or MessageTypes()
        self._read_attributes = self._types.attribute_names
        self._step = step
        self._max_future_us = max_future // timedelta(microseconds=1)
        checks: list[Check] = [schema.check for schema in schemas if not schema.accepts_all_events]
        if ranges := RangeCheck(schema.ranges for schema in schemas):
            checks.insert(0, ranges)
        metadata_alone = bool(schemas) and all(schema.metadata_alone for schema in schemas)
        refuses = any(schema.invalid is Invalid.REFUSE_EVENT for schema in schemas)
        self._rules = TableRules(checks, metadata_alone, Invalid.REFUSE_EVENT if refuses else Invalid.DROP_READING)
        self._sampled: dict[tuple[Reason, str], int] = {}  # when the last letter about a metric and reason was written
        names = [
            metrics.MESSAGES,
            metrics.EMPTY_BATCHES,
            metrics.EVENTS,
            metrics.UNKNOWN_FIELDS,
            metrics.READINGS_DROPPED,
            metrics.REPLACED_TIMES,
        ]
        names += [metrics.of_type(*of_type) for of_type in product(metrics.TYPE_COUNTERS, self._types.names)]
        self._counts = metrics.BundleCounts(*names)
        self._by_type = bool(self._types.names)
        self._event_delay_ms = metrics.distribution(metrics.EVENT_DELAY_MS)
        self._dead_letters = metrics.counter(metrics.DEAD_LETTERS)
        self._letters_dropped = metrics.counter(metrics.LETTERS_DROPPED)
        self._dead_letters_of = {reason: metrics.counter(metrics.dead_letters_of(reason)) for reason in REFUSALS}

    def start(self) -> None:
        """Begins a bundle."""
        self._counts.start()
        self._sampled_now: dict[tuple[Reason, str], int] = {}  # in this bundle, which may fail
        self._least_us, self._most_us = math.inf, -math.inf  # delays of events

    def finish(self) -> None:
        """Ends a bundle."""
        self._counts.finish()
        if len(self._sampled) > _MOST_SAMPLED:
            self._sampled.clear()
        self._sampled |= self._sampled_now
        if self._least_us <= self._most_us:
            for delay_us in {self._least_us, self._most_us}:
                self._event_delay_ms.update(int(delay_us) // 1000)

    def decode(
        self, elements: Iterable[PubsubMessage | CheckedEvents], now_us: int
    ) -> tuple[list[Event], list[Message]]:
        """Returns the valid events of some messages, and the dead letters of the rest."""
        events: list[Event] = []
        dead_letters: list[Message] = []
        counts, latest_us, type_of = self._counts.of, now_us + self._max_future_us, self._types.of
        for element in elements:
            counts[metrics.MESSAGES] += 1
            if isinstance(element, CheckedEvents):
                of_file, problems, dropped = valid_events(element.events, _itself, latest_us, self._rules)
                events += of_file
                for position, problem in problems:
                    dead_letters += self._refuse(element.message_at(position), problem, now_us)
                for position, lost in dropped.first.items() if dropped else ():
                    dead_letters += self._sampled_letters(element.message_at(position), lost, now_us)
                counts[metrics.READINGS_DROPPED] += dropped.number if dropped else 0
                continue
            message = _message(element)
            message_type = None
            try:
                message_type = type_of(message)
                decoded = message_type.decode(message, latest_us, self._rules)
            except BadData as problem:
                decoded = Decoded(message_type.name if message_type else "", [], [(message, problem)])
            name, of_message, refused, skipped, unknown_fields, dropped_readings, losses, replaced_times = decoded
            events += of_message
            for part, why in refused:
                dead_letters += self._refuse(part, why, now_us)
            if losses:
                counts[metrics.READINGS_DROPPED] += dropped_readings
                for part, lost in losses:
                    dead_letters += self._sampled_letters(part, lost, now_us)
            if unknown_fields:
                counts[metrics.UNKNOWN_FIELDS] += unknown_fields
            if replaced_times:
                counts[metrics.REPLACED_TIMES] += len(replaced_times)
            if not (of_message or refused or skipped):
                counts[metrics.EMPTY_BATCHES] += 1
            if self._by_type and name in self._types.names:
                self._count_type(decoded)
        if events:
            self._count_events(events, now_us)
        return events, dead_letters

    def _count_events(self, events: Sequence[Event], now_us: int) -> None:
        self._counts.of[metrics.EVENTS] += len(events)
        times_us = [event[1] for event in events]
        self._least_us = min(self._least_us, now_us - max(times_us))
        self._most_us = max(self._most_us, now_us - min(times_us))

    def _count_type(self, decoded: Decoded) -> None:
        counts = self._counts.of
        found = (1, len(decoded.events), decoded.skipped, len(decoded.refused))
        for name, count in zip(metrics.TYPE_COUNTERS, found, strict=True):
            counts[metrics.of_type(name, decoded.type)] += count

    def _sampled_letters(self, message: Message, lost: Mapping[str, BadData], now_us: int) -> list[Message]:
        """Returns the dead letter of a message whose event lost readings; none if each has had one within a minute."""
        due = []
        for metric, problem in lost.items():
            kind = problem.reason, metric
            last_us = self._sampled_now.get(kind) or self._sampled.get(kind)
            if last_us is None or now_us - last_us >= _SAMPLED_EVERY_US:
                self._sampled_now[kind] = now_us
                due.append(problem.detail)
        if not due or returns_too_often(message):
            return []
        details = "; ".join(due)
        told = f"{details}; the event was kept without {'it' if len(due) == 1 else 'them'}"
        return [self._letter(message, BadData(Reason.READING_DROPPED, told), now_us)]

    def _refuse(self, message: Message, problem: BadData, now_us: int) -> list[Message]:
        """Returns the dead letter; none for a message that returned too often, which is counted and logged instead."""
        if returns_too_often(message):
            self._letters_dropped.inc()
            _log.warning(
                "message %s is dropped: it is a dead letter that was replayed %d times and is refused again: %s: %s; "
                "find out what sends dead letters back to the input of this job",
                message.message_id,
                replays_of(message),
                problem.reason,
                shown(problem.detail),
            )
            return []
        self._dead_letters.inc()
        self._dead_letters_of[problem.reason].inc()
        return [self._letter(message, problem, now_us)]

    def _letter(self, message: Message, problem: BadData, now_us: int) -> Message:
        return dead_letter(message, problem, self._step, to_datetime(now_us), self._read_attributes)


def _itself(event: Event, _latest_us: int) -> Event:
    return event


def _message(element: PubsubMessage) -> Message:
    fields = (
        element.data or b"",
        element.attributes or {},
        element.message_id or "",
        element.publish_time,
        element.ordering_key or "",
    )
    return _new(Message, fields)  # half the time of its own constructor


class DecodedMessages(NamedTuple):
    """The outputs of decoding: ``Event`` elements, and ``Message`` elements that are dead letters."""

    events: PCollection
    dead_letters: PCollection


@dataclass(eq=False)
class DecodeMessages(beam.PTransform):
    """Decodes ``PubsubMessage`` elements to :class:`DecodedMessages`.

    The timestamp of an ``Event`` element is its event time, whatever the timestamp of the message.
    """

    max_future: timedelta
    schemas: Sequence[TableSchema]
    clock: Clock = time.time
    types: MessageTypes | None = None

    def expand(self, messages: PCollection) -> Any:  # DecodedMessages, which Beam would take for a type hint
        decode_fn = _DecodeFn(Decoder(self.label, self.max_future, tuple(self.schemas), self.types), self.clock)
        outputs = messages | "Decode" >> beam.ParDo(decode_fn).with_outputs(DEAD_LETTERS, main=_EVENTS)
        return DecodedMessages(outputs[_EVENTS], outputs[DEAD_LETTERS])


class _DecodeFn(beam.DoFn):
    def __init__(self, decoder: Decoder, clock: Clock) -> None:
        self._decoder = decoder
        self._clock = clock

    def start_bundle(self) -> None:
        self._decoder.start()

    def finish_bundle(self) -> None:
        self._decoder.finish()

    def process(self, element: PubsubMessage | CheckedEvents) -> Iterator[Any]:
        events, dead_letters = self._decoder.decode((element,), int(self._clock() * 1_000_000))
        for event in events:
            yield TimestampedValue(event, Timestamp(micros=event.event_time_us))
        for letter in dead_letters:
            yield TaggedOutput(DEAD_LETTERS, letter)


class Expired:
    """Counts the events that are older than the policy of their family. Part of a DoFn: it pickles."""

    def __init__(self, expiry: Expiry) -> None:
        self._expiry = expiry
        self._events = metrics.counter(metrics.EXPIRED_EVENTS)

    def count(self, events: Sequence[Event], now_us: int) -> None:
        """Counts those of some events. Takes at least one event."""
        shortest_us = self._expiry.shortest_us
        if shortest_us is not None and min([event[1] for event in events]) < now_us - shortest_us:
            expires = self._expiry.expires
            self._events.inc(
                sum(expires(event.event_time_us, event.readings, now_us, event.metadata) for event in events)
            )


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
    """Processes ``PubsubMessage`` elements, or lists of them, to :class:`Processed`.

    Args:
        schemas: the schemas of the tables.
        max_future: the longest time that an event may be ahead of the clock.
        clock: returns the current time.
        types: the message types.
        newest_every: the event time between two writes of a sensor's newest readings; zero for one in each bundle.
        kinds: the kinds of the tables' gathered readings; None for those of a job.
        expiries: the ages at which the tables lose readings; None for those of the schemas.
    """

    def __init__(
        self,
        schemas: Sequence[TableSchema],
        *,
        max_future: timedelta,
        clock: Clock = time.time,
        types: MessageTypes | None = None,
        newest_every: timedelta = timedelta(0),
        kinds: Sequence[Kind | None] | None = None,
        expiries: Sequence[Expiry] | None = None,
    ) -> None:
        super().__init__()
        self._types = types
        self._schemas = tuple(schemas)
        self._kinds, self._expiries = kinds, expiries
        self._max_future = max_future
        self._clock = clock
        self._newest_every_us = newest_every // _MICROSECOND

    def expand(self, messages: PCollection) -> Any:  # Processed, which Beam would take for a type hint
        tags = [_tag(index) for index in range(len(self._schemas))]
        outputs = messages | "Process" >> beam.ParDo(self.step()).with_outputs(DEAD_LETTERS, *tags)
        for tag in tags:
            outputs[tag].element_type = RawRows
        return Processed([outputs[tag] for tag in tags], outputs[DEAD_LETTERS])

    def step(self) -> beam.DoFn:
        """Returns the step that processes messages. Outputs beside dead letters are the tables' rows, in order."""
        decoder = Decoder(self.label, self._max_future, self._schemas, self._types)
        schemas, tags = self._schemas, [_tag(index) for index in range(len(self._schemas))]
        kinds = self._kinds or [kind_of(schema) for schema in schemas]
        expiries = self._expiries or [Expiry.of(schema, schema.policies) for schema in schemas]
        of_each = zip(tags, schemas, kinds, expiries, strict=True)
        return _ProcessFn(decoder, [_Table(*each, self._newest_every_us) for each in of_each], self._clock)


class _ProcessFn(beam.DoFn):
    def __init__(self, decoder: Decoder, tables: Sequence["_Table"], clock: Clock) -> None:
        self._decoder = decoder
        self._tables = tables
        # Tables with the same shortest window, identity of events, number of groups and fields of roll-ups share the
        # readings of a bundle.
        self._gathered = {table.kind: GroupedReadings(*table.kind) for table in self._tables if table.kind}
        self._events_at_once = min(table.events_at_once for table in self._tables)
        self._metadata_alone = any(table.schema.metadata_alone for table in tables)
        self._clock = clock
        self._raw_rows = metrics.counter(metrics.RAW_ROWS)

    def setup(self) -> None:
        # Events are many objects and no cycles. Looking for cycles as often as after Python's 700 objects takes a
        # twentieth of a worker's CPU time.
        if 0 < gc.get_threshold()[0] < _MOST_ALLOCATIONS:
            gc.set_threshold(_MOST_ALLOCATIONS)

    def start_bundle(self) -> None:
        self._decoder.start()
        for table in self._tables:
            table.start()
        for gathered in self._gathered.values():
            gathered.start()
        self._events = 0
        self._waiting: list[PubsubMessage | CheckedEvents] = []
        self._waiting_bytes = 0

    def process(self, element: PubsubMessage | CheckedEvents | list[PubsubMessage]) -> Iterable[Any]:
        # Not a generator itself: most messages only wait.
        if isinstance(element, list):
            return chain.from_iterable(map(self.process, element))
        self._waiting.append(element)
        self._waiting_bytes += _MOST_WAITING_BYTES if isinstance(element, CheckedEvents) else len(element.data or b"")
        if len(self._waiting) < _MOST_MESSAGES and self._waiting_bytes < _MOST_WAITING_BYTES:
            return ()
        return self._decoded(Timestamp(self._clock()))

    def finish_bundle(self) -> Iterator[TaggedOutput]:
        now = Timestamp(self._clock())
        yield from self._decoded(now)
        self._decoder.finish()
        for table in self._tables:
            table.take_newest(now.micros)
        yield from self._taken(now)

    def _decoded(self, now: Timestamp) -> Iterator[TaggedOutput]:
        """Decodes the messages that wait, gathers and formats their events. Yields dead letters, and rows if enough."""
        messages, self._waiting, self._waiting_bytes = self._waiting, [], 0
        events, dead_letters = self._decoder.decode(messages, now.micros)
        for letter in dead_letters:
            yield _output(DEAD_LETTERS, letter, now)
        rows = 0
        # Events' rows may be many times their size: some are output before the next are formatted.
        for start in range(0, len(events), self._events_at_once):
            some = events[start : start + self._events_at_once]
            with_readings = [event for event in some if event.readings] if self._metadata_alone else some
            for gathered in self._gathered.values():
                gathered.add(with_readings)
            for table in self._tables:
                rows += table.add(some, now.micros)
            self._events += len(some)
            if self._events >= _MOST_EVENTS or any(table.is_full for table in self._tables):
                yield from self._taken(now)
        self._raw_rows.inc(rows)

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
    """The rows of a table that are not output yet."""

    def __init__(self, tag: str, schema: TableSchema, kind: Kind | None, expiry: Expiry, newest_every_us: int) -> None:
        self.tag, self.schema, self.kind = tag, schema, kind
        self._expired = Expired(expiry)
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
        added = self.schema.encoded_rows(events)
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
