import json
import os
import pty
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from google.cloud import bigtable

from pipeline.cloud import schema_store, tables
from pipeline.cloud.errors import ServerProblem
from pipeline.cloud.names import TableName
from pipeline.cloud.row_reader import RowReader
from pipeline.cloud.schema_store import read_schema, text_of, write_schema
from pipeline.core.rows import KeyRange
from pipeline.core.schema.policies import format_policy, parse_policy
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.toolbox.cli import main

DEFAULTS = {"meta": "maxage=90d", "raw": "maxage=90d", "stats": "maxage=730d", "tidetable": "never"}
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
    """A table as somebody else made it: families, and no schema."""
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


def test_create_makes_the_default_table_and_says_so(name: TableName) -> None:
    """Without a word about it, the families are raw, stats and meta under their default policies."""
    result = run("create", name)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        f"table {name} created",
        "schema: key {sensor_id}#{reverse_us}, layout wide, values text",
        "family raw: policy is maxage=90d",
        "family meta: policy is maxage=90d",
        "family stats: policy is maxage=730d",
        "family tidetable: policy is never",
    ]
    assert result.stderr == ""
    assert policies(name) == DEFAULTS
    assert read_schema(name) == TableSchema.default()


def test_create_takes_names_and_policies(name: TableName) -> None:
    """Families can be called otherwise, and each can have a policy of cbt's grammar."""
    families = ["--raw-family", "r", "--stats-family", "s", "--meta-family", "m"]
    result = run("create", name, *families, "--gc", "r=maxage=3d and maxversions=2", "--gc", "m=never")
    assert result.exit_code == 0, result.output
    wanted = {"m": "never", "r": "maxage=3d && maxversions=2", "s": "maxage=730d", "tidetable": "never"}
    assert policies(name) == wanted
    schema = read_schema(name)
    assert schema is not None
    assert {family: format_policy(policy) for family, policy in tables.policies_of(schema).items()} == wanted


def test_a_shorter_policy_is_warned_of(name: TableName) -> None:
    """Whoever lets readings go sooner than now is told, before and while it is done; a longer policy is no matter."""
    run("create", name, "--gc", "raw=never", "--gc", "stats=maxage=10d")
    for apply in ([], ["--apply"]):
        result = run("create", name, "--gc", "raw=maxage=30d", "--gc", "stats=maxage=20d", *apply)
        assert result.stderr == (
            "warning: family raw: policy is never, wanted maxage=30d, which collects what is older\n"
        )


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
        "schema: the table has none of its own, wanted key {sensor_id}#{reverse_us}, layout wide, values text",
        "family extra is not one of those asked for and is left alone",
        "family meta is missing, wanted with policy maxage=90d",
        "family raw: policy is maxage=30d, wanted maxage=90d",
        "family tidetable is missing, wanted with policy never",
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


