"""JSON is parsed exactly as protobuf's mapping defines it: all that it allows, and nothing else."""

import json
import math
from contextlib import suppress
from datetime import datetime

import pytest
from google.protobuf import json_format
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.core.events.event import validate
from pipeline.core.events.message import BATCH_TYPE, ENCODING, MESSAGE_TYPE, Message, decode, sensor_event
from pipeline.core.events.protobuf_json import parse_json
from pipeline.core.events.reasons import BadData, Reason
from pipeline.proto.sensor_event_pb2 import SensorEvent, SensorEventBatch

FAR = 2**62


def parsed(text, into=SensorEvent):
    return parse_json(text if isinstance(text, bytes) else text.encode(), into)


def refusal(text, into=SensorEvent):
    with pytest.raises(ValueError, match=r"\A.+\Z") as caught:
        parsed(text, into)
    return str(caught.value)


def reading(text):
    return parsed(f'{{"readings": {{"t": {text}}}}}').readings["t"]


def instant(text):
    timestamp = parsed(json.dumps({"event_time": text})).event_time
    return timestamp.seconds, timestamp.nanos


def outcome(message):
    """Returns the decoded events of a message, or the reason why it is refused."""
    try:
        return list(decode(message)), None
    except BadData as problem:
        return None, problem.reason


class TestReadings:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("-0", -0.0),
            ("1e-400", 0.0),
            ("9007199254740992", 2.0**53),
            ("9007199254740994", 2.0**53 + 2),
            ("1" + "0" * 22, 1e22),
            ("1" + "0" * 5000 + "e-5000", 1.0),
            ('"23.5"', 23.5),
            (r'"\u0031"', 1.0),
            ('"Infinity"', math.inf),
            ('"-Infinity"', -math.inf),
        ],
    )
    def test_numbers(self, text, value):
        """A JSON number, with or without quotes, is the nearest double. Infinities need quotes."""
        assert math.copysign(1, reading(text)) == math.copysign(1, value)
        assert reading(text) == value

    @pytest.mark.parametrize("text", ["9007199254740993", '"-9007199254740993"', "1" + "0" * 300])
    def test_integers_that_a_double_cannot_hold(self, text):
        """An integer is never rounded silently: it is refused, with or without quotes."""
        with pytest.raises(BadData) as refused:
            decode(Message(f'{{"readings": {{"t": {text}}}}}'.encode(), {ENCODING: "JSON"}))
        assert refused.value.reason is Reason.INEXACT_INTEGER

    @pytest.mark.parametrize(
        "text",
        [
            *("true", "false", "null", "[]", "[1]", "{}", '""', '"warm"', '"true"'),
            *("NaN", "Infinity", "-Infinity", '"nan"', '"inf"', '"+Infinity"', '"infinity"', '"NAN"'),
            *('"1_000"', '"１２"', '"١"', '" 1"', '"1 "', r'"1\n"', r'"\u00a01"', r'"1\u0000"'),
            *("+1", "01", "1.", ".5", "1e", "0x1", '"+1"', '"01"', '"1."', '".5"', '"1e"', '"0x1"', '"1,5"', '"--1"'),
            *("1e400", "-1e309", '"1e400"', '"-1e309"', "1.8e308"),
            *("9" * 400, "-" + "9" * 400, "9" * 5000, f'"{"9" * 400}"', f'"{"9" * 5000}"'),
        ],
    )
    def test_no_numbers(self, text):
        """Other notations that Python or another language accepts, and numbers beyond a double, are refused."""
        refusal(f'{{"readings": {{"t": {text}}}}}')

    @given(st.text(st.sampled_from("0123456789.-+eE_ ١１infaN\n"), max_size=12) | st.text(max_size=8))
    @example("1_0")
    @example("Infinity")
    def test_any_text(self, text):
        """A string is a number if and only if it is one without its quotes."""
        try:
            expected = json.loads(text, parse_int=float, parse_constant=float)
        except ValueError:
            expected = None
        good = type(expected) is float and text == text.strip() and (text[-1] in "yN" or math.isfinite(expected))
        try:
            value = reading(json.dumps(text))
        except ValueError:
            assert not good
        else:
            assert good
            assert math.isnan(value) if text == "NaN" else value == expected

    @given(st.floats())
    def test_any_double(self, value):
        """Every double survives a round trip."""
        text = json_format.MessageToJson(SensorEvent(readings={"t": value}))
        assert str(parsed(text).readings["t"]) == str(value)


