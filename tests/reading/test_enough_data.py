"""``tidetable read`` without windows that lack data: as JSON, in columns, by a job, with gaps filled, and drawn."""

import json

import pyarrow.dataset
import pytest
from click.testing import CliRunner

from pipeline.cli.root import main
from pipeline.core.schema.toml import parse_schema
from pipeline.core.windows import HOURLY
from tests.reading.exported import HOUR, RANGE, T
from tests.reading.running import arguments, run, run_json
from tests.support.tables import created, window_row, write

START = HOURLY.start_of(T)
LEAST = {
    "share": ["--min-coverage", "0.5"],
    "number": ["--min-count", "2"],
    "both": ["--min-coverage=.1", "--min-count=2"],
}


@pytest.fixture(scope="module")
def name(bigtable):
    """Of four expected readings an hour, the first hour has one of each metric, the next three and one."""
    name = created(parse_schema('[rate]\nevery = "15m"\n'))
    whole = [{"t": 1.0, "u": 1.0}, {"t": 2.0}, {"t": 3.0}]
    for sensor in ("hall-1", "hall-2"):
        hours = [window_row(HOURLY, sensor, START + n * HOUR, *each) for n, each in enumerate([whole[:1], whole])]
        write(name, hours)
    return name


@pytest.mark.parametrize("least", LEAST.values(), ids=LEAST)
def test_every_way_out(name, least, tmp_path):
    """All answers leave out the same metrics and windows, whichever way they read the rows."""
    (window,) = run_json(name, "aggregates", "hall-1", *RANGE, *least)
    assert (window["window_start"], list(window["metrics"]), window["reading_count"]) == (
        "2026-02-17T11:00:00Z",
        ["t"],
        3,
    )
    assert run_json(name, "aggregates", "hall-?", *RANGE, *least) == [window, window | {"sensor_id": "hall-2"}]
    _, first, second = run(name, "aggregates", "--all", *RANGE, *least, "--format", "csv").stdout.splitlines()
    assert [line.split(",")[:2] for line in (first, second)] == [[f"hall-{n}", "2026-02-17T11:00:00Z"] for n in (1, 2)]
    out = ["--output", str(tmp_path)]
    job = arguments(name, ["aggregates", "--all", *RANGE, *least, *out], "--", "--runner=DirectRunner")
    assert CliRunner().invoke(main, job).exit_code == 0
    written = pyarrow.dataset.dataset(tmp_path, partitioning="hive").to_table()
    assert (written["sensor_id"].to_pylist(), "count_u" in written.column_names) == (["hall-1", "hall-2"], False)
    drawn = run(name, "plot", "hall-1", "--metric", "t", *RANGE, *least, "--format=json").stdout.splitlines()
    assert [json.loads(line)["window_start"] for line in drawn] == ["2026-02-17T11:00:00Z"]


def test_gaps(name):
    """A window that is left out counts as one without a row."""
    span = ["--from=2026-02-17T10", "--to=2026-02-17T12"]
    found = run_json(name, "aggregates", "hall-1", *span, "--min-count", "2", "--fill", "null")
    assert [(each.get("filled"), each["reading_count"]) for each in found] == [(True, 0), (None, 3)]


def test_nothing_left(name):
    """Standard error reports that readings are too few, not that there are none."""
    too_many = [*RANGE, "--min-count", "4"]
    result = run(name, "aggregates", "hall-1", *too_many)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("no aggregates with enough readings of hall-1 in windows of 1h that start between")
    assert (
        "\nnone of these windows has enough readings of u\n"
        in "\n" + run(name, "aggregates", "hall-1", *RANGE, "--min-count", "2", "--metric", "t", "--metric", "u").stderr
    )
    result = run(name, "aggregates", "--all", *too_many, "--format=json")
    assert result.stderr.startswith("no aggregates with enough readings of them in windows of 1h")


def test_wrong_usage(name, bigtable):
    """A table without a rate has no share of it, and roll-ups have neither option."""
    bare = created(parse_schema(""))
    for command in (["aggregates", "s"], ["aggregates", "--all"], ["plot", "s", "--metric", "t"]):
        result = run(bare, *command, *RANGE, "--min-coverage", "0.5")
        assert (result.exit_code, "the table's schema has no [rate]" in result.stderr) == (2, True)
    result = run(name, "plot", "--rollup", "site", "a", "--metric", "t", "--min-count", "2")
    assert (result.exit_code, "are for sensors" in result.stderr) == (2, True)
