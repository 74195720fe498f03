import os
import pty
import subprocess

import pytest
from google.cloud import bigtable

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import tables
from tests.support.preloaded import TIDETABLE
from tests.table.running import arguments, create, run


@pytest.mark.parametrize("command", ["describe", "diff", "adopt"])
def test_a_missing_table_is_one_line_with_the_command_that_creates_it(name: TableName, command: str) -> None:
    """A missing table is one line on standard error, and exit code 1. The line says how to create the table."""
    result = run(command, name)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == (
        f"Error: table {name} does not exist; create it with: tidetable table create --project {name.project} "
        f"--instance {name.instance} --table {name.table}\n"
    )


def test_a_missing_table_cannot_be_deleted(name: TableName) -> None:
    """Whoever deletes a missing table does not need the command that creates it."""
    result = run("delete", name, "--yes")
    assert (result.exit_code, result.output) == (1, f"Error: table {name} does not exist\n")


@pytest.mark.parametrize("command", ["create", "describe", "delete", "diff"])
def test_an_unreachable_server_is_one_line(name: TableName, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command reports an unreachable server in one line, with exit code 1."""
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", "127.0.0.1:1")
    result = run(command, name, *(["--yes"] if command == "delete" else []))
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
    assert "BIGTABLE_EMULATOR_HOST is 127.0.0.1:1, but nothing answers there" in result.stderr


def test_a_stored_text_that_is_no_schema_stops_everything(name: TableName) -> None:
    """Describe and --apply stop at a stored schema that they can't parse."""
    run("create", name)
    row = bigtable.Client(project=name.project).instance(name.instance).table(name.table).direct_row(b"schema#current")
    row.set_cell("tidetable", b"schema.toml", b"colour = 1")
    row.commit()
    for command, *options in (["describe"], ["diff"], ["create", "--apply"]):
        result = run(command, name, *options)
        assert result.exit_code == 1
        assert result.stderr.startswith(f"Error: table {name}: its row schema#current contains no valid schema")
        assert result.stderr.count("\n") == 1


def test_delete_without_a_terminal_needs_yes(name: TableName) -> None:
    """If standard input is not a terminal, delete deletes nothing without --yes, and asks nothing with it."""
    create(name, raw="never")
    result = run("delete", name)
    assert result.exit_code == 2, result.output
    assert "pass --yes" in result.stderr
    assert tables.find(name) is not None
    result = run("delete", name, "--yes")
    assert (result.exit_code, result.output) == (0, f"table {name} deleted\n")
    assert tables.find(name) is None


@pytest.mark.parametrize(
    ("options", "answer", "exit_code", "deleted"),
    [([], b"n\n", 1, False), ([], b"y\n", 0, True), (["--yes"], b"", 0, True)],
)
def test_delete_asks_at_a_terminal(
    name: TableName, options: list[str], answer: bytes, exit_code: int, deleted: bool
) -> None:
    """On a terminal, delete asks first; only a yes, or --yes, deletes the table."""
    create(name, raw="never")
    keyboard, terminal = pty.openpty()
    os.write(keyboard, answer)
    finished = subprocess.run(
        [*TIDETABLE, *arguments("delete", name, *options)], stdin=terminal, capture_output=True, timeout=60, check=False
    )
    os.close(keyboard)
    os.close(terminal)
    assert finished.returncode == exit_code, finished.stderr
    assert (b"Delete table" in finished.stderr) is not bool(options)
    assert (tables.find(name) is None) is deleted