class TestEventTime:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("1970-01-01T00:00:00Z", (0, 0)),
            ("2026-02-17T10:00:00.123456789Z", (1771322400, 123_456_789)),
            ("2026-02-17T10:00:00-00:00", (1771322400, 0)),
            ("2026-02-17T10:00:00.25-23:59", (1771322400 + 86_340, 250_000_000)),
            ("1969-12-31T23:59:59.75Z", (-1, 750_000_000)),
            ("0001-01-01T00:00:00Z", (-62_135_596_800, 0)),
            ("9999-12-31T23:59:59.999999999Z", (253_402_300_799, 999_999_999)),
        ],
    )
    def test_rfc_3339(self, text, expected):
        """RFC 3339 is parsed with any offset and to the nanosecond. The epoch, too, is an event time that is set."""
        assert instant(text) == expected
        assert parsed(json.dumps({"event_time": text})).HasField("event_time")

    @pytest.mark.parametrize(
        "text",
        [
            *("", "now", "2026-02-17", "2026-02-17T10:00", "2026-02-17T10:00:00", "2026-02-17 10:00:00Z"),
            *("2026-02-17t10:00:00Z", "2026-02-17T10:00:00z", " 2026-02-17T10:00:00Z", "2026-02-17T10:00:00Z "),
            *("2026-02-17T10:00:00Z\n", "2026-02-17T10:00:00ZZ", "2026-2-17T10:00:00Z", "20260217T100000Z"),
            *("2026-02-30T00:00:00Z", "2026-13-01T00:00:00Z", "2026-00-01T00:00:00Z", "2025-02-29T00:00:00Z"),
            *("2026-02-17T24:00:00Z", "2026-02-17T10:60:00Z", "2026-02-17T10:00:60Z", "2026-02-17T10:00:61Z"),
            *("2026-02-17T10:00:00.Z", "2026-02-17T10:00:00,5Z", "2026-02-17T10:00:00.1234567891Z"),
            *("2026-02-17T10:00:00.1e3Z", "2026-02-17T10:00:00.1_0Z", "2026-02-17T10:00:00.-5Z"),
            *("2026-02-17T10:00:00+99:99", "2026-02-17T10:00:00+24:00", "2026-02-17T10:00:00+00:60"),
            *("2026-02-17T10:00:00+1:2:3", "2026-02-17T10:00:00+1:00", "2026-02-17T10:00:00+0100"),
            *("2026-02-17T10:00:00+01", "2026-02-17T10:00:00+", "2026-02-17T10:00:00-", "2026-02-17T10:00:00+-1:00"),
            *("2026-02-17T10:00:00+01:-5", "2026-02-17T10:00:00+01:00Z", "2026-02-17T10:00:00Z+01:00"),
            *("٢٠٢٦-02-17T10:00:00Z", "2026-02-17T10:00:0５Z", "2026-02-17T10:00:00−01:00"),
            *("0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z", "+2026-02-17T10:00:00Z", "-001-01-01T00:00:00Z"),
            *("0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59-00:01"),
        ],
    )
    def test_no_time(self, text):
        """Other notations, dates and offsets that do not exist, and years beyond a Timestamp are refused."""
        refusal(json.dumps({"event_time": text}))
        refusal('{"event_time": {"seconds": 5, "nanos": 0}}')

    @given(
        st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)),
        st.integers(-23 * 60 - 59, 23 * 60 + 59),
        st.integers(0, 9),
    )
    def test_any_time(self, local, offset, decimals):
        """The parsed time agrees with Python's own parser."""
        hours, minutes = divmod(abs(offset), 60)
        fraction = f".{local.microsecond:06}000"[: decimals + 1] if decimals else ""
        text = f"{local:%H:%M:%S}{fraction}{'-' if offset < 0 else '+'}{hours:02}:{minutes:02}"
        text = f"{local.year:04}-{local:%m-%d}T{text}"
        seconds, nanos = instant(text)
        reference = datetime.fromisoformat(text.replace(fraction, "")) if fraction else datetime.fromisoformat(text)
        assert seconds == (reference - datetime.fromisoformat("1970-01-01T00:00:00+00:00")).total_seconds()
        assert nanos == int(fraction[1:].ljust(9, "0"))


