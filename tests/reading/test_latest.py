"""``tidetable read latest`` of all sensors."""

import csv
import io
import json
from datetime import timedelta

import pytest

from pipeline.cloud.tables.retention_notes import record_lateness
from pipeline.core.events.event import Event
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.newest_row import NewestReadings
from pipeline.core.schema.toml import parse_schema
from tests.reading.running import run
from tests.support.rows import decoded
from tests.support.tables import created, write

T = parse_time("2026-02-17T10:30:00Z")
EVENTS = [
    Event("hall-1", T, {"t": 20.5}, {}),
    Event("hall-1", T + 60_000_000, {"u": 3.0}, {}),
    Event("hall-2", T + 1_000_000, {"t": 21.0}, {}),
    Event("roof-1", T - 3_600_000_000, {"t": -4.0, "u": 1.0}, {}),
]


@pytest.fixture(params=["", 'latest = "now"'])
def table(bigtable, request):
    """A table with a row of newest readings for each sensor, and one without."""
    schema = parse_schema(request.param)
    name, newest = created(schema), NewestReadings()
    for event in EVENTS:
        newest.add(event.sensor_id, event.event_time_us, event.readings.items())
    rows = [row for event in EVENTS for row in schema.rows(event)]
    write(name, rows + ([decoded(row) for row in newest.rows("now")] if schema.latest else []))
    return name, schema


def sensors(result):
    assert result.exit_code == 0, result.output
    return [json.loads(line)["sensor_id"] for line in result.stdout.splitlines()]


def test_all_sensors(table):
    """All sensors' newest readings are printed as text, JSON and CSV, filtered as asked."""
    name, schema = table
    everything = ["hall-1", "hall-2", "roof-1"]
    found = run(name, "latest-readings", "--all", "--format=json")
    assert sensors(found) == everything
    first = json.loads(found.stdout.splitlines()[0])
    newest = {"u": 3.0} if schema.latest is None else {"t": 20.5, "u": 3.0}  # without such rows, of one event
    assert (first["readings"], first["times"]["u"]) == (newest, "2026-02-17T10:31:00Z")
    assert sensors(run(name, "latest-readings", "--prefix", "hall", "--format=json")) == everything[:2]
    nothing = run(name, "latest-readings", "--prefix", "cellar", "--format=json")
    assert (nothing.exit_code, nothing.stdout) == (1, "")
    assert nothing.stderr == f"Error: no sensor of table {name} is cellar*\n"
    assert sensors(run(name, "latest-readings", "*-2", "roof-1", "--format=json")) == everything[1:]
    assert sensors(run(name, "latest-readings", "--silent-for", "1h", "--format=json")) == [
        "roof-1",
        "hall-2",
        "hall-1",
    ]
    assert sensors(run(name, "latest-readings", "--silent-for", "9999d", "--format=json")) == []
    assert sensors(run(name, "latest-readings", "--all", "--metric", "u", "--format=json")) == ["hall-1", "roof-1"]
    lines = run(name, "latest-readings", "--all").stdout.splitlines()
    assert any(line.split()[:2] == ["roof-1", "2026-02-17T09:30:00Z"] for line in lines)
    rows = list(csv.DictReader(io.StringIO(run(name, "latest-readings", "--all", "--format", "csv").stdout)))
    assert [row["sensor_id"] for row in rows] == everything


def test_rows_that_are_not_there_or_behind(bigtable):
    """Without any row of newest readings, events tell; those that may be behind do not tell of a shorter silence."""
    schema = parse_schema('latest = "now"')
    name = created(schema)
    write(name, [row for event in EVENTS for row in schema.rows(event)])
    assert sensors(run(name, "latest-readings", "--all", "--format=json")) == ["hall-1", "hall-2", "roof-1"]
    assert sensors(run(name, "latest-readings", "--silent-for", "1m", "--format=json")) == [
        "roof-1",
        "hall-2",
        "hall-1",
    ]
    record_lateness(name, timedelta(0), timedelta(0), timedelta(minutes=5))
    refused = run(name, "latest-readings", "--silent-for", "4m")
    assert refused.exit_code == 2
    assert "ask for sensors that are silent for 5m or longer" in refused.stderr


@pytest.mark.parametrize("latest", ["", 'latest = "now"\n'])
def test_metadata_alone(bigtable, latest):
    """The newest metadata is printed with its time, also of a sensor without readings."""
    schema = parse_schema(f"{latest}metadata_alone = true")
    name, newest = created(schema), NewestReadings()
    event = Event("hall-1", T, {}, {"status": "on"})
    newest.add_metadata(event.sensor_id, T, event.metadata)
    write(name, schema.rows(event) + ([decoded(row) for row in newest.rows("now")] if latest else []))
    (found,) = map(json.loads, run(name, "latest-readings", "--all", "--format=json").stdout.splitlines())
    times = {"event_time": "2026-02-17T10:30:00Z", "metadata_times": {"status": "2026-02-17T10:30:00Z"}}
    assert found == {"sensor_id": "hall-1", "readings": {}, "times": {}, "metadata": {"status": "on"}} | times
    assert "status" in run(name, "latest-readings", "--all").stdout
    assert not run(name, "latest-readings", "--all", "--metric", "t", "--format=json").stdout
    result = run(name, "events", "hall-1", "--metric", "t")
    assert "its newest event is at 2026-02-17T10:30:00Z" in result.stderr


@pytest.mark.parametrize("wrong", [[], ["hall-1", "--all"], ["--all", "--metadata", "a=b"], ["--silent-for", "soon"]])
def test_wrong_usage(table, wrong):
    """Options that are wrong or do not go together are refused."""
    assert run(table[0], "latest-readings", *wrong).exit_code == 2
