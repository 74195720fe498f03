"""The rows of a table by ranges of keys, forward or backward: the one way in which readers read rows.

Google's ``data`` client can't read backward: its queries have no such option, and what puts its rows together refuses
keys that descend. So requests go through the client that it is built on, over its connection, and the chunks that
the server sends are put together here, as ReadRowsResponse in google/bigtable/v2/bigtable.proto describes them.
"""

import base64
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from google.api_core.exceptions import Aborted, DataLoss, DeadlineExceeded, GoogleAPICallError, ResourceExhausted
from google.api_core.retry import exponential_sleep_generator
from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2.types import FeatureFlags, ReadRowsRequest, ReadRowsResponse, RowFilter

from pipeline.cloud.bigtable_client import bigtable_client
from pipeline.cloud.errors import explained, is_transient
from pipeline.cloud.names import TableName
from pipeline.cloud.row_filters import row_filter
from pipeline.core.rows import Cell, KeyRange, Row
from pipeline.core.schema.layouts import CellSelection

PAGE_ROWS = 1000
GROWN_PAGES = 8  # times as many rows has a page at most, where a read goes on and on and its rows are small
TIMEOUT_S = 15.0  # without a further row, with all retries: how long an unreachable server is waited for as a rule

# A server refuses to read backward for a client that does not say that it can. The row last scanned is what a page
# whose filter passes few rows goes on from after a failure.
_FEATURES = FeatureFlags(reverse_scans=True, last_scanned_row_responses=True)
_METADATA = (("bigtable-features", base64.urlsafe_b64encode(FeatureFlags.serialize(_FEATURES)).decode()),)

_PAGES_BEFORE_GROWTH = 4
_MOST_PAGE_BYTES = 4_000_000  # of a page that has grown, as far as the page before it tells
_CELL_BYTES = 200  # of memory, for a cell without its value

_FIRST_DELAY_S = 0.05  # before a retry, at most: it doubles, and a random part of it is waited for
_LONGEST_DELAY_S = 1.0

_Request = ReadRowsRequest.pb()  # the plain protobuf class: quicker to fill in than its wrapper
_new = tuple.__new__  # makes a Cell in half the time that its own constructor takes


