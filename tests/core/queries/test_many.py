"""Events and windows of many sensors are those of each sensor, whether rows come in blocks or one by one."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.queries.events import Query, events_of, places
from pipeline.core.queries.reads import raise_foreign
from pipeline.core.queries.sweeps import Chosen, blocks_of, window_blocks, window_parts
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.rows.records import EventBlock, RawRecord
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.member import Member
from pipeline.core.statistics.window_stats import WindowStats, split_qualifier
from pipeline.core.windows import HOURLY
from tests.core.queries.feeds import DAY_US, SENSORS, START_US, each_schema, feeds, table_of
from tests.core.queries.odd_tables import FEED, ODD, schemas, table_with
from tests.support.exhaustive import examples
from tests.support.memory import Memory
from tests.support.served import InBlocks
from tests.support.tables import foreign_windows, window_row

END_US = START_US + 500 * DAY_US
QUERY = Query(START_US, END_US)


def records_in(parts):
    return [record for part in parts for block in part for record in block.records()]


@each_schema
@settings(max_examples=examples(3), deadline=None)
@given(feeds(), st.integers(1, 30), st.sets(st.sampled_from(SENSORS)), st.booleans())
def test_events_of_every_schema(schema, events, size, sensors, of_metric):
    """In every key, layout and encoding: each sensor's events, newest first, with rows in blocks and one by one."""
    table = table_of(schema, events)
    query = replace(QUERY, metrics=("t", "humidity")) if of_metric else QUERY
    found = records_in(blocks_of(schema, InBlocks(table, size), Chosen(sensors), query, raise_foreign))
    assert found == records_in(blocks_of(schema, table, Chosen(sensors), query, raise_foreign))
    expected = []
    if schema.key.time_first:
        known = [(sensor, {}) for sensor in sensors]
    else:
        known = [(each.sensor_id, each.metadata) for each in places(schema, table, raise_foreign)]
    for sensor, metadata in known:
        if sensor in sensors:
            expected += events_of(schema, table, sensor, replace(query, metadata=metadata))
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    if not schema.key.time_first:
        assert [record.sensor_id for record in found] == [record.sensor_id for record in expected]


@settings(max_examples=examples(100), deadline=None)
@given(schemas(), FEED, ODD, st.integers(1, 200), st.booleans())
def test_events_whatever_a_table_contains(schema, feed, odd, size, names):
    """Blocks have the same events, with the same metadata, and the same rows are foreign."""
    table = table_with(schema, feed, odd)

    def outcome(read):
        foreign = []
        found = records_in(blocks_of(schema, read, Chosen(prefix="a"), QUERY, foreign.append))
        return found, sorted({str(each) for each in foreign})

    assert outcome(InBlocks(table, size, names=names)) == outcome(table)


METRICS = st.dictionaries(st.sampled_from(["t", "u", "v_1"]), st.sampled_from([0.1, 0.2, -3.0, 1e308]), min_size=1)
WINDOWS = st.dictionaries(
    st.tuples(st.sampled_from(SENSORS), st.integers(0, 40)), st.lists(METRICS, min_size=1, max_size=3), max_size=20
)


DECLARED = """
[statistics]
"v*" = ["p95", "min", "max", "last", "last_time", "time_weighted_mean", "increase"]
u = ["last", "p50"]
"""


def declared_row(schema, sensor, start_us, readings):
    """Returns a window's row with the statistics that the schema declares, and with what only writers of rows read."""
    stats = WindowStats()
    times_us = [start_us + n * 1_000_000 for n in range(len(readings))]
    for metric in dict.fromkeys(name for each in readings for name in each):
        values = [(at, each[metric]) for at, each in zip(times_us, readings, strict=True) if metric in each]
        of_metric = schema.statistics.stats_of([at for at, _ in values], {metric: [value for _, value in values]})
        stats.metrics |= of_metric.metrics
    stats.events, stats.member, stats.sizes = len(readings), Member(times_us[-1], '{"site":"north"}'), {start_us: 7}
    return aggregate_row(HOURLY, sensor, start_us, stats, "stats", schema.statistics)


