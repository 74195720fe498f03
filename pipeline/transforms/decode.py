"""Pub/Sub messages in, valid events at their event time out; what is refused goes aside as dead letters."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from pipeline.core.dead_letters import dead_letter, event_alone, replays_of, returns_too_often
from pipeline.core.events import BadData, Event, Reason, decode, shown, validate
from pipeline.core.messages import Message
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.times import to_datetime
from pipeline.transforms import metrics

_EVENTS = "events"
_DEAD_LETTERS = "dead_letters"
_log = logging.getLogger(__name__)

Clock = Callable[[], float]
"""Seconds since the epoch; ``time.time`` but for tests."""


class Decoder:
    """Decodes messages and validates their events, and counts both. Part of a DoFn: it pickles.

    What a bundle has come to is counted when it ends, at :meth:`finish`.

    An event that any of the tables can't hold is a dead letter for all of them: the aggregates of each are those of
    its raw rows.

    Args:
        step: the transform that dead letters name.
        max_future: how far ahead of the clock an event time may be.
        schemas: of the tables that are written.
    """

    def __init__(self, step: str, max_future: timedelta, schemas: Sequence[TableSchema]) -> None:
        self._step = step
        self._max_future_us = max_future // timedelta(microseconds=1)
        self._schemas = [schema for schema in schemas if not schema.accepts_all_events]
        self._counts = metrics.BundleCounts(metrics.MESSAGES, metrics.EMPTY_BATCHES, metrics.EVENTS)
        self._event_delay_ms = metrics.distribution(metrics.EVENT_DELAY_MS)
        self._dead_letters = metrics.counter(metrics.DEAD_LETTERS)
        self._letters_dropped = metrics.counter(metrics.LETTERS_DROPPED)
        self._dead_letters_of = {reason: metrics.counter(metrics.dead_letters_of(reason)) for reason in Reason}

    def start(self) -> None:
        """Begins a bundle."""
        self._counts.start()

    def finish(self) -> None:
        """Ends a bundle."""
        self._counts.finish()

    def decode(self, element: PubsubMessage, now_us: int) -> tuple[list[Event], list[Message]]:
        """The valid events of a message, and the dead letters that the rest of it has become."""
        self._counts.of[metrics.MESSAGES] += 1
        message = Message(
            element.data or b"",
            element.attributes or {},
            element.message_id or "",
            element.publish_time,
            element.ordering_key or "",
        )
        try:
            protos = decode(message)
        except BadData as problem:
            return [], self._refuse(message, problem, now_us)
        if not protos:
            self._counts.of[metrics.EMPTY_BATCHES] += 1
            return [], []
        events: list[Event] = []
        dead_letters: list[Message] = []
        latest_us = now_us + self._max_future_us
        for index, proto in enumerate(protos):
            try:
                event = validate(proto, latest_us)
                for schema in self._schemas:
                    schema.check(event)
            except BadData as problem:
                dead_letters += self._refuse(event_alone(message, index, proto), problem, now_us)
            else:
                events.append(event)
        if events:
            self._counts.of[metrics.EVENTS] += len(events)
            times_us = [event[1] for event in events]
            for time_us in {min(times_us), max(times_us)}:
                self._event_delay_ms.update((now_us - time_us) // 1000)
        return events, dead_letters

    def _refuse(self, message: Message, problem: BadData, now_us: int) -> list[Message]:
        """The dead letter; none of a message that comes back for ever, which is counted and logged instead."""
        if returns_too_often(message):
            self._letters_dropped.inc()
            _log.warning(
                "message %s is dropped: it is a dead letter that was replayed %d times, and is refused again: %s: %s; "
                "what brings dead letters back to the input of this job?",
                message.message_id,
                replays_of(message),
                problem.reason,
                shown(problem.detail),
            )
            return []
        self._dead_letters.inc()
        self._dead_letters_of[problem.reason].inc()
        return [dead_letter(message, problem, self._step, to_datetime(now_us))]


class Decoded(NamedTuple):
    """What comes out: ``Event`` elements, and ``Message`` elements that are dead letters."""

    events: PCollection
    dead_letters: PCollection


class DecodeMessages(beam.PTransform):
    """``PubsubMessage`` elements to :class:`Decoded`.

    An event's element timestamp is its own event time, whatever the message's was.

    Args:
        max_future: how far ahead of the clock an event time may be.
        schemas: of the tables that are written.
        clock: what time it is.
    """

    def __init__(self, max_future: timedelta, schemas: Sequence[TableSchema], clock: Clock = time.time) -> None:
        super().__init__()
        self._max_future = max_future
        self._schemas = tuple(schemas)
        self._clock = clock

    def expand(self, messages: PCollection) -> Any:  # Decoded; Beam takes the annotation for a type hint and warns
        decode_fn = _DecodeFn(Decoder(self.label, self._max_future, self._schemas), self._clock)
        outputs = messages | "Decode" >> beam.ParDo(decode_fn).with_outputs(_DEAD_LETTERS, main=_EVENTS)
        return Decoded(outputs[_EVENTS], outputs[_DEAD_LETTERS])


class _DecodeFn(beam.DoFn):
    def __init__(self, decoder: Decoder, clock: Clock) -> None:
        self._decoder = decoder
        self._clock = clock

    def start_bundle(self) -> None:
        self._decoder.start()

    def finish_bundle(self) -> None:
        self._decoder.finish()

    def process(self, element: PubsubMessage) -> Iterator[Any]:
        events, dead_letters = self._decoder.decode(element, int(self._clock() * 1_000_000))
        for event in events:
            yield TimestampedValue(event, Timestamp(micros=event.event_time_us))
        for letter in dead_letters:
            yield TaggedOutput(_DEAD_LETTERS, letter)
