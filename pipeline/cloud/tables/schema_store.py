"""Stores a table's schema in the table itself: one row of TOML, in a family that is never collected.

Reading it needs the permission ``bigtable.tables.readRows``, and writing it ``bigtable.tables.mutateRows`` as well. All
functions use the emulator if BIGTABLE_EMULATOR_HOST is set, and raise
:class:`~pipeline.cloud.connection.errors.ServerError` if the server refuses or is out of reach.
"""

from typing import NamedTuple

from google.cloud.bigtable_v2.types import RowFilter

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader, row_filter
from pipeline.cloud.tables.compared_cell import ComparedCell
from pipeline.core.rows.rows import KeyRange, after_prefix
from pipeline.core.schema.changes import NOTHING_DECLARED, DeclaredSchema
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.table_schema import SCHEMA_FAMILY, SchemaError, TableSchema
from pipeline.core.schema.toml import format_schema, parse_schema

SCHEMA_KEY = b"schema#current"
IDS_KEY = b"schema#ids"
"""The row with ids of the table, each a column: a table that is created again lacks those of the one before."""

_OWN_ROWS = b"schema#"  # no sensor id and no key template may begin like this
_COLUMN = b"schema.toml"
_ANY_CELL = RowFilter(
    chain=RowFilter.Chain(filters=[RowFilter(cells_per_row_limit_filter=1), RowFilter(strip_value_transformer=True)])
)


class Stored(NamedTuple):
    """The schema that a table stores, and the text that it was parsed from."""

    text: bytes
    schema: TableSchema


def read_stored(name: TableName) -> Stored | None:
    """Returns the schema that the table stores, with its text; None if it stores none.

    Raises ServerError also for a schema that is not valid.
    """
    with RowReader.open(name) as reader:
        return _stored(reader)


def read_schema(name: TableName) -> TableSchema | None:
    """Returns the schema that the table stores; None if it stores none. Raises as :func:`read_stored` does."""
    stored = read_stored(name)
    return stored.schema if stored else None


def write_schema(name: TableName, schema: TableSchema, over: bytes | None = None) -> bool:
    """Stores the schema; see :func:`replace_text`. The table needs the family ``tidetable``."""
    return replace_text(name, over, text_of(schema))


def text_of(schema: TableSchema) -> bytes:
    """Returns the text that a table stores for the schema."""
    return format_schema(schema).encode()


def replace_text(name: TableName, before: bytes | None, after: bytes | None) -> bool:
    """Replaces the schema's text ``before`` by ``after``. None stands for no text.

    Returns False, without a change, if the table stores another text than ``before`` by now.
    """
    return _cell(name).replace(before, after)


def read_text_and_ids(reader: RowReader) -> tuple[bytes | None, frozenset[bytes]]:
    """Returns the text of the schema that a table stores, None if it stores none, and its ids. Sends one request."""
    keys = (KeyRange(key, key + b"\x00") for key in (SCHEMA_KEY, IDS_KEY))
    cells = row_filter(CellSelection((SCHEMA_FAMILY,), versions=1))
    rows = {row.key: row.cells for row in reader.read(keys, cells, limit=2)}
    text = next((cell.value for cell in rows.get(SCHEMA_KEY, ()) if cell.qualifier == _COLUMN), None)
    return text, frozenset(cell.qualifier for cell in rows.get(IDS_KEY, ()))


def has_rows(name: TableName) -> bool:
    """Returns whether the table has any row besides its own ``schema#`` rows. Reads two rows at most."""
    with RowReader.open(name) as reader:
        return _has_rows(reader)


def schema_of(name: TableName, declared: DeclaredSchema = NOTHING_DECLARED) -> TableSchema:
    """Returns the table's own schema, if the flags agree with it.

    For a table without rows and without a schema, returns the schema of the flags, or the default.

    Raises:
        ServerError: the flags differ from the table's schema, and the message lists the differences; or the table has
            rows but no schema, and ``--schema=default`` was not passed; or it does not exist.
    """
    with RowReader.open(name) as reader:
        return agreed_schema(reader, declared)


def agreed_schema(reader: RowReader, declared: DeclaredSchema = NOTHING_DECLARED) -> TableSchema:
    """Returns :func:`schema_of` the reader's table, over its connection."""
    name = reader.name
    stored = _stored(reader)
    if stored is None and not declared.default and _has_rows(reader):
        raise ServerError(
            f"table {name} has rows but stores no schema: if they were written with the default schema, store it: "
            f"{name.apply_command} (with --schema FILE for other families or windows); if another program wrote them, "
            "tidetable table adopt shows whether they fit"
        )
    try:
        if stored is None:
            return declared.schema()
        differences = list(declared.disagreements(stored.schema))
    except SchemaError as error:
        raise ServerError(f"table {name}: the flags declare an invalid schema: {error}") from error
    if differences:
        raise ServerError(
            f"table {name} has another schema than the flags: {'; '.join(differences)}; "
            "leave these flags out, as the table stores its schema, or name the table that they are meant for"
        )
    return stored.schema


def _cell(name: TableName) -> ComparedCell:
    return ComparedCell(name, SCHEMA_KEY, SCHEMA_FAMILY, _COLUMN)


def _stored(reader: RowReader) -> Stored | None:
    text = _cell(reader.name).read(reader)
    return None if text is None else Stored(text, parsed_text(reader.name, text))


def parsed_text(name: TableName, text: bytes) -> TableSchema:
    """Returns the schema of a text that a table stores. Raises ServerError if the text is not valid."""
    try:
        if not text.strip():
            raise SchemaError("schema", "it is empty")  # as TOML, it would be the default schema
        return parse_schema(text.decode())
    except (UnicodeDecodeError, SchemaError) as error:
        raise ServerError(
            f"table {name}: its row {SCHEMA_KEY.decode()} contains no valid schema: {error}; "
            "another version of tidetable may have written it"
        ) from error


def _has_rows(reader: RowReader) -> bool:
    around = KeyRange(b"", _OWN_ROWS), KeyRange(after_prefix(_OWN_ROWS), b"")
    return any(row for key_range in around for row in reader.read(key_range, _ANY_CELL, limit=1))
