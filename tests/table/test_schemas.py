import time
from pathlib import Path

import pytest

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.reading.reader import SensorTable
from pipeline.cloud.tables import tables
from pipeline.cloud.tables.schema_store import read_schema
from pipeline.core.events.event import Event
from pipeline.core.schema.toml import parse_schema
from tests.support.tables import write as write_rows
from tests.table.running import LONG_POLICY, TALL, in_file, run


def test_create_takes_a_schema_from_a_file(name: TableName, tmp_path: Path) -> None:
    """Create prints families, policies, splits and warnings; --gc overrides the file."""
    result = run("create", name, "--schema", in_file(tmp_path, TALL), "--gc", "logs=maxage=1d")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        f"table {name} created",
        "schema: key {salt:1}#{sensor_id}#{metric}#{reverse_ms}, layout tall, values float64",
        "family logs: policy is maxage=1d",
        "family raw: policy is maxage=90d",
        "family meta: policy is maxage=90d",
        "family quarters: policy is maxage=30d || maxversions=1",
        "family hours: policy is maxage=730d || maxversions=1",
        "family days: policy is maxversions=1",
        "family latest: policy is maxage=730d || maxversions=1",
        "family tidetable: policy is never",
        "split into 16 tablets, at 1 … f",
    ]
    assert result.stderr.startswith("warning: key: {salt:1}#{sensor_id}#{metric}#{reverse_ms} spreads sensors over 16")
    assert result.stderr.count("\n") == 1
    assert read_schema(name) == parse_schema(TALL.replace("maxage=7d", "maxage=1d"))


def test_newest_readings_are_the_default(name: TableName, tmp_path: Path) -> None:
    """A file without them gives them to a new table; false leaves them out, also in what describe prints."""
    assert run("create", name, "--schema", in_file(tmp_path, 'layout = "wide"')).exit_code == 0
    assert read_schema(name).latest == "latest"
    tables.delete(name)
    result = run("create", name, "--schema", in_file(tmp_path, "latest = false"))
    assert "no newest readings" in result.stdout
    described = run("describe", name, "--format=toml").stdout
    assert described.startswith("latest = false\n")
    assert run("diff", name, "--schema", in_file(tmp_path, 'layout = "wide"')).exit_code == 0
    assert run("diff", name, "--schema", in_file(tmp_path, described)).exit_code == 0


def test_newest_readings_are_added_later(name: TableName) -> None:
    """One scan of raw rows fills them; a job may have written newer ones meanwhile."""
    schema = parse_schema('metadata_alone = true\npolicies.raw = "never"')
    assert tables.create(name, schema)
    now_us = time.time_ns() // 1_000_000 * 1000
    newest, alone = Event("a", now_us, {"t": 2.0, "u": 3.0}, {}), Event("b", now_us, {}, {"status": "on"})
    events = [newest, Event("a", now_us - 1000, {"t": 1.0, "v": 4.0}, {}), alone]
    write_rows(name, [row for event in events for row in schema.rows(event)])
    result = run("apply", name, "--latest-family", "now")
    assert result.exit_code == 0, result.output
    assert "now: filled from 3 events; update the running job" in result.stdout
    with SensorTable.open(name.project, name.instance, name.table) as table:
        found = {record.sensor_id: record for record in table.latest_readings()}
    assert found["a"].readings == {"t": (now_us, 2.0), "u": (now_us, 3.0), "v": (now_us - 1000, 4.0)}
    assert found["b"].metadata == {"status": (now_us, "on")}
    refused = run("apply", name, "--latest-family", "newer")
    assert (refused.exit_code, "newest readings" in refused.stderr) == (1, True)


def test_flags_say_the_common_choices(name: TableName) -> None:
    """Flags can set key, layout, values and tiers without a file."""
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
        latest = "latest"
        metrics.r = ["*"]
        tiers = {{15m = "quarters", 1d = "days"}}
        policies.days = "never"
        """
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", ": schema: the file is empty"),
        ("key = \nlayout = 1", ":1: schema: it is not TOML: Invalid value (at line 1, column 7)"),
        ('colour = "red"', ":1: colour: there is no such key; the keys are key, layout"),
        (
            f"policies.raw = '{LONG_POLICY}'",
            ":1: policies.raw: the policy is too long: Bigtable stores at most 500 bytes",
        ),
        (
            'key = "{sensor_id}#{bucket:1h}"\nlayout = "bucket_cells"\npolicies.raw = "maxversions=5"',
            ":3: policies.raw: maxversions would collect events: in the layout bucket_cells, with keys like "
            "{sensor_id}#{bucket:1h}, each version of a cell is an event",
        ),
        (
            'key = "{sensor_id}#{reverse_s}"\nrate.every = "100ms"',
            ":1: key: {sensor_id}#{reverse_s} distinguishes events by 1s, and there is one every 100ms",
        ),
    ],
)
def test_a_bad_schema_is_refused(name: TableName, tmp_path: Path, text: str, problem: str) -> None:
    """One line names the file, the line and the key at fault, and no table is created; diff prints the same."""
    path = in_file(tmp_path, text)
    for command in ("create", "diff"):
        result = run(command, name, "--schema", path)
        assert result.exit_code == 2
        assert result.stderr.splitlines()[-1].startswith(f"Error: {path}{problem}")
    assert tables.find(name) is None


def test_a_bad_file_is_refused_before_a_server_is_asked(
    name: TableName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is not text, or --gc for a family that it lacks, is refused without a server."""
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", "127.0.0.1:1")
    path = tmp_path / "latin.toml"
    path.write_bytes(b'key = "\xff"')
    for options, problem in (
        ([str(path)], f"{path}: byte 8 is not text in UTF-8"),
        ([in_file(tmp_path, TALL), "--gc", "stats=never"], "--gc stats=…: the table's families are logs, raw, meta"),
    ):
        result = run("create", name, "--schema", *options)
        assert result.exit_code == 2
        assert problem in result.stderr


@pytest.mark.parametrize(
    "options",
    [
        ["--key", "{sensor_id}#{iso_us}"],
        ["--tier", "1h=stats"],
    ],
)
def test_a_file_describes_the_whole_schema(name: TableName, tmp_path: Path, options: list[str]) -> None:
    """A file combined with a flag that sets part of the schema is wrong usage."""
    result = run("create", name, "--schema", in_file(tmp_path, TALL), *options)
    assert result.exit_code == 2
    assert "--schema describes the whole schema" in result.stderr
