"""Marks: the sensors whose closed windows are due, because late readings came for them.

The readings themselves are in the table by then. Little-endian, without padding: version; the windows' start in µs; the
sensors' ids, separated by line feeds.
"""

import struct
from collections.abc import Iterable, Iterator

VERSION = 1

_HEADER = struct.Struct("<Bq")


def marks_bytes(start_us: int, sensor_ids: Iterable[str]) -> bytes:
    """Returns the marks of sensors' windows with the same start."""
    return _HEADER.pack(VERSION, start_us) + "\n".join(sensor_ids).encode()


def start_of_marks(data: bytes) -> int:
    """Returns the start of the marked windows in µs. Raises ValueError for bytes that another release wrote."""
    version, start_us = _HEADER.unpack_from(data)
    if version != VERSION:
        raise ValueError("another release wrote these marks; drain the job that wrote them and start a new one")
    return int(start_us)


def read_marks(parts: Iterable[bytes]) -> Iterator[tuple[int, str]]:
    """Yields the start in µs and the sensor of each marked window."""
    for data in parts:
        start_us = start_of_marks(data)
        for sensor_id in data[_HEADER.size :].decode().split("\n"):
            yield start_us, sensor_id
