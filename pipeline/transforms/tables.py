"""The bases of steps: those with state and timers, and those that read a table while they process elements."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cached_property
from threading import Lock

import apache_beam as beam

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.writing.rewriter import Rewriter
from pipeline.core.completion.stored_windows import Completion
from pipeline.core.queries.reads import RowSelection
from pipeline.core.rows.rows import Row
from pipeline.core.schema.retention import FOR_EVER_US, Retention
from pipeline.core.schema.table_schema import TableSchema
from pipeline.private_apis import worker_state


class StatefulFn(beam.DoFn):
    """A step with state or timers, in a process whose cache of state and whose timers are as this job needs them."""

    def setup(self) -> None:
        super().setup()
        worker_state.prepare()
        worker_state.check()


Clock = Callable[[], float]
"""Returns the current time in seconds since the epoch."""

RETRY_S = 600.0  # for an unreachable table; Beam's connector waits as long when it writes


class TableReadingFn(beam.DoFn):
    """Reads a table, and writes rows: over connections that the first use opens and :meth:`teardown` closes.

    Args:
        name: the table.
        patience_s: the time for which a read waits for an unreachable server; None for the default of
            :class:`RowReader`.
    """

    def __init__(self, name: TableName, patience_s: float | None = None) -> None:
        self._name = name
        self._patience_s = patience_s

    def setup(self) -> None:
        self._connections = ExitStack()
        self._reader: RowReader | None = None
        self._opening = Lock()  # several threads may read

    def teardown(self) -> None:
        self._connections.close()

    def _open(self) -> RowReader:
        with self._opening:
            if self._reader is None:
                self._reader = self._connections.enter_context(RowReader.open(self._name, self._patience_s))
        return self._reader

    def _read(self, selection: RowSelection) -> Iterator[Row]:
        return self._open().read_selection(selection)

    @cached_property
    def _writer(self) -> Rewriter:
        return self._connections.enter_context(Rewriter.open(self._name))


class CompletingFn(TableReadingFn):
    """Completes windows of a table.

    Args:
        name: the table.
        schema: the table's schema.
        retention: the table's retention.
        search: whether to search for sensors whose id alone does not locate their rows; see :class:`Completion`.
        raw_until_us: the time before which windows start that may lack a row although there are raw rows.
    """

    def __init__(
        self,
        name: TableName,
        schema: TableSchema,
        retention: Retention,
        *,
        search: bool = False,
        raw_until_us: int = FOR_EVER_US,
    ) -> None:
        super().__init__(name, RETRY_S)
        self._schema = schema
        self._retention = retention
        self._search, self._raw_until_us = search, raw_until_us

    def start_bundle(self) -> None:
        # A new one for each bundle, because it caches what it reads.
        self._completion = Completion(
            self._schema, self._retention, self._read, search=self._search, raw_until_us=self._raw_until_us
        )


def now_us() -> int:
    """Returns the current time in microseconds since the epoch."""
    return time.time_ns() // 1000
