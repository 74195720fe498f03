"""The base of steps that read a table while they process elements."""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import apache_beam as beam

from pipeline.cloud.names import TableName
from pipeline.cloud.row_filters import row_filter
from pipeline.cloud.row_reader import RowReader
from pipeline.core.completion import Completion
from pipeline.core.rows import KeyRange, Row
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema

# How long a table that is out of reach is waited for: as long as Beam's connector waits when it writes.
_RETRY_S = 600.0


class CompletingFn(beam.DoFn):
    """Completes windows of a table. Connects at the first read.

    Args:
        name: of the table.
        schema: of the table.
        retention: what may be collected of the table.
        search: as for :class:`Completion`.
    """

    def __init__(self, name: TableName, schema: TableSchema, retention: Retention, *, search: bool = False) -> None:
        self._name = name
        self._schema = schema
        self._retention = retention
        self._search = search

    def setup(self) -> None:
        self._connections = ExitStack()
        self._reader: RowReader | None = None

    def start_bundle(self) -> None:
        # A new one for each bundle, because it caches what it reads.
        self._completion = Completion(self._schema, self._retention, self._read, search=self._search)

    def teardown(self) -> None:
        self._connections.close()

    def _read(
        self, key_range: KeyRange, wanted: CellSelection, pattern: str | None, page_rows: int | None, *, reverse: bool
    ) -> Iterator[Row]:
        if self._reader is None:
            self._reader = self._connections.enter_context(RowReader.open(self._name, _RETRY_S))
        return self._reader.read(key_range, row_filter(wanted, pattern), page_rows=page_rows, reverse=reverse)


def now_us() -> int:
    """Returns the current time in microseconds since the epoch."""
    return time.time_ns() // 1000
