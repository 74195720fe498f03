"""Reads of rows: which rows a query selects, seeks of keys with few reads, and many selections in one request.

A read meets foreign rows, which the table's schema does not write, such as rows of another program. Each goes to the
caller's ``on_foreign``.
"""

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from pipeline.core.events.event import RESERVED_SENSOR_IDS
from pipeline.core.rows.rows import (
    KeyRange,
    Part,
    Row,
    RowStream,
    after_prefix,
    cells_in,
    in_parts,
    most_cells,
    one_by_one,
    prefix_range,
    split,
)
from pipeline.core.schema.key_template import RawKey
from pipeline.core.schema.layouts import CellSelection

_MAX_SHOWN = 200  # characters of a row's key, and of the problem with it
_MAX_MESSAGES = 1000


class ForeignRow(Exception):
    """A row that the schema does not write. ``str()`` is one line: the row and the problem.

    Attributes:
        key: the row key.
        raw_key: the parsed key, if the key matches the schema and only the cells do not.
    """

    def __init__(self, row: Row, error: Exception, raw_key: RawKey | None = None) -> None:
        super().__init__(f"row {_cut(repr(row.key))} is not one of this schema: {_cut(str(error))}")
        self.key = row.key
        self.raw_key = raw_key


OnForeign = Callable[[ForeignRow], object]
"""Receives a row that the schema does not write. Raises, or returns to leave the row out."""


def raise_foreign(problem: ForeignRow) -> None:
    """Raises the problem: no row is left out."""
    raise problem


class ForeignRows:
    """Collects foreign rows. Thread-safe.

    Attributes:
        count: the number of foreign rows. Rows after the first 1,000 count each time they are added.
    """

    def __init__(self) -> None:
        self.count = 0
        self._messages: dict[bytes, str] = {}
        self._lock = threading.Lock()

    def add(self, problem: ForeignRow) -> bool:
        """Adds a row. Returns whether it is new and among the first 1,000."""
        with self._lock:
            if problem.key in self._messages:
                return False
            self.count += 1
            if len(self._messages) == _MAX_MESSAGES:
                return False
            self._messages[problem.key] = str(problem)
            return True

    @property
    def messages(self) -> dict[bytes, str]:
        """The first 1,000 rows: a line about the problem by row key."""
        with self._lock:
            return dict(self._messages)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


_KEY_ONLY = CellSelection(families=(), keys_only=True)
_RESERVED = frozenset(segment.encode() for segment in RESERVED_SENSOR_IDS)
_MAX_SEEK_PAGE = 1000  # rows
_LEAST_PAGE = 8  # rows of a page; fewer cost as much
_ROWS_OF_A_REQUEST = 100  # keys that a server reads in the time of a request
_PROBED, _PROBE = 32, 512  # every so many requests, a page of so many rows tells whether prefixes have few rows now

MOST_RANGES = 200
"""The most ranges in a request."""
MOST_RANGE_BYTES = 1 << 18
"""The most bytes of the keys of a request's ranges: Bigtable refuses a request of 512 KiB."""

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


def _last_key(
    read: ReadRows, key_range: KeyRange, parse: Callable[[bytes], _T], on_foreign: OnForeign, skip: Collection[bytes]
) -> tuple[bytes, _T] | None:
    """Returns the last key of the range that can be parsed, and its parsed form; None if the range has none.

    Costs one seek, and one more for each reserved prefix that it skips. Foreign rows behind the key are read in pages
    of growing size.
    """
    start, end = key_range
    page_rows = 1
    while not end or start < end:
        page = read(RowSelection(KeyRange(start, end), _KEY_ONLY, page_rows=page_rows, reverse=True))
        read_rows = 0
        for read_rows, row in enumerate(islice(page, page_rows), 1):  # noqa: B007 (a full page: there may be more)
            segment, separator, _ = row.key.partition(b"#")
            if separator and segment in skip:
                end = segment + separator
                break
            try:
                return row.key, parse(row.key)
            except ValueError as error:
                on_foreign(ForeignRow(row, error))
            end = row.key
        else:
            if read_rows < page_rows:
                return None
            page_rows = min(page_rows * 8, _MAX_SEEK_PAGE)
    return None


