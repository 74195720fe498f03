"""What the keys of a table change in what the reading commands take and print."""

import re

import pytest

from pipeline.cloud.connection.names import TableName
from pipeline.core.events.event import Event
from pipeline.core.notation.times import parse_time
from tests.reading.running import run, run_json
from tests.serve.serving import table_of

T = parse_time("2026-02-17T10:00:00Z")
MINUTE = 60_000_000
SENSORS = ("balloon-1", "balloon-2", "cellar")
HOUR = ["--from", "2026-02-17T10", "--to", "2026-02-17T11"]
DAY = ["--from", "2026-02-17", "--to", "2026-02-18"]
NORTH = ["--metadata", "location=north"]
EVENTS = [
    Event(sensor, T + n * 10 * MINUTE, {"temperature": 20.5 + n, "pressure": 94558.0}, {"location": "north"}, f"id {n}")
    for sensor in SENSORS
    for n in range(12)
]


@pytest.fixture(scope="module")
def tall(bigtable: str) -> TableName:
    """A table whose keys contain the metric."""
    return table_of(EVENTS, 'key = "{sensor_id}#{metric}#{reverse_us}"\nlayout = "tall"')


@pytest.fixture(scope="module")
def by_location(bigtable: str) -> TableName:
    """A table whose keys begin with metadata."""
    return table_of(EVENTS, 'key = "{metadata.location}#{sensor_id}#{iso_ms}"')


def test_a_column_for_the_sensor(tall: TableName) -> None:
    """A table has a sensor column only if several sensors are requested."""
    lines = [
        line.split() for line in run(tall, "latest-events", "cellar", "balloon-1").stdout.splitlines() if line.strip()
    ]
    assert lines[0] == ["sensor", "event", "time", "pressure", "temperature", "metadata"]
    assert [line[0] for line in lines[2:]] == ["cellar", "balloon-1"]
    assert "cellar" not in run(tall, "latest-events", "cellar").stdout
    assert run(tall, "aggregates", *SENSORS, *DAY).stdout.count("balloon-2") == 4


def test_sensors_side_by_side(tall: TableName, by_location: TableName) -> None:
    """Sensors with a prefix are read in the order of their keys, by one scan if the keys are adjacent."""
    command = ["events", *HOUR, "--prefix", "balloon-", "--metric", "temperature"]
    records = run_json(by_location, *command, *NORTH)
    assert [(record["sensor_id"], record["readings"]["temperature"]) for record in records] == [
        (sensor, 20.5 + n) for sensor in SENSORS[:2] for n in reversed(range(6))
    ]
    assert len(run_json(by_location, *command, *NORTH, "--limit", "7")) == 7
    assert len(run_json(by_location, "events", "--all", *HOUR, *NORTH)) == 18
    assert run(by_location, "events", "--all", *HOUR, "--metadata", "location=south").stderr == (
        "no readings of them between 2026-02-17T10:00:00Z and 2026-02-17T11:00:00Z\n"
    )
    assert {record["sensor_id"] for record in run_json(tall, *command)} == set(SENSORS[:2])


def test_metadata_is_required(by_location: TableName) -> None:
    """If sensors are located by metadata, the error names the missing option."""
    for command in (
        ["latest-events", "cellar"],
        ["events", "cellar", *DAY],
        ["plot", "cellar", "--metric", "temperature", *DAY],
    ):
        result = run(by_location, *command)
        assert (result.exit_code, result.stdout) == (2, "")
        assert re.search(r"^Error: .*add --metadata location=…$", result.stderr, re.MULTILINE)
    result = run(by_location, "latest-events", "cellar", "--metadata", "model=m1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--metadata model does not locate sensors in this table; location does" in result.stderr
    result = run(by_location, "latest-events", "cellar", *NORTH, *NORTH)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "a field can be set only once" in result.stderr
    assert run(by_location, "latest-events", "cellar", "--metadata", "location=south").stderr == (
        "Error: no readings of cellar with location=south\n"
    )
    assert run_json(by_location, "sensors", *NORTH) == run_json(by_location, "sensors")


def test_event_ids(bigtable: str, by_location: TableName) -> None:
    """An event's id is printed only if it has one."""
    name = table_of(EVENTS[:2], 'key = "{sensor_id}#{reverse_us}#{event_id}"')
    assert [record["event_id"] for record in run_json(name, "events", *SENSORS[:1], *DAY)] == ["id 1", "id 0"]
    printed = run(name, "events", *SENSORS[:1], *DAY).stdout
    assert "event id" in printed
    assert "id 1" in printed
    assert "event_id" not in run_json(by_location, "latest-events", "cellar", *NORTH)[0]
    assert "event id" not in run(by_location, "latest-events", "cellar", *NORTH).stdout
