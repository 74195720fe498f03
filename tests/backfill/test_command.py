import base64
import errno
import gzip
import json
import os
import pty
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import google.cloud.bigtable
import pytest
from apache_beam.io.filesystems import FileSystems
from click.testing import CliRunner, Result
from google.auth.credentials import AnonymousCredentials

from pipeline.backfill.files import METER
from pipeline.cli.root import main
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import tables
from pipeline.core.events.event import Event
from pipeline.core.notation.times import format_time, parse_time
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from tests.support.google_cloud import BUCKET, Storage, running_storage
from tests.support.lasting import lasting
from tests.support.preloaded import TIDETABLE
from tests.support.records import write_delimited
from tests.support.tables import unused_name
from tests.support.waiting import eventually

HEADER = "sensor_id,event_time,n\n"
HOUR_US = 3_600_000_000


@pytest.fixture
def table(bigtable: str) -> TableName:
    return table_of(lasting(TableSchema.default()))


def table_of(schema: TableSchema) -> TableName:
    name = unused_name()
    tables.create(name, schema)
    return name


def backfill(table: TableName, *arguments: object, beam: tuple[str, ...] = ()) -> Result:
    where = ["--project", table.project, "--instance", table.instance, "--table", table.table]
    return CliRunner().invoke(main, ["backfill", *map(str, arguments), *where, *(["--", *beam] if beam else [])])


def keys(table: TableName) -> list[str]:
    """Returns the keys of all rows except the schema's."""
    opened = google.cloud.bigtable.Client(project=table.project).instance(table.instance).table(table.table)
    found = [row.row_key.decode() for row in opened.read_rows()]
    return [key for key in found if not key.startswith("schema#")]


def test_files_become_rows_and_a_summary(table: TableName, tmp_path: Path) -> None:
    """Files of several formats in one run; the output is only the totals if nothing is refused."""
    (tmp_path / "a.csv").write_text(HEADER + "A-1,2024-05-01T08:00:00Z,1\nA-1,2024-05-01T08:30:00Z,2\n")
    write_delimited(tmp_path / "b.pb", [Event("A-2", 1_714_550_400_000_000, {"n": 1.0}, {})])
    result = backfill(table, tmp_path / "a.csv", tmp_path / "*.pb")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(
        f"2 files, 3 records, 3 events: 3 raw rows and 2 aggregate rows written to {table}, 0 records refused; "
    )
    assert result.stdout.count("\n") == 1
    assert keys(table) == [
        "A-1#8285447799999999",
        "A-1#8285449599999999",
        "A-2#8285449599999999",
        "agg#hourly#A-1#2024-05-01T08",
        "agg#hourly#A-2#2024-05-01T08",
    ]


def test_the_summary_as_json(table: TableName, tmp_path: Path) -> None:
    """JSON has all counts, on one line."""
    path = tmp_path / "a.ndjson"
    now = format_time(int(time.time()) * 1_000_000)
    path.write_text(f'{{"sensor_id": "A-1", "event_time": "{now}", "n": 1}}\n{{}}\n{{"n": 1e999}}\n')
    result = backfill(table, path, "--format=json")
    summary = json.loads(result.stdout)
    assert summary.pop("seconds") > 0
    assert summary == {
        "table": str(table),
        "files": 1,
        "records": 3,
        "events": 1,
        "distinct_events": 1,
        "repeated_readings": 0,
        "lost_readings": 0,
        "lost_examples": [],
        "skipped": 0,
        "dropped_readings": 0,
        "refused": 2,
        "malformed": 2,
        "dead_letters": {},
        "raw_rows": 1,
        "aggregate_rows": 1,
        "rollup_rows": 0,
        "windows_listed": 1,
        "windows_left": 0,
        "expired": 0,
        "refused_by_file": {str(tmp_path / "a.ndjson"): 2},
    }


def test_open_windows_are_reported(table: TableName, tmp_path: Path) -> None:
    """A running job may write them again, so the summary says to repair them later."""
    path = write_delimited(tmp_path / "a.pb", [Event("A-1", int(time.time() * 1e6), {"n": 1.0}, {})])
    result = backfill(table, path, "--allowed-lateness", "2h")
    assert result.exit_code == 0
    assert "1 window put on the table's work list: a job with an allowed lateness of 2h may still" in result.stdout
    assert "tidetable repair --listed" in result.stdout


AUTUMN = """
message = "json"
sensor = { constant = "N-1" }
time = { path = "t", time_zone = "Europe/Berlin", ambiguous = "first" }
readings = { flow = "flow", level = "level" }
"""