class KeyCursor(Generic[_T]):
    """Seeks one key after the other that can be parsed, forward.

    A request takes as long as a server reads some hundred keys. So each reads a page of keys, from which later seeks
    are answered; the page grows as long as it answers several of them, and shrinks where each prefix has many rows.
    """

    def __init__(
        self,
        read: ReadRows,
        end: bytes,
        parse: Callable[[bytes], _T],
        on_foreign: OnForeign,
        skip: Collection[bytes] = _RESERVED,
    ) -> None:
        self._read, self._end, self._parse, self._on_foreign, self._skip = read, end, parse, on_foreign, skip
        self._page: deque[Row] = deque()
        self._whole = True  # whether there may be keys beyond the page
        self._page_rows, self._asked, self._answered, self._requests = _LEAST_PAGE, 0, 0, 0

    def first(self, start: bytes) -> tuple[bytes, _T] | None:
        """Returns the first key from ``start`` that can be parsed, and its parsed form; None if there is none.

        No later call may ask for an earlier key.
        """
        self._answered += 1
        while True:
            while self._page and self._page[0].key < start:
                self._page.popleft()
            if not self._page and not self._next_page(start):
                return None
            row = self._page[0]
            segment, separator, _ = row.key.partition(b"#")
            if separator and segment in self._skip:
                start = after_prefix(segment + separator)
                continue
            try:
                return row.key, self._parse(row.key)
            except ValueError as error:
                self._on_foreign(ForeignRow(row, error))
            self._answered += 1  # the page is as useful
            start = row.key + b"\x00"

    def _next_page(self, start: bytes) -> bool:
        if not self._whole or (self._end and start >= self._end):
            return False
        size = self._next_size()
        found = self._read(RowSelection(KeyRange(start, self._end), _KEY_ONLY, page_rows=size))
        self._page.extend(islice(found, size))
        self._whole = len(self._page) == size
        return bool(self._page)

    def _next_size(self) -> int:
        """Returns the size of the next page, by how many seeks the last one has answered."""
        saved = self._answered * _ROWS_OF_A_REQUEST
        if self._asked:
            grows = self._answered > 1 and saved >= self._asked
            self._page_rows = min(2 * self._asked, _MAX_SEEK_PAGE) if grows else max(self._page_rows // 2, _LEAST_PAGE)
        self._requests += 1
        self._asked = self._page_rows
        if self._requests % _PROBED == 0:  # the rows of a prefix may be few now
            self._asked = max(self._page_rows, _PROBE)
        self._answered = 0
        return self._asked


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
    """Yields the first key of each prefix in the range, and its parsed form: a seek for each prefix, and one more.

    Forward, a request answers several seeks where prefixes have few rows; see :class:`KeyCursor`.

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
    cursor = KeyCursor(read, key_range.end, parse, on_foreign, skip)
    while found := (_last_key(read, key_range, parse, on_foreign, skip) if reverse else cursor.first(key_range.start)):
        yield found
        prefix = prefix_of(*found)
        key_range = key_range._replace(end=prefix) if reverse else key_range._replace(start=after_prefix(prefix))
        if not reverse and not key_range.start:  # no key is after the prefix
            return


def in_batches(ranges: Iterable[KeyRange]) -> Iterator[tuple[KeyRange, ...]]:
    """Yields ranges, few at first, as many together as a request takes."""
    some, size, most = list[KeyRange](), 0, 1
    for each in ranges:
        some.append(each)
        size += len(each.start) + len(each.end)
        if len(some) >= most or size > MOST_RANGE_BYTES:
            yield tuple(some)
            some, size, most = [], 0, min(2 * most, MOST_RANGES)
    if some:
        yield tuple(some)


def _joined(ranges: Iterable[KeyRange]) -> Iterator[KeyRange]:
    """Yields ranges in order, those that adjoin as one: for the server, a range is a seek."""
    last: KeyRange | None = None
    for each in ranges:
        if last is not None and last.end == each.start < each.end:
            last = last._replace(end=each.end)
        else:
            if last is not None:
                yield last
            last = each
    if last is not None:
        yield last


class TooManyRowsError(ValueError):
    """An answer would have to read more rows than its caller allows."""


class BoundedReads:
    """A ReadRows, for any threads, that raises TooManyRowsError once it has read more than ``most`` rows."""

    def __init__(self, read: ReadRows, most: int) -> None:
        self.rows = 0
        self._read = read
        self._most = most
        self._lock = threading.Lock()

    @property
    def left(self) -> int:
        """The number of rows that may still be read."""
        return max(self._most - self.rows, 0)

    def __call__(self, selection: RowSelection) -> Iterator[Row]:
        for row in self._read(selection):
            with self._lock:
                self.rows += 1
            if self.rows > self._most:
                raise TooManyRowsError(
                    f"the answer needs more than {self._most:,} rows: ask for a shorter range or fewer sensors, or "
                    "allow more rows"
                )
            yield row


MOST_CELLS = 50_000
"""The cells that are in memory together, beside a page and the rows of one name. Each takes some 200 bytes."""

_MOST_PAGE_ROWS = 1000


class RowsTogether:
    """A :data:`ReadRows` that answers from memory the selections that were read together, and reads others itself.

    An answer is what the table contained when the rows were read. Any number of threads may read, while one reads
    together.
    """

    def __init__(self, read: ReadRows) -> None:
        self._read = read
        self._known: dict[RowSelection, list[Part]] = {}
        self._widest = 0  # the most cells of a row whose page was limited

    def __call__(self, selection: RowSelection) -> Iterator[Row]:
        parts = self._known.get(selection)
        return self._read(selection) if parts is None else RowStream(one_by_one(parts), iter(parts))

    @contextmanager
    def kept(self, selections: Iterable[RowSelection]) -> Iterator[None]:
        """Keeps the rows of selections in memory for the length of a ``with`` block."""
        by_cells: dict[object, list[RowSelection]] = defaultdict(list)
        for selection in selections:
            by_cells[selection.cells, selection.pattern].append(selection)
        answers = [dict(self._answers(some)) for some in by_cells.values()]
        for each in answers:
            self._known |= each
        try:
            yield
        finally:
            self._forget(selection for each in answers for selection in each)

    def batches(self, wanted: Mapping[_T, Sequence[RowSelection] | None]) -> Iterator[list[_T]]:
        """Yields names, each once, while the rows of their selections are in memory.

        Leaves out names without known selections, and those whose selections differ in their cells or overlap with
        others: they have to be read one by one.

        Args:
            wanted: the selections of each name; None if they are not known.
        """
        by_cells: dict[object, dict[RowSelection, _T]] = defaultdict(dict)
        nothing = [name for name, selections in wanted.items() if selections is not None and not selections]
        if nothing:
            yield nothing
        for name, selections in wanted.items():
            kinds = {(each.cells, each.pattern) for each in selections or ()}
            if len(kinds) == 1:
                by_cells[kinds.pop()] |= dict.fromkeys(selections or (), name)
        for owners in by_cells.values():
            yield from self._batches(owners)

    def _batches(self, owners: Mapping[RowSelection, _T]) -> Iterator[list[_T]]:
        """Yields names while the rows of their selections are in memory, given the name of each selection."""
        missing = Counter(owners.values())
        ready, cells, known = list[_T](), 0, list[RowSelection]()
        try:
            for selection, parts in self._answers(owners):
                name = owners[selection]
                self._known[selection] = parts
                known.append(selection)
                cells += sum([cells_in(part) for part in parts])
                missing[name] -= 1
                if not missing[name]:
                    ready.append(name)
                    if cells >= MOST_CELLS:
                        yield ready
                        self._forget(known)
                        ready, cells, known = [], 0, []
            if ready:
                yield ready
        finally:
            self._forget(known)

    def _answers(self, selections: Iterable[RowSelection]) -> Iterator[tuple[RowSelection, list[Part]]]:
        """Yields selections of the same cells with their rows, in the order of keys; no two that overlap."""
        ordered = sorted(selections, key=lambda each: each.ranges)
        some, size, end = list[RowSelection](), 0, b""
        for selection in ordered:
            [keys] = selection.ranges
            if not keys.end or keys.start < end:
                continue
            end, more = keys.end, len(keys.start) + len(keys.end)
            if len(some) == MOST_RANGES or size + more > MOST_RANGE_BYTES:
                yield from self._read_together(some)
                some, size = [], 0
            some.append(selection)
            size += more
        if some:
            yield from self._read_together(some)

    def _read_together(self, selections: Sequence[RowSelection]) -> Iterator[tuple[RowSelection, list[Part]]]:
        first = selections[0]
        page_rows = first.page_rows
        if page_rows is not None and self._widest:
            page_rows = max(page_rows, min(MOST_CELLS // self._widest, _MOST_PAGE_ROWS))
        ranges = tuple(_joined(keys for each in selections for keys in each.ranges))
        found = in_parts(self._read(RowSelection(ranges, first.cells, first.pattern, page_rows)))
        rest = next(found, None)
        for selection in selections:
            [keys] = selection.ranges
            parts = list[Part]()
            while rest is not None:
                of_selection, rest = split(rest, keys.end)
                if of_selection is not None:
                    parts.append(of_selection)
                if rest is not None:
                    break
                rest = next(found, None)
            if page_rows is not None:
                self._widest = max([self._widest, *map(most_cells, parts)])
            yield selection, list[Part](one_by_one(parts))[::-1] if selection.reverse else parts

    def _forget(self, selections: Iterable[RowSelection]) -> None:
        for selection in selections:
            self._known.pop(selection, None)
