"""Decodes Pub/Sub messages to valid events at their event times, and to dead letters."""

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from pipeline.core.decoding.decoded import Decoded
from pipeline.core.decoding.message_types import MessageTypes
from pipeline.core.events.dead_letter import dead_letter, replays_of, returns_too_often
from pipeline.core.events.event import Event
from pipeline.core.events.message import Message
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.text import shown
from pipeline.core.notation.times import to_datetime
from pipeline.core.schema.table_schema import TableSchema
from pipeline.transforms import metrics

_EVENTS = "events"
_DEAD_LETTERS = "dead_letters"
_log = logging.getLogger(__name__)
_new = tuple.__new__

Clock = Callable[[], float]
"""Returns seconds since the epoch; ``time.time`` except in tests."""


class Decoder:
    """Decodes messages, validates their events, and counts both. Part of a DoFn: it pickles.

    The counters are incremented when a bundle ends, in :meth:`finish`.

    An event that any of the tables cannot store is a dead letter for all of them: the aggregates of each table must
    match its raw rows.

    Args:
        step: the transform that dead letters name.
        max_future: the longest time that an event may be ahead of the clock.
        schemas: the schemas of the tables.
        types: the message types.
    """

    def __init__(
        self, step: str, max_future: timedelta, schemas: Sequence[TableSchema], types: MessageTypes | None = None
    ) -> None:
        self._types = types or MessageTypes()
        self._read_attributes = self._types.attribute_names
        self._step = step
        self._max_future_us = max_future // timedelta(microseconds=1)
        self._checks = [schema.check for schema in schemas if not schema.accepts_all_events]
        self._metadata_alone = bool(schemas) and all(schema.metadata_alone for schema in schemas)
        names = [metrics.MESSAGES, metrics.EMPTY_BATCHES, metrics.EVENTS, metrics.UNKNOWN_FIELDS]
        names += [metrics.of_type(*of_type) for of_type in itertools.product(metrics.TYPE_COUNTERS, self._types.names)]
        self._counts = metrics.BundleCounts(*names)
        self._by_type = bool(self._types.names)
        self._event_delay_ms = metrics.distribution(metrics.EVENT_DELAY_MS)
        self._dead_letters = metrics.counter(metrics.DEAD_LETTERS)
        self._letters_dropped = metrics.counter(metrics.LETTERS_DROPPED)
        self._dead_letters_of = {reason: metrics.counter(metrics.dead_letters_of(reason)) for reason in Reason}

    def start(self) -> None:
        """Begins a bundle."""
        self._counts.start()
        self._least_us, self._most_us = math.inf, -math.inf  # delays of events

    def finish(self) -> None:
        """Ends a bundle."""
        self._counts.finish()
        if self._least_us <= self._most_us:
            for delay_us in {self._least_us, self._most_us}:
                self._event_delay_ms.update(int(delay_us) // 1000)

    def decode(self, elements: Iterable[PubsubMessage], now_us: int) -> tuple[list[Event], list[Message]]:
        """Returns the valid events of some messages, and the dead letters of the rest."""
        events: list[Event] = []
        dead_letters: list[Message] = []
        counts, latest_us, type_of = self._counts.of, now_us + self._max_future_us, self._types.of
        checks, metadata_alone = self._checks, self._metadata_alone
        for element in elements:
            counts[metrics.MESSAGES] += 1
            message = _message(element)
            message_type = None
            try:
                message_type = type_of(message)
                decoded = message_type.decode(message, latest_us, checks, metadata_alone=metadata_alone)
            except BadData as problem:
                decoded = Decoded(message_type.name if message_type else "", [], [(message, problem)])
            name, of_message, refused, skipped, unknown_fields = decoded
            events += of_message
            for part, why in refused:
                dead_letters += self._refuse(part, why, now_us)
            if unknown_fields:
                counts[metrics.UNKNOWN_FIELDS] += unknown_fields
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
        return [dead_letter(message, problem, self._step, to_datetime(now_us), self._read_attributes)]


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


class DecodeMessages(beam.PTransform):
    """Decodes ``PubsubMessage`` elements to :class:`DecodedMessages`.

    The timestamp of an ``Event`` element is its event time, whatever the timestamp of the message.

    Args:
        max_future: the longest time that an event may be ahead of the clock.
        schemas: the schemas of the tables.
        clock: returns the current time.
        types: the message types.
    """

    def __init__(
        self,
        max_future: timedelta,
        schemas: Sequence[TableSchema],
        clock: Clock = time.time,
        types: MessageTypes | None = None,
    ) -> None:
        super().__init__()
        self._max_future = max_future
        self._schemas = tuple(schemas)
        self._clock = clock
        self._types = types

    def expand(self, messages: PCollection) -> Any:  # DecodedMessages, which Beam would take for a type hint
        decode_fn = _DecodeFn(Decoder(self.label, self._max_future, self._schemas, self._types), self._clock)
        outputs = messages | "Decode" >> beam.ParDo(decode_fn).with_outputs(_DEAD_LETTERS, main=_EVENTS)
        return DecodedMessages(outputs[_EVENTS], outputs[_DEAD_LETTERS])


class _DecodeFn(beam.DoFn):
    def __init__(self, decoder: Decoder, clock: Clock) -> None:
        self._decoder = decoder
        self._clock = clock

    def start_bundle(self) -> None:
        self._decoder.start()

    def finish_bundle(self) -> None:
        self._decoder.finish()

    def process(self, element: PubsubMessage) -> Iterator[Any]:
        events, dead_letters = self._decoder.decode((element,), int(self._clock() * 1_000_000))
        for event in events:
            yield TimestampedValue(event, Timestamp(micros=event.event_time_us))
        for letter in dead_letters:
            yield TaggedOutput(_DEAD_LETTERS, letter)
