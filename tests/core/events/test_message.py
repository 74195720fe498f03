"""Messages are built of events and parsed to them, in both encodings; what cannot be parsed is refused."""

from contextlib import suppress

import pytest
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.events.message import (
    BATCH_TYPE,
    ENCODING,
    EVENT_TYPE,
    MESSAGE_TYPE,
    Message,
    decode,
    message_of,
    sensor_event,
)
from pipeline.core.events.reasons import BadData, Reason
from pipeline.proto.sensor_event_pb2 import SensorEventBatch
from tests.core.events.building import check, event, message, refusal

T = 1_771_324_200_123_456


def test_built_messages():
    """One event becomes a SensorEvent, several a batch with the earliest time; both decode to the same events."""
    events = [sensor_event("a", T + offset, {"x": 1.0}, {"k": "v"}) for offset in (5_000_000, 0, 7)]
    for content, kind in (([events[1]], EVENT_TYPE), (events, BATCH_TYPE)):
        built = message_of(content)
        assert built.attributes["message_type"] == kind
        assert built.attributes["event_time"] == "2026-02-17T10:30:00.123456Z"
        assert list(decode(built)) == content
        proto = content[0] if kind == EVENT_TYPE else SensorEventBatch(events=content)
        data = json_format.MessageToJson(proto).encode()
        assert list(decode(Message(data, {MESSAGE_TYPE: kind, ENCODING: "JSON"}))) == content


def test_same_events_same_id():
    """The id depends on the payload: an event published again has the same, another event has another."""
    one, again, other = (message_of([sensor_event("a", T, {"x": value}, {})]) for value in (1.0, 1.0, 2.0))
    assert one.attributes["event_id"] == again.attributes["event_id"] != other.attributes["event_id"]


def test_no_valid_time():
    """A message has no event_time attribute if the event time is invalid or not set."""
    event = sensor_event("a", T, {"x": 1.0}, {})
    event.event_time.nanos = -1
    assert "event_time" not in message_of([event]).attributes
    event.ClearField("event_time")
    assert "event_time" not in message_of([event]).attributes


def test_empty_messages():
    """A message without attributes is one event; an empty payload is an empty one, and an empty batch has none."""
    assert decode(message(event().SerializeToString())) == [event()]
    (decoded,) = decode(message(b""))
    assert refusal(check, decoded) is Reason.MISSING_SENSOR_ID
    assert list(decode(message(b"", message_type=BATCH_TYPE))) == []


def test_json_dead_letter_published_again():
    """The renamed encoding of a dead letter applies, unless Pub/Sub has set the real one."""
    data = json_format.MessageToJson(event()).encode()
    renamed = {"dead_letter_googclient_schemaencoding": "JSON"}
    assert decode(Message(data, renamed)) == [event()]
    assert refusal(decode, Message(data, renamed | {ENCODING: "BINARY"})) is Reason.UNPARSEABLE


def test_protobuf_of_another_type():
    """A valid message of another type is refused, at the latest by validation; a truncated one is UNPARSEABLE."""
    data = Struct(fields={"temperature": {"number_value": 23.5}}).SerializeToString()
    assert refusal(lambda: [check(decoded) for decoded in decode(message(data))]) in Reason
    for cut in (data, event().SerializeToString()):
        assert refusal(decode, message(cut[:-1])) is Reason.UNPARSEABLE


@given(st.binary(max_size=200), st.sampled_from([EVENT_TYPE, BATCH_TYPE]))
def test_any_bytes(data, message_type):
    """Any bytes are events or raise BadData, never another error."""
    with suppress(BadData):
        for decoded in decode(message(data, message_type=message_type)):
            check(decoded)


@pytest.mark.parametrize("message_type", ["", "acme.v1.Telemetry", "SensorEvent", "tidetable.v1.SensorEvent "])
def test_wrong_message_type(message_type):
    """An unknown message type is refused."""
    assert refusal(decode, message(b"", message_type=message_type)) is Reason.UNKNOWN_MESSAGE_TYPE


@pytest.mark.parametrize("encoding", ["AVRO", "json", "ENCODING_UNSPECIFIED"])
def test_wrong_encoding(encoding):
    """An encoding that Pub/Sub does not set is refused."""
    assert refusal(decode, Message(b"", {ENCODING: encoding})) is Reason.UNKNOWN_ENCODING
