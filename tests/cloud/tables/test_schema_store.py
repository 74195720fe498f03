import uuid

import pytest
from google.api_core.exceptions import FailedPrecondition
from google.cloud import bigtable
from google.cloud.bigtable_v2 import BigtableClient

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables import tables
from pipeline.cloud.tables.compared_cell import ComparedCell
from pipeline.cloud.tables.schema_store import (
    SCHEMA_KEY,
    has_rows,
    read_schema,
    read_stored,
    replace_text,
    schema_of,
    text_of,
    write_schema,
)
from pipeline.core.rows.rows import Cell, KeyRange, Row
from pipeline.core.schema.changes import DeclaredSchema
from pipeline.core.schema.gc_policies import Never
from pipeline.core.schema.table_schema import SCHEMA_FAMILY, TableSchema
from pipeline.core.schema.toml import format_schema, parse_schema
from pipeline.core.windows import Window
from tests.support.tables import unused_name

DEFAULT = TableSchema.default()
TALL = parse_schema('layout = "tall"\nkey = "{sensor_id}#{metric}#{reverse_us}"')
OTHERS = parse_schema('[metrics]\nr = ["*"]\n[metadata]\nm = ["*"]\n[tiers]\n15m = "s"')


@pytest.fixture
def name(bigtable: str) -> TableName:
    """An empty table with the families of raw rows and of the schema."""
    name = unused_name()
    tables.create_bare(name, {"raw": Never(), SCHEMA_FAMILY: Never()})
    return name


def write(name: TableName, key: bytes, family: str = "raw", column: bytes = b"c", value: bytes = b"1") -> None:
    """Writes a cell as cbt does, with the present as its timestamp."""
    row = bigtable.Client(project=name.project).instance(name.instance).table(name.table).direct_row(key)
    row.set_cell(family, column, value)
    assert row.commit().code == 0


def rows(name: TableName) -> list[Row]:
    with RowReader.open(name) as reader:
        return list(reader.read(KeyRange(b"", b"")))


def test_the_schema_is_one_cell_of_toml(name: TableName) -> None:
    """Every tool can read it. It has an explicit timestamp, and the next schema replaces it."""
    assert write_schema(name, DEFAULT)
    assert write_schema(name, TALL, over=text_of(DEFAULT))
    value = format_schema(TALL).encode()
    assert rows(name) == [Row(b"schema#current", [Cell("tidetable", b"schema.toml", 0, value)])]


def test_a_schema_replaces_what_a_person_wrote(name: TableName) -> None:
    """A cell written with cbt is read, and its timestamp does not hide a later schema."""
    text = b"# by hand\n" + format_schema(OTHERS).encode()
    write(name, SCHEMA_KEY, SCHEMA_FAMILY, b"schema.toml", text)
    assert read_stored(name) == (text, OTHERS)
    assert write_schema(name, TALL, over=text)
    assert read_schema(name) == TALL


# Longer than a filter can hold, and with what would mean something in a regular expression.
LONG = parse_schema("".join(f'metrics.{"f" * 50}{n} = ["{"[.*+?" * 20}{n}"]\n' for n in range(90)))
OTHER_LONG = parse_schema("".join(f'metrics.{"f" * 50}{n} = ["{"[.*+!" * 20}{n}"]\n' for n in range(90)))


@pytest.mark.parametrize("at_the_same_time", [False, True])
@pytest.mark.parametrize(
    ("there", "over", "written"),
    [
        (DEFAULT, None, False),
        (DEFAULT, TALL, False),
        (None, DEFAULT, False),
        (LONG, OTHER_LONG, False),
        (None, None, True),
        (DEFAULT, DEFAULT, True),
        (LONG, LONG, True),
    ],
)
def test_a_schema_replaces_only_the_text_that_was_read(
    name: TableName,
    monkeypatch: pytest.MonkeyPatch,
    there: TableSchema | None,
    over: TableSchema | None,
    written: bool,
    at_the_same_time: bool,
) -> None:
    """Any other text stays, even one written a moment before."""
    if there:
        write_schema(name, there)
    before = text_of(over) if over else None
    with monkeypatch.context() as patched:
        if at_the_same_time:
            patched.setattr(ComparedCell, "read", lambda *_: before)
        assert write_schema(name, OTHERS, over=before) is written
    assert read_schema(name) == (OTHERS if written else there)
    if written:
        assert replace_text(name, text_of(OTHERS), None)  # taken back
        assert rows(name) == []


