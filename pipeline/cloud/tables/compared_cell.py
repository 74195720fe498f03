"""A cell that is replaced only if it is still the one that was read: for the table's own rows, which several write.

All functions raise :class:`~pipeline.cloud.connection.errors.ServerError` if the server refuses or is out of reach.
"""

from typing import NamedTuple

from google.api_core.exceptions import FailedPrecondition
from google.cloud.bigtable_v2.types import Mutation, RowFilter, TimestampRange, ValueRange

from pipeline.cloud.connection.bigtable_client import bigtable_client
from pipeline.cloud.connection.errors import explained
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader, row_filter
from pipeline.core.rows.rows import Cell, KeyRange, after_prefix
from pipeline.core.schema.layouts import CellSelection

_MILLISECOND_US = 1000  # the granularity of timestamps
_MAX_COMPARED = 9000  # bytes: the filter contains the value twice, and Bigtable accepts filters of up to 20,480 bytes


class ComparedCell(NamedTuple):
    """The newest cell of a column in one row."""

    name: TableName
    key: bytes
    family: str
    column: bytes

    def read(self, reader: RowReader) -> bytes | None:
        """Returns the cell's value; None if there is no cell."""
        cell = self.cell(reader)
        return cell.value if cell else None

    def cell(self, reader: RowReader) -> Cell | None:
        """Returns the cell with its timestamp; None if there is none."""
        row = next(reader.read(KeyRange(self.key, self.key + b"\x00"), self._filter(), limit=1), None)
        return row.cells[0] if row else None

    def replace(
        self,
        before: bytes | None,
        after: bytes | None,
        timestamp_us: int = 0,
        patience_s: float | None = None,
        before_us: int | None = None,
    ) -> bool:
        """Replaces the value ``before`` by ``after``, and removes every other version. None stands for no cell.

        Args:
            before: the value that was read.
            after: the new value.
            timestamp_us: the new cell's timestamp. If it is always the same, a later write replaces the cell whatever
                the clocks show.
            patience_s: the seconds that each of two requests waits for an unreachable server; None as for any other.
            before_us: the timestamp that was read, where each writer chooses another; None to compare values only.

        Returns:
            False, without a change, if the cell has another value or timestamp by now.
        """
        column = {"family_name": self.family, "column_qualifier": self.column}
        # Delete first, in the same step: a cell written with cbt has the current time and would hide this one.
        mutations = [Mutation(delete_from_column=column)]
        if after is not None:
            mutations.append(Mutation(set_cell={**column, "timestamp_micros": timestamp_us, "value": after}))
        branch = "false_mutations" if before is None else "true_mutations"
        request = {**self.name.target, "row_key": self.key}
        compared = {"predicate_filter": self._filter(before, before_us), branch: mutations}
        timeout = {} if patience_s is None else {"timeout": patience_s}
        with explained(self.name), bigtable_client() as client:
            if self.read(RowReader(client, self.name, patience_s)) != before:
                return False
            try:
                response = client.check_and_mutate_row(request={**request, **compared}, **timeout)
            except FailedPrecondition:
                # The instance's app profile routes to several clusters, which have no atomic check-and-mutate: the
                # comparison above has to suffice.
                client.mutate_row(request={**request, "mutations": mutations}, **timeout)
                return True
            return bool(response.predicate_matched) is (before is not None)

    def _filter(self, value: bytes | None = None, time_us: int | None = None) -> RowFilter:
        """Returns a filter that passes the cell; with a value or a time, only if it has both.

        Compares the first 9,000 bytes of a value.
        """
        newest = row_filter(CellSelection((self.family,), (self.column,), versions=1))
        if value is None:
            return newest
        filters = [newest]
        if time_us is not None:
            times = TimestampRange(start_timestamp_micros=time_us, end_timestamp_micros=time_us + _MILLISECOND_US)
            filters.append(RowFilter(timestamp_range_filter=times))
        if len(value) <= _MAX_COMPARED:
            same = ValueRange(start_value_closed=value, end_value_closed=value)
        else:
            begin = value[:_MAX_COMPARED]
            same = ValueRange(start_value_closed=begin, end_value_open=after_prefix(begin))
        return RowFilter(chain=RowFilter.Chain(filters=[*filters, RowFilter(value_range_filter=same)]))
