"""Runs the programs of the page on other clients as they stand, where their clients are installed."""

import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from pipeline.core.events.event import Event
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.newest_row import NewestReadings
from pipeline.core.schema.toml import parse_schema
from tests.serve.serving import rows_of
from tests.support.rows import decoded
from tests.support.tables import created, write

PAGE = (Path(__file__).parent.parent / "docs/other-clients.md").read_text()
STATISTICS = '[statistics]\nother = ["count", "sum", "min", "max", "avg", "stddev", "first", "last"]\n'
T = parse_time("2026-02-17T10:30:00Z")
EVENTS = [
    Event("balloon-7", T + n * 60_000_000, {"temperature": 23.5 + n, "door": n % 2 / 1, "time_t": 5.0}, {})
    for n in range(3)
]


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def run(bigtable, tmp_path_factory):
    """Returns a function that runs a program of the page on tables with its readings, and returns what it prints."""
    folder = tmp_path_factory.mktemp("clients")
    (folder / "doubles.yaml").write_text(blocks("yaml")[0])
    tables = {}
    for name, values in ("sensors", "text"), ("doubles", "float64"):
        schema = parse_schema(f'latest = "latest"\nvalues = "{values}"\n{STATISTICS}')
        tables[name] = created(schema)
        for panes in range(1, len(EVENTS) + 1):  # a cell each: nothing has been collected yet
            write(tables[name], rows_of(schema, EVENTS[:panes]))
        for event in EVENTS:
            newest = NewestReadings()
            newest.add(event.sensor_id, event.event_time_us, event.readings.items())
            write(tables[name], map(decoded, newest.rows("latest")))

    def running(*command, program):
        for name, table in tables.items():
            program = re.sub(rf"\b{name}\b(?!\.yaml)", table.table, program)
            program = program.replace("my-project", table.project).replace("my-instance", table.instance)
        ran = subprocess.run(
            command, input=program, cwd=folder, capture_output=True, text=True, check=False, timeout=120
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    return running


@pytest.mark.skipif(shutil.which("cbt") is None, reason="cbt is not installed")
def test_cbt(run):
    """Text as it is, doubles by the format file, and the newest cell of each metric alone."""
    lines = "".join(blocks("sh")).splitlines()
    with ThreadPoolExecutor() as threads:  # cbt asks gcloud for a second who it is
        printed = threads.map(
            lambda line: run("bash", "-e", program=line), [*lines, lines[1].replace("cells-per-column=1", "")]
        )
    newest_row, newest_readings, day, doubles, several = printed
    assert cells(newest_row) == {"raw:door": ['"0"'], "raw:temperature": ['"25.5"'], "raw:time_t": ['"5"']}
    assert cells(newest_readings) == {
        "latest:door": ['"0"'], "latest:temperature": ['"25.5"'], "latest:time_t": ['"5"']
    }  # fmt: skip
    assert (cells(day)["stats:avg_temperature"], cells(day)["stats:reading_count"]) == (['"24.5"'], ['"3"'])
    assert (cells(day)["stats:first@time_t"], "stats:first_time_t" in cells(day)) == (['"5"'], False)
    assert cells(doubles) == {"raw:door": ["0"], "raw:temperature": ["25.5"], "raw:time_t": ["5"]}
    assert cells(several)["latest:temperature"] == ['"25.5"', '"24.5"', '"23.5"']


def cells(printed):
    found = {}
    for column, value in re.findall(r"^  (\S+) +@ .*\n    (.*)$", printed, re.MULTILINE):
        found.setdefault(column, []).append(value)
    return found


def test_python(run):
    """Eight bytes, big-endian, and the newest aggregates and readings as text."""
    *rows, hour, newest = run(sys.executable, "-W", "ignore", "-", program=blocks("python")[0]).splitlines()
    assert len(rows) == 3
    assert rows[0].endswith("{b'door': 0.0, b'temperature': 25.5, b'time_t': 5.0}")
    assert "b'reading_count': 3.0" in hour
    assert newest == "{b'door': 0.0, b'temperature': 25.5, b'time_t': 5.0}"


def has_client_of_node():
    found = ["node", "-e", "require.resolve('@google-cloud/bigtable')"]
    return shutil.which("node") is not None and subprocess.run(found, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not has_client_of_node(), reason="NODE_PATH has no @google-cloud/bigtable")
def test_node(run):
    """A double of 0.0, which Node's client returns as a number, is read like the others."""
    lines = [line.split()[-2:] for line in run("node", "-", program=blocks("js")[0]).splitlines()]
    assert lines[:3] == [["door", "0"], ["temperature", "25.5"], ["time_t", "5"]]
    assert lines[3:6] == [["door", "1"], ["temperature", "24.5"], ["time_t", "5"]]
    assert ["reading_count", "3"] in lines[9:-3]
    assert lines[-3:] == [["door", "0"], ["temperature", "25.5"], ["time_t", "5"]]


@pytest.mark.skipif(find_spec("google.cloud.happybase") is None, reason="google-cloud-happybase is not installed")
def test_happybase(run):
    """One cell of each column."""
    *_, events, newest, door = run(
        sys.executable, "-W", "ignore", "-", program=blocks("python happybase")[0]
    ).splitlines()
    assert events == "b'3'"
    assert newest == "{b'latest:door': b'0', b'latest:temperature': b'25.5', b'latest:time_t': b'5'}"
    assert door == "[b'0']"
