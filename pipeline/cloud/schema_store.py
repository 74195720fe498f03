"""A table's schema, kept in the table itself: one row, of TOML, in a family that is never collected.

Reading it takes ``bigtable.tables.readRows``, writing it ``bigtable.tables.mutateRows``, and neither any other
permission. All functions work on the emulator where BIGTABLE_EMULATOR_HOST says so, and raise
:class:`~pipeline.cloud.errors.ServerProblem` for what the server refuses or when it is out of reach.
"""

from google.cloud.bigtable.data import BigtableDataClient
from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2.types import Mutation, RowFilter

from pipeline.cloud.errors import ServerProblem, explained
from pipeline.cloud.names import TableName
from pipeline.cloud.row_reader import RowReader
from pipeline.core.rows import KeyRange, after_prefix
from pipeline.core.schema.agreement import Said
from pipeline.core.schema.table_schema import SCHEMA_FAMILY, SchemaError, TableSchema
from pipeline.core.schema.toml import format_schema, parse_schema

SCHEMA_KEY = b"schema#current"

_OWN_ROWS = b"schema#"  # no sensor and no key template may begin so
_COLUMN = b"schema.toml"
_TIMESTAMP_US = 0  # one cell for ever: whoever writes the schema later replaces it, whatever the clocks say

_SCHEMA_CELL = RowFilter(
    chain=RowFilter.Chain(
        filters=[
            RowFilter(family_name_regex_filter=SCHEMA_FAMILY),
            RowFilter(column_qualifier_regex_filter=_COLUMN.replace(b".", rb"\.")),
            RowFilter(cells_per_column_limit_filter=1),
        ]
    )
)
_ANY_CELL = RowFilter(
    chain=RowFilter.Chain(filters=[RowFilter(cells_per_row_limit_filter=1), RowFilter(strip_value_transformer=True)])
)


def read_schema(name: TableName) -> TableSchema | None:
    """The schema that the table has of itself; None where it has none.

    Raises:
        ServerProblem: there is no such table; or what it has is not read as a schema, in one line.
    """
    with RowReader.open(name) as reader:
        return _stored(reader)


def write_schema(name: TableName, schema: TableSchema) -> None:
    """Stores the schema in place of the one that is there. The table needs the family ``tidetable``."""
    column = {"family_name": SCHEMA_FAMILY, "column_qualifier": _COLUMN}
    cell = {**column, "timestamp_micros": _TIMESTAMP_US, "value": format_schema(schema).encode()}
    # In this order, in one step: what cbt set there has the time of day, and would hide the cell.
    mutations = [Mutation(delete_from_column=column), Mutation(set_cell=cell)]
    # As RowReader does: the client that Google's "data" client is built on, over its connection.
    with explained(f"table {name}"), BigtableDataClient(project=name.project) as connection:
        BigtableClient(transport=connection.transport).mutate_row(
            table_name=str(name), row_key=SCHEMA_KEY, mutations=mutations
        )


def has_rows(name: TableName) -> bool:
    """Whether the table has any row besides its own ``schema#`` rows. Reads two rows at most."""
    with RowReader.open(name) as reader:
        return _has_rows(reader)


def schema_of(name: TableName, said: Said) -> TableSchema:
    """The schema to write and read the table by: its own, where what flags say agrees with it.

    A table without a row, and without a schema of its own, may be anything: it is what flags say, or the default.

    Raises:
        ServerProblem: the table has another schema than flags say, and the message tells each difference; or it has
            rows and no schema, and nobody said ``--schema=default``; or there is no such table.
    """
    with RowReader.open(name) as reader:
        return agreed_schema(reader, said)


def agreed_schema(reader: RowReader, said: Said) -> TableSchema:
    """:func:`schema_of` the table that the reader reads, over its connection."""
    name = reader.name
    schema = _stored(reader)
    if schema is None and not said.default and _has_rows(reader):
        raise ServerProblem(
            f"table {name} has rows and does not say by which schema they were written: if it was the default "
            f"one, say --schema=default, or store it for good: tidetable table create {_flags(name)} --apply "
            "(with --schema FILE for other families or windows); if it was none of Tidetable's, take another table"
        )
    try:
        if schema is None:
            return said.schema()
        differences = list(said.disagreements(schema))
    except SchemaError as error:
        raise ServerProblem(f"table {name}: the flags say no schema that can be: {error}") from error
    if differences:
        raise ServerProblem(
            f"table {name} has another schema than the flags say: {'; '.join(differences)}; "
            "leave these flags out, as the table says it itself, or take the table that they are for"
        )
    return schema


def _stored(reader: RowReader) -> TableSchema | None:
    row = next(reader.read(KeyRange(SCHEMA_KEY, SCHEMA_KEY + b"\x00"), _SCHEMA_CELL, limit=1), None)
    if row is None:
        return None
    try:
        return parse_schema(row.cells[0].value.decode())
    except (UnicodeDecodeError, SchemaError) as error:
        raise ServerProblem(
            f"table {reader.name}: what its row {SCHEMA_KEY.decode()} holds is not read as a schema: {error}; "
            "another version of tidetable may have written it"
        ) from error


def _has_rows(reader: RowReader) -> bool:
    around = KeyRange(b"", _OWN_ROWS), KeyRange(after_prefix(_OWN_ROWS), b"")
    return any(row for key_range in around for row in reader.read(key_range, _ANY_CELL, limit=1))


def _flags(name: TableName) -> str:
    return f"--project {name.project} --instance {name.instance} --table {name.table}"
