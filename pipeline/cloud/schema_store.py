"""A table's schema, kept in the table itself: one row, of TOML, in a family that is never collected.

Reading it takes ``bigtable.tables.readRows``, writing it ``bigtable.tables.mutateRows`` as well, and neither any other
permission. All functions work on the emulator where BIGTABLE_EMULATOR_HOST says so, and raise
:class:`~pipeline.cloud.errors.ServerProblem` for what the server refuses or when it is out of reach.
"""

from typing import NamedTuple

from google.api_core.exceptions import FailedPrecondition
from google.cloud.bigtable_v2.types import Mutation, RowFilter, ValueRange

from pipeline.cloud.bigtable_client import bigtable_client
from pipeline.cloud.errors import ServerProblem, explained
from pipeline.cloud.names import TableName
from pipeline.cloud.row_reader import RowReader
from pipeline.core.rows import KeyRange, after_prefix
from pipeline.core.schema.declared import DeclaredSchema
from pipeline.core.schema.table_schema import SCHEMA_FAMILY, SchemaError, TableSchema
from pipeline.core.schema.toml import format_schema, parse_schema

SCHEMA_KEY = b"schema#current"

_OWN_ROWS = b"schema#"  # no sensor and no key template may begin so
_COLUMN = b"schema.toml"
_MOST_COMPARED = 9000  # bytes: a filter has the text twice, and Bigtable takes filters of at most 20,480 bytes
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


class Stored(NamedTuple):
    """What a table has of itself: the schema, and the very text that was read as it."""

    text: bytes
    schema: TableSchema


def read_stored(name: TableName) -> Stored | None:
    """What the table has of itself; None where it has nothing.

    Raises:
        ServerProblem: there is no such table; or what it has is not read as a schema, in one line.
    """
    with RowReader.open(name) as reader:
        return _stored(reader)


def read_schema(name: TableName) -> TableSchema | None:
    """The schema that the table has of itself; None where it has none. Raises as :func:`read_stored` does."""
    stored = read_stored(name)
    return stored.schema if stored else None


def write_schema(name: TableName, schema: TableSchema, over: bytes | None = None) -> bool:
    """Stores the schema; see :func:`replace_text`. The table needs the family ``tidetable``."""
    return replace_text(name, over, text_of(schema))


def text_of(schema: TableSchema) -> bytes:
    """What is stored of it."""
    return format_schema(schema).encode()


def replace_text(name: TableName, before: bytes | None, after: bytes | None) -> bool:
    """Stores a schema's text in place of the one that was read, and of no other. None: there is none.

    Returns:
        False where the table has another text by now than ``before``: nothing was changed.
    """
    column = {"family_name": SCHEMA_FAMILY, "column_qualifier": _COLUMN}
    # In this order, in one step: what cbt set there has the time of day, and would hide the cell.
    mutations = [Mutation(delete_from_column=column)]
    if after is not None:
        mutations.append(Mutation(set_cell={**column, "timestamp_micros": _TIMESTAMP_US, "value": after}))
    predicate, branch = (_SCHEMA_CELL, "false_mutations") if before is None else (_holding(before), "true_mutations")
    row = {"table_name": str(name), "row_key": SCHEMA_KEY}
    with explained(f"table {name}"), bigtable_client(name.project) as client:
        if _text(RowReader(client, name)) != before:
            return False
        try:
            answer = client.check_and_mutate_row(request={**row, "predicate_filter": predicate, branch: mutations})
        except FailedPrecondition:
            # The instance's app profile routes to several clusters, where no step is one for all of them: what was
            # compared above is the best there is.
            client.mutate_row(request={**row, "mutations": mutations})
            return True
        return bool(answer.predicate_matched) is (before is not None)


def has_rows(name: TableName) -> bool:
    """Whether the table has any row besides its own ``schema#`` rows. Reads two rows at most."""
    with RowReader.open(name) as reader:
        return _has_rows(reader)


def schema_of(name: TableName, declared: DeclaredSchema) -> TableSchema:
    """The schema to write and read the table by: its own, where what flags say agrees with it.

    A table without a row, and without a schema of its own, may be anything: it is what flags say, or the default.

    Raises:
        ServerProblem: the table has another schema than flags say, and the message tells each difference; or it has
            rows and no schema, and nobody said ``--schema=default``; or there is no such table.
    """
    with RowReader.open(name) as reader:
        return agreed_schema(reader, declared)


def agreed_schema(reader: RowReader, declared: DeclaredSchema) -> TableSchema:
    """:func:`schema_of` the table that the reader reads, over its connection."""
    name = reader.name
    stored = _stored(reader)
    if stored is None and not declared.default and _has_rows(reader):
        raise ServerProblem(
            f"table {name} has rows and does not say by which schema they were written: if it was the default "
            f"one, say --schema=default, or store it for good: tidetable table create {_flags(name)} --apply "
            "(with --schema FILE for other families or windows); if another program wrote them, tidetable table adopt "
            "tells whether they fit"
        )
    try:
        if stored is None:
            return declared.schema()
        differences = list(declared.disagreements(stored.schema))
    except SchemaError as error:
        raise ServerProblem(f"table {name}: the flags say no schema that can be: {error}") from error
    if differences:
        raise ServerProblem(
            f"table {name} has another schema than the flags say: {'; '.join(differences)}; "
            "leave these flags out, as the table says it itself, or take the table that they are for"
        )
    return stored.schema


def _text(reader: RowReader) -> bytes | None:
    row = next(reader.read(KeyRange(SCHEMA_KEY, SCHEMA_KEY + b"\x00"), _SCHEMA_CELL, limit=1), None)
    return row.cells[0].value if row else None


def _stored(reader: RowReader) -> Stored | None:
    text = _text(reader)
    if text is None:
        return None
    try:
        if not text.strip():
            raise SchemaError("schema", "it is empty")  # as TOML, it would say the default one
        return Stored(text, parse_schema(text.decode()))
    except (UnicodeDecodeError, SchemaError) as error:
        raise ServerProblem(
            f"table {reader.name}: what its row {SCHEMA_KEY.decode()} holds is not read as a schema: {error}; "
            "another version of tidetable may have written it"
        ) from error


def _holding(text: bytes) -> RowFilter:
    """Passes the schema's cell if it holds this text, as far as a filter can tell."""
    if len(text) <= _MOST_COMPARED:
        same = ValueRange(start_value_closed=text, end_value_closed=text)
    else:
        begin = text[:_MOST_COMPARED]
        same = ValueRange(start_value_closed=begin, end_value_open=after_prefix(begin))
    return RowFilter(chain=RowFilter.Chain(filters=[_SCHEMA_CELL, RowFilter(value_range_filter=same)]))


def _has_rows(reader: RowReader) -> bool:
    around = KeyRange(b"", _OWN_ROWS), KeyRange(after_prefix(_OWN_ROWS), b"")
    return any(row for key_range in around for row in reader.read(key_range, _ANY_CELL, limit=1))


def _flags(name: TableName) -> str:
    return f"--project {name.project} --instance {name.instance} --table {name.table}"
