"""A table of encoded rows, and a group of sensors whose firings are measured on it."""

import time
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import Any

from google.cloud.bigtable_v2.types import ReadRowsResponse

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.core.panes.group_state import Schedule
from pipeline.core.queries.reads import RowSelection
from pipeline.core.rows.rows import Row
from tests.support.groups import Group
from tests.support.row_server import response
from tests.support.served import terse_chunks


class Served:
    """A table that answers with the bytes that Bigtable would send.

    Args:
        rows: the first rows.
        of_response: the number of rows in a response.

    Attributes:
        reader: a reader of the table.
        busy_s: the CPU seconds of the table itself.
    """

    def __init__(self, rows: Iterable[Row] = (), of_response: int = 100) -> None:
        self._of_response = of_response
        self._keys: list[bytes] = []
        self._encoded: dict[bytes, bytes] = {}
        self.reader = RowReader(self, TableName("p", "i", "t"))  # type: ignore[arg-type]
        self.busy_s = 0.0
        for row in rows:
            self.write(row)

    def write(self, row: Row) -> None:
        began = time.process_time()
        if row.key not in self._encoded:
            insort(self._keys, row.key)
        in_order = row._replace(cells=sorted(row.cells))
        self._encoded[row.key] = ReadRowsResponse.serialize(response(*terse_chunks(in_order)))
        self.busy_s += time.process_time() - began

    def __call__(self, selection: RowSelection) -> Iterator[Row]:
        return self.reader.read_selection(selection)

    @property
    def reads(self) -> int:
        """The number of requests so far."""
        return self.reader.requests

    @property
    def rows(self) -> int:
        """The number of rows that were read so far."""
        return self.reader.rows_read

    def read_rows(self, request: Any, **_: Any) -> Iterator[ReadRowsResponse]:
        """Answers as Google's client does."""
        began = time.process_time()
        found = list[bytes]()
        for each in request.rows.row_ranges:
            end = bisect_left(self._keys, each.end_key_open)
            found += self._keys[bisect_left(self._keys, each.start_key_closed) : end]
        found = found[: request.rows_limit or None]
        parts = [
            b"".join(map(self._encoded.__getitem__, found[i : i + self._of_response]))
            for i in range(0, len(found), self._of_response)
        ]
        self.busy_s += time.process_time() - began
        yield from map(ReadRowsResponse.deserialize, parts)


class MeasuredGroup(Group):
    """A group with the CPU seconds of each of its firings, without those of its table."""

    def __init__(self, *given: Any, **how: Any) -> None:
        super().__init__(*given, **how)
        self.seconds: list[float] = []

    def _fire(self, schedule: Schedule, due: set[int]) -> None:
        began = time.process_time() - self.table.busy_s
        super()._fire(schedule, due)
        self.seconds.append(time.process_time() - self.table.busy_s - began)