@pytest.mark.parametrize("tiers", ['{ 1h = "stats" }', "{}"], ids=["tiers", "none"])
def test_events_that_fall_on_one_another_are_reported(bigtable: str, tmp_path: Path, tiers: str) -> None:
    """Local times of autumn; an event that lacks a reading of the other loses none."""
    table = table_of(lasting(parse_schema(f"tiers = {tiers}\n")))
    (tmp_path / "a.toml").write_text(AUTUMN)
    hours = ["01:30", "02:00", "02:30", "02:00", "02:30", "03:00"]
    rows = [f"2024-10-27 {hour},{number},\n" for number, hour in enumerate(hours)]
    (tmp_path / "a.csv").write_text(f"t,flow,level\n{''.join(rows)}2024-10-27 03:00,,7\n2024-10-27 03:00,5,\n")
    result = backfill(table, tmp_path / "a.csv", "--message-mapping", tmp_path / "a.toml")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[1:] == [
        "8 events fall on 4: 1 reading came again with the same sensor, time, metric and value, which changes nothing",
        "8 events fall on 4: 2 readings lost, since the same sensor, time and metric came with another value, of which "
        "the table keeps one, such as N-1 at 2024-10-27T00:00:00Z: flow is 1 and 3; N-1 at 2024-10-27T00:30:00Z: flow "
        "is 2 and 4",
    ]
    assert len([key for key in keys(table) if not key.startswith("agg#")]) == 4


def test_readings_with_several_values_are_counted_apart(table: TableName, tmp_path: Path) -> None:
    """Each further value is lost; examples are the earliest, of whatever sensor, and few."""
    hours = [f"2024-05-01T{hour:02}:00:00Z" for hour in range(9)]
    (tmp_path / "a.csv").write_text(HEADER + "".join(f"A-{7 - n % 8},{hour},1\n" for n, hour in enumerate(hours)))
    (tmp_path / "b.csv").write_text(HEADER + "".join(f"A-{7 - n % 8},{hour},{n}\n" for n, hour in enumerate(hours)))
    (tmp_path / "c.csv").write_text(HEADER + "".join(f"A-{7 - n % 8},{hour},-1\n" for n, hour in enumerate(hours)))
    summary = json.loads(backfill(table, tmp_path / "[abc].csv", "--format=json").stdout)
    assert (summary["repeated_readings"], summary["lost_readings"]) == (1, 17)
    found = [(each["sensor_id"], each["event_time"], each["values"]) for each in summary["lost_examples"]]
    assert found == [("A-7", hours[0], [-1, 1]), ("A-6", hours[1], [-1, 1]), ("A-5", hours[2], [-1, 2])]


def test_a_dry_run_shows_what_is_in_files(table: TableName, tmp_path: Path) -> None:
    """Its totals, metrics and first events; it writes neither rows nor a file of refused records."""
    (tmp_path / "a.toml").write_text(AUTUMN)
    (tmp_path / "a.csv").write_text(
        "t,flow,level\n2024-10-27 01:30,1.5,2\n2024-10-27 02:00,-2,\n2024-10-27 02:00,3,\nsoon,1,\n"
    )
    letters = tmp_path / "refused.ndjson"
    arguments = tmp_path / "a.csv", "--message-mapping", tmp_path / "a.toml", "--refused", letters, "--dry-run"
    result = backfill(table, *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"{tmp_path}/a.csv:5: INVALID_EVENT_TIME: ")
    lines = result.stdout.splitlines()
    assert re.sub(r"\d+\.\d s", "0.0 s", lines[0]) == (
        "1 file, 4 records, 3 events of 1 sensor from 2024-10-26T23:30:00Z to 2024-10-27T00:00:00Z, 1 record refused; "
        f"0.0 s; nothing was written to {table}"
    )
    assert lines[1] == "refused: 1 INVALID_EVENT_TIME"
    assert lines[2].startswith("3 events fall on 2: 1 reading lost, since the same ")
    assert [line.split() for line in lines[3:6]] == [
        ["metric", "readings", "least", "greatest"],
        ["flow", "3", "-2", "3"],
        ["level", "1", "2", "2"],
    ]
    assert f"{tmp_path}/a.csv:2: json, 1 event" in lines
    assert "    readings  flow=1.5, level=2" in lines
    assert keys(table) == []
    assert not letters.exists()
    found = json.loads(backfill(table, *arguments, "--format=json").stdout)
    assert found.pop("seconds") > 0
    first, *others = found.pop("first_records")
    assert first["events"][0]["readings"] == {"flow": 1.5, "level": 2.0}
    assert len(others) == 2
    assert found == {
        "table": str(table),
        "files": 1,
        "records": 4,
        "events": 3,
        "distinct_events": 2,
        "repeated_readings": 0,
        "lost_readings": 1,
        "lost_examples": [
            {"sensor_id": "N-1", "event_time": "2024-10-27T00:00:00Z", "metric": "flow", "values": [-2.0, 3.0]}
        ],
        "skipped": 0,
        "dropped_readings": 0,
        "refused": 1,
        "malformed": 0,
        "dead_letters": {"INVALID_EVENT_TIME": 1},
        "expired": 0,
        "refused_by_file": {str(tmp_path / "a.csv"): 1},
        "sensors": 1,
        "first": "2024-10-26T23:30:00Z",
        "last": "2024-10-27T00:00:00Z",
        "metrics": {"flow": {"readings": 3, "min": -2, "max": 3}, "level": {"readings": 1, "min": 2, "max": 2}},
    }