def test_of_two_that_create_the_same_table_both_succeed(name: TableName, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is overtaken finds what it wanted; who wanted otherwise is told so, and the first one's schema stays."""
    assert run("create", name).exit_code == 0
    find = tables.find
    for options, exit_code in (([], 0), (["--layout", "serialized"], 1)):
        missing = iter([True])
        monkeypatch.setattr(tables, "find", lambda name, it=missing: None if next(it, False) else find(name))
        result = run("create", name, *options)
        assert result.exit_code == exit_code, result.output
        assert ("nothing to do" in result.stdout) is not options
    assert "schema: layout is 'wide', wanted 'serialized'" in result.stdout
    assert read_schema(name) == TableSchema.default()


@pytest.mark.parametrize("others", [[], ["--layout", "serialized"]])
def test_of_two_that_create_a_table_at_the_same_time_one_does(
    name: TableName, monkeypatch: pytest.MonkeyPatch, others: list[str]
) -> None:
    """Who has made the table, and finds another's schema in it, tells how that differs, and never "created"."""
    create_bare = tables.create_bare
    results: list[Result] = []

    def overtaken(*asked: object) -> bool:
        monkeypatch.setattr(tables, "create_bare", create_bare)
        assert create_bare(*asked)
        results.append(run("create", name, *others, "--apply"))
        return True

    monkeypatch.setattr(tables, "create_bare", overtaken)
    result = run("create", name, "--layout", "wide")
    assert results[0].exit_code == 0, results[0].output
    assert "created" not in result.stdout
    if others:
        assert result.exit_code == 1
        assert "schema: layout is 'serialized', wanted 'wide'" in result.stdout.splitlines()
    else:
        assert (result.exit_code, result.stdout) == (0, f"table {name} has what is wanted: nothing to do\n")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--gc", "other=maxage=1d"], "--gc other=…: the table's families are raw, meta, stats"),
        (["--gc", "tidetable=maxage=1d"], "the table's families are raw, meta, stats"),
        (["--gc", "raw"], "'raw': it takes FAMILY=POLICY, as in raw=maxage=30d"),
        (["--gc", "raw=maxage=90x"], "expected at character 8, not '90x'"),
        (["--gc", f"raw={LONG_POLICY}"], "family raw: the policy is too long: Bigtable stores at most 500 bytes"),
        (["--raw-family", "stats"], "tiers: family stats is one of metrics already"),
        (["--raw-family", ""], "metrics: '' is not a family's name"),
        (["--meta-family", "tidetable"], "metadata: family tidetable is the table's own"),
        (["--key", "{sensor_id}"], "'--key': '{sensor_id}' has no time"),
        (["--key", "{sensor_id}#{metric}#{iso_us}"], "key: {sensor_id}#{metric}#{iso_us} has {metric}, but a row of"),
        (["--layout", "tall"], "key: {sensor_id}#{reverse_us} has no {metric}"),
        (["--layout", "square"], "'square' is not one of"),
        (["--layout", "serialized", "--values", "float64"], "values: the layout serialized keeps values in the event"),
        (["--layout", "serialized", "--meta-family", "m"], "--meta-family: the schema has no such family"),
        (["--tier", "1h"], "'1h': it takes WINDOW=FAMILY, as in 1d=daily"),
        (["--tier", "7m=stats"], "a window of 7m does not divide a day"),
        (["--tier", "1h=a", "--tier", "60m=b"], "are the same window"),
        (["--tier", "1h=a", "--stats-family", "b"], "leave one of them out"),
        (["--schema", "no-such-file.toml"], "'no-such-file.toml': No such file or directory"),
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
    assert lines(result)[0] == f"table {name}"
    assert lines(result)[1] == "It has no schema of its own; 'tidetable table create' with --apply stores one."
    assert {"family policy", "raw maxage=30d || maxversions=2", "meta never"} <= set(lines(result))


def test_describe_as_json_prints_one_line(name: TableName) -> None:
    """A program reads one line of JSON with the families by name."""
    create(name, raw="maxage=30d", meta="never")
    result = run("describe", name, "--json")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\n") == 1
    families = {"meta": "never", "raw": "maxage=30d"}
    assert json.loads(result.stdout) == {"table": str(name), "schema": None, "families": families}


@pytest.mark.parametrize("command", ["describe", "delete", "diff"])
def test_a_missing_table_is_one_line(name: TableName, command: str) -> None:
    """Describing or deleting what is not there ends with exit code 1 and one line on standard error."""
    result = run(command, name)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f"Error: table {name} does not exist\n"


@pytest.mark.parametrize("command", ["create", "describe", "delete", "diff"])
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


# Schemas

TALL = """\
key = "{salt:1}#{sensor_id}#{metric}#{reverse_ms}"
layout = "tall"
values = "float64"

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
quarters = "maxage=30d"
hours = "maxage=730d"
days = "never"

[rate]
every = "10ms"
metrics = 3
metadata = 0
"""
TALL_FLAGS = ["--layout", "tall", "--key", "{sensor_id}#{metric}#{reverse_us}"]


def test_create_takes_a_schema_from_a_file(name: TableName, tmp_path: Path) -> None:
    """Its families, policies, splits and warnings are told; --gc has the last word."""
    result = run("create", name, "--schema", in_file(tmp_path, TALL), "--gc", "logs=maxage=1d")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        f"table {name} created",
        "schema: key {salt:1}#{sensor_id}#{metric}#{reverse_ms}, layout tall, values float64",
        "family logs: policy is maxage=1d",
        "family raw: policy is maxage=90d",
        "family meta: policy is maxage=90d",
        "family quarters: policy is maxage=30d",
        "family hours: policy is maxage=730d",
        "family days: policy is never",
        "family tidetable: policy is never",
        "split into 16 tablets, at 1 … f",
    ]
    assert result.stderr.startswith("warning: key: {salt:1}#{sensor_id}#{metric}#{reverse_ms} spreads sensors over 16")
    assert result.stderr.count("\n") == 1
    assert read_schema(name) == parse_schema(TALL.replace("maxage=7d", "maxage=1d"))


