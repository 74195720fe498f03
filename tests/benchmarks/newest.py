"""Prints what a list of all sensors costs with rows of newest readings, and without them.

    .venv/bin/tidetable emulators run -- .venv/bin/python -m tests.benchmarks.newest

The same fleet is written to a table whose schema declares newest readings, and to one whose schema does not. In the
latter, only the first sensors are asked for.
"""

import time

from rich.console import Console
from rich.table import Table

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.reading.reader import SensorTable
from pipeline.cloud.tables import tables
from pipeline.cloud.writing.bulk_writer import BulkWriter
from pipeline.core.events.event import Event
from pipeline.core.rows.newest_row import NewestReadings
from pipeline.core.schema.toml import parse_schema
from tests.support.tables import created

SENSORS, FIRST, EVENTS = 100_000, 200, 3
MINUTE = 60_000_000


def filled(text: str) -> TableName:
    """Returns a table with the fleet's rows."""
    schema = parse_schema(text)
    name = created(schema)
    now_us = time.time_ns() // 1000
    events = [
        Event(f"meter-{sensor:06}", now_us - n * MINUTE, {"power": sensor % 97 / 10, "voltage": 230.0}, {})
        for sensor in range(SENSORS)
        for n in range(EVENTS)
    ]
    newest = NewestReadings()
    for event in events:
        newest.add(event.sensor_id, event.event_time_us, event.readings.items())
    with BulkWriter.open(name) as writer:
        writer.add_encoded(schema.encoded_rows(events))
        if schema.latest:
            writer.add_encoded(list(newest.rows(schema.latest)))
        assert not writer.finish()
    return name


def main() -> None:
    """Prints the table."""
    grid = Table("", "sensors", "requests", "rows", "seconds", "CPU seconds")
    for what, text, limit in (
        ("rows of newest readings", 'latest = "latest"\n', None),
        ("two reads for each sensor", "", FIRST),
    ):
        name = filled(text)
        with SensorTable.open(name.project, name.instance, name.table) as table:
            begin, cpu_begin = time.perf_counter(), time.process_time()
            found = sum(1 for _ in table.newest(limit=limit))
            seconds, cpu_s = time.perf_counter() - begin, time.process_time() - cpu_begin
            assert found == (limit or SENSORS), found
            requests, rows = table.rows.requests, table.rows.rows_read
            grid.add_row(what, f"{found:,}", f"{requests:,}", f"{rows:,}", f"{seconds:.1f}", f"{cpu_s:.1f}")
        tables.delete(name)
    Console().print(grid)


if __name__ == "__main__":
    main()
