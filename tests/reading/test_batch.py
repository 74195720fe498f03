"""``tidetable read`` by a batch job: the files of a folder or a bucket, and the rows of BigQuery."""

import io
import json
from types import SimpleNamespace

import apache_beam as beam
import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest
from apache_beam.runners.dataflow.dataflow_runner import DataflowPipelineResult
from click.testing import CliRunner

from pipeline.cli.root import main
from pipeline.core.events.event import Event
from pipeline.core.rows.rows import Cell, Row
from pipeline.reading import batch
from tests.reading.exported import EVENTS, KEYS, RANGE, T, schema_of, table_of
from tests.reading.running import arguments, run
from tests.support.google_cloud import BUCKET, running_storage, submitting_to_dataflow
from tests.support.tables import write
from tests.support.untyped import unchecked_types as unchecked_types

HERE = ("--runner=DirectRunner",)


def run_job(name, *command, flags=HERE):
    return CliRunner().invoke(main, arguments(name, list(command), "--", *flags))


@pytest.fixture(scope="module")
def name(bigtable):
    return table_of(schema_of(KEYS[0]))


@pytest.fixture
def in_parts(monkeypatch):
    """Tables are cut into parts, in the middle of a sensor's rows too, and a day has two files."""
    key = schema_of(KEYS[0]).rows(EVENTS[4])[0].key
    points = [b"agg#hourly#hall-2#2026-02-18", b"hall-1#", key, b"roof-1"]
    monkeypatch.setattr(batch, "split_points", lambda _: points)
    monkeypatch.setattr(batch.Export, "files_of_a_day", lambda *_: 2)


def rows_in(folder):
    rows = pyarrow.dataset.dataset(folder, partitioning="hive").to_table().to_pylist()
    return sorted(({name: value for name, value in row.items() if value is not None} for row in rows), key=str)


@pytest.mark.parametrize(("command", "key"), [("aggregates", KEYS[0]), *(("events", key) for key in KEYS)])
def test_every_schema(bigtable, key, command, in_parts, tmp_path):
    """The job's rows are those of the command without one, in files by day with the same columns."""
    name = table_of(schema_of(key))
    here = run(name, command, "--all", *RANGE, "--output", str(tmp_path / "here"))
    assert here.exit_code == 0, here.output
    job = run_job(name, command, "--all", *RANGE, "--output", str(tmp_path / "job"))
    what = {"events": "events", "aggregates": "windows"}[command]
    written = f"12 {what} written to {tmp_path / 'job'} by a job in this process\n"
    assert (job.exit_code, job.stdout) == (0, ""), job.output
    assert job.stderr.endswith(written)
    assert rows_in(tmp_path / "job") == rows_in(tmp_path / "here")
    files = [path for path in (tmp_path / "job").rglob("*") if path.is_file()]
    assert len({str(pyarrow.parquet.read_schema(file)) for file in files}) == 1
    assert {file.parent.name for file in files} == {"day=2026-02-17", "day=2026-02-18"}
    assert all("-of-00002.parquet" in file.name for file in files)


@pytest.mark.parametrize(
    "options",
    [
        ["--format", "csv"],
        ["--format", "csv", "--long"],
        ["--format", "json"],
        ["--sensor-prefix", "4"],
        ["--metric", "u"],
    ],
)
@pytest.mark.parametrize("command", ["events", "aggregates"])
def test_every_format(name, command, options, tmp_path):
    """A job of one file a day writes what the command writes without it, byte for byte."""
    for folder, runs in (("here", run), ("job", run_job)):
        result = runs(name, command, "hall-?", "roof-1", *RANGE, *options, "--output", str(tmp_path / folder))
        assert result.exit_code == 0, result.output
    found = {
        folder: {
            str(path.relative_to(tmp_path / folder)): path.read_bytes()
            for path in (tmp_path / folder).rglob("*")
            if path.is_file()
        }
        for folder in ("here", "job")
    }
    assert found["job"] == found["here"]
    assert found["job"]


