"""Reads events from Parquet files, row group by row group."""

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, BinaryIO

import pyarrow
import pyarrow.compute as pc
import pyarrow.parquet
from pyarrow import types

from pipeline.core.notation.text import shown
from pipeline.formats.lines import Record, Refusal, numbered_records, one_line, too_long
from pipeline.formats.mapped import MappedMaker
from pipeline.formats.values import BYTES, NESTED, BadValue, EventMaker, UnreadableFile, time_of

_BATCH_ROWS = 1000  # rows that are Python objects at the same time
# The most bytes of a column of text in one row group, in multiples of --max-record-bytes. A page is read as a whole.
_MAX_COLUMN_FACTOR = 16
_MAX_FIXED_SIZE = 1 << 16  # bytes of a fixed-size value; numbers and UUIDs are much smaller
_LEAST_JSON = 2  # bytes of a value and what divides it from the next
_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
_DECODE_ERRORS = (pyarrow.ArrowException, OSError, OverflowError, ValueError)
"""The errors that pyarrow raises for damaged bytes."""


def parquet_records(file: BinaryIO, maker: EventMaker | MappedMaker) -> Iterator[Record]:
    """Returns the records of an open file, which is seekable.

    Raises:
        UnreadableFile: it is not a Parquet file, or lacks the columns.
    """
    try:
        metadata = pyarrow.parquet.read_metadata(file)
        leaves = [metadata.schema.column(index) for index in range(len(metadata.schema))]
        names = metadata.schema.to_arrow_schema().names
        opened = pyarrow.parquet.ParquetFile(
            file,
            metadata=metadata,
            # Rows that share a text then share one copy of it in memory.
            read_dictionary=[leaf.path for leaf in leaves if _has_bytes(leaf)],
            coerce_int96_timestamp_unit="us",
        )
    except _DECODE_ERRORS as error:
        raise UnreadableFile(f"can't be read: {one_line(error)}") from error
    remarks = maker.check_columns(names)
    if oversized := [leaf for leaf in leaves if leaf.length > _MAX_FIXED_SIZE]:
        column = oversized[0]
        raise UnreadableFile(f"can't be read: a value of {shown(column.path)} has {column.length:,} bytes")
    return chain(remarks, _records(opened, maker))


def _records(file: pyarrow.parquet.ParquetFile, maker: EventMaker | MappedMaker) -> Iterator[Record]:
    limit, end = maker.max_record_bytes, 0
    most = limit * _MAX_COLUMN_FACTOR
    for index in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(index)
        begin, end = end, end + group.num_rows
        if (column := _oversized_column(group, most)) is not None:
            reason = (
                f"all records of this row group, up to number {end:,}: {shown(column)} has more than {most:,} bytes, "
                f"{_MAX_COLUMN_FACTOR} times --max-record-bytes"
            )
            yield Refusal(begin + 1, reason)
        else:
            rows = _rows(file, index, limit, whole=isinstance(maker, MappedMaker))
            yield from numbered_records(rows, _DECODE_ERRORS, maker.of_object, limit, begin)


def _rows(file: pyarrow.parquet.ParquetFile, group: int, limit: int, *, whole: bool) -> Iterator[dict[str, Any] | None]:
    """Yields the rows of a group; None for a row that is too long."""
    for batch in file.iter_batches(_BATCH_ROWS, [group]):
        for part in _parts(batch, limit):
            if part is None:
                yield None
                continue
            columns = [_values(column, limit, whole) for column in part.columns]
            for values in zip(*columns, strict=True):
                yield dict(zip(part.schema.names, values, strict=True))


def _has_bytes(leaf: Any) -> bool:
    return leaf.physical_type == "BYTE_ARRAY" and leaf.logical_type.type != "DECIMAL"