class RowReader:
    """Reads one table. Made by :meth:`open`; any number of threads may read at the same time.

    Attributes:
        name: which table.
        requests: how many requests for rows were made so far, retries among them.
        rows_read: how many rows the server sent so far.
        cells_read: how many cells these rows had.
    """

    def __init__(self, client: BigtableClient, name: TableName, patience_s: float | None = None) -> None:
        self.name = name
        self._patience_s = patience_s
        self.requests = 0
        self.rows_read = 0
        self.cells_read = 0
        self._client = client
        self._lock = threading.Lock()

    @classmethod
    @contextmanager
    def open(cls, name: TableName, patience_s: float | None = None) -> Iterator["RowReader"]:
        """A connection for the length of a ``with`` block, to the emulator where BIGTABLE_EMULATOR_HOST says so.

        Nothing is requested yet: a table that does not exist is told by the first read. Raises ServerProblem where
        there are no credentials.

        Args:
            name: which table.
            patience_s: for how long an unreachable server is waited for; :data:`TIMEOUT_S` by default.
        """
        with ExitStack() as stack:
            with explained(f"table {name}"):
                client = stack.enter_context(bigtable_client(name.project))
            yield cls(client, name, patience_s)

    def reconnected(self) -> "RowReader":
        """The same table over the same connection, counted from nothing."""
        return RowReader(self._client, self.name, self._patience_s)

    def read(
        self,
        key_range: KeyRange,
        cells: RowFilter | None = None,
        limit: int | None = None,
        *,
        page_rows: int | None = None,
        reverse: bool = False,
    ) -> Iterator[Row]:
        """The rows of a range, in the order of keys.

        They come in pages of :data:`PAGE_ROWS`, each a request with a deadline of its own: a reader may take its
        time over what it has, and no more than a page is held. Behind some pages they grow, up to
        :data:`GROWN_PAGES` times that, as long as they stay small: a request costs as much as a good many rows.
        Nothing is requested before the first ``next``.

        Args:
            key_range: an empty end is the table's; a range that ends before it starts holds nothing.
            cells: which cells of the rows, as google.cloud.bigtable_v2.types has filters; by default all. A row of
                which no cell passes is left out.
            limit: of how many rows, at most.
            page_rows: how many rows a page has, and goes on having; at most, and by default to begin with,
                :data:`PAGE_ROWS`.
            reverse: against the order of keys, the last row of the range first. A row's cells come as ever: newest
                first within a column, columns in order within a family.

        Raises:
            ServerProblem: by ``next``, for what the server refuses, or when it is out of reach, which takes at most the
                patience of this reader to find out. A failure that can pass is retried until then, behind the last row
                that is there, so that no row is lost or comes twice; and a request that brought the read further
                before it failed starts the time anew.
        """
        rest = _Rest(*key_range, reverse)
        most = min(page_rows or PAGE_ROWS, PAGE_ROWS)
        pages = 0
        while rest and (limit is None or limit > 0):
            size = most if limit is None else min(limit, most)
            page = self._page(rest, cells, size)
            yield from page
            if len(page) < size:
                return
            pages += 1
            if page_rows is None and pages >= _PAGES_BEFORE_GROWTH:
                most = _grown(page)
            del page  # before the next one comes
            limit = None if limit is None else limit - size

    def read_selection(
        self,
        key_range: KeyRange,
        wanted: CellSelection,
        pattern: str | None = None,
        page_rows: int | None = None,
        *,
        reverse: bool = False,
    ) -> Iterator[Row]:
        """Reads the selected cells of a range: :meth:`read` as a :class:`~pipeline.core.schema.queries.ReadRows`."""
        return self.read(key_range, row_filter(wanted, pattern), page_rows=page_rows, reverse=reverse)

    def _page(self, rest: "_Rest", cells: RowFilter | None, size: int) -> list[Row]:
        """The next rows of what is left, ``size`` of them unless it holds fewer."""
        page: list[Row] = []
        with explained(f"table {self.name}"):
            seconds = TIMEOUT_S if self._patience_s is None else self._patience_s
            patience = _Patience(seconds)
            while True:
                begin = rest.start, rest.end
                request = rest.request(self.name, cells, size - len(page))
                try:
                    self._receive(request, patience.left_s(), rest, page)
                    return page
                except GoogleAPICallError as error:
                    if not _is_retried(error):
                        raise
                    if not rest or len(page) == size:
                        return page  # it came behind the last row, and nothing is missing
                    if (rest.start, rest.end) != begin:
                        patience = _Patience(seconds)
                    patience.bear(error)

    def _receive(self, request: ReadRowsRequest, timeout_s: float, rest: "_Rest", page: list[Row]) -> None:
        """One request: moves rows from what is left to the page, as they come."""
        before = len(page)
        with self._lock:
            self.requests += 1
        try:
            stream = self._client.read_rows(request, timeout=timeout_s, retry=None, metadata=_METADATA)
            for row in merged(map(ReadRowsResponse.pb, stream)):
                rest.resume_after(row.key)
                if row.cells:
                    page.append(row)
        finally:
            received = page[before:]
            with self._lock:
                self.rows_read += len(received)
                self.cells_read += sum(len(row.cells) for row in received)