def test_sensors_alone(name, tmp_path):
    """A job also takes ids without a glob, and ids that begin with a dash follow -- as before."""
    result = run_job(name, "events", "roof-1", *RANGE, "--output", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert {row["sensor_id"] for row in rows_in(tmp_path)} == {"roof-1"}
    result = run_job(name, "events", *RANGE, flags=["-x"])
    assert (result.exit_code, "-x" in result.stderr) == (1, True)


def test_nothing_is_chosen(name, tmp_path):
    """An id, a glob or a prefix that no sensor has ends the command before the job."""
    for wrong in (["cellar-*"], ["roof-1", "cellar"], ["--prefix", "cellar"]):
        for command in ("events", "aggregates"):
            result = run_job(name, command, *wrong, *RANGE, "--output", str(tmp_path / "none"))
            glob = "cellar*" if wrong[0] == "--prefix" else wrong[-1]
            assert (result.exit_code, result.stderr) == (1, f"Error: no sensor of table {name} is {glob}\n")
    assert not (tmp_path / "none").exists()
    empty = run_job(name, "events", "--all", "--from=2020-01-01", "--to=2020-01-02", "--output", str(tmp_path / "none"))
    assert empty.stderr == f"0 events written to {tmp_path / 'none'} by a job in this process\n"


def test_foreign_rows(bigtable, tmp_path):
    """They are left out and counted, and the exit code is 1."""
    name = table_of(schema_of(KEYS[0]))
    [row] = schema_of(KEYS[0]).rows(EVENTS[0])
    key = schema_of(KEYS[0]).rows(Event("hall-1", T + 1, {"t": 1.0}, {}))[0].key
    write(name, [Row(key, [Cell("raw", b"t", row.cells[0].timestamp_us, b"warm")])])
    result = run_job(name, "events", "--all", *RANGE, "--output", str(tmp_path))
    assert result.exit_code == 1
    assert "1 foreign row left out" in result.stderr
    assert len(rows_in(tmp_path)) == 12


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--output", "all.parquet"], "a job writes to a folder, --output gs://…, or to"),
        ([], "a job writes to a folder, --output gs://…, or to"),
        (["--output", "a[1]"], "a job writes to a folder, --output gs://…, or to"),
        (["--output", "bigquery://p.d"], "a job writes to a folder, --output gs://…, or to"),
        (["--output", "bigquery://project.d.t"], "--temp-location is needed"),
        (["--output", "bigquery://project.d.t", "--format", "csv"], "BigQuery gets rows, not files"),
        (["--limit", "3", "--output", "x"], "--limit is not for jobs"),
    ],
)
def test_wrong_usage(name, options, problem):
    """The job starts only if it can write."""
    result = run_job(name, "events", "--all", *RANGE, *options)
    assert result.exit_code == 2
    assert problem in result.stderr


def test_what_needs_a_job(name):
    """BigQuery is for jobs, and fresh windows are not."""
    result = run(name, "events", "--all", *RANGE, "--output", "bigquery://project.d.t")
    assert (result.exit_code, "add -- --runner=DataflowRunner" in result.stderr) == (2, True)
    result = run_job(name, "aggregates", "--all", *RANGE, "--fresh", "--output", "x")
    assert (result.exit_code, "--fresh and --fill are not for jobs" in result.stderr) == (2, True)


def test_a_bucket(name, monkeypatch, in_parts):
    """Objects get their names when all are whole; a second export replaces those of the first, however many files."""
    with running_storage() as storage:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
        result = run_job(name, "events", "--all", *RANGE, "--output", f"gs://{BUCKET}/export/")
        assert result.exit_code == 0, result.output
        names = storage.names()
        assert all(each.startswith("export/day=2026-02-1") and "-of-00002" in each for each in names)
        storage.write("export/day=2026-02-17/events-notes.parquet", b"mine")
        monkeypatch.setattr(batch.Export, "files_of_a_day", lambda *_: 1)
        result = run_job(name, "events", "--all", *RANGE, "--output", f"gs://{BUCKET}/export")
        assert result.exit_code == 0, result.output
        assert storage.names() == [
            "export/day=2026-02-17/events-notes.parquet",
            "export/day=2026-02-17/events.parquet",
            "export/day=2026-02-18/events.parquet",
        ]
        table = pyarrow.parquet.read_table(io.BytesIO(storage.read("export/day=2026-02-17/events.parquet")))
        assert table.num_rows == 8


