"""Bigtable's rows, cells and key ranges as plain data."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Cell(NamedTuple):
    """One cell. Its timestamp is in microseconds, at Bigtable's granularity of a millisecond."""

    family: str
    qualifier: bytes
    timestamp_us: int
    value: bytes


class Row(NamedTuple):
    """The cells under one key, to be written or as read."""

    key: bytes
    cells: list[Cell]


_MOST_BYTES = 2 << 20  # of the rows in an element


class EncodedRow(NamedTuple):
    """A row to be written, with its cells encoded by :mod:`pipeline.core.rows.mutation_bytes`."""

    key: bytes
    mutations: bytes
    cells: int


class EncodedRows(list[EncodedRow]):
    """Rows that are passed on as one element."""


def parts_of(rows: EncodedRows) -> Iterator[EncodedRows]:
    """Yields the rows in parts for an element each: none is much larger than :data:`_MOST_BYTES`."""
    part, size = EncodedRows(), 0
    for row in rows:
        part.append(row)
        size += len(row.key) + len(row.mutations)
        if size >= _MOST_BYTES:
            yield part
            part, size = EncodedRows(), 0
    if part:
        yield part


class KeyRange(NamedTuple):
    """Row keys from ``start``, inclusive, to ``end``, exclusive. An empty end is the end of the table."""

    start: bytes
    end: bytes


def after_prefix(prefix: bytes) -> bytes:
    """Returns the first key after all keys with this prefix; empty, the end of the table, without such a key."""
    cut = prefix.rstrip(b"\xff")
    return cut[:-1] + bytes([cut[-1] + 1]) if cut else b""


def prefix_range(prefix: bytes) -> KeyRange:
    """Returns the range of all keys with this prefix."""
    return KeyRange(prefix, after_prefix(prefix))


def disjoint(ranges: Iterable[KeyRange]) -> list[KeyRange]:
    """Returns ranges in order that contain the same keys, each once; none of them is empty."""
    found: list[KeyRange] = []
    for start, end in sorted(ranges):
        if end and end <= start:
            continue
        if found and (not found[-1].end or start <= found[-1].end):
            first, last = found.pop()
            found.append(KeyRange(first, max(last, end) if last and end else b""))
        else:
            found.append(KeyRange(start, end))
    return found