def _grown(page: list[Row]) -> int:
    """How many rows the page behind this one has: twice as many, unless that may be too much to hold."""
    sample = page[:: len(page) // 100 + 1]
    sample_bytes = sum(len(cell.value) + _CELL_BYTES for row in sample for cell in row.cells)
    fitting = _MOST_PAGE_BYTES * len(sample) // sample_bytes
    return max(PAGE_ROWS, min(2 * len(page), GROWN_PAGES * PAGE_ROWS, fitting))


class _Patience:
    """What is borne of failures before a read is given up: those of so many seconds, further and further apart."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._delays = exponential_sleep_generator(_FIRST_DELAY_S, _LONGEST_DELAY_S)
        self._failures: list[Exception] = []

    def left_s(self) -> float:
        return max(self._deadline - time.monotonic(), 0.0)

    def bear(self, failure: Exception) -> None:
        """Waits before the next try. Raises what was to blame where there is no time for one."""
        self._failures.append(failure)
        delay = next(self._delays)
        if delay >= self.left_s():
            raise _telling(self._failures)
        time.sleep(delay)


@dataclass(slots=True)
class _Rest:
    """What is left to read of a range: less with every row, from the side that is read first. False: nothing."""

    start: bytes
    end: bytes
    reverse: bool

    def __bool__(self) -> bool:
        return not self.end or self.start < self.end

    def resume_after(self, key: bytes) -> None:
        """Takes the row away, and all that would have come before it."""
        if key < self.start or (self.end and key >= self.end):
            raise DataLoss(f"the server sent row {key!r} out of order")
        if self.reverse:
            self.end = key
        else:
            self.start = key + b"\x00"

    def request(self, name: TableName, cells: RowFilter | None, limit: int) -> ReadRowsRequest:
        request = _Request(table_name=str(name), rows_limit=limit, reversed=self.reverse)
        request.rows.row_ranges.add(start_key_closed=self.start, end_key_open=self.end or None)
        if cells is not None:
            request.filter.CopyFrom(RowFilter.pb(cells))
        return ReadRowsRequest.wrap(request)


def merged(responses: Iterable[Any]) -> Iterator[Row]:
    """The rows of one stream of responses, put together from their chunks.

    Args:
        responses: ReadRowsResponse as plain protobuf, all of one request.

    Yields:
        every row when it is complete; and, without a cell, every row that the server says it has scanned and left out.

    Raises:
        Aborted: the responses end in the middle of a row.
        DataLoss: a chunk does not fit what came before it.
    """
    key = b""  # of the row that is being put together; empty between rows
    cells: list[Cell] = []
    family: str | None = None
    qualifier: bytes | None = None
    begun: list[bytes] = []  # what there is of a value that is split over chunks
    timestamp_us = 0
    for response in responses:
        if response.last_scanned_row_key:
            if key:
                raise DataLoss(f"the server sent row {key!r} in part and went on")
            yield Row(response.last_scanned_row_key, [])
        for chunk in response.chunks:
            if chunk.reset_row:
                key, cells, family, qualifier, begun = b"", [], None, None, []
                continue
            chunk_key = chunk.row_key
            if not key:
                key = chunk_key
            if not key or (chunk_key and chunk_key != key):
                raise DataLoss(f"the server sent a cell of row {chunk_key!r} as one of row {key!r}")
            # An absent family or column is the last chunk's; an empty one is a name like any other.
            if (name := chunk.family_name.value) or chunk.HasField("family_name"):
                family, qualifier = name, None
            if (column := chunk.qualifier.value) or chunk.HasField("qualifier"):
                qualifier = column
            if family is None or qualifier is None:
                raise DataLoss(f"the server sent a cell of row {key!r} without its column")
            if not begun:
                timestamp_us = chunk.timestamp_micros
            value = chunk.value
            if chunk.value_size:
                begun.append(value)
            else:
                if begun:
                    value = b"".join((*begun, value))
                    begun = []
                cells.append(_new(Cell, (family, qualifier, timestamp_us, value)))
            if chunk.commit_row:
                if begun:
                    raise DataLoss(f"the server sent row {key!r} with a value in part")
                yield Row(key, cells)
                key, cells, family, qualifier = b"", [], None, None
    if key:
        raise Aborted(f"the server stopped in the middle of row {key!r}")


def _is_retried(error: GoogleAPICallError) -> bool:
    # As in Google's clients, a read that exceeds a quota is not retried: retries would use up more of the quota, and
    # whoever waits for the rows learns the cause at once.
    return is_transient(error) and not isinstance(error, ResourceExhausted)


def _telling(failures: list[Exception]) -> Exception:
    """Of the tries until the time was up, why the last one failed that says more than that the time was up."""
    return next((error for error in reversed(failures) if not isinstance(error, DeadlineExceeded)), failures[-1])
