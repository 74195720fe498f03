"""Rewrites cells of rows, each row in one atomic step, and waits until all rows are written."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from google.api_core.exceptions import GoogleAPICallError

from pipeline.cloud.connection.errors import ServerError, explained
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.writing.bulk_writer import BulkWriter
from pipeline.core.rows.rows import Cell, EncodedRow, Row, delete_column, delete_family, delete_row, mutations_of

_TIMEOUT_S = 60.0  # for a row with all retries
_MAX_MUTATIONS = 50_000  # in a request of several rows; Bigtable accepts 100,000, more than any row has


class Replacement(NamedTuple):
    """The cells that replace all cells of a row in a family. Without any, a row that has no other family goes.

    ``deletes`` is whether the other cells go. If not, newer versions of these cells stay, and hide them.
    """

    key: bytes
    family: str
    cells: tuple[Cell, ...]
    deletes: bool = True


class Rewriter:
    """Rewrites rows of one table, from one thread. Create it with :meth:`open`.

    Every method is idempotent, retries transient errors for a minute and returns once Bigtable has confirmed all rows.
    It raises ServerError if Bigtable refuses a row.
    """

    def __init__(self, writer: BulkWriter) -> None:
        self.name, self._writer = writer.name, writer

    @classmethod
    @contextmanager
    def open(cls, name: TableName) -> Iterator["Rewriter"]:
        """Connects for the length of a ``with`` block, to the emulator if BIGTABLE_EMULATOR_HOST is set."""
        with BulkWriter.open(name, mutations=_MAX_MUTATIONS, deadline_s=_TIMEOUT_S, attempt_s=_TIMEOUT_S) as writer:
            yield cls(writer)

    def replace(self, replacements: Iterable[Replacement]) -> None:
        """Replaces all cells of rows in a family, old columns and versions included. Pass each row at most once."""
        for key, family, cells, deletes in replacements:
            deletion = delete_family(family) if deletes else b""
            self._add(key, deletion + mutations_of(cells), deletes + len(cells))
        self._finish()

    def add(self, rows: Iterable[Row]) -> None:
        """Writes the cells of rows beside their other cells. Pass each row at most once."""
        for row in rows:
            self._add(row.key, mutations_of(row.cells), len(row.cells))
        self._finish()

    def write(self, rows: Iterable[EncodedRow]) -> None:
        """Applies the mutations of rows. Pass each row at most once."""
        with self._server_errors():
            self._writer.add_encoded(rows)
        self._finish()

    def delete_column(self, keys: Iterable[bytes], family: str, qualifier: bytes) -> None:
        """Deletes a column of these rows."""
        for key in keys:
            self._add(key, delete_column(family, qualifier), 1)
        self._finish()

    def delete_rows(self, keys: Iterable[bytes]) -> None:
        """Deletes whole rows."""
        for key in keys:
            self._add(key, delete_row(), 1)
        self._finish()

    def _add(self, key: bytes, mutations: bytes, count: int) -> None:
        with self._server_errors():
            self._writer.add_encoded([EncodedRow(key, mutations, count)])

    def _finish(self) -> None:
        with self._server_errors():
            for refused in self._writer.finish():
                message = " ".join(refused.message.split())[:300]
                raise ServerError(f"table {self.name}: row {refused.key.decode(errors='replace')}: {message}")

    @contextmanager
    def _server_errors(self) -> Iterator[None]:
        """Explains the server's own error instead of counting the rows that it concerns."""
        with explained(self.name):
            try:
                yield
            except ServerError as problem:
                if isinstance(problem.__cause__, GoogleAPICallError):
                    raise problem.__cause__ from None
                raise
