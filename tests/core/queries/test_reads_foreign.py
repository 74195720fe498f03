"""Foreign rows and cells anywhere between a schema's rows never end a read or hide another row."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.events.event import LATEST_US, Event
from pipeline.core.queries.events import Query, events_of, sensors_of
from pipeline.core.queries.reads import ForeignRow, ForeignRows
from pipeline.core.queries.sweeps import Span, events_within, window_rows
from pipeline.core.rows.aggregate_rows import (
    aggregate_key,
    aggregate_prefix,
    aggregate_range,
    aggregate_row,
    parse_aggregate_key,
    parse_aggregate_row,
    stats_of,
)
from pipeline.core.rows.rows import Cell, KeyRange, Row, prefix_range
from pipeline.core.schema.key_template import KeyTemplate
from pipeline.core.schema.key_tokens import MetadataToken
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.core.windows import DAILY, HOURLY, Window
from tests.core.queries.feeds import DAY_US, SCHEMAS, SENSORS, START_US, each_schema, expected_record, feeds, table_of
from tests.support.memory import Memory

WHOLE = KeyRange(b"", b"")
ALL_TIME = Span(0, LATEST_US + 1)
STATS = WindowStats()
STATS.add({"t": 1.0})

odd_values = st.sampled_from(
    [b"", b"nan", b"inf", b"-inf", b"1e999", b"1_0", b" 1", b"-1", b"0.5", b"1e30", b"1e200", b"warm", b"\xff\xfe",
     (7).to_bytes(8), b"\x7f\xf0" + bytes(6), "٣".encode(), b"\x0a\x03a#b"]
) | st.binary(max_size=20)  # fmt: skip
odd_names = st.sampled_from([b"", b"x" * 300, b"\xff", b"t t", b"#", "ü".encode(), b"7", b"t\n"]) | st.binary(
    max_size=5
)


@st.composite
def odd_keys(draw, keys):
    """Draws keys like the given ones, but cut, extended or changed, and some unlike any of them."""
    key = draw(st.sampled_from(keys))
    at = draw(st.integers(0, len(key)))
    kind = draw(st.sampled_from(["cut", "longer", "put in", "digit", "any"]))
    match kind:
        case "cut":
            return key[:at] or b"!"
        case "longer":
            return key + draw(st.sampled_from([b"#", b"x", b"0", b"#x", b"\x00", b"\xff"]))
        case "put in":
            return key[:at] + draw(st.sampled_from([b"#", b" ", b"\xff", b"\n", "é".encode(), b"x" * 300])) + key[at:]
        case "digit":
            return bytes(ord("9") if byte in b"2345678" and index >= at else byte for index, byte in enumerate(key))
    return draw(st.binary(min_size=1, max_size=20) | st.sampled_from([b"agg", b"repair", b"schema", b"a", b"\xff" * 9]))


def is_ours(schema, key):
    """Returns whether a row of that key may be one of the schema's or one of the table's own."""
    if key.partition(b"#")[0] in (b"agg", b"repair", b"schema") and b"#" in key:
        return True
    try:
        schema.key.parse_key(key)
    except ValueError:
        return False
    return True


@each_schema
@settings(max_examples=6, deadline=None)
@given(events=feeds(), data=st.data())
@pytest.mark.slow
def test_rows_with_other_keys(schema, events, data):
    """Foreign rows anywhere: sweeps and queries find every event, and every sensor is listed."""
    table = table_of(schema, events)
    keys = sorted(table._cells)
    family = schema.metrics.families[0]
    others = {key for key in data.draw(st.lists(odd_keys(keys), max_size=8)) if not is_ours(schema, key)}
    for key in others:
        table.write(Row(key, [Cell(family, b"t", START_US - START_US % 1000, b"1")]))
    foreign = ForeignRows()
    expected = {(event.sensor_id, event.event_time_us) for event in (expected_record(schema, each) for each in events)}
    found = schema.identity.merged(events_within(schema, table, WHOLE, ALL_TIME, foreign.add))
    assert {(record.sensor_id, record.event_time_us) for record in found} == expected
    assert foreign.messages.keys() <= others
    if not schema.key.time_first:
        assert set(sensors_of(schema, table, "", {}, foreign.add)) == {sensor for sensor, _ in expected}
    for event in events:
        metadata = {
            part.name: event.metadata[part.name] for part in schema.key.parts if isinstance(part, MetadataToken)
        }
        query = Query(START_US - DAY_US, START_US + 500 * DAY_US, metadata=metadata)
        own = events_of(schema, table, event.sensor_id, query, foreign.add)
        assert expected_record(schema, event).event_time_us in [record.event_time_us for record in own]
    assert foreign.messages.keys() <= others


@each_schema
@settings(max_examples=6, deadline=None)
@given(events=feeds(), data=st.data())
@pytest.mark.slow
def test_foreign_cells(schema, events, data):
    """A row with a foreign cell is skipped and reports whose events it may hide; all other rows can be aggregated."""
    table = table_of(schema, events)
    written = {row.key for event in events for row in schema.rows(event)}
    spoiled = set(data.draw(st.lists(st.sampled_from(sorted(written)), max_size=3))) if written else set()
    for key in spoiled:
        cell = next(cell for cell in table._cells[key].values() if cell.family in schema.metrics.families)
        changed = data.draw(odd_names.map(lambda name: {"qualifier": name}) | odd_values.map(lambda x: {"value": x}))
        table.write(Row(key, [cell._replace(**changed)]))
    foreign = {}
    readings = WindowReadings()
    sound = set()
    for record in events_within(schema, table, WHOLE, ALL_TIME, lambda problem: foreign.update({problem.key: problem})):
        readings.add(record.event_time_us, record.readings)
        sound.add((record.sensor_id, record.event_time_us))
    again = WindowReadings.from_bytes(readings.to_bytes())
    assert again.pane().stats.events == readings.pane().stats.events
    assert foreign.keys() <= spoiled
    assert all(problem.raw_key is not None and len(str(problem)) < 500 for problem in foreign.values())
    for event in events:
        if not {row.key for row in schema.rows(event)} & spoiled:
            assert (event.sensor_id, expected_record(schema, event).event_time_us) in sound


@settings(deadline=None)
@given(
    windows=st.sets(st.tuples(st.sampled_from(SENSORS), st.integers(0, 50)), min_size=1),
    data=st.data(),
)
def test_windows_with_other_keys(windows, data):
    """Foreign rows between windows hide none of them."""
    base_us = HOURLY.start_of(START_US)
    ours = {aggregate_key(HOURLY, sensor, base_us + n * HOURLY.length_us): (sensor, n) for sensor, n in windows}
    table = Memory(Row(key, [Cell("stats", b"reading_count", 0, b"1")]) for key in ours)
    prefix = aggregate_prefix(HOURLY).encode()
    others = {key for key in data.draw(st.lists(odd_keys(sorted(ours)), max_size=8)) if key.startswith(prefix)}
    for key in others:
        table.write(Row(key, [Cell("stats", b"reading_count", 0, b"1")]))
    foreign = ForeignRows()
    found = {
        row.key
        for _, row in window_rows(
            table,
            CellSelection(("stats",)),
            prefix_range(prefix),
            ALL_TIME,
            lambda key: parse_aggregate_key(HOURLY, key),
            lambda *of: aggregate_range(HOURLY, *of),
            foreign.add,
        )
    }
    assert ours.keys() <= found <= ours.keys() | others
    assert foreign.messages.keys() <= others - found
    assert all(aggregate_key(HOURLY, *parse_aggregate_key(HOURLY, key)) == key for key in found)


columns = st.sampled_from([f"{name}_t".encode() for name in ("count", "sum", "min", "max", "avg", "stddev")])


@given(
    changes=st.dictionaries(
        columns | st.just(b"reading_count") | odd_names,
        st.none() | odd_values | st.floats().map(lambda value: repr(value).encode()) | st.integers().map(b"%d".__mod__),
        max_size=4,
    ),
    window=st.sampled_from([HOURLY, DAILY, Window.parse("15m")]),
)
def test_an_accepted_aggregate_row_can_be_continued(changes, window):
    """An aggregate row with any cells is either a ValueError or an accumulator that can be stored and continued."""
    row = aggregate_row(window, "a", window.start_of(START_US), STATS, "stats")
    values = {cell.qualifier: cell.value for cell in row.cells} | changes
    cells = [Cell("stats", name, 0, value) for name, value in values.items() if value is not None]
    try:
        record = parse_aggregate_row(window, Row(row.key, cells))
    except ValueError:
        return
    readings = WindowReadings()
    readings.restore(statistics=stats_of(record))
    readings.add(START_US, {"t": 2.0})
    again = WindowReadings.from_bytes(readings.to_bytes()).pane().stats
    assert again.events == record.reading_count + 1
    assert parse_aggregate_row(window, aggregate_row(window, "a", record.start_us, again, "stats")).reading_count


@pytest.mark.parametrize(
    ("template", "key"),
    [
        ("{salt:2}#{sensor_id}#{reverse_us}", b"ff#a#8228675799876543"),
        ("shard-{shard:32}#{sensor_id}#{iso_us}", b"shard-31#a#2026-02-17T10:00:00.000000"),
        ("{bucket:1d}#{sensor_id}#{iso_us}", b"2026-02-17#a#2026-02-18T10:00:00.000000"),
        ("{sensor_id}#{time:%Y-%j}", b"a#9999-999"),
        ("{sensor_id}#{iso_us}", b"a#9000-01-01T00:00:00.000000"),
        ("{sensor_id}#{reverse_us}", "ä#8228675799876543".encode()),
        ("{sensor_id}#{reverse_us}", b"x" * 257 + b"#8228675799876543"),
        ("{sensor_id}#{metric}#{reverse_us}", b"a#t t#8228675799876543"),
        ("{sensor_id}#{reverse_us}", "a#٨٢٢٨٦٧٥٧٩٩٨٧٦٥٤٣".encode()),
    ],
)
def test_keys_that_no_event_renders(template, key):
    """Only keys that some event renders are parsed: no other sensor's salt, no other day than the time's."""
    with pytest.raises(ValueError, match=r"^it |its |after the year|is not the start|can.t decode"):
        KeyTemplate.parse(template).parse_key(key)


def test_foreign_rows_are_counted_once():
    """Each foreign row is counted once. The first thousand are remembered."""
    foreign = ForeignRows()
    for n in range(1500):
        assert foreign.add(problem := ForeignRow(Row(b"%d" % n, []), ValueError("x" * 1000))) == (n < 1000)
        assert len(str(problem)) < 400
    assert not foreign.add(ForeignRow(Row(b"7", []), ValueError("again")))
    assert foreign.count == 1500
    assert list(foreign.messages) == [b"%d" % n for n in range(1000)]


SOUTH = {"metadata": {"location": "south"}}


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("serialized {sensor_id}#{reverse_us} text", {"event_time_us": START_US + DAY_US}),
        ("bucket_cells {sensor_id}#{bucket:1h} text", {"event_time_us": START_US + DAY_US}),
        ("serialized {metadata.location}#{sensor_id}#{reverse_us} text", SOUTH),
        ("serialized {sensor_id}#{reverse_us}#{event_id} text", {"event_id": "e-2"}),
        ("bucket_serialized {metadata.location}#{sensor_id}#{bucket:15m} text", SOUTH),
    ],
)
def test_an_event_under_another_row_s_key_is_foreign(name, other):
    """No query would find such an event: the key identifies it, so a cell that contradicts its key is foreign."""
    schema = SCHEMAS[name]
    event = Event("a", START_US, {"t": 1.0}, {"location": "north"}, "e-1")
    table, (own,), (of_other,) = table_of(schema, []), schema.rows(event), schema.rows(event._replace(**other))
    assert own.key != of_other.key
    table.write(of_other._replace(key=own.key))
    problems = []
    assert not list(events_within(schema, table, WHOLE, ALL_TIME, problems.append))
    assert [problem.raw_key.sensor_id for problem in problems] == ["a"]
    with pytest.raises(ForeignRow):  # unless somebody takes it
        list(events_within(schema, table, WHOLE, ALL_TIME))
