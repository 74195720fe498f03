import socket
from collections.abc import Iterator

import pytest
from google.cloud.bigtable_admin_v2.types import CreateTableRequest

from pipeline.cloud.connection.errors import ServerProblem
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import tables
from pipeline.cloud.tables.schema_store import read_schema, write_schema
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from tests.support.tables import unused_name


@pytest.fixture
def name(bigtable: str) -> TableName:
    """A table that does not exist yet."""
    return unused_name()


@pytest.fixture
def silent_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", f"127.0.0.1:{server.getsockname()[1]}")
        yield


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


def test_a_schema_stored_meanwhile_stays(name: TableName, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another program stores its schema first, the result is as if the table had existed."""
    create_bare, another = tables.create_bare, parse_schema('layout = "serialized"')

    def overtaken(*asked: object) -> bool:
        assert create_bare(*asked)
        return write_schema(name, another)

    monkeypatch.setattr(tables, "create_bare", overtaken)
    assert not tables.create(name, TableSchema.default())
    assert read_schema(name) == another


@pytest.mark.usefixtures("silent_server")
def test_an_unresponsive_server_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read fails after its timeout, without a retry."""
    monkeypatch.setattr(tables, "check_emulator", lambda _: None)  # as if it had answered before
    monkeypatch.setattr(tables, "READ_TIMEOUT_S", 0.5)
    with pytest.raises(ServerProblem, match="the server cannot be reached"):
        tables.find(TableName("test-project", "test-instance", "t"))
