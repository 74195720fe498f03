"""Rows fit if the schema would have written them, and only then."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.completion.work_list import work_row
from pipeline.core.events.event import Event
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.table.fitting import Mismatch, aggregate_window, check_listed, raw_events

T = parse_time("2026-02-17T12:00:00Z")
SCHEMAS = {
    text: parse_schema(text)
    for text in (
        "",
        'key = "{salt:2}#{sensor_id}#{iso_ms}"\nvalues = "float64"\nmetrics = { logs = ["a"], raw = ["*"] }',
        'key = "{metadata.place}#{sensor_id}#{reverse_s}#{event_id}"',
        'layout = "tall"\nkey = "{shard:7}#{sensor_id}#{metric}#{reverse_us}"',
        'layout = "serialized"\nkey = "{sensor_id}#{reverse_s}"',
        'layout = "bucket_cells"\nkey = "{bucket:1h}#{sensor_id}"',
        'layout = "bucket_columns"\nkey = "{sensor_id}#{metric}#{bucket:1d}"',
        'layout = "bucket_serialized"\nkey = "{sensor_id}#{bucket:1w}"',
    )
}
events = st.builds(
    Event,
    st.sampled_from(["a", "balloon-7", "~"]),
    st.integers(T, T + 10**12),
    st.dictionaries(st.sampled_from(["a", "b", "t.x"]), st.floats(allow_nan=False, allow_infinity=False)),
    st.dictionaries(st.sampled_from(["model", "owner"]), st.text(max_size=5)).map(
        lambda all_: {"owner": "o", **all_, "place": "n"}
    ),
    st.sampled_from(["e1", "e2"]),
    st.none(),
)


@pytest.mark.parametrize("text", SCHEMAS)
@given(event=events)
def test_what_is_written_fits(text: str, event: Event) -> None:
    """In every layout, every row of an event, also of metadata alone."""
    schema = SCHEMAS[text]
    for row in schema.rows(event):
        (record,) = raw_events(schema, row)
        assert (record.sensor_id, record.event_time_us // 1000) == (event.sensor_id, event.event_time_us // 1000)


@pytest.mark.parametrize("text", SCHEMAS)
def test_another_time_of_a_cell_does_not_fit(text: str) -> None:
    """A cell that is newer than its event would hide what is written there later."""
    schema = SCHEMAS[text]
    (row, *_) = schema.rows(Event("a", T, {"b": 1.5}, {"place": "n"}, "e1"))
    later = [cell._replace(timestamp_us=cell.timestamp_us + 10**12) for cell in row.cells]
    with pytest.raises(Mismatch):
        raw_events(schema, Row(row.key, later))


def test_what_is_left_of_an_event() -> None:
    """If readings were collected before metadata, the metadata still fits."""
    for text, schema in SCHEMAS.items():
        if not schema.layout.serializes:
            (row, *_) = schema.rows(Event("a", T, {"b": 1.5}, {"place": "n", "model": "m"}, "e1"))
            left = [cell for cell in row.cells if cell.family == "meta"]
            assert left, text
            raw_events(schema, Row(row.key, left))


def test_another_spelling_of_a_number_fits() -> None:
    """An equal number in a cell's value fits in any spelling; in a column's name it does not."""
    wide, columns = SCHEMAS[""], SCHEMAS['layout = "bucket_columns"\nkey = "{sensor_id}#{metric}#{bucket:1d}"']
    (row,) = wide.rows(Event("a", T, {"b": 1.5}, {}))
    raw_events(wide, Row(row.key, [row.cells[0]._replace(value=b"1.50")]))
    (row,) = columns.rows(Event("a", T, {"b": 1.5}, {}))
    with pytest.raises(Mismatch, match=r"the schema would not write cell raw:1\.50"):
        raw_events(columns, Row(row.key, [row.cells[0]._replace(qualifier=b"1.50")]))


def test_a_salt_of_another_sensor() -> None:
    """A key that no reader would look for does not fit."""
    schema = parse_schema('key = "{salt:1}#{sensor_id}#{reverse_us}"')
    (row,) = schema.rows(Event("a", T, {"b": 1.5}, {}))
    raw_events(schema, row)
    with pytest.raises(Mismatch, match=r"has f for \{salt:1\}"):
        raw_events(schema, Row(b"f" + row.key[1:], row.cells))


def test_families_that_the_schema_does_not_name() -> None:
    """Readers ignore them."""
    (row,) = SCHEMAS[""].rows(Event("a", T, {"b": 1.5}, {}))
    raw_events(SCHEMAS[""], Row(row.key, [*row.cells, Cell("extra", b"\xff", 5, b"?")]))


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b_c"]), st.floats(-1e9, 1e9), min_size=1), min_size=1))
def test_what_is_aggregated_fits(readings: list[dict[str, float]]) -> None:
    """An aggregate row of ours, and a row of our work list."""
    schema = SCHEMAS[""]
    (tier,) = schema.tiers
    stats = WindowStats()
    for each in readings:
        stats.add(each)
    row = aggregate_row(tier.window, "s", T, stats, tier.family)
    assert aggregate_window(tier, row, schema.families) == ("s", T)
    with pytest.raises(Mismatch, match="it lacks "):
        aggregate_window(tier, Row(row.key, row.cells[:-1]), schema.families)
    earlier = [cell._replace(timestamp_us=T) for cell in row.cells]  # as earlier releases wrote it
    assert aggregate_window(tier, Row(row.key, earlier), schema.families) == ("s", T)
    for time_us in (T - 1000, row.cells[0].timestamp_us + 1000):
        with pytest.raises(Mismatch, match="has the timestamp"):
            aggregate_window(
                tier, Row(row.key, [*row.cells[1:], row.cells[0]._replace(timestamp_us=time_us)]), ["stats"]
            )
    check_listed(tier, work_row(tier, "s", T).key)


@pytest.mark.parametrize("value", [b"", b"nan", b"-1", b"0", b"1.5", b"inf", b"\xff", b"many"])
def test_what_counts_nothing(value: bytes) -> None:
    """A number of events is whole, and at least one."""
    (tier,) = SCHEMAS[""].tiers
    with pytest.raises(Mismatch):
        aggregate_window(
            tier, Row(b"agg#hourly#s#2026-02-17T12", [Cell("stats", b"reading_count", T, value)]), ["stats"]
        )
