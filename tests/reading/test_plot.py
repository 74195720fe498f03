import json
from pathlib import Path

import pytest

from pipeline.cloud.connection.names import TableName
from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.events.event import Event
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.rows.rows import Row
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.core.windows import DAILY, HOURLY, Window
from pipeline.reading import plot as read_plot
from tests.reading.running import run
from tests.support.tables import created, write

T = parse_time("2026-02-17T10:00:00Z")
MINUTE = 60_000_000
HOUR = 60 * MINUTE
DAY = ["--from", "2026-02-17", "--to", "2026-02-18"]
PLOT = ["plot", "s", "--metric", "t"]
WITH_TIERS = parse_schema("tiers = { 1h = 'hours', 1d = 'days' }")
WITHOUT_TIERS = parse_schema("tiers = {}")


def window_row(window: Window, start_us: int, *values: float) -> Row:
    stats = WindowStats()
    for value in values:
        stats.add({"t": value, "other": -value})
    return aggregate_row(window, "s", start_us, stats, "hours" if window == HOURLY else "days")


def events(count: int, every_us: int = MINUTE) -> list[Row]:
    made = (Event("s", T + i * every_us, {"t": i / 2, "other": 1e9}, {}) for i in range(count))
    return [row for event in made for row in WITH_TIERS.rows(event)]


@pytest.fixture
def name(bigtable: str) -> TableName:
    """Returns a table with one event per minute for an hour, and the aggregates of that hour and of two hours later."""
    name = created(WITH_TIERS)
    write(name, [*events(60), window_row(HOURLY, T, 0.0, 29.5), window_row(HOURLY, T + 2 * HOUR, 7.0)])
    write(name, [window_row(DAILY, DAILY.start_of(T), 0.0, 29.5, 7.0)])
    return name


def test_windows_and_events(name: TableName) -> None:
    """A few events are drawn with the band of the shortest tier, and standard error reports it."""
    lines = run(name, *PLOT, *DAY, "--format=json")
    assert lines.stderr == ("drawn: 2 windows of 1h, the shortest that the table has; 60 events\n")
    windows, drawn = [], []
    for record in map(json.loads, lines.stdout.splitlines()):
        (windows if "window" in record else drawn).append(record)
    assert windows == [
        {"sensor_id": "s", "metric": "t", "window_start": f"2026-02-17T{hour}:00:00Z", "window": "1h"} | statistics
        for hour, statistics in (
            (10, {"min": 0.0, "avg": 14.75, "max": 29.5}),
            (12, {"min": 7.0, "avg": 7.0, "max": 7.0}),
        )
    ]
    assert [(record["event_time"][11:16], record["value"]) for record in drawn] == [
        (f"10:{minute:02}", minute / 2) for minute in range(60)
    ]
    text = run(name, *PLOT, *DAY).stdout
    assert "s: t" in text.splitlines()[0]
    assert "2026-02-17 00:00 to 2026-02-18 00:00, UTC" in text
    assert "mean of 1h" in text
    assert "event" in text


