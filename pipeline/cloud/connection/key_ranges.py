"""Cuts a table into parts of about the same size, at row keys that Bigtable has sampled."""

from collections.abc import Sequence
from typing import NamedTuple

from pipeline.cloud.connection.bigtable_client import bigtable_client
from pipeline.cloud.connection.errors import explained
from pipeline.cloud.connection.names import TableName

_TIMEOUT_S = 60.0
_MAX_PARTS = 1000
_MIN_PART_BYTES = 16 << 20  # a smaller part is not worth its requests


class Sample(NamedTuple):
    """A row key and the approximate size of all rows before it. The last sample, the table's end, has an empty key."""

    key: bytes
    offset_bytes: int


def sampled_keys(name: TableName) -> list[Sample]:
    """Returns sampled row keys, in order. Raises ServerError if the server refuses or is out of reach."""
    with explained(name), bigtable_client() as client:
        found = client.sample_row_keys(**name.target, timeout=_TIMEOUT_S)
        return [Sample(each.row_key, each.offset_bytes) for each in found]


def split_points(samples: Sequence[Sample], min_bytes: int = _MIN_PART_BYTES) -> list[bytes]:
    """Returns the keys that cut the table into at most a thousand parts, of at least ``min_bytes`` each."""
    if not samples:
        return []
    part_bytes = max(min_bytes, samples[-1].offset_bytes // _MAX_PARTS)
    points, last_bytes = [], 0
    for key, offset_bytes in samples:
        if key and offset_bytes - last_bytes >= part_bytes:
            points.append(key)
            last_bytes = offset_bytes
    return points
