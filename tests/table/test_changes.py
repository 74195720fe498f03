import json
import time
from pathlib import Path

import pytest

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables import tables
from pipeline.cloud.tables.retention_notes import retention_of
from pipeline.cloud.tables.schema_store import read_schema, text_of
from pipeline.core.rows.rows import KeyRange
from pipeline.core.schema.gc_policies import parse_policy
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from tests.table.running import DEFAULTS, NEWEST, TALL, TALL_FLAGS, create, in_file, overtake, policies, run, write


def test_from_create_to_describe_to_diff_to_apply(name: TableName, tmp_path: Path) -> None:
    """Describe prints what create took; after an edit, diff shows the change, and apply makes it."""
    run("create", name, "--schema", in_file(tmp_path, TALL))
    described = run("describe", name, "--format=toml").stdout
    assert described == TALL
    assert run("diff", name, "--schema", in_file(tmp_path, described)).exit_code == 0

    changed = described.replace('logs = ["log_*"]', 'logs = ["log_*", "debug"]\nevents = ["event_*"]')
    path = in_file(tmp_path, changed.replace('days = "maxversions=1"', 'days = "maxage=3650d"').replace("10ms", "20ms"))
    reported = [
        "schema: metrics.logs is ['log_*'], wanted ['log_*', 'debug']",
        "schema: metrics.events is absent, wanted ['event_*']",
        "schema: rate is {'every': '10ms', 'metrics': 3, 'metadata': 0}, wanted "
        "{'every': '20ms', 'metrics': 3, 'metadata': 0}",
        "family days: policy is maxversions=1, wanted maxage=3650d || maxversions=1",
        "family events is missing, wanted with policy maxage=90d",
    ]
    before = run("diff", name, "--schema", path)
    assert (before.exit_code, before.stdout.splitlines()) == (1, reported)
    assert run("create", name, "--schema", path).exit_code == 1
    applied = run("apply", name, "--schema", path)
    assert applied.exit_code == 0, applied.output
    assert applied.stdout.splitlines() == [*reported, f"table {name} changed: it has the requested schema now"]
    after = run("diff", name, "--schema", path)
    assert (after.exit_code, after.stdout) == (0, "")
    assert policies(name)["events"] == "maxage=90d"
    assert read_schema(name) == parse_schema(Path(path).read_text())


def test_what_is_not_said_stays_as_the_table_says(name: TableName) -> None:
    """Without a file, create starts from the stored schema, not from the default one."""
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
    result = run("apply", name, "--tier", "1d=days", "--tier", "1h=hours", "--gc", "hours=never")
    assert result.exit_code == 0, result.output
    assert policies(name) == {
        "days": "maxage=730d || maxversions=1",
        "hours": "maxversions=1",
        "latest": NEWEST,
        "meta": "maxage=90d",
        "r": "maxage=1d",
        "tidetable": "never",
    }
    schema = read_schema(name)
    assert schema is not None
    assert (schema.layout.name, schema.key.text) == ("tall", "{sensor_id}#{metric}#{reverse_us}")


