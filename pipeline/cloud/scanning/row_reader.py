"""Reads the rows of a table by ranges of keys, forward or backward. All readers read rows this way.

Google's ``data`` client can't read backward: its queries have no such option, and the code that assembles its rows
refuses descending keys. So requests go through the client beneath it, over its connection, and this module assembles
the chunks that the server sends, as ReadRowsResponse in google/bigtable/v2/bigtable.proto describes them.
"""

import base64
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from operator import lt
from typing import Any, cast

from google.api_core.exceptions import DataLoss, DeadlineExceeded, GoogleAPICallError, ResourceExhausted
from google.api_core.retry import exponential_sleep_generator
from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2.types import FeatureFlags, ReadRowsRequest, ReadRowsResponse, RowFilter

from pipeline.cloud.connection.bigtable_client import bigtable_client
from pipeline.cloud.connection.emulators import BIGTABLE, check_emulator
from pipeline.cloud.connection.errors import explained, is_transient
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_chunks import RowAssembler
from pipeline.cloud.scanning.row_columns import BlockReader, batches
from pipeline.cloud.scanning.row_filters import row_filter
from pipeline.core.queries.seeks import RowSelection
from pipeline.core.rows.row_blocks import BlockOfRows, Part, RowStream, cells_in
from pipeline.core.rows.rows import KeyRange, Row, disjoint

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

        Sends no request: the first read finds out whether the table exists. Raises ServerProblem if credentials are
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
            ServerProblem: from ``next``, if the server refuses the read or stays out of reach for the reader's
                patience. Until then, a read that failed continues after the last row received, so no row is lost or
                comes twice. Every row received restarts the time.
        """
        remaining = _Remaining([keys] if isinstance(keys, KeyRange) else keys, reverse=reverse)
        return cast(Iterator[Row], self._parts(remaining, cells, limit, page_rows))

    def read_selection(self, selection: RowSelection) -> RowStream:
        """Reads selected rows: :meth:`read` as a :data:`~pipeline.core.queries.seeks.ReadRows`, also in blocks."""
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

    def _page(self, remaining: "_Remaining", cells: RowFilter | None, size: int, *, in_blocks: bool) -> "_Page":
        """Returns the next ``size`` of the remaining rows; fewer only at their end."""
        page = _Page()
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
        self, request: ReadRowsRequest, timeout_s: float, remaining: "_Remaining", page: "_Page", *, in_blocks: bool
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
            for batch in batches(responses) if in_blocks else ([each] for each in responses):
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


class _Page:
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
    values = chain.from_iterable(part.values) if isinstance(part, BlockOfRows) else [cell.value for cell in part.cells]
    return sum(len(value) + _CELL_BYTES for value in values)


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