def _oversized_column(group: Any, most: int) -> str | None:
    """Returns the first column of text or bytes with more than ``most`` bytes; None if there is none.

    Columns of numbers always fit into memory, because their pages are small.
    """
    if group.total_byte_size <= most:
        return None
    columns = map(group.column, range(group.num_columns))
    large = (
        each.path_in_schema
        for each in columns
        if each.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY") and each.total_uncompressed_size > most
    )
    return next(large, None)


def _parts(batch: pyarrow.RecordBatch, limit: int) -> Iterator[pyarrow.RecordBatch | None]:
    """Yields parts that become at most ``limit`` bytes of JSON, as far as that is known; None for a longer row.

    Equal values are stored once in the file and in Arrow, but each is an object of its own in Python.
    """
    names = sum(len(name) + _LEAST_JSON for name in batch.schema.names)
    todo = [batch]
    while todo:
        part = todo.pop()
        if names * len(part) + sum(_json_size(column, limit) for column in part.columns) <= limit:
            yield part
        elif len(part) == 1:
            yield None
        else:
            half = len(part) // 2
            todo += [part.slice(half), part.slice(0, half)]


def _json_size(column: pyarrow.Array, limit: int) -> int:
    """Returns the least that values take as JSON, in bytes, without texts over the limit, which are bad values."""
    kind, size = column.type, _LEAST_JSON * len(column)
    if not size:
        return 0
    if types.is_dictionary(kind):
        if not _has_length(kind.value_type) or not len(column.dictionary):
            return size
        lengths = pc.take(pc.binary_length(column.dictionary), column.indices)
        return size + (pc.sum(pc.if_else(pc.less_equal(lengths, limit), lengths, 0)).as_py() or 0)
    if types.is_struct(kind):
        names = sum(len(field.name) + _LEAST_JSON for field in kind)
        return size + names * len(column) + sum(_json_size(child, limit) for child in column.flatten())
    if types.is_map(kind) or types.is_list(kind) or types.is_large_list(kind):
        start, stop = column.offsets[0].as_py(), column.offsets[-1].as_py()
        inner = [column.keys, column.items] if types.is_map(kind) else [column.values]
        return size + sum(_json_size(values.slice(start, stop - start), limit) for values in inner)
    return size + _json_size(column.flatten(), limit) if types.is_fixed_size_list(kind) else size


def _has_length(kind: pyarrow.DataType) -> bool:
    return any(is_kind(kind) for is_kind in _WITH_LENGTHS)


def _values(column: pyarrow.Array, limit: int, whole: bool) -> list[Any]:
    """Returns a column's values: a BadValue for each that is unreadable or exceeds the limit.

    Bytes and nested values are BadValues too, unless a mapping reads whole records.
    """
    if isinstance(column, pyarrow.ExtensionArray) and column.type != pyarrow.uuid():
        column = column.storage
    elif types.is_string_view(column.type):
        column = column.cast(pyarrow.large_string())
    kind = column.type
    if types.is_dictionary(kind):
        return _of_dictionary(column, limit, whole)
    if types.is_nested(kind):
        return _nested(column, limit) if whole else _all_bad(column, NESTED)
    if any(is_kind(kind) for is_kind in _BYTES) and not whole:
        return _all_bad(column, BYTES)
    if types.is_temporal(kind):
        return _temporal(column, limit)
    return _scalars(column, limit)


def _of_dictionary(column: pyarrow.Array, limit: int, whole: bool) -> list[Any]:
    used = column.indices.unique().drop_null()
    texts = dict(zip(used.to_pylist(), _values(column.dictionary.take(used), limit, whole), strict=True))
    return [texts.get(index) for index in column.indices.to_pylist()]


def _nested(column: pyarrow.Array, limit: int) -> list[Any]:
    """Returns structs and maps as dicts, and lists, also if values in them are unreadable, unlike ``to_pylist``."""
    if not len(column):
        return []
    kind = column.type
    if types.is_struct(kind):
        return _structs(column, limit)
    if types.is_fixed_size_list(kind):
        rest = iter(_values(column.flatten(), limit, whole=True))  # without those of null lists
        return [list(islice(rest, kind.list_size)) if there else None for there in column.is_valid().to_pylist()]
    if types.is_map(kind) or types.is_list(kind) or types.is_large_list(kind):
        return _lists(column, limit)
    return _all_bad(column, BadValue(f"is a {kind}, which can't be read"))


