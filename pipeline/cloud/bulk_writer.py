"""Rows to one table, many at once and each until it is confirmed: what ``MutateRows`` is made for.

What is added last is what a cell holds in the end. Bigtable applies requests that are in flight together, and the
entries of one, in any order; so additions to one row become one entry, whose mutations it applies in theirs, and a
request waits while a row of it is in flight.

One hole remains, as with every client that tries again: nobody knows whether a request whose answer never came is
still to be applied. Its rows are sent again with the same values, so that does harm only where a newer value of the
same cell is confirmed before the server gets to the old request. Three things keep that far away: the server is told
the timeout of an attempt as its deadline, after which it drops the request; an attempt is waited for as long as
Google's clients do; and nothing here gives up on a request before its timeout but for a broken connection.
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

from pipeline.cloud.bigtable_client import bigtable_client
from pipeline.cloud.errors import ServerProblem, explained
from pipeline.cloud.mutate_rows import code_of, mutate_rows
from pipeline.cloud.names import TableName
from pipeline.cloud.rate_limiter import RateLimiter
from pipeline.cloud.request_retrier import RequestRetrier, Send, Tally
from pipeline.core.mutation_bytes import ENTRY_OVERHEAD, encoded, request_header
from pipeline.core.refused_rows import RefusedRow
from pipeline.core.rows import EncodedRow, Row

_MOST_MUTATIONS = 100_000  # of a request, to Bigtable


@dataclass(frozen=True)
class Limits:
    """Of what a writer holds, and of how long it tries.

    It never holds more than ``in_flight + 1`` requests, those in flight a few times over, as bytes and as protobuf.
    """

    mutations: int = 6_000
    """Of a request: cells. A row of more goes in several, one after the other."""
    size_bytes: int = 2 << 20
    """Of a request, encoded. A row of more goes alone."""
    in_flight: int = 4
    """Requests."""
    deadline_s: float = 600.0
    """How long a row is tried."""
    attempt_s: float = 60.0
    """How long an attempt may take: as Google's clients have it."""
    refused: int = 10_000
    """Rows from one ``finish`` to the next: more is no matter of rows."""

    def __post_init__(self) -> None:
        if not 0 < self.mutations <= _MOST_MUTATIONS:
            raise ValueError(f"a request has 1 to {_MOST_MUTATIONS} mutations, not {self.mutations}")


