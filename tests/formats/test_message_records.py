import io

import pytest
from google.protobuf import proto

from pipeline.core.events.event import Event
from pipeline.core.events.message import sensor_event
from pipeline.formats.lines import Lines, Record, Refusal
from pipeline.formats.message_records import delimited_records, ndjson_records
from pipeline.formats.values import UnreadableFile
from tests.formats.reading import MORNING, MORNING_US, events, maker, refusals, too_long
from tests.support.records import delimited_messages

GOOD = f'{{"sensor_id": "A-1", "event_time": "{MORNING}", "a": 1}}'


def read_lines(text: str, limit: int = 10_000_000, **columns: str) -> list[Record]:
    return list(ndjson_records(Lines(io.StringIO(text, newline=""), limit), maker(**columns)))


def test_a_json_object_becomes_an_event() -> None:
    """Numbers are readings, strings and booleans metadata, null is missing; blank lines are skipped."""
    records = read_lines(
        f'{{"sensor_id": "A-1", "event_time": "{MORNING}", "a": 1, "b": -2.5e1, "on": true, "off": false, '
        f'"room": "NA", "gone": null, "none": ""}}\r\n\n  \n{{"a": 2, "event_time": "{MORNING}", "sensor_id": 17}}'
    )
    metadata = {"on": "true", "off": "false", "room": "NA", "none": ""}
    assert events(records) == [
        Event("A-1", MORNING_US, {"a": 1.0, "b": -25.0}, metadata),
        Event("17", MORNING_US, {"a": 2.0}, {}),
    ]


@pytest.mark.parametrize("time", ["1458031648.545123", '"1458031648.545123"', "1458031648545123e-6"])
def test_a_json_number_keeps_its_microseconds(time: str) -> None:
    """A time written as a JSON number is as exact as one in a string."""
    [event] = events(read_lines(f'{{"who": "A-1", "t": {time}, "a": 1}}', sensor="who", time="t", time_unit="s"))
    assert event == Event("A-1", 1458031648_545123, {"a": 1.0}, {})


def test_times_and_sensors_keep_all_their_digits() -> None:
    """They do so even if a double would lose digits, whatever the lines before contain."""
    times = ["1458031648545", "1458031648545.1239", "1458031648546"]
    records = read_lines(
        "\n".join(f'{{"sensor_id": 1.50, "event_time": {time}, "a": 0.10}}' for time in times), time_unit="ms"
    )
    assert events(records) == [
        Event("1.50", 1458031648_000000 + micros, {"a": 0.1}, {}) for micros in (545000, 545123, 546000)
    ]
    [first, second] = events(read_lines(f'{GOOD}\n{{"sensor_id": 1.50, "event_time": "{MORNING}", "a": 1}}'))
    assert (first.sensor_id, second.sensor_id) == ("A-1", "1.50")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ('"a": {"b": 1}', "'a' is nested"),
        ('"a": 1, "a": 2', "not JSON: 'a' appears twice"),
        ('"a": N', "not JSON: Expecting value at character 65"),
        ('"a": 1}{"b": 2', "several objects; write each on a line"),
        ('"a": NaN', "NON_FINITE_VALUE: reading a is nan"),
        ('"a": 1e400', "'a' exceeds the range of a double"),
        ('"a": ' + "9" * 5000, "not JSON: an integer has thousands of digits"),
        ('"a": 1,', "not JSON: "),
        ('"a": ' + "[" * 100_000, "not JSON: it is nested more than 100 levels deep"),
        ('"a": 1, "room": "\\ud800"', "text contains an unpaired surrogate"),
        ('"a": 1, "room": "k\udcfcche"', "not UTF-8: invalid byte 0xfc"),
        ('"a b": 1', "INVALID_METRIC_NAME: "),
    ],
)
def test_invalid_json_is_refused(values: str, reason: str) -> None:
    """A bad line is refused with its number, and the next one is read."""
    bad = f'{{"sensor_id": "A-1", "event_time": "{MORNING}", {values}}}'
    records = read_lines(f"{GOOD}\n{bad}\n{GOOD}\n")
    [refusal] = refusals(records)
    assert refusal.line == 2
    assert refusal.reason.startswith(reason)
    assert len(events(records)) == 2


