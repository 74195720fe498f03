"""Reads the rows of a table by ranges of keys, forward or backward. All readers read rows this way.

Google's ``data`` client can't read backward: its queries have no such option, and the code that assembles its rows
refuses descending keys. So requests go through the client beneath it, over its connection, and this module assembles
the chunks that the server sends, as ReadRowsResponse in google/bigtable/v2/bigtable.proto describes them.
"""

import base64
import re
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache, lru_cache
from heapq import merge
from itertools import chain, islice
from operator import lt
from typing import Any, NamedTuple, TypeVar, cast

from google.api_core.exceptions import Aborted, DataLoss, DeadlineExceeded, GoogleAPICallError, ResourceExhausted
from google.api_core.retry import exponential_sleep_generator
from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2.types import (
    ColumnRange,
    FeatureFlags,
    ReadRowsRequest,
    ReadRowsResponse,
    RowFilter,
    TimestampRange,
)

from pipeline.cloud.connection.bigtable_client import bigtable_client
from pipeline.cloud.connection.emulators import BIGTABLE, check_emulator
from pipeline.cloud.connection.errors import explained, is_transient
from pipeline.cloud.connection.names import TableName
from pipeline.core.queries.reads import RowSelection
from pipeline.core.rows.rows import BlockOfRows, Cell, KeyRange, Part, Row, RowStream, cells_in, disjoint
from pipeline.core.schema.layouts import CellSelection

_MAX_ALTERNATIVES = 10_000  # bytes; Bigtable accepts filters of up to 20 kB


def row_filter(selection: CellSelection, pattern: str | None = None) -> RowFilter:
    """Returns the filter that passes the selected cells of rows whose whole key matches the pattern (RE2).

    The cheapest conditions come first.
    """
    filters = []
    if pattern is not None:
        filters.append(RowFilter(row_key_regex_filter=pattern.encode()))
    if selection.keys_only:
        filters += [RowFilter(cells_per_row_limit_filter=1), RowFilter(strip_value_transformer=True)]
    else:
        filters.append(RowFilter(family_name_regex_filter="|".join(map(re.escape, selection.families))))
    alternatives = b"|".join(map(re.escape, selection.qualifiers or ()))
    all_columns = not 0 < len(alternatives) < _MAX_ALTERNATIVES
    if not all_columns:  # otherwise all columns come, and the reader drops the others
        filters.append(RowFilter(column_qualifier_regex_filter=alternatives))
    if selection.without:
        filters.append(RowFilter(column_qualifier_regex_filter=_beginning_with_none(selection.without)))
    if selection.qualifier_range is not None:
        start, end = selection.qualifier_range
        columns = ColumnRange(family_name=selection.families[0], start_qualifier_closed=start, end_qualifier_open=end)
        filters.append(RowFilter(column_range_filter=columns))
    if selection.times_us is not None:
        start_us, end_us = selection.times_us
        times = TimestampRange(start_timestamp_micros=start_us, end_timestamp_micros=end_us)
        filters.append(RowFilter(timestamp_range_filter=times))
    if selection.none_since_us is not None and (selection.qualifiers is None or not all_columns):
        since = RowFilter(timestamp_range_filter=TimestampRange(start_timestamp_micros=selection.none_since_us))
        others = RowFilter.Condition(predicate_filter=since, false_filter=RowFilter(pass_all_filter=True))
        filters.append(RowFilter(condition=others))
    if selection.versions is not None:
        filters.append(RowFilter(cells_per_column_limit_filter=selection.versions))
    if selection.times_only:
        filters.append(RowFilter(strip_value_transformer=True))
    return RowFilter(chain=RowFilter.Chain(filters=filters)) if len(filters) > 1 else filters[0]


def _beginning_with_none(starts: Iterable[bytes]) -> bytes:
    """Returns the expression (RE2, which can't negate) of texts that begin with none of these, which are letters."""
    following: dict[bytes, list[bytes]] = {}
    for start in starts:
        following.setdefault(start[:1], []).append(start[1:])
    others = [first + _beginning_with_none(rest) for first, rest in following.items() if b"" not in rest]
    return b"(?:|[^%b].*%b)" % (b"".join(following), b"".join(b"|" + each for each in others))


