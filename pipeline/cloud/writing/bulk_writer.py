"""Writes rows to one table with ``MutateRows``: many rows in a request, several requests at once.

A cell ends with the value that was added last. Bigtable applies concurrent requests, and the entries of one request, in
any order, but the mutations of one entry in theirs. So additions to one row become one entry, and a request waits while
one of its rows is in flight.

One gap remains, as with every client that retries. If a response is lost, the server may still apply the request later.
The retry writes the same values, so this does harm only if a newer value of the same cell is confirmed before the
server applies the old request. Three things make that unlikely: the server gets an attempt's timeout as its deadline
and then drops the request, the timeout is as long as in Google's clients, and only a broken connection ends an attempt
before its timeout.
"""

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from google.api_core.exceptions import GoogleAPICallError
from google.cloud.bigtable_v2 import BigtableClient

from pipeline.cloud.connection.bigtable_client import bigtable_client
from pipeline.cloud.connection.errors import ServerProblem, explained
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.writing.mutate_rows import call_for, code_of, mutate_rows
from pipeline.cloud.writing.rate_limiter import RateLimiter
from pipeline.cloud.writing.request_retrier import RequestRetrier, Send, Tally
from pipeline.core.dead_letters.refused_rows import RefusedRow
from pipeline.core.rows.mutation_bytes import ENTRY_OVERHEAD, encoded, request_header
from pipeline.core.rows.rows import EncodedRow, Row

_MAX_MUTATIONS = 100_000  # in a request: Bigtable's limit


@dataclass(frozen=True)
class Limits:
    """Limits of a writer's memory and of its attempts.

    A writer keeps at most ``in_flight + 1`` requests in memory. Those in flight take a few times their size, as bytes
    and as protobuf.
    """

    mutations: int = 6_000
    """Cells in a request. A row with more goes in several requests, one after the other."""
    size_bytes: int = 2 << 20
    """Encoded bytes in a request. A larger row goes alone."""
    in_flight: int = 4
    """Concurrent requests."""
    deadline_s: float = 600.0
    """The time for which a row is retried."""
    attempt_s: float = 60.0
    """Timeout of an attempt, as in Google's clients."""
    refused: int = 10_000
    """Refused rows between two calls of ``finish``. With more, the rows are not to blame."""

    def __post_init__(self) -> None:
        if not 0 < self.mutations <= _MAX_MUTATIONS:
            raise ValueError(f"a request has 1 to {_MAX_MUTATIONS} mutations, not {self.mutations}")


