"""Events as protobuf messages: builds them, and parses what Pub/Sub messages contain, without validating it."""

from collections.abc import Mapping, Sequence

from google.protobuf.message import DecodeError

from pipeline.core.events.message import BATCH_TYPE, ENCODING, EVENT_TYPE, MESSAGE_TYPE, Message
from pipeline.core.events.protobuf_json import InexactInteger, parse_json
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.text import shown
from pipeline.proto.sensor_event_pb2 import SensorEvent, SensorEventBatch

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
    """Parses the single event of a message, or all events of its batch. Does not validate them.

    Raises:
        BadData: the message as a whole cannot be parsed.
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
    try:
        return kind.FromString(message.data) if is_binary else parse_json(message.data, kind)
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