@settings(max_examples=examples(100), deadline=None)
@given(WINDOWS, st.integers(1, 500), st.sampled_from([None, ("t",), ("t", "x")]), st.booleans(), st.booleans())
def test_windows_as_columns(windows, size, metrics, foreign, declared):
    """Their columns are the statistics of the windows one by one, and the same rows are foreign."""
    schema = parse_schema((DECLARED if declared else "") + '[tiers]\n1h = "stats"')
    start_us = HOURLY.start_of(START_US)
    rows = [
        declared_row(schema, sensor, start_us + n * HOURLY.length_us, readings)
        if declared and n % 3  # other rows are from before the statistics were declared
        else window_row(HOURLY, sensor, start_us + n * HOURLY.length_us, *readings)
        for (sensor, n), readings in windows.items()
    ]
    table = Memory(rows + (foreign_windows("b") if foreign else []))
    [tier] = schema.tiers

    def outcome(query, read):
        refused = []
        sensors = Chosen(["a*", "b", "~"])
        asked = Query(start_us, start_us + 90 * HOURLY.length_us, metrics)
        found = query(tier, read, sensors, asked, refused.append)
        return [each for part in found for each in part], sorted({str(each) for each in refused})

    blocks, foreign_in_blocks = outcome(window_blocks, InBlocks(table, size))
    records, foreign_rows = outcome(window_parts, table)
    assert foreign_in_blocks == foreign_rows
    found = [record for block in blocks for record in block.records()]
    assert [(each.sensor_id, each.event_time_us) for each in found] == [
        (record.sensor_id, record.start_us) for record in records
    ]
    for event, record in zip(found, records, strict=True):
        assert event.readings.pop("reading_count") == record.reading_count
        told = {(metric, name): x for metric, each in record.metrics.items() for name, x in each.statistics().items()}
        names = {(metric, statistic.name): x for (statistic, metric), x in _split(event.readings)}
        assert names == told


def _split(readings):
    return [(split_qualifier(name), value) for name, value in readings.items()]


@pytest.mark.parametrize("declared", ["", DECLARED])
def test_windows_are_read_in_blocks(declared):
    """Blocks become columns: no row of theirs is made."""
    schema = parse_schema(declared + '[tiers]\n1h = "stats"')
    start_us = HOURLY.start_of(START_US)
    rows = [declared_row(schema, sensor, start_us, [{"t": 1.0, "u": 2.5, "v": 1.0}]) for sensor in ("a", "b", "c")]
    read = InBlocks(Memory(rows))
    part = partial(window_blocks, schema.tiers[0], read, Chosen(prefix=""), Query(0, END_US), raise_foreign)
    blocks = [block for each in part() for block in each]
    assert sum(map(len, blocks)) == 3
    assert read.blocks == 2  # of two requests: one sensor, then two


@pytest.mark.parametrize(
    ("texts", "prefix", "prefixes", "names"),
    [
        (["a", "a*"], None, ["a"], ["a", "a1", "a*"]),
        (["b?"], None, ["b"], ["b1", "b?"]),
        ([], "a*", ["a*"], ["a*"]),
        (["*", "a"], None, [""], ["a", "a1", "a*", "b1", "b?", "[ab]"]),
        (["[ab]", "x"], None, ["[ab]", "x"], ["[ab]"]),
    ],
)
def test_choices(texts, prefix, prefixes, names):
    """Stars and question marks are wild in globs alone, and what chose nothing is known."""
    chosen = Chosen(texts, prefix)
    assert chosen.prefixes == prefixes
    assert [name for name in ("a", "a1", "a*", "b1", "b?", "[ab]") if chosen.includes(name)] == names
    assert chosen.missing == [text for text in texts if text == "x"]


def test_columns_that_come_later():
    """Events that lack a column have nothing there, whichever came first."""
    block = EventBlock()
    block.add(RawRecord("a", 1, {"t": 1.0}, {}, "id"))
    block.extend(["b", "c"], [2, 3], {"u": [2.0, None]}, {"site": ["x", None]})
    block.add(RawRecord("d", 4, {}, {}))
    assert list(block.records()) == [
        RawRecord("a", 1, {"t": 1.0}, {}, "id"),
        RawRecord("b", 2, {"u": 2.0}, {"site": "x"}),
        RawRecord("c", 3, {}, {}),
        RawRecord("d", 4, {}, {}),
    ]
    assert list(block.first(2).records()) == list(block.records())[:2]
    assert {len(column) for column in (*block.readings.values(), *block.metadata.values())} == {4}
