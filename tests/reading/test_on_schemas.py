"""Every reading command prints the same data on every kind of schema."""

import re
from functools import cache

import pytest

from pipeline.cloud.connection.names import TableName
from pipeline.core.events.event import Event
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.core.windows.fixed import DAILY, HOURLY
from tests.reading.running import run, run_json
from tests.support.tables import created, write

T = parse_time("2026-02-17T10:00:00Z")
MINUTE = 60_000_000
SENSORS = ("balloon-1", "balloon-2", "cellar")
HOUR = ["--from", "2026-02-17T10", "--to", "2026-02-17T11"]
DAY = ["--from", "2026-02-17", "--to", "2026-02-18"]
NORTH = ["--metadata", "location=north"]

SCHEMAS = {
    "wide": "{sensor_id}#{reverse_us}",
    "wide time first": "{reverse_ms}#{sensor_id}",
    "tall": "{sensor_id}#{metric}#{reverse_us}",
    "serialized by location": "{metadata.location}#{sensor_id}#{iso_ms}",
    "bucket_cells float64": "{salt:1}#{sensor_id}#{bucket:1h}",
    "bucket_columns": "{sensor_id}#{metric}#{bucket:1h}",
    "bucket_columns by location": "{metadata.location}#{sensor_id}#{bucket:1d}#{metric}",
    "bucket_serialized": "{sensor_id}#{bucket:1h}",
}
BY_LOCATION = {name for name in SCHEMAS if "by location" in name}
SIDE_BY_SIDE = {"wide", "serialized by location", "bucket_columns by location", "bucket_serialized"}


def events(sensor: str) -> list[Event]:
    """Returns two hours of events, ten minutes apart; every third one has the wind."""
    return [
        Event(
            sensor,
            T + i * 10 * MINUTE,
            {"temperature": 20.5 + i, "pressure": 94558.0} | ({"wind": i / 4} if i % 3 == 0 else {}),
            {"location": "north", "model": f"m{i % 2}"},
        )
        for i in range(12)
    ]


@cache
def written(name: str) -> TableName:
    """Returns a table with that schema and all data; every test process has its own."""
    layout, _, more = name.partition(" ")
    values = "values = 'float64'" if more == "float64" else ""
    schema = parse_schema(
        f"key = '{SCHEMAS[name]}'\nlayout = '{layout}'\n{values}\ntiers = {{ 1h = 'hours', 1d = 'days' }}"
    )
    table = created(schema)
    rows = [row for sensor in SENSORS for event in events(sensor) for row in schema.rows(event)]
    for sensor in SENSORS:
        for window, family in ((HOURLY, "hours"), (DAILY, "days")):
            by_window: dict[int, WindowStats] = {}
            for event in events(sensor):
                by_window.setdefault(window.start_of(event.event_time_us), WindowStats()).add(event.readings)
            rows += [aggregate_row(window, sensor, start, stats, family) for start, stats in by_window.items()]
    write(table, rows)
    return table


@pytest.fixture(params=SCHEMAS)
def schema(bigtable: str, request: pytest.FixtureRequest) -> str:
    return request.param


def in_json(event: Event, *metrics: str) -> dict:
    return {
        "sensor_id": event.sensor_id,
        "event_time": f"2026-02-17T{10 + (event.event_time_us - T) // (60 * MINUTE)}:"
        f"{(event.event_time_us - T) // MINUTE % 60:02}:00Z",
        "readings": {name: event.readings[name] for name in metrics if name in event.readings} or event.readings,
        "metadata": {} if metrics else event.metadata,
    }


def test_json(schema: str) -> None:
    """Every command prints the same records for every schema."""
    name, found_by = written(schema), NORTH if schema in BY_LOCATION else []

    def newest_first(sensor: str) -> list[Event]:
        return events(sensor)[::-1]

    assert run_json(name, "latest", "cellar", *found_by) == [in_json(newest_first("cellar")[0])]
    assert run_json(name, "latest", "cellar", "balloon-1", "--metric", "wind", *found_by) == [
        in_json(newest_first(sensor)[2], "wind") for sensor in ("cellar", "balloon-1")
    ]
    assert run_json(name, "range", "cellar", *HOUR, *found_by) == [in_json(e) for e in newest_first("cellar")[6:]]
    assert run_json(name, "range", "cellar", *DAY, "--limit", "2", "--metric", "pressure", *found_by) == [
        in_json(e, "pressure") for e in newest_first("cellar")[:2]
    ]
    several = run_json(name, "range", *SENSORS, *HOUR, *found_by)
    times = [record["event_time"] for record in several]
    assert times == sorted(times, reverse=True)
    for sensor in SENSORS:
        of_sensor = [record for record in several if record["sensor_id"] == sensor]
        assert of_sensor == [in_json(e) for e in newest_first(sensor)[6:]]
    hours = run_json(name, "aggregates", "cellar", *DAY)
    assert [(hour["window_start"], hour["reading_count"]) for hour in hours] == [
        ("2026-02-17T10:00:00Z", 6),
        ("2026-02-17T11:00:00Z", 6),
    ]
    assert run_json(name, "aggregates", "cellar", *DAY) == hours
    days = run_json(name, "aggregates", *SENSORS, *DAY, "--tier", "1d")
    assert [day["metrics"]["wind"]["count"] for day in days] == [4, 4, 4]
    assert sorted(sensor["sensor_id"] for sensor in run_json(name, "sensors")) == list(SENSORS)
    balloons = run_json(name, "sensors", "--prefix", "balloon")
    assert sorted(sensor["sensor_id"] for sensor in balloons) == ["balloon-1", "balloon-2"]


