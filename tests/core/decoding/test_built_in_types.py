"""The built-in types, written as mappings, against their own reader; and JSON of other types of protobuf."""

import json

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.decoding.message_types import BuiltIn, MappedType
from pipeline.core.events.event import LATEST_US
from pipeline.core.events.message import BATCH_TYPE, EVENT_TYPE, Message, sensor_event
from pipeline.core.events.reasons import BadData, Reason
from pipeline.proto import sensor_event_pb2
from pipeline.proto.sensor_event_pb2 import SensorEventBatch
from tests.core.decoding.mapping.protos import descriptor_set
from tests.core.events.building import HOUR_US, REFUSED
from tests.support import strategies

TYPES = FileDescriptorSet()
sensor_event_pb2.DESCRIPTOR.CopyToProto(TYPES.file.add())
EVENT = """
message = "tidetable.v1.SensorEvent"
sensor = "sensor_id"
time = "event_time"
event_id = "event_id"
[readings]
"*" = "readings.*"
[metadata]
"*" = "metadata.*"
"""
BATCH = """
message = "tidetable.v1.SensorEventBatch"
each = "events[]"
sensor = ".sensor_id"
time = ".event_time"
event_id = ".event_id"
[readings]
"*" = ".readings.*"
[metadata]
"*" = ".metadata.*"
"""
MAPPED = {
    EVENT_TYPE: MappedType("event.toml", EVENT, TYPES.SerializeToString()),
    BATCH_TYPE: MappedType("batch.toml", BATCH, TYPES.SerializeToString()),
}
BUILT_IN = BuiltIn()
T = 1_771_324_200_000_000
VALID = sensor_event("valid", T, {"t": 1.5}, {"site": "roof"}, "e1")


def _message(proto, encoding):
    attributes = {"message_type": proto.DESCRIPTOR.full_name, "googclient_schemaencoding": encoding}
    is_json = encoding == "JSON"
    data = json_format.MessageToJson(proto).encode() if is_json else proto.SerializeToString()
    return Message(data, attributes)


def _outcome(message_type, message, latest_us=LATEST_US):
    """Returns the valid events, and the reasons of what is refused."""
    try:
        decoded = message_type.decode(message, latest_us)
    except BadData as problem:
        return [], {problem.reason}
    return [event[:5] for event in decoded.events], {problem.reason for _, problem in decoded.refused}


def _both(message, latest_us=LATEST_US):
    mapped = MAPPED[message.attributes["message_type"]]
    return _outcome(BUILT_IN, message, latest_us), _outcome(mapped, message, latest_us)


@given(
    st.lists(strategies.events(), max_size=5, unique_by=lambda event: event[:2]), st.sampled_from(["BINARY", "JSON"])
)
def test_events_and_batches(events, encoding):
    """The built-in types, written as mappings, decode events as their own reader does."""
    protos = [sensor_event(*event[:5]) for event in events]
    built_in, mapped = _both(_message(SensorEventBatch(events=protos), encoding))
    assert mapped == built_in == ([event[:5] for event in events], set())
    for proto, event in zip(protos[:1], events, strict=False):
        built_in, mapped = _both(_message(proto, encoding))
        assert mapped == built_in == ([event[:5]], set())


@pytest.mark.parametrize("reason", REFUSED)
def test_an_event_that_is_refused(reason):
    """Both readers give the same reason; of a batch, the other events are kept."""
    for invalid in REFUSED[reason]:
        built_in, mapped = _both(_message(invalid, "BINARY"), T + HOUR_US)
        assert mapped == built_in == ([], {reason})
        built_in, mapped = _both(_message(SensorEventBatch(events=[VALID, invalid]), "BINARY"), T + HOUR_US)
        assert built_in == ([("valid", T, {"t": 1.5}, {"site": "roof"}, "e1")], {reason})
        if reason is Reason.NO_READINGS:  # which with `each` is no event
            assert mapped == (built_in[0], set())
        else:
            assert mapped == built_in


@pytest.mark.parametrize("name", [EVENT_TYPE, BATCH_TYPE])
@pytest.mark.parametrize(
    ("data", "attributes", "reason"),
    [
        (b"\xff", {}, Reason.UNPARSEABLE),
        (b"\x0a\x01\xff", {}, Reason.UNPARSEABLE),
        (b"{", {"googclient_schemaencoding": "JSON"}, Reason.UNPARSEABLE),
        (b"[1]", {"googclient_schemaencoding": "JSON"}, Reason.UNPARSEABLE),
        (b"\xff", {"googclient_schemaencoding": "JSON"}, Reason.UNPARSEABLE),
        (b"[" * 100_000, {"googclient_schemaencoding": "JSON"}, Reason.UNPARSEABLE),
        (b'{"sensor_id": "\\ud800"}', {"googclient_schemaencoding": "JSON"}, Reason.UNPARSEABLE),
        (b'{"unknown": 1}', {"googclient_schemaencoding": "JSON"}, Reason.UNPARSEABLE),
        (b'{"sensor_id": "a", "sensor_id": "b"}', {"googclient_schemaencoding": "JSON"}, Reason.UNPARSEABLE),
        (b"{}", {"googclient_schemaencoding": "XML"}, Reason.UNKNOWN_ENCODING),
    ],
)
def test_a_message_that_is_refused(name, data, attributes, reason):
    """The mapping refuses a message for the same reason as the built-in reader."""
    built_in, mapped = _both(Message(data, {"message_type": name, **attributes}))
    assert mapped == built_in == ([], {reason})


