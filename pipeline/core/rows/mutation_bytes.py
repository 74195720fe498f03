"""Encodes rows as the bytes of a ``MutateRowsRequest``, defined in google/bigtable/v2/bigtable.proto and data.proto.

The encoding is written by hand because filling a protobuf class takes twice as long. Also, the size of a request is
known, a retry encodes nothing again, and requests can be split and joined. Tests compare the bytes with those of
Google's class for the same rows.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from pipeline.core.events.event import EARLIEST_US, LATEST_US
from pipeline.core.rows.rows import Cell, EncodedRow, Row

ENTRY_OVERHEAD = 16
"""The most bytes in an entry besides its key and its mutations: two tags, and lengths below 2^49."""

_TWO_BYTES = [bytes((bits & 0x7F | 0x80, bits >> 7 | 0x80)) for bits in range(1 << 14)]  # a part of a longer varint
_TAGGED_BYTES = [b"\x18" + low for low in _TWO_BYTES]  # the start of a timestamp
_EVENT_TIME_SIZE = 9  # encoded size of a timestamp between 2^49 and 2^56 µs: from 1987 to 4253


def request_header(table: str, app_profile: str) -> bytes:
    """Encodes the start of a request: everything except its entries."""
    return _field(0x0A, table.encode()) + _field(0x1A, app_profile.encode())


def mutations_of(cells: Sequence[Cell]) -> bytes:
    """Encodes a ``SetCell`` for every cell, in order, as the mutations of an ``Entry``.

    Two results for the same row may be concatenated.

    Raises:
        ValueError: a timestamp is negative. -1 would make the server use its own time, and another one at a retry.
    """
    parts: list[bytes] = []
    last_us = -1
    time = b""
    for family, qualifier, timestamp_us, value in cells:
        if timestamp_us != last_us:  # usually all cells have the same
            last_us, time = timestamp_us, timestamp_of(timestamp_us)
        before, between = _around(family, qualifier, len(time), len(value))
        parts += (before, time, between, value)
    return b"".join(parts)


def delete_family(family: str) -> bytes:
    """Encodes a ``DeleteFromFamily``, as :func:`mutations_of` encodes cells."""
    return _field(0x12, _field(0x1A, _field(0x0A, family.encode())))


def delete_column(family: str, qualifier: bytes, before_us: int = 0) -> bytes:
    """Encodes a ``DeleteFromColumn``: all versions, or those with an earlier timestamp in µs."""
    time_range = _field(0x1A, b"\x10" + timestamp_of(before_us)[1:]) if before_us else b""
    return _field(0x12, _field(0x12, _field(0x0A, family.encode()) + _field(0x12, qualifier) + time_range))


def replacing(family: str, cells: Iterable[tuple[bytes, int, bytes]], *, delete: bool = True) -> bytes:
    """Encodes, for each cell, a ``DeleteFromColumn`` of the versions before its timestamp, and a ``SetCell``.

    Args:
        family: the family of the cells.
        cells: the qualifier, timestamp in µs, and value of each cell.
        delete: whether older versions are deleted; else there is a ``SetCell`` only.

    Raises:
        ValueError: a timestamp is negative, or zero: a range that ends there has no end for Bigtable.
    """
    parts: list[bytes] = []
    last_us = -1
    time = before = b""
    for qualifier, timestamp_us, value in cells:
        if timestamp_us != last_us:
            if not timestamp_us:
                raise ValueError("a cell's timestamp is zero, and no version is older")
            last_us, time = timestamp_us, timestamp_of(timestamp_us)
            before = _field(0x1A, b"\x10" + time[1:])
        set_cell, between = _around_qualifier(family, len(qualifier), len(time), len(value))
        if delete:
            parts += (_deleted(family, len(qualifier), len(before)), qualifier, before)
        parts += (set_cell, qualifier, time, between, value)
    return b"".join(parts)


def delete_row() -> bytes:
    """Encodes a ``DeleteFromRow``."""
    return b"\x12\x02\x22\x00"


def encoded(row: Row) -> EncodedRow:
    """Returns the row with its cells encoded. Raises ValueError like :func:`mutations_of`."""
    return EncodedRow(row.key, mutations_of(row.cells), len(row.cells))


class ColumnBytes(dict[int, tuple[bytes, bytes]]):
    """The constant bytes of a column's cells by value size: those before the timestamp, and those before the value.

    A cell at an event's time is ``before + timestamp_of(time) + between + value``, as :func:`mutations_of` returns it;
    only the value's size has to be looked up.
    """

    def __init__(self, family: str, qualifier: bytes) -> None:
        super().__init__()
        self._column = family, qualifier

    def __missing__(self, value_size: int) -> tuple[bytes, bytes]:
        self[value_size] = found = _around(*self._column, _EVENT_TIME_SIZE, value_size)
        return found


def entry_of(key: bytes, mutations: Iterable[bytes]) -> bytes:
    """Encodes a ``MutateRowsRequest.Entry``."""
    return b"".join((_field(0x0A, key), *mutations))


def request_of(header: bytes, entries: Iterable[tuple[bytes, list[bytes]]]) -> bytes:
    """Encodes a ``MutateRowsRequest``.

    Args:
        header: the bytes from :func:`request_header`.
        entries: each row's key, and its mutations from :func:`mutations_of`.
    """
    parts = [header]
    for key, mutations in entries:
        of_row = mutations[0] if len(mutations) == 1 else b"".join(mutations)
        parts.append(_before_key(len(key), len(of_row)))
        parts.append(key)
        parts.append(of_row)
    return b"".join(parts)


@lru_cache(maxsize=4096)
def _before_key(key_size: int, mutations_size: int) -> bytes:
    """Encodes the start of an entry up to its key. An empty key is omitted; the server refuses the entry."""
    of_key = b"\x0a" + _varint(key_size) if key_size else b""
    return b"\x12" + _varint(len(of_key) + key_size + mutations_size) + of_key


@lru_cache(maxsize=4096)
def _around(family: str, qualifier: bytes, time_size: int, value_size: int) -> tuple[bytes, bytes]:
    """Encodes the bytes before a cell's timestamp, and those between it and the value. Most cells share both."""
    column = _field(0x0A, family.encode()) + _field(0x12, qualifier)
    between = b"\x22" + _varint(value_size) if value_size else b""
    set_cell = b"\x0a" + _varint(len(column) + time_size + len(between) + value_size)
    mutation_size = len(set_cell) + len(column) + time_size + len(between) + value_size
    return b"\x12" + _varint(mutation_size) + set_cell + column, between


