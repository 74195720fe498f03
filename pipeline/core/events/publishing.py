"""Builds the Pub/Sub messages that a publisher sends, with the attributes of the contract."""

from collections.abc import Sequence
from hashlib import blake2b

from pipeline.core.events.message import BATCH_TYPE, EVENT_ID, EVENT_TIME, EVENT_TYPE, MESSAGE_TYPE, Message
from pipeline.proto.sensor_event_pb2 import SensorEvent, SensorEventBatch


def message_of(events: Sequence[SensorEvent]) -> Message:
    """Returns a ``SensorEvent`` message for one event, and a ``SensorEventBatch`` for several.

    Its attributes are ``message_type``; ``event_time``, the earliest event time, unless it is invalid; and
    ``event_id``, a digest of the payload: the same events published again have the same id.
    """
    batch = len(events) > 1
    payload = SensorEventBatch(events=events) if batch else events[0]
    data = payload.SerializeToString(deterministic=True)
    attributes = {
        MESSAGE_TYPE: BATCH_TYPE if batch else EVENT_TYPE,
        EVENT_ID: blake2b(data, digest_size=16).hexdigest(),
    }
    earliest = min(events, key=_instant)
    if event_time := event_time_of(earliest):
        attributes[EVENT_TIME] = event_time
    return Message(data, attributes)


def identified(message: Message, events: Sequence[SensorEvent]) -> Message:
    """Returns a message of another type, which contains these events, with the attributes that say when and which."""
    attributes = {EVENT_ID: blake2b(message.data, digest_size=16).hexdigest()}
    if event_time := event_time_of(min(events, key=_instant)):
        attributes[EVENT_TIME] = event_time
    return message._replace(attributes={**attributes, **message.attributes})


def _instant(event: SensorEvent) -> tuple[int, int]:
    time = event.event_time
    return time.seconds, time.nanos


def event_time_of(event: SensorEvent) -> str:
    """Returns the event time in RFC 3339, for the attribute; empty if it is not set or invalid."""
    try:
        return event.event_time.ToJsonString() if event.HasField("event_time") else ""
    except ValueError:  # an invalid Timestamp; an attribute that does not parse would stop a DirectRunner
        return ""