def _structs(column: pyarrow.Array, limit: int) -> list[Any]:
    names = [field.name for field in column.type]
    if len(set(names)) < len(names):
        return _all_bad(column, BadValue("has two fields of the same name"))
    fields = [_values(child, limit, whole=True) for child in column.flatten()]
    rows = zip(*fields, strict=True) if fields else [()] * len(column)
    valid = column.is_valid().to_pylist()
    return [dict(zip(names, row, strict=True)) if there else None for there, row in zip(valid, rows, strict=True)]


def _lists(column: pyarrow.Array, limit: int) -> list[Any]:
    """Returns lists, and maps as dicts."""
    ends = column.offsets.to_pylist()
    start, length = ends[0], ends[-1] - ends[0]
    places = zip(column.is_valid().to_pylist(), ends, ends[1:], strict=False)
    spans = [(there, begin - start, end - start) for there, begin, end in places]
    if types.is_map(column.type):
        keys, items = (_values(of.slice(start, length), limit, whole=True) for of in (column.keys, column.items))
        return [_object(keys[begin:end], items[begin:end]) if there else None for there, begin, end in spans]
    values = _values(column.values.slice(start, length), limit, whole=True)
    return [values[begin:end] if there else None for there, begin, end in spans]


def _temporal(column: pyarrow.Array, limit: int) -> list[Any]:
    """Returns durations in seconds, times of day, which pyarrow would convert modulo a day, dates and timestamps."""
    kind = column.type
    if types.is_interval(kind):
        return _all_bad(column, BadValue(f"is a {kind}, neither a number nor text"))
    if types.is_duration(kind) or types.is_time(kind):
        per_second = _PER_SECOND[kind.unit]
        numbers = column.view(pyarrow.int32() if types.is_time32(kind) else pyarrow.int64()).to_pylist()
        if types.is_duration(kind):
            return [v if v is None else v / per_second for v in numbers]
        return [v if v is None else time_of(v * 1_000_000 // per_second, str(kind)) for v in numbers]
    if types.is_timestamp(kind) and kind.unit == "ns":  # a datetime has no nanoseconds
        column = column.cast(pyarrow.timestamp("us", kind.tz), safe=False)
    return _scalars(column, limit)


def _scalars(column: pyarrow.Array, limit: int) -> list[Any]:
    kind = column.type
    if _has_length(kind) and (pc.max(pc.binary_length(column)).as_py() or 0) > limit:
        return [_text(value, limit) for value in column]
    try:
        return column.to_pylist()
    except (ValueError, OverflowError, LookupError):
        return [_value(value) for value in column]


def _object(keys: list[Any], values: list[Any]) -> dict[Any, Any] | BadValue:
    members = dict(zip(keys, values, strict=True))
    return members if len(members) == len(keys) else BadValue("has a key twice")


def _all_bad(column: pyarrow.Array, bad: BadValue) -> list[Any]:
    return [bad if valid else None for valid in column.is_valid().to_pylist()]


def _text(value: pyarrow.Scalar, limit: int) -> Any:
    size = value.as_buffer().size if value.is_valid else 0
    return BadValue(f"has {size:,} bytes: {too_long(limit)}") if size > limit else _value(value)


def _value(value: pyarrow.Scalar) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        return BadValue(f"is not UTF-8: invalid byte 0x{error.object[error.start]:02x}")
    except (ValueError, OverflowError):
        return BadValue(f"is outside the years 1 to 9999: a {value.type} of {value.value:,} since 1970")
    except LookupError as error:
        return BadValue(f"is a {value.type} with an unknown time zone: {error}")


_WITH_LENGTHS = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
_BYTES = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
