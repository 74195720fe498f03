"""The parts of groups on their way, in buckets of groups: state and timers cost the same for one group as for many.

Little-endian:

    version of these bytes; for each part, until the end: index of the tier; start in µs; shard; version of the part;
    sizes of the roll-up's name, of the group's value, and of the part; they
"""

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from zlib import crc32

from pipeline.core.rollups.group_rules import Group

VERSION = 1
"""The format, and the division of groups into buckets."""

_HEAD = bytes([VERSION])
_PART = struct.Struct("<BqIIHHI")
_MOST_BYTES = 2 << 20  # of parts in an element
_FEW_SHARDS, _FEW_BUCKETS = 256, 2  # of a fleet whose groups fit in as many
_SHARDS_OF_BUCKET = 32


class Part(NamedTuple):
    """What the sensors of a shard have together in a group's window.

    Attributes:
        group: the group.
        tier: the index of the tier.
        start_us: the window's start.
        shard: the shard.
        version: the version; of two, the greater counts.
        data: the encoded :mod:`~pipeline.core.rollups.sums`.
    """

    group: Group
    tier: int
    start_us: int
    shard: int
    version: int
    data: bytes


def buckets_for(shards: int) -> int:
    """Returns the number of buckets, for a number of shards of sensors: one thread at a time has the groups of one."""
    return _FEW_BUCKETS if shards <= _FEW_SHARDS else shards // _SHARDS_OF_BUCKET


def parts_of_buckets(parts: Iterable[Part], buckets: int) -> Iterator[tuple[int, bytes]]:
    """Yields ``(bucket, parts)``, encoded, none much larger than two megabytes."""
    found: dict[int, list[bytes]] = defaultdict(lambda: [_HEAD])
    sizes: dict[int, int] = defaultdict(int)
    for (name, value), tier, start_us, shard, version, data in parts:
        of_name, of_value = name.encode(), value.encode()
        bucket = crc32(of_value, crc32(of_name)) % buckets
        head = _PART.pack(tier, start_us, shard, version, len(of_name), len(of_value), len(data))
        found[bucket] += (head, of_name, of_value, data)
        sizes[bucket] += len(data)
        if sizes[bucket] >= _MOST_BYTES:
            yield bucket, b"".join(found.pop(bucket))
            del sizes[bucket]
    for bucket, encoded in found.items():
        yield bucket, b"".join(encoded)


def read_parts(data: bytes) -> Iterator[Part]:
    """Yields the parts that :func:`parts_of_buckets` encoded. Raises ValueError for those of another release."""
    if data[:1] != _HEAD:
        raise ValueError("another release wrote these roll-ups; drain the job that wrote them and start a new one")
    end = 1
    while end < len(data):
        tier, start_us, shard, version, name_size, value_size, size = _PART.unpack_from(data, end)
        name = end + _PART.size
        value = name + name_size
        begin = value + value_size
        end = begin + size
        group = Group(data[name:value].decode(), data[value:begin].decode())
        yield Part(group, tier, start_us, shard, version, data[begin:end])
