"""``tidetable read rollups`` on a table with groups of sensors."""

import csv
import json
from io import StringIO

import pytest

from pipeline.core.events.event import Event
from pipeline.core.schema.toml import parse_schema
from tests.reading.running import run, run_json
from tests.support.rollups import table_with_rollups
from tests.support.tables import HOUR, T, created

SCHEMA = parse_schema("""\
[tiers]
1h = "hours"
1d = "days"
[rollups]
site = { by = "metadata.site", tiers = ["1h"] }
model = { by = ["metadata.site", "metadata.model"] }
fleet = { by = [], metrics = ["t"] }
""")
RANGE = ("--from=2026-02-17T10", "--to=2026-02-17T12")


@pytest.fixture(scope="module")
def name(bigtable):
    return table_with_rollups(
        SCHEMA,
        [
            Event(sensor_id, T + hour * HOUR, {"t": value + hour, "u": 1.0}, {"site": site, "model": "m 1"})
            for sensor_id, site, value in (("a", "north", 10.0), ("b", "north", 20.0), ("c", "[b]süd", 90.0))
            for hour in range(2)
        ],
    )


def test_the_windows_of_a_group(name):
    """Oldest first, with what aggregates have and the number of sensors; in each format."""
    first, second = run_json(name, "rollups", "model", "north", "m 1", *RANGE, "--metric=t")
    assert first == {
        "rollup": "model",
        "group": "north/m%201",
        "fields": {"site": "north", "model": "m 1"},
        "window_start": "2026-02-17T10:00:00Z",
        "window": "1h",
        "sensors": 2,
        "reading_count": 2,
        "metrics": {"t": {"count": 2, "sum": 30, "min": 10, "max": 20, "avg": 15, "stddev": 5}},
    }
    assert second["metrics"]["t"]["avg"] == 16
    shown = run(name, "rollups", "site", "north", *RANGE).stdout.splitlines()
    assert shown[1].split()[:7] == ["window", "start", "sensors", "events", "metric", "count", "sum"]
    assert shown[3].split()[:6] == ["2026-02-17T10:00:00Z", "2", "2", "t", "2", "30"]
    [row, _] = csv.DictReader(StringIO(run(name, "rollups", "fleet", *RANGE, "--format", "csv").stdout))
    assert (row["sensors"], row["avg_t"]) == ("3", "40")
    [day] = run_json(name, "rollups", "fleet", *RANGE[1:], "--from=2026-02-17", "--tier=1d")
    assert day["reading_count"] == 6


def test_groups(name):
    """Of the newest window, or of a range, merged; ranked, with the values of fields as they were."""
    found = run_json(name, "rollups", "site")
    assert [(each["fields"]["site"], each["sensors"]) for each in found] == [("[b]süd", 1), ("north", 2)]
    assert {each["window_start"] for each in found} == {"2026-02-17T11:00:00Z"}
    [first] = run_json(name, "rollups", "site", "--top=1", "--by=avg_t", *RANGE)
    assert (first["windows"], first["metrics"]["t"]["avg"]) == (2, 90.5)
    shown = run(name, "rollups", "model", "--by=sensors", *RANGE).stdout.splitlines()
    assert shown[1].split()[:2] == ["site", "model"]
    assert shown[3].split()[:6] == ["north", "m", "1", "2026-02-17T10:00:00Z", "2", "2"]
    assert shown[5].startswith(" [b]süd")


def test_sensors_of_a_group(name):
    """Their ids, one on a line."""
    assert run(name, "rollups", "site", "north", "--sensors").stdout == "a\nb\n"
    assert run_json(name, "rollups", "site", "[b]süd", "--sensors", "--to=2026-02-17T11") == [{"sensor_id": "c"}]


