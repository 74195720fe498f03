import csv
import io
import json
import re
import socket

import pyarrow.parquet
import pytest
from click.testing import CliRunner
from rich.console import Console

from pipeline.cli import tables as printed_tables
from pipeline.cli.root import main
from pipeline.cloud.connection import emulators
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import tables
from pipeline.core.events.event import Event
from pipeline.core.notation.times import parse_time, to_datetime
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.core.windows import DAILY, HOURLY, Window, parse_window
from tests.reading.running import run, run_json
from tests.support.lasting import lasting
from tests.support.tables import created, foreign_raw_rows, foreign_windows, raw_row, unused_name, window_row, write
from tests.support.tables import event as raw_event

pytestmark = pytest.mark.filterwarnings("ignore:Connecting to Bigtable emulator")

T = parse_time("2026-02-17T10:30:00.250Z")
DAY = ["--from", "2026-02-17", "--to", "2026-02-18"]
EVENT = Event("s", T, {"temperature": 23.5, "pressure": 94558.0}, {"place": "Köln, Dach", "model": "x1"})
COMMANDS = [
    ["latest-events", "s"],
    ["events", "s", *DAY],
    ["events", "--prefix", "s", *DAY],
    ["aggregates", "s", *DAY],
    ["sensors"],
    ["plot", "s", "--metric", "t", *DAY],
]


@pytest.fixture
def name(bigtable: str) -> TableName:
    """An empty table of the default schema."""
    return created(TableSchema.default())


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Console:
    """Replaces the test's pipe with a terminal of 80 columns."""
    console = Console(force_terminal=True, width=80, color_system=None, highlight=False)
    monkeypatch.setattr(printed_tables, "out", console)
    return console


def write_hour(name: TableName, window: Window, *readings: dict[str, float], family: str = "stats") -> None:
    """Writes the aggregate of sensor ``s`` over the window that contains :data:`T`."""
    stats = WindowStats()
    for reading in readings:
        stats.add(reading)
    write(name, [aggregate_row(window, "s", window.start_of(T), stats, family)])


def test_latest_prints_the_newest_event_as_a_table(name: TableName) -> None:
    """The table has one column per metric in shortest text, the time in UTC, and a metadata column."""
    write(name, [raw_row(EVENT), raw_row(EVENT._replace(event_time_us=T - 1))])
    result = run(name, "latest-events", "s")
    assert (result.exit_code, result.stderr) == (0, "")
    header, _, row = (line.split() for line in result.stdout.splitlines() if line.strip())
    assert header == ["event", "time", "pressure", "temperature", "metadata"]
    assert row == ["2026-02-17T10:30:00.250Z", "94558", "23.5", "model=x1,", "place='Köln,", "Dach'"]


def test_latest_prints_a_line_of_json(name: TableName) -> None:
    """The record has the documented JSON keys."""
    write(name, [raw_row(EVENT)])
    assert run_json(name, "latest-events", "s") == [
        {
            "sensor_id": "s",
            "event_time": "2026-02-17T10:30:00.250Z",
            "readings": {"temperature": 23.5, "pressure": 94558.0},
            "metadata": {"place": "Köln, Dach", "model": "x1"},
        }
    ]


def test_range_bounds(name: TableName) -> None:
    """--from is inclusive, --to exclusive and possibly later than every key; newest first, at most --limit."""
    write(name, [raw_row(EVENT._replace(event_time_us=T + i)) for i in range(4)])

    def times(*options: str) -> list[str]:
        return [record["event_time"][17:] for record in run_json(name, "events", "s", *options)]

    assert times("--from", "2026-02-17T10:30:00.250001Z", "--to", "2026-02-17T11:30:00.250003+01:00") == [
        "00.250002Z",
        "00.250001Z",
    ]
    assert times("--from", "0001-01-01", "--to", "9999-01-01") == [f"00.25000{i}Z" for i in (3, 2, 1)] + ["00.250Z"]
    assert times(*DAY, "--limit", "1") == ["00.250003Z"]


