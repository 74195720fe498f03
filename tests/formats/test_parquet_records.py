import io
import uuid
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from pipeline.core.events.event import Event
from pipeline.formats.lines import Record, Refusal
from pipeline.formats.parquet_records import parquet_records
from pipeline.formats.values import UnreadableFile
from tests.formats.reading import MORNING_US, events, maker, read_until_damage, refusals, too_long

EVENT = Event("A-1", MORNING_US, {"a": 1.5}, {})


def parquet(more: pyarrow.Array | None, count: int = 1, time: pyarrow.Array | None = None, **options: Any) -> bytes:
    columns = {
        "sensor_id": pyarrow.array(["A-1"] * count),
        "event_time": pyarrow.array([MORNING_US] * count, pyarrow.timestamp("us")) if time is None else time,
        "a": pyarrow.array([1.5] * count),
        **({} if more is None else {"more": more}),
    }
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), file, **options)
    return file.getvalue()


def read(content: bytes, limit: int = 10_000_000, **columns: str) -> list[Record]:
    return list(parquet_records(io.BytesIO(content), maker(limit, **columns)))


def texts(*values: bytes) -> pyarrow.Array:
    """Returns a column of strings, whether they are UTF-8 or not."""
    offsets = pyarrow.array([sum(map(len, values[:n])) for n in range(len(values) + 1)], pyarrow.int32())
    return pyarrow.StringArray.from_buffers(len(values), offsets.buffers()[1], pyarrow.py_buffer(b"".join(values)))


def of(values: list[Any], kind: pyarrow.DataType, stored: pyarrow.DataType | None = None) -> pyarrow.Array:
    return pyarrow.array(values, stored).view(kind) if stored else pyarrow.array(values, kind)


def typed() -> Iterator[tuple[pyarrow.Array, float | str]]:
    """Yields a column with one value of each type, and the reading or metadata that it becomes."""
    yield of([7], pyarrow.int8()), 7.0
    yield of([2**63], pyarrow.uint64()), 2.0**63
    yield of([1.5], pyarrow.float16()), 1.5
    yield of([Decimal("1.25")], pyarrow.decimal128(5, 2)), 1.25
    yield of([Decimal("1.25")], pyarrow.decimal256(50, 2)), 1.25
    yield of([5], pyarrow.duration("s")), 5.0
    yield of([1], pyarrow.duration("ns")), 1e-9
    yield of([True], pyarrow.bool_()), "true"
    yield of(["x"], pyarrow.string()), "x"
    yield of(["x"], pyarrow.large_string()), "x"
    yield of(["x"], pyarrow.string_view()), "x"
    yield of(["x"], pyarrow.string()).dictionary_encode(), "x"
    yield of([0], pyarrow.date32()), "1970-01-01"
    yield of([86_400_000], pyarrow.date64()), "1970-01-02"
    yield of([1], pyarrow.time32("s")), "00:00:01"
    yield of([1500], pyarrow.time32("ms")), "00:00:01.500000"
    yield of([1999], pyarrow.time64("ns")), "00:00:00.000001"
    yield of([1999], pyarrow.timestamp("ns")), "1970-01-01T00:00:00.000001"
    yield of([0], pyarrow.timestamp("s", "Europe/Berlin")), "1970-01-01T01:00:00+01:00"
    yield pyarrow.array([uuid.UUID(int=7).bytes], pyarrow.uuid()), str(uuid.UUID(int=7))


@pytest.mark.parametrize(("column", "value"), list(typed()), ids=lambda each: str(getattr(each, "type", "")))
def test_each_type_is_a_number_or_text(column: pyarrow.Array, value: float | str) -> None:
    """Numbers and durations, in seconds, are readings; all else is metadata."""
    number = isinstance(value, float)
    expected = EVENT._replace(
        readings={"a": 1.5, **({"more": value} if number else {})}, metadata={} if number else {"more": value}
    )
    assert events(read(parquet(column))) == [expected]


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (
            of([2**30], pyarrow.date32()),
            "is outside the years 1 to 9999: a date32[day] of 1,073,741,824 since 1970",
        ),
        (
            of([10**16], pyarrow.timestamp("ms")),
            "is outside the years 1 to 9999: a timestamp[ms] of 10,000,000,000,000,000 since 1970",
        ),
        (
            of([10**16], pyarrow.timestamp("ms", "UTC")),
            "is outside the years 1 to 9999: a timestamp[ms, tz=UTC] of 10,000,000,000,000,000 since 1970",
        ),
        (
            of([0], pyarrow.timestamp("us", "Mars/Phobos")),
            "is a timestamp[us, tz=Mars/Phobos] with an unknown time zone: 'Mars/Phobos'",
        ),
        (
            of([-5], pyarrow.time32("s"), pyarrow.int32()),
            "is not a time of day: a time32[ms] of -5,000,000 µs since midnight",
        ),
        (
            of([2**60], pyarrow.time64("us"), pyarrow.int64()),
            "is not a time of day: a time64[us] of 1,152,921,504,606,846,976 µs since midnight",
        ),
        (texts(b"\xff\xfe"), "is not UTF-8: invalid byte 0xff"),
        (of([2**64 - 1], pyarrow.uint64()), "'18446744073709551615' is an integer that a double can't hold exactly"),
        (
            of([Decimal((1 << 53) + 1)], pyarrow.decimal128(20)),
            "'9007199254740993' is an integer that a double can't hold exactly",
        ),
        (of([b"x"], pyarrow.binary()), "is bytes, neither a number nor text"),
        (of([b"x"], pyarrow.binary(1)), "is bytes, neither a number nor text"),
        (of([[1]], pyarrow.list_(pyarrow.int8())), "is nested"),
        (of([{"b": 1}], pyarrow.struct({"b": pyarrow.int8()})), "is nested"),
        (of([[("b", 1)]], pyarrow.map_(pyarrow.string(), pyarrow.int8())), "is nested"),
        (
            of(["x" * 2000], pyarrow.string()),
            f"has 2,000 bytes: {too_long(1000)}",
        ),
    ],
)
@pytest.mark.parametrize("use_dictionary", [False, True])
def test_a_bad_value_refuses_only_its_record(column: pyarrow.Array, reason: str, use_dictionary: bool) -> None:
    """The records around it are read, in its row group and in others. The refusal has the record's number."""
    missing = pyarrow.nulls(1, column.type)
    table = pyarrow.concat_arrays([missing, missing, column, missing])
    records = read(parquet(table, 4, row_group_size=3, use_dictionary=use_dictionary), limit=1000)
    assert events(records) == [EVENT] * 3
    [refusal] = refusals(records)
    assert (refusal.line, refusal.reason, refusal.data) == (3, f"'more' {reason}", None)