def test_rollups(name):
    """The roll-ups of the table."""
    found = run_json(name, "rollups")
    assert found[0] == {"rollup": "site", "by": ["site"], "tiers": ["1h"], "metrics": ["*"]}
    assert found[2] == {"rollup": "fleet", "by": [], "tiers": ["1h", "1d"], "metrics": ["t"]}
    assert "site, model  1h, 1d" in run(name, "rollups").stdout
    without = created(parse_schema(""))
    assert "the table has no roll-ups; declare them" in run(without, "rollups").stderr
    assert "the table has no roll-up 'site'; its roll-ups: none" in run(without, "rollups", "site").stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["model", "north"], "1 value for the roll-up model, which takes 2, of site and model"),
        (["site", "north", "--tier=1d"], "the roll-up site has no aggregates of 1d; its tiers: 1h"),
        (["site", "--top=3"], "--top needs --by, such as --by avg_temperature"),
        (["site", "north", "--by=avg_t"], "--by ranks all groups of a roll-up; remove --sensors and the values"),
        (["site", "--fill=null"], "--fill is for the windows of one group; remove it"),
        (["site", "north", "--sensors", "--metric=t"], "--sensors prints ids; remove --metric"),
        (["--by=avg_t"], "name the roll-up whose groups to print"),
        (["site", "north", "--from=2026-02-18", "--to=2026-02-17"], "the range is empty"),
    ],
)
def test_wrong_usage(name, arguments, problem):
    """One line tells what there is."""
    result = run(name, "rollups", *arguments)
    assert result.exit_code == 2
    assert f"Error: {problem}" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["site", "nowhere"], "no windows of site=nowhere in the roll-up site that start between 2026-02-17T10:00:00Z"),
        (["fleet", "--metric=u"], "no windows of u of all in the roll-up fleet that start between"),
        (["site", "--metric=x"], "no group of the roll-up site with x that start between"),
        (["site", "--by=p95_t"], "no group of the roll-up site with p95_t that start between"),
    ],
)
def test_nothing_found(name, arguments, message):
    """Standard error reports it."""
    result = run(name, "rollups", *arguments, *RANGE)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith(message)
    assert ("'tidetable read rollups site' prints its groups" in result.stderr) == (arguments == ["site", "nowhere"])


def test_no_sensors(name):
    """A group that is not there has none."""
    assert run(name, "rollups", "site", "nowhere", "--sensors").stderr == "the group has no sensor\n"
    assert json.loads(run(name, "rollups", "fleet", *RANGE, "--format=json").stdout.splitlines()[0])["group"] == "all"


def test_a_chart_of_groups(name, tmp_path):
    """The windows of each group are a band and a line; groups of several fields are named one after the other."""
    lines = run(name, "plot", "--rollup=model", "north", "m 1", "[b]süd", "m 1", "--metric=t", *RANGE, "--format=json")
    assert lines.exit_code == 0
    found = [json.loads(line) for line in lines.stdout.splitlines()]
    assert [(each["fields"]["site"], each["avg"]) for each in found] == [
        ("north", 15),
        ("north", 16),
        ("[b]süd", 90),
        ("[b]süd", 91),
    ]
    assert "drawn: t of north / m 1, 2 windows of 1h, the shortest that the roll-up has" in lines.stderr
    drawn = run(name, "plot", "--rollup=fleet", "--metric=t", "--metric=u", *RANGE)
    assert "fleet: t" in drawn.stdout
    assert "no windows of u of fleet in this range" in drawn.stderr
    png = tmp_path / "sites.png"
    assert run(name, "plot", "--rollup=site", "north", "[b]süd", "--metric=t", *RANGE, "-o", str(png)).exit_code == 0
    assert png.stat().st_size > 5_000


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (["--rollup=model", "north"], 2, "1 value for the roll-up model, which takes 2, of site and model"),
        (["--rollup=site", *"abcdefghi"], 2, "9 lines in a chart are more than people can tell apart"),
        (["--rollup=site", "nowhere"], 1, "no windows of t of nowhere in this range"),
        ([], 2, "name a sensor, or with --rollup a group"),
    ],
)
def test_no_chart_of_groups(name, arguments, code, problem):
    """One line tells why."""
    result = run(name, "plot", *arguments, "--metric=t", *RANGE)
    assert result.exit_code == code
    assert problem in result.stderr