def test_a_schema_can_come_by_standard_input(name: TableName) -> None:
    """A dash is standard input, so that what describe prints can be piped."""
    result = CliRunner().invoke(main, arguments("create", name, "--schema", "-"), input=TALL)
    assert result.exit_code == 0, result.output
    assert read_schema(name) == parse_schema(TALL)


def test_flags_say_the_common_choices(name: TableName) -> None:
    """Key, layout, values and tiers can be said without a file."""
    key = "{sensor_id}#{bucket:1d}"
    tiers = ["--tier", "1d=days", "--tier", "15m=quarters"]
    options = ["--key", key, "--layout", "bucket_cells", "--values", "float64", *tiers, "--gc", "days=never"]
    result = run("create", name, *options, "--raw-family", "r")
    assert result.exit_code == 0, result.output
    assert "warning: rate: is not declared" in result.stderr
    assert read_schema(name) == parse_schema(
        f"""
        key = "{key}"
        layout = "bucket_cells"
        values = "float64"
        metrics.r = ["*"]
        tiers = {{15m = "quarters", 1d = "days"}}
        policies.days = "never"
        """
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "schema: it is empty"),
        (" \n\t\n", "schema: it is empty"),
        ("key = \nlayout = 1", "schema: it is not TOML: Invalid value (at line 1, column 7)"),
        ('colour = "red"', "colour: there is no such key; there are key, layout"),
        ('layout = "square"', "layout: 'square' is none of wide, tall"),
        ('key = "{sensor}#{reverse_us}"', "key: {sensor} is no token; there are {sensor_id}"),
        ("metrics.raw = []", "metrics.raw: takes a list of globs"),
        ("tiers.7m = 'x'", "tiers.7m: a window of 7m does not divide a day"),
        ("policies.raw = 'maxage=1y'", "policies.raw: policy 'maxage=1y': an age"),
        ("policies.rwa = 'never'", "policies.rwa: there is no such family"),
        (f"policies.raw = '{LONG_POLICY}'", "policies.raw: the policy is too long: Bigtable stores at most 500 bytes"),
        (
            "".join(f"metrics.f{number} = ['m{number}']\n" for number in range(98)),
            "metrics: 100 families and the table's own are more than Bigtable's 100",
        ),
        (
            'key = "{sensor_id}#{bucket:1h}"\nlayout = "bucket_cells"\npolicies.raw = "maxversions=5"',
            "policies.raw: maxversions would collect events: in the layout bucket_cells, under keys like "
            "{sensor_id}#{bucket:1h}, each version of a cell is one",
        ),
        (
            'key = "{sensor_id}#{bucket:1w}"\nlayout = "bucket_cells"\nrate = {every = "10ms", metrics = 3}',
            "key: a row of {sensor_id}#{bucket:1w} would be 60,480,000 events × 96 bytes = 5.8",
        ),
        (
            'layout = "serialized"\nrate = {every = "1s", event_bytes = 20000000}',
            "rate.event_bytes: an event of 20 MB in one cell is over the 10 MB that",
        ),
        (
            'key = "{sensor_id}#{reverse_s}"\nrate.every = "100ms"',
            "key: {sensor_id}#{reverse_s} tells events apart by 1s, and there is one every 100ms",
        ),
    ],
)
def test_a_bad_schema_is_refused(name: TableName, tmp_path: Path, text: str, problem: str) -> None:
    """One line names the file and the key at fault, and no table is created; diff tells the same."""
    path = in_file(tmp_path, text)
    for command in ("create", "diff"):
        result = run(command, name, "--schema", path)
        assert result.exit_code == 2
        assert result.stderr.splitlines()[-1].startswith(f"Error: {path}: {problem}")
    assert tables.find(name) is None