@lru_cache(maxsize=4096)
def _deleted(family: str, qualifier_size: int, time_size: int) -> bytes:
    """Encodes the bytes before the qualifier of a ``DeleteFromColumn`` with a range of time."""
    column = _field(0x0A, family.encode()) + _tag(0x12, qualifier_size)
    size = len(column) + qualifier_size + time_size
    delete = b"\x12" + _varint(size)
    return b"\x12" + _varint(len(delete) + size) + delete + column


@lru_cache(maxsize=4096)
def _around_qualifier(family: str, qualifier_size: int, time_size: int, value_size: int) -> tuple[bytes, bytes]:
    """Encodes the bytes of a ``SetCell`` before its qualifier, and those between its timestamp and its value."""
    column = _field(0x0A, family.encode()) + _tag(0x12, qualifier_size)
    between = _tag(0x22, value_size)
    size = len(column) + qualifier_size + time_size + len(between) + value_size
    set_cell = b"\x0a" + _varint(size)
    return b"\x12" + _varint(len(set_cell) + size) + set_cell + column, between


def timestamp_of(time_us: int) -> bytes:
    """Encodes the timestamp of a cell. Raises ValueError if it is negative."""
    if time_us < 0:
        raise ValueError(f"a cell's timestamp is negative: {time_us}")
    high = time_us >> 28  # changes every four minutes, so many rows share its cached varint
    if not high:
        return b"\x18" + _varint(time_us) if time_us else b""
    return _TAGGED_BYTES[time_us & 0x3FFF] + _TWO_BYTES[time_us >> 14 & 0x3FFF] + _varint(high)


def _field(tag: int, value: bytes) -> bytes:
    return _tag(tag, len(value)) + value


def _tag(tag: int, size: int) -> bytes:
    return bytes((tag,)) + _varint(size) if size else b""


@lru_cache(maxsize=1024)
def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


if {len(timestamp_of(time_us)) for time_us in (EARLIEST_US, LATEST_US)} != {_EVENT_TIME_SIZE}:
    raise ImportError("the encoded timestamps of valid events differ in size")
