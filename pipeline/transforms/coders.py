"""Coders of the elements that runners store between steps.

Their bytes begin with a version, and do not depend on the names or places of classes: another release recognizes them.
"""

from typing import Any

from apache_beam.coders import Coder, registry

from pipeline.core.accumulation.accumulator import read_window, window_bytes
from pipeline.core.panes.grouped_readings import RawRows, raw_rows_bytes, read_raw_rows
from pipeline.core.rows.rows import EncodedRows, read_rows, rows_bytes, rows_size
from pipeline.core.statistics.window_stats import WindowStats


class StatsCoder(Coder):
    """Encodes the statistics of a window."""

    def encode(self, value: WindowStats) -> bytes:
        return window_bytes(value)

    def decode(self, encoded: bytes) -> WindowStats:
        return read_window(encoded)

    def is_deterministic(self) -> bool:
        return False  # equal statistics may have their metrics in different orders

    def to_type_hint(self) -> Any:
        return WindowStats


class RowsCoder(Coder):
    """Encodes rows with :mod:`pipeline.core.rows.rows`. Runners rarely store rows, but often ask for sizes."""

    def encode(self, value: EncodedRows) -> bytes:
        return rows_bytes(value)

    def decode(self, encoded: bytes) -> EncodedRows:
        return read_rows(encoded)

    def estimate_size(self, value: EncodedRows) -> int:
        return rows_size(value)

    def is_deterministic(self) -> bool:
        return True

    def to_type_hint(self) -> Any:
        return EncodedRows


class RawRowsCoder(Coder):
    """Encodes raw rows with :mod:`pipeline.core.panes.grouped_readings`, like :class:`RowsCoder`."""

    def encode(self, value: RawRows) -> bytes:
        return raw_rows_bytes(value)

    def decode(self, encoded: bytes) -> RawRows:
        return read_raw_rows(encoded)

    def estimate_size(self, value: RawRows) -> int:
        return value.size_bytes

    def is_deterministic(self) -> bool:
        return True

    def to_type_hint(self) -> Any:
        return RawRows


registry.register_coder(EncodedRows, RowsCoder)
registry.register_coder(RawRows, RawRowsCoder)
registry.register_coder(WindowStats, StatsCoder)