def test_a_bad_sensor_or_time_refuses_only_its_record() -> None:
    """A time out of range is refused, and so is a sensor that is not UTF-8."""
    times = pyarrow.array([MORNING_US // 1000, MORNING_US], pyarrow.timestamp("ms"))
    records = read(parquet(None, 2, times))
    assert events(records) == [EVENT]
    assert [(each.line, each.reason.partition(":")[0]) for each in refusals(records)] == [
        (2, "'event_time' is outside the years 1 to 9999")
    ]
    sensors = read(parquet(texts(b"A-1", b"\xff"), 2), sensor="more")
    assert [event.sensor_id for event in events(sensors)] == ["A-1"]
    assert [each.line for each in refusals(sensors)] == [2]


def test_timestamps_of_96_bits_keep_their_year() -> None:
    """In nanoseconds, as most readers convert them, they would overflow."""
    late = pyarrow.array([253_370_764_800_000_000], pyarrow.timestamp("us"))  # the year 9999
    [event] = events(read(parquet(late, use_deprecated_int96_timestamps=True)))
    assert event.metadata == {"more": "9999-01-01T00:00:00"}


@pytest.mark.parametrize("nested", [False, True])
def test_a_text_that_many_records_share_is_in_memory_once(nested: bool) -> None:
    """Three hundred records that share a text of a megabyte take little more than a megabyte."""
    shared = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 300, pyarrow.int32()), ["x" * 1_000_000])
    content = parquet(pyarrow.ListArray.from_arrays(list(range(301)), shared) if nested else shared, 300)
    before = pyarrow.total_allocated_bytes()
    most = count = 0
    for record in parquet_records(io.BytesIO(content), maker()):
        assert isinstance(record, Refusal)
        count += 1
        most = max(most, pyarrow.total_allocated_bytes() - before)
    assert count == 300
    assert most < 20_000_000


def test_a_type_with_large_fixed_size_values_is_refused() -> None:
    """A batch would contain a thousand copies of a value that the file stores once."""
    with pytest.raises(UnreadableFile, match="can't be read: a value of 'more' has 100,000 bytes"):
        read(parquet(of([b"x" * 100_000], pyarrow.binary(100_000))))


def test_a_row_group_with_an_oversized_column_is_refused_unread() -> None:
    """The refusal has the numbers of its records; the other row groups are read."""
    giant = pyarrow.array(["x", "y" * 200_000, None, "z"])
    records = read(parquet(giant, 4, row_group_size=2, use_dictionary=False), limit=10_000)
    assert [event.metadata.get("more") for event in events(records)] == [None, "z"]
    [refusal] = refusals(records)
    assert refusal.line == 1
    assert refusal.reason == (
        "all records of this row group, up to number 2: 'more' has more than 160,000 bytes, 16 times --max-record-bytes"
    )


def test_a_damaged_row_group_ends_the_file() -> None:
    """The records before it are read, and the message names the last of them."""
    content = bytearray(parquet(texts(*[b"text %d" % n for n in range(9)]), 9, row_group_size=3))
    group = pyarrow.parquet.read_metadata(io.BytesIO(content)).row_group(1)
    begin = group.column(0).dictionary_page_offset
    content[begin : begin + 8] = b"\xff" * 8
    records, problem = read_until_damage(parquet_records(io.BytesIO(content), maker()))
    assert len(events(records)) == 3
    assert problem.startswith("can't be read beyond record 3: ")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"x" * 100, b"PAR1" + b"\xff" * 40 + b"PAR1"])
def test_another_format_is_an_error(content: bytes) -> None:
    """The message is one line."""
    with pytest.raises(UnreadableFile, match=r"^can't be read: .*$"):
        parquet_records(io.BytesIO(content), maker())


def test_any_byte_may_be_damaged() -> None:
    """Reading ends normally or with UnreadableFile, never with another error."""
    content = parquet(texts(b"red", b"blue"), 2, compression="snappy")
    for place in range(4, len(content)):
        damaged = content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :]
        with suppress(UnreadableFile):
            _, problem = read_until_damage(parquet_records(io.BytesIO(damaged), maker()))
            assert "\n" not in problem