def test_too_many_events(bigtable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With aggregates, too many events are left out; without, only the newest are drawn."""
    monkeypatch.setattr(read_plot, "_MAX_EVENTS", 10)
    name = created(WITH_TIERS)
    write(name, [*events(11), window_row(HOURLY, T, 0.0, 5.0)])
    result = run(name, *PLOT, *DAY)
    assert "event" not in result.stdout
    assert result.stderr == (
        "drawn: 1 window of 1h, the shortest that the table has; no events (there are more than 10)\n"
    )
    one_fewer = ["--from", "2026-02-17T10:01", "--to", "2026-02-18"]
    assert "; 10 events\n" in run(name, *PLOT, *one_fewer).stderr
    alone = created(WITHOUT_TIERS)
    write(alone, events(11))
    result = run(alone, *PLOT, *DAY, "--format=json")
    assert [json.loads(line)["value"] for line in result.stdout.splitlines()] == [i / 2 for i in range(1, 11)]
    assert result.stderr == "drawn: the table has no aggregates; only the newest 10 events (there are more)\n"


def test_a_table_without_tiers(bigtable: str) -> None:
    """Only the events are drawn; --tier is wrong usage."""
    name = created(WITHOUT_TIERS)
    write(name, events(3))
    result = run(name, *PLOT, *DAY)
    assert (result.exit_code, "mean" in result.stdout, "• event" in result.stdout) == (0, False, True)
    assert result.stderr == "drawn: the table has no aggregates; 3 events\n"
    result = run(name, *PLOT, *DAY, "--tier", "1h")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "its tiers: none" in result.stderr


def test_windows_that_overlap_the_range(name: TableName) -> None:
    """Ten minutes are drawn with the hour or day that contains them."""
    minutes = ["--from", "2026-02-17T10:10", "--to", "2026-02-17T10:20"]
    records = run(name, *PLOT, *minutes, "--format=json").stdout.splitlines()
    assert json.loads(records[0])["window_start"] == "2026-02-17T10:00:00Z"
    assert len(records) == 11
    result = run(name, *PLOT, *minutes, "--tier", "1d")
    assert "mean of 1d" in result.stdout
    assert result.stderr == "drawn: 1 window of 1d, as requested; 10 events\n"


def test_aggregates_outlive_events(name: TableName) -> None:
    """If only events or only aggregates exist, they are drawn."""
    later = ["--from", "2026-02-17T12", "--to", "2026-02-17T13"]
    assert (
        "1 window of 1h, the shortest that the table has; the range holds no events" in run(name, *PLOT, *later).stderr
    )
    write(name, WITH_TIERS.rows(Event("s", T + 5 * HOUR, {"t": 1.0}, {})))
    not_yet = ["--from", "2026-02-17T15", "--to", "2026-02-17T16"]
    assert "the range holds no aggregates of 1h; 1 event\n" in run(name, *PLOT, *not_yet).stderr


def test_an_overflow(bigtable: str) -> None:
    """An infinite mean is a string in JSON and a gap in the chart."""
    name = created(WITH_TIERS)
    write(name, [window_row(HOURLY, T, 1.7e308, 1.7e308)])
    assert run(name, *PLOT, *DAY).exit_code == 0
    [record] = map(json.loads, run(name, *PLOT, *DAY, "--format=json").stdout.splitlines())
    assert record["max"] == 1.7e308


@pytest.mark.parametrize("json_option", [[], ["--format=json"]])
def test_png(name: TableName, tmp_path: Path, json_option: list[str]) -> None:
    """The file is written and its name printed; with --format json the lines are printed instead."""
    path = tmp_path / "plot.png"
    result = run(name, *PLOT, *DAY, "-o", str(path), *json_option)
    assert result.exit_code == 0, result.output
    assert path.read_bytes().startswith(b"\x89PNG")
    assert result.stdout.startswith("{" if json_option else f"saved as {path}\n")
    assert "drawn: 2 windows" in result.stderr


def test_nothing_to_draw_writes_no_file(name: TableName, tmp_path: Path) -> None:
    """An empty range is reported with exit code 1, and no file is written."""
    path = tmp_path / "plot.png"
    result = run(name, *PLOT, "--from", "2025-01-01", "--to", "2025-01-02", "-o", str(path))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "no t of s between 2025-01-01T00:00:00Z and 2025-01-02T00:00:00Z; its newest event is at 2026-02-17T10:59:00Z\n"
    )
    assert not path.exists()


def test_a_file_that_cannot_be_written(name: TableName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is one line, with exit code 1."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(read_plot, "save_chart", full)
    result = run(name, *PLOT, *DAY, "-o", str(tmp_path / "plot.png"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: cannot write {tmp_path / 'plot.png'}: No space left on device\n"


def test_only_one_metric_is_read(name: TableName) -> None:
    """Other metrics of the same events are not drawn."""
    printed = run(name, "plot", "s", "--metric", "other", *DAY, "--format=json").stdout
    records = [json.loads(line) for line in printed.splitlines()]
    assert {record["value"] for record in records if "value" in record} == {1e9}
    assert records[0]["max"] == 0


@pytest.fixture
def two(name: TableName) -> TableName:
    """Returns the table with a second sensor, which has events only."""
    write(name, [row for i in range(3) for row in WITH_TIERS.rows(Event("b", T + i * MINUTE, {"t": 50.0 + i}, {}))])
    return name


def test_several_sensors_and_metrics(two: TableName, tmp_path: Path) -> None:
    """Each metric has a chart with all sensors; what is missing is reported, and the rest drawn."""
    command = ["plot", "s", "b", "--metric", "t", "--metric", "other", "--unit", "t=°C", *DAY]
    records = [json.loads(line) for line in run(two, *command, "--format=json").stdout.splitlines()]
    drawn = {(record["sensor_id"], record["metric"]) for record in records}
    assert drawn == {("s", "t"), ("b", "t"), ("s", "other")}
    result = run(two, *command)
    above, below = result.stdout.split("\n\n")
    assert "s, b: t" in above
    assert "• s, mean of 1h   x b, events" in above
    assert "s: other" in below
    assert result.stderr.splitlines()[0].startswith("no other of b between ")
    assert "drawn: t of b, the range holds no aggregates of 1h; 3 events" in result.stderr
    path = tmp_path / "plot.png"
    assert run(two, *command, "-o", str(path)).exit_code == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_metrics_of_one_unit_share_a_chart(two: TableName) -> None:
    """A unit without a metric is that of all metrics."""
    result = run(two, "plot", "s", "--metric", "t", "--metric", "other", "--unit", "K", *DAY)
    assert "\n\n" not in result.stdout.rstrip()
    assert "• t, mean of 1h   x other, mean of 1h" in result.stdout


def test_units_and_labels_of_the_schema(bigtable: str) -> None:
    """Metrics of one declared unit share an axis, under their labels; a rate has the unit of a rate."""
    text = "tiers = { 1h = 'hours' }\n[metrics]\nraw = ['*']\n[metrics.t]\nunit = 'K'\nlabel = 'Air'\n"
    schema = parse_schema(f"{text}[metrics.other]\nunit = 'K'\n")
    name = created(schema)
    write(name, [row for event in [Event("s", T, {"t": 1, "other": 2}, {})] for row in schema.rows(event)])
    shown = run(name, "plot", "s", "--metric", "t", "--metric", "other", *DAY)
    assert "\n\n" not in shown.stdout.rstrip()
    assert "• Air, events   x other, events" in shown.stdout
    assert "Air (K)" in run(name, "plot", "s", "--metric", "t", *DAY).stdout
    assert "Air (°C)" in run(name, "plot", "s", "--metric", "t", "--unit", "°C", *DAY).stdout
    read = parse_schema(f"statistics = {{ '*' = ['rate'] }}\n{text}")
    assert (read_plot._unit_in(schema, "t"), read_plot._unit_in(read, "t")) == ("K", "K/s")


def test_several_axes(name: TableName) -> None:
    """Limits are those of one axis, and a chart for each of many metrics is too much."""
    result = run(name, *PLOT, "--metric", "other", "--y-min", "2", *DAY)
    assert (result.exit_code, "are for one value axis" in result.stderr) == (2, True)
    many = [option for n in range(9) for option in ("--metric", f"m{n}")]
    assert "9 charts are more than people can" in run(name, "plot", "s", *many, *DAY).stderr


def test_limits(name: TableName) -> None:
    """Limits replace the ends of the value axis; if no value is within them, nothing is drawn."""
    assert "200┤" in run(name, *PLOT, *DAY, "--y-min", "0", "--y-max", "200").stdout
    result = run(name, *PLOT, *DAY, "--y-min", "1000")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no value is between --y-min and --y-max; nothing is drawn" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--metric", "t", "--unit", "p=hPa"], "--unit p=…: p is not drawn; add --metric p"),
        (["--metric", "t", "--unit", "t="], "'t=' is neither a unit, such as °C, nor METRIC=UNIT"),
        (["--metric", "t", "--y-min", "2", "--y-max", "2"], "--y-min 2 is not below --y-max 2"),
        (["--metric", "t", "--y-min", "nan"], "'nan' is not a finite number"),
    ],
)
def test_wrong_usage(options: list[str], message: str) -> None:
    """The error says what to change, before the table is opened."""
    result = run(TableName("test-project", "test-instance", "t"), "plot", "s", *options, *DAY)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in " ".join(result.stderr.split())


def hour_with(statistics: str) -> TableName:
    """Returns a table with an hour of readings 0 to 59, of which it keeps these statistics."""
    schema = parse_schema(f'tiers = {{ 1h = "hours" }}\n[statistics]\nt = {statistics}')
    readings = WindowReadings()
    for minute in range(60):
        readings.add(T + minute * MINUTE, {"t": float(minute)})
    [tier] = schema.tiers
    stats = readings.pane(tier.statistics).stats
    name = created(schema)
    write(name, [aggregate_row(tier.window, "s", T, stats, tier.family, tier.statistics)])
    return name


def test_a_band_of_quantiles(bigtable: str) -> None:
    """The band is drawn between any two statistics: of quantiles, the sketch gives those that are not declared too."""
    name = hour_with('["avg", "p50"]')
    [window] = map(json.loads, run(name, *PLOT, *DAY, "--band", "p5,p95", "--format=json").stdout.splitlines())
    assert (window["p5"], window["avg"], window["p95"]) == (pytest.approx(2, 0.01), 29.5, pytest.approx(56, 0.01))
    assert "p5 to p95 of 1h" in run(name, *PLOT, *DAY, "--band", "p5,p95").stdout
    failed = run(name, *PLOT, *DAY, "--band", "min,max")
    assert "the table does not have min and max of t; choose others with --band" in failed.stderr
    assert "'p5' is not two statistics" in run(name, *PLOT, *DAY, "--band", "p5").stderr


@pytest.mark.parametrize(
    ("statistics", "legend", "keys"),
    [
        ('["p5", "p50", "p95"]', "░ p5 to p95 of 1h   ━ p50 of 1h", {"p5", "p50", "p95"}),
        ('["avg", "p50"]', "━ mean of 1h", {"avg"}),
        ('["last", "increase"]', "━ last of 1h", {"last"}),
    ],
)
def test_statistics_without_extremes(
    bigtable: str, tmp_path: Path, statistics: str, legend: str, keys: set[str]
) -> None:
    """What the table has is drawn: the outer quantiles as the band, and the median or another statistic as the line."""
    name = hour_with(statistics)
    assert run(name, *PLOT, *DAY).stdout.splitlines()[-1].strip() == legend
    [window] = map(json.loads, run(name, *PLOT, *DAY, "--format=json").stdout.splitlines())
    assert window.keys() - {"sensor_id", "metric", "window_start", "window"} == keys
    assert run(name, *PLOT, *DAY, "-o", str(tmp_path / "drawn.png")).exit_code == 0


def test_nothing_to_draw(bigtable: str) -> None:
    """Counts alone make no line."""
    assert (
        "the table does not have any statistic that a line can show of t"
        in run(hour_with('["count"]'), *PLOT, *DAY).stderr
    )
