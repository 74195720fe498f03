"""Stores the rules of a table's alerts in the table itself: one row of TOML, beside the schema's.

All functions raise :class:`~pipeline.cloud.connection.errors.ServerProblem` if the server refuses or is out of reach.
"""

import time

from google.api_core.exceptions import FailedPrecondition
from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2.types import Mutation, RowFilter, TimestampRange

from pipeline.cloud.connection.bigtable_client import bigtable_client
from pipeline.cloud.connection.errors import ServerProblem, explained
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables import tables
from pipeline.core.alerts.alert_rows import FAMILY
from pipeline.core.alerts.rule_set import RuleSet
from pipeline.core.alerts.rules import RulesError, parse_rules
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
_CELL_US = 1000  # the granularity of timestamps
_ATTEMPTS = 5


def read_rules_text(reader: RowReader) -> str:
    """Returns the rules that the table stores, as TOML; empty if it stores none."""
    return _stored(reader)[0]


def read_rules(reader: RowReader, schema: TableSchema) -> RuleSet:
    """Returns the rules that the table stores. Raises ServerProblem too if they do not fit the schema."""
    text, number = _stored(reader)
    try:
        return RuleSet(parse_rules(text, RULES_KEY.decode(), schema), number)
    except RulesError as error:
        raise ServerProblem(f"table {reader.name}: {error.problems[0]}; apply rules that fit its schema") from error


def write_rules_text(name: TableName, text: str) -> None:
    """Stores rules in place of those that the table has. Their cell has a greater timestamp than the one before."""
    with explained(name), bigtable_client() as client:
        for _ in range(_ATTEMPTS):
            if _replace(client, RowReader(client, name), text):
                return
    raise ServerProblem(f"table {name}: its rules are being stored by others at the same time; try again")


def _replace(client: BigtableClient, reader: RowReader, text: str) -> bool:
    """Stores rules, if nobody else does meanwhile."""
    row = next(reader.read_selection(_SELECTION), None)
    before_us = row.cells[0].timestamp_us if row else -_CELL_US
    after_us = max(time.time_ns() // 1_000_000 * 1000, before_us + _CELL_US)
    column = {"family_name": SCHEMA_FAMILY, "column_qualifier": _COLUMN}
    mutations = [
        Mutation(delete_from_column=column),
        Mutation(set_cell={**column, "timestamp_micros": after_us, "value": text.encode()}),
    ]
    same = _cell_filter(before_us if row else None)
    request = {**reader.name.target, "row_key": RULES_KEY}
    branch = "true_mutations" if row else "false_mutations"
    try:
        response = client.check_and_mutate_row(request={**request, "predicate_filter": same, branch: mutations})
    except FailedPrecondition:  # several clusters have no atomic check-and-mutate: the comparison above has to suffice
        client.mutate_row(request={**request, "mutations": mutations})
        return True
    return bool(response.predicate_matched) is (row is not None)


def _cell_filter(time_us: int | None) -> RowFilter:
    """Returns a filter that passes the cell of the rules, if it has this timestamp; with None, any."""
    filters = [
        RowFilter(family_name_regex_filter=SCHEMA_FAMILY),
        RowFilter(column_qualifier_regex_filter=_COLUMN.replace(b".", rb"\.")),
    ]
    if time_us is not None:
        times = TimestampRange(start_timestamp_micros=time_us, end_timestamp_micros=time_us + _CELL_US)
        filters.append(RowFilter(timestamp_range_filter=times))
    return RowFilter(chain=RowFilter.Chain(filters=filters))


def _stored(reader: RowReader) -> tuple[str, int]:
    """Returns the text of the rules, and their number: the cell's timestamp."""
    row = next(reader.read_selection(_SELECTION), None)
    return (row.cells[0].value.decode(errors="backslashreplace"), row.cells[0].timestamp_us) if row else ("", 0)


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
