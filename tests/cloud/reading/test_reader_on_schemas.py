"""Readers of every layout, against the emulator: they return the right records and read no more than they need."""

from functools import cache

import pytest

from pipeline.cloud.reading.reader import SensorTable
from pipeline.core.events.event import Event
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.rows.records import RawRecord
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.core.windows import DAILY, HOURLY
from tests.support.exhaustive import cases
from tests.support.tables import created, write

T = parse_time("2026-02-17T10:00:00Z")
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = HOURLY.length_us
SENSORS = ("a", "a-1", "b")
NORTH = {"location": "north"}

# Every layout, once with the sensor first and once with keys that sort the oldest first, or by something else first.
SCHEMAS = {
    "wide": "{sensor_id}#{reverse_us}",
    "wide float64": "shard-{shard:32}#{sensor_id}#{iso_s}",
    "wide by location": "{metadata.location}#{sensor_id}#{time:%Y-%m-%d-%H%M%S}",
    "wide time first": "{reverse_ms}#{sensor_id}",
    "wide by day": "{bucket:1d}#{sensor_id}#{reverse_us}",
    "tall": "{sensor_id}#{metric}#{reverse_us}",
    "tall float64": "{salt:2}#{sensor_id}#{reverse_ms}#{metric}",
    "serialized": "{sensor_id}#{reverse_us}",
    "serialized by location": "{metadata.location}#{sensor_id}#{iso_ms}",
    "bucket_cells": "{sensor_id}#{bucket:1h}",
    "bucket_cells float64": "{salt:1}#{sensor_id}#{bucket:1w}",
    "bucket_columns": "{sensor_id}#{metric}#{bucket:1h}",
    "bucket_columns by location": "{metadata.location}#{sensor_id}#{bucket:1d}#{metric}",
    "bucket_serialized": "{sensor_id}#{bucket:1h}",
}

MINUTES = 150


def events(sensor):
    """Events of two and a half hours, one a minute; only every tenth has a wind reading."""
    index = SENSORS.index(sensor)
    for minute in range(MINUTES):
        readings = {"temperature": 20.5 + minute, "humidity": float(index)}
        if minute % 10 == 0:
            readings["wind"] = minute / 10
        yield Event(sensor, T + minute * MINUTE, readings, {**NORTH, "model": f"m{minute % 2}"})


def record(event):
    return RawRecord(event.sensor_id, event.event_time_us, event.readings, event.metadata)


def newest_first(sensor):
    return [record(event) for event in events(sensor)][::-1]


@pytest.fixture(scope="module")
def written(bigtable):
    """Returns a function that returns a filled table of a schema. It fills each once.

    A process that comes back to this module fills them again: its tables go when the process turns to another module.
    """
    return cache(_written)


def _written(name):
    layout, _, more = name.partition(" ")
    schema = parse_schema(
        f"key = '{SCHEMAS[name]}'\nlayout = '{layout}'\n"
        + ("values = 'float64'\n" if more == "float64" else "")
        + "tiers = { 1h = 'hours', 1d = 'days' }\n"
    )
    table = created(schema)
    rows = [row for sensor in SENSORS for event in events(sensor) for row in schema.rows(event)]
    stats = WindowStats()
    stats.add({"temperature": 1.0})
    rows += [aggregate_row(HOURLY, sensor, T + i * HOUR, stats, "hours") for sensor in SENSORS for i in range(3)]
    rows += [aggregate_row(DAILY, sensor, DAILY.start_of(T), stats, "days") for sensor in SENSORS]
    write(table, rows)
    return table


@pytest.fixture(params=cases(list(SCHEMAS), list(SCHEMAS)[::2]))
def table(written, request):
    name = written(request.param)
    with SensorTable.open(name.project, name.instance, name.table) as opened:
        yield opened


