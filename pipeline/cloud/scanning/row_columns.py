"""Reads the rows of responses as a block, by one regular expression over the responses' bytes.

Rows with the same few columns repeat the same bytes, except for keys, timestamps and values. So one pattern finds all
rows, several times faster than a loop over its chunks. The pattern describes ``ReadRowsResponse`` in
google/bigtable/v2/bigtable.proto, with fields in the order of their numbers. It never matches rows that were reset,
values in parts, labels, several cells of a column, or several families: responses with these are read chunk by chunk.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

from pipeline.cloud.scanning.row_chunks import assembled_rows
from pipeline.core.rows.row_blocks import BlockOfRows

_CHUNKS = 256  # of responses that are read together
_MOST_COLUMNS = 64  # each takes time in every row, also in those without it

_TEXT = rb"[0-9+\-.eE]+"  # no tag that may follow is one of these characters
_VALUES = {"text": rb"([\x00-\x7f])(" + _TEXT + rb")", "float64": rb"(\x08)(.{8})"}  # with the length before it
_LENGTH = rb"[\x80-\xff]?[\x00-\x7f]"
_TIMESTAMP = rb"\x20[\x80-\xff]{7}[\x00-\x7f]"  # of the years 1987 to 4253


class _Shape(NamedTuple):
    """What the rows of a response have in common."""

    family: str
    qualifiers: tuple[bytes, ...]
    values: str  # how values are encoded: a key of _VALUES


def batches(responses: Iterable[Any]) -> Iterator[list[Any]]:
    """Yields responses, as many together as a block needs to pay; also those before a failure, which is then raised."""
    batch, chunks = list[Any](), 0
    try:
        for response in responses:
            batch.append(response)
            chunks += len(response.chunks)
            if chunks >= _CHUNKS:
                yield batch
                batch, chunks = [], 0
    except Exception:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


class BlockReader:
    """Reads responses as blocks. Expects the same columns as in the block before. Thread-safe."""

    def __init__(self) -> None:
        self._shape: _Shape | None = None

    def block(self, responses: Sequence[Any]) -> BlockOfRows | None:
        """Returns the rows of consecutive responses; None if they must be read chunk by chunk.

        Args:
            responses: ReadRowsResponse as plain protobuf, of which the first does not continue a row.
        """
        # Such bytes, one after the other, are those of one response with the chunks of all.
        data, shape = b"".join([response.SerializeToString() for response in responses]), self._shape
        found = _rows(shape, data) if shape is not None else None
        if found is None:
            learned = _shape_of([chunk for response in responses for chunk in response.chunks])
            if learned is None or learned == shape:
                return None
            self._shape = shape = learned
            found = _rows(shape, data)
        if found is None or shape is None:
            return None
        columns = list(zip(*found, strict=True))
        texts = columns[1::2]
        for lengths, of_column in zip(columns[::2], texts, strict=True):
            if b"".join(lengths) != bytes(map(len, filter(None, of_column))):
                return None  # a key or a value contains bytes that look like those after it
        rows = cache(lambda: list(assembled_rows(responses)))
        return BlockOfRows(texts[0], shape.family, shape.qualifiers, texts[1:], rows)


def _rows(shape: _Shape, data: bytes) -> list[tuple[bytes, ...]] | None:
    """Returns the length and the text of the key, and of the value in each column, of each row; None without a match.

    Both are empty where a row lacks the column.
    """
    found = _pattern(shape).findall(data)
    return found if found and found[-1][0] else None


@lru_cache(maxsize=256)
def _pattern(shape: _Shape) -> re.Pattern[bytes]:
    """Returns the pattern of a row. Whatever is no row matches it too, with an empty key, as far as the end."""
    family = _named(b"\x12", shape.family.encode())
    # The first column stands in the chunk of the key. Other chunks may repeat the key and the family.
    chunk = rb"(?:\n" + _LENGTH + rb"(?:\n\1\2)?(?:" + family + rb")?|(?<=" + family + rb"))"
    columns = [
        rb"(?:" + chunk + _named(b"\x1a", qualifier) + _TIMESTAMP + rb"\x32" + _VALUES[shape.values] + rb")?+"
        for qualifier in shape.qualifiers
    ]
    key = rb"\n" + _LENGTH + rb"\n([\x00-\x7f])([!-~]+)"
    return re.compile(key + family + rb"(?=\x1a)" + b"".join(columns) + rb"\x48\x01|.+", re.DOTALL)


def _shape_of(chunks: Sequence[Any]) -> _Shape | None:
    if not chunks:
        return None
    qualifiers = tuple(sorted({chunk.qualifier.value for chunk in chunks}))
    if len(qualifiers) > _MOST_COLUMNS:
        return None
    first = chunks[0]
    values = "float64" if len(first.value) == 8 and re.fullmatch(_TEXT, first.value) is None else "text"
    return _Shape(first.family_name.value, qualifiers, values)


def _named(tag: bytes, name: bytes) -> bytes:
    """Returns the pattern of a field with the name of a family or a column, which has a message of its own."""
    value = b"\n" + _varint(len(name)) + name if name else b""
    return re.escape(tag + _varint(len(value)) + value)


def _varint(number: int) -> bytes:
    return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80]) + _varint(number >> 7)