def test_aggregates_prints_lines_of_json(name: TableName) -> None:
    """The record has the window's start, its length, and each metric's statistics; counts are integers."""
    write_hour(name, HOURLY, {"t": 1.5}, {"t": 2.5})
    [record] = run_json(name, "aggregates", "s", *DAY)
    assert record == {
        "sensor_id": "s",
        "window_start": "2026-02-17T10:00:00Z",
        "window": "1h",
        "reading_count": 2,
        "metrics": {"t": {"count": 2, "sum": 4.0, "min": 1.5, "max": 2.5, "avg": 2.0, "stddev": 0.5}},
    }
    assert json.dumps(record["metrics"]["t"]["count"]) == "2"


def test_aggregates_prints_a_line_for_each_metric(name: TableName) -> None:
    """The table has one row per window and metric."""
    write_hour(name, HOURLY, {"t": 1.5, "p": 94558.0}, {"t": 2.5})
    _, _, *rows = (line.split() for line in run(name, "aggregates", "s", *DAY).stdout.splitlines() if line.strip())
    assert rows == [
        ["2026-02-17T10:00:00Z", "2", "p", "1", "94558", "94558", "94558", "94558", "0"],
        ["2026-02-17T10:00:00Z", "2", "t", "2", "4", "1.5", "2.5", "2", "0.5"],
    ]


@pytest.mark.parametrize(("window", "start"), [("15m", "T10:30:00Z"), ("1d", "T00:00:00Z"), ("1h", "T10:00:00Z")])
def test_windows_of_other_lengths(bigtable: str, window: str, start: str) -> None:
    """--tier selects a length that the table has; the default of ``aggregates`` is the shortest."""
    name = created(parse_schema('tiers = { 15m = "quarters", 1h = "hours", 1d = "days" }'))
    for length, family in ((HOURLY, "hours"), (DAILY, "days"), (Window.parse("15m"), "quarters")):
        write_hour(name, length, {"t": 1.0}, family=family)
    [record] = run_json(name, "aggregates", "s", *DAY, "--tier", window)
    assert (record["window"], record["window_start"]) == (window, f"2026-02-17{start}")
    [shortest] = run_json(name, "aggregates", "s", *DAY)
    assert shortest["window"] == "15m"


def test_windows_of_a_time_zone(bigtable: str) -> None:
    """Starts have the zone's offset in every output; the range is one of instants; a misspelt zone is a usage error."""
    name = created(parse_schema('tiers = { 1h = "hours", "1d@Europe/Berlin" = "days" }'))
    days = parse_window("1d@Europe/Berlin")
    stats = WindowStats()
    stats.add({"t": 1.0})
    write(name, [aggregate_row(days, "s", days.parse_start(f"2026-03-{day}"), stats, "days") for day in (28, 29, 30)])
    two_days = ["--from", "2026-03-29T00:00+01:00", "--to", "2026-03-31T00:00+02:00", "--tier", "1d@Europe/Berlin"]
    starts = ["2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"]
    assert [record["window_start"] for record in run_json(name, "aggregates", "s", *two_days)] == starts
    csv_lines = run(name, "aggregates", "s", *two_days, "--format", "csv").stdout.splitlines()
    assert [line.split(",")[1] for line in csv_lines[1:]] == starts
    assert [line.split()[0] for line in run(name, "aggregates", "s", *two_days).stdout.splitlines()[3:5]] == starts
    plotted = run(name, "plot", "s", "--metric", "t", *two_days, "--format=json").stdout.splitlines()
    assert [json.loads(line)["window_start"] for line in plotted] == starts
    assert run(name, "plot", "s", "--metric", "t", *two_days).exit_code == 0
    wrong = run(name, "aggregates", "s", *DAY, "--tier", "1d@Europe/Berln")
    assert (wrong.exit_code, "did you mean Europe/Berlin?" in wrong.stderr) == (2, True)
    missing = run(name, "aggregates", "s", *DAY, "--tier", "1w@Europe/Berlin")
    assert (missing.exit_code, "its tiers: 1h, 1d@Europe/Berlin" in missing.stderr) == (2, True)


