"""What is due: windows of shards or of groups whose rows have to be computed again.

Little-endian:

    due       version; until the end, windows: index of the tier; start in µs; size of the names; they, as lines
    written   version; number of keys; for each the key, the size of what is due, and it; then rows, as in
              :mod:`pipeline.core.rows.rows`

The names are the metadata of sensors of a shard, or the groups of a bucket.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple
from zlib import crc32

from pipeline.core.rows.rows import EncodedRows, read_rows, rows_bytes

VERSION = 1

Window = tuple[int, int]
"""The index of a tier, and the start of a window in µs."""

Due = dict[Window, dict[bytes, None]]
"""The names by window, each once and in order."""

MOST_BYTES = 1 << 20
"""The size from which on rows, or what is due, are passed on as one element."""

_FEW_SHARDS, _FEW_BUCKETS = 256, 2  # of a fleet whose groups fit in as many
_SHARDS_OF_BUCKET = 32
_HEAD = bytes([VERSION])
_WINDOW = struct.Struct("<BqI")
_KEYS, _KEY = struct.Struct("<BI"), struct.Struct("<II")
_OTHER_RELEASE = "another release wrote what is due in roll-ups; drain the job that wrote it and start a new one"


class RowsThenDue(NamedTuple):
    """Rows to write, and what is due once they are written.

    Attributes:
        due: the keys of the step that has to compute windows, and these windows as :func:`due_bytes` encodes them.
    """

    rows: EncodedRows
    due: list[tuple[int, bytes]]


def buckets_for(shards: int) -> int:
    """Returns the number of buckets of groups, for a number of shards: one thread at a time has the groups of one."""
    return _FEW_BUCKETS if shards <= _FEW_SHARDS else shards // _SHARDS_OF_BUCKET


def bucket_of(name: bytes, buckets: int) -> int:
    """Returns the bucket of a group: the key of the step that computes the group's rows."""
    return crc32(name) % buckets


def due_bytes(due: Mapping[Window, Iterable[bytes]]) -> Iterator[bytes]:
    """Yields windows, encoded, none much larger than :data:`MOST_BYTES`."""
    parts, size = [_HEAD], 0
    for (tier, start_us), names in due.items():
        for lines in _some_at_a_time(names):
            parts += (_WINDOW.pack(tier, start_us, len(lines)), lines)
            size += len(lines) + _WINDOW.size
            if size >= MOST_BYTES:
                yield b"".join(parts)
                parts, size = [_HEAD], 0
    if size:
        yield b"".join(parts)


def _some_at_a_time(names: Iterable[bytes]) -> Iterator[bytes]:
    some, size = list[bytes](), 0
    for name in names:
        some.append(name)
        size += len(name) + 1
        if size >= MOST_BYTES:
            yield b"\n".join(some)
            some, size = [], 0
    if some:
        yield b"\n".join(some)


def read_due(datas: Iterable[bytes]) -> Due:
    """Returns the windows that :func:`due_bytes` encoded. Raises ValueError for those of another release."""
    found: Due = {}
    for data in datas:
        if data[:1] != _HEAD:
            raise ValueError(_OTHER_RELEASE)
        end = 1
        while end < len(data):
            tier, start_us, size = _WINDOW.unpack_from(data, end)
            begin, end = end + _WINDOW.size, end + _WINDOW.size + size
            found.setdefault((tier, start_us), {}).update(dict.fromkeys(data[begin:end].split(b"\n")))
    return found


def written_bytes(written: RowsThenDue) -> bytes:
    """Encodes rows with what is due."""
    parts = [_KEYS.pack(VERSION, len(written.due))]
    for key, data in written.due:
        parts += (_KEY.pack(key, len(data)), data)
    return b"".join((*parts, rows_bytes(written.rows)))


def read_written(data: bytes) -> RowsThenDue:
    """Returns what :func:`written_bytes` encoded. Raises ValueError for bytes of another release."""
    version, count = _KEYS.unpack_from(data)
    if version != VERSION:
        raise ValueError(_OTHER_RELEASE)
    end, due = _KEYS.size, list[tuple[int, bytes]]()
    for _ in range(count):
        key, size = _KEY.unpack_from(data, end)
        begin, end = end + _KEY.size, end + _KEY.size + size
        due.append((key, data[begin:end]))
    return RowsThenDue(read_rows(data, end), due)
