import json
from pathlib import Path

import pytest

from pipeline.cloud.connection.errors import ServerProblem
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import tables
from pipeline.cloud.tables.schema_store import read_schema
from pipeline.core.schema.table_schema import TableSchema
from tests.table.running import NEWEST, TALL_FLAGS, create, in_file, overtake, policies, run, write


@pytest.mark.parametrize("wanted", [[], TALL_FLAGS])
def test_a_first_schema_is_stored_over_none(
    name: TableName, monkeypatch: pytest.MonkeyPatch, wanted: list[str]
) -> None:
    """If another program stores the first schema, --apply reports how it differs from the requested one."""
    create(name, tidetable="never")
    overtake(monkeypatch, name, TableSchema.default(), None)
    result = run("create", name, *wanted, "--apply")
    assert result.exit_code == 1
    assert ("schema: layout is 'wide', wanted 'tall'" in result.stdout) is bool(wanted)
    assert "family raw is missing, wanted with policy maxage=90d" in result.stdout
    assert result.stdout.splitlines()[-1].startswith(f"table {name} is unchanged")
    assert policies(name) == {"tidetable": "never"}
    assert read_schema(name) == TableSchema.default()


def test_rows_of_an_older_pipeline_get_the_default_schema(name: TableName) -> None:
    """A table with rows and without a schema can be given the default one, under the names of its families."""
    create(name, r="maxage=90d", s="maxage=730d", m="maxage=90d")
    write(name, b"s#8228675799749999", "r")
    families = ["--raw-family", "r", "--stats-family", "s", "--meta-family", "m"]
    result = run("create", name, *families)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "schema: the table has none, wanted key {sensor_id}#{reverse_us}, layout wide, values text",
        f"family s: policy is maxage=730d, wanted {NEWEST}",
        "family tidetable is missing, wanted with policy never",
        f"table {name} is unchanged; --apply would make these changes",
    ]
    assert run("create", name, *families, "--apply").exit_code == 0
    assert policies(name)["s"] == NEWEST
    assert read_schema(name) == TableSchema.default("r", "s", "m")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            TALL_FLAGS,
            "the rows of a table without a stored schema must have key {sensor_id}#{reverse_us}",
        ),
        (["--values", "float64"], "the rows of a table without a stored schema must have"),
        (["--raw-family", "r"], "it has no family of readings named r"),
    ],
)
def test_rows_of_an_older_pipeline_get_no_other_schema(name: TableName, options: list[str], problem: str) -> None:
    """A table with rows takes no other schema; one without rows takes any."""
    create(name, raw="maxage=90d")
    write(name, b"s#8228675799749999")
    result = run("create", name, *options, "--apply")
    assert result.exit_code == 1
    assert problem in result.stderr
    assert result.stderr.splitlines()[-1] == f"table {name} is unchanged"
    assert policies(name) == {"raw": "maxage=90d"}
    diff = [json.loads(line) for line in run("diff", name, *options, "--json").stdout.splitlines()]
    assert (diff[0]["schema"], diff[0]["safe"]) == (None, False)

    run("delete", name, "--yes")
    create(name, raw="maxage=90d")
    assert run("create", name, *options, "--apply").exit_code == 0
    assert run("diff", name, *options).exit_code == 0


@pytest.mark.parametrize(
    ("options", "hidden", "flags"),
    [
        (
            ["--meta-family", "info", "--stats-family", "st2"],
            "stats and meta",
            "--stats-family stats --meta-family meta",
        ),
        (["--meta-family", "info"], "meta", "--meta-family meta"),
        (["--raw-family", "extra"], "raw", "--raw-family raw"),
        (["--stats-family", "meta", "--meta-family", "m"], "stats and meta", "--stats-family stats --meta-family meta"),
    ],
)
def test_a_first_schema_hides_nothing(
    name: TableName, options: list[str], hidden: str, flags: str, tmp_path: Path
) -> None:
    """New names may not hide rows under the default names, unless there are none."""
    create(name, raw="maxage=90d", stats="maxage=730d", meta="maxage=90d", extra="maxage=90d")
    write(name, b"s#8228675799749999")
    result = run("create", name, *options, "--apply")
    assert result.exit_code == 1
    reported, unchanged = result.stderr.splitlines()
    assert reported.endswith(
        f"it has the default schema's families {hidden}, which would no longer be read; "
        f"keep them with {flags}, or pass the families with --schema"
    )
    assert unchanged == f"table {name} is unchanged"
    assert read_schema(name) is None
    more = in_file(tmp_path, 'metrics = {extra = ["x*"], raw = ["*"]}\nmetadata = {info = ["x*"], meta = ["*"]}')
    assert run("create", name, "--schema", more, "--apply").exit_code == 0


def test_a_table_without_its_schema_is_completed(name: TableName, monkeypatch: pytest.MonkeyPatch) -> None:
    """If create failed to store the schema, --apply stores it."""

    def fail(*_: object) -> None:
        raise ServerProblem("the server cannot be reached")

    with monkeypatch.context() as patched:
        patched.setattr(tables, "write_schema", fail)
        failed = run("create", name, *TALL_FLAGS)
    assert failed.exit_code == 1
    assert failed.stderr.splitlines()[-1].endswith("repeat the command with --apply")
    result = run("create", name, *TALL_FLAGS, "--apply")
    assert result.exit_code == 0, result.output
    assert run("diff", name, *TALL_FLAGS).exit_code == 0
