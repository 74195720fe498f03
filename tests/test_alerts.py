"""Tests of ``tidetable alerts`` and ``tidetable read alerts``, on tables in the emulator."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pipeline import SensorTable
from pipeline.cli.root import main
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables import tables
from pipeline.cloud.tables.alert_store import read_rules
from pipeline.core.alerts.alert_rows import FAMILY, alert_row
from pipeline.core.alerts.rules import AlertCondition, Rule
from pipeline.core.rows.newest_row import NewestReadings
from pipeline.core.schema.declared_metric import DeclaredMetric
from pipeline.core.schema.gc_policies import format_policy
from pipeline.core.schema.table_schema import TableSchema
from tests.support.alerts import in_order
from tests.support.rows import decoded
from tests.support.tables import HOUR, T, created, write

_RULES = '[[rule]]\nname = "warm"\nsensors = "freezer-*"\nmetric = "t"\nabove = 10\nfor = "10m"\nseverity = "page"\n'


@pytest.fixture
def table(bigtable: str) -> TableName:
    """A table of the default schema."""
    return created(replace(TableSchema.for_new_table(), declared={"t": DeclaredMetric("°C", "Air")}))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of rules."""
    path = tmp_path / "rules.toml"
    path.write_text(_RULES)
    return path


def _run(table: TableName, *arguments: str | Path) -> Result:
    which = ["--project", table.project, "--instance", table.instance, "--table", table.table]
    return CliRunner().invoke(main, [*map(str, arguments), *which])


def test_rules_are_stored_and_shown(table: TableName, file: Path) -> None:
    """Rules are stored with the table, which gets a family of alerts, and come back as they were written."""
    assert _run(table, "alerts", "rules").stderr == f"table {table.table} has no rules of alerts\n"
    applied = _run(table, "alerts", "apply", file)
    assert (applied.exit_code, applied.stderr) == (0, "")
    assert applied.stdout == f"table {table.table}: 1 rule stored; a running job takes them within a minute\n"
    assert format_policy(tables.describe(table)[FAMILY]) == "maxage=730d"
    assert _run(table, "alerts", "rules", "--format=toml").stdout == _RULES
    shown = _run(table, "alerts", "rules").stdout
    assert shown == "warm: t above 10 for 10m; sensors freezer-*; severity page\n"
    assert json.loads(_run(table, "alerts", "rules", "--format=json").stdout)["condition"] == "t above 10 for 10m"
    assert _run(table, "table", "diff").exit_code == 0
    file.write_text("")
    assert _run(table, "alerts", "apply", file).exit_code == 0
    assert _run(table, "alerts", "rules", "--format=toml").stdout == ""


def test_bad_rules_change_nothing(table: TableName, file: Path) -> None:
    """Each rule that is not valid has a line, and the table stays as it is."""
    file.write_text(_RULES + _RULES.replace("above", "abvoe") + '[[rule]]\nname = "x"\n')
    result = _run(table, "alerts", "apply", file)
    assert result.exit_code == 2
    lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert [line.removeprefix(f"Error: {file}: ")[:10] for line in lines] == ["rule warm:", "rule x: ne"]
    assert FAMILY not in tables.describe(table)
    assert _run(table, "alerts", "rules", "--format=toml").stdout == ""


def test_a_dry_run_looks_at_the_table(table: TableName, file: Path) -> None:
    """A metric that no sensor has sent is worth a warning, and nothing is stored."""
    newest = NewestReadings()
    newest.add("freezer-1", T, [("temperature", 5.0)])
    write(table, map(decoded, newest.rows("latest")))
    result = _run(table, "alerts", "apply", file, "--dry-run")
    assert result.exit_code == 0
    assert result.stderr == "Warning: no sensor has sent t; the table has temperature\n"
    assert _run(table, "alerts", "rules", "--format=toml").stdout == ""


