import io

import pytest
from google.protobuf import proto

from pipeline.core.events.event import Event
from pipeline.core.events.message import sensor_event
from pipeline.formats.delimited import delimited_records
from pipeline.formats.lines import Record, Refusal, UnreadableFile
from tests.formats.reading import MORNING_US, events, maker, refusals, too_long
from tests.support.records import delimited_messages


def read(content: bytes, limit: int = 10_000_000) -> list[Record]:
    return list(delimited_records(io.BytesIO(content), maker(limit)))


GOOD = sensor_event("A-1", MORNING_US, {"a": 1.5}, {"room": "küche"}, "id-1").SerializeToString()
EVENT = Event("A-1", MORNING_US, {"a": 1.5}, {"room": "küche"}, "id-1")


def test_what_protobuf_writes_is_read() -> None:
    """Every message after its length becomes an event, with its event_id, however long it is."""
    long = sensor_event("A-2", MORNING_US, {f"m{n}": n for n in range(900)}, {"note": "x" * 4000})
    file = io.BytesIO()
    for message in (sensor_event(*EVENT[:5]), long):
        proto.serialize_length_prefixed(message, file)
    first, second = events(read(file.getvalue()))
    assert first == EVENT
    assert (second.sensor_id, len(second.readings)) == ("A-2", 900)


def test_an_empty_file_has_no_records() -> None:
    """It is read without an error."""
    assert read(b"") == []


def test_an_invalid_record_is_refused_with_its_bytes() -> None:
    """The records around it are read, because their lengths are known."""
    invalid = sensor_event("", MORNING_US, {"a": 1.0}, {}).SerializeToString()
    records = read(delimited_messages(GOOD, b"\xff\xff", invalid, b"", GOOD))
    assert events(records) == [EVENT, EVENT]
    unparseable, *others = refusals(records)
    assert (unparseable.line, unparseable.data) == (2, b"\xff\xff")
    assert unparseable.reason.startswith("UNPARSEABLE: not a SensorEvent: ")
    assert others == [
        Refusal(3, "MISSING_SENSOR_ID: sensor_id is empty", invalid),
        Refusal(4, "MISSING_SENSOR_ID: sensor_id is empty", b""),
    ]


def test_a_record_that_is_too_long_is_skipped() -> None:
    """The records around it are read, because its length is known."""
    records = read(delimited_messages(GOOD, b"x" * 100, GOOD), limit=99)
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
        records += delimited_records(io.BytesIO(delimited_messages(GOOD) + rest), maker())
    assert str(raised.value) == f"can't be read beyond record 1: {problem}"


def test_the_records_before_a_failure_are_yielded() -> None:
    """They are read lazily, one by one."""
    records = delimited_records(io.BytesIO(delimited_messages(GOOD) + b"\x05ab"), maker())
    assert events([next(records)]) == [EVENT]
