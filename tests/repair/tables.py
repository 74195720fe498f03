"""Tables with wrong aggregates in the emulator, and repairs of them on the command line."""

import json
import uuid
from collections import defaultdict

import pytest
from click.testing import CliRunner
from google.cloud.bigtable import data

from pipeline.cli.root import main
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import tables
from pipeline.core.events.event import Event
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.aggregate_rows import aggregate_key, aggregate_row
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.core.windows import DAILY, HOURLY
from tests.support import bare_tables
from tests.support.lasting import lasting

T = parse_time("2026-02-17T00:00:00Z")
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = HOURLY.length_us
DAY = DAILY.length_us
SENSORS = ("a", "a-1", "b")
BOTH_TIERS = "tiers = { 1h = 'hours', 1d = 'days' }\n"
TWO_DAYS = ("--from", "2026-02-17", "--to", "2026-02-19")
# Every layout, and keys of every kind: salted, sharded, by metadata, by metric, by time in front of the sensor.
SCHEMAS = {
    "wide": "{sensor_id}#{reverse_us}",
    "wide float64": "shard-{shard:32}#{sensor_id}#{iso_s}",
    "wide by location": "{metadata.location}#{sensor_id}#{time:%Y-%m-%d-%H%M%S}",
    "wide time first": "{reverse_ms}#{sensor_id}",
    "wide by day": "{bucket:1d}#{sensor_id}#{reverse_us}",
    "tall metric first": "{metric}#{sensor_id}#{iso_us}",
    "tall float64": "{salt:2}#{sensor_id}#{reverse_ms}#{metric}",
    "serialized": "{sensor_id}#{reverse_us}",
    "bucket_cells": "{sensor_id}#{bucket:1h}",
    "bucket_columns by location": "{metadata.location}#{sensor_id}#{bucket:1d}#{metric}",
    "bucket_serialized": "{sensor_id}#{bucket:1h}",
}


def table_of(text=BOTH_TIERS):
    name = TableName("test-project", "test-instance", f"t-{uuid.uuid4().hex[:12]}")
    schema = parse_schema(text)
    assert tables.create(name, lasting(schema))
    return name, schema


def write(name, rows):
    entries = [
        data.RowMutationEntry(
            row.key, [data.SetCell(cell.family, cell.qualifier, cell.value, cell.timestamp_us) for cell in row.cells]
        )
        for row in rows
    ]
    with data.BigtableDataClient(project=name.project) as client:
        client.get_table(name.instance, name.table).bulk_mutate_rows(entries)


def delete_rows(name, keys):
    with data.BigtableDataClient(project=name.project) as client:
        client.get_table(name.instance, name.table).bulk_mutate_rows(
            [data.RowMutationEntry(key, [data.DeleteAllFromRow()]) for key in keys]
        )


def put(name, rows):
    """Writes rows in place of those that were there, whatever these count."""
    delete_rows(name, [row.key for row in rows])
    write(name, rows)


def rows_of(name):
    """Returns the whole table, without its schema: key to the newest cells."""
    return {key: cells for key, cells in bare_tables.rows_of(name).items() if not key.startswith(b"schema#")}


def events(days=2, sensors=SENSORS, start=T):
    """An event every three hours, with sums whose last digits depend on the order of addition."""
    return [
        Event(
            sensor,
            start + n * 3 * HOUR + n * MINUTE,
            {"t": 20.1 + n / 7, "wind": 0.1 * n},
            {"location": f"l-{sensor}", "model": "m"},
            f"id-{n}",
        )
        for sensor in sensors
        for n in range(days * 8)
    ]


def aggregates(schema, given):
    """The aggregate rows of these events, added in reverse order."""
    stats = defaultdict(WindowStats)
    for event in reversed(given):
        for tier in schema.tiers:
            stats[tier, event.sensor_id, tier.window.start_of(event.event_time_us)].add(event.readings)
    return [
        aggregate_row(tier.window, sensor, start_us, of, tier.family) for (tier, sensor, start_us), of in stats.items()
    ]


def raw_rows(schema, given):
    return [row for event in given for row in schema.rows(event)]


def run(name, *arguments):
    which = ["--project", name.project, "--instance", name.instance, "--table", name.table]
    return CliRunner().invoke(main, ["repair", *which, *arguments])


def repaired(name, *arguments):
    """Runs a repair, and returns its findings and totals."""
    result = run(name, "--format=json", *arguments)
    assert result.exit_code == (1 if "--dry-run" in arguments and '"wrong": 0' not in result.stdout else 0), (
        result.output,
        result.exception,
    )
    *findings, sums = map(json.loads, result.stdout.splitlines())
    return findings, sums


def assert_right(name, schema, given):
    """Every aggregate of every tier exists, and matches the events."""
    expected = {(row.key, cell.qualifier): cell.value for row in aggregates(schema, given) for cell in row.cells}
    stored = {
        (key, cell.qualifier): cell.value
        for key, cells in rows_of(name).items()
        if key.startswith(b"agg#")
        for cell in cells
        if cell.qualifier != b"window_sizes"
    }
    assert stored.keys() == expected.keys()
    for where, value in stored.items():
        assert float(value) == pytest.approx(float(expected[where]), rel=1e-9, abs=1e-12), where


def spoil(name, schema):
    """One hour that counted twice, one that is missing, one without raw rows, one with a stale column, a wrong day."""
    given = events()
    twice = WindowStats()
    for _ in range(2):
        twice.add(given[0].readings)
    stale = WindowStats()
    stale.add({**given[1].readings, "ghost": 1.0})
    nothing = WindowStats()
    nothing.add({"t": 1.0})
    hours, days = schema.tiers
    put(
        name,
        [
            aggregate_row(HOURLY, "a", T, twice, hours.family),
            aggregate_row(HOURLY, "a", HOURLY.start_of(given[1].event_time_us), stale, hours.family),
            aggregate_row(HOURLY, "a", T + HOUR, nothing, hours.family),
            aggregate_row(DAILY, "b", T + DAY, twice, days.family),
        ],
    )
    delete_rows(name, [aggregate_key(HOURLY, "b", T)])


ODD_KEYS = [
    b"!",
    b"a",
    b"a#",
    b"a#8228",
    b"a-1#x",
    b"b#9",
    b"not#ours",
    b"user-7",
    b"zzz",
    b"\xff\xfe",
    b"agg",
    "ü#1".encode(),
]
WRONG = [
    ("a", "1h", "2026-02-17T00:00:00Z", "differs"),
    ("a", "1h", "2026-02-17T01:00:00Z", "no raw rows"),
    ("a", "1h", "2026-02-17T03:00:00Z", "differs"),
    ("b", "1h", "2026-02-17T00:00:00Z", "no aggregate row"),
    ("b", "1d", "2026-02-18T00:00:00Z", "differs"),
]


def of(findings):
    return [(each["sensor_id"], each["window"], each["start"], each["problem"]) for each in findings]
