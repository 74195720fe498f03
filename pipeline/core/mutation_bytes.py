"""Rows as the bytes of a ``MutateRowsRequest``, which google/bigtable/v2/bigtable.proto and data.proto describe.

Written by hand because a protobuf class takes twice as long to fill in, and because what is bytes already has a size
that is known, is not filled in again for a retry, and can be taken apart and put together. Every request is parsed by
Google's class before it is sent, and tests hold these bytes against what that class makes of the same rows.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from pipeline.core.events import EARLIEST_US, LATEST_US
from pipeline.core.rows import Cell, EncodedRow, Row

ENTRY_OVERHEAD = 16
"""What an entry has at most beside its key and its mutations: two tags, and lengths below 2^49 bytes in all."""

_TWO_BYTES = [bytes((bits & 0x7F | 0x80, bits >> 7 | 0x80)) for bits in range(1 << 14)]  # of a varint that goes on
_EVENT_TIME_SIZE = 9  # of a timestamp between 2^49 and 2^56 µs: from 1987 to 4253


def head_of(table: str, app_profile: str) -> bytes:
    """The request's beginning: everything but its entries."""
    return _field(0x0A, table.encode()) + _field(0x1A, app_profile.encode())


def mutations_of(cells: Sequence[Cell]) -> bytes:
    """``SetCell`` for every cell, in this order: what an ``Entry`` has of them. Two of one row joined are both's.

    Raises:
        ValueError: a timestamp is negative: -1 asks the server for its own time, which a retry would ask for again.
    """
    parts: list[bytes] = []
    last_us = -1
    time = b""
    for family, qualifier, timestamp_us, value in cells:
        if timestamp_us != last_us:  # mostly one for all cells
            last_us, time = timestamp_us, timestamp_of(timestamp_us)
        before, between = _around(family, qualifier, len(time), len(value))
        parts += (before, time, between, value)
    return b"".join(parts)


def encoded(row: Row) -> EncodedRow:
    """The row with its cells encoded. Raises ValueError as :func:`mutations_of` does."""
    return EncodedRow(row.key, mutations_of(row.cells), len(row.cells))


class ColumnBytes(dict[int, tuple[bytes, bytes]]):
    """What is before the timestamp of a column's cell, and between it and the value, by the value's size.

    A cell at an event's time is ``before + timestamp_of(time) + between + value``: what :func:`mutations_of` makes of
    it, without a look at anything but the value.
    """

    def __init__(self, family: str, qualifier: bytes) -> None:
        super().__init__()
        self._column = family, qualifier

    def __missing__(self, value_size: int) -> tuple[bytes, bytes]:
        self[value_size] = found = _around(*self._column, _EVENT_TIME_SIZE, value_size)
        return found


def entry_of(key: bytes, mutations: Iterable[bytes]) -> bytes:
    """A ``MutateRowsRequest.Entry``."""
    return b"".join((_field(0x0A, key), *mutations))


def request_of(head: bytes, entries: Iterable[tuple[bytes, list[bytes]]]) -> bytes:
    """A ``MutateRowsRequest`` of these keys and what :func:`mutations_of` makes of their cells."""
    parts = [head]
    for key, mutations in entries:
        of_row = mutations[0] if len(mutations) == 1 else b"".join(mutations)
        parts.append(_before_key(len(key), len(of_row)))
        parts.append(key)
        parts.append(of_row)
    return b"".join(parts)


@lru_cache(maxsize=4096)
def _before_key(key_size: int, mutations_size: int) -> bytes:
    """What an entry of these sizes begins with. An empty key, which is the server's to refuse, is not written."""
    of_key = b"\x0a" + _varint(key_size) if key_size else b""
    return b"\x12" + _varint(len(of_key) + key_size + mutations_size) + of_key


@lru_cache(maxsize=4096)
def _around(family: str, qualifier: bytes, time_size: int, value_size: int) -> tuple[bytes, bytes]:
    """What is before the timestamp of a cell, and between it and the value. Most cells are alike in all of this."""
    column = _field(0x0A, family.encode()) + _field(0x12, qualifier)
    between = b"\x22" + _varint(value_size) if value_size else b""
    set_cell = b"\x0a" + _varint(len(column) + time_size + len(between) + value_size)
    mutation_size = len(set_cell) + len(column) + time_size + len(between) + value_size
    return b"\x12" + _varint(mutation_size) + set_cell + column, between


def timestamp_of(time_us: int) -> bytes:
    """The timestamp of a cell. Raises ValueError where it is negative."""
    if time_us < 0:
        raise ValueError(f"a cell's timestamp is negative: {time_us}")
    high = time_us >> 28  # of four minutes: one varint for many rows
    if not high:
        return b"\x18" + _varint(time_us) if time_us else b""
    return b"\x18%b%b%b" % (_TWO_BYTES[time_us & 0x3FFF], _TWO_BYTES[time_us >> 14 & 0x3FFF], _varint(high))


def _field(tag: int, value: bytes) -> bytes:
    return bytes((tag,)) + _varint(len(value)) + value if value else b""


@lru_cache(maxsize=1024)
def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


if {len(timestamp_of(time_us)) for time_us in (EARLIEST_US, LATEST_US)} != {_EVENT_TIME_SIZE}:
    raise ImportError("timestamps of valid events are not of one size")
