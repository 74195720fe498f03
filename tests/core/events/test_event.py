"""Tests every rule of the contract on both sides of its limit."""

import math
import pickle

import pytest
from apache_beam.internal import pickler
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.events import event as events
from pipeline.core.events.event import (
    LATEST_US,
    Event,
    checked_sensor_id,
    deserialized,
    serialized,
    validate,
)
from pipeline.core.events.message import decode
from pipeline.core.events.reasons import BadData, Reason
from pipeline.proto.sensor_event_pb2 import SensorEvent
from tests.core.events.building import NOW_US, REFUSED, VALID, check, event, message, refusal


@pytest.mark.parametrize("proto", VALID)
def test_valid(proto):
    """An event at the limit of a rule is valid, and keeps its values. Nanoseconds are cut to microseconds."""
    expected = Event(proto.sensor_id, proto.event_time.ToMicroseconds(), dict(proto.readings), dict(proto.metadata))
    later = SensorEvent.FromString(proto.SerializeToString())
    later.event_time.nanos += 999
    found = check(later)
    assert found[:4] == expected[:4]
    assert str(sorted(found.readings.items())) == str(sorted(expected.readings.items()))  # in which -0.0 is not 0.0


@pytest.mark.parametrize("reason", REFUSED)
def test_refused(reason):
    """An event beyond the limit of a rule is refused with its reason."""
    assert {refusal(check, proto) for proto in REFUSED[reason]} == {reason}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "Käller",
            "'Käller' can't be a sensor's id: it contains 'ä', and only printable ASCII without '#' and spaces",
        ),
        ("a b", "it contains ' '"),
        ("a\n", r"it contains '\\n'"),
        ("x" * 257, "it has 257 characters, and 256 are allowed"),
        ("agg", "it is reserved for the table's own rows"),
        ("", "it is empty"),
    ],
)
def test_why_no_sensor_id(text, why):
    """The message says what is wrong with just this text."""
    with pytest.raises(ValueError, match=why):
        checked_sensor_id(text)


def test_never_beyond_the_row_key():
    """A time that a row key cannot express is refused, whatever max_future is."""
    latest = LATEST_US * 2
    assert validate(event(event_time_us=LATEST_US), latest).event_time_us == LATEST_US
    assert refusal(validate, event(event_time_us=LATEST_US + 1), latest) is Reason.EVENT_TIME_IN_FUTURE


@given(
    st.builds(
        SensorEvent,
        sensor_id=st.text(max_size=5),
        readings=st.dictionaries(st.text(max_size=3), st.floats(), max_size=3),
        metadata=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3),
    )
)
def test_details_are_one_line(proto):
    """The detail is one short line of text, whatever the event's fields contain."""
    with pytest.raises(BadData) as caught:
        check(proto)  # there is no event time
    assert caught.value.detail.isprintable()
    assert len(caught.value.detail) < 600


def test_giants_are_not_kept():
    """Oversized ids and names are not cached."""
    before = events._is_sensor_id.cache_info().currsize, events._matches_name.cache_info().currsize
    for i in range(10):
        giant = f"{i}" * 100_000
        assert refusal(check, event(sensor_id=giant)) is Reason.INVALID_SENSOR_ID
        assert refusal(check, event(readings={giant: 1.0}, sensor_id="balloon-7")) is Reason.INVALID_METRIC_NAME
    after = events._is_sensor_id.cache_info().currsize, events._matches_name.cache_info().currsize
    assert after[0] <= before[0] + 1  # balloon-7
    assert after[1] == before[1]


class TestSerialized:
    @given(
        st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=20),
        st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=20),
        st.randoms(),
    )
    def test_same_bytes_whatever_the_order(self, readings, metadata, random):
        """The bytes do not depend on the order of the publisher's maps."""

        def shuffled(entries):
            items = list(entries.items())
            random.shuffle(items)
            return dict(items)

        one = event(readings=readings, metadata=metadata)
        other = event(readings=shuffled(readings), metadata=shuffled(metadata))
        messages = [Event("", 0, {}, {}, "", proto) for proto in (one, other)]
        plain = Event("balloon-7", NOW_US, shuffled(readings), shuffled(metadata))
        assert serialized(messages[0]) == serialized(messages[1]) == serialized(plain)

    def test_without_a_message(self):
        """An event without a message is serialized with its time to the microsecond and its id."""
        plain = Event("balloon-7", NOW_US + 123_456, {"t": -0.0}, {"k": ""}, "e-1")
        read = deserialized(serialized(plain))
        assert read[:5] == plain[:5] == deserialized(serialized(read))[:5]
        assert math.copysign(1, read.readings["t"]) == -1

    def test_unknown_fields_are_kept(self):
        """Unknown fields, from a newer publisher, survive serialization."""
        data = event().SerializeToString() + b"\xf8\x07\x2a"  # field 127, varint 42
        (decoded,) = decode(message(data))
        assert check(decoded).message is decoded
        again = serialized(deserialized(serialized(check(decoded))))
        assert again.endswith(b"\xf8\x07\x2a")

    @pytest.mark.parametrize("data", [b"\xff", b"\x0a\x02\xff\xfe", event().SerializeToString()[:-1]])
    def test_bytes_that_are_none(self, data):
        """Bytes that are not an event raise ValueError, not protobuf's DecodeError."""
        with pytest.raises(ValueError, match="not a SensorEvent"):
            deserialized(data)

    @pytest.mark.parametrize("pickling", [pickle, pickler], ids=["pickle", "Beam's"])
    def test_pickles(self, pickling):
        """A valid event travels between workers with its message, unknown fields and all, or without one."""
        data = event(event_id="e-1").SerializeToString() + b"\xf8\x07\x2a"  # field 127, varint 42
        (decoded,) = decode(message(data))
        checked = check(decoded)
        for original in (checked, checked._replace(message=None)):
            copy = pickling.loads(pickling.dumps(original))
            assert copy == original
            assert type(copy) is Event


def test_metadata_alone():
    """An event without readings is valid only where metadata alone is kept, and only with metadata."""
    alone, empty = event(readings={}, metadata={"status": "ok"}), event(readings={})
    for _ in range(2):  # the first one must not make the others valid
        assert refusal(check, alone) is Reason.NO_READINGS
        assert validate(alone, LATEST_US, metadata_alone=True).metadata == {"status": "ok"}
        with pytest.raises(BadData, match="no readings"):
            validate(empty, LATEST_US, metadata_alone=True)
    found = validate(alone, LATEST_US, metadata_alone=True)
    assert deserialized(serialized(found))[:5] == found[:5]
