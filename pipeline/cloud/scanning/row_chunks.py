"""Assembles rows from the chunks in which Bigtable sends them."""

from collections.abc import Iterable, Iterator
from typing import Any

from google.api_core.exceptions import Aborted, DataLoss

from pipeline.core.rows.rows import Cell, Row

_new = tuple.__new__  # makes a Cell or a Row in half the time of its own constructor


def assembled_rows(responses: Iterable[Any]) -> Iterator[Row]:
    """Yields every complete row, and every row that the server reports as scanned and left out, without cells.

    Args:
        responses: ReadRowsResponse as plain protobuf, all of one request.

    Raises:
        Aborted: the responses end in the middle of a row.
        DataLoss: a chunk contradicts an earlier one.
    """
    assembler = RowAssembler()
    for response in responses:
        yield from assembler.rows(response)
    assembler.end()


class RowAssembler:
    """Assembles the rows of one request, response by response.

    Attributes:
        key: the key of the row of which a part has come; empty between rows.
    """

    def __init__(self) -> None:
        self.key = b""
        self._cells: list[Cell] = []
        self._column: tuple[str | None, bytes | None] = None, None
        self._parts: list[Any] = []  # chunks with all but the last part of a value

    def rows(self, response: Any) -> Iterator[Row]:
        """Yields the rows that the response completes or reports as scanned. Raises DataLoss."""
        key, cells, parts = self.key, self._cells, self._parts
        family, qualifier = self._column
        if response.last_scanned_row_key:
            yield _scanned(response.last_scanned_row_key, key)
        for chunk in response.chunks:
            if chunk.reset_row:
                key, cells, family, qualifier, parts = b"", [], None, None, []
                continue
            # A chunk without a family or a column has that of the chunk before.
            if chunk.row_key or qualifier is None or chunk.HasField("family_name"):
                key, family, qualifier = _column(chunk, key, family, qualifier)
            elif chunk.HasField("qualifier"):
                qualifier = chunk.qualifier.value
            if chunk.value_size:
                parts.append(chunk)
            elif parts:
                value = b"".join(part.value for part in (*parts, chunk))
                cells.append(_new(Cell, (family, qualifier, parts[0].timestamp_micros, value)))
                parts = []
            else:
                cells.append(_new(Cell, (family, qualifier, chunk.timestamp_micros, chunk.value)))
            if chunk.commit_row:
                if parts:
                    raise DataLoss(f"the server sent row {key!r} with a value in part")
                yield _new(Row, (key, cells))
                key, cells, family, qualifier = b"", [], None, None
        self.key, self._cells, self._column, self._parts = key, cells, (family, qualifier), parts

    def end(self) -> None:
        """Raises Aborted if the last row is incomplete."""
        if self.key:
            raise Aborted(f"the server stopped in the middle of row {self.key!r}")


def _scanned(scanned: bytes, key: bytes) -> Row:
    if key:
        raise DataLoss(f"the server sent row {key!r} in part and continued after it")
    return Row(scanned, [])


def _column(chunk: Any, key: bytes, family: str | None, qualifier: bytes | None) -> tuple[bytes, str, bytes]:
    """Returns the key, the family and the qualifier of a chunk that begins a row or a family, or repeats the key."""
    sent = chunk.row_key
    key = key or sent
    if not key or (sent and sent != key):
        raise DataLoss(f"the server sent a cell of row {sent!r} as one of row {key!r}")
    if (name := chunk.family_name.value) or chunk.HasField("family_name"):  # an empty name is a name like any other
        family, qualifier = name, None
    if (column := chunk.qualifier.value) or chunk.HasField("qualifier"):
        qualifier = column
    if family is None or qualifier is None:
        raise DataLoss(f"the server sent a cell of row {key!r} without its column")
    return key, family, qualifier
