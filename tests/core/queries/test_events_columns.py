"""Readings as columns are those of the events, whether rows come in blocks or one by one."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.completion.stored_windows import Completion
from pipeline.core.events.event import Event
from pipeline.core.notation.cell_values import Values
from pipeline.core.queries.events import Query, columns_of, events_of
from pipeline.core.queries.reads import ForeignRow
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.family_rules import FamilyRules
from pipeline.core.schema.key_space import KeyBindings
from pipeline.core.schema.key_template import KeyTemplate
from pipeline.core.schema.layouts import LAYOUTS
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.core.windows import HOURLY
from tests.core.queries.feeds import DAY_US, SECOND_US, START_US, each_schema, feeds, table_of
from tests.support.exhaustive import examples
from tests.support.memory import Memory
from tests.support.served import InBlocks

DEFAULT = TableSchema.default()
KEYS = [
    "{sensor_id}#{reverse_us}",
    "{salt:2}#{sensor_id}#{reverse_us}",
    "{metadata.location}#{sensor_id}#{reverse_us}",
    "{sensor_id}#{reverse_ms}",
]
FAMILIES = [(("raw", ("*",)),), (("temp", ("t*",)), ("raw", ("*",)))]
END_US = START_US + 500 * DAY_US
QUERY = Query(START_US, END_US, metadata={"location": "here-1"}, with_metadata=False)


def told(columns):
    """Returns each event of columns: what identifies it, its readings and its metadata."""
    for metrics, times_us, values, discriminator, metadata in columns:
        width = len(metrics)
        for n, time_us in enumerate(times_us):
            readings = zip(metrics, values[n * width : (n + 1) * width], strict=True)
            yield time_us, discriminator, dict(readings), dict(metadata)


def outcome(read):
    """Returns what is read, in any order, or the foreign row."""
    try:
        return sorted(read(), key=repr)
    except ForeignRow as problem:
        return str(problem)


def columns_and_events(schema, table, read, query=QUERY):
    """Returns what columns and what events tell."""

    def events():
        for event in events_of(schema, table, "a", query):
            if event.readings:
                yield *schema.identity.of_record(event), event.readings, event.metadata

    return outcome(lambda: told(columns_of(schema, read, "a", query))), outcome(events)


@each_schema
@settings(max_examples=examples(3), deadline=None)
@given(feeds(), st.integers(1, 30), st.booleans())
def test_columns_are_the_events_in_every_schema(schema, events, size, with_metadata):
    """In every key, layout and encoding, with rows in blocks and one by one."""
    table = table_of(schema, events)
    query = replace(QUERY, with_metadata=with_metadata)
    for read in (table, InBlocks(table, size)):
        columns, expected = columns_and_events(schema, table, read, query)
        assert columns == expected


@st.composite
def schemas(draw):
    key = KeyTemplate.parse(draw(st.sampled_from(KEYS)))
    metrics, metadata = FamilyRules(draw(st.sampled_from(FAMILIES))), FamilyRules((("meta", ("*",)),))
    return TableSchema(key, LAYOUTS["wide"], draw(st.sampled_from(Values)), metrics, metadata, ())


VALUES = [
    b"",
    b"x",
    b"1_0",
    b" 1",
    b"nan",
    b"1e999",
    b"--1",
    b"1e",
    b"12345678",
    b"\x00" * 8,
    b"\x7f\xf0" + b"\x00" * 6,
]
doubles = st.sampled_from([0.0, -0.0, 0.1, 20.5, -1e-7, 5e-324, 1.7976931348623157e308])
metrics = st.dictionaries(st.sampled_from(["humidity", "pressure", "t"]), doubles)
FEED = st.dictionaries(st.integers(0, 2 * 3600), metrics, min_size=1, max_size=40)

KNOWN = KeyBindings("a", None, {"location": "here-1"})
KINDS = ["value", "older value", "column", "family", "longer key", "key of no time", "time out of range"]
ODD = st.none() | st.tuples(st.sampled_from(KINDS), st.sampled_from(VALUES))


def table_with(schema, feed, odd):
    """Returns a table with events by second, and a row that the schema may not write."""
    rows = []
    for second, readings in feed.items():
        metadata = {"location": "here-1", "model": f"m{second % 2}"}
        rows += schema.rows(Event("a", START_US + second * SECOND_US + 7, readings, metadata, ""))
    if odd is not None and rows:
        kind, value = odd
        row = rows[len(rows) // 2]
        time_us = row.cells[0].timestamp_us if row.cells else START_US
        family = schema.metrics.families[0]
        rows.append(
            {
                "value": Row(row.key, [Cell(family, b"t", time_us + 1000, value)]),
                "older value": Row(row.key, [Cell(family, b"t", 1000, value)]),
                "column": Row(row.key, [Cell(family, b"1 t", time_us, b"1")]),
                "family": Row(row.key, [Cell(schema.metrics.families[-1], b"t", time_us, b"2")]),
                "longer key": Row(row.key + b"0", row.cells),
                "key of no time": Row(row.key[:-1] + b"x", row.cells),
                "time out of range": Row(schema.keys.prefix(KNOWN) + b"0" * 16, row.cells),
            }[kind]
        )
    return Memory(rows)


@settings(max_examples=examples(100), deadline=None)
@given(schemas(), FEED, ODD, st.integers(1, 200), st.booleans())
def test_columns_are_the_events_whatever_a_table_contains(schema, feed, odd, size, names):
    """Events of any metrics in both encodings; keys, columns and values of no schema raise the same ForeignRow."""
    table = table_with(schema, feed, odd)
    columns, expected = columns_and_events(schema, table, InBlocks(table, size, names=names))
    assert columns == expected


@settings(max_examples=examples(30), deadline=None)
@given(FEED, st.integers(1, 200), st.sampled_from(["", '[rollups.site]\nby = "metadata.model"']))
def test_windows_are_the_same_to_the_last_bit(feed, size, rollups):
    """The same readings in the same order give the same statistics, state and newest event."""
    schema = parse_schema('[tiers]\n1h = "hours"\n' + rollups)
    table = table_with(schema, feed, None)

    def windows(read):
        rows = Completion(schema, Retention.of(schema), read)
        found = rows.readings("a", START_US, END_US, HOURLY)
        return {start_us: (readings.to_bytes(), readings.member) for start_us, readings in found.items()}

    assert windows(InBlocks(table, size)) == windows(table)


@pytest.mark.parametrize("values", Values)
def test_the_default_layout_is_read_in_blocks(values):
    """Blocks become columns: no row of theirs is made."""
    schema = replace(DEFAULT, values=values)
    feed = {n: {"t": n / 7, "humidity": 0.5} for n in range(100)}
    read = InBlocks(table_with(schema, feed, None))
    [columns] = columns_of(schema, read, "a", QUERY)
    assert read.blocks == 1
    assert columns.times_us == [START_US + n * SECOND_US + 7 for n in reversed(range(100))]
    assert columns.values[:2] == [0.5, 99 / 7]