def test_an_overflow_is_text_in_json(name: TableName) -> None:
    """JSON has no infinity: a sum that overflowed is the string in its cell."""
    write_hour(name, HOURLY, {"up": 1e308, "down": -1e308}, {"up": 1e308, "down": -1e308})
    [record] = run_json(name, "aggregates", "s", *DAY)
    assert {metric: summary["sum"] for metric, summary in record["metrics"].items()} == {"up": "inf", "down": "-inf"}


def test_sensors_prints_one_per_line(name: TableName) -> None:
    """Sensors are printed in key order, as text or as JSON."""
    write(name, [raw_row(EVENT._replace(sensor_id=sensor)) for sensor in ("b", "a-1", "a")])
    assert run(name, "sensors").stdout.splitlines() == ["a", "a-1", "b"]
    assert run_json(name, "sensors") == [{"sensor_id": "a"}, {"sensor_id": "a-1"}, {"sensor_id": "b"}]


def test_a_table_without_a_schema(bigtable: str) -> None:
    """A table that stores no schema is read once a schema is stored: the message has the command."""
    name = unused_name()
    tables.create_bare(name, lasting(TableSchema.default()).policies)
    write(name, [raw_row(EVENT)])
    for command in COMMANDS:
        result = run(name, *command)
        assert (result.exit_code, result.stdout) == (1, "")
        assert f"store it: {name.apply_command} " in result.stderr
    where = ["--project", name.project, "--instance", name.instance, "--table", name.table]
    assert CliRunner().invoke(main, ["table", "apply", *where, "--gc", "raw=never"]).exit_code == 0
    assert run_json(name, "sensors") == [{"sensor_id": "s"}]


WIDE = EVENT._replace(
    readings={f"metric_{i}": i / 7 for i in range(1, 41)},
    metadata={"note": "[bold]:smile:[/]", "escape": "\x1b[31m", "long": "x" * 200},
)


def test_a_pipe_gets_one_line_per_record(name: TableName) -> None:
    """In a pipe, a record is one line of any width; metadata is printed literally, unprintable text escaped."""
    write(name, [raw_row(WIDE)])
    _, _, row = (line for line in run(name, "latest-events", "s").stdout.splitlines() if line.strip())
    assert {f"{value:.6g}" for value in WIDE.readings.values()} <= set(row.split())
    assert "note=[bold]:smile:[/]" in row
    assert r"escape='\x1b[31m'" in row
    assert "x" * 200 in row


@pytest.mark.usefixtures("terminal")
def test_a_terminal_folds_no_number(name: TableName) -> None:
    """A table too wide for 80 columns becomes blocks of whole words, of which the terminal wraps those too long."""
    write(name, [raw_row(WIDE)])
    write_hour(name, HOURLY, {"t": 0.1}, {"t": 0.2}, {"t": 0.3})
    raw, hourly = (run(name, *command).stdout for command in (["latest-events", "s"], ["aggregates", "s", *DAY]))
    assert max(len(line) for line in (raw + hourly).splitlines() if "long=" not in line) <= 80
    assert {f"{metric}={value:.6g}" for metric, value in WIDE.readings.items()} <= words(raw)
    assert "long=" + "x" * 200 in words(raw)
    assert "2026-02-17T10:00:00Z       3  t           3  0.6  0.1  0.3  0.2  0.0816497" in hourly


@pytest.mark.usefixtures("terminal")
def test_a_terminal_shows_a_table_that_fits(name: TableName) -> None:
    """Three metrics fit into 80 columns, with metadata folded between words."""
    metadata = {"place": "Köln", "model": "x1", "firmware": "2.1.0"}
    write(name, [raw_row(EVENT._replace(metadata=metadata))])
    lines = run(name, "latest-events", "s").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert any({"event", "pressure", "temperature", "metadata"} <= set(line.split()) for line in lines)