def test_an_instance_without_transactions_stores_a_schema(name: TableName, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an app profile of several clusters, which have no check-and-mutate, it is checked and then written."""

    def refuse(*_: object, **__: object) -> None:
        raise FailedPrecondition("Single-row transactions are not allowed by this app profile")

    monkeypatch.setattr(BigtableClient, "check_and_mutate_row", refuse)
    assert write_schema(name, DEFAULT)
    assert not write_schema(name, TALL)
    assert read_schema(name) == DEFAULT


def test_a_table_can_have_no_schema(name: TableName) -> None:
    """Other columns of the row and other rows are not the schema."""
    write(name, SCHEMA_KEY, SCHEMA_FAMILY, b"schemaxtoml")
    write(name, SCHEMA_KEY, "raw", b"schema.toml")
    write(name, b"schema#currently", SCHEMA_FAMILY, b"schema.toml")
    assert read_schema(name) is None


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"key =\nlayout = 1", "schema: it is not TOML: .*line 1"),
        (b'colour = "red"', "colour: there is no such key"),
        (b"\xff", "codec can't decode"),
        (b" \n", "schema: it is empty"),
    ],
)
def test_an_invalid_schema(name: TableName, value: bytes, problem: str) -> None:
    """The error is one line with the table, the row and the key at fault."""
    write(name, SCHEMA_KEY, SCHEMA_FAMILY, b"schema.toml", value)
    with pytest.raises(ServerError, match=f"^table {name}: its row schema#current contains .*{problem}") as caught:
        read_schema(name)
    assert "\n" not in str(caught.value)


def test_a_missing_table(name: TableName) -> None:
    """Every function raises an error of one line."""
    tables.delete(name)
    asks = (
        read_schema,
        has_rows,
        lambda name: write_schema(name, DEFAULT),
        lambda name: schema_of(name, DeclaredSchema()),
    )
    for ask in asks:
        with pytest.raises(ServerError, match=f"^{name.is_missing}$"):
            ask(name)


def test_a_schema_needs_its_family(name: TableName) -> None:
    """A table without the family can't store a schema; the error names the family."""
    other = TableName(name.project, name.instance, f"t-{uuid.uuid4().hex}")
    tables.create_bare(other, {"raw": Never()})
    with pytest.raises(ServerError, match=f"^table {other}"):
        write_schema(other, DEFAULT)
    assert read_schema(other) is None


@pytest.mark.parametrize(
    ("key", "counts"),
    [(b"a", True), (b"schema", True), (b"schema#old", False), (b"schema$", True), (b"\xff\xff", True)],
)
def test_the_tables_own_rows_do_not_count(name: TableName, key: bytes, counts: bool) -> None:
    """Only keys that begin with schema# are the table's own."""
    write_schema(name, DEFAULT)
    assert not has_rows(name)
    write(name, key)
    assert has_rows(name) is counts


@pytest.mark.parametrize(
    "declared", [DeclaredSchema(), DeclaredSchema(raw="r", stats="s", meta="m", window=Window.parse("15m"))]
)
def test_the_stored_schema_is_returned(name: TableName, declared: DeclaredSchema) -> None:
    """Flags that agree with it are accepted, with and without rows."""
    write_schema(name, OTHERS)
    write(name, b"s#1")
    assert schema_of(name, declared) == OTHERS


def test_a_disagreement_lists_every_difference(name: TableName) -> None:
    """One line has the table, each difference and what to do."""
    write_schema(name, OTHERS)
    with pytest.raises(ServerError) as caught:
        schema_of(name, DeclaredSchema(raw="raw", window=Window.parse("1h")))
    assert str(caught.value) == (
        f"table {name} has another schema than the flags: the family of readings is declared as raw, the table's "
        "is r; the shortest window is declared as 1h, the table's is 15m; leave these flags out, "
        "as the table stores its schema, or name the table that they are meant for"
    )


def test_an_empty_table_gets_the_declared_schema(name: TableName) -> None:
    """No schema has written rows yet."""
    assert schema_of(name, DeclaredSchema()) == DEFAULT
    assert schema_of(name, DeclaredSchema(raw="r")) == TableSchema.default("r")


def test_rows_without_a_schema_are_refused(name: TableName) -> None:
    """Their schema is unknown; the error lists what to do."""
    write(name, b"s#1")
    with pytest.raises(ServerError) as caught:
        schema_of(name, DeclaredSchema())
    which = f"--project test-project --instance test-instance --table {name.table}"
    for part in (f"table {name} has rows", f"tidetable table apply {which}"):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    assert schema_of(name, DeclaredSchema(default=True, raw="r")) == TableSchema.default("r")


def test_flags_without_a_valid_schema(name: TableName) -> None:
    """Flags that make no valid schema are an error of one line."""
    with pytest.raises(ServerError, match=f"^table {name}: the flags declare an invalid schema: tiers: family stats"):
        schema_of(name, DeclaredSchema(raw="stats"))
