"""The weather balloons of Google's page "Schema design for time series data", one test per pattern.

https://cloud.google.com/bigtable/docs/schema-design-time-series: the rows of its tables, with two differences. Weeks
are ISO weeks, 2021-W09, while the page counts its own; and cells have their events' times, while the page leaves out
the timestamps if the row key contains the time.
"""

from datetime import UTC, datetime

import pytest

from pipeline.core.events.event import Event, deserialized
from pipeline.core.notation.cell_values import Values
from pipeline.core.notation.times import from_datetime
from pipeline.core.rows.records import RawRecord
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.family_rules import FamilyRules
from pipeline.core.schema.key_template import KeyTemplate
from pipeline.core.schema.layouts import LAYOUTS
from pipeline.core.schema.table_schema import TableSchema

NOON, NOON_01, NOON_02, NOON_03, NOON_04 = (
    from_datetime(datetime(2021, 3, 5, 12, minute, tzinfo=UTC)) for minute in range(5)
)
PRESSURE = {NOON: 94558.0, NOON_01: 94122.0, NOON_02: 95992.0}
TEMPERATURE = {NOON: 9.5, NOON_01: 9.4, NOON_02: 9.2}
EVERYTHING = {
    NOON: {"pressure": 94558.0, "temperature": 9.6, "humidity": 61.0, "altitude": 612.0},
    NOON_01: {"pressure": 94122.0, "temperature": 9.7, "humidity": 62.0, "altitude": 611.0},
    NOON_02: {"pressure": 95992.0, "temperature": 9.5, "humidity": 58.0, "altitude": 602.0},
    NOON_03: {"pressure": 96025.0, "temperature": 9.5, "humidity": 66.0, "altitude": 598.0},
    NOON_04: {"pressure": 96021.0, "temperature": 9.6, "humidity": 63.0, "altitude": 624.0},
}


def schema(key, layout):
    return TableSchema(
        KeyTemplate.parse(key),
        LAYOUTS[layout],
        Values.TEXT,
        metrics=FamilyRules((("measurements", ("*",)),)),
        metadata=FamilyRules(),
        tiers=(),
    )


def event(time_us, readings):
    return Event("3698", time_us, readings, {"location": "us-west2"})


def written(table, events):
    """Returns all rows of the events, each with its cells from all events."""
    rows = {}
    for each in events:
        table.check(each)
        for key, cells in table.rows(each):
            rows.setdefault(key, []).extend(cells)
    return [Row(key, cells) for key, cells in rows.items()]


def read(table, rows):
    """Returns the events in the rows, the oldest first, as on the page."""
    parts = [
        part
        for key, cells in rows
        for part in table.layout.records(table.layout_context, table.key.parse_key(key), cells)
    ]
    return table.identity.merged(parts)[::-1]


def records(events):
    return [RawRecord(e.sensor_id, e.event_time_us, dict(sorted(e.readings.items())), e.metadata) for e in events]


def measured(qualifier, time_us, value=b""):
    return Cell("measurements", qualifier, time_us, value)


def test_time_buckets_with_new_columns():
    """A row per week and metric, with a new empty column for each event, named by its value."""
    table = schema("{metadata.location}#{sensor_id}#{metric}#{bucket:1w}", "bucket_columns")
    events = [event(time_us, {"pressure": pressure}) for time_us, pressure in PRESSURE.items()]
    rows = written(table, events)
    assert rows == [
        Row(
            b"us-west2#3698#pressure#2021-W09",
            [measured(b"94558", NOON), measured(b"94122", NOON_01), measured(b"95992", NOON_02)],
        )
    ]
    assert read(table, rows) == records(events)


def test_time_buckets_with_new_cells():
    """A row per week, with a column per metric and a new timestamped cell for each event."""
    table = schema("{metadata.location}#{sensor_id}#{bucket:1w}", "bucket_cells")
    events = [event(t, {"pressure": PRESSURE[t], "temperature": TEMPERATURE[t]}) for t in PRESSURE]
    rows = written(table, events)
    assert rows == [
        Row(
            b"us-west2#3698#2021-W09",
            [
                measured(b"pressure", NOON, b"94558"),
                measured(b"temperature", NOON, b"9.5"),
                measured(b"pressure", NOON_01, b"94122"),
                measured(b"temperature", NOON_01, b"9.4"),
                measured(b"pressure", NOON_02, b"95992"),
                measured(b"temperature", NOON_02, b"9.2"),
            ],
        )
    ]
    assert read(table, rows) == records(events)


def test_single_timestamp_rows_serialized():
    """A row per event, serialized in one column."""
    table = schema("{metadata.location}#{sensor_id}#{time:%Y-%m-%d-%H%M}", "serialized")
    events = [event(time_us, readings) for time_us, readings in list(EVERYTHING.items())[:4]]
    rows = written(table, events)
    assert [row.key for row in rows] == [
        b"us-west2#3698#2021-03-05-1200",
        b"us-west2#3698#2021-03-05-1201",
        b"us-west2#3698#2021-03-05-1202",
        b"us-west2#3698#2021-03-05-1203",
    ]
    assert [[cell[:3] for cell in row.cells] for row in rows] == [
        [("measurements", b"event.000#d291adaa9857547d", time_us)] for time_us in (NOON, NOON_01, NOON_02, NOON_03)
    ]
    assert [deserialized(row.cells[0].value)[:4] for row in rows] == [each[:4] for each in events]
    assert read(table, rows) == records(events)


def test_single_timestamp_rows_unserialized():
    """A row per event, with a column per metric."""
    table = schema("{metadata.location}#{sensor_id}#{time:%Y-%m-%d-%H%M}", "wide")
    events = [event(time_us, readings) for time_us, readings in EVERYTHING.items()]
    rows = written(table, events)
    assert rows == [
        Row(
            b"us-west2#3698#2021-03-05-" + minute,
            [
                measured(b"pressure", time_us, pressure),
                measured(b"temperature", time_us, temperature),
                measured(b"humidity", time_us, humidity),
                measured(b"altitude", time_us, altitude),
            ],
        )
        for minute, time_us, pressure, temperature, humidity, altitude in [
            (b"1200", NOON, b"94558", b"9.6", b"61", b"612"),
            (b"1201", NOON_01, b"94122", b"9.7", b"62", b"611"),
            (b"1202", NOON_02, b"95992", b"9.5", b"58", b"602"),
            (b"1203", NOON_03, b"96025", b"9.5", b"66", b"598"),
            (b"1204", NOON_04, b"96021", b"9.6", b"63", b"624"),
        ]
    ]
    assert read(table, rows) == records(events)


@pytest.mark.parametrize("layout", ["serialized", "wide"])
def test_another_balloon_has_rows_of_its_own(layout):
    """Balloons at one place are neighbours, each with its own prefix."""
    table = schema("{metadata.location}#{sensor_id}#{time:%Y-%m-%d-%H%M}", layout)
    keys = [table.rows(event(NOON, {"t": 1.0})._replace(sensor_id=name))[0].key for name in ("3698", "36980")]
    assert keys == [b"us-west2#3698#2021-03-05-1200", b"us-west2#36980#2021-03-05-1200"]
