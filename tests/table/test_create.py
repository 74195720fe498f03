import json
from pathlib import Path

import pytest
from click.testing import Result

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import tables
from pipeline.cloud.tables.schema_store import read_schema
from pipeline.core.schema.gc_policies import format_policy
from pipeline.core.schema.table_schema import TableSchema
from tests.table.running import (
    DEFAULTS,
    LONG_POLICY,
    NEWEST,
    TALL_FLAGS,
    create,
    in_file,
    overtake,
    policies,
    run,
    write,
)


def test_create_makes_the_default_table_and_says_so(name: TableName) -> None:
    """Without flags, the families are raw, stats, meta and latest with their default policies."""
    result = run("create", name)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        f"table {name} created",
        "schema: key {sensor_id}#{reverse_us}, layout wide, values text",
        "family raw: policy is maxage=90d",
        "family meta: policy is maxage=90d",
        f"family stats: policy is {NEWEST}",
        f"family latest: policy is {NEWEST}",
        "family tidetable: policy is never",
    ]
    assert result.stderr == ""
    assert policies(name) == DEFAULTS
    assert read_schema(name) == TableSchema.for_new_table()


def test_create_takes_names_and_policies(name: TableName) -> None:
    """Families can have other names, and each can have a policy in cbt's syntax."""
    families = ["--raw-family", "r", "--stats-family", "s", "--meta-family", "m", "--latest-family", "n"]
    result = run("create", name, *families, "--gc", "r=maxage=3d and maxversions=2", "--gc", "m=never")
    assert result.exit_code == 0, result.output
    wanted = {"m": "never", "r": "maxage=3d && maxversions=2", "s": NEWEST, "n": NEWEST, "tidetable": "never"}
    assert policies(name) == wanted
    schema = read_schema(name)
    assert schema is not None
    assert {family: format_policy(policy) for family, policy in tables.policies_of(schema).items()} == wanted


def test_a_shorter_policy_is_warned_of(name: TableName) -> None:
    """A shorter policy prints a warning, from create and from apply; a longer one does not."""
    run("create", name, "--gc", "raw=never", "--gc", "stats=maxage=10d")
    for command in ("create", "apply"):
        result = run(command, name, "--gc", "raw=maxage=30d", "--gc", "stats=maxage=20d")
        assert result.stderr == (
            "warning: family raw: policy is never, wanted maxage=30d, which collects older cells\n"
        )


def test_a_dry_run_changes_nothing(name: TableName) -> None:
    """Create and apply report what they would do; apply also says that a table does not exist."""
    result = run("create", name, "--dry-run")
    assert (result.exit_code, result.stdout.splitlines()[0]) == (0, f"table {name} would be created")
    assert tables.find(name) is None
    assert f"create it with: {name.create_command}" in run("apply", name).stderr
    run("create", name)
    result = run("apply", name, "--gc", "raw=never", "--dry-run")
    assert result.exit_code == 1
    assert run("apply", name).stdout == f"table {name} has the requested schema: nothing to do\n"


def test_create_tells_how_a_table_differs_and_leaves_it(name: TableName) -> None:
    """Each difference is a line, the last line names table apply, the exit code is 1, and nothing changes."""
    create(name, raw="maxage=30d", stats="maxage=730d", extra="never")
    result = run("create", name)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "schema: the table has none, wanted key {sensor_id}#{reverse_us}, layout wide, values text",
        "family extra was not requested and is left alone",
        f"family latest is missing, wanted with policy {NEWEST}",
        "family meta is missing, wanted with policy maxage=90d",
        "family raw: policy is maxage=30d, wanted maxage=90d",
        f"family stats: policy is maxage=730d, wanted {NEWEST}",
        "family tidetable is missing, wanted with policy never",
        f"table {name} is unchanged; 'tidetable table apply' would make these changes",
    ]
    assert policies(name) == {"extra": "never", "raw": "maxage=30d", "stats": "maxage=730d"}


def test_create_with_apply_changes_the_table_and_drops_nothing(name: TableName) -> None:
    """Apply adds missing families and sets policies, but leaves other families alone; then nothing differs."""
    create(name, raw="maxage=30d", extra="never")
    result = run("apply", name)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == f"table {name} changed: it has the requested schema now"
    assert policies(name) == {"extra": "never", **DEFAULTS}
    again = run("create", name)
    assert again.exit_code == 0
    assert again.stdout.splitlines()[-1] == f"table {name} has the requested schema: nothing to do"


