"""The groups of a bucket: groups of roll-ups that share state and timers, which cost the same for one as for many.

Little-endian:

    parts   version; records of one window each until the end: size of the group's key, size of the update; both
    chunk   version; records of one group each: time until which it is kept in µs, size of the key, size of the group's
            windows; both
    key     the roll-up's name, ``#`` and the group's value
"""

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from zlib import crc32

from pipeline.core.rollups.group_windows import GroupWindows, update_bytes
from pipeline.core.rollups.shard_windows import Group, Part
from pipeline.core.rows.rollup_rows import Versioned
from pipeline.core.rows.rows import EncodedRows
from pipeline.core.schema.rollup import Rollup
from pipeline.core.schema.table_schema import Tier

VERSION = 1

_HEAD = bytes([VERSION])
_PART = struct.Struct("<HI")
_GROUP = struct.Struct("<qHI")
_MOST_BYTES = 2 << 20  # of parts in an element
_CHUNK_BYTES = 4 << 20
_LEAST_BUCKETS = 16
_SHARDS_OF_BUCKET = 16

ReadParts = Callable[[Group, int, int], Mapping[bytes, Versioned]]
"""Returns the cells of a group's row of parts, by column: takes the group, the index of the tier and the start."""


def buckets_for(shards: int) -> int:
    """Returns the number of buckets, for a number of shards of sensors: one thread at a time has the groups of one."""
    return max(_LEAST_BUCKETS, shards // _SHARDS_OF_BUCKET)


def parts_of_buckets(parts: Iterable[Part], buckets: int) -> Iterator[tuple[int, bytes]]:
    """Yields ``(bucket, parts)``, encoded, none much larger than two megabytes."""
    found: dict[int, list[bytes]] = defaultdict(lambda: [_HEAD])
    sizes: dict[int, int] = defaultdict(int)
    for part in parts:
        key, update = "#".join(part.group).encode(), update_bytes(part)
        bucket = crc32(key) % buckets
        found[bucket] += (_PART.pack(len(key), len(update)), key, update)
        sizes[bucket] += len(key) + len(update)
        if sizes[bucket] >= _MOST_BYTES:
            yield bucket, b"".join(found.pop(bucket))
            del sizes[bucket]
    for bucket, encoded in found.items():
        yield bucket, b"".join(encoded)


class BucketWindows:
    """The windows of a bucket's groups.

    Args:
        rollups: the table's roll-ups.
        tiers: the table's tiers, shortest first.
        read: reads what the table has.
        chunks: the state, as :meth:`chunks` returned it.
        expected: the number of sensors that the schema declares; None if it does not tell.

    Attributes:
        rows: the rows to write.
    """

    def __init__(
        self,
        rollups: Sequence[Rollup],
        tiers: Sequence[Tier],
        read: ReadParts,
        chunks: Iterable[bytes] = (),
        expected: int | None = None,
    ) -> None:
        self._rollups, self._tiers, self._read = {rollup.name: rollup for rollup in rollups}, tiers, read
        self._expected = expected
        self.rows = EncodedRows()
        self._groups: dict[bytes, tuple[int, bytes]] = {}
        for chunk in chunks:
            self._groups.update(_groups(chunk))

    def add(self, parts: Iterable[bytes], now_us: int, kept_us: int) -> None:
        """Takes parts, and writes the rows of their groups.

        Args:
            parts: the parts, as :func:`parts_of_buckets` encodes them.
            now_us: the current time.
            kept_us: the time for which the state keeps a window after the last change.
        """
        updates: dict[bytes, list[bytes]] = defaultdict(list)
        for data in parts:
            for key, update in _updates(data):
                updates[key].append(update)
        for key, of_group in updates.items():
            group = Group(*key.decode().split("#"))
            rollup = self._rollups.get(group.name)
            if rollup is None:
                continue  # an update of the job has left it out
            known = self._groups.get(key)
            expected = None if rollup.by else self._expected
            read = partial(self._read, group)
            windows = GroupWindows(rollup, group, self._tiers, read, known and known[1], expected)
            windows.add(of_group, now_us, kept_us)
            self.rows.extend(windows.rows)
            self._groups[key] = now_us + kept_us, windows.to_bytes()
        self._groups = {key: kept for key, kept in self._groups.items() if kept[0] > now_us}

    def chunks(self) -> Iterator[bytes]:
        """Yields the state, in chunks of limited size."""
        parts, size = [_HEAD], 0
        for key, (kept_until_us, data) in self._groups.items():
            parts += (_GROUP.pack(kept_until_us, len(key), len(data)), key, data)
            size += len(key) + len(data)
            if size >= _CHUNK_BYTES:
                yield b"".join(parts)
                parts, size = [_HEAD], 0
        if size:
            yield b"".join(parts)


def _updates(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    _check(data)
    end = 1
    while end < len(data):
        key_size, size = _PART.unpack_from(data, end)
        key = end + _PART.size
        update = key + key_size
        end = update + size
        yield data[key:update], data[update:end]


def _groups(chunk: bytes) -> Iterator[tuple[bytes, tuple[int, bytes]]]:
    _check(chunk)
    end = 1
    while end < len(chunk):
        kept_until_us, key_size, size = _GROUP.unpack_from(chunk, end)
        key = end + _GROUP.size
        windows = key + key_size
        end = windows + size
        yield chunk[key:windows], (kept_until_us, chunk[windows:end])


def _check(data: bytes) -> None:
    if data[:1] != _HEAD:
        raise ValueError("another release wrote these roll-ups; drain the job that wrote them and start a new one")
