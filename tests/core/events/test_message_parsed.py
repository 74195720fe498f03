"""What a message contains, in both encodings, and what is refused because it cannot be parsed."""

from contextlib import suppress

import pytest
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.events.message import BATCH_TYPE, ENCODING, EVENT_TYPE, MESSAGE_TYPE, Message, decode
from pipeline.core.events.reasons import BadData, Reason
from pipeline.proto.sensor_event_pb2 import SensorEventBatch
from tests.core.events.building import NOW_US, check, event, message, refusal


class TestDecode:
    def test_single_event_by_default(self):
        """A message without attributes is one event in protobuf's binary encoding."""
        assert decode(message(event().SerializeToString())) == [event()]

    @pytest.mark.parametrize("count", [0, 1, 10_000])
    def test_batch(self, count):
        """A batch yields its events in order. An empty batch is not an error."""
        events = [event(event_time_us=NOW_US + i) for i in range(count)]
        data = SensorEventBatch(events=events).SerializeToString()
        assert list(decode(message(data, message_type=BATCH_TYPE))) == events

    @pytest.mark.parametrize(
        ("message_type", "proto"), [(EVENT_TYPE, event()), (BATCH_TYPE, SensorEventBatch(events=[event(), event()]))]
    )
    def test_json(self, message_type, proto):
        """Both message types may be JSON, if Pub/Sub's attribute is set to it."""
        data = json_format.MessageToJson(proto).encode()
        decoded = decode(Message(data, {MESSAGE_TYPE: message_type, ENCODING: "JSON"}))
        assert list(decoded) == ([proto] if message_type == EVENT_TYPE else list(proto.events))

    def test_json_dead_letter_published_again(self):
        """The renamed encoding of a dead letter applies, unless Pub/Sub has set the real one."""
        data = json_format.MessageToJson(event()).encode()
        renamed = {"dead_letter_googclient_schemaencoding": "JSON"}
        assert decode(Message(data, renamed)) == [event()]
        assert refusal(decode, Message(data, renamed | {ENCODING: "BINARY"})) is Reason.UNPARSEABLE

    def test_empty_message(self):
        """An empty payload is an empty event, and refused as such."""
        (decoded,) = decode(message(b""))
        assert refusal(check, decoded) is Reason.MISSING_SENSOR_ID

    @pytest.mark.parametrize(
        "data",
        [
            b"\xff\xff\xff\xff",
            event().SerializeToString()[:-1],
            b"\x0a\x02\xff\xfe",  # a sensor_id that is not UTF-8
            Struct(fields={"a": {"string_value": "b"}}).SerializeToString()[:-1],
        ],
        ids=["random bytes", "truncated", "no UTF-8", "another type, truncated"],
    )
    def test_unparseable(self, data):
        """Bytes that are not an event are refused."""
        assert refusal(decode, message(data)) is Reason.UNPARSEABLE

    def test_protobuf_of_another_type(self):
        """A valid message of another type is refused, at the latest by validation."""
        data = Struct(fields={"temperature": {"number_value": 23.5}}).SerializeToString()
        assert refusal(lambda: [check(decoded) for decoded in decode(message(data))]) in Reason

    @given(st.binary(max_size=200), st.sampled_from([EVENT_TYPE, BATCH_TYPE]))
    def test_any_bytes(self, data, message_type):
        """Any bytes are events or raise BadData, never another error."""
        with suppress(BadData):
            for decoded in decode(message(data, message_type=message_type)):
                check(decoded)

    @pytest.mark.parametrize("message_type", ["", "acme.v1.Telemetry", "SensorEvent", "tidetable.v1.SensorEvent "])
    def test_wrong_message_type(self, message_type):
        """An unknown message type is refused."""
        assert refusal(decode, message(b"", message_type=message_type)) is Reason.UNKNOWN_MESSAGE_TYPE

    @pytest.mark.parametrize("encoding", ["AVRO", "json", "ENCODING_UNSPECIFIED"])
    def test_wrong_encoding(self, encoding):
        """An encoding that Pub/Sub does not set is refused."""
        assert refusal(decode, Message(b"", {ENCODING: encoding})) is Reason.UNKNOWN_ENCODING
