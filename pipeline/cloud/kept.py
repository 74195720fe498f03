"""From when on a table's families have kept their cells, where that is later than their policies tell.

A policy that was shorter once has collected what it did not keep, and a longer one does not bring it back. So the table
holds, in the row ``schema#kept`` of the family ``tidetable``, a column for each such family: the time, in microseconds
since the epoch, from which on nothing of it was collected.
"""

import time
from collections.abc import Mapping

from google.cloud.bigtable_v2.types import Mutation

from pipeline.cloud.bigtable_client import bigtable_client
from pipeline.cloud.errors import explained
from pipeline.cloud.names import TableName
from pipeline.cloud.row_filters import row_filter
from pipeline.cloud.row_reader import RowReader
from pipeline.cloud.schema_store import SCHEMA_KEY
from pipeline.core.rows import prefix_range
from pipeline.core.schema.layouts import Wanted
from pipeline.core.schema.policies import Policy
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import SCHEMA_FAMILY, TableSchema

_OWN_ROWS = b"schema#"
_KEY = b"schema#kept"


def retention_of(name: TableName, schema: TableSchema, policies: Mapping[str, Policy]) -> Retention:
    """What of a table may be collected: by the policies that it has, and by those that it had as far as it tells.

    Args:
        name: of the table.
        schema: by which it is written. Its policies count where the table has stored it.
        policies: of its families, as they are.

    Raises:
        ServerProblem: the table is out of reach.
    """
    if SCHEMA_FAMILY not in policies:
        return Retention.of(schema, policies)
    with RowReader.open(name) as reader:
        rows = reader.read(prefix_range(_OWN_ROWS), row_filter(Wanted((SCHEMA_FAMILY,), versions=1)))
        cells = {row.key: row.cells for row in rows}
    stored = [schema.policies] if SCHEMA_KEY in cells else []
    since = {cell.qualifier.decode(): int(cell.value) for cell in cells.get(_KEY, [])}
    return Retention.of(schema, *stored, policies, since=since)


def note_lost(name: TableName, before: Retention, after: Retention) -> None:
    """Notes from when on families keep their cells, where a policy becomes longer. The table has the family tidetable.

    Args:
        name: of the table.
        before: what may be collected by now.
        after: what that would be by the policies to come alone.

    Raises:
        ServerProblem: the table is out of reach, or may not be written.
    """
    lost = before.lost_by(after, time.time_ns() // 1000)
    if not lost:
        return
    mutations = [
        Mutation(
            set_cell={
                "family_name": SCHEMA_FAMILY,
                "column_qualifier": family.encode(),
                "timestamp_micros": 0,  # one cell for ever
                "value": str(time_us).encode(),
            }
        )
        for family, time_us in lost.items()
    ]
    with explained(f"table {name}"), bigtable_client(name.project) as client:
        client.mutate_row(request={"table_name": str(name), "row_key": _KEY, "mutations": mutations})
