"""Readings as columns are those of the events, whether rows come in blocks or one by one."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.completion.stored_windows import Completion
from pipeline.core.notation.cell_values import Values
from pipeline.core.queries.events import Query, columns_of, events_of
from pipeline.core.queries.reads import ForeignRow
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.core.windows import HOURLY
from tests.core.queries.feeds import DAY_US, SECOND_US, START_US, each_schema, feeds, table_of
from tests.core.queries.odd_tables import FEED, ODD, schemas, table_with
from tests.support.exhaustive import examples
from tests.support.served import InBlocks

DEFAULT = TableSchema.default()
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
