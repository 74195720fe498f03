"""Queries return what was written, for every template, layout and encoding."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.events.event import Event
from pipeline.core.queries.events import Query, events_of, events_of_all, events_of_prefix, sensors_of
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.schema.key_template import KeyTemplate
from pipeline.core.schema.layouts import LAYOUTS
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.core.windows import HOURLY
from tests.core.queries.feeds import (
    DAY_US,
    METRICS,
    SCHEMAS,
    SECOND_US,
    SENSORS,
    START_US,
    each_listed_schema,
    each_schema,
    expected_record,
    feeds,
    table_of,
)
from tests.support.memory import Memory


def same(records, expected):
    def exactly(record):  # 0.0 and -0.0 are two values
        return [(name, value, math.copysign(1, value)) for name, value in record.readings.items()]

    return records == expected and list(map(exactly, records)) == [
        sorted(pairs, key=lambda pair: pair[0]) for pairs in map(exactly, expected)
    ]


def with_metrics(records, metrics):
    """Returns the events that have any of the metrics, with these readings alone; all of them for None."""
    if metrics is None:
        return records
    of_metrics = [{name: record.readings[name] for name in metrics if name in record.readings} for record in records]
    return [
        replace(record, readings=readings, metadata={})
        for record, readings in zip(records, of_metrics, strict=True)
        if readings
    ]


def location_of(sensor):
    return {"location": f"here-{len(sensor)}"}


@each_schema
@settings(max_examples=6, deadline=None)
@given(events=feeds(), data=st.data())
def test_queries_return_what_was_written(schema, events, data):
    """For every sensor, a range returns exactly its events, the newest first, or of metrics only these readings."""
    table = table_of(schema, events)
    for sensor in SENSORS:
        expected = sorted(
            (expected_record(schema, event) for event in events if event.sensor_id == sensor),
            key=lambda record: -record.event_time_us,
        )
        everything = Query(metadata=location_of(sensor))
        assert same(list(events_of(schema, table, sensor, everything)), expected)
        latest = Query(limit=1, metadata=location_of(sensor))
        assert same(list(events_of(schema, table, sensor, latest)), expected[:1])
        times = [START_US, START_US + 5 * DAY_US, *(record.event_time_us for record in expected)]
        start_us, end_us = sorted(data.draw(st.tuples(st.sampled_from(times), st.sampled_from(times))))
        end_us += data.draw(st.sampled_from([1, 1000, SECOND_US]))
        limit = data.draw(st.none() | st.integers(1, 5))
        metrics = data.draw(
            st.none() | st.sets(st.sampled_from((*METRICS, "unheard-of")), min_size=1).map(sorted).map(tuple)
        )
        query = Query(start_us, end_us, metrics, limit, location_of(sensor))
        inside = [record for record in expected if start_us <= record.event_time_us < end_us]
        assert same(list(events_of(schema, table, sensor, query)), with_metrics(inside, metrics)[:limit])


@each_schema
@settings(max_examples=3, deadline=None)
@given(events=feeds(), limit=st.none() | st.integers(1, 5), random=st.randoms(use_true_random=False))
def test_events_in_parts(schema, events, limit, random):
    """An event whose metrics come in several messages, some repeated, reads like an event from one message."""
    parts = []
    for event in events:
        names = random.sample(sorted(event.readings), len(event.readings))
        cut = random.randrange(len(names))
        each = filter(None, (names[:cut], names[cut:], names[cut:] + names[:cut][:1]))
        parts += [event._replace(readings={name: event.readings[name] for name in some}) for some in each]
    random.shuffle(parts)
    table = table_of(schema, parts)
    for sensor in SENSORS:
        expected = sorted(
            (expected_record(schema, event) for event in events if event.sensor_id == sensor),
            key=lambda record: -record.event_time_us,
        )
        query = Query(limit=limit, metadata=location_of(sensor))
        assert same(list(events_of(schema, table, sensor, query)), expected[:limit])


@each_listed_schema
@settings(max_examples=3, deadline=None)
@given(events=feeds())
def test_sensors(schema, events):
    """Every sensor is listed once, and aggregate rows are not listed."""
    table = table_of(schema, events)
    sensors = {event.sensor_id for event in events}
    assert sorted(sensors_of(schema, table, "", {})) == sorted(sensors)
    assert set(sensors_of(schema, table, "a-", {})) == {s for s in sensors if s.startswith("a-")}


@each_schema
@settings(max_examples=3, deadline=None)
@given(events=feeds())
def test_prefix(schema, events):
    """One scan returns all events of sensors with a common prefix, each sensor's newest first, or is refused."""
    table = table_of(schema, events)
    metadata = {"location": "here-1"} if schema.key.metadata_before_sensor else {}
    query = Query(START_US, START_US + 2 * DAY_US, metadata=metadata)
    try:
        records = list(events_of_prefix(schema, table, "" if metadata else "a", query))
    except ValueError as error:
        assert "together" in str(error)  # noqa: PT017
        return
    expected = [
        expected_record(schema, event)
        for event in events
        if (len(event.sensor_id) == 1 if metadata else event.sensor_id.startswith("a"))
    ]
    inside = [record for record in expected if query.start_us <= record.event_time_us < query.end_us]
    by_sensor = {}
    for record in records:
        by_sensor.setdefault(record.sensor_id, []).append(record)
    assert [record for of_sensor in by_sensor.values() for record in of_sensor] == records
    for sensor, of_sensor in by_sensor.items():
        assert same(
            of_sensor,
            sorted((r for r in inside if r.sensor_id == sensor), key=lambda record: -record.event_time_us),
        )
    assert len(records) == len(inside)


