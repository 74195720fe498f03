"""Tests every rule of the contract on both sides of its limit."""

import math
import pickle

import pytest
from apache_beam.internal import pickler
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.events import event as events
from pipeline.core.events.event import (
    EARLIEST_US,
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
from tests.core.events.building import HOUR_US, NOW_US, check, event, message, refusal


class TestSensorId:
    @pytest.mark.parametrize("sensor_id", ["a", "!", "~", '"$%', "x" * 256, "agg1", "AGG", "schema-2", "a/b.c:d"])
    def test_valid(self, sensor_id):
        """A sensor_id is up to 256 bytes of printable ASCII without '#'."""
        assert check(event(sensor_id=sensor_id)).sensor_id == sensor_id

    @pytest.mark.parametrize("sensor_id", ["", " ", "\t\n"])
    def test_missing(self, sensor_id):
        """An empty or blank sensor_id counts as missing."""
        assert refusal(check, event(sensor_id=sensor_id)) is Reason.MISSING_SENSOR_ID

    @pytest.mark.parametrize(
        "sensor_id",
        ["a#b", "#", "a b", "a\n", "\na", "a\x00", "a\x1f", "a\x7f", "é", "x" * 257, "agg", "schema", "repair"],
    )
    def test_invalid(self, sensor_id):
        """'#', blanks, control characters, non-ASCII characters, long ids and reserved names are refused."""
        assert refusal(check, event(sensor_id=sensor_id)) is Reason.INVALID_SENSOR_ID

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
    def test_why(self, text, why):
        """The message says what is wrong with just this text."""
        with pytest.raises(ValueError, match=why):
            checked_sensor_id(text)


class TestEventTime:
    @pytest.mark.parametrize("time_us", [EARLIEST_US, EARLIEST_US + 1, NOW_US, NOW_US + HOUR_US - 1, NOW_US + HOUR_US])
    def test_valid(self, time_us):
        """Event times from 2000 to now + max_future are valid, both inclusive. Nanoseconds are cut to microseconds."""
        proto = event(event_time_us=time_us)
        proto.event_time.nanos += 999
        assert check(proto).event_time_us == time_us

    def test_missing(self):
        """An unset event time is missing, not in 1970."""
        proto = event()
        proto.ClearField("event_time")
        assert refusal(check, proto) is Reason.MISSING_EVENT_TIME

    @pytest.mark.parametrize("time_us", [EARLIEST_US - 1, 0, 915_148_800_000_000], ids=["edge", "1970", "1999"])
    def test_too_early(self, time_us):
        """One microsecond before 2000 is too early."""
        assert refusal(check, event(event_time_us=time_us)) is Reason.EVENT_TIME_TOO_EARLY

    @pytest.mark.parametrize("time_us", [NOW_US + HOUR_US + 1, 10_413_792_000_000_000], ids=["edge", "2300"])
    def test_in_future(self, time_us):
        """One microsecond after now + max_future is in the future."""
        assert refusal(check, event(event_time_us=time_us)) is Reason.EVENT_TIME_IN_FUTURE

    def test_never_beyond_the_row_key(self):
        """A time that a row key cannot express is refused, whatever max_future is."""
        latest = LATEST_US * 2
        assert validate(event(event_time_us=LATEST_US), latest).event_time_us == LATEST_US
        assert refusal(validate, event(event_time_us=LATEST_US + 1), latest) is Reason.EVENT_TIME_IN_FUTURE

    @pytest.mark.parametrize("nanos", [-1, 1_000_000_000, -(2**31)])
    def test_no_timestamp(self, nanos):
        """A Timestamp with negative nanoseconds, or a second or more of them, is invalid."""
        proto = event()
        proto.event_time.nanos = nanos
        assert refusal(check, proto) is Reason.INVALID_EVENT_TIME

    @pytest.mark.parametrize("seconds", [2**63 - 1, -(2**63)])
    def test_seconds_beyond_any_calendar(self, seconds):
        """Times outside every calendar are refused like others, with a detail."""
        proto = event()
        proto.event_time.seconds = seconds
        assert refusal(check, proto) in (Reason.EVENT_TIME_IN_FUTURE, Reason.EVENT_TIME_TOO_EARLY)


class TestReadings:
    @pytest.mark.parametrize("value", [-0.0, 5e-324, 1e308, -1e308])
    def test_any_finite_value(self, value):
        """Negative zero, subnormal and huge values are valid."""
        read = check(event(readings={"x": value})).readings["x"]
        assert read == value
        assert math.copysign(1, read) == math.copysign(1, value)

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_non_finite(self, value):
        """An event with a value that is not finite is refused."""
        assert refusal(check, event(readings={"a": 1.0, "x": value})) is Reason.NON_FINITE_VALUE

    def test_none(self):
        """An event without readings is refused."""
        assert refusal(check, event(readings={})) is Reason.NO_READINGS

    def test_how_many(self):
        """An event may have 1,000 readings, not one more."""
        readings = {f"m{i}": 1.0 for i in range(1001)}
        assert refusal(check, event(readings=readings)) is Reason.TOO_MANY_READINGS
        readings.popitem()
        assert len(check(event(readings=readings)).readings) == 1000

    @pytest.mark.parametrize("name", ["t", "_", "Temp.2-x_y", "m" * 128])
    def test_valid_name(self, name):
        """A name is a letter or underscore, then letters, digits, '_', '.' or '-', at most 128 in all."""
        assert check(event(readings={name: 1.0})).readings == {name: 1.0}

    @pytest.mark.parametrize("name", ["", "m" * 129, "2m", "-m", ".m", "a b", "a:b", "°C", "a\n", "a#b"])
    def test_invalid_name(self, name):
        """Any other metric name is refused."""
        assert refusal(check, event(readings={name: 1.0})) is Reason.INVALID_METRIC_NAME


class TestMetadata:
    def test_valid(self):
        """Metadata is kept unchanged, including empty values and any Unicode."""
        metadata = {"location": "Zürich 🏔", "note": ""}
        checked = check(event(metadata=metadata))
        assert checked[:4] == Event("balloon-7", NOW_US, {"temperature": 23.5}, metadata)[:4]

    def test_how_many(self):
        """An event may have 100 entries, not one more."""
        metadata = {f"k{i}": "v" for i in range(101)}
        assert refusal(check, event(metadata=metadata)) is Reason.TOO_MUCH_METADATA
        metadata.popitem()
        assert len(check(event(metadata=metadata)).metadata) == 100

    @pytest.mark.parametrize("name", ["", "k" * 129, "a b"])
    def test_invalid_name(self, name):
        """A metadata name follows the rule of metric names."""
        assert refusal(check, event(metadata={name: "v"})) is Reason.INVALID_METADATA_NAME

    @pytest.mark.parametrize("character", ["x", "ü", "🏔"])
    def test_length_in_bytes(self, character):
        """A value may have 4 KiB of UTF-8, not one character more."""
        fits = character * (4096 // len(character.encode()))
        assert check(event(metadata={"note": fits})).metadata["note"] == fits
        assert refusal(check, event(metadata={"note": fits + character})) is Reason.METADATA_TOO_LONG


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