class BulkWriter:
    """Writes rows to one table. For one thread; made by :meth:`open`, or over a client that others use too.

    Args:
        client: stays open when this is closed.
        name: which table.
        app_profile: by which Bigtable routes; None for the instance's default.
        limits: what it holds.
    """

    def __init__(
        self, client: BigtableClient, name: TableName, app_profile: str | None = None, limits: Limits | None = None
    ) -> None:
        self.name = name
        self._limits = limits or Limits()
        self._head = request_header(str(name), app_profile or "")
        self._send: Send = partial(mutate_rows, client)
        self._pace = RateLimiter(self._limits.in_flight)
        self._trusted = threading.Event()
        self._threads = ThreadPoolExecutor(self._limits.in_flight, f"write {name.table}")
        self._in_flight: list[RequestRetrier] = []
        self._done: SimpleQueue[RequestRetrier] = SimpleQueue()
        self._refused: list[RefusedRow] = []
        self._tally = Tally()
        self._begin()

    @classmethod
    @contextmanager
    def open(cls, name: TableName, app_profile: str | None = None, **limits: Any) -> Iterator["BulkWriter"]:
        """A connection for the length of a ``with`` block, to the emulator where BIGTABLE_EMULATOR_HOST says so.

        Rows that were added and not finished are not written for certain. Raises ServerProblem where there are no
        credentials.

        Args:
            name: which table.
            app_profile: by which Bigtable routes; None for the instance's default.
            limits: as :class:`Limits` has them.
        """
        with ExitStack() as stack:
            with explained(f"table {name}"):
                client = stack.enter_context(bigtable_client(name.project))
            yield stack.enter_context(closing(cls(client, name, app_profile, Limits(**limits))))

    def add(self, row: Row) -> None:
        """As :meth:`add_all` has it, of one row."""
        self.add_all((row,))

    def add_all(self, rows: Iterable[Row]) -> None:
        """Takes rows to be written; a row without cells is nothing to write.

        Sends requests as they get full, and waits where as many are in flight as may be.

        Raises:
            ServerProblem: rows can't be written, of this call or an earlier one; none that was added since the last
                ``finish`` is in flight any more, or tried again.
            ValueError: a cell has a negative timestamp.
        """
        most = self._limits.mutations
        for row in rows:
            for start in range(0, len(row.cells), most):
                self.add_encoded([encoded(Row(row.key, row.cells[start : start + most]))])

    def add_encoded(self, rows: Iterable[EncodedRow]) -> None:
        """As :meth:`add_all` has it; a row of more cells than a request may have is refused by the server."""
        most_mutations, most_bytes = self._limits.mutations, self._limits.size_bytes
        for key, mutations, count in rows:
            size = len(mutations) + len(key) + ENTRY_OVERHEAD
            if self._mutations + count > most_mutations or self._size + size > most_bytes:
                self._send_open()
            if (additions := self._entries.get(key)) is None:
                self._entries[key] = [mutations]
            else:
                additions.append(mutations)
            self._mutations += count
            self._size += size

    def finish(self) -> list[RefusedRow]:
        """Returns when every row that was added since the last ``finish`` is confirmed or refused.

        Returns:
            what was refused, and not yet given by :meth:`refused`.

        Raises:
            ServerProblem: as :meth:`add_all` has it.
        """
        self._send_open()
        while self._in_flight:
            self._settle(self._done.get())
        self._refused_rows = 0
        return self.refused()

    def refused(self) -> list[RefusedRow]:
        """What was refused and not yet given: to be had before ``finish``, so that no more is held."""
        given = self._refused
        self._refused = []
        return given

    def take_tally(self) -> Tally:
        """What writing has come to since this was last asked."""
        taken, self._tally = self._tally, Tally()
        return taken

    def abandon(self) -> int:
        """Forgets what is not finished: returns how many rows it was, when none of them is in flight any more."""
        self._stopping.set()
        left = sum(map(len, self._entries.values()))
        while self._in_flight:
            delivery = self._done.get()
            self._in_flight.remove(delivery)
            self._tally.add(delivery.tally)
            left += delivery.left
        self._begin()
        return left

    def close(self) -> None:
        """Ends the threads, when what is in flight is answered; what is not finished is forgotten."""
        self.abandon()
        self._threads.shutdown()

    def _begin(self) -> None:
        self._stopping = threading.Event()
        self._refused = []
        self._refused_rows = 0  # since the last finish
        self._begin_request()

    def _begin_request(self) -> None:
        self._entries: dict[bytes, list[bytes]] = {}  # of the request that is not yet full
        self._mutations = 0
        self._size = len(self._head)

    def _send_open(self) -> None:
        """Sends the request that is not yet full, when there is room for it, and none of its rows is in flight."""
        if not self._entries:
            return
        with suppress(Empty):
            while True:
                self._settle(self._done.get_nowait())
        while len(self._in_flight) >= self._pace.in_flight or not self._is_free():
            self._settle(self._done.get())
        limits = self._limits
        delivery = RequestRetrier(
            self._head,
            self._entries,
            self._send,
            self._pace,
            deadline_s=limits.deadline_s,
            attempt_s=limits.attempt_s,
            stopping=self._stopping,
            trusted=self._trusted,
        )
        self._in_flight.append(delivery)
        self._threads.submit(self._deliver, delivery)
        self._tally.rows_in_flight.append(sum(each.left for each in self._in_flight))
        self._begin_request()

    def _is_free(self) -> bool:
        """Whether no row of the request that is not yet full is in flight."""
        return all(delivery.keys.isdisjoint(self._entries) for delivery in self._in_flight)

    def _deliver(self, delivery: RequestRetrier) -> None:
        try:
            delivery.run()
        except BaseException as error:  # noqa: BLE001 (whatever it is, it is raised where rows are added)
            delivery.problem = error
        finally:
            self._done.put(delivery)

    def _settle(self, delivery: RequestRetrier) -> None:
        """Takes over what a request has come to. Raises where rows of it are left, or too many were refused."""
        self._in_flight.remove(delivery)
        self._tally.add(delivery.tally)
        self._refused += delivery.refused
        self._refused_rows += len(delivery.refused)
        if problem := delivery.problem:
            left = delivery.left + self.abandon()
            if not isinstance(problem, GoogleAPICallError):
                raise problem
            raise self._telling(f"{left} rows could not be written", code_of(problem), problem.message) from problem
        if self._refused_rows > self._limits.refused:
            self.abandon()
            row = delivery.refused[0]
            raise self._telling(f"more than {self._limits.refused} rows were refused", row.code, row.message)

    def _telling(self, what: str, code: str, message: str) -> ServerProblem:
        return ServerProblem(f"table {self.name}: {what}: {code}: {' '.join(message.split())[:300]}")
