"""Stores the rules of a table's alerts in the table itself: one row of TOML, beside the schema's.

All functions raise :class:`~pipeline.cloud.connection.errors.ServerProblem` if the server refuses or is out of reach.
"""

from google.cloud.bigtable_v2.types import Mutation

from pipeline.cloud.connection.bigtable_client import bigtable_client
from pipeline.cloud.connection.errors import ServerProblem, explained
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables import tables
from pipeline.core.alerts.alert_rows import FAMILY
from pipeline.core.alerts.rules import Rule, RulesError, parse_rules
from pipeline.core.queries.seeks import RowSelection
from pipeline.core.rows.rows import KeyRange
from pipeline.core.schema.gc_policies import parse_policy
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.table_schema import SCHEMA_FAMILY, TableSchema

RULES_KEY = b"schema#alerts"

_COLUMN = b"rules.toml"
_SELECTION = RowSelection(
    KeyRange(RULES_KEY, RULES_KEY + b"\x00"), CellSelection((SCHEMA_FAMILY,), (_COLUMN,), versions=1), page_rows=1
)
_POLICY = parse_policy("maxage=730d")


def read_rules_text(reader: RowReader) -> str:
    """Returns the rules that the table stores, as TOML; empty if it stores none."""
    row = next(reader.read_selection(_SELECTION), None)
    return row.cells[0].value.decode(errors="backslashreplace") if row else ""


def read_rules(reader: RowReader, schema: TableSchema) -> tuple[Rule, ...]:
    """Returns the rules that the table stores. Raises ServerProblem too if they do not fit the schema."""
    try:
        return parse_rules(read_rules_text(reader), RULES_KEY.decode(), schema)
    except RulesError as error:
        raise ServerProblem(f"table {reader.name}: {error.problems[0]}; apply rules that fit its schema") from error


def write_rules_text(name: TableName, text: str) -> None:
    """Stores rules in place of those that the table has."""
    column = {"family_name": SCHEMA_FAMILY, "column_qualifier": _COLUMN}
    # Delete first, in the same step: always the same cell, whatever the clocks show.
    mutations = [Mutation(delete_from_column=column)]
    if text.strip():
        mutations.append(Mutation(set_cell={**column, "timestamp_micros": 0, "value": text.encode()}))
    with explained(name), bigtable_client() as client:
        client.mutate_row(request={**name.target, "row_key": RULES_KEY, "mutations": mutations})


def add_families(name: TableName, schema: TableSchema) -> bool:
    """Adds the family of alerts to a table without one. Returns whether it did.

    Raises:
        ServerProblem: the schema uses that family for something else, or the table stores no schema.
    """
    if FAMILY in schema.families:
        raise ServerProblem(f"table {name}: its schema uses the family {FAMILY}, which alerts need, for something else")
    present = tables.describe(name)
    if SCHEMA_FAMILY not in present:
        raise ServerProblem(
            f"table {name} stores no schema, and so no rules; store it first: {name.create_command} --apply"
        )
    if FAMILY in present:
        return False
    tables.apply(name, [tables.Difference(FAMILY, None, _POLICY)])
    return True