def words(printed: str) -> set[str]:
    return {word.rstrip(",") for word in printed.split()}


BETWEEN = "between 2026-02-17T00:00:00Z and 2026-02-18T00:00:00Z"
LONG_AGO = ["--from", "2025-02-17", "--to", "2025-02-18"]
LOCATED_BY_SENSOR = "Error: aggregates are located by the sensor alone; remove --metadata\n"
THEN = "between 2025-02-17T00:00:00Z and 2025-02-18T00:00:00Z"


def stderr_of(name: TableName, *command: str, exit_code: int = 0) -> str:
    """Returns the standard error of a command that prints nothing else and succeeds."""
    result = run(name, *command)
    assert (result.exit_code, result.stdout) == (exit_code, ""), result.output
    return result.stderr


@pytest.mark.parametrize("json_option", [[], ["--format=json"]])
def test_an_unknown_sensor_is_reported(name: TableName, json_option: list[str]) -> None:
    """One line on standard error says that nothing exists at any time, and the exit code is 1; 0 for a list."""
    for command, line in (
        (["events", "s", *DAY], f"no readings of s {BETWEEN}, or at any other time"),
        (["events", "s", *DAY, "--metric", "t"], f"no readings of s {BETWEEN}, or at any other time"),
        (["events", "--prefix", "s", *DAY], f"Error: no sensor of table {name} is s*"),
        (
            ["aggregates", "s", *DAY],
            f"no aggregates of s in windows of 1h that start {BETWEEN}, or at any other time",
        ),
        (["sensors"], f"no sensors in table {name}"),
        (["sensors", "--prefix", "x-"], f"no sensors whose ids begin with x- in table {name}"),
    ):
        exit_code = 0 if command[0] == "sensors" else 1
        assert stderr_of(name, *command, *json_option, exit_code=exit_code) == f"{line}\n"
    result = run(name, "plot", "s", "--metric", "t", *DAY, *json_option)
    assert (result.exit_code, result.output) == (1, f"no readings of s {BETWEEN}, or at any other time\n")


@pytest.mark.parametrize("json_option", [[], ["--format=json"]])
def test_an_empty_range_is_reported(name: TableName, json_option: list[str]) -> None:
    """For a sensor with readings at other times, the line has the time of the newest."""
    write(name, [raw_row(EVENT), raw_row(EVENT._replace(event_time_us=T - 1))])
    write_hour(name, HOURLY, {"t": 1.0})
    newest = "its newest event is at 2026-02-17T10:30:00.250Z"
    for command, line in (
        (["events", "s", *LONG_AGO], f"no readings of s {THEN}; {newest}"),
        (["events", "s", *LONG_AGO, "--metric", "pressure"], f"no pressure of s {THEN}; {newest}"),
        (["events", "--prefix", "s", *LONG_AGO], f"no readings of them {THEN}"),
        (["aggregates", "s", *LONG_AGO], f"no aggregates of s in windows of 1h that start {THEN}"),
    ):
        assert stderr_of(name, *command, *json_option) == f"{line}\n"
    result = run(name, "plot", "s", "--metric", "pressure", *LONG_AGO, *json_option)
    assert (result.exit_code, result.output) == (1, f"no pressure of s {THEN}; {newest}\n")


def test_an_unknown_metric_is_reported(name: TableName) -> None:
    """The line lists the metrics of the newest event, or the requested metrics that no event has."""
    write(name, [raw_row(EVENT)])
    has = "its newest event has pressure, temperature"
    assert stderr_of(name, "events", "s", *DAY, "--metric", "rain") == f"no rain of s {BETWEEN}; {has}\n"
    assert stderr_of(name, "events", "s", *DAY, "--metric", "rain", "--metric", "wind") == (
        f"no rain or wind of s {BETWEEN}; {has}\n"
    )
    assert run(name, "plot", "s", *DAY, "--metric", "rain").stderr == f"no rain of s {BETWEEN}; {has}\n"
    assert stderr_of(name, "events", "--prefix", "s", *DAY, "--metric", "rain") == (f"no rain of them {BETWEEN}\n")
    result = run(name, "latest-events", "s", "--metric", "rain")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"Error: no rain of s; {has}\n")
    for command in (["events", "s"], ["events", "--prefix", "s"]):
        result = run(name, *command, *DAY, "--metric", "pressure", "--metric", "rain")
        assert (result.exit_code, result.stderr) == (0, "none of these events has rain\n")
        assert "94558" in result.stdout


