"""``tidetable read`` of many sensors: globs, prefixes and all, in every format, to files, folders and buckets."""

import csv
import io
import json
from pathlib import Path

import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest

from pipeline.core.events.event import Event
from pipeline.core.schema.toml import parse_schema
from tests.reading.exported import HOUR, IDS, KEYS, RANGE, T, schema_of, table_of
from tests.reading.running import run
from tests.support.google_cloud import BUCKET, running_storage
from tests.support.rollups import table_with_rollups


@pytest.fixture(scope="module")
def name(bigtable):
    return table_of(schema_of(KEYS[0]))


def lines(result):
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def ids(result):
    return list(dict.fromkeys(each["sensor_id"] for each in lines(result)))


@pytest.mark.parametrize("key", KEYS)
def test_every_schema(bigtable, key):
    """Events are those that are read sensor by sensor, in the same order each time, newest first of each sensor."""
    name = table_of(schema_of(key))
    many = lines(run(name, "events", "--all", *RANGE, "--format=json"))
    assert many == lines(run(name, "events", "*", *RANGE, "--format=json"))
    assert len(many) == 12
    for sensor in IDS:
        times = [each["event_time"] for each in many if each["sensor_id"] == sensor]
        assert times == sorted(times, reverse=True)
    halls = lines(run(name, "events", "hall-?", *RANGE, "--metric", "u", "--format=json"))
    assert sorted((each["sensor_id"], *each["readings"]) for each in halls) == [("hall-1", "u"), ("hall-2", "u")]
    told = run(name, "events", "--all", *RANGE, "--format=json").stderr
    assert told == {
        KEYS[1]: "row keys have {salt:2} before the sensor: seeking every sensor of the table\n",
        KEYS[2]: "row keys have {metadata.location} before the sensor: seeking every sensor of the table\n",
        KEYS[6]: "row keys begin with the time: reading all rows of this time, also those of other sensors\n",
    }.get(key, "")


@pytest.mark.parametrize("command", [("events", *RANGE), ("aggregates", *RANGE), ("latest-readings",)])
def test_what_is_chosen(name, command):
    """A glob chooses the ids that it matches, and the id that it is; a prefix is plain text."""
    everything = sorted(IDS, key=lambda sensor: f"{sensor}#")

    def found(*options):
        return ids(run(name, *command, *options, "--format=json"))

    assert found("--all") == found("*") == found("--prefix", "") == everything
    assert found("hall-?") == ["hall-1", "hall-2"]
    assert found("*-1") == ["hall-1", "roof-1"]
    assert found("--prefix", "hall*") == ["hall*"]
    assert set(found("hall*")) == {"hall*", "hall-1", "hall-2"}
    assert set(found("roof-1", "hall?1")) == {"roof-1", "hall-1"}
    for wrong in (["--prefix", "cellar"], ["cellar-*"], ["roof-1", "cellar-*"], ["roof-*", "cellar*"]):
        result = run(name, *command, *wrong, "--format=json")
        glob = "cellar*" if wrong[-1] == "cellar" else wrong[-1]
        assert (result.exit_code, result.stderr) == (1, f"Error: no sensor of table {name} is {glob}\n")
    for wrong in ([], ["a", "--all"], ["--prefix", "a", "--all"]):
        assert run(name, *command, *wrong).exit_code == 2


def test_limits_and_empty_ranges(name):
    """The first events come, and a range without any is no error."""
    assert len(lines(run(name, "events", "--all", *RANGE, "--limit", "4", "--format=json"))) == 4
    empty = run(name, "events", "hall-*", "--from=2020-01-01", "--to=2020-01-02")
    between = "between 2020-01-01T00:00:00Z and 2020-01-02T00:00:00Z"
    assert (empty.exit_code, empty.stdout, empty.stderr) == (0, "", f"no readings of them {between}\n")
    empty = run(name, "aggregates", "hall-*", "--from=2020-01-01", "--to=2020-01-02")
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert f"no aggregates of them in windows of 1h that start {between}\n" in empty.stderr


