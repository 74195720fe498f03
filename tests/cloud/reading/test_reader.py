import math
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone

import pytest

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.reading.reader import NOTHING_DECLARED, ForeignRowError, SensorTable
from pipeline.core.events.event import LATEST_US, Event
from pipeline.core.rows.records import AggregateRecord, MetricSummary, RawRecord
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.changes import DeclaredSchema
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.core.windows import HOURLY
from tests.support.tables import HOUR, T, created, event, foreign_raw_rows, foreign_windows, window_row, write

pytestmark = [pytest.mark.on_both, pytest.mark.filterwarnings("ignore:Connecting to Bigtable emulator")]


# Each is a prefix of another, sorts between another and its rows, or begins like a row that is no sensor's.
NEIGHBOURS = ["a", "a!", "a$", "a-1", "ab", "agg1", "aggx", "schema2", "repairs", "zz"]
# Rows that are no sensor's, as they stand among those that are.
OTHER_ROWS = [
    Row(key, [Cell("stats", b"anything", 0, b"1")])
    for key in (b"agg#daily#a#2026-02-17", b"repair#1", b"repair#2", b"schema#v1", b"schema#v2")
]


@pytest.fixture
def name(bigtable: str) -> TableName:
    """An empty table of the default schema, with two more tiers."""
    return created(parse_schema('tiers = { 15m = "quarters", 1h = "stats", 1d = "days" }'))


def opened(name: TableName, declared: DeclaredSchema = NOTHING_DECLARED) -> SensorTable:
    return SensorTable.open(name.project, name.instance, name.table, declared)


def returned(table: SensorTable) -> tuple[int, int, int]:
    """Returns the numbers of requests, rows and cells."""
    return table.rows.requests, table.rows.rows_read, table.rows.cells_read


def times(records: Iterable[RawRecord]) -> list[int]:
    return [record.event_time_us - T for record in records]


# Raw rows


def test_other_cells_stay_on_the_server(bigtable: str) -> None:
    """Families match by their exact names, in which a dot is no pattern. The server sends no others, and no older
    versions."""
    schema = TableSchema.default("r.w", "r-w", "m-1")
    name = created(schema)
    [row] = schema.rows(Event("s", T, {"t": 1.5}, {"place": "lab"}))
    write(name, [row._replace(cells=[*row.cells, Cell("r-w", b"t", T, b"9"), Cell("r.w", b"t", T - 1000, b"7")])])
    with opened(name) as table:
        assert table.latest_events("s") == RawRecord("s", T, {"t": 1.5}, {"place": "lab"})
        assert table.rows.cells_read == 2


# Aggregates


def test_an_aggregate_is_read_as_written(name: TableName) -> None:
    """The number of readings and six statistics a metric. Counts are whole numbers, an overflow is infinite."""
    write(name, [window_row(HOURLY, "s", T, {"t_avg": 1.0, "p": 1e308}, {"t_avg": 2.0, "p": 1e308}, {"t_avg": 6.0})])
    with opened(name) as table:
        [record] = table.aggregates("s", T, T + 1, tier=HOURLY)
    expected = {
        "p": MetricSummary(2, math.inf, 1e308, 1e308, 1e308, 0.0),
        "t_avg": MetricSummary(3, 9.0, 1.0, 6.0, 3.0, math.sqrt(14 / 3)),
    }
    assert record == AggregateRecord("s", T, HOURLY, 3, expected)
    assert isinstance(record.metrics["p"].count, int)


# Sensors


def test_sensors_cost_keys_only(name: TableName) -> None:
    """One request reads the keys of many sensors with few rows, and no values."""
    write(name, [event(sensor, T + i) for sensor in NEIGHBOURS for i in range(5)])
    write(name, OTHER_ROWS)
    with opened(name) as table:
        assert list(table.sensors()) == sorted(NEIGHBOURS, key=lambda sensor: f"{sensor}#")
        requests, rows, cells = returned(table)
        assert requests == 3
        assert rows == cells
        assert list(table.sensors("a-")) == ["a-1"]


# Nothing there


@pytest.mark.parametrize("sensor", ["", "agg", "schema", "repair", "a#b", "agg#hourly#a", "größe"])
def test_an_invalid_sensor_id_is_refused(name: TableName, sensor: str) -> None:
    """The call itself refuses an id that would lead to rows of other sensors."""
    with opened(name) as table:
        for read in (table.latest_events, lambda x: table.events(x, 0, 1), lambda x: table.aggregates(x, 0, 1)):
            with pytest.raises(ValueError, match="can't be a sensor's id"):
                read(sensor)


@pytest.mark.parametrize("end", [T, T - 1])
def test_a_range_that_does_not_end_after_its_start_is_refused(name: TableName, end: int) -> None:
    """An empty or reversed range is an error, which contains both times."""
    with opened(name) as table:
        for read in (table.events, table.aggregates):
            with pytest.raises(ValueError, match=r"2026-02-17T10:00:00Z is not before 2026-02-17T\S+Z$"):
                read("s", T, end)


