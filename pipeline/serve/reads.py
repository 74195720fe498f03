"""Runs reads of the table for requests: in threads, for a limited time, and no longer than the client waits."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, TypeVar

from starlette.requests import Request

from pipeline.cloud.names import TableName
from pipeline.cloud.reader import SensorTable
from pipeline.cloud.row_reader import RowReader
from pipeline.cloud.schema_store import agreed_schema
from pipeline.core.schema.declared import DeclaredSchema
from pipeline.core.schema.table_schema import TableSchema

_THREADS = 16  # reads at a time; further requests wait for one of them

_T = TypeVar("_T")


class TookTooLong(Exception):
    """The table did not answer in time."""


class ClientLeft(Exception):
    """The client no longer waits for the answer."""


class Reads:
    """A connection to the table that all requests share. Create it with :meth:`open`.

    Attributes:
        name: the table.
        schema: its schema, as it was when the connection was opened.
        timeout_s: how long a request may take.
    """

    def __init__(self, rows: RowReader, schema: TableSchema, timeout_s: float, connection: ExitStack) -> None:
        self.name = rows.name
        self.schema = schema
        self.timeout_s = timeout_s
        self._rows = rows
        self._connection = connection
        self._threads = ThreadPoolExecutor(_THREADS, "read")
        connection.callback(self._threads.shutdown, cancel_futures=True)

    @classmethod
    def open(cls, name: TableName, declared: DeclaredSchema, timeout_s: float) -> "Reads":
        """Connects to a table and reads its schema. Raises ServerProblem if it can't be read."""
        with ExitStack() as connection:
            # Half of the time: an answer that names the cause is worth more than one that nothing came.
            rows = connection.enter_context(RowReader.open(name, timeout_s / 2))
            return cls(rows, agreed_schema(rows, declared), timeout_s, connection.pop_all())

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    async def answer(self, request: Request, read: Callable[[SensorTable], _T]) -> _T:
        """Calls ``read`` in a thread, with a table of its own over the shared connection, and returns its result.

        Raises:
            TookTooLong: the read took longer than allowed. It stops.
            ClientLeft: the client closed the connection. The read stops.
            Exception: what ``read`` raises.
        """
        stopped = threading.Event()

        def reading() -> _T:
            rows = self._rows.until(stopped)
            with SensorTable(rows, self.schema, ExitStack(), on_foreign=lambda _: None) as table:
                return read(table)

        work = asyncio.get_running_loop().run_in_executor(self._threads, reading)
        work.add_done_callback(lambda done: done.cancelled() or done.exception())  # else asyncio logs it
        gone = asyncio.ensure_future(_disconnected(request))
        both: set[asyncio.Future[Any]] = {work, gone}
        try:
            done, _ = await asyncio.wait(both, timeout=self.timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.set()
            gone.cancel()
        if work in done:
            return work.result()
        work.cancel()  # if it still waits for a thread
        raise ClientLeft if gone in done else TookTooLong


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
