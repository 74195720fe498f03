"""Tables to export: three events and three windows of four sensors, in each schema."""

from pipeline.core.events.event import Event
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.core.windows import HOURLY
from tests.support.tables import created, write

T = parse_time("2026-02-17T10:30:00Z")
HOUR, DAY = 3_600_000_000, 86_400_000_000
RANGE = ("--from=2026-02-17", "--to=2026-02-19")
KEYS = [
    "{sensor_id}#{reverse_us}",
    "{salt:2}#{sensor_id}#{reverse_us}",
    "{metadata.location}#{sensor_id}#{reverse_us}",
    "{sensor_id}#{metadata.location}#{reverse_us}",
    "{sensor_id}#{metric}#{reverse_ms}",
    "{sensor_id}#{bucket:1d}",
    "{reverse_ms}#{sensor_id}",
]
IDS = "hall-1", "hall-2", "hall*", "roof-1"
EVENTS = [
    Event(sensor, T + n * DAY // 2, {"t": n + 0.5} | ({"u": 3.0} if n == 1 else {}), {"location": "north", "n": f"{n}"})
    for sensor in IDS
    for n in range(3)
]


def schema_of(key):
    layout = {"{sensor_id}#{metric}#{reverse_ms}": "tall", "{sensor_id}#{bucket:1d}": "bucket_cells"}.get(key, "wide")
    return parse_schema(f'key = "{key}"\nlayout = "{layout}"\n[tiers]\n1h = "stats"\n')


def table_of(schema):
    rows = [row for event in EVENTS for row in schema.rows(event)]
    for sensor in IDS:
        for n in range(3):
            stats = WindowStats()
            for value in (0.1, 0.2, 0.3, 0.7):
                stats.add({"t": value + n, "u": 1.0} if n == 1 else {"t": value + n})
            rows.append(aggregate_row(HOURLY, sensor, HOURLY.start_of(T) + n * DAY // 2, stats, "stats"))
    name = created(schema)
    write(name, rows)
    return name