def test_a_dry_run_of_no_events(bigtable: str, tmp_path: Path) -> None:
    """It has neither times nor metrics. One with events that are too old ends like the run itself."""
    table = table_of(TableSchema.default())
    (tmp_path / "a.csv").write_text(HEADER + "A#1,2024-05-01T08:00:00Z,1\n")
    result = backfill(table, tmp_path / "a.csv", "--dry-run")
    assert result.stdout.startswith("1 file, 1 record, 0 events, 1 record refused; ")
    (tmp_path / "a.csv").write_text(HEADER + "A-1,2024-05-01T08:00:00Z,1\n")
    result = backfill(table, tmp_path / "a.csv", "--dry-run")
    assert result.exit_code == 1
    assert "1 of 1 events are too old" in result.stderr
    assert "  A-1  2024-05-01T08:00:00Z" in result.stdout
    assert backfill(table, tmp_path / "a.csv", "--dry-run", "--accept-expired").exit_code == 0


def test_refused_records_are_reported_and_kept(table: TableName, tmp_path: Path) -> None:
    """Standard error has file, line and reason of the first refused records; the file has all; the exit code is 1."""
    path = tmp_path / "a.csv"
    path.write_text(HEADER + "A-1,2024-05-01T08:00:00Z,1\nA-1,soon,1\n" + "A#1,2024-05-01T08:00:00Z,1\n" * 25)
    letters = tmp_path / "refused.ndjson.gz"
    Path(letters).write_text("of an earlier run")
    refused = backfill(table, path, "--refused", letters)
    assert refused.exit_code == 2
    assert refused.stderr.endswith(f"{letters} exists; set --force to replace it\n")
    assert Path(letters).read_text() == "of an earlier run"
    result = backfill(table, path, "--refused", letters, "--force")
    assert "WARNING" not in result.stderr
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert lines[0] == f"{path}:3: 'event_time' 'soon' is not an ISO 8601 time (--time-unit)"
    assert lines[1].startswith(f"{path}:4: INVALID_SENSOR_ID: sensor_id 'A#1' contains '#', ")
    assert lines[20:] == ["and 6 more"]
    assert result.stdout.splitlines()[1] == f"refused: 1 malformed, 25 INVALID_SENSOR_ID; see {letters}"
    written = [json.loads(line) for line in gzip.decompress(letters.read_bytes()).splitlines()]
    assert len(written) == 26
    [malformed] = [each for each in written if each["reason"] == "UNPARSEABLE"]
    assert malformed["attributes"] == {"file": str(path), "line": "3"}
    assert malformed["step"] == "ReadFiles"
    invalid = min((each for each in written if each is not malformed), key=lambda each: int(each["attributes"]["line"]))
    assert invalid["attributes"] == {"file": str(path), "line": "4", "message_type": "tidetable.v1.SensorEvent"}
    assert invalid["events"][0]["sensor_id"] == "A#1"
    assert len(keys(table)) == 2


