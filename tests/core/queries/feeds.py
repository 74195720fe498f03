"""Schemas of every template, layout and encoding, events, and the records that queries have to return."""

import pytest
from hypothesis import strategies as st

from pipeline.core.completion.work_list import work_row
from pipeline.core.events.event import Event
from pipeline.core.notation.cell_values import Values
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.rows.records import RawRecord
from pipeline.core.schema.family_rules import FamilyRules
from pipeline.core.schema.key_template import KeyTemplate
from pipeline.core.schema.layouts import LAYOUTS
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.core.windows import HOURLY
from tests.support.exhaustive import cases
from tests.support.memory import Memory

START_US = 1_771_324_200_000_000  # 2026-02-17T10:30:00Z
SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US


# A row per event; {m} stands for the place of the metric in layouts that have one.
FINE = [
    "{sensor_id}#{m}{reverse_us}",
    "{sensor_id}#{reverse_us}{mm}",
    "{salt:2}#{sensor_id}#{m}{reverse_us}",
    "shard-{shard:32}#{sensor_id}#{m}{iso_us}",
    "{metadata.location}#{sensor_id}#{m}{reverse_us}",
    "{m}{sensor_id}#{iso_us}",
    "{reverse_us}#{sensor_id}{mm}",
    "{bucket:1d}#{sensor_id}#{reverse_us}{mm}",
    "{sensor_id}#{m}{bucket:1d}#{iso_us}",
    "{sensor_id}#{reverse_us}{mm}#{event_id}",
]
COARSE = [
    "{salt:2}#{sensor_id}#{m}{reverse_ms}",
    "shard-{shard:32}#{sensor_id}#{m}{iso_s}",
    "{metadata.location}#{sensor_id}#{m}{time:%Y-%m-%d-%H%M}",
    "{sensor_id}#{m}{reverse_s}",
    "{iso_ms}#{sensor_id}{mm}",
    "{sensor_id}#{m}{reverse_s}#{event_id}",
    "{sensor_id}#{m}{iso_us}#{event_id}",
    "{sensor_id}#{m}{time:%Y-%m-%d-%H}#{metadata.model}",
]
BUCKETS = [
    "{sensor_id}#{m}{bucket:1h}",
    "{sensor_id}#{bucket:1w}{mm}",
    "{metadata.location}#{sensor_id}#{m}{bucket:15m}",
    "{salt:1}#{sensor_id}#{m}{bucket:1d}",
    "{bucket:1d}#{sensor_id}{mm}",
    "{sensor_id}#{m}{reverse_s}",
    "{sensor_id}#{m}{time:%Y-%m}",
    "{sensor_id}#{m}{bucket:1h}#{metadata.model}",
]


SENSORS = ("a", "a!", "a-1", "a$", "~")
METRICS = ("temperature", "t", "humidity")


def schemas_of(template, layout):
    """Returns the schemas of a template and a layout by their names, one for each encoding that the layout has."""
    front, back = ("{metric}#", "#{metric}") if layout.row_per_metric else ("", "")
    key = KeyTemplate.parse(template.replace("{mm}", back).replace("{m}", front))
    serializes = layout.serializes
    metrics = FamilyRules((("raw", ("*",)),) if serializes else (("temp", ("t*",)), ("raw", ("*",))))
    metadata = FamilyRules(() if serializes else (("meta", ("*",)),))
    return {
        f"{layout.name} {key} {values.value}": TableSchema(key, layout, values, metrics, metadata, ())
        for values in ([Values.TEXT] if serializes else Values)
    }


SCHEMAS, CHOSEN = {}, []
"""The schemas of every template, layout and encoding; and the names of one for each template, with another layout and
encoding each time."""
for bucketed, templates in ((False, FINE + COARSE), (True, BUCKETS)):
    layouts = [layout for layout in LAYOUTS.values() if layout.bucketed == bucketed]
    for n, template in enumerate(templates):
        named = {name: schema for layout in layouts for name, schema in schemas_of(template, layout).items()}
        SCHEMAS |= named
        CHOSEN.append(list(named)[n % len(named)])

# Sensors can't be listed if keys begin with the time.
LISTED = {name: schema for name, schema in SCHEMAS.items() if not schema.key.time_first}
each_schema = pytest.mark.parametrize("schema", cases(SCHEMAS, CHOSEN[::2]))
each_listed_schema = pytest.mark.parametrize("schema", cases(LISTED, CHOSEN[1::2]))

doubles = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def feeds(draw, most=12):
    """Draws distinct events. No two of a sensor are within one millisecond, the grain of the coarsest layout."""
    identities = draw(
        st.lists(
            st.tuples(st.sampled_from(SENSORS), st.integers(0, 400 * 1000), st.integers(0, 999)),
            unique_by=lambda identity: identity[:2],
            max_size=most,
        )
    )
    scale = draw(st.sampled_from([1, 37, 86_400]))  # from seven minutes to more than a year
    return [
        Event(
            sensor,
            START_US + ms * 1000 * scale + us,
            draw(st.dictionaries(st.sampled_from(METRICS), doubles, min_size=1)),
            {"location": f"here-{len(sensor)}"} | draw(st.sampled_from([{"model": "y"}, {"model": "x"}])),
            f"id-{us}",
        )
        for sensor, ms, us in identities
    ]


def expected_record(schema, event):
    """Returns the record that a query must return for an event."""
    exact = schema.layout.serializes or (not schema.layout.bucketed and schema.key.grain_us == 1)
    return RawRecord(
        event.sensor_id,
        event.event_time_us if exact else event.event_time_us // 1000 * 1000,
        event.readings,
        event.metadata,
        event.event_id if schema.layout.serializes or schema.key.distinguishes_events else "",
    )


def table_of(schema, events):
    """Returns a table of these events, with the table's own rows before, between and behind them."""
    memory, hour_us = Memory(row for event in events for row in schema.rows(event)), HOURLY.start_of(START_US)
    stats = WindowStats()
    stats.add({"t": 1.0})
    for sensor_id in SENSORS:
        memory.write(aggregate_row(HOURLY, sensor_id, hour_us, stats, "stats"))
        memory.write(work_row(Tier(HOURLY, "stats"), sensor_id, hour_us))
    return memory