_new = tuple.__new__  # makes a Cell or a Row in half the time of its own constructor


def assembled_rows(responses: Iterable[Any]) -> Iterator[Row]:
    """Yields every complete row, and every row that the server reports as scanned and left out, without cells.

    Args:
        responses: ReadRowsResponse as plain protobuf, all of one request.

    Raises:
        Aborted: the responses end in the middle of a row.
        DataLoss: a chunk contradicts an earlier one.
    """
    assembler = RowAssembler()
    for response in responses:
        yield from assembler.rows(response)
    assembler.end()


class RowAssembler:
    """Assembles the rows of one request, response by response.

    Attributes:
        key: the key of the row of which a part has come; empty between rows.
    """

    def __init__(self) -> None:
        self.key = b""
        self._cells: list[Cell] = []
        self._column: tuple[str | None, bytes | None] = None, None
        self._parts: list[Any] = []  # chunks with all but the last part of a value

    def rows(self, response: Any) -> Iterator[Row]:
        """Yields the rows that the response completes or reports as scanned. Raises DataLoss."""
        key, cells, parts = self.key, self._cells, self._parts
        family, qualifier = self._column
        if response.last_scanned_row_key:
            yield _scanned(response.last_scanned_row_key, key)
        for chunk in response.chunks:
            if chunk.reset_row:
                key, cells, family, qualifier, parts = b"", [], None, None, []
                continue
            # A chunk without a family or a column has that of the chunk before.
            if chunk.row_key or qualifier is None or chunk.HasField("family_name"):
                key, family, qualifier = _column(chunk, key, family, qualifier)
            elif chunk.HasField("qualifier"):
                qualifier = chunk.qualifier.value
            if chunk.value_size:
                parts.append(chunk)
            elif parts:
                value = b"".join(part.value for part in (*parts, chunk))
                cells.append(_new(Cell, (family, qualifier, parts[0].timestamp_micros, value)))
                parts = []
            else:
                cells.append(_new(Cell, (family, qualifier, chunk.timestamp_micros, chunk.value)))
            if chunk.commit_row:
                if parts:
                    raise DataLoss(f"the server sent row {key!r} with a value in part")
                yield _new(Row, (key, cells))
                key, cells, family, qualifier = b"", [], None, None
        self.key, self._cells, self._column, self._parts = key, cells, (family, qualifier), parts

    def end(self) -> None:
        """Raises Aborted if the last row is incomplete."""
        if self.key:
            raise Aborted(f"the server stopped in the middle of row {self.key!r}")


def _scanned(scanned: bytes, key: bytes) -> Row:
    if key:
        raise DataLoss(f"the server sent row {key!r} in part and continued after it")
    return Row(scanned, [])


def _column(chunk: Any, key: bytes, family: str | None, qualifier: bytes | None) -> tuple[bytes, str, bytes]:
    """Returns the key, the family and the qualifier of a chunk that begins a row or a family, or repeats the key."""
    sent = chunk.row_key
    key = key or sent
    if not key or (sent and sent != key):
        raise DataLoss(f"the server sent a cell of row {sent!r} as one of row {key!r}")
    if (name := chunk.family_name.value) or chunk.HasField("family_name"):  # an empty name is a name like any other
        family, qualifier = name, None
    if (column := chunk.qualifier.value) or chunk.HasField("qualifier"):
        qualifier = column
    if family is None or qualifier is None:
        raise DataLoss(f"the server sent a cell of row {key!r} without its column")
    return key, family, qualifier


_CHUNKS = 1024  # of responses that are read together
_MOST_COLUMNS = 64  # each takes time in every row, also in those without it

_TEXT = rb"[0-9+\-.eE]+"  # no tag that may follow is one of these characters
_VALUES = {  # with the length before it
    "number": rb"([\x00-\x7f])(" + _TEXT + rb")",
    "float64": rb"(\x08)(.{8})",
    "text": rb"([\x00-\x7f])([^\x00-\x1f]+)(?=\n|H\x01)",  # what may follow it
}
_LENGTH = rb"[\x80-\xff]?[\x00-\x7f]"
_TIMESTAMP = rb"[\x80-\xff]{7}[\x00-\x7f]"  # of the years 1987 to 4253, after its tag