def test_read_alerts(table: TableName, file: Path) -> None:
    """What fires now is printed, or what fired and resolved in a span of time; forget removes a sensor's alerts."""
    assert _run(table, "read", "alerts").stderr == "no alert fires\n"
    _run(table, "alerts", "apply", file)
    rule = Rule("warm", metric="t", condition=AlertCondition("above", 10, 10))
    other = "freezer-2" + "x" * 247  # as long as an id may be
    for sensor, values in {"freezer-1": (11.5, 9), other: (11.5, 12)}.items():
        found = in_order(rule, {T + i * 1_000_000: each for i, each in enumerate(values)})
        write(table, [decoded(alert_row(rule, sensor, found))])
    now = [json.loads(line) for line in _run(table, "read", "alerts", "--format=json").stdout.splitlines()]
    assert now == [
        {
            "rule": "warm",
            "sensor_id": other,
            "kind": "firing",
            "event_time": "2026-02-17T10:00:00Z",
            "since": "2026-02-17T10:00:00Z",
            "value": 11.5,
            "unit": "°C",
            "label": "Air",
            "severity": "warning",
        }
    ]
    line = _run(table, "read", "alerts").stdout.splitlines()[-2]
    assert line.split() == ["warm", other, "firing", *["2026-02-17T10:00:00Z"] * 2, "11.5", "°C", "Air", "warning"]
    with SensorTable.open(table.project, table.instance, table.table) as opened:
        records = {record.sensor_id: record for record in opened.alerts()}
    assert {sensor: record.is_firing for sensor, record in records.items()} == {"freezer-1": False, other: True}
    assert [each.kind for each in records["freezer-1"].alerts] == ["firing", "resolved"]
    span = ["--from", "2026-02-17T10", "--to", "2026-02-17T11"]
    found = _run(table, "read", "alerts", *span, "--format", "csv", "--prefix", "freezer-1").stdout.splitlines()
    assert [line.split(",")[2] for line in found[1:]] == ["firing", "resolved"]
    assert "1 row of alerts" in _run(table, "forget", other, "--yes").stdout
    assert _run(table, "read", "alerts").stderr == "no alert fires\n"
    assert _run(table, "read", "alerts", *span, "--rule", "warm", "--prefix", other).stderr == (
        "no alert fired or resolved in this time\n"
    )


def test_no_such_rule(table: TableName, file: Path) -> None:
    """A name that neither a stored rule nor an alert has is a mistake: the line names the rules that there are."""
    _run(table, "alerts", "apply", file)
    assert _run(table, "read", "alerts", "--rule", "warm").exit_code == 0
    result = _run(table, "read", "alerts", "--rule", "wram")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: the table has no rule 'wram' and no alert of one; its rules: warm\n"
    file.write_text("")
    rule = Rule("warm", metric="t", condition=AlertCondition("above", 10, 10))
    write(table, [decoded(alert_row(rule, "freezer-1", in_order(rule, {T: 11.5})))])
    _run(table, "alerts", "apply", file)
    assert _run(table, "read", "alerts", "--rule", "warm").stdout.count("freezer-1") == 1  # the rule was removed


def test_sensors_by_a_file(table: TableName, file: Path) -> None:
    """The ids in a rule's file are stored with the rules; a file that is not there, or is too large, has a line."""
    rules = _RULES.replace('sensors = "freezer-*"', 'sensors_file = "ids.txt"  # one in each line')
    file.write_bytes(rules.replace("\n", "\r\n").encode())
    assert _run(table, "alerts", "apply", file).stderr.endswith(
        "ids.txt: No such file or directory; sensors_file names it\n"
    )
    (file.parent / "ids.txt").write_text("freezer-1" + " " * 2_000_000 + "freezer-2")
    assert "ids.txt: it is larger than 2,000,000 bytes" in _run(table, "alerts", "apply", file).stderr
    (file.parent / "ids.txt").write_text("freezer-2\nfreezer-1\n")
    assert _run(table, "alerts", "apply", file).exit_code == 0
    assert 'sensors = ["freezer-2", "freezer-1"]\n' in _run(table, "alerts", "rules", "--format=toml").stdout
    assert "; 2 sensors;" in _run(table, "alerts", "rules").stdout


def test_mutes(table: TableName, file: Path) -> None:
    """A rule is muted for all sensors or for one, until a time or until it is unmuted."""
    _run(table, "alerts", "apply", file)
    assert "has no rule cold; it has warm" in _run(table, "alerts", "mute", "cold", "--for", "1h").stderr
    dry = _run(table, "alerts", "mute", "warm", "--for", "2h", "--dry-run")
    assert dry.stdout.startswith("rule warm: messages would wait until 20")
    assert "muted" not in _run(table, "alerts", "rules").stdout
    assert _run(table, "alerts", "mute", "warm", "--for", "2h").stdout.startswith("rule warm: messages wait until 20")
    assert _run(table, "alerts", "mute", "warm", "freezer-1", "--for", "1d").exit_code == 0
    lines = _run(table, "alerts", "rules").stdout.splitlines()
    assert [line.partition(" until ")[0] for line in lines[1:]] == ["warm: muted", "warm of freezer-1: muted"]
    with RowReader.open(table) as reader:
        rules = read_rules(reader, TableSchema.for_new_table())
    now_us = time.time_ns() // 1000
    (rule,) = rules.rules
    for sensor, hours in (("freezer-1", 24), ("freezer-2", 2)):
        assert abs((rules.waits_until_us(rule, sensor, now_us) or 0) - now_us - hours * HOUR) < HOUR // 10
    for sensor in ((), ("freezer-1",)):
        assert "wait no more" in _run(table, "alerts", "mute", "warm", *sensor, "--for", "0").stdout
    assert len(_run(table, "alerts", "rules").stdout.splitlines()) == 1