def test_expired_events_need_a_flag(bigtable: str, tmp_path: Path) -> None:
    """Backfill counts them before it writes anything; with --accept-expired it writes and reports them."""
    table = table_of(TableSchema.default())
    now_us = int(time.time() * 1e6)
    events = [Event("A-1", now_us - days * 24 * HOUR_US, {"n": 1.0}, {}) for days in (3, 100, 200)]
    path = write_delimited(tmp_path / "a.pb", events)
    result = backfill(table, path)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"Error: 2 of 3 events are too old for table {table} (raw: maxage=90d): ")
    assert "--accept-expired" in result.stderr
    assert keys(table) == []

    result = backfill(table, path, "--accept-expired")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "2 events older than the table keeps readings: Bigtable will collect them soon" in result.stdout
    assert "3 raw rows and 3 aggregate rows written" in result.stdout  # looked at, some may be gone already


def test_a_file_that_ends_too_soon_is_known_before_anything_is_written(bigtable: str, tmp_path: Path) -> None:
    """The count finds it; without a count, backfill writes the readable records and exits with code 1."""
    path = write_delimited(tmp_path / "a.pb", [Event("A-1", int(time.time() * 1e6), {"n": 1.0}, {})] * 2)
    path.write_bytes(path.read_bytes()[:-1])
    table = table_of(TableSchema.default())
    result = backfill(table, path)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"{path}: can't be read beyond record 1: the next record is cut off after ")
    assert result.stderr.endswith("Error: 1 file could not be read to the end, and nothing was written\n")
    assert keys(table) == []

    result = backfill(table, path, "--accept-expired")
    assert result.exit_code == 1
    assert result.stderr.endswith("Error: 1 file could not be read to the end\n")
    assert len(keys(table)) == 3  # with the window on the work list