def test_bundles_that_are_repeated(tmp_path):
    """What an earlier attempt renamed stays, and what it wrote and lost goes."""
    folder = tmp_path / ".tidetable-1"
    folder.mkdir()
    for file in "abc":
        (folder / file).write_text(file)
    (tmp_path / "day=1").mkdir()
    (tmp_path / "day=1" / "events-00001-of-00002.csv").write_text("old")
    written = [(f"{folder}/a", f"{tmp_path}/day=1/events.csv"), (f"{folder}/b", f"{tmp_path}/day=2/events.csv")]
    for _ in range(2):
        batch.rename((None, written), str(folder))
        found = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*.csv")}
        assert found == {"day=1/events.csv": "a", "day=2/events.csv": "b"}
        assert not folder.exists()


@pytest.mark.parametrize("command", ["events", "aggregates"])
def test_rows_of_bigquery(name, command, monkeypatch, in_parts, tmp_path):
    """They are what the command prints as JSON, and the table's schema has these fields."""
    out = tmp_path / "rows"
    kept = {}

    class Kept(beam.PTransform):
        def __init__(self, table, schema, **given):
            super().__init__()
            kept.update(given, table=table, schema=schema)

        def expand(self, rows):
            return rows | beam.Map(json.dumps, allow_nan=False) | beam.io.WriteToText(str(out))

    monkeypatch.setattr(Kept, "Method", batch.WriteToBigQuery.Method, raising=False)
    monkeypatch.setattr(batch, "WriteToBigQuery", Kept)
    out_table, flags = "bigquery://my-project.set.events", [*HERE, f"--temp_location=gs://{BUCKET}/temp"]
    result = run_job(name, command, "hall-?", *RANGE, "--output", out_table, flags=flags)
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines()[-1].endswith(
        "written to bigquery://my-project.set.events by a job in this process"
    )
    rows = [json.loads(line) for path in tmp_path.glob("rows-*") for line in path.read_text().splitlines()]
    assert (kept["table"], len(rows)) == ("my-project:set.events", 6)
    assert kept["write_disposition"] == "WRITE_EMPTY"
    found = run(name, command, "hall-?", *RANGE, "--format=json").stdout.splitlines()
    assert sorted(rows, key=str) == sorted(map(json.loads, found), key=str)
    fields = [field.partition(":")[0] for field in kept["schema"].split(",")]
    assert all(set(row) <= set(fields) for row in rows)
    assert kept["additional_bq_parameters"]["timePartitioning"]["field"] in fields


def test_on_dataflow(name, monkeypatch):
    """The job is one batch job, whose counters the closing line tells; a local folder is refused."""
    with submitting_to_dataflow(monkeypatch) as dataflow:
        counters = [SimpleNamespace(key=SimpleNamespace(metric=SimpleNamespace(name="events")), committed=7)]
        found = SimpleNamespace(query=lambda _: {"counters": counters})
        monkeypatch.setattr(DataflowPipelineResult, "wait_until_finish", lambda _: None)
        monkeypatch.setattr(DataflowPipelineResult, "metrics", lambda _: found)
        for out in (f"gs://{BUCKET}/export", "bigquery://my-project.set.events"):
            result = run_job(name, "events", "--all", *RANGE, "--output", out, flags=dataflow.flags)
            assert result.exit_code == 0, result.output
            assert result.stderr.splitlines()[-1] == f"7 events written to {out} by a job on Dataflow"
            assert dataflow.jobs[-1]["type"] == 1  # JOB_TYPE_BATCH
        result = run_job(name, "events", "--all", *RANGE, "--output", "here", flags=dataflow.flags)
        assert (result.exit_code, "is a local folder" in result.stderr) == (2, True)