def test_a_change_is_made_of_what_was_read_alone(name: TableName, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another program changes the schema first, apply says so in a line, and changes nothing."""
    run("create", name)
    others = parse_schema('[tiers]\n1h = "stats"\n1d = "days"')
    overtake(monkeypatch, name, others, text_of(TableSchema.for_new_table()))
    result = run("apply", name, "--tier", "15m=quarters", "--tier", "1h=stats", "--gc", "raw=never")
    assert result.exit_code == 1
    assert result.stderr == (
        f"Error: table {name} is unchanged: another program has changed its schema meanwhile; "
        "'tidetable table diff' shows how it differs now\n"
    )
    assert "changed: it has" not in result.stdout
    assert policies(name) == DEFAULTS
    assert read_schema(name) == others


@pytest.mark.parametrize("stored", [False, True])
def test_a_change_that_fails_is_taken_back(name: TableName, monkeypatch: pytest.MonkeyPatch, stored: bool) -> None:
    """If changing the families fails, the schema is restored."""
    if stored:
        run("create", name)
    else:
        create(name, raw="maxage=90d", tidetable="never")
    before = read_schema(name)

    def fail(*_: object) -> None:
        raise ServerError("permission denied")

    monkeypatch.setattr(tables, "apply", fail)
    result = run("apply", name, "--tier", "1h=stats", "--tier", "1d=days")
    assert (result.exit_code, result.stderr) == (1, "Error: permission denied\n")
    assert read_schema(name) == before


def test_a_policy_that_somebody_else_set_is_told(name: TableName) -> None:
    """If the server's policy differs from the stored schema, diff reports it, and apply restores it."""
    run("create", name, "--gc", "raw=maxage=30d")
    tables.apply(name, [tables.Difference("raw", parse_policy("maxage=30d"), parse_policy("never"))])
    assert run("diff", name).stdout == "family raw: policy is never, wanted maxage=30d\n"
    assert run("apply", name).exit_code == 0
    assert policies(name)["raw"] == "maxage=30d"
    # The other way round: the server has it already, and the schema is made to say so.
    tables.apply(name, [tables.Difference("raw", parse_policy("maxage=30d"), parse_policy("maxage=5d"))])
    result = run("apply", name, "--gc", "raw=maxage=5d")
    assert result.stdout.splitlines()[0] == "schema: policies.raw is 'maxage=30d', wanted 'maxage=5d'"
    assert run("diff", name).exit_code == 0


def test_a_change_that_is_not_safe_is_refused(name: TableName) -> None:
    """Each is refused with the reason and an alternative; nothing is changed, not even a safe part."""
    run("create", name)
    write(name, b"s#1")
    unsafe = [*TALL_FLAGS, "--gc", "raw=never"]
    reported = run("create", name, *unsafe)
    assert reported.exit_code == 1
    assert reported.stdout.splitlines()[-1].endswith("apply' would not make these changes: not all of them are safe")
    result = run("apply", name, *unsafe)
    assert result.exit_code == 1
    key, layout, unchanged = result.stderr.splitlines()
    assert key.startswith(
        "key is '{sensor_id}#{reverse_us}', wanted '{sensor_id}#{metric}#{reverse_us}': existing rows have the old keys"
    )
    assert layout.startswith("layout is 'wide', wanted 'tall': ")
    assert "another table" in key
    assert unchanged == f"table {name} is unchanged"
    assert policies(name) == DEFAULTS
    assert read_schema(name) == TableSchema.for_new_table()


def test_an_unsafe_change_of_an_empty_table_has_a_way_out(name: TableName) -> None:
    """A table without rows can be deleted and created again."""
    run("create", name)
    result = run("apply", name, *TALL_FLAGS)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "It has no rows: you can delete it and create it again."
    run("delete", name, "--yes")
    assert run("create", name, *TALL_FLAGS).exit_code == 0


def test_what_a_schema_has_collected_stays_lost(name: TableName) -> None:
    """Also if the table's policy was made longer first, so that only the schema changes."""
    run("create", name, "--gc", "raw=maxage=6h")
    tables.apply(name, [tables.Difference("raw", parse_policy("maxage=6h"), parse_policy("maxage=90d"))])
    assert run("apply", name, "--gc", "raw=maxage=90d").exit_code == 0
    schema = read_schema(name)
    assert schema is not None
    now_us = time.time_ns() // 1000
    assert retention_of(name, schema, tables.describe(name)).readings_from_us(now_us) > now_us


def test_a_tier_that_is_added_to_rows(name: TableName, tmp_path: Path) -> None:
    """The table notes that older windows lack rows of the tier, unless it has no rows yet; not if statistics change."""

    def counted() -> dict[str, bool]:
        schema = read_schema(name)
        assert schema is not None
        retention = retention_of(name, schema, tables.describe(name))
        return {tier.family: retention.counts(tier, time.time_ns() // 1000) for tier in schema.tiers}

    run("create", name, "--tier", "1h=hours")
    assert run("apply", name, "--tier", "1h=hours", "--tier", "1d=days").exit_code == 0
    write(name, b"s#1")
    tiers = ("--tier", "15m=quarters", "--tier", "1h=hours", "--tier", "1d=days")
    assert run("apply", name, *tiers).exit_code == 0
    assert counted() == {"quarters": False, "hours": True, "days": True}
    statistics = '["count", "sum", "min", "max", "avg", "stddev", "first"]'
    text = (
        f'latest = "latest"\n[tiers]\n15m = "quarters"\n1h = "hours"\n1d = "days"\n[statistics]\nother = {statistics}\n'
    )
    assert run("apply", name, "--schema", in_file(tmp_path, text)).exit_code == 0
    assert counted() == {"quarters": False, "hours": True, "days": True}


def test_the_schemas_row_is_never_collected(name: TableName) -> None:
    """Its family never collects the schema; any other policy there is a difference."""
    run("create", name)
    # The emulator may collect within seconds, so the policy must not collect the row of 1970 while the test runs.
    tables.apply(name, [tables.Difference("tidetable", parse_policy("never"), parse_policy("maxage=36500d"))])
    assert run("diff", name).stdout == "family tidetable: policy is maxage=36500d, wanted never\n"
    assert run("apply", name).exit_code == 0
    assert policies(name) == DEFAULTS
    with RowReader.open(name) as reader:
        assert [row.key for row in reader.read(KeyRange(b"", b""))] == [b"schema#current"]


def test_diff_as_json_prints_a_line_a_difference(name: TableName) -> None:
    """JSON has each difference, and whether apply would make the change."""
    run("create", name)
    result = run("diff", name, "--values", "float64", "--gc", "raw=never", "--format=json")
    assert result.exit_code == 1
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"schema": "values", "actual": "text", "wanted": "float64", "safe": False},
        {"family": "raw", "actual": "maxage=90d", "wanted": "never", "safe": True},
    ]