# Rows that others wrote


def test_foreign_rows_are_left_out_and_all_others_read(name: TableName, caplog: pytest.LogCaptureFixture) -> None:
    """A sensor's own rows are read despite foreign rows between them. A foreign row counts once."""
    foreign = foreign_raw_rows("odd")
    write(name, [event("odd", T), event("odd", T - HOUR), event("other", T), *foreign])
    own = [RawRecord("odd", T, {"t": 1.0}), RawRecord("odd", T - HOUR, {"t": 1.0})]
    with opened(name) as table:
        assert table.latest_events("odd") == own[0]
        assert table.foreign.count > 10
        assert list(table.events("odd", 0, LATEST_US)) == own
        assert list(table.events(["odd", "other"], 0, LATEST_US))[1:] == [RawRecord("other", T, {"t": 1.0}), own[1]]
        assert list(table.scan(0, LATEST_US, prefix="o")) == [*own, RawRecord("other", T, {"t": 1.0})]
        assert list(table.sensors()) == ["odd", "other"]
        assert table.foreign.count == len(foreign)
        assert {row.key for row in foreign} == table.foreign.messages.keys()
        messages = table.foreign.messages.values()
        assert all("is not one of this schema: " in line and "\n" not in line for line in messages)
    assert len(caplog.records) == 1


def test_foreign_windows_are_left_out(name: TableName) -> None:
    """A foreign aggregate row is left out, and those next to it are read."""
    foreign = foreign_windows("odd")
    write(name, [window_row(HOURLY, "odd", T + n * HOUR, {"t": 1.0}) for n in (0, 100)])
    write(name, foreign)
    with opened(name) as table:
        assert [each.start_us for each in table.aggregates("odd", 0, LATEST_US, tier=HOURLY)] == [T, T + 100 * HOUR]
        assert table.foreign.count == len(foreign)
        assert table.foreign.messages.keys() == {row.key for row in foreign}


def test_a_strict_reader_leaves_nothing_out(name: TableName) -> None:
    """A strict reader raises for every foreign row, however often it meets one."""
    write(name, [event("odd", T), foreign_raw_rows("odd")[0], *foreign_windows("odd")[:1]])
    with SensorTable.open(name.project, name.instance, name.table, strict=True) as table:
        for read in (
            lambda: table.latest_events("odd"),
            lambda: list(table.events(["odd", "even"], 0, LATEST_US)),
            lambda: list(table.aggregates("odd", 0, LATEST_US, tier=HOURLY)),
        ):
            for _ in range(2):
                with pytest.raises(ForeignRowError, match="is not one of this schema"):
                    read()


def test_many_foreign_rows_cost_few_requests(name: TableName) -> None:
    """They are read in pages, not by a seek each."""
    write(name, [Row(f"user-{n:05}".encode(), [Cell("raw", b"t", 0, b"1")]) for n in range(3000)])
    write(name, [event("a", T), event("v", T)])
    with opened(name) as table:
        assert list(table.sensors()) == ["a", "v"]
        assert table.rows.requests <= 12
        assert table.foreign.count == 3000
        assert len(table.foreign.messages) == 1000


# Opening, and times


def test_a_table_without_a_with_block(name: TableName) -> None:
    """A table can be used and closed without a block, like a file; closing twice does no harm."""
    write(name, [event("s", T)])
    table = SensorTable.open(name.project, name.instance, name.table)
    assert table.latest_events("s") is not None
    assert times(table.events(["s", "other"], T, T + 1)) == [0]
    table.close()
    table.close()
    with pytest.raises(ValueError, match="closed"):
        table.latest_events("s")


def test_all_kinds_of_times(name: TableName) -> None:
    """Ranges take aware datetimes and ISO 8601 text, like microseconds, and refuse naive datetimes."""
    write(name, [event("s", T + i) for i in (-1, 0, HOUR - 1, HOUR)])
    write(name, [window_row(HOURLY, "s", T + i * HOUR, {"t": 1.0}) for i in (-1, 0, 1)])
    start = datetime(2026, 2, 17, 11, tzinfo=timezone(timedelta(hours=1)))
    with opened(name) as table:
        assert times(table.events("s", start, "2026-02-17T11:00Z")) == [HOUR - 1, 0]
        assert times(table.scan("2026-02-17T10", T + HOUR, prefix="s")) == [HOUR - 1, 0]
        windows = list(table.aggregates("s", start, "2026-02-17T11", tier="1h"))
        assert [window.start_us for window in windows] == [T]
        with pytest.raises(ValueError, match="has no time zone"):
            table.events("s", start.replace(tzinfo=None), T + HOUR)
