import pickle
import struct
from collections import defaultdict
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.events.event import Event, deserialized
from pipeline.core.events.message import sensor_event
from pipeline.core.notation.cell_values import Values
from pipeline.core.notation.times import from_datetime
from pipeline.core.rows.rows import Cell, Row, encoded
from pipeline.core.schema.family_rules import FamilyRules
from pipeline.core.schema.key_template import KeyTemplate, RawKey
from pipeline.core.schema.layouts import LAYOUTS, CellSelection, LayoutContext
from tests.support.exhaustive import examples
from tests.support.strategies import events

TEN_THIRTY = from_datetime(datetime(2026, 2, 17, 10, 30, 0, 123456, tzinfo=UTC))
AT = TEN_THIRTY - 456
EVENT = Event(
    "balloon-7",
    TEN_THIRTY,
    {"pressure": 94558.0, "temperature": 23.5, "log_errors": 2.0},
    {"location": "us-west2", "place": "Zürich"},
    "e-1",
)
METRIC_RULES = FamilyRules((("logs", ("log_*",)), ("raw", ("*",))))
META = FamilyRules((("meta", ("*",)),))
EVENTS = FamilyRules((("raw", ("*",)),))

# Row-key templates that fit each layout.
KEYS = {
    "wide": [
        "{sensor_id}#{reverse_us}",
        "{sensor_id}#%s%%#{reverse_ms}",
        "{salt:2}#{sensor_id}#{reverse_ms}",
        "{sensor_id}#{iso_s}#{event_id}",
    ],
    "tall": ["{sensor_id}#{metric}#{reverse_us}", "{metadata.location}#{sensor_id}#{reverse_s}#{metric}"],
    "serialized": ["{sensor_id}#{reverse_us}", "{metadata.location}#{sensor_id}#{time:%Y-%m-%d-%H%M}"],
    "bucket_cells": ["{sensor_id}#{bucket:1h}", "{metadata.location}#{bucket:1w}#{sensor_id}"],
    "bucket_columns": ["{sensor_id}#{metric}#{bucket:1d}", "{sensor_id}#{bucket:1w}#{metric}#{metadata.location}"],
    "bucket_serialized": ["{sensor_id}#{bucket:1h}", "{shard:4}#{sensor_id}#{time:%Y-%m}"],
}


def layout_context(key, values=Values.TEXT, metrics=METRIC_RULES, metadata=META):
    return LayoutContext(KeyTemplate.parse(key), values, metrics, metadata)


def layout_context_of(layout, key, values=Values.TEXT):
    return layout_context(key, values, EVENTS, FamilyRules()) if layout.serializes else layout_context(key, values)


def rows(layout, key, event=EVENT, **more):
    return LAYOUTS[layout].rows(layout_context(key, **more), event)


# Rows and cells


def test_wide():
    """A row per event, with a column per metric in the metric's family, and metadata columns."""
    assert rows("wide", "{sensor_id}#{reverse_us}") == [
        Row(
            b"balloon-7#8228675799876543",
            [
                Cell("raw", b"pressure", AT, b"94558"),
                Cell("raw", b"temperature", AT, b"23.5"),
                Cell("logs", b"log_errors", AT, b"2"),
                Cell("meta", b"location", AT, b"us-west2"),
                Cell("meta", b"place", AT, "Zürich".encode()),
            ],
        )
    ]


def test_tall():
    """A row per event and metric, with one reading and the metadata."""
    metadata = [Cell("meta", b"location", AT, b"us-west2"), Cell("meta", b"place", AT, "Zürich".encode())]
    assert rows("tall", "{sensor_id}#{metric}#{reverse_us}") == [
        Row(b"balloon-7#pressure#8228675799876543", [Cell("raw", b"pressure", AT, b"94558"), *metadata]),
        Row(b"balloon-7#temperature#8228675799876543", [Cell("raw", b"temperature", AT, b"23.5"), *metadata]),
        Row(b"balloon-7#log_errors#8228675799876543", [Cell("logs", b"log_errors", AT, b"2"), *metadata]),
    ]


def test_bucket_columns():
    """A row per sensor, metric and bucket: the value is the qualifier and the cell is empty."""
    metadata = [Cell("meta", b"location", AT, b"us-west2"), Cell("meta", b"place", AT, "Zürich".encode())]
    assert rows("bucket_columns", "{sensor_id}#{metric}#{bucket:1w}") == [
        Row(b"balloon-7#pressure#2026-W08", [Cell("raw", b"94558", AT, b""), *metadata]),
        Row(b"balloon-7#temperature#2026-W08", [Cell("raw", b"23.5", AT, b""), *metadata]),
        Row(b"balloon-7#log_errors#2026-W08", [Cell("logs", b"2", AT, b""), *metadata]),
    ]


