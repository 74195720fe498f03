import json
import os
import pty
import subprocess
import sys
import uuid

import pytest
from click.testing import CliRunner, Result

from pipeline.cloud import tables
from pipeline.cloud.names import TableName
from pipeline.core.schema.policies import format_policy, parse_policy
from pipeline.toolbox.cli import main

DEFAULTS = {"meta": "maxage=90d", "raw": "maxage=90d", "stats": "maxage=730d"}
LONG_POLICY = "maxage=1500ms || maxage=1500ms && " * 18 + "maxage=1d"


@pytest.fixture
def name(bigtable: str) -> TableName:
    """A table that is not there yet."""
    return TableName("test-project", "test-instance", f"t-{uuid.uuid4().hex}")


def arguments(command: str, name: TableName, *options: str) -> list[str]:
    which = ["--project", name.project, "--instance", name.instance, "--table", name.table]
    return ["table", command, *which, *options]


def run(command: str, name: TableName, *options: str) -> Result:
    return CliRunner().invoke(main, arguments(command, name, *options))


def create(name: TableName, **policies: str) -> None:
    assert tables.create(name, {family: parse_policy(text) for family, text in policies.items()})


def policies(name: TableName) -> dict[str, str]:
    return {family: format_policy(policy) for family, policy in tables.describe(name).items()}


def test_create_makes_the_default_table_and_says_so(name: TableName) -> None:
    """Without a word about it, the families are raw, stats and meta under their default policies."""
    result = run("create", name)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        f"table {name} created",
        "family raw: policy is maxage=90d",
        "family stats: policy is maxage=730d",
        "family meta: policy is maxage=90d",
    ]
    assert policies(name) == DEFAULTS


def test_create_takes_names_and_policies(name: TableName) -> None:
    """Families can be called otherwise, and each can have a policy of cbt's grammar."""
    families = ["--raw-family", "r", "--stats-family", "s", "--meta-family", "m"]
    result = run("create", name, *families, "--gc", "r=maxage=3d and maxversions=2", "--gc", "m=never")
    assert result.exit_code == 0, result.output
    assert policies(name) == {"m": "never", "r": "maxage=3d && maxversions=2", "s": "maxage=730d"}


def test_create_again_has_nothing_to_do(name: TableName) -> None:
    """Creating the same table twice succeeds twice, whatever the order in which a policy's parts are given."""
    run("create", name, "--gc", "raw=maxage=3d || maxversions=2")
    result = run("create", name, "--gc", "raw=maxversions=2 or maxage=72h")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"table {name} has what is wanted: nothing to do\n"


def test_create_tells_how_a_table_differs_and_leaves_it(name: TableName) -> None:
    """Each difference is a line, the last line names --apply, the exit code is 1 and the table as before."""
    create(name, raw="maxage=30d", stats="maxage=730d", extra="never")
    result = run("create", name)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "family extra is not one of those asked for and is left alone",
        "family meta is missing, wanted with policy maxage=90d",
        "family raw: policy is maxage=30d, wanted maxage=90d",
        f"table {name} is unchanged; --apply would make these changes",
    ]
    assert policies(name) == {"extra": "never", "raw": "maxage=30d", "stats": "maxage=730d"}


def test_create_with_apply_changes_the_table_and_drops_nothing(name: TableName) -> None:
    """Missing families are added, policies changed, other families left alone; after that nothing is to do."""
    create(name, raw="maxage=30d", extra="never")
    result = run("create", name, "--apply")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == f"table {name} changed: it has what is wanted now"
    assert policies(name) == {"extra": "never", **DEFAULTS}
    again = run("create", name)
    assert again.exit_code == 0
    assert again.stdout.splitlines()[-1] == f"table {name} has what is wanted: nothing to do"