def test_every_query(table):
    """Latest, a range, one metric, a limit: the same records whatever the schema."""
    for sensor in SENSORS:
        expected = newest_first(sensor)
        assert table.latest_events(sensor, metadata=NORTH) == expected[0]
        start, end = T + 50 * MINUTE, T + 70 * MINUTE
        inside = [each for each in expected if start <= each.event_time_us < end]
        assert list(table.events(sensor, start, end, metadata=NORTH)) == inside
        assert list(table.events(sensor, start, end, limit=3, metadata=NORTH)) == inside[:3]
        wind = table.events(sensor, T, T + 3 * HOUR, metrics=["wind"], metadata=NORTH)
        assert [each.readings for each in wind] == [{"wind": float(i)} for i in reversed(range(15))]
        two = table.events(sensor, T, T + 1, metrics=["wind", "humidity"], metadata=NORTH)
        assert [each.readings for each in two] == [{"humidity": float(SENSORS.index(sensor)), "wind": 0.0}]
        assert table.latest_events(sensor, metrics=["wind"], metadata=NORTH).readings == {"wind": 14.0}


# Rows and cells that the server returned, for "latest", "an hour", "an hour of one metric" and "one event of a limit".
# An event has two cells of readings and two of metadata (a promoted location is in the key), or one where serialized;
# every tenth has one reading more. The newest day of "wide by day" is looked up by one key. Of the newest bucket, half
# an hour, "bucket_cells" sends each column's newest cell, and "bucket_serialized" its events. Where keys have the
# metric before the time, three seeks find the metrics; where behind, a page is guessed large enough for an event.
READ = {
    "wide": [(1, 4), (60, 246), (60, 60), (1, 4)],
    "wide float64": [(1, 4), (60, 246), (60, 60), (1, 4)],
    "wide by location": [(1, 3), (60, 186), (60, 60), (1, 3)],
    "wide time first": [(1, 4), (60, 246), (60, 60), (1, 4)],
    "wide by day": [(2, 5), (60, 246), (60, 60), (1, 4)],
    "tall": [(27, 33), (150, 402), (60, 60), (27, 33)],
    "tall float64": [(9, 27), (126, 378), (60, 60), (9, 27)],
    "serialized": [(1, 1), (60, 60), (60, 60), (1, 1)],
    "serialized by location": [(1, 1), (60, 60), (60, 60), (1, 1)],
    "bucket_cells": [(1, 5), (1, 246), (1, 60), (1, 5)],
    "bucket_columns": [(11, 48), (11, 386), (1, 60), (11, 81)],
    "bucket_columns by location": [(3, 169), (3, 252), (1, 60), (3, 70)],
    "bucket_serialized": [(1, 30), (1, 60), (1, 60), (1, 60)],
}


@pytest.mark.parametrize("name", READ)
def test_no_more_than_is_needed(written, name):
    """The server returns only the rows and cells of the result, in every layout."""
    queries = [
        lambda table: [table.latest_events("a", metadata=NORTH)],
        lambda table: table.events("a", T + HOUR, T + 2 * HOUR, metadata=NORTH),
        lambda table: table.events("a", T + HOUR, T + 2 * HOUR, metrics=["temperature"], metadata=NORTH),
        lambda table: table.events("a", T + HOUR, T + 2 * HOUR, limit=1, metadata=NORTH),
    ]
    where = written(name)
    found = []
    for query in queries:
        with SensorTable.open(where.project, where.instance, where.table) as table:
            assert list(query(table))
            found.append((table.rows.rows_read, table.rows.cells_read))
    assert found == READ[name]


def test_a_part_of_a_bucket(written):
    """Of a bucket of serialized events, the server returns those of the range, by their columns."""
    where = written("bucket_serialized")
    with SensorTable.open(where.project, where.instance, where.table) as table:
        assert len(list(table.events("a", T + HOUR, T + HOUR + 10 * MINUTE))) == 10
        assert (table.rows.rows_read, table.rows.cells_read) == (1, 10)