@pytest.mark.parametrize("name", ["./in.csv", "folder/in.csv", "soft.csv", "hard.csv", "in.csv"])
def test_an_input_is_never_replaced(
    table: TableName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Refused records never replace an input, under any name, nor a file whose name the path matches as a glob."""
    monkeypatch.chdir(tmp_path)
    content = HEADER + "A-1,2024-05-01T08:00:00Z,1\nA-1,soon,2\n"
    Path("in.csv").write_text(content)
    Path("folder").symlink_to(".")
    Path("soft.csv").symlink_to("in.csv")
    Path("hard.csv").hardlink_to("in.csv")
    for inputs in (["in.csv"], ["*.csv"]):
        result = backfill(table, *inputs, "--refused", name)
        assert result.exit_code == 2
        assert result.stderr.splitlines()[-1].startswith(f"Error: {name} is one of the input files, ")
    result = backfill(table, "in.csv", "--refused", "i[n].csv")
    assert result.exit_code == 2
    assert "can't contain *, ? or [" in result.stderr
    assert Path("in.csv").read_text() == content


@pytest.mark.parametrize(
    ("arguments", "beam", "problem"),
    [
        (["nowhere.csv"], (), "nowhere.csv: no such file"),
        (
            ["a.csv", "--attribute", "a=b"],
            (),
            "--attribute is for messages that a mapping or a decoder reads: pass --message-mapping",
        ),
        (
            ["a.csv", "--attribute", "=b"],
            (),
            "Invalid value for '--attribute': '=b' is not NAME=VALUE, such as device=N-1",
        ),
        (["a.csv", "--refused", "nowhere/b.ndjson"], (), "--refused: nowhere is not a directory"),
        (["a.csv", "--refused", "b.ndjson/"], (), "b.ndjson/ is the path of a folder"),
        (["file:///a.csv"], (), "file:///a.csv: files are local paths, without file://, or objects in a bucket"),
        (["a.csv", "--refused", "/dev/null"], (), "--refused: /dev/null is not a regular file"),
        (["a.csv"], ("--runnr=DirectRunner",), "unknown argument --runnr=DirectRunner; did you mean --runner?"),
        (
            ["a.csv"],
            (
                "--runner=DataflowRunner",
                "--region=europe-west4",
                "--temp_location=gs://bucket/temp",
                "--sdk_container_image=image",
            ),
            "a.csv is a local file, and the job runs on Dataflow",
        ),
    ],
)
def test_a_command_line_that_can_not_be(
    table: TableName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list, beam: tuple, problem: str
) -> None:
    """Wrong usage is one line, and exit code 2, before anything is read."""
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text(HEADER + "A-1,2024-05-01T08:00:00Z,1\n")
    result = backfill(table, *arguments, beam=beam)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith(f"Error: {problem}")


def test_missing_parts_are_reported_before_anything_is_read(table: TableName, tmp_path: Path) -> None:
    """A missing table, family or column is one line, and exit code 1."""
    path = tmp_path / "a.csv"
    path.write_text(HEADER + "A-1,2024-05-01T08:00:00Z,1\n")

    def problem(name: TableName, *arguments: object) -> str:
        result = backfill(name, path, *arguments)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.count("\n") == 1
        return result.stderr

    nowhere = TableName(table.project, table.instance, "nowhere")
    assert problem(nowhere) == f"Error: {nowhere.is_missing}\n"
    assert problem(table, "--sensor-column", "device").startswith(
        f"Error: {path}: no column 'device' (--sensor-column); the columns are "
    )
    bare = TableName(table.project, table.instance, f"t-{uuid.uuid4().hex}")
    tables.create_bare(bare, {"raw": TableSchema.default().policies["raw"]})
    assert problem(bare).startswith(f"Error: table {bare} has no family meta, stats (it has raw); ")


def test_a_full_disk(table: TableName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If refused records can't be written, the line names the file."""
    create = FileSystems.create

    def full(path: str, *arguments: object) -> object:
        if "refused" in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return create(path, *arguments)

    monkeypatch.setattr(FileSystems, "create", full)
    source, letters = tmp_path / "in.csv", tmp_path / "refused.ndjson"
    source.write_text(HEADER + "A-1,soon,1\n")
    result = backfill(table, source, "--refused", letters)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: {letters}: No space left on device\n"


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    with running_storage() as storage:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
        # Beam's client looks for credentials for half a minute, whatever flags say.
        monkeypatch.setattr("google.auth.default", lambda *_, **__: (AnonymousCredentials(), "test-project"))
        yield storage


def test_files_in_a_bucket(table: TableName, storage: Storage) -> None:
    """Inputs and dead letters can be in a bucket; a missing bucket is one line."""
    content = HEADER + "A-1,2024-05-01T08:00:00Z,1\nA-1,soon,1\n"
    storage.write("in/a.csv.gz", gzip.compress(content.encode()))
    storage.write("in/b.csv", content.encode())
    letters = f"gs://{BUCKET}/out/refused.ndjson"
    result = backfill(table, f"gs://{BUCKET}/in/*", "--refused", letters)
    assert result.exit_code == 1, result.output
    assert result.stdout.startswith("2 files, 4 records, 2 events: ")
    assert result.stderr.splitlines() == [
        f"gs://{BUCKET}/in/{name}:3: 'event_time' 'soon' is not an ISO 8601 time (--time-unit)"
        for name in ("a.csv.gz", "b.csv")
    ]
    assert len(storage.read("out/refused.ndjson").splitlines()) == 2
    assert len(keys(table)) == 2

    result = backfill(table, "gs://tidetable-nowhere/*.csv")
    assert (result.exit_code, result.stderr) == (1, "Error: bucket gs://tidetable-nowhere does not exist\n")


@contextmanager
def running(table: TableName, path: Path, records: int) -> Iterator[tuple[subprocess.Popen, int]]:
    """The command over many records, with standard error on a terminal that the test reads."""
    path.write_text(HEADER + "".join(f"A-{n % 7},2024-05-01T08:00:00.{n:06},{n}\n" for n in range(records)))
    where = ["--project", table.project, "--instance", table.instance, "--table", table.table]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*TIDETABLE, "backfill", str(path), *where],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm"},
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def output_of(terminal: int) -> str:
    """Returns the terminal's output, until it is closed."""
    shown = b""
    try:
        while more := os.read(terminal, 10_000):
            shown += more
    except OSError:  # how Linux says that the other end is closed
        pass
    return shown.decode()


def test_progress_is_shown_on_a_terminal(table: TableName, tmp_path: Path) -> None:
    """A terminal shows progress; standard output has only the summary."""
    with running(table, tmp_path / "a.csv", 8_000) as (process, terminal):
        shown = output_of(terminal)
        assert process.communicate(timeout=60)[0].startswith(b"1 file, 8,000 records, 8,000 events: 8,000 raw rows ")
    percentages = [int(found) for found in re.findall(rf"writing to {table.table} [^%]* (\d+)%", shown)]
    assert percentages == sorted(percentages)
    assert any(0 < percentage < 100 for percentage in percentages)  # how many depends on the machine


def test_progress_counts_what_is_written(table: TableName, tmp_path: Path) -> None:
    """Files are read before windows are completed, so the display counts both."""
    path = tmp_path / "a.csv"
    path.write_text(HEADER + "A-1,2024-05-01T08:00:00Z,1\nA-1,2024-05-01T09:00:00Z,1\n")
    assert backfill(table, path).exit_code == 0
    assert (METER.size, METER.total) == (2 * path.stat().st_size,) * 2  # read, and completed
    assert METER.raw_rows == 2


