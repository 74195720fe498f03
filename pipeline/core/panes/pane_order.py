"""Passes on the rows of panes, many at a time, and the rows of each group in the order of its panes.

Bigtable may apply the entries of a request in any order, and a runner may deliver elements in any order. So a row is
passed on at most once at a time, as its last pane has it, and the rows of a pane wait for the group's earlier panes.
Rows of newest readings are passed on from each pane: a later pane may have older readings, and their cells never
replace newer ones.
"""

import struct
from collections.abc import Iterable

from pipeline.core.queries.newest_readings import is_latest_key
from pipeline.core.rows.row_bytes import read_rows, rows_bytes
from pipeline.core.rows.rows import EncodedRow, EncodedRows

VERSION = 1

_PANE = struct.Struct("<BIQI")
_NEXT = struct.Struct("<IQ")
_OTHER_RELEASE = "another release wrote these panes; drain the job that wrote them and start a new one"


def pane_bytes(group: int, number: int, rows: EncodedRows) -> bytes:
    """Serializes the rows of a group's pane; panes are numbered from 0."""
    return _PANE.pack(VERSION, group, number, len(rows)) + rows_bytes(rows)


def number_of_rows(pane: bytes) -> int:
    """Returns the number of rows in a pane."""
    return _read(pane)[2]


class PaneOrder:
    """The order of the panes of some groups.

    Args:
        data: as :meth:`to_bytes` returned it; None for groups without any pane yet.
    """

    def __init__(self, data: bytes | None = None) -> None:
        self._next: dict[int, int] = {}
        if data is not None:
            if data[:1] != bytes([VERSION]):
                raise ValueError(_OTHER_RELEASE)
            self._next.update(_NEXT.iter_unpack(data[1:]))

    def take(self, panes: Iterable[bytes]) -> tuple[EncodedRows, list[bytes]]:
        """Returns the rows of those panes that are next, each aggregate row once, and the panes that have to wait."""
        rows: dict[bytes, EncodedRow] = {}
        newest: list[EncodedRow] = []
        waiting: list[bytes] = []
        for group, number, pane in sorted((*_read(pane)[:2], pane) for pane in panes):
            expected = self._next.get(group, 0)
            if number == expected:
                for row in read_rows(pane, _PANE.size):
                    if is_latest_key(row.key):
                        newest.append(row)
                    else:
                        rows[row.key] = row
                self._next[group] = number + 1
            elif number > expected:
                waiting.append(pane)
            # A pane with a smaller number came twice.
        return EncodedRows([*rows.values(), *newest]), waiting

    def to_bytes(self) -> bytes:
        """Serializes the order: a version in one byte; for each group, its number and that of its next pane."""
        return bytes([VERSION]) + b"".join([_NEXT.pack(*pair) for pair in self._next.items()])


def _read(pane: bytes) -> tuple[int, int, int]:
    version, group, number, rows = _PANE.unpack_from(pane)
    if version != VERSION:
        raise ValueError(_OTHER_RELEASE)
    return group, number, rows
