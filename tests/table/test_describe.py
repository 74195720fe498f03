import json
import os
import pty
import subprocess
from pathlib import Path

import pytest
from google.cloud import bigtable

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import tables
from pipeline.core.schema.gc_policies import parse_policy
from tests.support.preloaded import TIDETABLE
from tests.table.running import DEFAULTS, NEWEST, TALL, arguments, create, in_file, lines, run


def test_describe_prints_families_and_policies(name: TableName) -> None:
    """Text output is a small table, JSON one line. A table without a schema has no TOML to print."""
    create(name, raw="maxage=30d || maxversions=2", meta="never")
    result = run("describe", name)
    assert result.exit_code == 0, result.output
    assert lines(result)[0] == f"table {name}"
    assert lines(result)[1] == "It has no stored schema; 'tidetable table apply' stores one."
    assert {"family policy", "raw maxage=30d || maxversions=2", "meta never"} <= set(lines(result))
    families = {"meta": "never", "raw": "maxage=30d || maxversions=2"}
    printed = run("describe", name, "--format=json").stdout
    assert printed.count("\n") == 1
    assert json.loads(printed) == {"table": str(name), "schema": None, "families": families}
    result = run("describe", name, "--format=toml")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: table {name} has no stored schema\n"


def test_describe_prints_the_schema_and_example_keys(name: TableName, tmp_path: Path) -> None:
    """Text has the schema, example keys, the number of key ranges, warnings, and the real policies."""
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
                "one sensor, one day 1 range, shared with other sensors' rows",
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
def test_describe_shows_keys_of_every_kind(name: TableName, key: str, layout: str, wanted: list[str]) -> None:
    """Promoted metadata, event ids, buckets and times in front are in the examples as they are in the table."""
    run("create", name, "--key", key, "--layout", layout)
    assert set(wanted) <= set(lines(run("describe", name)))


def test_describe_shows_time_zones(name: TableName) -> None:
    """Each window of a calendar is in the schema, quoted, and has an example of its key. Adding one changes no row."""
    old, new = ["--tier", "1h=hours"], ["--tier", "1d@Europe/Berlin=days", "--tier", "1mo=months"]
    assert run("create", name, *old).exit_code == 0
    result = run("apply", name, *old, *new)
    assert result.exit_code == 0, result.output
    assert {
        '"1d@Europe/Berlin" = "days"',
        '1mo = "months"',
        "window of 1d@Europe/Berlin agg#daily@Europe/Berlin#sensor-1#2026-02-17",
        "window of 1mo agg#monthly#sensor-1#2026-02",
    } <= set(lines(run("describe", name)))
    refused = run("apply", name, *old)
    assert (refused.exit_code, "tiers.1d@Europe/Berlin is 'days', wanted absent" in refused.output) == (1, True)


def test_describe_as_json_has_the_schema(name: TableName) -> None:
    """A program reads the schema's document, examples, ranges and warnings beside the families."""
    run("create", name, "--key", "{salt:1}#{sensor_id}#{reverse_us}")
    result = run("describe", name, "--format=json")
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
            "latest": "latest",
            "metrics": {"raw": ["*"]},
            "metadata": {"meta": ["*"]},
            "tiers": {"1h": "stats"},
            "policies": {"raw": "maxage=90d", "meta": "maxage=90d", "stats": NEWEST, "latest": NEWEST},
        },
        "examples": {
            "event": "e#sensor-1#8228675799749999",
            "aggregates": {"1h": "agg#hourly#sensor-1#2026-02-17T10"},
            "latest": "latest#sensor-1",
            "schema": "schema#current",
        },
        "newest_first": True,
        "ranges": {"sensor_day": 1, "all_sensors": 16},
        "families": DEFAULTS,
    }


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
    result = run("delete", name, "--yes")  # needs no command that creates it
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
    """Describe, diff and apply stop at a stored schema that they can't parse."""
    run("create", name)
    row = bigtable.Client(project=name.project).instance(name.instance).table(name.table).direct_row(b"schema#current")
    row.set_cell("tidetable", b"schema.toml", b"colour = 1")
    row.commit()
    for command, *options in (["describe"], ["diff"], ["apply"]):
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