def test_create_compares_with_a_table_that_somebody_else_has_just_created(
    name: TableName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that appears after it was found missing is compared like any other."""
    find = tables.find

    def find_and_be_overtaken(name: TableName) -> dict | None:
        found = find(name)
        if found is None:
            create(name, raw="maxage=30d")
        return found

    monkeypatch.setattr(tables, "find", find_and_be_overtaken)
    result = run("create", name)
    assert result.exit_code == 1
    assert "family raw: policy is maxage=30d, wanted maxage=90d" in result.stdout


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--gc", "other=maxage=1d"], "the table's families are raw, stats, meta"),
        (["--gc", "raw"], "'raw' names no policy; it takes FAMILY=POLICY, as in raw=maxage=30d"),
        (["--gc", "raw=maxage=90x"], "expected at character 8, not '90x'"),
        (["--gc", f"raw={LONG_POLICY}"], "family raw: the policy is too long: Bigtable stores at most 500 bytes"),
        (["--raw-family", "stats"], "--raw-family, --stats-family and --meta-family must differ"),
        (["--raw-family", ""], "'' is not an id"),
        (["--table", "projects/p/instances/i/tables/t"], "it takes the id alone, without the path around it"),
    ],
)
def test_a_bad_option_is_a_usage_error(name: TableName, options: list[str], problem: str) -> None:
    """An option that makes no sense is told as one, before any server is asked."""
    result = run("create", name, *options)
    assert result.exit_code == 2
    assert problem in result.stderr
    assert tables.find(name) is None


def test_describe_prints_families_and_policies(name: TableName) -> None:
    """A person reads a small table."""
    create(name, raw="maxage=30d || maxversions=2", meta="never")
    result = run("describe", name)
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0] == f"table {name}"
    assert {"family policy", "raw maxage=30d || maxversions=2", "meta never"} <= set(lines)


def test_describe_as_json_prints_one_line(name: TableName) -> None:
    """A program reads one line of JSON with the families by name."""
    create(name, raw="maxage=30d", meta="never")
    result = run("describe", name, "--json")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\n") == 1
    assert json.loads(result.stdout) == {"table": str(name), "families": {"meta": "never", "raw": "maxage=30d"}}


@pytest.mark.parametrize("command", ["describe", "delete"])
def test_a_missing_table_is_one_line(name: TableName, command: str) -> None:
    """Describing or deleting what is not there ends with exit code 1 and one line on standard error."""
    result = run(command, name)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f"Error: table {name} does not exist\n"


@pytest.mark.parametrize("command", ["create", "describe", "delete"])
def test_an_unreachable_server_is_one_line(name: TableName, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command tells of a server that is not there in one line, with exit code 1."""
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", "127.0.0.1:1")
    result = run(command, name)
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
    assert f"table {name}: the server cannot be reached" in result.stderr


def test_delete_does_not_ask_a_script(name: TableName) -> None:
    """With standard input no terminal, the table is deleted without a question."""
    create(name, raw="never")
    result = run("delete", name)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"table {name} deleted\n"
    assert tables.find(name) is None


@pytest.mark.parametrize(
    ("options", "answer", "exit_code", "deleted"),
    [([], b"n\n", 1, False), ([], b"y\n", 0, True), (["--yes"], b"", 0, True)],
)
def test_delete_asks_at_a_terminal(
    name: TableName, options: list[str], answer: bytes, exit_code: int, deleted: bool
) -> None:
    """Somebody at a terminal is asked first, and only a yes, or --yes, deletes the table."""
    create(name, raw="never")
    keyboard, terminal = pty.openpty()
    os.write(keyboard, answer)
    command = [sys.executable, "-c", "from pipeline.toolbox.cli import main; main()"]
    finished = subprocess.run(
        [*command, *arguments("delete", name, *options)], stdin=terminal, capture_output=True, timeout=60, check=False
    )
    os.close(keyboard)
    os.close(terminal)
    assert finished.returncode == exit_code, finished.stderr
    assert (b"Delete table" in finished.stderr) is not bool(options)
    assert (tables.find(name) is None) is deleted
