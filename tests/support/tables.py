"""New tables in the emulator, what Google's client writes there, and rows that others wrote."""

import itertools
import uuid
from collections.abc import Iterable

from google.cloud.bigtable import data

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables import tables
from pipeline.core.events.event import Event
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.rows.rows import Cell, KeyRange, Row
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.core.windows import HOURLY, Window
from tests.support.lasting import lasting

T = parse_time("2026-02-17T10:00:00Z")
HOUR = HOURLY.length_us


def unused_name() -> TableName:
    """Returns a name that no table has."""
    return TableName("test-project", "test-instance", f"t-{uuid.uuid4().hex}")


def created(schema: TableSchema) -> TableName:
    """Creates an empty table of the schema, whose policies collect nothing."""
    name = unused_name()
    tables.create(name, lasting(schema))
    return name


def keys_of(name: TableName) -> list[bytes]:
    """Returns the keys of all rows."""
    with RowReader.open(name) as reader:
        return [row.key for row in reader.read(KeyRange(b"", b""))]


def write(name: TableName, rows: Iterable[Row]) -> None:
    """Writes rows with Google's client alone."""
    entries = [
        data.RowMutationEntry(
            row.key, [data.SetCell(cell.family, cell.qualifier, cell.value, cell.timestamp_us) for cell in row.cells]
        )
        for row in rows
    ]
    with data.BigtableDataClient(project=name.project) as client:
        client.get_table(name.instance, name.table).bulk_mutate_rows(entries)


def raw_row(event: Event, schema: TableSchema | None = None) -> Row:
    """Returns the only raw row of an event."""
    [row] = (schema or TableSchema.default()).rows(event)
    return row


def event(sensor_id: str, time_us: int, value: float = 1.0) -> Row:
    """Returns the raw row of an event with one reading."""
    return raw_row(Event(sensor_id, time_us, {"t": value}, {}))


def window_row(
    window: Window, sensor_id: str, start_us: int, *readings: dict[str, float], family: str = "stats"
) -> Row:
    """Returns the aggregate row of a window with these readings."""
    stats = WindowStats()
    for reading in readings:
        stats.add(reading)
    return aggregate_row(window, sensor_id, start_us, stats, family)


def foreign_raw_rows(sensor: str) -> list[Row]:
    """Rows newer than T, each foreign in another way."""
    keys = (TableSchema.default().key.render(Event(sensor, T + n, {}, {})) for n in itertools.count(1))
    cells = [
        *(Cell("raw", b"t", T, value) for value in (b"warm", b"nan", b"-inf", b"1_0", b"", (7).to_bytes(8), b"\xff")),
        *(Cell("raw", name, T, b"1") for name in (b"x" * 300, b"\xff", b"", b"t t")),
        *(Cell("meta", name, T, text) for name, text in ((b"place", b"\xff"), (b"#", b"x"))),
    ]
    odd_keys = [f"{sensor}#{text}".encode() for text in ("0", "82286757998", "x", "8228675799876543x")]
    return [
        *(Row(key, [Cell("raw", b"h", T, b"2"), cell]) for key, cell in zip(keys, cells, strict=False)),
        *(Row(key, [Cell("raw", b"t", T, b"1")]) for key in odd_keys),
        Row(f"{sensor}#".encode() + b"\xff", [Cell("raw", b"t", T, b"1")]),
    ]


def foreign_windows(sensor: str) -> list[Row]:
    """A row for each hour after T, each foreign in another way."""
    odd: list[dict[str, bytes]] = [
        *({"reading_count": value} for value in (b"inf", b"-1", b"0", b"1.5", b"1e30", b"nan", b"many", b"")),
        *({"count_t": value} for value in (b"1e999", b"0", b"-1", (1).to_bytes(8))),
        *({"stddev_t": value} for value in (b"nan", b"-1", b"-inf")),
        *({name: b"inf"} for name in ("min_t", "max_t", "avg_t")),
        {"sum_t": b"nan"}, {"min_t": b"2"}, {"note": b"1"}, {f"sum_{'x' * 300}": b"1"}, {"sum_": b"1"}, {"": b"1"},
        {"sum_other": b"1"},
    ]  # fmt: skip
    rows = []
    for n, changes in enumerate(odd, 1):
        row = window_row(HOURLY, sensor, T + n * HOUR, {"t": 1.0})
        values = {cell.qualifier: cell.value for cell in row.cells}
        values |= {name.encode(): value for name, value in changes.items()}
        rows.append(Row(row.key, [Cell("stats", name, T, value) for name, value in values.items()]))
    whole = window_row(HOURLY, sensor, T + (len(odd) + 1) * HOUR, {"t": 1.0})
    rows.append(whole._replace(cells=[cell for cell in whole.cells if cell.qualifier != b"reading_count"]))
    rows.append(Row(whole.key[:-2] + b"7", whole.cells))  # an hour in one digit
    rows.append(Row(whole.key + b"#x", whole.cells))
    return rows