def test_prefix(schema: str) -> None:
    """Sensors with adjacent keys are read by one scan; for other schemas it is wrong usage."""
    name, found_by = written(schema), NORTH if schema in BY_LOCATION else []
    command = ["prefix", *HOUR, "--sensors", "balloon-", "--metric", "temperature", *found_by]
    if schema not in SIDE_BY_SIDE:
        result = run(name, *command)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "do not keep these sensors together" in result.stderr
        return
    records = run_json(name, *command)
    for sensor in SENSORS[:2]:
        assert [record for record in records if record["sensor_id"] == sensor] == [
            in_json(e, "temperature") for e in events(sensor)[5::-1]
        ]
    assert len(records) == 12
    assert len(run_json(name, *command, "--limit", "7")) == 7
    if found_by:
        assert len(run_json(name, "prefix", *HOUR, *found_by)) == 18
        assert run(name, "prefix", *HOUR, "--metadata", "location=south").stderr == (
            "no readings of sensors with location=south between 2026-02-17T10:00:00Z and 2026-02-17T11:00:00Z, "
            "or at any other time\n"
        )


@pytest.mark.parametrize(
    "command",
    [
        ["latest", "cellar"],
        ["latest", "cellar", "balloon-2", "--metric", "wind", "--metric", "pressure"],
        ["range", "cellar", *HOUR],
        ["range", "cellar", "nobody", *HOUR, "--limit", "40"],
        ["aggregates", "balloon-1", "cellar", *DAY],
        ["plot", "cellar", "--metric", "temperature", *HOUR],
        ["plot", "cellar", "--metric", "wind", *DAY, "--tier", "1d"],
        ["plot", "cellar", "--metric", "wind", *DAY, "--json"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_text_output(bigtable: str, command: list[str]) -> None:
    """Tables, charts and messages are identical on every schema."""
    shown = set()
    for schema in SCHEMAS:
        takes_metadata = schema in BY_LOCATION and command[0] != "aggregates"
        result = run(written(schema), *command, *(NORTH if takes_metadata else []))
        assert result.exit_code == 0, result.output
        shown.add((result.stdout, result.stderr.replace(" with location=north", "")))
    assert len(shown) == 1


def test_a_column_for_the_sensor(bigtable: str) -> None:
    """A table has a sensor column only if several sensors are requested."""
    name = written("tall")
    lines = [line.split() for line in run(name, "latest", "cellar", "balloon-1").stdout.splitlines() if line.strip()]
    assert lines[0] == ["sensor", "event", "time", "pressure", "temperature", "metadata"]
    assert [line[0] for line in lines[2:]] == ["cellar", "balloon-1"]
    assert "cellar" not in run(name, "latest", "cellar").stdout
    assert run(name, "aggregates", *SENSORS, *DAY).stdout.count("balloon-2") == 6


def test_metadata_is_required(bigtable: str) -> None:
    """If sensors are located by metadata, the error names the missing option."""
    name = written("serialized by location")
    for command in (
        ["latest", "cellar"],
        ["range", "cellar", *DAY],
        ["plot", "cellar", "--metric", "wind", *DAY],
        ["prefix", "--sensors", "balloon", *DAY],
    ):
        result = run(name, *command)
        assert (result.exit_code, result.stdout) == (2, "")
        assert re.search(r"^Error: .*add --metadata location=…$", result.stderr, re.MULTILINE)
    result = run(name, "latest", "cellar", "--metadata", "model=m1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--metadata model does not locate sensors in this table; location does" in result.stderr
    result = run(name, "latest", "cellar", *NORTH, *NORTH)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "a field can be set only once" in result.stderr
    assert run(name, "latest", "cellar", "--metadata", "location=south").stderr == (
        "Error: no readings of cellar with location=south\n"
    )
    assert run_json(name, "sensors", *NORTH) == run_json(name, "sensors")


def test_event_ids(bigtable: str) -> None:
    """An event's id is printed only if it has one."""
    schema = parse_schema("key = '{sensor_id}#{reverse_us}#{event_id}'")
    name = created(schema)
    pair = [event._replace(event_time_us=T, event_id=f"id {i}") for i, event in enumerate(events("s")[:2])]
    write(name, [row for event in pair for row in schema.rows(event)])
    assert [record["event_id"] for record in run_json(name, "range", "s", *DAY)] == ["id 0", "id 1"]
    assert "event_id" not in run_json(written("wide"), "latest", "cellar")[0]
    printed = run(name, "range", "s", *DAY).stdout
    assert "event id" in printed
    assert "id 1" in printed
    assert "event id" not in run(written("wide"), "latest", "cellar").stdout
