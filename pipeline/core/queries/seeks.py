"""Seeks: find the first key of a range, or of each prefix, with few reads."""

from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import NamedTuple, TypeVar

from pipeline.core.events.event import RESERVED_SENSOR_IDS
from pipeline.core.queries.foreign import ForeignRow, OnForeign
from pipeline.core.rows.rows import KeyRange, Row, after_prefix, prefix_range
from pipeline.core.schema.layouts import CellSelection

_KEY_ONLY = CellSelection(families=(), keys_only=True)
_RESERVED = frozenset(segment.encode() for segment in RESERVED_SENSOR_IDS)
_MAX_SEEK_PAGE = 1000  # rows

_T = TypeVar("_T")


class RowSelection(NamedTuple):
    """The rows to read, and the cells of each.

    Attributes:
        keys: the range of keys, or several.
        cells: the cells to return; a row without any of them is left out.
        pattern: a regular expression (RE2) that the whole key must match; None for any key.
        page_rows: the number of rows that the caller will probably take, if known; it may take more.
        reverse: whether to read from the last row to the first.
    """

    keys: KeyRange | tuple[KeyRange, ...]
    cells: CellSelection
    pattern: str | None = None
    page_rows: int | None = None
    reverse: bool = False

    @property
    def ranges(self) -> tuple[KeyRange, ...]:
        """The ranges of keys."""
        return (self.keys,) if isinstance(self.keys, KeyRange) else self.keys


ReadRows = Callable[[RowSelection], Iterator[Row]]
"""Reads the selected rows, each once, in the order of their keys or in reverse."""


def raw_keys() -> list[KeyRange]:
    """Returns the ranges between the table's own rows, which begin with a reserved segment."""
    reserved = [prefix_range(f"{segment}#".encode()) for segment in sorted(RESERVED_SENSOR_IDS)]
    ends = [*(each.start for each in reserved), b""]
    return [KeyRange(start, end) for start, end in zip((b"", *(each.end for each in reserved)), ends, strict=True)]


def seek(
    read: ReadRows,
    key_range: KeyRange,
    parse: Callable[[bytes], _T],
    on_foreign: OnForeign,
    *,
    skip: Collection[bytes] = _RESERVED,
    reverse: bool = False,
) -> tuple[bytes, _T] | None:
    """Returns the first key of the range that can be parsed, and its parsed form; None if the range has none.

    Costs one seek, and one more for each reserved prefix that it skips. Foreign rows before the key are read in pages
    of growing size.

    Args:
        read: reads rows.
        key_range: the keys to search.
        parse: parses a key; a ValueError marks the row as foreign.
        on_foreign: receives foreign rows.
        skip: first key segments of rows of another kind, to be skipped.
        reverse: whether to find the last key instead.
    """
    start, end = key_range
    page_rows = 1
    while not end or start < end:
        page = read(RowSelection(KeyRange(start, end), _KEY_ONLY, page_rows=page_rows, reverse=reverse))
        read_rows = 0
        for read_rows, row in enumerate(islice(page, page_rows), 1):  # noqa: B007 (a full page: there may be more)
            segment, separator, _ = row.key.partition(b"#")
            if separator and segment in skip:
                start, end = _beyond(KeyRange(start, end), segment + separator, reverse=reverse)
                break
            try:
                return row.key, parse(row.key)
            except ValueError as error:
                on_foreign(ForeignRow(row, error))
            start, end = (start, row.key) if reverse else (row.key + b"\x00", end)
        else:
            if read_rows < page_rows:
                return None
            page_rows = min(page_rows * 8, _MAX_SEEK_PAGE)
    return None


def skip_scan(
    read: ReadRows,
    key_range: KeyRange,
    parse: Callable[[bytes], _T],
    prefix_of: Callable[[bytes, _T], bytes],
    on_foreign: OnForeign,
    *,
    skip: Collection[bytes] = _RESERVED,
    reverse: bool = False,
) -> Iterator[tuple[bytes, _T]]:
    """Yields the first key of each prefix in the range, and its parsed form: a :func:`seek` per prefix, and one more.

    Args:
        read: reads rows.
        key_range: the keys to search.
        parse: parses a key; a ValueError marks the row as foreign.
        prefix_of: returns the prefix of a key, given the key and its parsed form; the scan continues after all keys
            with that prefix.
        on_foreign: receives foreign rows.
        skip: first key segments of rows of another kind, to be skipped.
        reverse: whether to scan from the last prefix to the first, and to find the last key of each.
    """
    while found := seek(read, key_range, parse, on_foreign, skip=skip, reverse=reverse):
        yield found
        key_range = _beyond(key_range, prefix_of(*found), reverse=reverse)


def _beyond(key_range: KeyRange, prefix: bytes, *, reverse: bool) -> KeyRange:
    """Returns the part of the range that is left once the scan has passed the prefix."""
    return key_range._replace(end=prefix) if reverse else key_range._replace(start=after_prefix(prefix))