def test_ctrl_c_leaves_what_is_written(table: TableName, tmp_path: Path) -> None:
    """Ctrl-C stops it with a message that written rows stay."""
    with running(table, tmp_path / "a.csv", 80_000) as (process, terminal):  # far more than it gets through
        eventually(lambda: keys(table))
        process.send_signal(signal.SIGINT)
        assert (
            "Interrupted: written rows stay; run the same command again to go on after the files that are done"
            in output_of(terminal)
        )
        assert process.wait(60) == 130


GERMAN = """
message = "json"
skip_if = { path = "Art", is = "Test" }
sensor = "Messstelle"
time = { path = "Zeit", format = "%d.%m.%Y %H:%M", time_zone = "Europe/Berlin" }
decimal = ","
thousands = "."
csv = { delimiter = ";", encoding = "cp1252" }
readings = { pressure = "Druck", flow = { path = "Durchfluß", invalid = "drop reading" } }
metadata = { street = "Straße" }
"""


def test_a_german_spreadsheet_through_a_mapping(table: TableName, tmp_path: Path) -> None:
    """Its rows are events, skipped, or dead letters that keep all cells."""
    (tmp_path / "german.toml").write_text(GERMAN)
    (tmp_path / "a.csv").write_bytes(
        "Messstelle;Zeit;Art;Druck;Durchfluß;Straße\r\n"
        "N-1;31.12.2024 23:59;;1.234,5;7,25;Hauptstraße\r\n"
        "N-1;01.01.2025 00:30;Test;1;1;\r\n"
        "N-1;01.01.2025 01:10;;1;kaputt;\r\n"
        "N-1;01.01.2025 01:20;;kaputt;1;\r\n".encode("cp1252")
    )
    letters = tmp_path / "refused.ndjson"
    mapping = tmp_path / "german.toml"
    result = backfill(table, tmp_path / "a.csv", "--message-mapping", mapping, "--refused", letters, "--format=json")
    summary = json.loads(result.stdout)
    counts = ("records", "events", "skipped", "refused", "malformed")
    assert (result.exit_code, [summary[name] for name in counts]) == (1, [4, 2, 1, 1, 0])
    assert summary["dropped_readings"] == 1
    assert result.stderr.splitlines() == [
        f"{tmp_path}/a.csv:4: readings.flow is 'kaputt', not a number; the event was kept without it",
        f"{tmp_path}/a.csv:5: NOT_A_NUMBER: readings.pressure is 'kaputt', not a number",
    ]
    dropped, letter = map(json.loads, letters.read_text().splitlines())
    assert (dropped["reason"], dropped["attributes"]["line"]) == ("READING_DROPPED", "4")
    assert json.loads(base64.b64decode(letter["data"])) == {
        "Messstelle": "N-1", "Zeit": "01.01.2025 01:20", "Art": None, "Druck": "kaputt", "Durchfluß": "1",
        "Straße": None,
    }  # fmt: skip
    assert letter["attributes"] == {"file": f"{tmp_path}/a.csv", "line": "5", "message_type": "json"}
    # A corrected mapping reads the dead letter.
    letters.write_text(json.dumps(letter))
    mapping.write_text(GERMAN.replace('pressure = "Druck"', 'pressure = { path = "Druck", null = "kaputt" }'))
    again = backfill(table, letters, "--message-mapping", mapping)
    assert (again.exit_code, again.stderr) == (0, "")
    assert again.stdout.startswith("1 file, 1 record, 1 event: 1 raw row and ")
    # Without it, nobody can.
    alone = backfill(table, letters)
    assert alone.exit_code == 1
    assert "UNKNOWN_MESSAGE_TYPE: message_type is 'json', none of " in alone.stderr
    first, second = parse_time("2024-12-31T22:59:00Z"), parse_time("2025-01-01T00:10:00Z")
    schema = TableSchema.default()
    rows = [*schema.rows(Event("N-1", first, {"pressure": 1234.5, "flow": 7.25}, {"street": "Hauptstraße"}))]
    rows += schema.rows(Event("N-1", second, {"pressure": 1.0}, {}))
    rows += schema.rows(Event("N-1", second + 600_000_000, {"flow": 1.0}, {}))
    assert {key for key in keys(table) if not key.startswith("agg#")} == {row.key.decode() for row in rows}
