import socket
import uuid
from collections.abc import Iterator

import pytest
from google.cloud.bigtable_admin_v2.types import CreateTableRequest

from pipeline.cloud.connection.errors import ServerProblem
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import tables
from pipeline.cloud.tables.schema_store import read_schema, write_schema
from pipeline.core.schema.gc_policies import format_policy, parse_policy
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema


@pytest.fixture
def name(bigtable: str) -> TableName:
    """A table that does not exist yet."""
    return TableName("test-project", "test-instance", f"t-{uuid.uuid4().hex}")


@pytest.fixture
def silent_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", f"127.0.0.1:{server.getsockname()[1]}")
        yield


def policies(**texts: str) -> dict:
    return {family: parse_policy(text) for family, text in texts.items()}


def texts(found: dict | None) -> dict[str, str]:
    assert found is not None
    return {family: format_policy(policy) for family, policy in found.items()}


@pytest.fixture
def requested_splits(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The split keys of the last request, as the emulator has only one tablet."""
    create_table = tables.BaseBigtableTableAdminClient.create_table
    keys: list[bytes] = []

    def noted(self: object, request: CreateTableRequest, **kwargs: object) -> object:
        keys[:] = [split.key for split in request.initial_splits]
        return create_table(self, request, **kwargs)

    monkeypatch.setattr(tables.BaseBigtableTableAdminClient, "create_table", noted)
    return keys


def test_a_schemas_policies_and_the_tables_own() -> None:
    """Readings and metadata stay 90 days, aggregates two years, whatever the names of the families."""
    assert texts(tables.policies_of(TableSchema.default("r", "s", "m"))) == {
        "r": "maxage=90d",
        "m": "maxage=90d",
        "s": "maxage=730d || maxversions=1",
        "tidetable": "never",
    }


def test_a_table_is_created_with_its_schema(name: TableName) -> None:
    """It has the schema's families and policies and stores the schema."""
    schema = parse_schema('layout = "serialized"\n[tiers]\n1h = "hours"\n1d = "days"\n[policies]\nraw = "maxage=1d"')
    assert tables.create(name, schema)
    assert texts(tables.describe(name)) == {
        "days": "maxage=730d || maxversions=1",
        "hours": "maxage=730d || maxversions=1",
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
    name: TableName, requested_splits: list[bytes], key: str, count: int, first: bytes | None, last: bytes | None
) -> None:
    """A tablet for each salt or shard, or for several adjacent ones if there are too many."""
    assert tables.create(name, parse_schema(f'key = "{key}"'))
    assert len(requested_splits) == count
    assert requested_splits == sorted(requested_splits)
    if requested_splits:
        assert (requested_splits[0], requested_splits[-1]) == (first, last)


def test_a_schema_that_cannot_be_stored(name: TableName, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table exists by then; the error reports what is missing and how to store it."""

    def fail(*_: object) -> None:
        raise ServerProblem("the server cannot be reached")

    monkeypatch.setattr(tables, "write_schema", fail)
    with pytest.raises(ServerProblem, match=r"^the server cannot be reached; the table was created, but .* --apply"):
        tables.create(name, TableSchema.default())
    assert set(tables.describe(name)) == {"meta", "raw", "stats", "tidetable"}
    assert read_schema(name) is None


def test_an_existing_table_keeps_its_schema(name: TableName) -> None:
    """Of two programs that create a table, the second changes nothing and gets False."""
    first, second = TableSchema.default(), TableSchema.default("r")
    assert tables.create(name, first)
    assert not tables.create(name, second)
    assert read_schema(name) == first
    assert "r" not in tables.describe(name)


def test_a_schema_stored_meanwhile_stays(name: TableName, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another program stores its schema first, the result is as if the table had existed."""
    create_bare, another = tables.create_bare, parse_schema('layout = "serialized"')

    def overtaken(*asked: object) -> bool:
        assert create_bare(*asked)
        return write_schema(name, another)

    monkeypatch.setattr(tables, "create_bare", overtaken)
    assert not tables.create(name, TableSchema.default())
    assert read_schema(name) == another


def test_a_created_table_is_described_as_requested(name: TableName) -> None:
    """Families and policies come back from the server unchanged, ordered by name."""
    wanted = {"raw": "maxage=30d || (maxage=3d && maxversions=2)", "meta": "never", "stats": "maxversions=1"}
    assert tables.create_bare(name, policies(**wanted))
    assert texts(tables.describe(name)) == wanted
    assert list(tables.describe(name)) == ["meta", "raw", "stats"]


def test_a_missing_table_is_found_missing(name: TableName) -> None:
    """Finding a missing table is no error; describing or deleting it is one, in one line."""
    assert tables.find(name) is None
    for ask in (tables.describe, tables.delete):
        with pytest.raises(ServerProblem, match=f"^table {name} does not exist"):
            ask(name)


def test_a_deleted_table_is_gone(name: TableName) -> None:
    """A deleted table is not found."""
    tables.create_bare(name, policies(raw="never"))
    tables.delete(name)
    assert tables.find(name) is None


def test_each_difference_is_one_line() -> None:
    """A missing family, another policy and a family that was not requested: one line each."""
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


def test_applying_the_differences(name: TableName) -> None:
    """Families are added and policies changed, also to never; a family that was not requested stays."""
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


def test_a_closed_port_fails_at_once(name: TableName, monkeypatch: pytest.MonkeyPatch) -> None:
    """The read fails with an error of one line about the server."""
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", "127.0.0.1:1")
    with pytest.raises(ServerProblem, match=r"^BIGTABLE_EMULATOR_HOST is 127\.0\.0\.1:1, but nothing answers"):
        tables.find(name)


@pytest.mark.usefixtures("silent_server")
def test_an_unresponsive_server_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read fails after its timeout, without a retry."""
    monkeypatch.setattr(tables, "check_emulator", lambda _: None)  # as if it had answered before
    monkeypatch.setattr(tables, "READ_TIMEOUT_S", 0.5)
    with pytest.raises(ServerProblem, match="the server cannot be reached"):
        tables.find(TableName("test-project", "test-instance", "t"))
