"""An aggregate counts exactly the events that the table distinguishes, for every template and layout."""

import pickle
from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.events.event import Event
from pipeline.core.notation.cell_values import Values
from pipeline.core.panes.grouped_readings import GroupedReadings, accumulators_of
from pipeline.core.queries.events import Query, SensorLocator, events_of
from pipeline.core.queries.sweeps import Span, events_within
from pipeline.core.rows.records import RawRecord
from pipeline.core.rows.rows import KeyRange
from pipeline.core.schema.family_rules import FamilyRules
from pipeline.core.schema.key_template import KeyTemplate
from pipeline.core.schema.key_tokens import TemplateError
from pipeline.core.schema.layouts import LAYOUTS, Identity
from pipeline.core.schema.table_schema import SchemaError, TableSchema
from pipeline.core.windows import HOURLY
from tests.support.exhaustive import cases
from tests.support.memory import Memory

START_US = 1_771_324_200_000_000  # 2026-02-17T10:30:00Z
HOUR_US = HOURLY.length_us
SENSORS = ("a", "b")

TIMES = [
    "{reverse_us}",
    "{iso_us}",
    "{reverse_ms}",
    "{iso_s}",
    "{bucket:1h}",
    "{time:%Y-%m}",
    "{bucket:1d}#{reverse_ms}",
    "{bucket:1d}#{iso_us}",
]
BEHIND = [
    "",
    "#{metadata.location}",
    "#{event_id}",
    "#{event_id}#{metadata.location}",
    "#{metadata.model}#{metric}",
    "#{sensor_id}",
    "#{sensor_id}#{metadata.model}",
]
BEFORE = ["", "{sensor_id}#", "{metadata.location}#{sensor_id}#", "{metric}#{sensor_id}#{metadata.model}#"]


def schemas():
    for layout, before, time, behind in product(LAYOUTS.values(), BEFORE, TIMES, BEHIND):
        text = before + time + behind
        if layout.row_per_metric and "{metric}" not in text:
            text += "#{metric}"
        try:
            yield TableSchema(
                KeyTemplate.parse(text),
                layout,
                Values.TEXT,
                FamilyRules((("raw", ("*",)),)),
                FamilyRules() if layout.serializes else FamilyRules((("meta", ("*",)),)),
                (),
            )
        except (SchemaError, TemplateError):
            continue  # this combination is refused


SCHEMAS = {f"{schema.layout.name} {schema.key}": schema for schema in schemas()}
"""Every possible combination."""
KINDS = {(schema.layout.name, schema.identity): name for name, schema in SCHEMAS.items()}
each_schema = pytest.mark.parametrize("schema", cases(SCHEMAS, KINDS.values()))

# Offsets within the same millisecond, second, hour, day and month, and beyond.
offsets = st.sampled_from(
    [0, 1, 400, 999, 1000, 1400, 60_000_000, HOUR_US, HOUR_US + 1, 24 * HOUR_US, 40 * 24 * HOUR_US]
)
messages = st.builds(
    lambda sensor, offset, metrics, location, model, event_id: Event(
        sensor,
        START_US + offset,
        {metric: float(len(metric)) for metric in metrics},
        {"location": location, "model": model},
        event_id,
    ),
    st.sampled_from(SENSORS),
    offsets,
    st.sets(st.sampled_from(["t", "uu", "vvv"]), min_size=1),
    st.sampled_from(["north", "south"]),
    st.sampled_from(["x", "y"]),
    st.sampled_from(["e-1", "e-2"]),
)


def counts_of(windows):
    """Returns the number of events, and of each metric's readings, by sensor and window."""
    counts = Counter()
    for key, readings in windows.items():
        stats = readings.pane().stats
        counts[key] = stats.events
        for metric, column_of in stats.metrics.items():
            counts[*key, metric] = column_of.count
    return counts


def expected(schema, feed):
    """Returns the expected counts, derived from the schema's text."""
    key = str(schema.key)
    exact = schema.layout.serializes or ("_us}" in key and not schema.layout.bucketed)
    readings = set()
    for event in feed:
        time_us = event.event_time_us if exact else event.event_time_us // 1000 * 1000
        apart = tuple(event.metadata[name] for name in ("location", "model") if name in key)
        identity = event.sensor_id, time_us, apart, event.event_id if "{event_id}" in key else ""
        readings |= {(identity, metric) for metric in event.readings}
    counts = Counter(
        (sensor, HOURLY.start_of(time_us)) for sensor, time_us, *_ in {identity for identity, _ in readings}
    )
    counts.update((sensor, HOURLY.start_of(time_us), metric) for (sensor, time_us, *_), metric in readings)
    return counts


