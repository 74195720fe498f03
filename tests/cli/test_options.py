import json
import uuid

import click
import pytest
from click.testing import CliRunner

from pipeline.cli.options import schema_options, table_options
from pipeline.cli.root import main
from pipeline.cloud.connection.names import TableName
from pipeline.core.schema.declared import DeclaredSchema
from tests.cli.commands import all_commands
from tests.faults.bigtable_proxy import BigtableProxy
from tests.repair.tables import delete_rows

DAY = ["--from", "2026-02-17", "--to", "2026-02-18"]


@click.command()
@schema_options
def command(declared: DeclaredSchema) -> None:
    click.echo(repr(declared))


@pytest.mark.parametrize(
    ("options", "declared"),
    [
        ([], DeclaredSchema()),
        (["--schema", "default"], DeclaredSchema(default=True)),
        (
            ["--raw-family", "r", "--stats-family", "s", "--meta-family", "m"],
            DeclaredSchema(raw="r", stats="s", meta="m"),
        ),
        (["--raw-family", "stats"], DeclaredSchema(raw="stats")),
    ],
)
def test_declared_schema(options: list[str], declared: DeclaredSchema) -> None:
    """Flags that are not set leave the schema to the table."""
    result = CliRunner().invoke(command, options)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{declared!r}\n"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--schema", "tall"], "'tall' is not 'default'"),
        (["--raw-family", "f", "--meta-family", "f"], "--raw-family, --stats-family and --meta-family must differ"),
        (["--raw-family", ""], "'' is not a valid name"),
    ],
)
def test_wrong_usage(options: list[str], problem: str) -> None:
    """Only the default schema can be declared, and the families must differ."""
    result = CliRunner().invoke(command, options)
    assert result.exit_code == 2
    assert problem in result.stderr


@click.command()
@table_options
def table_command(table: TableName) -> None:
    click.echo(repr(table))


def test_the_app_profile() -> None:
    """Without the option, the instance's default one routes. The id is that of Google's rules."""
    words = ["--project", "my-project", "--instance", "i", "--table", "t"]
    assert CliRunner().invoke(table_command, words).stdout == f"{TableName('my-project', 'i', 't')!r}\n"
    ran = CliRunner().invoke(table_command, [*words, "--app-profile", "batch"])
    assert ran.stdout == f"{TableName('my-project', 'i', 't', 'batch')!r}\n"
    ran = CliRunner().invoke(table_command, [*words, "--app-profile", "a/b"])
    assert "'a/b' is not a valid name on Google Cloud: the id of an app profile" in ran.stderr


def test_commands_take_the_route(bigtable, monkeypatch, tmp_path) -> None:
    """Every command that reads or writes rows sends all requests for rows through the app profile."""
    name = TableName("test-project", "test-instance", f"t-{uuid.uuid4().hex}", "batch")
    readings = tmp_path / "readings.ndjson"
    event = {"sensor_id": "a", "event_time": "2026-02-17T10:00:00Z", "readings": {"t": 1}}
    readings.write_text(json.dumps(event))
    where = ["--project", name.project, "--instance", name.instance, "--table", name.table, "--app-profile", "batch"]
    for words, methods in (
        (["table", "create", "--gc", "raw=never", "--gc", "stats=never", "--gc", "meta=never"], {"CheckAndMutateRow"}),
        (["table", "diff"], {"ReadRows"}),
        (["backfill", readings], {"ReadRows", "MutateRows"}),
        (["read", "range", "a", *DAY], {"ReadRows"}),
        (["read", "aggregates", "a", *DAY], {"ReadRows"}),
        (["repair", *DAY], {"ReadRows", "MutateRows", "SampleRowKeys"}),
        (["forget", "a", "--yes"], {"ReadRows", "MutateRows"}),
    ):
        if words[0] == "repair":  # which writes what is wrong
            monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", bigtable)
            delete_rows(name, [b"agg#hourly#a#2026-02-17T10"])
        with BigtableProxy(bigtable) as proxy:
            monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", proxy.address)
            ran = CliRunner().invoke(main, [*map(str, words), *where])
        assert ran.exit_code == 0, ran.output
        assert methods <= {*proxy.app_profiles}, words
        assert set().union(*proxy.app_profiles.values()) == {"batch"}, words


def test_not_a_number() -> None:
    """No option in a range takes NaN, which is neither below nor above its limits."""
    options = {
        f"{path} {param.opts[0]}": param.type
        for path, each in all_commands()
        for param in each.params
        if isinstance(param.type, click.FloatRange)
    }
    assert "plan --late" in options
    for type_ in options.values():
        with pytest.raises(click.BadParameter, match="'nan' is not a number"):
            type_.convert("nan", None, None)
