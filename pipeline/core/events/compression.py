"""Unpacks payloads that publishers compress: gzip (RFC 1952) and zlib (RFC 1950)."""

import zlib
from collections.abc import Mapping

from pipeline.core.events.reasons import BadData, Reason

CONTENT_ENCODING = "content-encoding"
"""The attribute that names the compression of a payload, in any case."""

MAX_UNPACKED = 10_000_000
"""The most bytes that a payload unpacks to: the largest message of Pub/Sub."""

_ENCODINGS = frozenset({"gzip", "x-gzip", "deflate", "zlib"})  # deflate is zlib's format in HTTP
_FIRST_BYTES = frozenset({0x1F, *range(0x08, 0x80, 0x10)})
_WINDOWS = {"gzip": 31, "zlib": 15}  # arguments of zlib


def is_content_encoding(name: str) -> bool:
    """Returns whether an attribute names the compression of a payload."""
    return len(name) == len(CONTENT_ENCODING) and name.lower() == CONTENT_ENCODING


def unpacked(data: bytes, attributes: Mapping[str, str], compression: str = "") -> bytes:
    """Returns a payload without its compression; unchanged if it is not compressed, or nothing says that it may be.

    An attribute may say ``gzip`` for a payload that something on its way unpacked. Raises BadData.

    Args:
        data: the payload.
        attributes: the attributes of its message.
        compression: ``gzip`` or ``zlib``, which the payload then has to be; ``auto`` for either or none; empty if only
            the attribute decides.
    """
    if not compression and (not data or data[0] not in _FIRST_BYTES):
        return data
    compressed = _compression_of(data)
    texts = [text.strip().lower() for name, text in attributes.items() if is_content_encoding(name)]
    if not _ENCODINGS.isdisjoint(texts):
        return _unpacked(data, compressed) if compressed else data
    if compression != "auto":
        return _unpacked(data, compression) if compression else data
    try:
        return _unpacked(data, compressed) if compressed else data
    except _NotCompressed:
        if compressed == "zlib":  # a message of protobuf may begin like it
            return data
        raise


class _NotCompressed(BadData):
    """Raised for a payload that is not compressed as its beginning says."""


def _compression_of(data: bytes) -> str:
    if data[:2] == b"\x1f\x8b":
        return "gzip"
    return "zlib" if len(data) > 1 and data[0] in _FIRST_BYTES and int.from_bytes(data[:2]) % 31 == 0 else ""


def _unpacked(data: bytes, compression: str) -> bytes:
    stream = zlib.decompressobj(_WINDOWS[compression])
    try:
        content = stream.decompress(data, MAX_UNPACKED + 1)
    except zlib.error as error:
        raise _NotCompressed(Reason.UNPARSEABLE, f"the payload is not {compression}: {error}") from None
    if len(content) > MAX_UNPACKED:
        raise BadData(Reason.UNPARSEABLE, f"the payload unpacks to more than {MAX_UNPACKED:,} bytes")
    if not stream.eof:
        raise _NotCompressed(Reason.UNPARSEABLE, f"the payload is {compression} that is cut off")
    if stream.unused_data.strip(b"\0"):
        raise _NotCompressed(Reason.UNPARSEABLE, f"the payload goes on after the end of its {compression}")
    return content
