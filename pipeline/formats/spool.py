"""Tables that are set aside until all of their columns are known, or sorted into parts: in memory, then on disk."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow

_MOST_ROWS = 200_000  # in memory


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
        if self._rows > _MOST_ROWS:
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
