"""Writes Arrow tables as CSV, Parquet and a stream of Arrow. Tables of events are files that this package reads back.

Tables arrive in batches, of which memory holds a few. A spool sets tables aside until all of their columns are known.
"""

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol

from pipeline.core.notation.cell_values import format_value
from pipeline.core.notation.text import json_number
from pipeline.core.notation.times import format_time, local_text

if TYPE_CHECKING:
    import pyarrow

_BATCH_ROWS = 1000  # rows that are Python objects at the same time
_GROUP_ROWS = 1 << 17  # of a group of rows in Parquet
_SPOOLED_ROWS = 200_000  # in memory


class TextSink(Protocol):
    """Something that CSV can be written to."""

    def write(self, text: str, /) -> Any:
        """Writes text."""


def write_csv(table: "pyarrow.RecordBatchReader", file: TextSink, *, delimiter: str = ",", decimal: str = ".") -> None:
    """Writes a table of texts, numbers and times with their offsets, with a header and one ``write`` for each row.

    Numbers are the shortest text that reads back to the same double. A null is an empty field, and so is an empty text:
    CSV can't tell them apart.
    """
    # Quotes what contains one of these.
    writer = csv.writer(_CsvLines(file), delimiter=delimiter, lineterminator="\r\n")
    writer.writerow(table.schema.names)
    for batch in table:
        for start in range(0, len(batch), _BATCH_ROWS):
            columns = (_texts(column, decimal) for column in batch.slice(start, _BATCH_ROWS).columns)
            writer.writerows(zip(*columns, strict=True))


class _CsvLines(NamedTuple):
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


class Spool:
    """The tables of parts, to which columns may come later. What memory does not hold is in files, one for each part.

    Args:
        folder: an empty folder for the files.
        rank: returns the place of a column among the others, given its name; columns of the same place stay in the
            order in which they came.
    """

    def __init__(self, folder: Path, rank: Callable[[str], Any]) -> None:
        self._folder = folder
        self._rank = rank
        self._fields: dict[str, pyarrow.Field] = {}
        self._tables = defaultdict[str, list["pyarrow.Table"]](list)
        self._files: dict[str, Path] = {}
        self._rows = 0

    def add(self, part: str, table: "pyarrow.Table") -> None:
        """Adds a table to a part."""
        for column in table.schema:
            self._fields.setdefault(column.name, column)
        self._tables[part].append(table)
        self._rows += len(table)
        if self._rows > _SPOOLED_ROWS:
            self._write()

    @property
    def parts(self) -> list[str]:
        """The parts that have tables, in order."""
        return sorted(self._files.keys() | self._tables.keys())

    def read(self, part: str) -> "pyarrow.RecordBatchReader":
        """Returns the rows of a part, with the columns of all parts; null where a table lacks a column."""
        import pyarrow

        fields = sorted(self._fields.values(), key=lambda column: self._rank(column.name))
        return aligned(pyarrow.schema(fields), self._tables_of(part))

    def _tables_of(self, part: str) -> Iterator["pyarrow.Table"]:
        import pyarrow

        if part in self._files:
            with pyarrow.OSFile(str(self._files[part])) as file:
                while file.tell() < file.size():
                    yield pyarrow.ipc.open_stream(file).read_all()
        yield from self._tables[part]

    def _write(self) -> None:
        """Moves all tables to the ends of their files, a stream for the tables of one schema each."""
        import pyarrow

        for part, tables in self._tables.items():
            path = self._files.setdefault(part, self._folder / f"{len(self._files)}.arrow")
            with path.open("ab") as file:
                table = pyarrow.concat_tables(tables, promote_options="default")
                with pyarrow.ipc.new_stream(file, table.schema) as writer:
                    writer.write_table(table)
        self._tables.clear()
        self._rows = 0


def aligned(schema: "pyarrow.Schema", tables: Iterable["pyarrow.Table"]) -> "pyarrow.RecordBatchReader":
    """Returns the rows of tables, with the columns of a schema; null where a table lacks a column."""
    import pyarrow

    nothing = schema.empty_table()
    batches = (
        batch
        for table in tables
        for batch in pyarrow.concat_tables([nothing, table], promote_options="default").to_batches()
    )
    return pyarrow.RecordBatchReader.from_batches(schema, batches)
