"""Writes Arrow tables as CSV and Parquet. Those of events are files that this package reads back."""

import csv
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol

from pipeline.core.notation.cell_values import format_value
from pipeline.core.notation.times import format_time, local_text

if TYPE_CHECKING:
    import pyarrow

_BATCH_ROWS = 1000  # rows that are Python objects at the same time


class TextSink(Protocol):
    """Something that CSV can be written to."""

    def write(self, text: str, /) -> Any:
        """Writes text."""


def write_csv(table: "pyarrow.Table", file: TextSink) -> None:
    """Writes a table of texts, numbers and times with their offsets, with a header and one ``write`` for each row.

    Numbers are the shortest text that reads back to the same double. A null is an empty field, and so is an empty text:
    CSV can't tell them apart.
    """
    writer = csv.writer(_Lines(file), lineterminator="\r\n")  # quotes what contains one of these
    writer.writerow(table.column_names)
    for batch in table.to_batches(_BATCH_ROWS):
        writer.writerows(zip(*map(_texts, batch.columns), strict=True))


class _Lines(NamedTuple):
    """Ends lines as text files do."""

    file: TextSink

    def write(self, line: str) -> None:
        self.file.write(line.removesuffix("\r\n") + "\n")


def write_parquet(table: "pyarrow.Table", file: BinaryIO) -> None:
    """Writes a table as a Parquet file."""
    import pyarrow.parquet  # slow to import

    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    file.write(sink.getvalue())


def _texts(column: "pyarrow.Array") -> Iterator[str]:
    from pyarrow import int64, types

    text: Callable[[Any], str] = str
    if types.is_timestamp(column.type):
        zone = column.type.tz or "UTC"
        text = format_time if zone == "UTC" else partial(local_text, zone=zone)
        column = column.cast(int64())  # a datetime would cost three times as much
    elif types.is_floating(column.type):
        text = _number
    return ("" if value is None else text(value) for value in column.to_pylist())


def _number(value: float) -> str:
    return format_value(value).decode()