def test_one_of_several_sensors_without_readings(name: TableName) -> None:
    """The other sensors are printed, and each sensor without readings is reported unless --limit was reached."""
    write(name, [raw_row(EVENT)])
    write_hour(name, HOURLY, {"t": 1.0})
    result = run(name, "latest-events", "a", "s", "b", "--format=json")
    assert (result.exit_code, result.stderr) == (1, "Error: no readings of a\nError: no readings of b\n")
    assert [json.loads(line)["sensor_id"] for line in result.stdout.splitlines()] == ["s"]
    result = run(name, "events", "s", "b", *DAY)
    assert (result.exit_code, result.stderr) == (1, f"no readings of b {BETWEEN}, or at any other time\n")
    assert run(name, "events", "s", "b", *DAY, "--limit", "1").stderr == ""
    result = run(name, "aggregates", "s", "b", *DAY)
    assert (result.exit_code, result.stdout.count("2026-02-17T10")) == (1, 1)
    assert "no aggregates of b" in result.stderr


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["events", "s", "--from", "earlier", "--to", "2026-02-18"], "'--from': 'earlier' is not a time; write 2026-"),
        (["aggregates", "s", "--from", "2026-02-17", "--to", "18"], "'--to': '18' is not a time; write 2026-"),
        (
            ["events", "s", "--from", "2026-02-18", "--to", "2026-02-17"],
            "2026-02-18T00:00:00Z is not before 2026-02-17T",
        ),
        (["latest-events", "Käller"], "'Käller' can't be a sensor's id: it contains 'ä', and only printable ASCII"),
        (["events", "s", *DAY, "--limit", "99999999999"], "99999999999 is not in the range 1<=x<=1000000000"),
        (["events", "s", "--from", "0001-01-01T00:00+05:00", "--to", "2026-02-17"], "the years 1 to 9999 in UTC"),
        (["aggregates", "s", *DAY, "--tier", "7m"], "'--tier': a window of 7m does not divide a day"),
        (["aggregates", "s", *DAY, "--tier", "1d"], "the table has no aggregates of 1d; its tiers: 1h"),
        (["latest-events", "agg"], "'agg' can't be a sensor's id: it is reserved"),
        (["latest-events"], "Missing argument 'SENSOR...'"),
        (["latest-events", "s*"], "s* is a glob; 'tidetable read latest-readings' takes globs"),
        (["latest-readings"], "pass either sensors or globs"),
        (["events", "s", "--output", "csv"], "--output is a path; the format is --format csv"),
        (["latest-events", "s", "--metric", ""], "metrics contains no name"),
        (
            ["latest-events", "s", "--metadata", "location=north"],
            "location does not locate sensors in this table; remove it",
        ),
        (["latest-events", "s", "--metadata", "north"], "'north' is not NAME=VALUE, such as location=us-west2"),
        (["aggregates", "s", *DAY, "--metadata", "location=north"], LOCATED_BY_SENSOR),
        (["plot", "s", *DAY], "Missing option '--metric'"),
        (["plot", "s", "--metric", "t", *DAY, "-o", "plot.jpg"], "plot.jpg must end in .png"),
        (["plot", "s", "--metric", "t", *DAY, "-o", "/nonexistent/plot.png"], "folder /nonexistent does not exist"),
    ],
)
def test_wrong_usage(name: TableName, command: list[str], message: str) -> None:
    """The error names the wrong option or argument, and the exit code is 2."""
    result = run(name, *command)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_missing_table(name: TableName, command: list[str]) -> None:
    """Every command reports a missing table in one line, with exit code 1."""
    missing = TableName(name.project, name.instance, "nowhere")
    result = run(missing, *command)
    assert (result.exit_code, result.output) == (1, f"Error: {missing.is_missing}\n")