class TestDocument:
    @pytest.mark.parametrize(
        "text",
        [
            '{"sensorId": "a", "eventTime": "2026-02-17T10:00:00Z", "eventId": "e"}',
            '{"sensor_id": "a", "event_time": "2026-02-17T10:00:00Z", "event_id": "e"}',
            ' \t\r\n{"event_id": "e", "sensorId": "a", "event_time": "2026-02-17T10:00:00Z"}\n',
            '{"sensorId": "a", "eventTime": "2026-02-17T10:00:00Z", "eventId": "e", "readings": null, "metadata": {}}',
            r'{"sensor\u0049d": "\u0061", "eventTime": "2026-02-17T10:00:00Z", "eventId": "e"}',
        ],
    )
    def test_names(self, text):
        """Fields may use either of their names, in any order. Null means not set."""
        expected = SensorEvent(sensor_id="a", event_id="e")
        expected.event_time.FromJsonString("2026-02-17T10:00:00Z")
        assert parsed(text) == expected

    @pytest.mark.parametrize(
        "text",
        [
            '{"sensorId": "a", "sensorId": "a"}',
            '{"sensorId": "a", "sensor_id": "a"}',
            r'{"sensorId": "a", "sensor\u0049d": "a"}',
            '{"readings": {"t": 1, "t": 1}}',
            r'{"readings": {"t": 1, "\u0074": 1}}',
            '{"altitude": {"a": 1, "a": 2}}',
        ],
    )
    def test_twice(self, text):
        """A name that appears twice is refused, whether the values agree or not."""
        assert "twice" in refusal(text) or "both its names" in refusal(text)

    @pytest.mark.parametrize(
        "text",
        [
            *("", " ", "null", "[]", "1", '""', "true", "{", "{}{}", "{} x", "{}\0", "\ufeff{}", "\u00a0{}", "\x0b{}"),
            *("{'sensorId': 'a'}", '{"sensorId": "a",}', '{sensorId: "a"}', '{"sensorId": "a"} // mine'),
            *('{"SensorId": "a"}', '{"sensorid": "a"}', '{"": 1}', '{"@type": "x"}', '{"[tidetable.v1.x]": 1}'),
            *('{"altitude": null}', '{"events": []}', '{"sensorId": 7}', '{"sensorId": ["a"]}', '{"eventId": true}'),
            *('{"sensorId": "a\nb"}', r'{"sensorId": "\ud800"}', r'{"eventId": "\udc00\ud800"}', r'{"\ud800": 1}'),
            *('{"readings": []}', '{"readings": ""}', '{"readings": [["t", 1]]}', r'{"readings": {"\ud800": 1}}'),
            *('{"metadata": {"a": 1}}', '{"metadata": {"a": null}}', '{"metadata": {"a": true}}', '{"metadata": []}'),
            *(r'{"metadata": {"a": "\udfff"}}', r'{"metadata": {"\udfff": "a"}}', r'{"sensorId": "\x61"}'),
            *('{"a":' * 100_000, "[" * 100_000),
            *(b'{"sensorId": "\xff"}', b'{"sensorId": "\xed\xa0\x80"}', b'{"sensorId": "\xc0\x80"}', b"\xff\xfe{\0}\0"),
            *(b"{\0}\0", b"\xef\xbb\xbf{}"),
        ],
    )
    def test_refused(self, text):
        """Invalid UTF-8, documents that are not JSON objects, unknown fields and wrong types are refused."""
        refusal(text)

    @pytest.mark.parametrize(
        "text", ["[]", '{"events": {}}', '{"events": [null]}', '{"events": [[]]}', '{"sensorId": "a"}']
    )
    def test_refused_batch(self, text):
        """A batch must be an object with an array of objects."""
        refusal(text, SensorEventBatch)

    def test_where(self):
        """The message states where the problem is, and escapes unprintable characters."""
        assert refusal('{"events": [{}, {"readings": {"t": true}}]}', SensorEventBatch) == (
            "events[1]: 't' is a boolean, not a number"
        )
        assert refusal(json.dumps({"x" * 1000: 1})) == f"there is no field '{'x' * 80}…'"
        assert refusal('{"event\u202e": 1}') == r"there is no field 'event\u202e'"

    @pytest.mark.timeout(20)
    def test_no_quadratic_price(self):
        """Refusing a large message for its last name takes linear time."""
        names = ", ".join(f'"{i}": 1' for i in range(200_000))
        refusal(f'{{"readings": {{{names}, "199999": 1}}}}')


