"""Prints what each layout costs to write, store and read: the table of docs/schemas.md.

The same 100,000 events, of 100 sensors and three metrics over a day, for every layout and encoding. Everything is
counted and nothing is timed, so the table is nearly the same on every machine: rows, cells, and the bytes of keys,
qualifiers and values; requests of Beam's connector, which also flushes by the clock; and the rows and cells that the
server returned for four queries. Bigtable's own compression is not included.
"""

import random
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from unittest import mock

from google.cloud.bigtable.batcher import MutationsBatcher
from google.cloud.bigtable.client import Client
from google.cloud.bigtable.row import DirectRow
from google.cloud.bigtable_v2 import BigtableClient

from benchmarks.measuring import arguments, emulators
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.reading.reader import SensorTable
from pipeline.cloud.tables import tables
from pipeline.core.events.event import Event
from pipeline.core.notation.times import parse_time, to_datetime
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.rows.rows import Row
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.core.windows import HOURLY

EVENTS = 100_000
SENSORS = 100
METRICS = {"temperature": (18.0, 3.0), "humidity": (55.0, 10.0), "pressure": (101_325.0, 400.0)}
METADATA = {"location": "us-west2", "model": "TX-9"}
START_US = parse_time("2026-02-17")
DAY_US = 86_400_000_000

LAYOUTS = {
    "wide": "{sensor_id}#{reverse_us}",
    "tall": "{sensor_id}#{metric}#{reverse_us}",
    "serialized": "{sensor_id}#{reverse_us}",
    "bucket_cells": "{sensor_id}#{bucket:1h}",
    "bucket_columns": "{sensor_id}#{metric}#{bucket:1h}",
    "bucket_serialized": "{sensor_id}#{bucket:1h}",
}

Query = Callable[[SensorTable], Iterable[object]]

SENSOR = "sensor-042"
END_US = START_US + DAY_US
QUERIES: dict[str, Query] = {
    "latest": lambda table: [table.latest_events(SENSOR)],
    "last hour": lambda table: table.events(SENSOR, END_US - HOURLY.length_us, END_US),
    "a day of one metric": lambda table: table.events(SENSOR, START_US, END_US, metrics=["temperature"]),
    "a day of hourly aggregates": lambda table: table.aggregates(SENSOR, START_US, END_US),
}


def events() -> Iterator[Event]:
    """Yields the events, ordered by time."""
    chance = random.Random(1)
    a_sensor = EVENTS // SENSORS
    for index in range(EVENTS):
        sensor = index % SENSORS
        time_us = START_US + (index // SENSORS) * DAY_US // a_sensor + sensor * 1_000
        readings = {name: round(chance.gauss(mean, spread), 2) for name, (mean, spread) in METRICS.items()}
        yield Event(f"sensor-{sensor:03d}", time_us, readings, METADATA)


def aggregates() -> Iterator[Row]:
    """Yields their hourly rows, which are the same for every schema."""
    windows: dict[tuple[str, int], WindowStats] = defaultdict(WindowStats)
    for event in events():
        windows[event.sensor_id, HOURLY.start_of(event.event_time_us)].add(event.readings)
    for (sensor_id, start_us), stats in windows.items():
        yield aggregate_row(HOURLY, sensor_id, start_us, stats, "stats")


def write(name: TableName, rows: Iterable[Row]) -> int:
    """Writes the rows as Beam's connector does; returns the number of requests."""
    client = Client(project=name.project)
    table = client.instance(name.instance).table(name.table)
    call = BigtableClient.mutate_rows
    with (
        mock.patch.object(BigtableClient, "mutate_rows", autospec=True, side_effect=call) as requests,
        MutationsBatcher(table, flush_count=1000, max_row_bytes=5 * 1024 * 1024) as batcher,
    ):
        for row in rows:
            direct_row = DirectRow(row.key)
            for cell in row.cells:
                direct_row.set_cell(cell.family, cell.qualifier, cell.value, to_datetime(cell.timestamp_us))
            batcher.mutate(direct_row)
    return requests.call_count


def measured(schema: TableSchema) -> list[str]:
    """Returns one schema's figures as text, in the order of the table's columns."""
    rows: set[bytes] = set()
    cells: set[tuple[bytes, str, bytes, int]] = set()
    data_bytes = 0

    def counted() -> Iterator[Row]:
        nonlocal data_bytes
        for event in events():
            for row in schema.rows(event):
                rows.add(row.key)
                for cell in row.cells:
                    cells.add((row.key, *cell[:3]))
                    data_bytes += len(cell.qualifier) + len(cell.value)
                yield row

    name = TableName("benchmark", "schemas", f"t-{uuid.uuid4().hex[:8]}")
    tables.create(name, schema)
    requests = write(name, counted())
    write(name, aggregates())
    data_bytes += sum(map(len, rows))
    figures = [f"{len(rows):,}", f"{len(cells):,}", f"{data_bytes / 1e6:.1f} MB", f"{requests:,}"]
    for query in QUERIES.values():
        with SensorTable.open(name.project, name.instance, name.table) as table:
            assert list(query(table))
            figures.append(f"{table.rows.rows_read:,} / {table.rows.cells_read:,}")
    tables.delete(name)
    return figures


def main() -> None:
    header = ["layout", "values", "rows", "cells", "bytes", "requests", *QUERIES]
    print(f"| {' | '.join(header)} |")
    print("|---|---|" + "---:|" * (len(header) - 2))
    combinations = [
        (layout, values)
        for layout in LAYOUTS
        for values in (("protobuf",) if "serialized" in layout else ("text", "float64"))
    ]
    for layout, values in combinations:
        text = f"key = '{LAYOUTS[layout]}'\nlayout = '{layout}'\n"
        schema = parse_schema(text if values == "protobuf" else f"{text}values = '{values}'\n")
        print(f"| `{layout}` | {values} | {' | '.join(measured(schema))} |", flush=True)


if __name__ == "__main__":
    arguments()
    with emulators():
        main()
