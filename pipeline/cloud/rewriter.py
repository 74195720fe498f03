"""Rows whose cells of one family are replaced, each in one step, and all of them before anybody goes on."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from google.api_core.exceptions import GoogleAPICallError
from google.cloud.bigtable.data import (
    BigtableDataClient,
    DeleteAllFromFamily,
    DeleteRangeFromColumn,
    RowMutationEntry,
    SetCell,
)
from google.cloud.bigtable.data.exceptions import MutationsExceptionGroup

from pipeline.cloud.errors import TRANSIENT, ServerProblem, explained
from pipeline.cloud.names import TableName
from pipeline.core.rows import Cell

_TIMEOUT_S = 60.0  # of a request, with all retries
_MOST_MUTATIONS = 50_000  # of a request; Bigtable takes 100,000
_MOST_ENTRIES = 1000


class Replacement(NamedTuple):
    """All that a row is to have in a family: no cells for nothing, which deletes a row that has no other family."""

    key: bytes
    family: str
    cells: tuple[Cell, ...]


class Rewriter:
    """Rewrites rows of one table. Made by :meth:`open`.

    Every method returns when Bigtable has confirmed all of it, having retried what can pass for a minute, and raises
    ServerProblem for what it refuses. Done again, each leaves the same.
    """

    def __init__(self, client: BigtableDataClient, name: TableName) -> None:
        self.name = name
        self._table = client.get_table(name.instance, name.table)

    @classmethod
    @contextmanager
    def open(cls, name: TableName) -> Iterator["Rewriter"]:
        """A connection for the length of a ``with`` block, to the emulator where BIGTABLE_EMULATOR_HOST says so."""
        with explained(f"table {name}"):
            client = BigtableDataClient(project=name.project)
        with client:
            yield cls(client, name)

    def replace(self, replacements: Iterable[Replacement]) -> None:
        """Replaces what rows have in a family, stale columns and versions included. Each row at most once."""
        self._apply(entry for replacement in replacements for entry in _entries(replacement))

    def delete_column(self, keys: Iterable[bytes], family: str, qualifier: bytes) -> None:
        """Deletes a column of these rows."""
        self._apply(RowMutationEntry(key, DeleteRangeFromColumn(family, qualifier)) for key in keys)

    def _apply(self, entries: Iterable[RowMutationEntry]) -> None:
        for batch in _batches(entries):
            with explained(f"table {self.name}"):
                try:
                    self._table.bulk_mutate_rows(batch, operation_timeout=_TIMEOUT_S, retryable_errors=TRANSIENT)
                except MutationsExceptionGroup as failures:
                    raise self._telling(failures) from failures

    def _telling(self, failures: MutationsExceptionGroup) -> Exception:
        """Of what failed, the server's own word on the first row."""
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
    """One entry, which Bigtable applies in order and at once; of a row too large for that, the rest comes behind it."""
    key, family, cells = replacement
    first, rest = cells[: _MOST_MUTATIONS - 1], cells[_MOST_MUTATIONS - 1 :]
    yield RowMutationEntry(key, [DeleteAllFromFamily(family), *map(_set_cell, first)])
    for start in range(0, len(rest), _MOST_MUTATIONS):
        yield RowMutationEntry(key, [*map(_set_cell, rest[start : start + _MOST_MUTATIONS])])


def _set_cell(cell: Cell) -> SetCell:
    return SetCell(cell.family, cell.qualifier, cell.value, cell.timestamp_us)


def _batches(entries: Iterable[RowMutationEntry]) -> Iterator[list[RowMutationEntry]]:
    """Requests' worth of entries; those of one row never share one, as a request's are applied in any order."""
    batch: list[RowMutationEntry] = []
    mutations = 0
    for entry in entries:
        size = len(entry.mutations)
        full = mutations + size > _MOST_MUTATIONS or len(batch) == _MOST_ENTRIES
        if batch and (full or batch[-1].row_key == entry.row_key):
            yield batch
            batch, mutations = [], 0
        batch.append(entry)
        mutations += size
    if batch:
        yield batch