@pytest.mark.parametrize(
    ("layout", "key", "row_key", "qualifier"),
    [
        ("serialized", "{sensor_id}#{reverse_us}", b"balloon-7#8228675799876543", b"event"),
        ("serialized", "{sensor_id}#{reverse_ms}", b"balloon-7#8228675799876", b"event.456"),
        ("bucket_serialized", "{sensor_id}#{bucket:1h}", b"balloon-7#2026-02-17T10", b"2026-02-17T10:30:00.123456"),
    ],
)
def test_serialized(layout, key, row_key, qualifier):
    """One column with the whole event, named by the part of its time that the key lacks and by its metrics' digest."""
    ((actual_key, (cell,)),) = rows(layout, key, metrics=EVENTS, metadata=FamilyRules())
    assert actual_key == row_key
    assert cell[:3] == ("raw", qualifier + b"#4168d32cb614042b", AT)
    assert deserialized(cell.value)[:5] == EVENT[:5]


def test_float64_columns():
    """If the value is the qualifier, the qualifier is eight bytes."""
    written = rows("bucket_columns", "{sensor_id}#{metric}#{bucket:1d}", values=Values.FLOAT64)
    assert [row.cells[0].qualifier for row in written] == [struct.pack(">d", x) for x in EVENT.readings.values()]
    assert {row.cells[0].value for row in written} == {b""}


@pytest.mark.parametrize(
    ("layout", "key"),
    [
        ("wide", "{metadata.location}#{sensor_id}#{reverse_us}"),
        ("bucket_columns", "{sensor_id}#{metric}#{bucket:1d}#{metadata.location}"),
    ],
)
def test_promoted_metadata_is_only_in_the_key(layout, key):
    """Metadata in the key is not repeated as a cell, and is read back from the key."""
    for row in rows(layout, key):
        assert [cell.qualifier for cell in row.cells if cell.family == "meta"] == [b"place"]
        (record,) = LAYOUTS[layout].records(layout_context(key), KeyTemplate.parse(key).parse_key(row.key), row.cells)
        assert record.metadata == EVENT.metadata


@pytest.mark.parametrize("layout", LAYOUTS)
@given(st.randoms())
def test_rewriting_an_event_changes_nothing(layout, random):
    """Writing an event again, even with its maps in another order, yields the same cells in the same rows."""

    def shuffled(entries):
        items = list(entries.items())
        random.shuffle(items)
        return dict(items)

    layout = LAYOUTS[layout]
    context = layout_context_of(layout, KEYS[layout.name][0])
    again = EVENT._replace(readings=shuffled(EVENT.readings), metadata=shuffled(EVENT.metadata))
    written, rewritten = (
        {(row.key, cell) for row in layout.rows(context, event) for cell in row.cells} for event in (EVENT, again)
    )
    assert written == rewritten


@pytest.mark.parametrize("layout", ["serialized", "bucket_serialized"])
def test_unknown_fields_survive(layout):
    """Fields that only a newer publisher knows are stored too."""
    message = sensor_event(*EVENT[:5])
    message.MergeFromString(b"\xf8\x07\x2a")  # field 127, varint 42
    context = layout_context_of(LAYOUTS[layout], KEYS[layout][0])
    (row,) = LAYOUTS[layout].rows(context, EVENT._replace(message=message))
    assert row.cells[0].value.endswith(b"\xf8\x07\x2a")
    assert deserialized(row.cells[0].value).message == message


@pytest.mark.parametrize(
    ("layout", "key"), [("bucket_serialized", "{sensor_id}#{bucket:1h}"), ("serialized", "{sensor_id}#{reverse_ms}")]
)
def test_events_of_one_millisecond(layout, key):
    """Serialized events are distinguished by the microsecond, whatever the key."""
    layout = LAYOUTS[layout]
    context = layout_context_of(layout, key)
    feed = [EVENT._replace(event_time_us=TEN_THIRTY + us) for us in (0, 1, -456)]
    (one,), (other,), _ = written = [layout.rows(context, event) for event in feed]
    assert one.key == other.key
    assert one.cells[0].qualifier < other.cells[0].qualifier
    assert one.cells[0].timestamp_us == other.cells[0].timestamp_us
    records = read(layout, context, stored(row for rows in written for row in rows))
    assert [record.event_time_us - TEN_THIRTY for record in records] == [1, 0, -456]


