"""Parquet files as events, row group by row group."""

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import pyarrow
import pyarrow.compute as pc
import pyarrow.parquet
from pyarrow import types

from pipeline.core.events import shown
from pipeline.formats.lines import Record, Refusal, UnreadableFile, attempt, check_columns, one_line, too_long
from pipeline.formats.mappings import BYTES, NESTED, Bad, event_of, time_of
from pipeline.formats.values import EventMaker
from pipeline.proto.sensor_event_pb2 import SensorEvent

_ROWS = 1000  # that are Python's at a time
_LIMITS_AT_ONCE = 16  # of a record: what a column of texts in a row group may come to. A page of it is read as a whole
_WIDEST = 1 << 16  # bytes of a type whose values have so many, whatever they are: no number or UUID has
_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
_DAMAGE = (pyarrow.ArrowException, OSError, OverflowError, ValueError)
"""What pyarrow raises for bytes that are not what they should be."""


class ParquetFile:
    """An open file of records, its footer read.

    Args:
        file: its bytes; it can seek.
        maker: makes the events.

    Raises:
        UnreadableFile: it is no Parquet file of such records.
    """

    def __init__(self, file: BinaryIO, maker: EventMaker) -> None:
        self._maker = maker
        self._size = file.seek(0, os.SEEK_END)
        try:
            metadata = pyarrow.parquet.read_metadata(file)
            leaves = [metadata.schema.column(index) for index in range(len(metadata.schema))]
            names = metadata.schema.to_arrow_schema().names
            self._file = pyarrow.parquet.ParquetFile(
                file,
                metadata=metadata,
                # A text that a thousand rows share stays one text.
                read_dictionary=[leaf.path for leaf in leaves if _is_of_bytes(leaf)],
                coerce_int96_timestamp_unit="us",
            )
        except _DAMAGE as error:
            raise UnreadableFile(f"can't be read: {one_line(error)}") from error
        check_columns(names, maker.columns)
        if wide := [leaf for leaf in leaves if leaf.length > _WIDEST]:
            raise UnreadableFile(f"can't be read: a value of {shown(wide[0].path)} has {wide[0].length:,} bytes")

    def records(self, start: int = 0, stop: int = sys.maxsize) -> Iterator[Record]:
        """The records of the row groups in a range of the file's bytes; the line of a refusal is the record's number.

        Row groups are taken to have one size: where they begin is not asked for, because pyarrow ends the process where
        the metadata of a column is damaged.

        Ends in UnreadableFile where there is a row group that can't be read.
        """
        limit = self._maker.max_record_bytes
        before, failure = 0, None
        metadata = self._file.metadata
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            number, before = before, before + group.num_rows
            if not start <= self._size * index // metadata.num_row_groups < stop:
                continue
            if (column := _too_large(group, limit * _LIMITS_AT_ONCE)) is not None:
                reason = (
                    f"this record and all to number {before:,}: they are a row group in which {shown(column)} has more "
                    f"than {limit * _LIMITS_AT_ONCE:,} bytes, {_LIMITS_AT_ONCE} times --max-record-bytes"
                )
                yield Refusal(number + 1, reason)
                continue
            rows = self._rows(index)
            while True:
                try:
                    row = next(rows)
                except StopIteration:
                    break
                except _DAMAGE as error:  # the other row groups may well be good ones
                    failure = failure or UnreadableFile(f"can't be read beyond record {number:,}: {one_line(error)}")
                    failure.__cause__ = error
                    break
                number += 1
                yield attempt(number, self._event, row)
        if failure is not None:
            raise failure

    def _event(self, row: Mapping[str, Any]) -> SensorEvent:
        return event_of(row, self._maker)

    def _rows(self, group: int) -> Iterator[dict[str, Any]]:
        limit = self._maker.max_record_bytes
        for batch in self._file.iter_batches(_ROWS, [group]):
            columns = [_values(column, limit) for column in batch.columns]
            names = batch.schema.names
            for values in zip(*columns, strict=True):
                yield dict(zip(names, values, strict=True))


def _is_of_bytes(leaf: Any) -> bool:
    return leaf.physical_type == "BYTE_ARRAY" and leaf.logical_type.type != "DECIMAL"


def _too_large(group: Any, most: int) -> str | None:
    """The first column whose values might be too large for memory; None as a rule. Numbers are small, page by page."""
    if group.total_byte_size <= most:
        return None
    columns = map(group.column, range(group.num_columns))
    large = (
        each.path_in_schema
        for each in columns
        if each.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY") and each.total_uncompressed_size > most
    )
    return next(large, None)


def _values(column: pyarrow.Array, limit: int) -> list[Any]:
    """A column as :func:`event_of` takes its values; Bad where one can't be read, or is longer than the limit."""
    if isinstance(column, pyarrow.ExtensionArray) and column.type != pyarrow.uuid():
        column = column.storage
    elif types.is_string_view(column.type):
        column = column.cast(pyarrow.large_string())
    kind = column.type
    if types.is_dictionary(kind):
        used = column.indices.unique().drop_null()
        texts = dict(zip(used.to_pylist(), _values(column.dictionary.take(used), limit), strict=True))
        return [texts.get(index) for index in column.indices.to_pylist()]
    if types.is_nested(kind):
        return _all_bad(column, NESTED)
    if _is_bytes(kind):
        return _all_bad(column, BYTES)
    if types.is_interval(kind):
        return _all_bad(column, Bad(f"is a {kind}, neither a number nor text"))
    if types.is_duration(kind):
        per_second = _PER_SECOND[kind.unit]
        return [v if v is None else v / per_second for v in column.view(pyarrow.int64()).to_pylist()]
    if types.is_time(kind):  # which pyarrow takes modulo a day
        numbers = column.view(pyarrow.int32() if types.is_time32(kind) else pyarrow.int64()).to_pylist()
        per_second = _PER_SECOND[kind.unit]
        return [v if v is None else time_of(v * 1_000_000 // per_second, str(kind)) for v in numbers]
    if types.is_timestamp(kind) and kind.unit == "ns":  # Python's times have none
        column = column.cast(pyarrow.timestamp("us", kind.tz), safe=False)
    if _is_text(kind) and (pc.max(pc.binary_length(column)).as_py() or 0) > limit:
        return [_text(value, limit) for value in column]
    try:
        return column.to_pylist()
    except (ValueError, OverflowError, LookupError):
        return [_value(value) for value in column]


def _all_bad(column: pyarrow.Array, bad: Bad) -> list[Any]:
    return [bad if there else None for there in column.is_valid().to_pylist()]


def _text(value: pyarrow.Scalar, limit: int) -> Any:
    size = value.as_buffer().size if value.is_valid else 0
    return Bad(f"has {size:,} bytes: {too_long(limit)}") if size > limit else _value(value)


def _value(value: pyarrow.Scalar) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        return Bad(f"is not UTF-8: byte 0x{error.object[error.start]:02x} is no part of a character")
    except (ValueError, OverflowError):
        return Bad(f"is outside the years 1 to 9999: a {value.type} of {value.value:,} since 1970")
    except LookupError as error:  # a time zone that is none
        return Bad(f"is a {value.type}, whose time zone is unknown: {error}")


def _is_text(kind: pyarrow.DataType) -> bool:
    return types.is_string(kind) or types.is_large_string(kind)


def _is_bytes(kind: pyarrow.DataType) -> bool:
    kinds = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
    return any(is_kind(kind) for is_kind in kinds)
