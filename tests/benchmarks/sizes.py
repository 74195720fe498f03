"""Prints the size of an event with three metrics and two metadata entries, as a message and as rows.

Run with ``.venv/bin/python -m tests.benchmarks.sizes``.
"""

from pipeline.core.events.event import Event, validate
from pipeline.core.events.message import message_of, sensor_event
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.rows.rows import Row
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.core.windows import HOURLY

_T = 1_771_324_200_123_456


def _events(count: int) -> list:
    readings = {"temperature": 21.57, "humidity": 48.3, "pressure": 101325.0}
    metadata = {"location": "north", "model": "TH-200"}
    return [sensor_event("greenhouse-0042", _T + i * 1_000_000, readings, metadata) for i in range(count)]


def _bytes(row: Row) -> int:
    """Returns the bytes of key, families, qualifiers, values and timestamps (eight per cell), uncompressed."""
    cells = sum(len(cell.family) + len(cell.qualifier) + len(cell.value) + 8 for cell in row.cells)
    return len(row.key) + cells


def sizes() -> dict[str, int]:
    """Returns the printed sizes in bytes."""
    event: Event = validate(_events(1)[0], _T)
    stats = WindowStats()
    for _ in range(360):
        stats.add(event.readings)
    return {
        "message of one event": len(message_of(_events(1)).data),
        "event in a message of a hundred": len(message_of(_events(100)).data) // 100,
        "raw row": _bytes(*TableSchema.default().rows(event)),
        "aggregate row": _bytes(
            aggregate_row(HOURLY, event.sensor_id, HOURLY.start_of(event.event_time_us), stats, "stats")
        ),
    }


def lines() -> list[str]:
    """Returns the lines of the table."""
    return [f"{what:35}{size:6,} bytes" for what, size in sizes().items()]


if __name__ == "__main__":
    print("\n".join(lines()))
