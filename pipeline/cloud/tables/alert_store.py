"""Stores the rules of a table's alerts in the table itself: one row of TOML, beside the schema's, and one of mutes.

A column of the row of mutes is a rule's name, or the name, ``#`` and a sensor. Its value is the time in µs until which
messages wait.

All functions raise :class:`~pipeline.cloud.connection.errors.ServerError` if the server refuses or is out of reach.
"""

import time

from google.cloud.bigtable_v2.types import Mutation

from pipeline.cloud.connection.bigtable_client import bigtable_client
from pipeline.cloud.connection.errors import ServerError, explained
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables import tables
from pipeline.cloud.tables.compared_cell import ComparedCell
from pipeline.core.alerts.alert_rows import FAMILY
from pipeline.core.alerts.rule_set import RuleSet
from pipeline.core.alerts.rules import RulesError, parse_rules
from pipeline.core.queries.reads import RowSelection
from pipeline.core.rows.rows import KeyRange
from pipeline.core.schema.gc_policies import parse_policy
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.table_schema import SCHEMA_FAMILY, TableSchema

RULES_KEY, MUTES_KEY = b"schema#alerts", b"schema#mutes"

_COLUMN = b"rules.toml"
_BOTH = RowSelection(
    tuple(KeyRange(key, key + b"\x00") for key in (RULES_KEY, MUTES_KEY)),
    CellSelection((SCHEMA_FAMILY,), versions=1),
    page_rows=2,
)
_POLICY = parse_policy("maxage=730d")
_CELL_US = 1000  # the granularity of timestamps
_ATTEMPTS = 5


def read_rules_text(reader: RowReader) -> str:
    """Returns the rules that the table stores, as TOML; empty if it stores none."""
    return _text(_cell(reader.name).read(reader))


def read_rules(reader: RowReader, schema: TableSchema) -> RuleSet:
    """Returns the rules that the table stores. Raises ServerError too if they do not fit the schema."""
    cells = {(row.key, cell.qualifier): cell for row in reader.read_selection(_BOTH) for cell in row.cells}
    cell = cells.get((RULES_KEY, _COLUMN))
    try:
        rules = parse_rules(_text(cell.value if cell else None), RULES_KEY.decode(), schema)
    except RulesError as error:
        raise ServerError(f"table {reader.name}: {error.problems[0]}; apply rules that fit its schema") from error
    mutes = dict[tuple[str, str], int]()
    for (key, column), muted in cells.items():
        if key == MUTES_KEY and muted.value.isdigit():
            rule, _, sensor_id = column.decode(errors="backslashreplace").partition("#")
            mutes[rule, sensor_id] = int(muted.value)
    return RuleSet(rules, cell.timestamp_us if cell else 0, mutes)


def mute(name: TableName, rule: str, sensor_id: str, until_us: int) -> None:
    """Mutes a rule until a time, for one sensor, or for all if the sensor is empty. A time in the past unmutes it."""
    column = f"{rule}#{sensor_id}" if sensor_id else rule
    cell = {"family_name": SCHEMA_FAMILY, "column_qualifier": column.encode()}
    mutations = [Mutation(delete_from_column=cell)]
    if until_us > time.time_ns() // 1000:
        at_us = time.time_ns() // 1_000_000 * 1000
        mutations += [Mutation(set_cell={**cell, "timestamp_micros": at_us, "value": str(until_us).encode()})]
    with explained(name), bigtable_client() as client:
        client.mutate_row(request={**name.target, "row_key": MUTES_KEY, "mutations": mutations})


def write_rules_text(name: TableName, text: str) -> None:
    """Stores rules in place of the table's rules. Their cell has a greater timestamp than the cell before."""
    cell = _cell(name)
    for _ in range(_ATTEMPTS):
        with RowReader.open(name) as reader:
            before = cell.cell(reader)
        after_us = time.time_ns() // 1_000_000 * 1000
        if before is None:
            stored = cell.replace(None, text.encode(), after_us)
        else:
            after_us = max(after_us, before.timestamp_us + _CELL_US)
            stored = cell.replace(before.value, text.encode(), after_us, before_us=before.timestamp_us)
        if stored:
            return
    raise ServerError(f"table {name}: its rules are being stored by others at the same time; try again")


def _cell(name: TableName) -> ComparedCell:
    return ComparedCell(name, RULES_KEY, SCHEMA_FAMILY, _COLUMN)


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="backslashreplace")


def add_families(name: TableName, schema: TableSchema) -> bool:
    """Adds the family of alerts to a table without one. Returns whether it did.

    Raises:
        ServerError: the schema uses that family for something else, or the table stores no schema.
    """
    if FAMILY in schema.families:
        raise ServerError(f"table {name}: its schema uses the family {FAMILY}, which alerts need, for something else")
    present = tables.describe(name)
    if SCHEMA_FAMILY not in present:
        raise ServerError(f"table {name} stores no schema, and so no rules; store it first: {name.apply_command}")
    if FAMILY in present:
        return False
    tables.apply(name, [tables.Difference(FAMILY, None, _POLICY)])
    return True