VALUES = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**20), 10**20).map(float)
EVENTS = st.builds(
    sensor_event,
    st.text(max_size=4),
    st.integers(-(10**15), 10**16),
    st.dictionaries(st.text(max_size=3), VALUES, max_size=3),
    st.dictionaries(st.text(max_size=3), st.text(max_size=5), max_size=3),
    st.text(max_size=2),
)
CHANGES = st.sampled_from(
    [
        *('"', "{", "}", "[", "]", ",", ":", "0", "-", "+", ".", "e5", "_", " ", "\\", "\\ud800", "\\u0031", "null"),
        *("true", "NaN", "Infinity", "9" * 400, "１", "\u2028", "\x7f", '"t":1,', '"sensor_id":"x",', "T", "Z", ":99"),
    ]
)


class TestAgainstProtobuf:
    """protobuf's own parser accepts all that the mapping allows, and more."""

    @given(EVENTS, st.booleans(), st.sampled_from([None, 0, 2]), st.booleans())
    def test_what_protobuf_writes(self, event, own_names, indent, ascii_only):
        """Whatever protobuf writes survives a round trip, alone and in a batch."""
        options = {"preserving_proto_field_name": own_names, "indent": indent, "ensure_ascii": ascii_only}
        assert parsed(json_format.MessageToJson(event, **options)) == event
        batch = SensorEventBatch(events=[event, SensorEvent(), event])
        assert parsed(json_format.MessageToJson(batch, **options), SensorEventBatch) == batch

    @given(EVENTS, st.booleans(), st.lists(st.tuples(st.integers(0, 300), st.integers(0, 4), CHANGES), max_size=3))
    def test_changed(self, event, batch, changes):
        """Damaged JSON is parsed as protobuf parses it, or is UNPARSEABLE."""
        kind = SensorEventBatch if batch else SensorEvent
        text = json_format.MessageToJson(SensorEventBatch(events=[event]) if batch else event, indent=None)
        for at, cut, new in changes:
            at %= len(text) + 1
            text = text[:at] + new + text[at + cut :]
        message = Message(text.encode(), {ENCODING: "JSON", MESSAGE_TYPE: kind.DESCRIPTOR.full_name})
        decoded, reason = outcome(message)
        if decoded is None:
            assert reason is Reason.UNPARSEABLE
            return
        by_protobuf = json_format.Parse(text, kind())
        assert decoded == (list(by_protobuf.events) if batch else [by_protobuf])
        for each in decoded:
            with suppress(BadData):
                validate(each, FAR)

    @given(
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats()
            | st.text(max_size=5)
            | st.just("2026-02-17T10:00:00Z"),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        ["sensorId", "sensor_id", "eventTime", "readings", "metadata", "eventId", "events", "t"]
                    ),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=12,
        ),
        st.booleans(),
    )
    def test_any_json(self, value, batch):
        """Any JSON is parsed as protobuf parses it or raises BadData, never another error."""
        text = json.dumps(value)
        attributes = {ENCODING: "JSON"} | ({MESSAGE_TYPE: BATCH_TYPE} if batch else {})
        with suppress(BadData):
            decoded = list(decode(Message(text.encode(), attributes)))
            by_protobuf = json_format.Parse(text, SensorEventBatch() if batch else SensorEvent())
            assert decoded == (list(by_protobuf.events) if batch else [by_protobuf])
            for each in decoded:
                validate(each, FAR)
