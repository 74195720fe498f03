"""Blocks of rows: many rows with the same columns, as columns of their values."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence

from pipeline.core.rows.rows import Row


class BlockOfRows:
    """Consecutive rows, in the order of keys, whose cells are in the same columns of one family.

    A row may lack some of the columns. It has one cell in each of the others.

    Attributes:
        keys: the rows' keys.
        family: the columns' family.
        qualifiers: the columns' qualifiers, in order.
        values: the values of each column, row by row; empty where a row lacks the column.
    """

    __slots__ = ("_first", "_rows", "family", "keys", "qualifiers", "values")

    def __init__(
        self,
        keys: Sequence[bytes],
        family: str,
        qualifiers: tuple[bytes, ...],
        values: Sequence[Sequence[bytes]],
        rows: Callable[[], Sequence[Row]],
        first: int = 0,
    ) -> None:
        self.keys = keys
        self.family = family
        self.qualifiers = qualifiers
        self.values = values
        self._rows = rows
        self._first = first

    def rows(self) -> Sequence[Row]:
        """Returns the rows one by one."""
        return self._rows()[self._first : self._first + len(self.keys)]

    def part(self, start: int, end: int) -> "BlockOfRows":
        """Returns the rows from index ``start`` to ``end``, exclusive."""
        values = [of_column[start:end] for of_column in self.values]
        return BlockOfRows(self.keys[start:end], self.family, self.qualifiers, values, self._rows, self._first + start)


Part = Row | BlockOfRows
"""One row, or many."""


class RowStream(Iterator[Row]):
    """Rows that the caller reads one by one or, at a fraction of the cost, in blocks; not both.

    Args:
        rows: the rows one by one.
        parts: the same rows in blocks, and one by one where they are in none.
    """

    def __init__(self, rows: Iterator[Row], parts: Iterator[Part]) -> None:
        self._rows = rows
        self.parts = parts

    def __iter__(self) -> Iterator[Row]:
        return self._rows

    def __next__(self) -> Row:
        return next(self._rows)


def in_parts(rows: Iterator[Row]) -> Iterator[Part]:
    """Returns the rows in blocks, as far as their reader has blocks."""
    return rows.parts if isinstance(rows, RowStream) else rows


def one_by_one(parts: Iterable[Part]) -> Iterator[Row]:
    """Yields the rows of all parts."""
    for part in parts:
        if isinstance(part, BlockOfRows):
            yield from part.rows()
        else:
            yield part


def split(part: Part, end: bytes) -> tuple[Part | None, Part | None]:
    """Returns the rows with keys before ``end``, and the others; None for no rows."""
    if not isinstance(part, BlockOfRows):
        return (part, None) if part.key < end else (None, part)
    index, count = bisect_left(part.keys, end), len(part.keys)
    if index in (0, count):
        return (part, None) if index else (None, part)
    return part.part(0, index), part.part(index, count)


def cells_in(part: Part) -> int:
    """Returns the number of cells in all rows."""
    if isinstance(part, BlockOfRows):
        return sum(len(of_column) - of_column.count(b"") for of_column in part.values)
    return len(part.cells)


def most_cells(part: Part) -> int:
    """Returns the greatest number of cells that a row may have."""
    return len(part.qualifiers) if isinstance(part, BlockOfRows) else len(part.cells)
