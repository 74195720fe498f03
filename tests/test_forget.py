"""``tidetable forget`` on a real table."""

import json

import pytest
from click.testing import CliRunner

from pipeline.cli.root import main
from pipeline.cloud.reading.reader import SensorTable
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.writing.rewriter import Rewriter
from pipeline.core.completion.work_list import work_row
from pipeline.core.events.event import Event
from pipeline.core.panes.woken_windows import noted_row, notes_range, windows_of
from pipeline.core.rollups.settling import RollupSettling
from pipeline.core.rows.rows import Cell, KeyRange, Row
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from tests.serve.serving import table_of
from tests.support.tables import raw_row, write
from tests.support.wrong_rollups import wrong_rollups

T = 1_767_225_600_000_000
MINUTE = 60_000_000
SENSORS = ("a", "a-1", "ab")


@pytest.fixture
def table(bigtable):
    name = table_of(
        [Event(sensor, T + n * MINUTE, {"t": 1.0}, {}) for sensor in SENSORS for n in range(100)],
        'latest = "latest"\ntiers = { 1h = "stats", 1d = "days" }',
    )
    write(name, [work_row(TableSchema.default().tiers[0], "a", T)])
    return name


def forget(table, *arguments, **how):
    options = ["--project", table.project, "--instance", table.instance, "--table", table.table]
    return CliRunner().invoke(main, ["forget", *options, *arguments], **how)


def sensors(name):
    with SensorTable.open(name.project, name.instance, name.table) as table:
        return list(table.sensors()), [each.sensor_id for each in table.latest_readings()]


COUNTS = "100 raw rows, 3 aggregate rows, 1 row of newest readings, 1 listed window"


def test_a_dry_run_changes_nothing(table):
    """A dry run counts the rows and removes none."""
    result = forget(table, "a", "--dry-run")
    assert (result.exit_code, result.stdout) == (0, f"a: {COUNTS} would be removed\n")
    assert sensors(table) == (list(SENSORS), list(SENSORS))


def test_nothing_is_left(table):
    """All rows of the named sensors are removed and counted, and none of others."""
    result = forget(table, "a", "nobody", "--yes")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        f"a: {COUNTS} removed; nothing is left",
        "nobody: the table has no row of it",
    ]
    assert "What can bring rows back: a running job" in result.stderr
    assert sensors(table) == (["a-1", "ab"], ["a-1", "ab"])
    again = forget(table, "a", "--yes", "--format=json")
    assert json.loads(again.stdout) == {
        "sensor_id": "a",
        "raw_rows": 0,
        "aggregate_rows": 0,
        "rows_of_newest_readings": 0,
        "listed_windows": 0,
        "rows_of_alerts": 0,
        "contributions_to_rollups": 0,
    }


def test_notes_of_open_windows(table):
    """Sensors are removed from what a job notes of its windows, so that the next process restores none.

    A job from before a shorter tier was added notes them in the family of another tier.
    """
    families = ["stats", "stats", "days"]
    keys = [notes_range().start + b"x#%016d#1" % n for n in range(3)]
    noted = [{T: ["a", "ab"], T + 60 * MINUTE: ["a"]}, {T: ["ab"]}, {T: ["a"]}]
    write(table, [noted_row(*each) for each in zip(keys, families, noted, strict=True)])
    assert forget(table, "a", "--yes").exit_code == 0
    with RowReader.open(table) as reader:
        left = [windows_of(row) for row in reader.read(notes_range())]
    assert [{sensor for of_start in each.values() for sensor in of_start} for each in left] == [{"ab"}, {"ab"}, set()]


def test_contributions_to_roll_ups(bigtable, monkeypatch):
    """Roll-ups are merged again without the sensor, whose id is nowhere any more, also after an interruption."""
    text = (
        'tiers = { 1h = "stats", 1d = "days" }\n[rollups]\nshards = 2\n'
        'site = { by = "metadata.site" }\nfleet = { by = [], tiers = ["1d"] }'
    )
    name = table_of(
        [
            Event(sensor, T + n * 5 * MINUTE, {"t": 1.0 + n}, {"site": "north" if sensor == "a" and n < 3 else "süd"})
            for sensor in (*SENSORS, "c", "d")
            for n in range(30)
        ],
        text,
    )
    which = ["--project", name.project, "--instance", name.instance, "--table", name.table]
    span = ["--from", "2026-01-01", "--to", "2026-01-02", "--include-unsettled"]
    for more in ([], ["--rollups"]):
        repaired = CliRunner().invoke(main, ["repair", *which, *span, *more])
        assert repaired.exit_code == 0, repaired.output
    schema = parse_schema(text)
    assert wrong_rollups(name, schema) == []
    counted = forget(name, "a", "c", "--dry-run").stdout.splitlines()
    assert counted[0].endswith(", 4 contributions to roll-ups would be removed")

    with monkeypatch.context() as patched:
        patched.setattr(RollupSettling, "forgotten", lambda *_: pytest.fail("interrupted"))
        with pytest.raises(pytest.fail.Exception):
            forget(name, "a", "c", "--yes", catch_exceptions=False)
    assert wrong_rollups(name, schema) == []
    result = forget(name, "a", "c", "--yes")
    assert (result.exit_code, result.stdout.splitlines()[0]) == (
        0,
        "a: 4 contributions to roll-ups removed; nothing is left",
    )
    assert wrong_rollups(name, schema) == []
    with RowReader.open(name) as reader:
        found = list(reader.read(KeyRange(b"", b"")))
    assert not [row.key for row in found if b"#a#" in row.key or row.key.startswith(b"a#")]
    assert {cell.qualifier for row in found for cell in row.cells if row.key.startswith(b"rollup_members#")} == {
        b"#left", b"a-1", b"ab", b"d"
    }  # fmt: skip


def test_rows_that_come_back_are_found(table, monkeypatch):
    """A job writes a row while rows are removed: the proof finds it."""
    delete_rows = Rewriter.delete_rows

    def delete_and_write(writer, keys):
        delete_rows(writer, keys)
        write(table, [raw_row(Event("a", T, {"t": 1.0}, {}))])

    monkeypatch.setattr(Rewriter, "delete_rows", delete_and_write)
    result = forget(table, "a", "--yes", "--format=json")
    assert (result.exit_code, json.loads(result.stdout)["left"]) == (1, 1)
    assert "a has rows again: 1 raw row; something still writes them" in result.stderr


def test_rows_of_other_programs_are_left(table):
    """Foreign rows in the sensor's range stay, and are named."""
    write(table, [Row(b"a#notes", [Cell("raw", b"t", 0, b"1")])])
    result = forget(table, "a", "--yes")
    assert result.exit_code == 0
    assert "b'a#notes' is not one of this schema" in result.stderr
    assert "foreign rows left in the table: 1" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["a"], "pass --yes, or --dry-run"),
        (["a#b", "--yes"], "'a#b' can't be a sensor's id"),
        ([*(f"s{n}" for n in range(1001)), "--yes"], "1,001 sensors are more than 1,000"),
    ],
)
def test_wrong_usage(table, arguments, line):
    """Without a terminal, nobody can confirm."""
    result = forget(table, *arguments)
    assert result.exit_code == 2
    assert line in result.stderr
    assert sensors(table)[0] == list(SENSORS)
