"""Coders of the elements and accumulators that runners store between steps."""

import struct
from typing import Any

from apache_beam.coders import Coder, registry

from pipeline.core.accumulator import WindowReadings
from pipeline.core.rows import EncodedRow, EncodedRows
from pipeline.core.tiers import ShorterWindows

_SIZES = struct.Struct("<III")
_new = tuple.__new__  # makes an EncodedRow in half the time of its own constructor


class AccumulatorCoder(Coder):
    """Encodes an accumulator with its own ``to_bytes``: compact, because there is one for each sensor and window."""

    def __init__(self, kind: type[WindowReadings] | type[ShorterWindows]) -> None:
        self._kind = kind

    def encode(self, value: WindowReadings | ShorterWindows) -> bytes:
        return value.to_bytes()

    def decode(self, encoded: bytes) -> WindowReadings | ShorterWindows:
        return self._kind.from_bytes(encoded)

    def is_deterministic(self) -> bool:
        return False  # equal accumulators may have been added to in different orders

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AccumulatorCoder) and other._kind is self._kind

    def __hash__(self) -> int:
        return hash(self._kind)


class RowsCoder(Coder):
    """Encodes rows: each is preceded by the sizes of its key and its mutations, and its number of cells.

    These are little-endian unsigned integers of four bytes. Runners rarely store rows, but often ask for their size.
    """

    def encode(self, value: EncodedRows) -> bytes:
        parts: list[bytes] = []
        for key, mutations, cells in value:
            parts += (_SIZES.pack(len(key), len(mutations), cells), key, mutations)
        return b"".join(parts)

    def decode(self, encoded: bytes) -> EncodedRows:
        rows = EncodedRows()
        begin = 0
        while begin < len(encoded):
            key_size, mutations_size, cells = _SIZES.unpack_from(encoded, begin)
            key = begin + _SIZES.size
            mutations = key + key_size
            begin = mutations + mutations_size
            rows.append(_new(EncodedRow, (encoded[key:mutations], encoded[mutations:begin], cells)))
        return rows

    def estimate_size(self, value: EncodedRows) -> int:
        return sum([len(key) + len(mutations) for key, mutations, _ in value]) + _SIZES.size * len(value)

    def is_deterministic(self) -> bool:
        return True

    def to_type_hint(self) -> Any:
        return EncodedRows


registry.register_coder(EncodedRows, RowsCoder)
