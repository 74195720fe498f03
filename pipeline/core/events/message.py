"""A Pub/Sub message, independent of the client library, and the protobuf events in it: builds and parses both.

Nothing here validates an event.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import NamedTuple

from google.protobuf.message import DecodeError

from pipeline.core.events.compression import unpacked
from pipeline.core.events.protobuf_json import InexactInteger, parse_json
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.text import shown
from pipeline.proto.sensor_event_pb2 import SensorEvent, SensorEventBatch

EVENT_TYPE = "tidetable.v1.SensorEvent"
BATCH_TYPE = "tidetable.v1.SensorEventBatch"

MESSAGE_TYPE = "message_type"
EVENT_TIME = "event_time"
EVENT_ID = "event_id"
# Pub/Sub sets these on topics with a schema. Clients cannot publish attributes that start with "goog".
ENCODING = "googclient_schemaencoding"
SCHEMA_REVISION = "googclient_schemarevisionid"


class Message(NamedTuple):
    """A message: its payload, its attributes, and what Pub/Sub adds."""

    data: bytes
    attributes: Mapping[str, str]
    message_id: str = ""
    publish_time: datetime | None = None
    ordering_key: str = ""

    @property
    def is_batch(self) -> bool:
        """Whether the payload is a ``SensorEventBatch``."""
        return self.attributes.get(MESSAGE_TYPE) == BATCH_TYPE


_TYPES: dict[str, type[SensorEvent] | type[SensorEventBatch]] = {EVENT_TYPE: SensorEvent, BATCH_TYPE: SensorEventBatch}

_ENCODING_OF_DEAD_LETTER = f"dead_letter_{ENCODING}"  # see dead_letter.py
_LATEST_US = 253_402_300_799_999_999  # the end of the year 9999, the last time that a Timestamp can be


def sensor_event(
    sensor_id: str, event_time_us: int, readings: Mapping[str, float], metadata: Mapping[str, str], event_id: str = ""
) -> SensorEvent:
    """Builds a protobuf event without validating anything."""
    event = SensorEvent(sensor_id=sensor_id, event_id=event_id)
    # Assigning items one by one, looking up each field once, and bypassing the calendar takes half the time.
    readings_of, timestamp = event.readings, event.event_time
    for metric, value in readings.items():
        readings_of[metric] = value
    for name, text in metadata.items():
        event.metadata[name] = text
    if 0 <= event_time_us <= _LATEST_US:
        timestamp.seconds, micros = divmod(event_time_us, 1_000_000)
        timestamp.nanos = micros * 1000
    else:
        timestamp.FromMicroseconds(event_time_us)
    return event


def decode(message: Message) -> Sequence[SensorEvent]:
    """Parses the single event of a message, or all events of its batch, without validation.

    Raises BadData if the message as a whole cannot be parsed.
    """
    parsed = parse(message)
    return [parsed] if isinstance(parsed, SensorEvent) else parsed.events


def parse(message: Message) -> SensorEvent | SensorEventBatch:
    """Parses an event, or a batch. Raises BadData."""
    name = message.attributes.get(MESSAGE_TYPE, EVENT_TYPE)
    kind = _TYPES.get(name)
    if kind is None:
        raise BadData(Reason.UNKNOWN_MESSAGE_TYPE, f"message_type is {shown(name)}, not {EVENT_TYPE} or {BATCH_TYPE}")
    is_binary = encoding_of(message) == "BINARY"
    data = unpacked(message.data, message.attributes)
    try:
        return kind.FromString(data) if is_binary else parse_json(data, kind)
    except InexactInteger as error:
        raise BadData(Reason.INEXACT_INTEGER, str(error)) from error
    except (DecodeError, ValueError) as error:
        encoding, why = "protobuf" if is_binary else "JSON", " ".join(str(error).split())
        raise BadData(Reason.UNPARSEABLE, f"not a {name} in {encoding}: {why}") from error


def encoding_of(message: Message) -> str:
    """Returns the encoding of a message: BINARY or JSON. Raises BadData for any other."""
    attributes = message.attributes
    encoding = attributes.get(ENCODING) or attributes.get(_ENCODING_OF_DEAD_LETTER) or "BINARY"
    if encoding not in ("BINARY", "JSON"):
        raise BadData(Reason.UNKNOWN_ENCODING, f"{ENCODING} is {shown(encoding)}, not BINARY or JSON")
    return encoding


def message_of(events: Sequence[SensorEvent]) -> Message:
    """Returns a ``SensorEvent`` message for one event, and a ``SensorEventBatch`` for several.

    Its attributes are ``message_type``; ``event_time``, the earliest event time, unless it is invalid; and
    ``event_id``, a digest of the payload: the same events published again have the same id.
    """
    batch = len(events) > 1
    payload = SensorEventBatch(events=events) if batch else events[0]
    data = payload.SerializeToString(deterministic=True)
    return identified(Message(data, {MESSAGE_TYPE: BATCH_TYPE if batch else EVENT_TYPE}), events)


def identified(message: Message, events: Sequence[SensorEvent]) -> Message:
    """Returns a message with these events, and with their earliest time and an id as attributes, if it has none."""
    attributes = dict(message.attributes)
    attributes.setdefault(EVENT_ID, blake2b(message.data, digest_size=16).hexdigest())
    if event_time := event_time_of(min(events, key=lambda event: (event.event_time.seconds, event.event_time.nanos))):
        attributes.setdefault(EVENT_TIME, event_time)
    return message._replace(attributes=attributes)


def event_time_of(event: SensorEvent) -> str:
    """Returns the event time in RFC 3339, for the attribute; empty if it is not set or invalid."""
    try:
        return event.event_time.ToJsonString() if event.HasField("event_time") else ""
    except ValueError:  # an invalid Timestamp; an attribute that does not parse would stop a DirectRunner
        return ""
