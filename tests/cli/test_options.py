import click
import pytest
from click.testing import CliRunner

from pipeline.cli.options import schema_options
from pipeline.core.schema.declared import DeclaredSchema


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
        (["--raw-family", ""], "'' is not an id"),
    ],
)
def test_wrong_usage(options: list[str], problem: str) -> None:
    """Only the default schema can be declared, and the families must differ."""
    result = CliRunner().invoke(command, options)
    assert result.exit_code == 2
    assert problem in result.stderr
