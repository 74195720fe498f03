"""Runs the commands of ``tidetable table``, on tables that the tests prepare."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from google.cloud import bigtable

from pipeline.cli.root import main
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import schema_store, tables
from pipeline.cloud.tables.schema_store import write_schema
from pipeline.core.schema.gc_policies import format_policy, parse_policy
from pipeline.core.schema.table_schema import TableSchema

NEWEST = "maxage=730d || maxversions=1"
DEFAULTS = {
    "latest": NEWEST,
    "meta": "maxage=90d",
    "raw": "maxage=90d",
    "stats": NEWEST,
    "tidetable": "never",
}
LONG_POLICY = "maxage=1500ms || maxage=1500ms && " * 18 + "maxage=1d"

TALL = """\
key = "{salt:1}#{sensor_id}#{metric}#{reverse_ms}"
layout = "tall"
values = "float64"
latest = "latest"

[metrics]
logs = ["log_*"]
raw = ["*"]

[metadata]
meta = ["*"]

[tiers]
15m = "quarters"
1h = "hours"
1d = "days"

[policies]
logs = "maxage=7d"
raw = "maxage=90d"
meta = "maxage=90d"
quarters = "maxage=30d || maxversions=1"
hours = "maxage=730d || maxversions=1"
days = "maxversions=1"
latest = "maxage=730d || maxversions=1"

[rate]
every = "10ms"
metrics = 3
metadata = 0
"""
TALL_FLAGS = ["--layout", "tall", "--key", "{sensor_id}#{metric}#{reverse_us}"]


def arguments(command: str, name: TableName, *options: str) -> list[str]:
    which = ["--project", name.project, "--instance", name.instance, "--table", name.table]
    return ["table", command, *which, *options]


def run(command: str, name: TableName, *options: str) -> Result:
    return CliRunner().invoke(main, arguments(command, name, *options))


def create(name: TableName, **policies: str) -> None:
    """Creates a table like another program's: families, and no schema."""
    assert tables.create_bare(name, {family: parse_policy(text) for family, text in policies.items()})


def write(name: TableName, key: bytes, family: str = "raw") -> None:
    row = bigtable.Client(project=name.project).instance(name.instance).table(name.table).direct_row(key)
    row.set_cell(family, b"temperature", b"23.5")
    assert row.commit().code == 0


def in_file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "schema.toml"
    path.write_text(text)
    return str(path)


def lines(result: Result) -> list[str]:
    return [" ".join(line.split()) for line in result.stdout.splitlines()]


def policies(name: TableName) -> dict[str, str]:
    return {family: format_policy(policy) for family, policy in tables.describe(name).items()}


def overtake(monkeypatch: pytest.MonkeyPatch, name: TableName, schema: TableSchema, over: bytes | None) -> None:
    """Stores another schema just before the command stores one."""
    replace_text = schema_store.replace_text

    def overtaken(*asked: object) -> bool:
        monkeypatch.setattr(schema_store, "replace_text", replace_text)
        assert write_schema(name, schema, over)
        return replace_text(*asked)

    monkeypatch.setattr(schema_store, "replace_text", overtaken)
