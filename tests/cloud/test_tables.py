import socket
import uuid
from collections.abc import Iterator

import pytest
from google.cloud.bigtable_admin_v2.types import CreateTableRequest

from pipeline.cloud import tables
from pipeline.cloud.errors import ServerProblem
from pipeline.cloud.names import TableName
from pipeline.cloud.schema_store import read_schema, write_schema
from pipeline.core.schema.policies import format_policy, parse_policy
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema


@pytest.fixture
def name(bigtable: str) -> TableName:
    """A table that is not there yet."""
    return TableName("test-project", "test-instance", f"t-{uuid.uuid4().hex}")


@pytest.fixture
def silent_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", f"127.0.0.1:{server.getsockname()[1]}")
        yield


def policies(**texts: str) -> dict:
    return {family: parse_policy(text) for family, text in texts.items()}


def texts(found: dict | None) -> dict[str, str]:
    assert found is not None
    return {family: format_policy(policy) for family, policy in found.items()}


@pytest.fixture
def asked_splits(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The keys at which the server was last asked to split a table: the emulator has but one tablet to show."""
    create_table = tables.BaseBigtableTableAdminClient.create_table
    keys: list[bytes] = []

    def noted(self: object, request: CreateTableRequest, **kwargs: object) -> object:
        keys[:] = [split.key for split in request.initial_splits]
        return create_table(self, request, **kwargs)

    monkeypatch.setattr(tables.BaseBigtableTableAdminClient, "create_table", noted)
    return keys


def test_a_schemas_policies_and_the_tables_own() -> None:
    """Readings and metadata stay 90 days and aggregates two years, whatever the families are called."""
    assert texts(tables.policies_of(TableSchema.default("r", "s", "m"))) == {
        "r": "maxage=90d",
        "m": "maxage=90d",
        "s": "maxage=730d",
        "tidetable": "never",
    }


def test_a_table_is_created_with_its_schema(name: TableName) -> None:
    """Families and policies are those of the schema, and the table says the schema of itself."""
    schema = parse_schema('layout = "serialized"\n[tiers]\n1h = "hours"\n1d = "days"\n[policies]\nraw = "maxage=1d"')
    assert tables.create(name, schema)
    assert texts(tables.describe(name)) == {
        "days": "maxage=730d",
        "hours": "maxage=730d",
        "raw": "maxage=1d",
        "tidetable": "never",
    }
    assert read_schema(name) == schema


@pytest.mark.parametrize(
    ("key", "count", "first", "last"),
    [
        ("{sensor_id}#{reverse_us}", 0, None, None),
        ("{salt:1}#{sensor_id}#{reverse_us}", 15, b"1", b"f"),
        ("{salt:2}#{sensor_id}#{reverse_us}", 255, b"01", b"ff"),
        ("shard-{shard:32}#{sensor_id}#{iso_s}", 31, b"shard-01", b"shard-31"),
        ("{shard:10000}#{sensor_id}#{iso_s}", 249, b"0040", b"9960"),
    ],
)
def test_a_table_is_split_between_salts_or_shards(
    name: TableName, asked_splits: list[bytes], key: str, count: int, first: bytes | None, last: bytes | None
) -> None:
    """A tablet for each salt or shard, or for as many side by side as there are tablets enough."""
    assert tables.create(name, parse_schema(f'key = "{key}"'))
    assert len(asked_splits) == count
    assert asked_splits == sorted(asked_splits)
    if asked_splits:
        assert (asked_splits[0], asked_splits[-1]) == (first, last)


def test_a_table_whose_schema_cannot_be_stored_says_so(name: TableName, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is there by then; the message says what is missing, and how it comes."""

    def fail(*_: object) -> None:
        raise ServerProblem("the server cannot be reached")

    monkeypatch.setattr(tables, "write_schema", fail)
    with pytest.raises(ServerProblem, match=r"^the server cannot be reached; the table was created, but .* --apply"):
        tables.create(name, TableSchema.default())
    assert set(tables.describe(name)) == {"meta", "raw", "stats", "tidetable"}
    assert read_schema(name) is None


def test_a_table_that_is_there_keeps_its_schema(name: TableName) -> None:
    """Of two programs that create a table, the second is told so and changes nothing."""
    first, second = TableSchema.default(), TableSchema.default("r")
    assert tables.create(name, first)
    assert not tables.create(name, second)
    assert read_schema(name) == first
    assert "r" not in tables.describe(name)


def test_a_table_that_is_given_a_schema_meanwhile_keeps_it(name: TableName, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who creates a table, and is overtaken by another's schema, is told as if the table had been there."""
    create_bare, another = tables.create_bare, parse_schema('layout = "serialized"')

    def overtaken(*asked: object) -> bool:
        assert create_bare(*asked)
        return write_schema(name, another)

    monkeypatch.setattr(tables, "create_bare", overtaken)
    assert not tables.create(name, TableSchema.default())
    assert read_schema(name) == another


def test_a_created_table_is_described_as_it_was_asked_for(name: TableName) -> None:
    """Families and policies come back from the server as they went in, by name."""
    wanted = {"raw": "maxage=30d || (maxage=3d && maxversions=2)", "meta": "never", "stats": "maxversions=1"}
    assert tables.create_bare(name, policies(**wanted))
    assert texts(tables.describe(name)) == wanted
    assert list(tables.describe(name)) == ["meta", "raw", "stats"]


def test_creating_a_bare_table_that_is_there_leaves_it_alone(name: TableName) -> None:
    """Of two programs that create a table, the second is told so and changes nothing."""
    tables.create_bare(name, policies(raw="maxage=1d"))
    assert not tables.create_bare(name, policies(raw="maxage=2d", more="never"))
    assert texts(tables.describe(name)) == {"raw": "maxage=1d"}


def test_a_missing_table_is_found_missing(name: TableName) -> None:
    """Looking for a table that is not there is no error; describing or deleting it is one, in one line."""
    assert tables.find(name) is None
    for ask in (tables.describe, tables.delete):
        with pytest.raises(ServerProblem, match=f"^table {name} does not exist$"):
            ask(name)


def test_a_deleted_table_is_gone(name: TableName) -> None:
    """Deleting a table leaves nothing to be found."""
    tables.create_bare(name, policies(raw="never"))
    tables.delete(name)
    assert tables.find(name) is None


def test_differences_are_told_one_a_line() -> None:
    """A missing family, another policy and a family nobody asked for are each told in a line."""
    actual = policies(raw="maxage=30d", stats="maxversions=1 || maxage=730d", extra="never")
    wanted = policies(raw="maxage=90d", stats="maxage=730d || maxversions=1", meta="maxage=90d")
    assert list(map(str, tables.differences(actual, wanted))) == [
        "family extra was not requested and is left alone",
        "family meta is missing, wanted with policy maxage=90d",
        "family raw: policy is maxage=30d, wanted maxage=90d",
    ]


def test_never_is_a_policy_like_any_other() -> None:
    """A family that keeps everything differs from one with a policy, in both directions."""
    keeping, collecting = policies(raw="never"), policies(raw="maxage=90d")
    assert not tables.differences(keeping, keeping)
    assert [str(it) for it in tables.differences(keeping, collecting)] == [
        "family raw: policy is never, wanted maxage=90d"
    ]
    assert [str(it) for it in tables.differences(collecting, keeping)] == [
        "family raw: policy is maxage=90d, wanted never"
    ]


def test_applying_the_differences_leaves_only_what_is_left_alone(name: TableName) -> None:
    """Families are added and policies changed, to never as well; a family nobody asked for stays."""
    tables.create_bare(name, policies(raw="maxage=30d", stats="maxage=1d", extra="maxage=5d"))
    wanted = policies(raw="maxage=90d", stats="never", meta="maxage=90d")
    tables.apply(name, tables.differences(tables.describe(name), wanted))
    assert texts(tables.describe(name)) == {
        "extra": "maxage=5d",
        "meta": "maxage=90d",
        "raw": "maxage=90d",
        "stats": "never",
    }
    assert all(difference.left_alone for difference in tables.differences(tables.describe(name), wanted))


def test_a_closed_port_is_told_at_once(name: TableName, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing listens, the read fails with one line about the server."""
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", "127.0.0.1:1")
    with pytest.raises(ServerProblem, match=f"^table {name}: the server cannot be reached: .*127.0.0.1:1"):
        tables.find(name)


@pytest.mark.usefixtures("silent_server")
def test_a_server_that_does_not_answer_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read is given up after its timeout, without a retry."""
    monkeypatch.setattr(tables, "READ_TIMEOUT_S", 0.5)
    with pytest.raises(ServerProblem, match="the server cannot be reached"):
        tables.find(TableName("test-project", "test-instance", "t"))
