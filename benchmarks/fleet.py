"""Prints what reads, audits and backfills of many sensors cost, where each has few rows.

A table has three hours with a raw row and an aggregate row of each sensor, and a row of its newest readings. The
commands run in this process, as users run them.
"""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner

from benchmarks.measuring import Lines, arguments, emulators
from pipeline.cli.root import main as command
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.reading.reader import SensorTable
from pipeline.cloud.writing.bulk_writer import BulkWriter
from pipeline.core.events.event import Event
from pipeline.core.notation.times import format_time
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.rows.newest_row import NewestReadings
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.window_stats import WindowStats
from tests.support.tables import created

HOUR_US, HOURS = 3_600_000_000, 3


def filled(sensors: int, start_us: int) -> TableName:
    """Returns a table with the fleet's rows."""
    schema = TableSchema.for_new_table()
    name, newest, (tier,) = created(schema), NewestReadings(), schema.tiers
    with BulkWriter.open(name) as writer:
        for hour in range(HOURS):
            hour_us = start_us + hour * HOUR_US
            events = [
                Event(f"meter-{sensor:06}", hour_us + sensor * 1000, {"power": sensor % 97 / 10, "voltage": 230.0}, {})
                for sensor in range(sensors)
            ]
            writer.add_encoded(schema.encoded_rows(events))
            for event in events:
                newest.add(event.sensor_id, event.event_time_us, event.readings.items())
                stats = WindowStats()
                stats.add(event.readings)
                writer.add(aggregate_row(tier.window, event.sensor_id, hour_us, stats, tier.family))
        writer.add_encoded(list(newest.rows(str(schema.latest))))
        assert not writer.finish()
    return name


def main(sensors: int) -> None:
    start_us = (time.time_ns() // 1000 // HOUR_US - 48) * HOUR_US
    name = filled(sensors, start_us)
    lines = Lines("                                what", "number", "seconds", "CPU seconds", "a second", "requests")

    def measured(what: str, call: Callable[[], tuple[int, int | None]]) -> None:
        begin, cpu_begin = time.perf_counter(), time.process_time()
        number, requests = call()
        seconds, cpu_s = time.perf_counter() - begin, time.process_time() - cpu_begin
        each = f"{seconds:.1f}", f"{cpu_s:.1f}", f"{number / seconds:,.0f}"
        lines.add(what, f"{number:,}", *each, f"{requests:,}" if requests else "")

    def listed(read: str) -> tuple[int, int]:
        with SensorTable.open(name.project, name.instance, name.table) as table:
            return sum(1 for _ in getattr(table, read)()), table.rows.requests

    def run(*arguments: str) -> dict[str, int]:
        table = ["--project", name.project, "--instance", name.instance, "--table", name.table]
        result = CliRunner().invoke(command, [*arguments[:1], *table, *arguments[1:], "--format=json"])
        assert result.exit_code in (0, 1), result.output
        return json.loads(result.stdout.splitlines()[-1])

    times = "--from", format_time(start_us), "--to", format_time(start_us + HOURS * HOUR_US)
    measured("sensors, by their raw rows", lambda: listed("sensors"))
    measured("sensors, by rows of newest readings", lambda: listed("newest"))
    measured("windows audited", lambda: (run("repair", "--dry-run", *times)["checked"], None))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "day.csv")
        rows = [f"meter-{n:06},{format_time(start_us + n * 1000 + 60_000_000)},{n % 7}.5" for n in range(sensors)]
        path.write_text("\n".join(["sensor_id,event_time,power", *rows]))
        measured("events backfilled, one of each", lambda: (run("backfill", str(path))["events"], None))


if __name__ == "__main__":
    options = arguments(sensors=20_000)
    with emulators():
        main(options.sensors)