class _ChunkColumn(NamedTuple):
    """A column that rows of a response have in common."""

    family: str
    qualifier: bytes
    values: str  # how values are encoded: a key of _VALUES


_Shape = tuple[_ChunkColumn, ...]


def _batches(responses: Iterable[Any]) -> Iterator[list[Any]]:
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
    """Reads the rows of responses as a block, by one regular expression over the responses' bytes. Thread-safe.

    Rows with the same few columns repeat the same bytes, except for keys, timestamps and values. So one pattern finds
    all rows, several times faster than a loop over its chunks. The pattern describes ``ReadRowsResponse`` in
    google/bigtable/v2/bigtable.proto, with fields in the order of their numbers. It never matches rows that were reset,
    values in parts, labels, several cells of a column, or several timestamps in a row: responses with these are read
    chunk by chunk. The same columns as in the block before are expected.
    """

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
            learned = _shape_of([chunk for response in responses for chunk in response.chunks], shape or ())
            if learned is None or learned == shape:
                return None
            self._shape = shape = learned
            found = _rows(shape, data)
        if found is None or shape is None:
            return None
        lengths, keys, times, *columns = zip(*found, strict=True)
        values = columns[1::2]
        for sizes, texts in zip((lengths, *columns[::2]), (keys, *values), strict=True):
            if b"".join(sizes) != bytes(map(len, filter(None, texts))):
                return None  # a key or a value contains bytes that look like those after it
        rows = cache(lambda: list(assembled_rows(responses)))
        families, qualifiers, _ = zip(*shape, strict=True)
        return BlockOfRows(keys, families, qualifiers, values, times, rows)


def _rows(shape: _Shape, data: bytes) -> list[tuple[bytes, ...]] | None:
    """Returns, of each row, the length and the text of the key, the timestamp, and the length and text of each value.

    Those of a value are empty where a row lacks the column. Without a match, returns None.
    """
    found = _pattern(shape).findall(data)
    return found if found and found[-1][0] else None


@lru_cache(maxsize=256)
def _pattern(shape: _Shape) -> re.Pattern[bytes]:
    """Returns the pattern of a row. Whatever is no row matches it too, with an empty key, as far as the end."""
    again = rb"\n" + _LENGTH + rb"(?:\n\1\2)?"  # the start of a chunk that may repeat the key
    named = [_named(b"\x1a", column.qualifier) for column in shape]
    families = {family: _named(b"\x12", family.encode()) for family in dict.fromkeys(column.family for column in shape)}
    of_families = []
    for each, family in families.items():
        # The first column follows the family's name. Chunks of others may repeat the name.
        chunk = rb"(?:" + again + rb"(?:" + family + rb")?|(?<=" + family + rb"))"
        columns = [
            rb"(?:" + chunk + name + rb"\x20\3\x32" + _VALUES[column.values] + rb")?+"
            for name, column in zip(named, shape, strict=True)
            if column.family == each
        ]
        of_families.append(rb"(?:(?:" + again + rb")?" + family + rb"(?=\x1a)" + b"".join(columns) + rb")")
    key = rb"\n" + _LENGTH + rb"\n([\x00-\x7f])([!-~]+)"
    # All cells have the timestamp of the first.
    time = rb"(?=(?:" + b"|".join(families.values()) + rb")(?:" + b"|".join(named) + rb")\x20(" + _TIMESTAMP + rb"))"
    optional = rb"?+" if len(of_families) > 1 else b""
    return re.compile(key + time + optional.join([*of_families, b""]) + rb"\x48\x01|.+", re.DOTALL)


