"""Writes raw rows, and passes on their readings once the server has confirmed the rows."""

import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms.window import GlobalWindow
from apache_beam.typehints import KV
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue
from google.cloud.bigtable_v2.types import MutateRowsRequest

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables.table_guard import TableGuard
from pipeline.core.panes.grouped_readings import RawRows, Unconfirmed, kind_of
from pipeline.core.rows.rows import Cell, EncodedRow, Row
from pipeline.core.schema.table_schema import TableSchema
from pipeline.private_apis.bigtable_writer import ConnectorWriteFn
from pipeline.transforms import coders  # noqa: F401 (registers the coder of raw rows)
from pipeline.transforms.bulk import BulkWriteFn, Clock
from pipeline.transforms.write import CELLS_PER_REQUEST

_DEAD_LETTERS = "dead_letters"
_GLOBAL = (GlobalWindow(),)

_EntryMessage = MutateRowsRequest.Entry.pb()  # the plain protobuf class


class Written(NamedTuple):
    """The outputs of writing raw rows.

    Attributes:
        readings: ``(group, readings)`` of one of the shortest windows, with a timestamp within it, in the encoding of
            :mod:`pipeline.core.panes.grouped_readings`.
        dead_letters: ``Message`` elements of refused rows; None if the writer has none.
    """

    readings: PCollection
    dead_letters: PCollection | None = None


class WriteRawRows(beam.PTransform):
    """Writes ``RawRows`` elements to a table. Outputs :class:`Written`.

    Readings are passed on after the server has confirmed the rows of their events. The readings of refused rows are not
    passed on. A bundle that fails passes on nothing, and the runner tries it again.

    Args:
        name: the table.
        schema: the table's schema.
        guard: the table as it was at the job's launch; None for any table.
        bulk: whether the bulk writer writes, and not Beam's connector.
        clock: the function that returns seconds since the epoch, for dead letters.
    """

    def __init__(
        self,
        name: TableName,
        schema: TableSchema,
        guard: TableGuard | None = None,
        *,
        bulk: bool = False,
        clock: Clock = time.time,
    ) -> None:
        super().__init__()
        self._name = name
        self._schema = schema
        self._guard = guard
        self._bulk = bulk
        self._clock = clock

    def expand(self, raw: PCollection) -> Any:  # Written, which Beam would take for a type hint
        if not self._bulk:
            writer = ConnectorWriteFn(self._name, CELLS_PER_REQUEST, self._guard)
            write = beam.ParDo(_WriteRawFn(writer, self._schema)).with_output_types(KV[int, bytes])
            return Written(raw | "WriteToBigTable" >> write)
        bulk_writer = BulkWriteFn(self._name, self.label, guard=self._guard, clock=self._clock)
        write = beam.ParDo(_WriteRawFn(bulk_writer, self._schema)).with_outputs(_DEAD_LETTERS, main="readings")
        written = raw | "MutateRows" >> write
        written.readings.element_type = KV[int, bytes]
        return Written(written.readings, written[_DEAD_LETTERS])


class _WriteRawFn(beam.DoFn):
    """Writes with another DoFn, which confirms its rows at the end of a bundle. A long bundle is confirmed in parts."""

    def __init__(self, writer: ConnectorWriteFn | BulkWriteFn, schema: TableSchema) -> None:
        self._writer = writer
        self._schema, self._kind = schema, kind_of(schema)

    def display_data(self) -> dict[str, Any]:
        return self._writer.display_data()

    @property
    def guard(self) -> TableGuard | None:
        return self._writer.guard

    def setup(self) -> None:
        self._writer.setup()

    def start_bundle(self) -> None:
        self._unconfirmed = Unconfirmed(self._schema, self._kind, _row_of)
        self._writer.start_bundle()

    def process(self, element: RawRows) -> Iterable[Any]:
        letters = [TaggedOutput(_DEAD_LETTERS, letter) for letter in self._writer.process(element.rows)]
        if not self._unconfirmed.add(element):
            return letters
        confirmed = list(self._confirmed())
        self._writer.start_bundle()
        return [*letters, *confirmed]

    def finish_bundle(self) -> Iterator[Any]:
        return self._confirmed()

    def _confirmed(self) -> Iterator[Any]:
        """Yields dead letters and readings once all rows are confirmed or refused."""
        for letter in self._writer.finish_bundle():
            yield TaggedOutput(_DEAD_LETTERS, letter)
        for part in self._unconfirmed.confirm(self._writer.refused):
            yield WindowedValue((part.group, part.data), Timestamp(micros=part.time_us), _GLOBAL)

    def teardown(self) -> None:
        self._writer.teardown()


def _row_of(row: EncodedRow) -> Row:
    cells = [each.set_cell for each in _EntryMessage.FromString(row.mutations).mutations]
    return Row(
        row.key, [Cell(each.family_name, each.column_qualifier, each.timestamp_micros, each.value) for each in cells]
    )
