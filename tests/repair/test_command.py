"""What ``tidetable repair`` prints."""

import os
import pty
import subprocess

import pytest

from pipeline.cloud.connection.names import TableName
from tests.repair.tables import TWO_DAYS, WRONG, run, spoil, table_of
from tests.support.preloaded import TIDETABLE


def test_for_people(written):
    """Text output has a line for each finding, and ends with a summary."""
    name, schema = written
    spoil(name, schema)
    lines = run(name, *TWO_DAYS, "--dry-run").stdout.splitlines()
    assert lines[0] == (
        "a 1h 2026-02-17T00:00:00Z differs: reading_count 2 -> 1, count_t 2 -> 1, count_wind 2 -> 1 and 1 more"
    )
    assert "a 1h 2026-02-17T01:00:00Z no raw rows" in lines
    assert any(
        line.startswith("b 1h 2026-02-17T00:00:00Z no aggregate row: reading_count nothing -> 1") for line in lines
    )
    assert lines[-2] == "55 windows checked, 5 wrong, nothing written"
    assert lines[-1].startswith("2 of the wrong windows count fewer events than their raw rows")
    result = run(name, *TWO_DAYS)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1] == "55 windows checked, 5 wrong, 5 rewritten"


def test_progress_is_for_a_terminal(written):
    """Progress goes to standard error if it is a terminal; findings still go to standard output."""
    name, schema = written
    spoil(name, schema)
    which = ["--project", name.project, "--instance", name.instance, "--table", name.table]
    ours, theirs = pty.openpty()
    command = [*TIDETABLE, "repair"]
    arguments = [*which, *TWO_DAYS, "--dry-run"]
    finished = subprocess.run(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=theirs, text=True, timeout=60, check=False
    )
    assert finished.returncode == 1
    assert len(finished.stdout.splitlines()) == len(WRONG) + 2
    shown = os.read(ours, 1 << 16).decode(errors="replace")  # a read may end within a character
    os.close(theirs)
    os.close(ours)
    assert "checking" in shown
    assert "differs" not in shown


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        ([], "choose the windows: pass --from and --to, or --listed"),
        (["--listed", "--from", "2026-02-17"], "omit --from and --to"),
        (["--from", "2026-02-18", "--to", "2026-02-17"], "is not before --to"),
        ([*TWO_DAYS, "--sensor", "a#b"], "can't be a sensor's id"),
        ([*TWO_DAYS, "--", "--rgion=x"], "unknown argument --rgion=x; did you mean --region?"),
        ([*TWO_DAYS, "--", "--runner=DataflowRunner"], "--region is needed"),
        (
            [*TWO_DAYS, "--report", "folder", "--", "--runner=DataflowRunner", "--region=europe-west4", "--temp_location=gs://bucket/t",
             "--sdk_container_image=i"],
            "--report is required on Dataflow",
        ),
        (["--rollups", "--listed"], "--rollups merges the rows of all sensors; omit --listed, which"),
        (["--rollups", *TWO_DAYS, "--sensor", "a"], "--rollups merges the rows of all sensors; omit --sensor"),
        ([*TWO_DAYS, "--sensor", "Käller"], "'Käller' can't be a sensor's id: it contains 'ä', and only"),
        ([*TWO_DAYS, "--allowed-lateness", "999999999d"], "'999999999d' is longer than 36500d"),
    ],
)  # fmt: skip
def test_wrong_usage(bigtable, arguments, reported):
    """Wrong usage is one line on standard error, and exit code 2."""
    result = run(TableName("test-project", "test-instance", "none"), *arguments)
    assert result.exit_code == 2
    assert reported in result.stderr


def test_problems_are_one_line(bigtable):
    """A missing table, or one without tiers, or without roll-ups to repair."""
    none = TableName("test-project", "test-instance", "none")
    result = run(none, *TWO_DAYS)
    assert (result.exit_code, result.stderr) == (1, f"Error: {none.is_missing}\n")
    name, _ = table_of("[tiers]")
    result = run(name, *TWO_DAYS)
    assert result.exit_code == 1
    assert result.stderr.endswith("has no aggregates to repair: its schema has no tiers\n")
    result = run(name, "--rollups", *TWO_DAYS)
    assert result.exit_code == 1
    assert result.stderr.endswith("has no roll-ups to repair: its schema declares none\n")
