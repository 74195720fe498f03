"""Bigtable's rows, cells and key ranges as plain data, rows in blocks, and rows encoded to be written.

Rows to be written are encoded as the bytes of a ``MutateRowsRequest``, defined in google/bigtable/v2/bigtable.proto and
data.proto. The encoding is written by hand because filling a protobuf class takes twice as long. Also, the size of a
request is known, a retry encodes nothing again, and requests can be split and joined. Tests compare the bytes with
those of Google's class for the same rows.
"""

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from sys import maxsize
from typing import NamedTuple, TypeVar

from pipeline.core.events.event import EARLIEST_US, LATEST_US


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


_Item = TypeVar("_Item")


class EncodedRow(NamedTuple):
    """A row to be written, with its cells encoded by :func:`mutations_of`."""

    key: bytes
    mutations: bytes
    cells: int


class EncodedRows(list[EncodedRow]):
    """Rows that are passed on as one element."""


def row_bytes(row: EncodedRow) -> int:
    """Returns the bytes of a row's key and cells."""
    return len(row.key) + len(row.mutations)


def some_at_a_time(
    items: Iterable[_Item], size_of: Callable[[_Item], int], most_bytes: int, most: int = maxsize
) -> Iterator[list[_Item]]:
    """Yields items in lists of at most ``most``, of which none is much larger than ``most_bytes``."""
    some, size = list[_Item](), 0
    for item in items:
        some.append(item)
        size += size_of(item)
        if size >= most_bytes or len(some) >= most:
            yield some
            some, size = [], 0
    if some:
        yield some


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


def split_range(keys: KeyRange, points: Sequence[bytes]) -> list[KeyRange]:
    """Returns the range cut at the points inside it."""
    inside = [key for key in points if keys.start < key and (not keys.end or key < keys.end)]
    starts, ends = [keys.start, *inside], [*inside, keys.end]
    return [KeyRange(start, end) for start, end in zip(starts, ends, strict=True)]


_SIZES = struct.Struct("<III")
_new = tuple.__new__  # makes an EncodedRow in half the time of its own constructor


def rows_bytes(rows: EncodedRows) -> bytes:
    """Serializes rows: before each stand the sizes of its key and its mutations, and its number of cells.

    These are little-endian unsigned integers of four bytes.
    """
    pack = _SIZES.pack
    parts: list[bytes] = []
    for key, mutations, cells in rows:
        parts.append(pack(len(key), len(mutations), cells))
        parts.append(key)
        parts.append(mutations)
    return b"".join(parts)


def read_rows(data: bytes, begin: int = 0) -> EncodedRows:
    """Returns the rows in the bytes of :func:`rows_bytes`, from an offset to the end."""
    keys, mutations, cells = list[bytes](), list[bytes](), list[int]()
    sizes, of_sizes, end = _SIZES.unpack_from, _SIZES.size, len(data)
    while begin < end:
        key_size, size, count = sizes(data, begin)
        key = begin + of_sizes
        of_row = key + key_size
        begin = of_row + size
        keys.append(data[key:of_row])
        mutations.append(data[of_row:begin])
        cells.append(count)
    if begin > end:
        raise ValueError("the rows are cut off")
    return EncodedRows(map(_new, repeat(EncodedRow), zip(keys, mutations, cells, strict=True)))


def rows_size(rows: EncodedRows) -> int:
    """Returns the number of bytes that :func:`rows_bytes` writes."""
    return sum([len(key) + len(mutations) for key, mutations, _ in rows]) + _SIZES.size * len(rows)


class BlockOfRows:
    """Consecutive rows, in the order of keys, whose cells are in the same columns.

    A row may lack some of the columns. It has one cell in each of the others, all with the same timestamp.

    Attributes:
        keys: the rows' keys.
        families: the columns' families.
        qualifiers: the columns' qualifiers, in order within a family.
        values: the values of each column, row by row; empty where a row lacks the column.
        times: the timestamp of each row's cells, as the varint of its microseconds; :func:`time_us_of` decodes it.
    """

    __slots__ = ("_first", "_rows", "families", "keys", "qualifiers", "times", "values")

    def __init__(
        self,
        keys: Sequence[bytes],
        families: tuple[str, ...],
        qualifiers: tuple[bytes, ...],
        values: Sequence[Sequence[bytes]],
        times: Sequence[bytes],
        rows: Callable[[], Sequence[Row]],
        first: int = 0,
    ) -> None:
        self.keys = keys
        self.families = families
        self.qualifiers = qualifiers
        self.values = values
        self.times = times
        self._rows = rows
        self._first = first

    def rows(self) -> Sequence[Row]:
        """Returns the rows one by one."""
        return self._rows()[self._first : self._first + len(self.keys)]

    def part(self, start: int, end: int) -> "BlockOfRows":
        """Returns the rows from index ``start`` to ``end``, exclusive."""
        values, times = [of_column[start:end] for of_column in self.values], self.times[start:end]
        return BlockOfRows(
            self.keys[start:end], self.families, self.qualifiers, values, times, self._rows, self._first + start
        )


Part = Row | BlockOfRows
"""One row, or many."""


class RowStream(Iterator[Row]):
    """Rows that the caller reads one by one or, at a fraction of the cost, in blocks; not both."""

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


def block_of(part: Part) -> BlockOfRows:
    """Returns a part as a block. Raises ValueError if a row has no place in one."""
    if isinstance(part, BlockOfRows):
        return part
    families, qualifiers, times_us, values = zip(*part.cells, strict=True)
    if len(set(times_us)) > 1 or len(set(qualifiers)) < len(qualifiers) or not all(values):
        raise ValueError(f"row {part.key!r} has several timestamps, several versions of a cell, or an empty cell")
    columns = [(value,) for value in values]
    return BlockOfRows((part.key,), families, qualifiers, columns, (timestamp_of(times_us[0])[1:],), lambda: (part,))


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
        set_cell, between = _around(family, len(qualifier), len(time), len(value))
        parts += (set_cell, qualifier, time, between, value)
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
        set_cell, between = _around(family, len(qualifier), len(time), len(value))
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
        family, qualifier = self._column
        set_cell, between = _around(family, len(qualifier), _EVENT_TIME_SIZE, value_size)
        self[value_size] = found = set_cell + qualifier, between
        return found


def entry_of(key: bytes, mutations: Iterable[bytes]) -> bytes:
    """Encodes a ``MutateRowsRequest.Entry``."""
    return b"".join((_field(0x0A, key), *mutations))


def request_of(header: bytes, entries: Iterable[tuple[bytes, list[bytes]]]) -> bytes:
    """Encodes a ``MutateRowsRequest``."""
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
def _deleted(family: str, qualifier_size: int, time_size: int) -> bytes:
    """Encodes the bytes before the qualifier of a ``DeleteFromColumn`` with a range of time."""
    column = _field(0x0A, family.encode()) + _tag(0x12, qualifier_size)
    size = len(column) + qualifier_size + time_size
    delete = b"\x12" + _varint(size)
    return b"\x12" + _varint(len(delete) + size) + delete + column


@lru_cache(maxsize=4096)
def _around(family: str, qualifier_size: int, time_size: int, value_size: int) -> tuple[bytes, bytes]:
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


@lru_cache(maxsize=1 << 14)  # rows of a window have few of them
def time_us_of(varint: bytes) -> int:
    """Returns the number that a varint encodes."""
    number = 0
    for byte in reversed(varint):
        number = number << 7 | byte & 0x7F
    return number


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
