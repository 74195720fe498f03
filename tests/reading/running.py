"""Runs ``tidetable read`` on a table, in this process."""

import json

from click.testing import CliRunner, Result

from pipeline.cli.root import main
from pipeline.cloud.connection.names import TableName


def arguments(name: TableName, command: list[str], *options: str) -> list[str]:
    which = ["--project", name.project, "--instance", name.instance, "--table", name.table]
    return ["read", *command, *which, *options]


def run(name: TableName, *command: str) -> Result:
    return CliRunner().invoke(main, arguments(name, list(command)))


def run_json(name: TableName, *command: str) -> list[dict]:
    """Returns what the command prints, parsed as strict JSON."""
    result = run(name, *command, "--format=json")
    assert (result.exit_code, result.stderr) == (0, ""), result.output

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in result.stdout.splitlines()]