def _shape_of(chunks: Sequence[Any], known: _Shape) -> _Shape | None:
    """Returns the columns of chunks; None if they are too many, or two differ only by their family.

    A column that was known to have any text has it again.
    """
    family, families, values = "", dict[bytes, str](), dict[bytes, list[bytes]]()
    for chunk in chunks:
        if chunk.HasField("family_name"):
            family = chunk.family_name.value
        qualifier = chunk.qualifier.value
        if families.setdefault(qualifier, family) != family:
            return None
        values.setdefault(qualifier, []).append(chunk.value)
    if not 0 < len(values) <= _MOST_COLUMNS:
        return None
    texts = {column[:2] for column in known if column.values == "text"}
    found = sorted((family, qualifier) for qualifier, family in families.items())
    return tuple(_ChunkColumn(*each, "text" if each in texts else _kind_of(values[each[1]])) for each in found)


def _kind_of(values: Sequence[bytes]) -> str:
    if all(map(re.compile(_TEXT).fullmatch, values)):
        return "number"
    return "float64" if set(map(len, values)) == {8} else "text"


def _named(tag: bytes, name: bytes) -> bytes:
    """Returns the pattern of a field with the name of a family or a column, which has a message of its own."""
    value = b"\n" + _varint(len(name)) + name if name else b""
    return re.escape(tag + _varint(len(value)) + value)


def _varint(number: int) -> bytes:
    return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80]) + _varint(number >> 7)


_T = TypeVar("_T")

_THREADS = 8
_RECORDS = 8000  # ahead, over all sensors
_PARTS = 3  # ahead of the one that is taken: their blocks are in memory, and one thread parses at a time