def test_a_bad_file_is_refused_before_a_server_is_asked(
    name: TableName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is no text, and a policy beside it of a family that it does not have, need no server to be wrong."""
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", "127.0.0.1:1")
    path = tmp_path / "latin.toml"
    path.write_bytes(b'key = "\xff"')
    for options, problem in (
        ([str(path)], f"{path}: 'utf-8' codec can't decode"),
        ([in_file(tmp_path, TALL), "--gc", "stats=never"], "--gc stats=…: the table's families are logs, raw, meta"),
    ):
        result = run("create", name, "--schema", *options)
        assert result.exit_code == 2
        assert problem in result.stderr


@pytest.mark.parametrize(
    "options",
    [
        ["--key", "{sensor_id}#{iso_us}"],
        ["--layout", "wide"],
        ["--values", "text"],
        ["--tier", "1h=stats"],
        ["--raw-family", "raw"],
        ["--stats-family", "stats"],
        ["--meta-family", "meta"],
    ],
)
def test_a_file_says_all_of_it(name: TableName, tmp_path: Path, options: list[str]) -> None:
    """A file and a flag that says a part of the same are wrong usage."""
    result = run("create", name, "--schema", in_file(tmp_path, TALL), *options)
    assert result.exit_code == 2
    assert "--schema says all of it" in result.stderr


def test_from_create_to_describe_to_diff_to_apply(name: TableName, tmp_path: Path) -> None:
    """What describe prints is what create took; changed by hand, diff tells how, and --apply makes it so."""
    run("create", name, "--schema", in_file(tmp_path, TALL))
    described = run("describe", name, "--toml").stdout
    assert described == TALL
    assert run("diff", name, "--schema", in_file(tmp_path, described)).exit_code == 0

    changed = described.replace('logs = ["log_*"]', 'logs = ["log_*", "debug"]\nevents = ["event_*"]')
    path = in_file(tmp_path, changed.replace('days = "never"', 'days = "maxage=3650d"').replace("10ms", "20ms"))
    told = [
        "schema: metrics.logs is ['log_*'], wanted ['log_*', 'debug']",
        "schema: metrics.events is absent, wanted ['event_*']",
        "schema: rate is {'every': '10ms', 'metrics': 3, 'metadata': 0}, wanted "
        "{'every': '20ms', 'metrics': 3, 'metadata': 0}",
        "family days: policy is never, wanted maxage=3650d",
        "family events is missing, wanted with policy maxage=90d",
    ]
    before = run("diff", name, "--schema", path)
    assert (before.exit_code, before.stdout.splitlines()) == (1, told)
    assert run("create", name, "--schema", path).exit_code == 1
    applied = run("create", name, "--schema", path, "--apply")
    assert applied.exit_code == 0, applied.output
    assert applied.stdout.splitlines() == [*told, f"table {name} changed: it has what is wanted now"]
    after = run("diff", name, "--schema", path)
    assert (after.exit_code, after.stdout) == (0, "")
    assert policies(name)["events"] == "maxage=90d"
    assert read_schema(name) == parse_schema(Path(path).read_text())


def test_what_is_not_said_stays_as_the_table_says(name: TableName) -> None:
    """Without a file, create starts from the table's own schema, not from the default one."""
    run(
        "create",
        name,
        *TALL_FLAGS,
        "--gc",
        "raw=maxage=1d",
        "--tier",
        "1d=days",
        "--raw-family",
        "r",
        "--gc",
        "r=never",
    )
    run("create", name, *TALL_FLAGS, "--raw-family", "r", "--gc", "r=maxage=1d", "--tier", "1d=days")
    assert run("diff", name).exit_code == 0
    result = run("create", name, "--tier", "1d=days", "--tier", "1h=hours", "--gc", "hours=never", "--apply")
    assert result.exit_code == 0, result.output
    assert policies(name) == {
        "days": "maxage=730d",
        "hours": "never",
        "meta": "maxage=90d",
        "r": "maxage=1d",
        "tidetable": "never",
    }
    schema = read_schema(name)
    assert schema is not None
    assert (schema.layout.name, schema.key.text) == ("tall", "{sensor_id}#{metric}#{reverse_us}")


def overtake(monkeypatch: pytest.MonkeyPatch, name: TableName, schema: TableSchema, over: bytes | None) -> None:
    """Has somebody else store a schema just before the next one is stored."""
    replace_text = schema_store.replace_text

    def overtaken(*asked: object) -> bool:
        monkeypatch.setattr(schema_store, "replace_text", replace_text)
        assert write_schema(name, schema, over)
        return replace_text(*asked)

    monkeypatch.setattr(schema_store, "replace_text", overtaken)


def test_a_change_is_made_of_what_was_read_alone(name: TableName, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is overtaken by another's change is told so in a line, and changes nothing, families included."""
    run("create", name)
    others = parse_schema('[tiers]\n1h = "stats"\n1d = "days"')
    overtake(monkeypatch, name, others, text_of(TableSchema.default()))
    result = run("create", name, "--tier", "15m=quarters", "--tier", "1h=stats", "--gc", "raw=never", "--apply")
    assert result.exit_code == 1
    assert result.stderr == (
        f"Error: table {name} is unchanged: somebody else has changed its schema meanwhile; "
        "'tidetable table diff' tells how it differs now\n"
    )
    assert "changed: it has" not in result.stdout
    assert policies(name) == DEFAULTS
    assert read_schema(name) == others


@pytest.mark.parametrize("wanted", [[], TALL_FLAGS])
def test_a_first_schema_is_stored_over_none(
    name: TableName, monkeypatch: pytest.MonkeyPatch, wanted: list[str]
) -> None:
    """Who is overtaken by another's first schema is told how it differs from what is wanted."""
    create(name, tidetable="never")
    overtake(monkeypatch, name, TableSchema.default(), None)
    result = run("create", name, *wanted, "--apply")
    assert result.exit_code == 1
    assert ("schema: layout is 'wide', wanted 'tall'" in result.stdout) is bool(wanted)
    assert "family raw is missing, wanted with policy maxage=90d" in result.stdout
    assert result.stdout.splitlines()[-1].startswith(f"table {name} is unchanged")
    assert policies(name) == {"tidetable": "never"}
    assert read_schema(name) == TableSchema.default()


@pytest.mark.parametrize("stored", [False, True])
def test_a_change_that_fails_is_taken_back(name: TableName, monkeypatch: pytest.MonkeyPatch, stored: bool) -> None:
    """Where the families can't be changed, the schema is as it was."""
    if stored:
        run("create", name)
    else:
        create(name, raw="maxage=90d", tidetable="never")
    before = read_schema(name)

    def fail(*_: object) -> None:
        raise ServerProblem("permission denied")

    monkeypatch.setattr(tables, "apply", fail)
    result = run("create", name, "--tier", "1h=stats", "--tier", "1d=days", "--apply")
    assert (result.exit_code, result.stderr) == (1, "Error: permission denied\n")
    assert read_schema(name) == before


def test_a_policy_that_somebody_else_set_is_told(name: TableName) -> None:
    """The server's policy and that of the table's own schema can part; diff tells it, --apply mends it."""
    run("create", name, "--gc", "raw=maxage=30d")
    tables.apply(name, [tables.Difference("raw", parse_policy("maxage=30d"), parse_policy("never"))])
    assert run("diff", name).stdout == "family raw: policy is never, wanted maxage=30d\n"
    assert run("create", name, "--apply").exit_code == 0
    assert policies(name)["raw"] == "maxage=30d"
    # The other way round: the server has it already, and the schema is made to say so.
    tables.apply(name, [tables.Difference("raw", parse_policy("maxage=30d"), parse_policy("maxage=5d"))])
    result = run("create", name, "--gc", "raw=maxage=5d", "--apply")
    assert result.stdout.splitlines()[0] == "schema: policies.raw is 'maxage=30d', wanted 'maxage=5d'"
    assert run("diff", name).exit_code == 0


def test_a_change_that_is_not_safe_is_refused(name: TableName) -> None:
    """Each is told with the reason and what to do instead; nothing at all is changed, not even what would be safe."""
    run("create", name)
    write(name, b"s#1")
    unsafe = [*TALL_FLAGS, "--gc", "raw=never"]
    told = run("create", name, *unsafe)
    assert told.exit_code == 1
    assert told.stdout.splitlines()[-1].endswith("--apply would not make these changes: not all of them are safe")
    result = run("create", name, *unsafe, "--apply")
    assert result.exit_code == 1
    key, layout, unchanged = result.stderr.splitlines()
    assert key.startswith(
        "key is '{sensor_id}#{reverse_us}', wanted '{sensor_id}#{metric}#{reverse_us}': the rows that"
    )
    assert layout.startswith("layout is 'wide', wanted 'tall': ")
    assert "make another table" in key
    assert unchanged == f"table {name} is unchanged"
    assert policies(name) == DEFAULTS
    assert read_schema(name) == TableSchema.default()


def test_an_unsafe_change_of_an_empty_table_has_a_way_out(name: TableName) -> None:
    """Where nothing is written yet, the table can be made anew."""
    run("create", name)
    result = run("create", name, *TALL_FLAGS, "--apply")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "It has no rows: it can be deleted and created anew."
    run("delete", name)
    assert run("create", name, *TALL_FLAGS).exit_code == 0


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (["--values", "float64"], "values"),
        (["--raw-family", "r"], "metrics.raw"),
        (["--meta-family", "m"], "metadata.meta"),
        (["--stats-family", "s"], "tiers.1h"),
        (["--tier", "15m=stats"], "tiers.1h"),
    ],
)
def test_a_family_that_may_hold_rows_keeps_its_name(name: TableName, options: list[str], key: str) -> None:
    """Another encoding, and a family by another name, would hide what is there."""
    run("create", name)
    write(name, b"s#1")
    result = run("create", name, *options, "--apply")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"{key} is ")
    assert read_schema(name) == TableSchema.default()