def test_fresh_and_filled_windows(name):
    """Of many sensors as of one."""
    options = ("--from=2026-02-17T10", "--to=2026-02-17T12", "--fill", "null", "--fresh", "--format=json")
    many = lines(run(name, "aggregates", "hall-?", *options))
    assert many == [each for sensor in IDS[:2] for each in lines(run(name, "aggregates", sensor, *options))]
    assert len(many) == 4


def test_csv_for_spreadsheets(name):
    """Sums and means are short, decimal commas have semicolons around them, and readings stay exact."""
    sums = run(name, "aggregates", "hall-1", *RANGE, "--format", "csv").stdout
    assert [row["sum_t"] for row in csv.DictReader(io.StringIO(sums))] == ["1.3", "5.3", "9.3"]
    text = run(name, "events", "hall-[1]", "hall-1", "--all", *RANGE, "--format", "csv")
    assert text.exit_code == 2
    text = run(name, "events", "hall-?", *RANGE, "--format", "csv", "--decimal", ",").stdout
    assert text.splitlines()[:2] == [
        "sensor_id;event_time;t;u;metadata.location;metadata.n",
        "hall-1;2026-02-18T10:30:00Z;2,5;;north;2",
    ]
    assert run(name, "events", "hall-?", *RANGE, "--format", "csv", "--delimiter", "tab").stdout.startswith(
        "sensor_id\tevent"
    )
    for wrong in (["--decimal", ",", "--delimiter", ","], ["--delimiter", ";;"]):
        assert run(name, "events", "--all", "--format", "csv", *wrong).exit_code == 2
    assert run(name, "events", "--all", "--decimal", ",").exit_code == 2


def test_long_form(name):
    """A row is a reading or a statistic, in every format."""
    rows = list(csv.DictReader(io.StringIO(run(name, "events", "--all", *RANGE, "--format", "csv", "--long").stdout)))
    assert len(rows) == 16
    assert rows[0] == {"sensor_id": "hall*", "event_time": "2026-02-18T10:30:00Z", "metric": "t", "value": "2.5"}
    newest = lines(run(name, "latest-readings", "--all", "--format=json", "--long"))
    assert newest[-1] == {
        "sensor_id": "roof-1", "event_time": "2026-02-18T10:30:00Z", "metric": "t", "value": 2.5,
    }  # fmt: skip
    found = lines(run(name, "aggregates", "roof-*", *RANGE, "--format=json", "--long"))
    assert len(found) == 24
    assert found[1] == {
        "sensor_id": "roof-1", "window_start": "2026-02-17T10:00:00Z", "window": "1h", "reading_count": 4,
        "metric": "t", "statistic": "sum", "value": pytest.approx(1.3),
    }  # fmt: skip
    table = run(name, "aggregates", "roof-*", *RANGE, "--format", "arrow", "--long")
    assert pyarrow.ipc.open_stream(table.stdout_bytes).read_all().num_rows == 24
    assert run(name, "events", "--all", "--long").exit_code == 2


@pytest.mark.parametrize("most_rows", [3, 1000])
@pytest.mark.parametrize("suffix", ["csv", "ndjson", "parquet", "arrow"])
def test_one_file(name, suffix, most_rows, tmp_path, monkeypatch):
    """Its name tells the format, and its content is what standard output gets, also by way of a temporary folder."""
    monkeypatch.setattr("pipeline.formats.tabular._SPOOLED_ROWS", most_rows)
    path = tmp_path / "new" / f"events.{suffix}"
    written = run(name, "events", "--all", *RANGE, "--output", str(path))
    assert (written.exit_code, written.stdout, written.stderr) == (0, "", f"{path} written by this process\n")
    output = "json" if suffix == "ndjson" else suffix
    assert path.read_bytes() == run(name, "events", "--all", *RANGE, "--format", output).stdout_bytes
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("command", "file", "rows"),
    [("events", "events", 12), ("aggregates", "aggregates", 12), ("latest-readings", "newest", 4)],
)
def test_a_folder(name, command, file, rows, tmp_path):
    """A file has the rows of a day, or of a day and sensors whose ids begin alike; together they are a data set."""
    range_ = () if command == "latest-readings" else RANGE
    result = run(name, command, "--all", *range_, "--output", str(tmp_path / "days"))
    assert result.exit_code == 0, result.output
    data = pyarrow.dataset.dataset(tmp_path / "days", partitioning="hive")
    assert data.count_rows() == rows
    result = run(
        name, command, "--all", *range_, "--output", str(tmp_path / "both"), "--sensor-prefix", "5", "--format", "csv"
    )
    assert result.exit_code == 0, result.output
    found = sorted(str(path.relative_to(tmp_path / "both")) for path in (tmp_path / "both").rglob("*.csv"))
    assert f"day=2026-02-18/prefix=roof-/{file}.csv" in found
    assert f"day=2026-02-18/prefix=hall%2A/{file}.csv" in found
    assert len({path.read_text().splitlines()[0] for path in (tmp_path / "both").rglob("*.csv")}) == 1


