"""Rows and ranges of rows, as Bigtable has them: what every format of this package is made of."""

from typing import NamedTuple


class Cell(NamedTuple):
    """One cell. Its timestamp is in microseconds at Bigtable's grain, the millisecond."""

    family: str
    qualifier: bytes
    timestamp_us: int
    value: bytes


class Row(NamedTuple):
    """Cells under one key: to be written, or as they were read."""

    key: bytes
    cells: list[Cell]


class EncodedRow(NamedTuple):
    """A row to be written, its cells as :mod:`pipeline.core.mutation_bytes` has them."""

    key: bytes
    mutations: bytes
    cells: int


class EncodedRows(list[EncodedRow]):
    """Rows that go on together."""


class KeyRange(NamedTuple):
    """Row keys from ``start``, inclusive, to ``end``, exclusive; an empty end is the table's."""

    start: bytes
    end: bytes


def after_prefix(prefix: bytes) -> bytes:
    """The least key behind all keys that begin so; empty, the table's end, where there is none."""
    cut = prefix.rstrip(b"\xff")
    return cut[:-1] + bytes([cut[-1] + 1]) if cut else b""


def prefix_range(prefix: bytes) -> KeyRange:
    """All keys that begin so."""
    return KeyRange(prefix, after_prefix(prefix))
