"""A step that reads a table while it processes its elements."""

from contextlib import ExitStack

import apache_beam as beam

from pipeline.cloud.names import TableName
from pipeline.cloud.reader import SensorTable
from pipeline.core.schema.table_schema import TableSchema

# As long as Beam's connector tries to write: a table that is away for a while is waited for.
_PATIENCE_S = 600.0


class ReadingFn(beam.DoFn):
    """Has a connection to the table, from the first element on that asks for it."""

    def __init__(self, name: TableName, schema: TableSchema) -> None:
        self._name = name
        self._schema = schema

    def setup(self) -> None:
        self._connections = ExitStack()
        self._opened: SensorTable | None = None

    def teardown(self) -> None:
        self._connections.close()

    @property
    def _table(self) -> SensorTable:
        if self._opened is None:
            opened = SensorTable.of_schema(self._name, self._schema, _PATIENCE_S)
            self._opened = self._connections.enter_context(opened)
        return self._opened
