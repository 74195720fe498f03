import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.events.dead_letter import RefusedRow
from pipeline.core.events.event import Event
from pipeline.core.notation.times import parse_time
from pipeline.core.panes.grouped_readings import (
    GroupedReadings,
    GroupReadings,
    RawRows,
    Unconfirmed,
    accumulators_of,
    kind_of,
    raw_rows_bytes,
    read_raw_rows,
)
from pipeline.core.rows.newest_row import NewestOfBundle
from pipeline.core.rows.rows import Cell, EncodedRow, EncodedRows, Row, encoded, entry_of
from pipeline.core.schema.toml import parse_schema
from tests.support.rows import decoded

NOON = parse_time("2026-02-17T12:00:00Z")
ROLLED_UP = "[rollups]\nplaces = { by = ['metadata.place'] }"
SCHEMAS = [
    "",
    'values = "float64"\nlatest = "now"',
    "key = '{metric}#{sensor_id}#{reverse_us}'\nlayout = 'tall'",
    "key = '{metadata.place}#{sensor_id}#{reverse_s}'\nlayout = 'serialized'",
    "key = '{sensor_id}#{reverse_us}#{event_id}'",
    "key = '{sensor_id}#{bucket:1w}'\nlayout = 'bucket_cells'",
    "key = '{salt:4}#{sensor_id}#{bucket:1d}#{metric}'\nlayout = 'bucket_columns'",
    "key = '{sensor_id}#{bucket:1d}'\nlayout = 'bucket_serialized'",
    ROLLED_UP,
]
EVENTS = [
    Event(sensor_id, NOON + minute * 60_000_000, {"t": minute / 3, "p": 7.0}, {"place": f"p{minute % 2}"}, f"e{minute}")
    for minute in range(0, 120, 5)
    for sensor_id in ("a", "b")
]


def raw_of(schema, events):
    """Returns the raw rows of events, each with its own readings."""
    gathered = GroupedReadings(*kind_of(schema))
    gathered.add(events)
    return RawRows(EncodedRows(schema.encoded_rows(events)), list(gathered.take_groups()))


def counted(parts):
    """Returns what readings count: the values of each event, and what the newest tells, by sensor and window."""
    found = {}
    for sensor_id, windows in accumulators_of(part.data for part in parts).items():
        for start_us, window in windows.items():
            stats = window.pane().stats
            values = {name: (each.count, pytest.approx(each.total)) for name, each in stats.metrics.items()}
            found[sensor_id, start_us] = stats.events, values, stats.member
    return found


def refusal(*rows):
    """Returns the refusal of rows that were sent as one entry."""
    return RefusedRow(rows[0].key, "INTERNAL", "", entry_of(rows[0].key, [row.mutations for row in rows]))


parts = st.builds(GroupReadings, st.integers(0, 1 << 17), st.integers(0, 1 << 52), st.binary(max_size=50))
rows = st.builds(EncodedRow, st.binary(max_size=9), st.binary(max_size=300), st.integers(0, 2**32 - 1))


@given(st.builds(RawRows, st.lists(rows).map(EncodedRows), st.lists(parts)))
def test_raw_rows_come_back(raw):
    """Raw rows survive encoding, and their size is the encoded size. Bytes of another release are refused."""
    data = raw_rows_bytes(raw)
    found = read_raw_rows(data)
    assert found == raw
    assert isinstance(found.rows, EncodedRows)
    assert raw.size_bytes == len(data)
    with pytest.raises(ValueError, match="another release wrote these raw rows; drain"):
        read_raw_rows(bytes([data[0] + 1]) + data[1:])


@pytest.mark.parametrize("text", SCHEMAS)
@given(refused=st.sets(st.sampled_from(range(len(EVENTS)))))
def test_readings_of_refused_rows_do_not_count(text, refused):
    """The readings of refused rows are left out, and all others of the same windows count, as if alone."""
    schema = parse_schema(text)
    unconfirmed = Unconfirmed(schema, kind_of(schema), decoded)
    unconfirmed.add(raw_of(schema, EVENTS))
    refusals = [refusal(row) for index in refused for row in schema.encoded_rows([EVENTS[index]])]
    kept = [event for index, event in enumerate(EVENTS) if index not in refused]
    assert counted(unconfirmed.confirm(refusals)) == counted(raw_of(schema, kept).readings)


def test_a_refused_metric():
    """If a row contains one metric, its refusal leaves the event's other metrics."""
    schema = parse_schema(SCHEMAS[2])
    event = EVENTS[0]
    raw = raw_of(schema, [event])
    unconfirmed = Unconfirmed(schema, kind_of(schema), decoded)
    unconfirmed.add(raw)
    (of_p,) = schema.encoded_rows([event._replace(readings={"p": 7.0})])
    of_t = event._replace(readings={"t": event.readings["t"]})
    assert counted(unconfirmed.confirm([refusal(of_p)])) == counted(raw_of(schema, [of_t]).readings)


def test_events_of_a_bucket_in_two_requests():
    """Of a row that two requests wrote to, only the events of the refused request are left out."""
    schema = parse_schema("key = '{sensor_id}#{bucket:1d}'\nlayout = 'bucket_cells'")
    events = [event for event in EVENTS if event.sensor_id == "a"]
    unconfirmed = Unconfirmed(schema, kind_of(schema), decoded)
    unconfirmed.add(raw_of(schema, events))
    refusals = [refusal(*schema.encoded_rows(events[4:9]))]
    assert counted(unconfirmed.confirm(refusals)) == counted(raw_of(schema, events[:4] + events[9:]).readings)


def test_a_refused_row_of_newest_readings():
    """If the row of a sensor's newest readings is refused, its events count: their raw rows are written."""
    schema = parse_schema('latest = "now"')
    raw, newest = raw_of(schema, EVENTS), NewestOfBundle("now", 0, metadata=False)
    newest.add(EVENTS)
    raw.rows.extend(newest.take(0))
    unconfirmed = Unconfirmed(schema, kind_of(schema), decoded)
    unconfirmed.add(raw)
    assert counted(unconfirmed.confirm([refusal(raw.rows[-1])])) == counted(raw.readings)


def test_metadata_alone_counts_in_no_window():
    """An event without readings is not among what is read from rows after a refusal."""
    schema = parse_schema("metadata_alone = true")
    status = Event("b", NOON, {}, {"status": "on"})
    raw = raw_of(schema, EVENTS)
    raw.rows.extend(schema.encoded_rows([status]))
    unconfirmed = Unconfirmed(schema, kind_of(schema), decoded)
    unconfirmed.add(raw)
    foreign = RefusedRow(raw.rows[-1].key, "INTERNAL", "", b"")
    assert counted(unconfirmed.confirm([foreign])) == counted(raw.readings)


def test_a_table_without_aggregates():
    """Its rows have no readings, whether some are refused or not."""
    schema = parse_schema("[tiers]")
    row = encoded(Row(b"a#1", [Cell("raw", b"t", NOON, b"1")]))
    unconfirmed = Unconfirmed(schema, kind_of(schema), decoded)
    assert not unconfirmed.add(RawRows(EncodedRows([row]), []))
    assert unconfirmed.confirm([refusal(row)]) == []