def test_the_order_of_families_is_a_difference(name: TableName, tmp_path: Path) -> None:
    """The first family that matches takes a metric, so that their order is a part of the schema."""
    text = "metrics = {{{}}}"
    one, other = 'logs = ["log_*"]', 'raw = ["*"]'
    run("create", name, "--schema", in_file(tmp_path, text.format(f"{one}, {other}")))
    path = in_file(tmp_path, text.format(f"{other}, {one}"))
    assert run("diff", name, "--schema", path).stdout == "schema: metrics is ['logs', 'raw'], wanted ['raw', 'logs']\n"
    assert run("create", name, "--schema", path, "--apply").exit_code == 0
    assert run("diff", name, "--schema", path).exit_code == 0


def test_rows_of_an_older_pipeline_get_the_default_schema(name: TableName) -> None:
    """A table with rows and without a schema can be given the default one, under the names of its families."""
    create(name, r="maxage=90d", s="maxage=730d", m="maxage=90d")
    write(name, b"s#8228675799749999", "r")
    families = ["--raw-family", "r", "--stats-family", "s", "--meta-family", "m"]
    result = run("create", name, *families)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "schema: the table has none of its own, wanted key {sensor_id}#{reverse_us}, layout wide, values text",
        "family tidetable is missing, wanted with policy never",
        f"table {name} is unchanged; --apply would make these changes",
    ]
    assert run("create", name, *families, "--apply").exit_code == 0
    assert read_schema(name) == TableSchema.default("r", "s", "m")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            TALL_FLAGS,
            "the rows of a table that says nothing of itself can be of no other than key {sensor_id}#{reverse_us}",
        ),
        (["--values", "float64"], "the rows of a table that says nothing of itself can be of no other"),
        (["--raw-family", "r"], "it has no family of readings that is called r"),
    ],
)
def test_rows_of_an_older_pipeline_get_no_other_schema(name: TableName, options: list[str], problem: str) -> None:
    """To store another one would be a lie; a table without rows takes any."""
    create(name, raw="maxage=90d")
    write(name, b"s#8228675799749999")
    result = run("create", name, *options, "--apply")
    assert result.exit_code == 1
    assert problem in result.stderr
    assert result.stderr.splitlines()[-1] == f"table {name} is unchanged"
    assert policies(name) == {"raw": "maxage=90d"}
    diff = [json.loads(line) for line in run("diff", name, *options, "--json").stdout.splitlines()]
    assert (diff[0]["schema"], diff[0]["safe"]) == (None, False)

    run("delete", name)
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
    """What an older pipeline wrote under the default's names is not left behind by others, unless nothing is there."""
    create(name, raw="maxage=90d", stats="maxage=730d", meta="maxage=90d", extra="maxage=90d")
    write(name, b"s#8228675799749999")
    result = run("create", name, *options, "--apply")
    assert result.exit_code == 1
    told, unchanged = result.stderr.splitlines()
    assert told.endswith(
        f"it has the default schema's {hidden}, which would no longer be read; "
        f"name what is there with {flags}, or pass the families by --schema"
    )
    assert unchanged == f"table {name} is unchanged"
    assert read_schema(name) is None
    more = in_file(tmp_path, 'metrics = {extra = ["x*"], raw = ["*"]}\nmetadata = {info = ["x*"], meta = ["*"]}')
    assert run("create", name, "--schema", more, "--apply").exit_code == 0


