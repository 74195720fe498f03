import io
import tracemalloc
import uuid
from contextlib import suppress
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from pipeline.core.events.event import Event
from pipeline.formats.avro_records import avro_records
from pipeline.formats.lines import Record
from pipeline.formats.values import UnreadableFile
from tests.formats.reading import MORNING_US, events, maker, read_until_damage, refusals, too_long

SENSOR = {"name": "sensor_id", "type": "string"}
TIME = {"name": "event_time", "type": {"type": "long", "logicalType": "timestamp-micros"}}
VALUE = {"name": "a", "type": "double"}
GOOD = {"sensor_id": "A-1", "event_time": MORNING_US, "a": 1.5}
EVENT = Event("A-1", MORNING_US, {"a": 1.5}, {})


def avro(*records: dict[str, Any], more: Any = None, written: Any = None, codec: str = "null", **options: Any) -> bytes:
    """Returns a file of records whose last field has the type ``more``, encoded as ``written`` if it is set."""

    def content(last: Any, *below: dict[str, Any]) -> bytes:
        fields = [SENSOR, TIME, VALUE, *([{"name": "more", "type": last}] if last else [])]
        schema = {"type": "record", "name": "reading", "fields": fields}
        fastavro.writer(file := io.BytesIO(), schema, below, codec, sync_marker=b"-" * 16, **options)
        return file.getvalue()

    if not written:
        return content(more, *records)
    return content(more) + content(written, *records).removeprefix(content(written))


def read(content: bytes, limit: int = 10_000_000, **columns: str) -> list[Record]:
    return list(avro_records(io.BytesIO(content), maker(limit, **columns)))