class BulkWriter:
    """Writes rows to one table, from one thread. Create it with :meth:`open`, or over a shared client.

    Args:
        client: the client, which :meth:`close` leaves open.
        name: the table.
        limits: the limits of memory and attempts.
    """

    def __init__(self, client: BigtableClient, name: TableName, limits: Limits | None = None) -> None:
        self.name = name
        self._limits = limits or Limits()
        self._head = request_header(str(name), name.app_profile)
        self._send: Send = partial(mutate_rows, call_for(client, name))
        self._limiter = RateLimiter(self._limits.in_flight)
        self._server_accepts = threading.Event()
        self._threads = ThreadPoolExecutor(self._limits.in_flight, f"write {name.table}")
        self._in_flight: list[RequestRetrier] = []
        self._done: SimpleQueue[RequestRetrier] = SimpleQueue()
        self._refused: list[RefusedRow] = []
        self._tally = Tally()
        self._reset()

    @classmethod
    @contextmanager
    def open(cls, name: TableName, **limits: Any) -> Iterator["BulkWriter"]:
        """Connects for the length of a ``with`` block, to the emulator if BIGTABLE_EMULATOR_HOST is set.

        Rows that were added but not finished may be lost. Raises ServerProblem without credentials.

        Args:
            name: the table.
            limits: fields of :class:`Limits`.
        """
        with ExitStack() as stack:
            with explained(name):
                client = stack.enter_context(bigtable_client())
            yield stack.enter_context(closing(cls(client, name, Limits(**limits))))

    def add(self, row: Row) -> None:
        """Adds one row; see :meth:`add_all`."""
        self.add_all((row,))

    def add_all(self, rows: Iterable[Row]) -> None:
        """Adds rows to write. A row without cells writes nothing.

        Sends each request that is full, and waits while the maximum is in flight.

        Raises:
            ServerProblem: rows of this call or an earlier one could not be written. The writer has dropped all rows
                added since the last ``finish``.
            ValueError: a cell has a negative timestamp.
        """
        size = self._limits.mutations
        for row in rows:
            for start in range(0, len(row.cells), size):
                self.add_encoded([encoded(Row(row.key, row.cells[start : start + size]))])

    def add_encoded(self, rows: Iterable[EncodedRow]) -> None:
        """Adds encoded rows; see :meth:`add_all`. The server refuses a row with more cells than a request may have."""
        max_mutations, max_bytes = self._limits.mutations, self._limits.size_bytes
        for key, mutations, count in rows:
            size = len(mutations) + len(key) + ENTRY_OVERHEAD
            if self._mutations + count > max_mutations or self._size + size > max_bytes:
                self._send_pending()
            if (additions := self._entries.get(key)) is None:
                self._entries[key] = [mutations]
            else:
                additions.append(mutations)
            self._mutations += count
            self._size += size

    def finish(self) -> list[RefusedRow]:
        """Waits until every row that was added since the last ``finish`` is confirmed or refused.

        Returns:
            the refused rows that no call of :meth:`refused` returned.

        Raises:
            ServerProblem: see :meth:`add_all`.
        """
        self._send_pending()
        while self._in_flight:
            self._settle(self._done.get())
        self._refused_rows = 0
        return self.refused()

    def refused(self) -> list[RefusedRow]:
        """Returns the refused rows that no earlier call returned. Calls before ``finish`` save memory."""
        refused, self._refused = self._refused, []
        return refused

    def take_tally(self) -> Tally:
        """Returns the statistics since the last call."""
        tally, self._tally = self._tally, Tally()
        return tally

    def abandon(self) -> int:
        """Drops all rows that are not finished. Returns their number once no request is in flight."""
        self._stopping.set()
        rows = sum(map(len, self._entries.values()))
        while self._in_flight:
            request = self._done.get()
            self._in_flight.remove(request)
            self._tally.add(request.tally)
            rows += request.rows_left
        self._reset()
        return rows

    def close(self) -> None:
        """Drops all rows that are not finished, waits for the requests in flight, and ends the threads."""
        self.abandon()
        self._threads.shutdown()

    def _reset(self) -> None:
        self._stopping = threading.Event()
        self._refused = []
        self._refused_rows = 0  # since the last finish
        self._reset_pending()

    def _reset_pending(self) -> None:
        self._entries: dict[bytes, list[bytes]] = {}  # the pending request's, which is not full yet
        self._mutations = 0
        self._size = len(self._head)

    def _send_pending(self) -> None:
        """Sends the pending request as soon as the limits allow it and none of its rows is in flight."""
        if not self._entries:
            return
        with suppress(Empty):
            while True:
                self._settle(self._done.get_nowait())
        while len(self._in_flight) >= self._limiter.in_flight or self._has_row_in_flight():
            self._settle(self._done.get())
        limits = self._limits
        request = RequestRetrier(
            self._head,
            self._entries,
            self._send,
            self._limiter,
            deadline_s=limits.deadline_s,
            attempt_s=limits.attempt_s,
            stopping=self._stopping,
            server_accepts=self._server_accepts,
        )
        self._in_flight.append(request)
        self._threads.submit(self._run, request)
        self._tally.rows_in_flight.append(sum(each.rows_left for each in self._in_flight))
        self._reset_pending()

    def _has_row_in_flight(self) -> bool:
        """Whether a row of the pending request is in flight."""
        return not all(request.keys.isdisjoint(self._entries) for request in self._in_flight)

    def _run(self, request: RequestRetrier) -> None:
        try:
            request.run()
        except BaseException as error:  # noqa: BLE001 (_settle raises it in the thread that adds rows)
            request.problem = error
        finally:
            self._done.put(request)

    def _settle(self, request: RequestRetrier) -> None:
        """Takes over the results of a request. Raises if rows of it are left, or too many rows were refused."""
        self._in_flight.remove(request)
        self._tally.add(request.tally)
        self._refused += request.refused
        self._refused_rows += len(request.refused)
        if problem := request.problem:
            rows = request.rows_left + self.abandon()
            if not isinstance(problem, GoogleAPICallError):
                raise problem
            raise self._problem(f"{rows} rows could not be written", code_of(problem), problem.message) from problem
        if self._refused_rows > self._limits.refused:
            self.abandon()
            row = request.refused[0]
            raise self._problem(f"more than {self._limits.refused} rows were refused", row.code, row.message)

    def _problem(self, what: str, code: str, message: str) -> ServerProblem:
        return ServerProblem(f"table {self.name}: {what}: {code}: {' '.join(message.split())[:300]}")