@each_schema
@settings(max_examples=3, deadline=None)
@given(events=feeds(), metrics=st.sampled_from([None, ("humidity", "t")]))
def test_all_sensors(schema, events, metrics):
    """Every event of the range is returned once and whole, whatever the schema; the table's own rows are skipped."""
    table = table_of(schema, events)
    stats = WindowStats()
    stats.add({"t": 1.0})
    table.write(aggregate_row(HOURLY, "a", HOURLY.start_of(START_US), stats, "raw"))
    query = Query(START_US, START_US + 2 * DAY_US, metrics)
    records = list(events_of_all(schema, table, query))
    expected = [expected_record(schema, event) for event in events]
    inside = [
        record for record in with_metrics(expected, metrics) if query.start_us <= record.event_time_us < query.end_us
    ]
    if not schema.key.time_first:
        for sensor in {record.sensor_id for record in inside}:
            of_sensor = [record for record in records if record.sensor_id == sensor]
            assert [r.event_time_us for r in of_sensor] == sorted((r.event_time_us for r in of_sensor), reverse=True)
    order = lambda record: (record.sensor_id, record.event_time_us)  # noqa: E731
    assert same(sorted(records, key=order), sorted(inside, key=order))
    assert len(list(events_of_all(schema, table, replace(query, limit=2)))) == min(len(inside), 2)


@pytest.mark.parametrize(
    ("key", "prefix", "message"),
    [
        ("{sensor_id}#{reverse_us}", "a#82", "a sensor id contains no '#'"),
        ("{sensor_id}#{metric}#{reverse_us}", "a", "do not keep these sensors together"),
    ],
)
def test_an_invalid_prefix(key, prefix, message):
    """Text that goes beyond a sensor's id is no prefix of sensor ids; other keys keep no sensors together."""
    layout = LAYOUTS["tall" if "{metric}" in key else "wide"]
    schema = replace(TableSchema.default(), key=KeyTemplate.parse(key), layout=layout)
    with pytest.raises(ValueError, match=message):
        events_of_prefix(schema, Memory(), prefix, Query())


@pytest.mark.parametrize("text", ["", "a#b"])
def test_metadata_that_no_key_has(text):
    """A field of row keys is not empty and has no '#': the query is refused before anything is read."""
    schema = replace(TableSchema.default(), key=KeyTemplate.parse("{metadata.site}#{sensor_id}#{reverse_us}"))
    with pytest.raises(ValueError, match="in row keys it is not empty, and contains no '#'"):
        events_of(schema, Memory(), "a", Query(metadata={"site": text}))


def test_missing_metadata_is_requested():
    """If keys begin with a location, a query without one is refused and asks for it."""
    schema = SCHEMAS["wide {metadata.location}#{sensor_id}#{reverse_us} text"]
    with pytest.raises(ValueError, match=r"pass location too, as in metadata location=…"):
        events_of(schema, Memory(), "a", Query())


@pytest.mark.parametrize(
    ("name", "query", "rows"),
    [
        ("wide {sensor_id}#{reverse_us} text", Query(limit=1), 1),
        ("wide {sensor_id}#{reverse_us} text", Query(START_US, START_US + 10 * SECOND_US), 10),
        ("wide shard-{shard:32}#{sensor_id}#{iso_us} text", Query(limit=3), 3),
        ("serialized {sensor_id}#{reverse_us} text", Query(limit=1), 1),
        ("bucket_cells {sensor_id}#{bucket:1h} text", Query(START_US, START_US + 10 * SECOND_US), 1),
        ("tall {sensor_id}#{metric}#{reverse_us} text", Query(START_US, START_US + 10 * SECOND_US, ("t",)), 10),
    ],
)
def test_only_needed_rows_are_read(name, query, rows):
    """A query reads only the rows that it needs."""
    schema = SCHEMAS[name]
    events = [Event("a", START_US + i * SECOND_US, {"t": 1.0, "humidity": 2.0}, {}) for i in range(3600)]
    table = Memory(row for event in events for row in schema.rows(event))
    records = list(events_of(schema, table, "a", query))
    assert len(records) == (query.limit or 10)
    assert table.rows == rows


def test_a_range_between_two_milliseconds():
    """If times are stored in milliseconds, a range between two of them reads nothing."""
    schema = SCHEMAS["bucket_cells {sensor_id}#{bucket:1h} text"]
    table = table_of(schema, [Event("a", START_US + 500, {"t": 1.0}, {})])
    assert list(events_of(schema, table, "a", Query(START_US + 400, START_US + 600))) == []
    assert table.reads == 0


def test_metadata_that_selects_no_sensor():
    """Metadata that keys do not have before the sensor can't select sensors: refused, not ignored."""
    schema = SCHEMAS["wide {sensor_id}#{reverse_us} text"]
    for query in (
        lambda: sensors_of(schema, Memory(), "", {"location": "here"}),
        lambda: events_of_prefix(schema, Memory(), "a", Query(metadata={"location": "here"})),
    ):
        with pytest.raises(ValueError, match="do not have metadata location before the sensor"):
            query()
