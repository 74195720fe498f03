"""A table's keys divided into parts of about the same size, as Bigtable itself has sampled them."""

from collections.abc import Sequence
from typing import NamedTuple

from pipeline.cloud.bigtable_client import bigtable_client
from pipeline.cloud.errors import explained
from pipeline.cloud.names import TableName
from pipeline.core.rows import KeyRange

_TIMEOUT_S = 60.0
_MOST_PARTS = 1000
_LEAST_BYTES = 16 << 20  # of a part: less would not be worth its requests


class Sample(NamedTuple):
    """A key, and about how many bytes the rows before it take; the last one's key is empty, and it is all of them."""

    key: bytes
    offset_bytes: int


def sampled_keys(name: TableName) -> list[Sample]:
    """Keys of the table, in order. Raises ServerProblem for what the server refuses or when it is out of reach."""
    with explained(f"table {name}"), bigtable_client(name.project) as client:
        found = client.sample_row_keys(table_name=str(name), timeout=_TIMEOUT_S)
        return [Sample(each.row_key, each.offset_bytes) for each in found]


def cuts(samples: Sequence[Sample], least_bytes: int = _LEAST_BYTES) -> list[bytes]:
    """Keys between which lie parts of ``least_bytes`` or more, no more than a thousand of them."""
    if not samples:
        return []
    part_bytes = max(least_bytes, samples[-1].offset_bytes // _MOST_PARTS)
    found, cut_at = [], 0
    for key, offset_bytes in samples:
        if key and offset_bytes - cut_at >= part_bytes:
            found.append(key)
            cut_at = offset_bytes
    return found


def divided(keys: KeyRange, at: Sequence[bytes]) -> list[KeyRange]:
    """The range in parts, cut at those of the keys that lie in it."""
    inside = [key for key in at if keys.start < key and (not keys.end or key < keys.end)]
    starts, ends = [keys.start, *inside], [*inside, keys.end]
    return [KeyRange(*ends_of_part) for ends_of_part in zip(starts, ends, strict=True)]
