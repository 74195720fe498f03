"""Runs reads of the table for requests: in threads, page by page, and no longer than the client waits."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

from starlette.requests import Request

from pipeline.cloud.connection.emulators import BIGTABLE, check_emulator
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.connection.problems import ServerError
from pipeline.cloud.reading.alert_reader import KnownRules
from pipeline.cloud.reading.reader import SensorTable
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables.retention_notes import KnownRetention
from pipeline.cloud.tables.schema_store import agreed_schema
from pipeline.core.schema.table_schema import SchemaError, TableSchema

# Reads at a time. Further requests wait for one of them: more threads would only make each read slower.
_THREADS = 6
_LONGEST_WAIT_S = 60.0  # for a free thread
_DECLARED_S = 60.0  # for so long, units and labels are taken for known

_T = TypeVar("_T")

_MAX_TIES = 10_000  # records beyond a page that share the time of its last one

T = TypeVar("T")


Last = TypeVar("Last", str, int)


class TookTooLong(Exception):
    """The table did not answer in time."""


class Busy(Exception):
    """Too many other requests wait before this one."""


class ClientLeft(Exception):
    """The client no longer waits for the answer."""


class Reads:
    """A connection to the table that all requests share. Create it with :meth:`open`.

    Attributes:
        name: the table.
        schema: the table's schema at the time of the connection, with the units and labels of the last minute or so.
        timeout_s: the seconds that a read may take once it has begun.
        rules: the rules of the table's alerts.
    """

    def __init__(self, rows: RowReader, schema: TableSchema, timeout_s: float, connection: ExitStack) -> None:
        self.name = rows.name
        self.schema = schema
        self.timeout_s = timeout_s
        self.rules = KnownRules()
        self._rows = rows
        self._declared_at = time.monotonic()
        self._retention = KnownRetention(rows.name, schema)
        self._connection = connection
        self._threads = ThreadPoolExecutor(_THREADS, "read")
        connection.callback(self._threads.shutdown, cancel_futures=True)

    @classmethod
    def open(cls, name: TableName, timeout_s: float) -> "Reads":
        """Connects to a table and reads its schema. Raises ServerError if it can't be read."""
        with ExitStack() as connection:
            check_emulator(BIGTABLE)  # a reader with patience waits, and a server that starts should not
            # Half of the time: an answer that names the cause is worth more than a timeout.
            rows = connection.enter_context(RowReader.open(name, timeout_s / 2))
            return cls(rows, agreed_schema(rows), timeout_s, connection.pop_all())

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    async def answer(self, request: Request, read: Callable[[SensorTable], _T]) -> _T:
        """Calls ``read`` in a thread, with a table of its own over the shared connection, and returns its result.

        Raises:
            Busy: no thread was free for a minute.
            TookTooLong: the read took longer than allowed. It stops.
            ClientLeft: the client closed the connection. The read stops.
            Exception: what ``read`` raises.
        """
        loop, stopped, begun = asyncio.get_running_loop(), threading.Event(), asyncio.Event()

        def reading() -> _T:
            loop.call_soon_threadsafe(begun.set)
            rows = self._rows.until(stopped)
            self._renew_declared(rows)
            with SensorTable(
                rows, self.schema, ExitStack(), on_foreign=lambda _: None, retention=self._retention
            ) as table:
                return read(table)

        work = loop.run_in_executor(self._threads, reading)
        work.add_done_callback(lambda done: done.cancelled() or done.exception())  # else asyncio logs it
        beginning, gone = asyncio.ensure_future(begun.wait()), asyncio.ensure_future(_disconnected(request))
        try:
            if not await _first_of(_LONGEST_WAIT_S, beginning, gone):
                raise Busy
            if not gone.done() and not await _first_of(self.timeout_s, work, gone):
                raise TookTooLong
            if work.done():
                return work.result()
            raise ClientLeft
        finally:
            stopped.set()
            for future in (work, beginning, gone):
                future.cancel()

    def _renew_declared(self, rows: RowReader) -> None:
        """Reads the declarations of metrics again if they are old: all else of a schema stays as long as its rows."""
        now = time.monotonic()
        if now < self._declared_at + _DECLARED_S:
            return
        self._declared_at = now  # other threads go on with what is known
        with suppress(ServerError, SchemaError):  # the read itself reports a table that is out of reach
            self.schema = replace(self.schema, declared=agreed_schema(rows).declared)


async def _first_of(seconds: float, *futures: asyncio.Future[Any]) -> bool:
    """Waits for the first of these. Returns whether it was done in time."""
    done, _ = await asyncio.wait(futures, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    return bool(done)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Page(NamedTuple, Generic[T, Last]):
    """A part of an answer.

    Attributes:
        records: the page's records.
        last: the last time, or sensor, that the page covers; None on the last page.
    """

    records: list[T]
    last: Last | None


def page_by_time(read: Callable[..., Iterable[T]], limit: int, time_us: Callable[[T], int]) -> Page[T, int]:
    """Returns the first records, and all that share the time of the last one: the next page begins after that time.

    Args:
        read: a function that returns the records; its argument ``limit`` is the most to be taken, None if unknown.
        limit: the number of records on a page.
        time_us: a function that returns a record's time.

    Raises:
        ValueError: more than 10,000 records beyond the limit share a time.
    """
    found: list[T] = list(islice(read(limit=limit + 1), limit + 1))
    if len(found) <= limit:
        return Page(found, None)
    last_us = time_us(found[limit - 1])
    if time_us(found[limit]) != last_us:
        return Page(found[:limit], last_us)
    for count, record in enumerate(read(limit=None)):
        if count == limit + _MAX_TIES:
            raise ValueError("more records share a time than an answer can contain; ask for fewer sensors")
        if count >= limit and time_us(record) != last_us:
            return Page(found, last_us)
        if count > limit:
            found.append(record)
    return Page(found, None)


def searched_page(
    records: Iterable[T], limit: int, sensor_id: Callable[[T], str], text: str, most: int
) -> Page[T, str]:
    """Returns the first records of sensors whose ids contain the text, in any case.

    Looks through at most ``most`` records, so a page may have fewer than ``limit``, and still be followed by another.
    """
    wanted = text.lower()
    found: list[T] = []
    last = ""
    for count, record in enumerate(records):
        if len(found) == limit or count == most:
            return Page(found, last)
        last = sensor_id(record)
        if wanted in last.lower():
            found.append(record)
    return Page(found, None)