def counted(schema, feed, random):
    """Returns what a job counts if its bundles' accumulators are merged as bytes and in any order."""
    parts = []
    gathered = GroupedReadings(HOURLY, pickle.loads(pickle.dumps(schema.identity)))  # noqa: S301 (our own)
    for event in feed:
        gathered.add([event])
        if not random.randrange(3):
            parts += gathered.take_groups()
    parts += gathered.take_groups()
    random.shuffle(parts)
    windows = {}
    for key, readings in (
        ((sensor_id, start_us), readings)
        for part in parts
        for sensor_id, of_sensor in accumulators_of([part.data]).items()
        for start_us, readings in of_sensor.items()
    ):
        if random.randrange(2):
            readings.pane()
        window = windows.setdefault(key, WindowReadings())
        window.merge(WindowReadings.from_bytes(readings.to_bytes()) if random.randrange(2) else readings)
    return windows


def read_back(schema, table):
    """Returns the events that queries find."""
    locator = SensorLocator(schema, table)
    for sensor in SENSORS:
        for metadata in locator.of(sensor):
            yield from events_of(schema, table, sensor, Query(metadata=metadata))


def counts_of_records(records):
    counts = Counter()
    for record in records:
        key = record.sensor_id, HOURLY.start_of(record.event_time_us)
        counts[key] += 1
        counts.update((*key, metric) for metric in record.readings)
    return counts


@each_schema
@settings(max_examples=5, deadline=None)
@given(feed=st.lists(messages, min_size=1, max_size=24), random=st.randoms(use_true_random=False))
def test_aggregates_count_what_the_table_distinguishes(schema, feed, random):
    """Aggregates, queries and sweeps agree on the number of events and readings, however often events are repeated."""
    feed += random.choices(feed, k=random.randrange(4))
    table = Memory(row for event in feed for row in schema.rows(event))
    windows = counted(schema, feed, random)
    counts = counts_of(windows)
    assert counts == expected(schema, feed)
    records = list(read_back(schema, table))
    assert counts == counts_of_records(records)
    swept = {}
    for record in events_within(schema, table, KeyRange(b"", b""), Span(0, START_US * 2)):
        time_us, apart = schema.identity.of_record(record)
        readings = swept.setdefault((record.sensor_id, HOURLY.start_of(time_us)), WindowReadings())
        readings.add(time_us, record.readings, apart)
    assert counts == counts_of(swept)
    for record in records:  # restoring what was counted changes nothing
        window = windows[record.sensor_id, HOURLY.start_of(record.event_time_us)]
        restored = WindowReadings()
        time_us, apart = schema.identity.of_record(record)
        restored.add(time_us, record.readings, apart)
        window.merge(restored)
    assert counts == counts_of(windows)


@each_schema
@settings(max_examples=2, deadline=None)
@given(
    feed=st.lists(messages, min_size=1, max_size=24),
    limit=st.integers(1, 5),
    metrics=st.none() | st.sets(st.sampled_from(["t", "uu", "?"]), min_size=1).map(tuple),
)
def test_limits_and_metrics(schema, feed, limit, metrics):
    """Events at one moment stay distinct and in the same order, even if only some of their metrics are queried."""
    table = Memory(row for event in feed for row in schema.rows(event))
    for sensor in SENSORS:
        for metadata in SensorLocator(schema, table).of(sensor):
            expected = [
                (
                    record.event_time_us,
                    {name: x for name, x in record.readings.items() if metrics is None or name in metrics},
                )
                for record in events_of(schema, table, sensor, Query(metadata=metadata))
                if metrics is None or not record.readings.keys().isdisjoint(metrics)
            ]
            for most in (None, limit):
                found = events_of(schema, table, sensor, Query(metrics=metrics, limit=most, metadata=metadata))
                assert [(record.event_time_us, record.readings) for record in found] == expected[:most]


def test_parts_of_events_are_merged():
    """Parts of one event become one record; where both have a value, the first wins. Other events stay apart."""
    parts = [
        RawRecord("a", 1, {"t": 1.0}, {"b": "x"}),
        RawRecord("a", 2, {"t": 2.0}),
        RawRecord("a", 1, {"h": 3.0, "t": 9.0}, {"a": "y", "b": "z"}, "late"),
        RawRecord("b", 1, {"t": 5.0}),
    ]
    merged = Identity().merged(parts)
    assert merged == [
        RawRecord("a", 2, {"t": 2.0}),
        RawRecord("a", 1, {"h": 3.0, "t": 1.0}, {"a": "y", "b": "x"}, "late"),
        RawRecord("b", 1, {"t": 5.0}),
    ]
    assert list(merged[1].readings) == ["h", "t"]
    assert Identity(event_id=True).merged(parts[::2]) == parts[::2]
    assert Identity(metadata=("b",)).merged(parts[::2]) == parts[::2]
    assert Identity(metadata=("c",)).merged(parts[::2]) == merged[1:2]
    assert Identity().merged([]) == []


@given(
    st.lists(st.lists(st.text(st.characters(exclude_characters="#")), min_size=3, max_size=3), min_size=2, max_size=5)
)
def test_identity_texts(texts):
    """Two events have the same text only if every one of its components is the same."""
    identity = Identity(metadata=("x", "y"), event_id=True)
    apart = {identity.of_event(Event("a", 5, {}, {"x": x, "y": y, "z": "?"}, event_id)) for x, y, event_id in texts}
    assert len(apart) == len(set(map(tuple, texts)))