@pytest.mark.parametrize(("digits", "value"), [("9007199254740993", None), ("9007199254740994", 9007199254740994.0)])
def test_an_integer_in_json(digits, value):
    """A field of type double takes it exactly, or the message is refused."""
    data = f'{{"sensor_id": "a", "event_time": "2026-02-17T10:30:00Z", "readings": {{"t": {digits}}}}}'.encode()
    message = Message(data, {"message_type": EVENT_TYPE, "googclient_schemaencoding": "JSON"})
    built_in, mapped = _both(message)
    expected = ([], {Reason.INEXACT_INTEGER}) if value is None else ([("a", T, {"t": value}, {}, "")], set())
    assert mapped == built_in == expected
    rounding = MappedType("event.toml", 'inexact_integers = "round"' + EVENT, TYPES.SerializeToString())
    assert _outcome(rounding, message) == ([("a", T, {"t": float(digits)}, {}, "")], set())


FOREIGN = """
import "google/protobuf/any.proto";
import "google/protobuf/struct.proto";
package acme;
message Inner { int64 count = 1; }
message Report {
  string id = 1;
  uint64 time_ms = 2;
  google.protobuf.Struct values = 3;
  google.protobuf.Any detail = 4;
  fixed64 serial = 5;
  float ratio = 6;
  repeated double more = 7;
}
"""
REPORT = """
message = "acme.Report"
sensor = "{id}/{serial}"
time = { path = "time_ms", unit = "ms" }
[types]
detail = "acme.Inner"
[readings]
"*" = "values.**"
count = "detail.count"
ratio = "ratio"
"""


@pytest.fixture(scope="module")
def report():
    """Returns the outcome of a report in protobuf's JSON."""
    mapped = MappedType("report.toml", REPORT, descriptor_set(FOREIGN))

    def of(**fields):
        data = json.dumps({"id": "a", "timeMs": "1771324200000", **fields}).encode()
        return _outcome(mapped, Message(data, {"googclient_schemaencoding": "JSON"}))

    return of


def test_json_of_another_type(report):
    """Integers of 64 bits are text there, and an Any names its type."""
    detail = {"@type": "type.googleapis.com/acme.Inner", "count": "7"}
    digits = str((1 << 53) + 1)
    events, reasons = report(
        id=digits, serial=str((1 << 64) - 1), values={"a": {"b": 1, "c": True}}, detail=detail, ratio=0.1
    )
    assert not reasons
    ((sensor, time_us, readings, _, _),) = events
    assert (sensor, time_us) == (f"{digits}/18446744073709551615", T)
    assert readings == {"a.b": 1, "a.c": 1, "count": 7, "ratio": pytest.approx(0.1)}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"values": {"a": (1 << 53) + 1}}, Reason.INEXACT_INTEGER),
        ({"ratio": (1 << 53) + 1}, Reason.INEXACT_INTEGER),
        ({"ratio": str((1 << 53) + 1)}, Reason.INEXACT_INTEGER),  # json_format would round these
        ({"more": [1, str((1 << 53) + 1)]}, Reason.INEXACT_INTEGER),
        ({"detail": {"@type": "type.googleapis.com/acme.Other"}}, Reason.UNPARSEABLE),
        ({"detail": {"@type": 1}}, Reason.UNPARSEABLE),
        ({"detail": [1]}, Reason.UNPARSEABLE),
        ({"values": [1]}, Reason.UNPARSEABLE),
        ({"serial": -1}, Reason.UNPARSEABLE),
        ({"serial": 1 << 64}, Reason.UNPARSEABLE),
        ({"serial": 1.5}, Reason.UNPARSEABLE),
        ({"ratio": "x"}, Reason.UNPARSEABLE),
        ({"ratio": 1e300}, Reason.UNPARSEABLE),
        ({"id": None}, Reason.MISSING_SENSOR_ID),
    ],
)
def test_json_that_is_no_such_type(report, fields, reason):
    """JSON that does not fit the declared type is refused with its reason."""
    assert report(**({"ratio": 1} | fields)) == ([], {reason})


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "time_ms", "values", "detail", "@type", "serial", "ratio"]), inner)
    ),
    max_leaves=8,
)


@given(_json)
def test_any_json_is_events_or_refused(document):
    """Any JSON document is decoded or refused, and raises nothing else."""
    mapped = MappedType("report.toml", REPORT, descriptor_set(FOREIGN))
    _outcome(mapped, Message(json.dumps(document).encode(), {"googclient_schemaencoding": "JSON"}))
