"""Writes Arrow tables as CSV, Parquet and a stream of Arrow. Those of events are files that this package reads back.

Tables come in batches, of which memory holds a few.
"""

import csv
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol

from pipeline.core.notation.cell_values import format_value
from pipeline.core.notation.text import json_number
from pipeline.core.notation.times import format_time, local_text

if TYPE_CHECKING:
    import pyarrow

_BATCH_ROWS = 1000  # rows that are Python objects at the same time
_GROUP_ROWS = 1 << 17  # of a group of rows in Parquet


class TextSink(Protocol):
    """Something that CSV can be written to."""

    def write(self, text: str, /) -> Any:
        """Writes text."""


def write_csv(table: "pyarrow.RecordBatchReader", file: TextSink, *, delimiter: str = ",", decimal: str = ".") -> None:
    """Writes a table of texts, numbers and times with their offsets, with a header and one ``write`` for each row.

    Numbers are the shortest text that reads back to the same double. A null is an empty field, and so is an empty text:
    CSV can't tell them apart.

    Args:
        table: the table.
        file: the text file.
        delimiter: the character between fields.
        decimal: the character between the whole and the fraction of a number.
    """
    # Quotes what contains one of these.
    writer = csv.writer(_Lines(file), delimiter=delimiter, lineterminator="\r\n")
    writer.writerow(table.schema.names)
    for batch in table:
        for start in range(0, len(batch), _BATCH_ROWS):
            columns = (_texts(column, decimal) for column in batch.slice(start, _BATCH_ROWS).columns)
            writer.writerows(zip(*columns, strict=True))


class _Lines(NamedTuple):
    """Ends lines as text files do."""

    file: TextSink

    def write(self, line: str) -> None:
        self.file.write(line.removesuffix("\r\n") + "\n")


def write_parquet(table: "pyarrow.RecordBatchReader", file: BinaryIO) -> None:
    """Writes a table as a Parquet file, in groups of some 100,000 rows. The file may be a pipe."""
    import pyarrow.parquet  # slow to import

    group, rows = list[Any](), 0
    with pyarrow.parquet.ParquetWriter(_Counted(file), table.schema) as writer:
        for batch in table:
            group.append(batch)
            rows += len(batch)
            if rows >= _GROUP_ROWS:
                writer.write_table(pyarrow.Table.from_batches(group), rows)
                group, rows = [], 0
        if rows:
            writer.write_table(pyarrow.Table.from_batches(group), rows)


def write_arrow(table: "pyarrow.RecordBatchReader", file: BinaryIO) -> None:
    """Writes a table as a stream of Arrow, which readers take batch by batch as it comes."""
    import pyarrow

    with pyarrow.ipc.new_stream(_Counted(file), table.schema) as writer:
        for batch in table:
            writer.write_batch(batch)


class _Counted:
    """A file of which Arrow asks the position, which a pipe can't tell."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._written = file, 0

    def write(self, data: bytes) -> int:
        self._file.write(data)
        self._written += len(data)
        return len(data)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """Leaves the file open."""


def json_values(column: "pyarrow.ChunkedArray") -> list[Any]:
    """Returns what JSON has for the values of a column: texts of times, and of numbers that are infinite."""
    from pyarrow import types

    if types.is_timestamp(column.type):
        return [text for chunk in column.chunks for text in _texts(chunk, ".")]
    values = column.to_pylist()
    return [json_number(value) for value in values] if types.is_floating(column.type) else values


def _texts(column: "pyarrow.Array", decimal: str) -> Iterator[str]:
    from pyarrow import int64, types

    text: Callable[[Any], str] = str
    if types.is_timestamp(column.type):
        zone = column.type.tz or "UTC"
        text = format_time if zone == "UTC" else partial(local_text, zone=zone)
        column = column.cast(int64())  # a datetime would cost three times as much
    elif types.is_floating(column.type):
        text = _number if decimal == "." else lambda value: _number(value).replace(".", decimal)
    return ("" if value is None else text(value) for value in column.to_pylist())


def _number(value: float) -> str:
    return format_value(value).decode()
