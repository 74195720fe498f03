"""Passes on batches of rows, several at a time, and those of each group in the order in which it wrote them.

A batch has the rows of all panes that a group fires at once. Bigtable may apply the entries of a request in any order,
and a runner may deliver elements in any order. So a row is passed on at most once at a time, as its last batch has it,
and a batch waits for the group's earlier ones. Rows of newest readings are passed on from each batch: a later batch may
have older readings, and their cells never replace newer ones.
"""

import struct
from collections.abc import Iterable, Iterator

from pipeline.core.rows.newest_row import is_latest_key
from pipeline.core.rows.row_bytes import read_rows, rows_bytes
from pipeline.core.rows.rows import EncodedRow, EncodedRows

VERSION = 1

_LEAST_SHARDS = 4
_GROUPS_OF_SHARD = 64
_MOST_BYTES = 2 << 20  # of the rows in a batch

_BATCH = struct.Struct("<BIQI")
_NEXT = struct.Struct("<IQ")
_OTHER_RELEASE = "another release wrote these panes; drain the job that wrote them and start a new one"


def shards_for(groups: int) -> int:
    """Returns the number of shards for the batches of so many groups: one thread at a time writes those of a shard."""
    return max(_LEAST_SHARDS, groups // _GROUPS_OF_SHARD)


def parts_of(rows: EncodedRows) -> Iterator[EncodedRows]:
    """Yields the rows in parts for a batch each: no element is much larger than :data:`_MOST_BYTES`."""
    part, size = EncodedRows(), 0
    for row in rows:
        part.append(row)
        size += len(row.key) + len(row.mutations)
        if size >= _MOST_BYTES:
            yield part
            part, size = EncodedRows(), 0
    if part:
        yield part


def batch_bytes(group: int, number: int, rows: EncodedRows) -> bytes:
    """Serializes a batch of a group's rows; its batches are numbered from 0."""
    return _BATCH.pack(VERSION, group, number, len(rows)) + rows_bytes(rows)


def number_of_rows(batch: bytes) -> int:
    """Returns the number of rows in a batch."""
    return _read(batch)[2]


class BatchOrder:
    """The order of the batches of some groups.

    Args:
        data: the result of :meth:`to_bytes`; None for groups without any batch yet.
    """

    def __init__(self, data: bytes | None = None) -> None:
        self._next: dict[int, int] = {}
        if data is not None:
            if data[:1] != bytes([VERSION]):
                raise ValueError(_OTHER_RELEASE)
            self._next.update(_NEXT.iter_unpack(data[1:]))

    def take(self, batches: Iterable[bytes]) -> tuple[EncodedRows, list[bytes]]:
        """Returns the rows of the next batches, each aggregate row once, and the batches that have to wait."""
        rows: dict[bytes, EncodedRow] = {}
        newest: list[EncodedRow] = []
        waiting: list[bytes] = []
        for group, number, batch in sorted((*_read(batch)[:2], batch) for batch in batches):
            expected = self._next.get(group, 0)
            if number == expected:
                for row in read_rows(batch, _BATCH.size):
                    if is_latest_key(row.key):
                        newest.append(row)
                    else:
                        rows[row.key] = row
                self._next[group] = number + 1
            elif number > expected:
                waiting.append(batch)
            # A batch with a smaller number came twice.
        return EncodedRows([*rows.values(), *newest]), waiting

    def to_bytes(self) -> bytes:
        """Serializes the order: a version in one byte; for each group, its number and that of its next batch."""
        return bytes([VERSION]) + b"".join([_NEXT.pack(*pair) for pair in self._next.items()])


def _read(batch: bytes) -> tuple[int, int, int]:
    version, group, number, rows = _BATCH.unpack_from(batch)
    if version != VERSION:
        raise ValueError(_OTHER_RELEASE)
    return group, number, rows