def test_of_two_that_create_the_same_table_both_succeed(name: TableName, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another program creates the table first, create reports only a different schema."""
    assert run("create", name).exit_code == 0
    find = tables.find
    for options, exit_code in (([], 0), (["--layout", "serialized"], 1)):
        missing = iter([True])
        monkeypatch.setattr(tables, "find", lambda name, it=missing: None if next(it, False) else find(name))
        result = run("create", name, *options)
        assert result.exit_code == exit_code, result.output
        assert ("nothing to do" in result.stdout) is not options
    assert "schema: layout is 'wide', wanted 'serialized'" in result.stdout
    assert read_schema(name) == TableSchema.for_new_table()


@pytest.mark.parametrize("others", [[], ["--layout", "serialized"]])
def test_of_two_that_create_a_table_at_the_same_time_one_does(
    name: TableName, monkeypatch: pytest.MonkeyPatch, others: list[str]
) -> None:
    """If another schema is stored after create made the table, it reports the difference, and never "created"."""
    create_bare = tables.create_bare
    results: list[Result] = []

    def overtaken(*asked: object) -> bool:
        monkeypatch.setattr(tables, "create_bare", create_bare)
        assert create_bare(*asked)
        results.append(run("apply", name, *others))
        return True

    monkeypatch.setattr(tables, "create_bare", overtaken)
    result = run("create", name, "--layout", "wide")
    assert results[0].exit_code == 0, results[0].output
    assert "created" not in result.stdout
    if others:
        assert result.exit_code == 1
        assert "schema: layout is 'serialized', wanted 'wide'" in result.stdout.splitlines()
    else:
        assert (result.exit_code, result.stdout) == (0, f"table {name} has the requested schema: nothing to do\n")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--gc", "other=maxage=1d"], "--gc other=…: the table's families are raw, meta, stats"),
        (["--gc", "raw"], "'raw' is not FAMILY=POLICY, such as raw=maxage=30d"),
        (["--gc", f"raw={LONG_POLICY}"], "family raw: the policy is too long: Bigtable stores at most 500 bytes"),
        (["--raw-family", "stats"], "tiers: family stats is already used by metrics"),
        (["--key", "{sensor_id}"], "'--key': '{sensor_id}' has no time"),
        (["--layout", "square"], "'square' is not one of"),
        (["--layout", "serialized", "--meta-family", "m"], "--meta-family: the schema has no such family"),
        (["--tier", "1h"], "'1h' is not WINDOW=FAMILY, such as 1d=daily"),
        (["--tier", "1h=a", "--tier", "1d@Europe/Berln=b"], "is not a time zone; did you mean Europe/Berlin?"),
        (["--tier", "1h=a", "--stats-family", "b"], "pass only one of the flags"),
        (["--schema", "no-such-file.toml"], "no-such-file.toml: No such file or directory"),
        (["--table", "projects/p/instances/i/tables/t"], "is not a valid name on Google Cloud: a table id has"),
    ],
)
def test_a_bad_option_is_a_usage_error(name: TableName, options: list[str], problem: str) -> None:
    """An invalid option is wrong usage, before any request to a server."""
    result = run("create", name, *options)
    assert result.exit_code == 2
    assert problem in result.stderr
    assert tables.find(name) is None


@pytest.mark.parametrize("wanted", [[], TALL_FLAGS])
def test_a_first_schema_is_stored_over_none(
    name: TableName, monkeypatch: pytest.MonkeyPatch, wanted: list[str]
) -> None:
    """If another program stores the first schema, apply reports how it differs from the requested one."""
    create(name, tidetable="never")
    overtake(monkeypatch, name, TableSchema.default(), None)
    result = run("apply", name, *wanted)
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
        f"table {name} is unchanged; 'tidetable table apply' would make these changes",
    ]
    assert run("apply", name, *families).exit_code == 0
    assert policies(name)["s"] == NEWEST
    assert read_schema(name) == TableSchema.default("r", "s", "m")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            TALL_FLAGS,
            "the rows of a table without a stored schema must have key {sensor_id}#{reverse_us}",
        ),
        (["--raw-family", "r"], "it has no family of readings named r"),
    ],
)
def test_rows_of_an_older_pipeline_get_no_other_schema(name: TableName, options: list[str], problem: str) -> None:
    """A table with rows takes no other schema; one without rows takes any."""
    create(name, raw="maxage=90d")
    write(name, b"s#8228675799749999")
    result = run("apply", name, *options)
    assert result.exit_code == 1
    assert problem in result.stderr
    assert result.stderr.splitlines()[-1] == f"table {name} is unchanged"
    assert policies(name) == {"raw": "maxage=90d"}
    diff = [json.loads(line) for line in run("diff", name, *options, "--format=json").stdout.splitlines()]
    assert (diff[0]["schema"], diff[0]["safe"]) == (None, False)

    run("delete", name, "--yes")
    create(name, raw="maxage=90d")
    assert run("apply", name, *options).exit_code == 0
    assert run("diff", name, *options).exit_code == 0


@pytest.mark.parametrize(
    ("options", "hidden", "flags"),
    [
        (
            ["--meta-family", "info", "--stats-family", "st2"],
            "stats and meta",
            "--stats-family stats --meta-family meta",
        ),
        (["--stats-family", "meta", "--meta-family", "m"], "stats and meta", "--stats-family stats --meta-family meta"),
    ],
)
def test_a_first_schema_hides_nothing(
    name: TableName, options: list[str], hidden: str, flags: str, tmp_path: Path
) -> None:
    """New names may not hide rows under the default names, unless there are none."""
    create(name, raw="maxage=90d", stats="maxage=730d", meta="maxage=90d", extra="maxage=90d")
    write(name, b"s#8228675799749999")
    result = run("apply", name, *options)
    assert result.exit_code == 1
    reported, unchanged = result.stderr.splitlines()
    assert reported.endswith(
        f"it has the default schema's families {hidden}, which would no longer be read; "
        f"keep them with {flags}, or pass the families with --schema"
    )
    assert unchanged == f"table {name} is unchanged"
    assert read_schema(name) is None
    more = in_file(tmp_path, 'metrics = {extra = ["x*"], raw = ["*"]}\nmetadata = {info = ["x*"], meta = ["*"]}')
    assert run("apply", name, "--schema", more).exit_code == 0


def test_a_table_without_its_schema_is_completed(name: TableName, monkeypatch: pytest.MonkeyPatch) -> None:
    """If create failed to store the schema, apply stores it."""

    def fail(*_: object) -> None:
        raise ServerError("the server cannot be reached")

    with monkeypatch.context() as patched:
        patched.setattr(tables, "write_schema", fail)
        failed = run("create", name, *TALL_FLAGS)
    assert failed.exit_code == 1
    assert failed.stderr.splitlines()[-1].endswith(f"store it with: {name.apply_command}")
    result = run("apply", name, *TALL_FLAGS)
    assert result.exit_code == 0, result.output
    assert run("diff", name, *TALL_FLAGS).exit_code == 0