def test_a_table_without_its_schema_is_completed(name: TableName, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the schema could not be stored after the table was created, --apply makes up for it."""

    def fail(*_: object) -> None:
        raise ServerProblem("the server cannot be reached")

    with monkeypatch.context() as patched:
        patched.setattr(tables, "write_schema", fail)
        failed = run("create", name, *TALL_FLAGS)
    assert failed.exit_code == 1
    assert failed.stderr.splitlines()[-1].endswith("the same once more with --apply stores it")
    result = run("create", name, *TALL_FLAGS, "--apply")
    assert result.exit_code == 0, result.output
    assert run("diff", name, *TALL_FLAGS).exit_code == 0


def test_the_schemas_row_is_never_collected(name: TableName) -> None:
    """Its family has a policy that keeps it, and one that somebody else set is a difference."""
    run("create", name)
    tables.apply(name, [tables.Difference("tidetable", parse_policy("never"), parse_policy("maxage=1d"))])
    assert run("diff", name).stdout == "family tidetable: policy is maxage=1d, wanted never\n"
    assert run("create", name, "--apply").exit_code == 0
    assert policies(name) == DEFAULTS
    with RowReader.open(name) as reader:
        assert [row.key for row in reader.read(KeyRange(b"", b""))] == [b"schema#current"]


def test_diff_as_json_prints_a_line_a_difference(name: TableName) -> None:
    """A program reads what differs, and whether --apply would make it so."""
    run("create", name)
    result = run("diff", name, "--values", "float64", "--gc", "raw=never", "--json")
    assert result.exit_code == 1
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"schema": "values", "actual": "text", "wanted": "float64", "safe": False},
        {"family": "raw", "actual": "maxage=90d", "wanted": "never", "safe": True},
    ]


def test_diff_changes_nothing(name: TableName) -> None:
    """Whatever is wanted, the table stays; a family that nobody asked for is no difference."""
    create(name, raw="maxage=90d", extra="never")
    assert run("diff", name).exit_code == 1
    assert policies(name) == {"extra": "never", "raw": "maxage=90d"}
    run("create", name, "--apply")
    result = run("diff", name)
    assert result.exit_code == 0
    assert result.stdout == "family extra is not one of those asked for and is left alone\n"


def test_a_stored_text_that_is_no_schema_stops_everything(name: TableName) -> None:
    """Neither describe nor --apply goes past a schema that is not understood."""
    run("create", name)
    row = bigtable.Client(project=name.project).instance(name.instance).table(name.table).direct_row(b"schema#current")
    row.set_cell("tidetable", b"schema.toml", b"colour = 1")
    row.commit()
    for command, *options in (["describe"], ["diff"], ["create", "--apply"]):
        result = run(command, name, *options)
        assert result.exit_code == 1
        assert result.stderr.startswith(
            f"Error: table {name}: what its row schema#current holds is not read as a schema"
        )
        assert result.stderr.count("\n") == 1


def test_describe_prints_the_schema_and_example_keys(name: TableName, tmp_path: Path) -> None:
    """A person sees the schema, a key of each kind, what keys cost a reader, what hurts, and the real policies."""
    run("create", name, "--schema", in_file(tmp_path, TALL))
    tables.apply(name, [tables.Difference("days", parse_policy("never"), parse_policy("maxage=9d"))])
    result = run("describe", name)
    assert result.exit_code == 0, result.output
    assert TALL in result.stdout
    assert {
        "reading e#sensor-1#temperature#8228675799749",
        "window of 15m agg#15m#sensor-1#2026-02-17T10:30:00",
        "window of 1h agg#hourly#sensor-1#2026-02-17T10",
        "window of 1d agg#daily#sensor-1#2026-02-17",
        "schema schema#current",
        "of one sensor newest first",
        "one sensor, one day 1 range a metric",
        "all sensors 16 ranges",
        "days maxage=9d",
        "tidetable never",
    } <= set(lines(result))
    assert lines(result)[-1].startswith("warning: key: {salt:1}#{sensor_id}")


@pytest.mark.parametrize(
    ("key", "layout", "wanted"),
    [
        ("{bucket:1h}#{sensor_id}#{iso_ms}", "wide", ["of one sensor oldest first", "one sensor, one day 24 ranges"]),
        (
            "{iso_us}#{sensor_id}",
            "wide",
            [
                "event 2026-02-17T10:30:00.250000#sensor-1",
                "one sensor, one day 1 range, in which the rows of others lie too",
            ],
        ),
        (
            "{metadata.location}#{sensor_id}#{bucket:1w}",
            "bucket_serialized",
            ["bucket location#sensor-1#2026-W08", "one sensor, one day 1 range", "all sensors 1 range"],
        ),
        ("x[b]{sensor_id}#{reverse_us}#{event_id}", "wide", ["event x[b]sensor-1#8228675799749999#event-1"]),
    ],
)
def test_describe_tells_keys_of_every_kind(name: TableName, key: str, layout: str, wanted: list[str]) -> None:
    """Promoted metadata, event ids, buckets and times in front are in the examples as they are in the table."""
    run("create", name, "--key", key, "--layout", layout)
    assert set(wanted) <= set(lines(run("describe", name)))


def test_describe_as_json_has_the_schema(name: TableName) -> None:
    """A program reads the schema's document, examples, ranges and warnings beside the families."""
    run("create", name, "--key", "{salt:1}#{sensor_id}#{reverse_us}")
    result = run("describe", name, "--json")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\n") == 1
    described = json.loads(result.stdout)
    assert described.pop("warnings")[0].startswith("key: {salt:1}#{sensor_id}#{reverse_us} spreads sensors")
    assert described == {
        "table": str(name),
        "schema": {
            "key": "{salt:1}#{sensor_id}#{reverse_us}",
            "layout": "wide",
            "values": "text",
            "metrics": {"raw": ["*"]},
            "metadata": {"meta": ["*"]},
            "tiers": {"1h": "stats"},
            "policies": {"raw": "maxage=90d", "meta": "maxage=90d", "stats": "maxage=730d"},
        },
        "examples": {
            "event": "e#sensor-1#8228675799749999",
            "aggregates": {"1h": "agg#hourly#sensor-1#2026-02-17T10"},
            "schema": "schema#current",
        },
        "newest_first": True,
        "ranges": {"sensor_day": 1, "all_sensors": 16},
        "families": DEFAULTS,
    }


def test_describe_without_a_schema_has_no_toml(name: TableName) -> None:
    """What there is not can't be piped."""
    create(name, raw="never")
    result = run("describe", name, "--toml")
    assert result.exit_code == 1
    assert (result.stdout, result.stderr) == ("", f"Error: table {name} has no schema of its own\n")