def test_a_bucket(name, monkeypatch):
    """Objects are those of a folder; without the bucket, the error is one line."""
    with running_storage() as storage:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
        result = run(name, "events", "--all", *RANGE, "--output", f"gs://{BUCKET}/export/")
        assert (result.exit_code, result.stderr) == (0, "2 files written by this process\n"), result.output
        assert storage.names() == [f"export/day=2026-02-{day}/events.parquet" for day in (17, 18)]
        table = pyarrow.parquet.read_table(io.BytesIO(storage.read("export/day=2026-02-17/events.parquet")))
        assert table.num_rows == 8
        result = run(name, "events", "--all", *RANGE, "--output", f"gs://{BUCKET}/all.csv")
        assert storage.read("all.csv").decode().startswith("sensor_id,event_time,t,u,")
        result = run(name, "events", "--all", *RANGE, "--output", "gs://no-such-bucket/all.csv")
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
        assert "gs://no-such-bucket/all.csv" in result.stderr


def test_what_fails_leaves_no_file(name, tmp_path, monkeypatch):
    """Neither half of one, nor one of several."""
    monkeypatch.setattr("pipeline.reading.printing.write_parquet", lambda *_: Path("/nowhere/x").read_bytes())
    result = run(name, "events", "--all", *RANGE, "--output", str(tmp_path / "days"))
    assert (result.exit_code, result.stderr) == (1, "Error: /nowhere/x: No such file or directory\n")
    assert list((tmp_path / "days").iterdir()) == []
    for wrong in (
        ["--output", "a.csv", "--format", "parquet"],
        ["--sensor-prefix", "2"],
        ["--output", "a.csv", "--sensor-prefix=2"],
    ):
        assert run(name, "events", "--all", *wrong).exit_code == 2


def test_groups_of_a_rollup(bigtable):
    """All windows of all groups, or of those with a glob or a prefix."""
    schema = parse_schema('[tiers]\n1h = "hours"\n[rollups]\nsite = { by = ["metadata.site", "metadata.model"] }')
    name = table_with_rollups(
        schema,
        [
            Event(sensor, T + hour * HOUR, {"t": 1.0 + hour}, {"site": site, "model": model})
            for sensor, site, model in (("a", "north", "m1"), ("b", "norway", "m2"), ("c", "south", "m1"))
            for hour in range(2)
        ],
    )

    def groups(*options):
        return [each["group"] for each in lines(run(name, "rollups", "site", *options, *RANGE, "--format=json"))][::2]

    assert groups("--all") == groups("*", "*") == ["north/m1", "norway/m2", "south/m1"]
    assert groups("nor*", "m?") == groups("--prefix", "nor") == ["north/m1", "norway/m2"]
    assert groups("*", "m1") == ["north/m1", "south/m1"]
    missing = run(name, "rollups", "site", "e*", "*", *RANGE)
    assert (missing.exit_code, missing.stderr) == (1, "Error: no group of the roll-up site has e* or *\n")
    for wrong in (["--all", "--by", "sensors"], ["a*", "b", "c"], ["--all", "--prefix", "a"], ["--all", "--sensors"]):
        assert run(name, "rollups", "site", *wrong).exit_code == 2
    assert run(name, "rollups", "--all").exit_code == 2
    long = lines(run(name, "rollups", "site", "--all", *RANGE, "--format=json", "--long"))
    assert (long[0]["group"], len(long)) == ("north / m1", 36)