class ReadAhead:
    """Reads ahead in threads, until the connection closes."""

    def __init__(self, connection: ExitStack) -> None:
        self._threads = ThreadPoolExecutor(_THREADS)
        # Drops reads ahead that nobody needs any more.
        connection.callback(self._threads.shutdown, cancel_futures=True)

    def each(self, records: Iterable[Iterator[_T]], size: int) -> list[Iterator[_T]]:
        """Returns the same iterators, while other threads read the next ``size`` records of each."""
        return [self._ahead(each, size) for each in records]

    def in_turn(self, parts: Iterable[Iterator[_T]], size: int) -> Iterator[_T]:
        """Returns the items of all parts, in order, while other threads read ``size`` items of each of the next few."""
        ahead = deque[Iterator[_T]]()
        for part in parts:
            ahead.append(self._ahead(part, size))
            if len(ahead) > _PARTS:
                yield from ahead.popleft()
        while ahead:
            yield from ahead.popleft()

    def merged(
        self, sensors: list[str], records: Callable[[str, int], Iterator[_T]], key: Callable[[_T], Any]
    ) -> Iterator[_T]:
        """Returns the records of several sensors, merged by a key.

        Args:
            sensors: the sensors' ids.
            records: a function of a sensor and a page's number of rows: its records, in the order of the key.
            key: the key.
        """
        size = max(_RECORDS // max(len(sensors), 1), 10)
        return merge(*self.each((records(sensor, size) for sensor in sensors), size), key=key)

    def _ahead(self, records: Iterator[_T], size: int) -> Iterator[_T]:
        batch = self._threads.submit(list, islice(records, size))

        def batches() -> Iterator[_T]:
            nonlocal batch
            while ready := batch.result():
                batch = self._threads.submit(list, islice(records, size))
                yield from ready

        return batches()


PAGE_ROWS = 1000
MAX_PAGE_GROWTH = 8  # a page of a long read may have this many times PAGE_ROWS if its rows are small
TIMEOUT_S = 15.0  # without another row, over all retries

# A server reads backward only for clients that set this flag. A page whose filter passes few rows resumes after a
# failure at the last scanned row.
_FEATURES = FeatureFlags(reverse_scans=True, last_scanned_row_responses=True)
_METADATA = (("bigtable-features", base64.urlsafe_b64encode(FeatureFlags.serialize(_FEATURES)).decode()),)

_PAGES_BEFORE_GROWTH = 4
_MAX_PAGE_BYTES = 4_000_000  # for a page that has grown, estimated from the page before it
_CELL_BYTES = 200  # memory of a cell without its value

# Bounds of the delay before a retry. The upper one doubles with each retry; the delay is random.
_FIRST_DELAY_S = 0.05
_MAX_DELAY_S = 1.0

_Request = ReadRowsRequest.pb()  # the plain protobuf class, faster to fill in than its wrapper


class ReadStopped(Exception):
    """The caller of :meth:`RowReader.until` stopped the read."""


class RowReader:
    """Reads one table. Create it with :meth:`open`. Safe for any number of threads.

    Attributes:
        name: the table.
        requests: the number of requests for rows so far, including retries.
        rows_read: the number of rows that the server has sent so far.
        cells_read: the number of cells in these rows.
    """

    def __init__(
        self,
        client: BigtableClient,
        name: TableName,
        patience_s: float | None = None,
        stopped: threading.Event | None = None,
    ) -> None:
        self.name = name
        self._patience_s = patience_s
        self._stopped = stopped
        self.requests = 0
        self.rows_read = 0
        self.cells_read = 0
        self._client = client
        self._lock = threading.Lock()
        self._blocks = BlockReader()

    @classmethod
    @contextmanager
    def open(cls, name: TableName, patience_s: float | None = None) -> Iterator["RowReader"]:
        """Connects for the length of a ``with`` block, to the emulator if BIGTABLE_EMULATOR_HOST is set.

        Sends no request: the first read finds out whether the table exists. Raises ServerError if credentials are
        missing, or no emulator answers.

        Args:
            name: the table.
            patience_s: the seconds that a read waits for an unreachable server; by default :data:`TIMEOUT_S`, for a
                server that can be reached now.
        """
        if patience_s is None:
            check_emulator(BIGTABLE)
        with ExitStack() as stack:
            with explained(name):
                client = stack.enter_context(bigtable_client())
            yield cls(client, name, patience_s)

    def with_new_counters(self) -> "RowReader":
        """Returns a reader of the same table, over the same connection, whose counters start at zero."""
        return RowReader(self._client, self.name, self._patience_s)

    def until(self, stopped: threading.Event) -> "RowReader":
        """Returns a reader with counters of its own, whose reads raise ReadStopped once the event is set.

        A read that waits for the server stops at the next response, or when its time is over.
        """
        return RowReader(self._client, self.name, self._patience_s, stopped)

    def read(
        self,
        keys: KeyRange | Iterable[KeyRange],
        cells: RowFilter | None = None,
        limit: int | None = None,
        *,
        page_rows: int | None = None,
        reverse: bool = False,
    ) -> Iterator[Row]:
        """Reads the rows of a range of keys, or of several, each once and in the order of keys.

        Rows come in pages of :data:`PAGE_ROWS`. Each page is a request with a deadline of its own, so the caller may
        take its time, and memory contains one page at most. After a few pages, pages of small rows grow up to
        :data:`MAX_PAGE_GROWTH` times, because a request costs as much as many rows. The first ``next`` sends the first
        request.

        Args:
            keys: the ranges. An empty end is the end of the table; a range that ends before it starts contains nothing.
                Bigtable refuses a request of 512 KiB, so thousands of ranges need several reads.
            cells: a filter of google.cloud.bigtable_v2.types; by default all cells pass. A row without a cell that
                passes is left out.
            limit: the maximum number of rows.
            page_rows: the number of rows in a page, at most :data:`PAGE_ROWS`; by default, pages start with that and
                grow.
            reverse: whether to read the last row first. The cells of a row keep their order: newest first
                within a column, columns in order within a family.

        Raises:
            ServerError: from ``next``, if the server refuses the read or stays out of reach for the reader's
                patience. Until then, a read that failed continues after the last row received, so no row is lost or
                comes twice. Every row received restarts the time.
        """
        remaining = _Remaining([keys] if isinstance(keys, KeyRange) else keys, reverse=reverse)
        return cast(Iterator[Row], self._parts(remaining, cells, limit, page_rows))

    def read_selection(self, selection: RowSelection) -> RowStream:
        """Reads selected rows: :meth:`read` as a :data:`~pipeline.core.queries.reads.ReadRows`, also in blocks."""
        _, cells, pattern, page_rows, reverse = selection
        passing = row_filter(cells, pattern)
        remaining = _Remaining(selection.ranges, reverse=reverse)
        rows = self.read(selection.ranges, passing, page_rows=page_rows, reverse=reverse)
        return RowStream(rows, self._parts(remaining, passing, None, page_rows, in_blocks=not reverse))

    def _parts(
        self,
        remaining: "_Remaining",
        cells: RowFilter | None,
        limit: int | None,
        page_rows: int | None,
        *,
        in_blocks: bool = False,
    ) -> Iterator[Part]:
        max_rows = min(page_rows or PAGE_ROWS, PAGE_ROWS)
        pages = 0
        while remaining and (limit is None or limit > 0):
            size = max_rows if limit is None else min(limit, max_rows)
            page = self._page(remaining, cells, size, in_blocks=in_blocks)
            yield from page.parts
            if page.rows < size:
                return
            pages += 1
            if page_rows is None and pages >= _PAGES_BEFORE_GROWTH:
                max_rows = page.next_rows()
            del page  # frees it before the next one arrives
            limit = None if limit is None else limit - size

    def _page(self, remaining: "_Remaining", cells: RowFilter | None, size: int, *, in_blocks: bool) -> "_PageOfRows":
        """Returns the next ``size`` of the remaining rows; fewer only at their end."""
        page = _PageOfRows()
        with explained(self.name):
            seconds = TIMEOUT_S if self._patience_s is None else self._patience_s
            retries = _Retries(seconds)
            while True:
                before = remaining.next
                request = remaining.request(self.name, cells, size - page.rows)
                try:
                    self._receive(request, retries.left_s(), remaining, page, in_blocks=in_blocks)
                    return page
                except GoogleAPICallError as error:
                    if not _is_retried(error):
                        raise
                    if not remaining or page.rows == size:
                        return page  # it failed after the last row: nothing is missing
                    if remaining.next != before:
                        retries = _Retries(seconds)
                    retries.wait(error)

    def _receive(
        self,
        request: ReadRowsRequest,
        timeout_s: float,
        remaining: "_Remaining",
        page: "_PageOfRows",
        *,
        in_blocks: bool,
    ) -> None:
        """Sends one request and moves its rows, as they come, from the remaining ranges to the page."""
        rows, cells = page.rows, page.cells
        with self._lock:
            self.requests += 1
        try:
            self._check_stopped()
            stream = self._client.read_rows(request, timeout=timeout_s, retry=None, metadata=_METADATA)
            responses: Iterable[Any] = map(ReadRowsResponse.pb, stream)
            if self._stopped is not None:
                responses = self._until_stopped(stream, responses)
            assembler = RowAssembler()
            for batch in _batches(responses) if in_blocks else ([each] for each in responses):
                block = self._blocks.block(batch) if in_blocks and not assembler.key else None
                if block is not None:
                    remaining.resume_after_all(block.keys)
                    page.add_block(block)
                    continue
                for row in chain.from_iterable(map(assembler.rows, batch)):
                    remaining.resume_after(row.key, scanned=not row.cells)
                    if row.cells:
                        page.add(row)
            assembler.end()
        finally:
            with self._lock:
                self.rows_read += page.rows - rows
                self.cells_read += page.cells - cells

    def _until_stopped(self, stream: Any, responses: Iterable[Any]) -> Iterator[Any]:
        for response in responses:
            try:
                self._check_stopped()
            except ReadStopped:
                stream.cancel()  # the server stops sending
                raise
            yield response

    def _check_stopped(self) -> None:
        if self._stopped is not None and self._stopped.is_set():
            raise ReadStopped


class _PageOfRows:
    """The rows of one request.

    Attributes:
        parts: the rows, in order.
        rows: the number of rows.
        cells: the number of their cells.
    """

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.rows = self.cells = 0

    def add(self, row: Row) -> None:
        self.parts.append(row)
        self.rows += 1
        self.cells += len(row.cells)

    def add_block(self, block: BlockOfRows) -> None:
        self.parts.append(block)
        self.rows += len(block.keys)
        self.cells += cells_in(block)

    def next_rows(self) -> int:
        """Returns the size of the page after this one: twice as many rows, unless that may be too much for memory."""
        sample = self.parts[:: len(self.parts) // 100 + 1]
        rows = sum(_rows_in(part) for part in sample)
        fitting = _MAX_PAGE_BYTES * rows // sum(_bytes_of(part) for part in sample)
        return max(PAGE_ROWS, min(2 * self.rows, MAX_PAGE_GROWTH * PAGE_ROWS, fitting))


def _rows_in(part: Part) -> int:
    return len(part.keys) if isinstance(part, BlockOfRows) else 1


def _bytes_of(part: Part) -> int:
    columns = part.values if isinstance(part, BlockOfRows) else [[cell.value for cell in part.cells]]
    return sum([len(column) * _CELL_BYTES + sum(map(len, column)) for column in columns])


class _Retries:
    """The growing delays between the attempts of a read, and the time after which it fails."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._delays = exponential_sleep_generator(_FIRST_DELAY_S, _MAX_DELAY_S)
        self._failures: list[Exception] = []

    def left_s(self) -> float:
        return max(self._deadline - time.monotonic(), 0.0)

    def wait(self, failure: Exception) -> None:
        """Waits before the next attempt. Raises the cause of the failures if no time is left for it."""
        self._failures.append(failure)
        delay = next(self._delays)
        if delay >= self.left_s():
            # A timeout tells less than any other failure.
            others = (each for each in reversed(self._failures) if not isinstance(each, DeadlineExceeded))
            raise next(others, failure)
        time.sleep(delay)


class _Remaining:
    """The ranges that are left to read. False if there are none."""

    def __init__(self, ranges: Iterable[KeyRange], *, reverse: bool) -> None:
        self._reverse = reverse
        found = disjoint(ranges)
        self._ranges = deque(reversed(found) if reverse else found)  # in the order of reading

    def __bool__(self) -> bool:
        return bool(self._ranges)

    @property
    def next(self) -> KeyRange | None:
        """The range that is read next."""
        return self._ranges[0] if self._ranges else None

    def resume_after(self, key: bytes, *, scanned: bool) -> None:
        """Removes a row and every key that would come before it. A row that was only scanned may be in no range."""
        ranges, reverse = self._ranges, self._reverse
        while ranges and (key < ranges[0].start if reverse else b"" < ranges[0].end <= key):
            ranges.popleft()
        if not ranges or key < ranges[0].start or (ranges[0].end and key >= ranges[0].end):
            if scanned:
                return
            raise DataLoss(f"the server sent row {key!r} out of order")
        start, end = ranges.popleft()
        left = KeyRange(start, key) if reverse else KeyRange(key + b"\x00", end)
        if not left.end or left.start < left.end:
            ranges.appendleft(left)

    def resume_after_all(self, keys: Sequence[bytes]) -> None:
        """Does for many rows, forward, what :meth:`resume_after` does for one; costs little more for each range."""
        if not all(map(lt, keys, keys[1:])):
            raise DataLoss(f"the server sent rows out of order between {keys[0]!r} and {keys[-1]!r}")
        index = 0
        while index < len(keys):
            self.resume_after(keys[index], scanned=False)
            rest = self.next
            if rest is not None and rest.start == keys[index] + b"\x00":  # the same range may have more
                last = (bisect_left(keys, rest.end, index) if rest.end else len(keys)) - 1
                if last > index:
                    self.resume_after(keys[last], scanned=False)
                index = last
            index += 1

    def request(self, name: TableName, cells: RowFilter | None, limit: int) -> ReadRowsRequest:
        request = _Request(**name.target, rows_limit=limit, reversed=self._reverse)
        for start, end in self._ranges:
            request.rows.row_ranges.add(start_key_closed=start, end_key_open=end or None)
        if cells is not None:
            request.filter.CopyFrom(RowFilter.pb(cells))
        return ReadRowsRequest.wrap(request)


def _is_retried(error: GoogleAPICallError) -> bool:
    # As in Google's clients, a read that exceeds a quota is not retried: retries would use more of the quota, and the
    # caller learns the cause at once.
    return is_transient(error) and not isinstance(error, ResourceExhausted)