@pytest.mark.parametrize("text", ["", "\n \r\n"])
def test_an_empty_file_is_an_error_at_once(text: str) -> None:
    """The error is raised before any record is read."""
    with pytest.raises(UnreadableFile, match=r"^it is empty$"):
        ndjson_records(Lines(io.StringIO(text, newline="")), maker())


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("more", [1, 2, 3, 100, 70_000, 200_000])
def test_a_line_that_is_too_long_is_skipped(end: str, more: int) -> None:
    """It is refused with its number, whatever its length and line end; lines up to exactly the limit are read."""
    limit = len(GOOD) + len(end) + 10
    longest = GOOD + " " * 10
    records = read_lines(
        end.join([GOOD, "x" * (limit + more), longest, "x" * (limit + more + 1), longest, "bad"]), limit
    )
    assert len(events(records)) == 3
    assert [(each.line, each.reason) for each in refusals(records)][:2] == [(2, too_long(limit)), (4, too_long(limit))]
    assert refusals(records)[2].line == 6


def test_the_limit_counts_bytes() -> None:
    """It counts bytes, not characters, and also applies to the first and the last line."""
    line = GOOD.replace("A-1", "é" * 40)
    size = len(line.encode())
    assert len(line) < size - 1
    assert [each.reason for each in refusals(read_lines(line, size - 1))] == [too_long(size - 1)]
    assert too_long(size) not in [each.reason for each in refusals(read_lines(line, size))]


def read_messages(content: bytes, limit: int = 10_000_000) -> list[Record]:
    return list(delimited_records(io.BytesIO(content), maker(limit)))


SENT = sensor_event("A-1", MORNING_US, {"a": 1.5}, {"room": "küche"}, "id-1").SerializeToString()
EVENT = Event("A-1", MORNING_US, {"a": 1.5}, {"room": "küche"}, "id-1")


def test_what_protobuf_writes_is_read_messages() -> None:
    """Every message after its length becomes an event, with its event_id, however long it is."""
    long = sensor_event("A-2", MORNING_US, {f"m{n}": n for n in range(900)}, {"note": "x" * 4000})
    file = io.BytesIO()
    for message in (sensor_event(*EVENT[:5]), long):
        proto.serialize_length_prefixed(message, file)
    first, second = events(read_messages(file.getvalue()))
    assert first == EVENT
    assert (second.sensor_id, len(second.readings)) == ("A-2", 900)


def test_an_invalid_record_is_refused_with_its_bytes() -> None:
    """The records around it are read, because their lengths are known."""
    invalid = sensor_event("", MORNING_US, {"a": 1.0}, {}).SerializeToString()
    records = read_messages(delimited_messages(SENT, b"\xff\xff", invalid, b"", SENT))
    assert events(records) == [EVENT, EVENT]
    unparseable, *others = refusals(records)
    assert (unparseable.line, unparseable.data) == (2, b"\xff\xff")
    assert unparseable.reason.startswith("UNPARSEABLE: not a SensorEvent: ")
    assert others == [
        Refusal(3, "MISSING_SENSOR_ID: sensor_id is empty", invalid),
        Refusal(4, "MISSING_SENSOR_ID: sensor_id is empty", b""),
    ]


def test_a_message_that_is_too_long_is_skipped() -> None:
    """The records around it are read, because its length is known."""
    records = read_messages(delimited_messages(SENT, b"x" * 100, SENT), limit=99)
    assert events(records) == [EVENT, EVENT]
    assert refusals(records) == [Refusal(2, too_long(99))]


@pytest.mark.parametrize(
    ("rest", "problem"),
    [
        (b"\x80", "the length of the next record is cut off"),
        (b"\x05ab", "the next record is cut off after 2 of 5 bytes"),
        (b"\x05", "the next record is cut off after 0 of 5 bytes"),
        (b"\xff" * 11, "the length of the next record has more than ten bytes"),
        (b"\x81\xad\xe2\x04abc", "the next record is cut off after 3 of 10,000,001 bytes"),
    ],
)
def test_a_truncated_record_is_an_error(rest: bytes, problem: str) -> None:
    """The records before it are read, and the error names the last of them."""
    records: list[Record] = []
    with pytest.raises(UnreadableFile) as raised:
        records += delimited_records(io.BytesIO(delimited_messages(SENT) + rest), maker())
    assert str(raised.value) == f"can't be read beyond record 1: {problem}"