SERIALIZED = [(layout, key) for layout in ("serialized", "bucket_serialized") for key in KEYS[layout]]


@pytest.mark.parametrize(("layout", "key"), SERIALIZED)
def test_parts_of_a_serialized_event(layout, key):
    """Metrics from several messages form one event; if a reading is repeated, the first cell wins."""
    layout = LAYOUTS[layout]
    context = layout_context_of(layout, key)
    parts = [
        EVENT._replace(readings={"t": 1.0}, metadata={"location": "x", "model": "y"}),
        EVENT._replace(readings={"h": 2.0}, metadata={"location": "x", "place": "z"}, event_id="e-2"),
        EVENT._replace(readings={"h": 2.0, "t": 3.0}, metadata={"location": "x"}),
    ]
    table = stored(row for part in parts for row in layout.rows(context, part))
    ((row_key, cells),) = table.items()
    assert len(cells) == 3
    by_name = sorted(cells)
    (record,) = layout.records(context, context.key.parse_key(row_key), by_name)
    first = next(readings for cell in by_name if "t" in (readings := deserialized(cell.value).readings))
    assert record.event_time_us == TEN_THIRTY
    assert list(record.readings.items()) == [("h", 2.0), ("t", first["t"])]
    assert list(record.metadata.items()) == [("location", "x"), ("model", "y"), ("place", "z")]


@pytest.mark.parametrize(("layout", "key"), SERIALIZED)
def test_cells_of_an_earlier_release(layout, key):
    """Columns without the metrics' digest and without microseconds are read beside those of this release."""
    layout = LAYOUTS[layout]
    context = layout_context_of(layout, key)
    (row,) = layout.rows(context, EVENT._replace(readings={"t": 1.0}))
    qualifier = b"2026-02-17T10:30:00.123456" if layout.bucketed else b"event"
    (older,) = layout.rows(context, EVENT._replace(readings={"h": 2.0}))
    cells = [older.cells[0]._replace(qualifier=qualifier), *row.cells]
    (record,) = layout.records(context, context.key.parse_key(row.key), cells)
    assert record.readings == {"h": 2.0, "t": 1.0}
    selection = layout.selection(context, None, TEN_THIRTY, TEN_THIRTY + 1, 1)
    if selection.qualifier_range:
        assert all(selection.qualifier_range[0] <= cell.qualifier < selection.qualifier_range[1] for cell in cells)


# Round trips


def stored(written):
    """Returns rows as Bigtable stores them: one value for each family, column and timestamp."""
    table = defaultdict(dict)
    for key, cells in written:
        for cell in cells:
            table[key][cell[:3]] = cell
    return {key: list(cells.values()) for key, cells in table.items()}


def read(layout, context, table):
    parts = [
        record for key, cells in table.items() for record in layout.records(context, context.key.parse_key(key), cells)
    ]
    return layout.identity(context).merged(parts)


any_context = st.sampled_from([(layout, key) for layout in KEYS for key in KEYS[layout]]).flatmap(
    lambda each: st.sampled_from(Values).map(
        lambda values: (
            LAYOUTS[each[0]],
            layout_context_of(LAYOUTS[each[0]], each[1], Values.TEXT if LAYOUTS[each[0]].serializes else values),
        )
    )
)


@settings(max_examples=examples(300))
@given(any_context, st.lists(events(), max_size=3))
def test_encoded_rows_equal_plain_rows(table, of_message):
    """Encoded rows equal encoded plain rows, byte for byte, also after the layout was pickled."""
    layout, context = table
    expected = [encoded(row) for event in of_message for row in layout.rows(context, event)]
    assert layout.encoded_rows(context, of_message) == expected
    assert layout.encoded_rows(pickle.loads(pickle.dumps(context)), of_message) == expected  # noqa: S301 (our own)


def test_a_value_twice_in_a_bucket_of_columns():
    """The same value at two times is one column with two cells, and two events. Of two values, the first wins."""
    layout = LAYOUTS["bucket_columns"]
    context = layout_context("{sensor_id}#{metric}#{bucket:1w}")
    later = AT + 60_000_000
    feed = [Event("a", time_us, {"t": value}, {}) for time_us, value in ((AT, 1.5), (later, 2.5), (later, 1.5))]
    ((key, cells),) = stored(row for event in feed for row in layout.rows(context, event)).items()
    assert key == b"a#t#2026-W08"
    written = [Cell("raw", b"1.5", AT, b""), Cell("raw", b"1.5", later, b""), Cell("raw", b"2.5", later, b"")]
    assert sorted(cells) == written
    found = [(record.event_time_us, record.readings["t"]) for record in read(layout, context, {key: written})]
    assert found == [(later, 1.5), (AT, 1.5)]


