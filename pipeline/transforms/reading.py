"""Steps that read tables while they process their elements."""

from collections.abc import Iterable
from contextlib import ExitStack

import apache_beam as beam

from pipeline.cloud.names import TableName
from pipeline.cloud.reader import SensorTable
from pipeline.core.schema.table_schema import TableSchema

# As long as Beam's connector tries to write: a table that is away for a while is waited for.
_PATIENCE_S = 600.0


class ReadingFn(beam.DoFn):
    """Has connections to tables, from the first element on that asks for them.

    What is left out of a window would be missing in its aggregate: a foreign row raises ForeignRowProblem.
    """

    def __init__(self, tables: Iterable[tuple[TableName, TableSchema]]) -> None:
        self._names = tuple(tables)

    def setup(self) -> None:
        self._connections = ExitStack()
        self._opened: list[SensorTable] = []

    def teardown(self) -> None:
        self._connections.close()

    @property
    def _tables(self) -> list[SensorTable]:
        """In the order in which they were named."""
        if not self._opened:
            opened = (SensorTable.of_schema(name, schema, _PATIENCE_S, strict=True) for name, schema in self._names)
            self._opened = [self._connections.enter_context(each) for each in opened]
        return self._opened
