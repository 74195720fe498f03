"""A sweep finds every event of its span, each part once, whatever the schema and the division of keys."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.completion.work_list import work_row
from pipeline.core.events.event import Event
from pipeline.core.queries.sweeps import Span, events_within, intersection, raw_ranges, window_rows
from pipeline.core.rows.aggregate_rows import (
    aggregate_key,
    aggregate_prefix,
    aggregate_range,
    aggregate_row,
    parse_aggregate_key,
)
from pipeline.core.rows.rows import KeyRange, prefix_range
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.table_schema import Tier
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.core.windows import HOURLY
from tests.core.queries.feeds import (
    DAY_US,
    SCHEMAS,
    SECOND_US,
    SENSORS,
    START_US,
    each_schema,
    expected_record,
    feeds,
    table_of,
)
from tests.support.memory import Memory

HOUR_US = HOURLY.length_us
WHOLE = KeyRange(b"", b"")
STATS = WindowStats()
STATS.add({"t": 1.0})


def expected(schema, events, span):
    """Returns the expected readings by sensor and time."""
    records = [expected_record(schema, event) for event in events]
    return {
        (record.sensor_id, record.event_time_us): record.readings
        for record in records
        if span.start_us <= record.event_time_us < span.end_us and span.includes(record.sensor_id)
    }


def parts_of_keys(data, table):
    """Returns the range of all keys, split at some of the table's keys."""
    keys = sorted(table._cells)
    cuts = sorted(data.draw(st.sets(st.sampled_from(keys), max_size=4)))
    return [KeyRange(*ends) for ends in zip([b"", *cuts], [*cuts, b""], strict=True)]


@each_schema
@settings(max_examples=6, deadline=None)
@given(events=feeds(), data=st.data())
@pytest.mark.slow
def test_every_event_of_the_span(schema, events, data):
    """For all or some sensors, any times and any division of keys, a sweep finds exactly what was written."""
    table = table_of(schema, events)
    times = [START_US, START_US + 5 * DAY_US, *(expected_record(schema, event).event_time_us for event in events)]
    start_us, end_us = sorted(data.draw(st.tuples(st.sampled_from(times), st.sampled_from(times))))
    end_us += data.draw(st.sampled_from([1000, SECOND_US, DAY_US]))
    sensors = data.draw(st.none() | st.frozensets(st.sampled_from((*SENSORS, "nobody")), min_size=1, max_size=3))
    span = Span(start_us, end_us, sensors)
    found = [
        record
        for keys in raw_ranges(schema, sensors)
        for part in parts_of_keys(data, table)
        if (both := intersection(keys, part)) is not None
        for record in events_within(schema, table, both, span)
    ]
    assert sum(len(record.readings) for record in found) == sum(map(len, expected(schema, events, span).values()))
    whole = {(record.sensor_id, record.event_time_us): record.readings for record in schema.identity.merged(found)}
    assert whole == expected(schema, events, span)
    assert all(
        set(record.metadata) <= set(schema.key.metadata_names) for record in found if not schema.layout.serializes
    )


def make_feed(sensors, days, per_day=4):
    step_us = DAY_US // per_day
    return [
        Event(sensor, START_US + i * step_us, {"t": 1.0}, {"location": "here", "model": "x"}, f"id-{i}")
        for sensor in sensors
        for i in range(days * per_day)
    ]


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        ("wide {sensor_id}#{reverse_us} text", 3 * 2 + 3),  # a seek and a read per sensor; 3 for the table's own rows
        ("wide {salt:2}#{sensor_id}#{reverse_us} text", 3 * 2 + 3),
        ("wide {reverse_us}#{sensor_id} text", 2),  # one range of all sensors
        ("wide {bucket:1d}#{sensor_id}#{reverse_us} text", 1 + 2 * 3 * 2 + 1),  # two days of three sensors
        ("tall {metric}#{sensor_id}#{iso_us} text", 3 * 2 + 3),
        ("bucket_cells {sensor_id}#{bucket:1h} text", 3 * 2 + 3),
    ],
)
def test_the_reads_of_a_sweep(name, reads):
    """A sweep takes a seek per key prefix and reads only the rows of its span, however many others there are."""
    schema = SCHEMAS[name]
    table = table_of(schema, make_feed(("a", "b", "c"), 365))
    span = Span(START_US + 100 * DAY_US, START_US + 101 * DAY_US)
    assert len(list(events_within(schema, table, WHOLE, span))) == 3 * 4
    assert table.reads <= reads
    assert table.rows <= 3 * 4 + 8 * reads  # a seek reads some keys


def test_other_sensors_are_jumped_over():
    """If keys can't locate a sensor, each other sensor costs only its first row."""
    schema = SCHEMAS["tall {metric}#{sensor_id}#{iso_us} text"]
    table = table_of(schema, make_feed([f"s{i:03}" for i in range(100)], 3))
    span = Span(START_US, START_US + DAY_US, frozenset(["s050", "s070"]))
    assert len(list(events_within(schema, table, WHOLE, span))) == 2 * 4
    assert table.reads <= 2 * (2 * 2 + 1)  # for each metric, and for the table's own rows


def test_ranges_of_sensors():
    """If the sensor's id alone determines a key range, only that range is read."""
    salted = SCHEMAS["wide {salt:2}#{sensor_id}#{reverse_us} text"]
    assert raw_ranges(salted, ["a"]) == [prefix_range(b"0c#a#")]
    for name in ("wide {metadata.location}#{sensor_id}#{reverse_us} text", "wide {reverse_us}#{sensor_id} text"):
        assert raw_ranges(SCHEMAS[name], ["a"]) == [WHOLE]
    assert raw_ranges(salted, None) == [WHOLE]


@settings(deadline=None)
@given(
    windows=st.sets(st.tuples(st.sampled_from(SENSORS), st.integers(0, 200))),
    hours=st.tuples(st.integers(0, 200), st.integers(1, 50)),
    sensors=st.none() | st.frozensets(st.sampled_from(SENSORS), min_size=1),
    data=st.data(),
)
def test_rows_of_windows(windows, hours, sensors, data):
    """For all or some sensors, exactly the rows of windows that start in the span are returned."""
    base_us = HOURLY.start_of(START_US)
    table = Memory(aggregate_row(HOURLY, sensor, base_us + n * HOUR_US, STATS, "stats") for sensor, n in windows)
    table.write(work_row(Tier(HOURLY, "stats"), "a", base_us))
    first, count = hours
    span = Span(base_us + first * HOUR_US, base_us + (first + count) * HOUR_US, sensors)
    keys = prefix_range(aggregate_prefix(HOURLY).encode())
    found = [
        (key.sensor_id, (key.start_us - base_us) // HOUR_US, row.key)
        for part in parts_of_keys(data, table)
        if (both := intersection(keys, part)) is not None
        for key, row in window_rows(
            table,
            CellSelection(("stats",)),
            both,
            span,
            lambda key: parse_aggregate_key(HOURLY, key),
            lambda *of: aggregate_range(HOURLY, *of),
        )
    ]
    assert sorted(found) == sorted(
        (sensor, n, aggregate_key(HOURLY, sensor, base_us + n * HOUR_US))
        for sensor, n in windows
        if first <= n < first + count and span.includes(sensor)
    )