@pytest.mark.parametrize(
    ("layout", "cells"),
    [
        ("wide", [Cell("raw", b"t", AT, b"warm")]),
        ("tall", [Cell("raw", b"t", AT, b"")]),
        ("bucket_cells", [Cell("raw", b"\xff", AT, b"1")]),
        ("bucket_columns", [Cell("raw", b"warm", AT, b"")]),
        ("wide", [Cell("meta", b"place", AT, b"\xff")]),
        ("serialized", [Cell("raw", b"event#0123456789abcdef", AT, b"\xff")]),
        ("bucket_serialized", [Cell("raw", b"2026", AT, b"\xff")]),
    ],
)
def test_foreign_cells(layout, cells):
    """Cells that the layout never writes are a ValueError."""
    with pytest.raises(ValueError, match=r"."):
        LAYOUTS[layout].records(layout_context(KEYS[layout][0]), RawKey("a", TEN_THIRTY, "t"), cells)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_row_without_cells(layout):
    """A row whose cells are all collected or filtered out contains no readings."""
    records = LAYOUTS[layout].records(layout_context(KEYS[layout][0]), RawKey("a", TEN_THIRTY, "t"), [])
    assert [record.readings for record in records] in ([], [{}])


# Cells that a query needs

START, END = TEN_THIRTY - 1, TEN_THIRTY + 1  # within one millisecond
CEILING = AT + 1000


@pytest.mark.parametrize(
    ("layout", "key", "metrics", "selection"),
    [
        ("wide", "{sensor_id}#{reverse_us}", None, CellSelection(("logs", "raw", "meta"), versions=1)),
        ("wide", "{sensor_id}#{reverse_us}", ["t", "h"], CellSelection(("logs", "raw"), (b"t", b"h"), versions=1)),
        (
            "wide",
            "{sensor_id}#{reverse_ms}",
            ["t"],
            CellSelection(("logs", "raw"), (b"t",), times_us=(CEILING, CEILING), versions=7),
        ),
        (
            "bucket_cells",
            "{sensor_id}#{bucket:1h}",
            None,
            CellSelection(("logs", "raw", "meta"), times_us=(CEILING, CEILING), versions=7),
        ),
        (
            "bucket_columns",
            "{sensor_id}#{metric}#{bucket:1h}",
            ["t"],
            CellSelection(("logs", "raw"), None, times_us=(CEILING, CEILING), versions=7),
        ),
        ("serialized", "{sensor_id}#{reverse_us}", ["t"], CellSelection(("raw",), versions=1)),
        ("serialized", "{sensor_id}#{reverse_s}", None, CellSelection(("raw",), times_us=(AT, CEILING), versions=8)),
        (
            "bucket_serialized",
            "{sensor_id}#{bucket:1h}",
            ["t"],
            CellSelection(
                ("raw",),
                qualifier_range=(b"2026-02-17T10:30:00.123455", b"2026-02-17T10:30:00.123457"),
                versions=1,
            ),
        ),
    ],
)
def test_selection(layout, key, metrics, selection):
    """A query selects exactly the families, columns, times and versions that can contain its events."""
    layout = LAYOUTS[layout]
    assert layout.selection(layout_context_of(layout, key), metrics, START, END, 7) == selection


@pytest.mark.parametrize(
    ("layout", "key"), [(name, keys[-1]) for name, keys in KEYS.items() if not LAYOUTS[name].row_per_metric]
)
def test_metadata_alone(layout, key):
    """Metadata that comes alone is read back. With other metadata or readings of the same time, it is one event."""
    layout = LAYOUTS[layout]
    context = layout_context_of(layout, key)
    own = {"location": "us-west2"}
    parts = [EVENT._replace(readings={}, metadata=own | more) for more in ({"status": "on"}, {"error": "7"})]
    table = stored(row for part in parts for row in layout.rows(context, part))
    ((row_key, cells),) = table.items()
    (record,) = layout.records(context, context.key.parse_key(row_key), cells)
    assert (record.readings, record.metadata) == ({}, {"error": "7", "status": "on"} | own)
    ((_, cells),) = stored(row for part in (*parts, EVENT) for row in layout.rows(context, part)).items()
    (record,) = layout.records(context, context.key.parse_key(row_key), cells)
    assert record.readings == EVENT.readings
    assert record.metadata == {"error": "7", "status": "on"} | EVENT.metadata
