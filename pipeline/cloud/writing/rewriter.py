"""Rewrites cells of rows, each row in one atomic step, and waits until all rows are written."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from google.api_core.exceptions import GoogleAPICallError
from google.cloud.bigtable.data import (
    BigtableDataClient,
    DeleteAllFromFamily,
    DeleteAllFromRow,
    DeleteRangeFromColumn,
    RowMutationEntry,
    SetCell,
)
from google.cloud.bigtable.data.exceptions import MutationsExceptionGroup

from pipeline.cloud.connection.errors import TRANSIENT, ServerProblem, explained
from pipeline.cloud.connection.names import TableName
from pipeline.core.rows.rows import Cell, Row

_TIMEOUT_S = 60.0  # for a request with all retries
_MAX_MUTATIONS = 50_000  # in a request; Bigtable accepts 100,000
_MAX_ENTRIES = 1000


class Replacement(NamedTuple):
    """The cells that replace all cells of a row in a family. Without any, a row that has no other family goes."""

    key: bytes
    family: str
    cells: tuple[Cell, ...]


class Rewriter:
    """Rewrites rows of one table. Create it with :meth:`open`.

    Every method is idempotent, retries transient errors for a minute and returns once Bigtable has confirmed all rows.
    It raises ServerProblem if Bigtable refuses a row.
    """

    def __init__(self, client: BigtableDataClient, name: TableName) -> None:
        self.name = name
        self._table = client.get_table(name.instance, name.table, app_profile_id=name.app_profile)

    @classmethod
    @contextmanager
    def open(cls, name: TableName) -> Iterator["Rewriter"]:
        """Connects for the length of a ``with`` block, to the emulator if BIGTABLE_EMULATOR_HOST is set."""
        with explained(name):
            client = BigtableDataClient(project=name.project)
        with client:
            yield cls(client, name)

    def replace(self, replacements: Iterable[Replacement]) -> None:
        """Replaces all cells of rows in a family, old columns and versions included. Pass each row at most once."""
        self._apply(entry for replacement in replacements for entry in _entries(replacement))

    def add(self, rows: Iterable[Row]) -> None:
        """Writes the cells of rows beside their other cells. Pass each row at most once."""
        self._apply(RowMutationEntry(row.key, [*map(_set_cell, row.cells)]) for row in rows)

    def delete_column(self, keys: Iterable[bytes], family: str, qualifier: bytes) -> None:
        """Deletes a column of these rows."""
        self._apply(RowMutationEntry(key, DeleteRangeFromColumn(family, qualifier)) for key in keys)

    def delete_rows(self, keys: Iterable[bytes]) -> None:
        """Deletes whole rows."""
        self._apply(RowMutationEntry(key, DeleteAllFromRow()) for key in keys)

    def _apply(self, entries: Iterable[RowMutationEntry]) -> None:
        for batch in _batches(entries):
            with explained(self.name):
                try:
                    # The client takes classes instead of is_transient: so the caller has to retry after a stream reset.
                    # No batch is so large that gRPC refuses it.
                    self._table.bulk_mutate_rows(batch, operation_timeout=_TIMEOUT_S, retryable_errors=TRANSIENT)
                except MutationsExceptionGroup as failures:
                    raise self._cause_of(failures) from failures

    def _cause_of(self, failures: MutationsExceptionGroup) -> Exception:
        """Returns the server's own error for the first row that failed."""
        causes: list[BaseException] = [failures]
        while causes:
            cause = causes.pop()
            if isinstance(cause, GoogleAPICallError):
                return cause
            if isinstance(cause, BaseExceptionGroup):
                causes += reversed(cause.exceptions)
            elif cause.__cause__ is not None:
                causes.append(cause.__cause__)
        return ServerProblem(f"table {self.name}: {' '.join(str(failures).split())[:300]}")


def _entries(replacement: Replacement) -> Iterator[RowMutationEntry]:
    """Returns one entry, which Bigtable applies atomically and in order; more than one only for a huge row."""
    key, family, cells = replacement
    first, rest = cells[: _MAX_MUTATIONS - 1], cells[_MAX_MUTATIONS - 1 :]
    yield RowMutationEntry(key, [DeleteAllFromFamily(family), *map(_set_cell, first)])
    for start in range(0, len(rest), _MAX_MUTATIONS):
        yield RowMutationEntry(key, [*map(_set_cell, rest[start : start + _MAX_MUTATIONS])])


def _set_cell(cell: Cell) -> SetCell:
    return SetCell(cell.family, cell.qualifier, cell.value, cell.timestamp_us)


def _batches(entries: Iterable[RowMutationEntry]) -> Iterator[list[RowMutationEntry]]:
    """Groups entries into requests. Entries of one row never share a request, which applies entries in any order."""
    batch: list[RowMutationEntry] = []
    mutations = 0
    for entry in entries:
        size = len(entry.mutations)
        full = mutations + size > _MAX_MUTATIONS or len(batch) == _MAX_ENTRIES
        if batch and (full or batch[-1].row_key == entry.row_key):
            yield batch
            batch, mutations = [], 0
        batch.append(entry)
        mutations += size
    if batch:
        yield batch