@pytest.mark.parametrize("listens", [True, False], ids=["silent", "closed"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_an_unavailable_server(monkeypatch: pytest.MonkeyPatch, command: list[str], listens: bool) -> None:
    """A command waits two seconds at most for an emulator that is closed or silent, and prints one line."""
    assert emulators.ANSWER_S <= 2.0
    monkeypatch.setattr(emulators, "ANSWER_S", 0.2)
    emulators._check.cache_clear()  # the port may be one that another test's server had
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", address)
        if not listens:
            server.close()
        result = run(TableName("test-project", "test-instance", "t"), *command)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert result.stderr.startswith(f"Error: BIGTABLE_EMULATOR_HOST is {address}, but nothing answers there: ")


FOREIGN = foreign_raw_rows("s")
SERVED = {
    "latest-events s": ["s"],
    "events s --from 2026-02-17T09 --to 2026-02-17T12": ["s", "s"],
    "events s t --from 2026-02-17T09 --to 2026-02-17T12": ["s", "t", "s"],
    "events --prefix s --from 2026-02-17T09 --to 2026-02-17T12": ["s", "s"],
    "aggregates s --from 2026-02-16 --to 2026-02-20": ["s", "s"],
    "sensors": ["s", "t"],
    "plot s --metric t --from 2026-02-17 --to 2026-02-18": ["s", "s", "s"],  # a window and two events
}


@pytest.mark.parametrize("command", SERVED)
def test_foreign_rows_are_reported_and_all_others_printed(name: TableName, command: str) -> None:
    """Standard output has exactly the schema's rows; standard error names a few foreign ones; the exit code is 1."""
    hour = HOURLY.length_us
    start_us = parse_time("2026-02-17T10")
    write(name, [raw_event(sensor, start_us - n) for sensor, n in (("s", 0), ("s", 2), ("t", 1))])
    write(name, [*FOREIGN, *foreign_windows("s"), Row(b"no#row#of#ours", [Cell("raw", b"t", 0, b"1")])])
    write(name, [window_row(HOURLY, "s", start_us + n * hour, {"t": 1.0}) for n in (-24, 0)])
    result = run(name, *command.split(), "--format=json")
    assert result.exit_code == 1, result.output
    assert [json.loads(line)["sensor_id"] for line in result.stdout.splitlines()] == SERVED[command]
    *reported, count = [line for line in result.stderr.splitlines() if not line.startswith("drawn: ")]
    assert 1 <= len(reported) <= 3
    assert all(re.fullmatch(r"row b'.*' is not one of this schema: .*; left out", line) for line in reported)
    assert int(count.removeprefix("foreign rows left out: ")) >= len(reported)


def test_foreign_rows_alone(name: TableName) -> None:
    """If a table has only foreign rows, both that and the missing readings are reported."""
    write(name, FOREIGN)
    result = run(name, "latest-events", "s")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: no readings of s\n")
    assert result.stderr.splitlines()[-1].startswith("foreign rows left out: 1")


def printed_as(name: TableName, output: str, *command: str) -> list[dict]:
    """Returns the rows of what the command prints as CSV or Parquet."""
    result = run(name, *command, "--format", output)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    if output == "csv":
        return list(csv.DictReader(io.StringIO(result.stdout, newline="")))
    return pyarrow.parquet.read_table(io.BytesIO(result.stdout_bytes)).to_pylist()


def test_csv_and_parquet(name: TableName) -> None:
    """Events and windows have the columns of the Python API's tables, with exact numbers."""
    write(name, [raw_row(EVENT._replace(readings={"t": 0.1 + 0.2}))])
    write_hour(name, HOURLY, {"t": 1.5, "p": 1.0})
    event = {"sensor_id": "s", "event_time": "2026-02-17T10:30:00.250Z", "t": "0.30000000000000004"}
    metadata = {"metadata.model": "x1", "metadata.place": "Köln, Dach"}
    for command in (["latest-events", "s"], ["events", "s", *DAY], ["events", "--all", *DAY]):
        assert printed_as(name, "csv", *command) == [event | metadata]
        [row] = printed_as(name, "parquet", *command)
        assert row == event | metadata | {"t": 0.1 + 0.2, "event_time": to_datetime(T)}
    [row] = printed_as(name, "csv", "aggregates", "s", *DAY)
    assert (row["window_start"], row["count_t"], row["avg_t"]) == ("2026-02-17T10:00:00Z", "1", "1.5")
    [row] = printed_as(name, "parquet", "aggregates", "s", *DAY)
    assert (row["count_t"], row["avg_t"]) == (1, 1.5)
    for output in ("csv", "parquet"):
        assert printed_as(name, output, "sensors") == [{"sensor_id": "s"}]


def test_nothing_as_csv_or_parquet(name: TableName) -> None:
    """An empty result is a file with columns and without rows."""
    assert run(name, "events", "s", *DAY, "--format", "csv").stdout == "sensor_id,event_time\n"
    found = run(name, "events", "s", *DAY, "--format", "parquet").stdout_bytes
    assert pyarrow.parquet.read_table(io.BytesIO(found)).num_rows == 0


def test_parquet_is_not_printed_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be garbage there: the error says to redirect it, before the table is opened."""
    monkeypatch.setattr("pipeline.cli.output.on_terminal", lambda: True)
    result = run(TableName("test-project", "test-instance", "t"), "latest-events", "s", "--format", "parquet")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Parquet is not text: redirect standard output to a file" in result.stderr


def test_csv_does_not_control_a_terminal(name: TableName, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, unprintable characters of CSV are escaped; elsewhere they are kept."""
    write(name, [raw_row(EVENT._replace(metadata={"escape": "\x1b[31m"}))])
    assert "\x1b[31m" in run(name, "latest-events", "s", "--format", "csv").stdout
    monkeypatch.setattr("pipeline.cli.output.on_terminal", lambda: True)
    assert r"\x1b[31m" in run(name, "latest-events", "s", "--format", "csv").stdout


def test_aggregates_of_a_metric(name: TableName) -> None:
    """Only the metric is printed; a window without it is left out, and a metric that none has is reported."""
    write_hour(name, HOURLY, {"t": 1.5, "p": 2.0})
    write(name, [window_row(HOURLY, "s", HOURLY.start_of(T) + HOURLY.length_us, {"p": 1.0})])
    [record] = run_json(name, "aggregates", "s", *DAY, "--metric", "t")
    assert list(record["metrics"]) == ["t"]
    assert record["reading_count"] == 1
    assert len(run_json(name, "aggregates", "s", *DAY, "--metric", "t", "--metric", "p")) == 2
    result = run(name, "aggregates", "s", *DAY, "--metric", "t", "--metric", "rain")
    assert (result.exit_code, result.stderr) == (0, "none of these windows has rain\n")
    message = f"no aggregates of rain of s in windows of 1h that start {BETWEEN}, or at any other time\n"
    assert stderr_of(name, "aggregates", "s", *DAY, "--metric", "rain") == message


def test_events_of_all_sensors(name: TableName) -> None:
    """Sensors come in key order, on both sides of the table's own rows."""
    write(name, [raw_row(EVENT._replace(sensor_id=sensor)) for sensor in ("s", "a", "aggregator", "zz")])
    write_hour(name, HOURLY, {"t": 1.5})
    records = run_json(name, "events", "--all", *DAY)
    assert [record["sensor_id"] for record in records] == ["a", "aggregator", "s", "zz"]
    assert stderr_of(name, "events", "--all", *LONG_AGO) == f"no readings of them {THEN}\n"