def logical(kind: str, called: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": called, **more}


@pytest.mark.parametrize(
    ("kind", "written", "value", "metadata"),
    [
        (logical("int", "date"), "int", 0, "1970-01-01"),
        (logical("long", "timestamp-millis"), "long", 1, "1970-01-01T00:00:00.001000+00:00"),
        (logical("long", "timestamp-nanos"), "long", 1999, "1970-01-01T00:00:00.000001+00:00"),
        (logical("long", "local-timestamp-micros"), "long", 1, "1970-01-01T00:00:00.000001"),
        (logical("int", "time-millis"), "int", 1500, "00:00:01.500000"),
        (logical("long", "time-micros"), "long", 1, "00:00:00.000001"),
        (logical("string", "uuid"), "string", str(uuid.UUID(int=7)), str(uuid.UUID(int=7))),
        (
            logical("fixed", "uuid", name="id", size=16),
            {"type": "fixed", "name": "id", "size": 16},
            uuid.UUID(int=7).bytes,
            str(uuid.UUID(int=7)),
        ),
        ({"type": "enum", "name": "color", "symbols": ["RED", "BLUE"]}, None, "BLUE", "BLUE"),
        (logical("string", "nobody-knows"), "string", "x", "x"),
    ],
)
def test_each_type_becomes_its_text(kind: Any, written: Any, value: Any, metadata: str) -> None:
    """A value of each type becomes the same metadata, also in a union with null."""
    expected = [EVENT._replace(metadata={"more": metadata})]
    record = GOOD | {"more": value}
    assert events(read(avro(record, more=kind, written=written))) == expected
    optional = ["null", written] if written else None
    assert events(read(avro(record, more=["null", kind], written=optional))) == expected


@pytest.mark.parametrize(
    ("kind", "written", "value", "reason"),
    [
        (
            logical("int", "date"),
            "int",
            2**30,
            "is outside the years 1 to 9999: a date of 1,073,741,824 days since 1970",
        ),
        (
            logical("long", "timestamp-millis"),
            "long",
            10**16,
            "is outside the years 1 to 9999: a timestamp-millis of 10,000,000,000,000,000,000 µs since 1970",
        ),
        (logical("long", "time-micros"), "long", -1, "is not a time of day: a time-micros of -1 µs since midnight"),
        (logical("string", "uuid"), "string", "x", "'x' is not a UUID"),
        (logical("string", "uuid"), "bytes", b"\xff", r"'\udcff' is not a UUID"),
        ("string", "bytes", b"x\xfe", "is not UTF-8: invalid byte 0xfe"),
        (
            logical("bytes", "decimal", precision=4, scale=2),
            "bytes",
            b"\x01" * 600,
            "is a decimal of 600 bytes with scale 2, which exceeds the range of a double",
        ),
        (
            logical("fixed", "duration", name="d", size=12),
            {"type": "fixed", "name": "d", "size": 12},
            b"\0" * 12,
            "is a duration of months, days and milliseconds, neither a number nor text",
        ),
        (
            {"type": "map", "values": logical("int", "date")},
            {"type": "map", "values": "int"},
            {"a": 2**30},
            "is nested",
        ),
        ({"type": "array", "items": "string"}, None, ["a"], "is nested"),
        ("bytes", None, b"x", "is bytes, neither a number nor text"),
    ],
)
def test_a_bad_value_refuses_only_its_record(kind: Any, written: Any, value: Any, reason: str) -> None:
    """The records around it are read. The refusal has the record's number and the problem."""

    def optional(each: Any) -> Any:
        return each and ["null", each]

    good, bad = GOOD | {"more": None}, GOOD | {"more": value}
    records = read(avro(good, good, bad, good, more=optional(kind), written=optional(written)))
    assert events(records) == [EVENT] * 3
    [refusal] = refusals(records)
    assert (refusal.line, refusal.reason, refusal.data) == (3, f"'more' {reason}", None)


def test_an_event_time_out_of_range_refuses_only_its_record() -> None:
    """The next record is read, and its decimal is a reading."""
    far, near = GOOD | {"event_time": 2**62}, GOOD | {"more": Decimal("12.50")}
    decimal = ["null", logical("bytes", "decimal", precision=4, scale=2)]
    records = read(avro(far, near, more=decimal))
    assert events(records) == [EVENT._replace(readings={"a": 1.5, "more": 12.5})]
    assert [refusal.line for refusal in refusals(records)] == [1]


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_a_record_that_is_too_long_is_skipped(codec: str) -> None:
    """The other records of its block are read, nested or not, and so is the next block."""
    more = ["null", "string", {"type": "array", "items": {"type": "map", "values": "double"}}]
    long = GOOD | {"more": "x" * 3000}
    nested = GOOD | {"more": [{"key": 1.0}] * 300}
    short = GOOD | {"more": "x" * 900}
    plain = GOOD | {"more": None}
    records = read(avro(plain, long, plain, nested, short, plain, more=more, codec=codec), limit=1000)
    reason = too_long(1000)
    assert [(refusal.line, refusal.reason) for refusal in refusals(records)] == [(2, reason), (4, reason)]
    assert [event.metadata.get("more", "") for event in events(records)] == ["", "", "x" * 900, ""]


LARGE = GOOD | {"more": "x" * 50_000_000}
CLAIM = b"\x02" + b"\x80" * 5 + b"\x01"  # one record in 16 GB


@pytest.mark.parametrize(
    "content",
    [avro() + CLAIM, *(avro(LARGE, more="string", codec=codec) for codec in ("deflate", "bzip2", "xz"))],
    ids=["claimed", "deflate", "bzip2", "xz"],
)
def test_memory_is_bounded(content: bytes) -> None:
    """A block that claims gigabytes, or expands to far more than the limit, is refused with the rest of the file."""
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableFile) as raised:
            read(content, limit=10_000)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert str(raised.value).startswith("can't be read beyond record 0: a block has more than 160,000 bytes, 16 times ")
    assert most < 10_000_000  # xz has a dictionary of 8 MB


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_a_damaged_file_yields_the_records_before_the_damage(codec: str) -> None:
    """Wherever a byte is wrong or missing, reading ends normally or with UnreadableFile, never with another error."""
    more = ["null", "string", {"type": "enum", "name": "color", "symbols": ["RED"]}]
    content = avro(
        *[GOOD | {"more": each} for each in ("text", "RED", None) * 3], more=more, codec=codec, sync_interval=60
    )
    for place in range(len(content)):
        for damaged in (content[:place], content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :]):
            with suppress(UnreadableFile):
                _, problem = read_until_damage(avro_records(io.BytesIO(damaged), maker()))
                assert "\n" not in problem


def test_the_error_locates_the_damage() -> None:
    """The message names the last record before it."""
    content = avro(*[GOOD] * 10)
    with pytest.raises(UnreadableFile, match=r"^can't be read beyond record 9: "):
        read(content[:-20])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "can't be read: its header is not that of an Avro file: "),
        (b"Obj\x01", "can't be read: its header is not that of an Avro file: "),
        (
            avro(codec="deflate").replace(b"deflate", b"snappie"),
            "can't be read: unknown codec 'snappie'; supported are ",
        ),
        (
            avro().replace(b'"sensor_id"', b'"sensorXid"'),
            "no column 'sensor_id' (--sensor-column); the columns are 'sensorXid', ",
        ),
    ],
)
def test_an_invalid_header_is_an_error_at_once(content: bytes, problem: str) -> None:
    """Opening the file raises it, before any record is read."""
    with pytest.raises(UnreadableFile) as raised:
        avro_records(io.BytesIO(content), maker())
    assert str(raised.value).startswith(problem)
