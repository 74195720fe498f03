import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.core.events.event import Event, serialized, validate
from pipeline.core.events.message import sensor_event
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.cell_values import Values, format_value
from pipeline.core.notation.times import from_datetime
from pipeline.core.rows.rows import Cell
from pipeline.core.schema.family_rules import FamilyRules
from pipeline.core.schema.gc_policies import format_policy, parse_policy
from pipeline.core.schema.key_template import KeyTemplate
from pipeline.core.schema.layouts import LAYOUTS
from pipeline.core.schema.rate import Rate
from pipeline.core.schema.table_schema import MAX_GROWTH, SchemaError, TableSchema, Tier
from pipeline.core.schema.toml import parse_schema
from pipeline.core.windows import DAILY, HOURLY, Window
from tests.support.strategies import events

TEN_THIRTY = from_datetime(datetime(2026, 2, 17, 10, 30, 0, 123456, tzinfo=UTC))
RAW = FamilyRules((("raw", ("*",)),))
META = FamilyRules((("meta", ("*",)),))
HOURS = Tier(HOURLY, "stats")


def schema(
    key="{sensor_id}#{reverse_us}",
    layout="wide",
    values=Values.TEXT,
    metrics=RAW,
    metadata=META,
    tiers=(HOURS,),
    policies=None,
    rate=None,
):
    return TableSchema(KeyTemplate.parse(key), LAYOUTS[layout], values, metrics, metadata, tiers, policies or {}, rate)


def problem_with(**parts):
    with pytest.raises(SchemaError) as caught:
        schema(**parts)
    assert str(caught.value).isprintable()
    return str(caught.value)


# The default schema


@given(events(promoted=()))
def test_default_rows_of_any_event(event):
    """Any event's default row is the contract's, byte for byte."""
    default = TableSchema.default("r", "s", "m")
    default.check(event)
    ((key, cells),) = default.rows(event)
    at = event.event_time_us // 1000 * 1000
    assert key == f"{event.sensor_id}#{9_999_999_999_999_999 - event.event_time_us:016d}".encode()
    assert cells == [Cell("r", name.encode(), at, format_value(value)) for name, value in event.readings.items()] + [
        Cell("m", name.encode(), at, text.encode()) for name, text in event.metadata.items()
    ]


def test_default():
    """The default schema has the contract's families, window and policies."""
    default = TableSchema.default()
    assert default == schema()
    assert default.families == ("raw", "meta", "stats")
    assert default.reading_families == ("raw", "meta")
    assert default.policies == {
        "raw": parse_policy("maxage=90d"),
        "meta": parse_policy("maxage=90d"),
        "stats": parse_policy("maxage=730d || maxversions=1"),
    }
    assert default.tiers == (Tier(HOURLY, "stats"),)


def test_families_of_aggregates_keep_one_version():
    """Rows of a window are written again and again: whatever the policy says, a newer version replaces an older one."""
    found = parse_schema('[tiers]\n1h = "h"\n1d = "d"\n[policies]\nraw = "maxage=9d"\nh = "maxage=9d"\nd = "never"')
    assert {family: format_policy(policy) for family, policy in found.policies.items()} == {
        "raw": "maxage=9d",
        "meta": "maxage=90d",
        "h": "maxage=9d || maxversions=1",
        "d": "maxversions=1",
    }


# Tiers


def test_tiers_are_sorted():
    """Tiers are sorted by length, whatever their order was, and are found by length."""
    tiers = (Tier(DAILY, "days"), Tier(Window.parse("15m"), "quarters"), Tier(HOURLY, "hours"))
    three = schema(tiers=tiers)
    assert [tier.family for tier in three.tiers] == ["quarters", "hours", "days"]
    assert three.families == ("raw", "meta", "quarters", "hours", "days")
    assert three.tier(Window.parse("24h")) == Tier(DAILY, "days")
    assert three.tier(Window.parse("900s")).family == "quarters"
    assert three.tier(Window.parse("6h")) is None


# Refused schemas


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ({"metrics": FamilyRules()}, 'metrics: has no family; add one, like raw = ["*"]'),
        (
            {"metrics": FamilyRules((("a b", ("*",)),))},
            "metrics: 'a b' is not a family name: 1 to 64 of -_.A-Za-z0-9",
        ),
        (
            {"tiers": (Tier(HOURLY, "x" * 65),)},
            f"tiers: '{'x' * 65}' is not a family name: 1 to 64 of -_.A-Za-z0-9",
        ),
        (
            {"metrics": FamilyRules((("tidetable", ("*",)),))},
            "metrics: family tidetable is the table's own; choose another name",
        ),
        ({"metadata": RAW}, "metadata: family raw is already used by metrics; each needs its own"),
        (
            {"tiers": (Tier(HOURLY, "s"), Tier(DAILY, "s"))},
            "tiers: family s is already used by tiers; each needs its own",
        ),
        (
            {"metrics": FamilyRules(tuple((f"f{i}", (f"m{i}",)) for i in range(98)))},
            "metrics: 100 families and the table's own are more than Bigtable's 100",
        ),
        (
            {"layout": "tall"},
            "key: {sensor_id}#{reverse_us} has no {metric}, and the layout tall has a row for each",
        ),
        (
            {"key": "{sensor_id}#{metric}#{iso_s}"},
            "key: {sensor_id}#{metric}#{iso_s} has {metric}, but a row of the layout wide contains all metrics of an "
            "event",
        ),
        (
            {"layout": "bucket_cells"},
            "key: {sensor_id}#{reverse_us} has no bucket, and the layout bucket_cells needs one, like {bucket:1h}",
        ),
        (
            {"layout": "bucket_cells", "key": "{sensor_id}#{bucket:1h}#{event_id}"},
            "key: {sensor_id}#{bucket:1h}#{event_id} has {event_id}: a bucket would contain one event",
        ),
        (
            {"layout": "serialized", "metrics": FamilyRules((("a", ("t",)), ("b", ("*",)))), "metadata": FamilyRules()},
            'metrics: the layout serialized stores whole events in one family: raw = ["*"]',
        ),
        ({"layout": "serialized"}, "metadata: the layout serialized stores metadata in the event; leave this out"),
        (
            {"layout": "serialized", "metadata": FamilyRules(), "values": Values.FLOAT64},
            "values: the layout serialized stores values in the event; leave this out",
        ),
        (
            {"tiers": (Tier(HOURLY, "a"), Tier(Window.parse("60m"), "b"))},
            "tiers: two tiers have the same window, 1h",
        ),
        (
            {"tiers": (Tier(Window.parse("2h"), "a"), Tier(Window.parse("3h"), "b"))},
            "tiers: 2h does not divide 3h, which is computed from it",
        ),
        (
            {"policies": {"row": parse_policy("maxage=1d")}},
            "policies.row: there is no such family; the families are raw, meta, stats",
        ),
        (
            {
                "layout": "bucket_cells",
                "key": "{sensor_id}#{bucket:1h}",
                "policies": {"raw": parse_policy("maxversions=1")},
            },
            "policies.raw: maxversions would collect events: in the layout bucket_cells, with keys like "
            "{sensor_id}#{bucket:1h}, each version of a cell is an event; use maxage",
        ),
        (
            {"key": "{sensor_id}#{reverse_s}", "policies": {"raw": parse_policy("maxversions=1")}},
            "policies.raw: maxversions would collect events: in the layout wide, with keys like "
            "{sensor_id}#{reverse_s}, each version of a cell is an event; use maxage, or declare that a sensor sends "
            'no faster: [rate] every = "1s", or longer',
        ),
        (
            {
                "key": "{sensor_id}#{time:%Y-%m-%dT%H:%M}",
                "policies": {"meta": parse_policy("maxversions=1")},
                "rate": Rate(59_000_000),
            },
            "policies.meta: maxversions would collect events: in the layout wide, with keys like "
            "{sensor_id}#{time:%Y-%m-%dT%H:%M}, each version of a cell is an event; use maxage, or declare that "
            'a sensor sends no faster: [rate] every = "1m", or longer',
        ),
        (
            {
                "layout": "bucket_cells",
                "key": "{sensor_id}#{bucket:1h}",
                "policies": {"meta": parse_policy("maxversions=1")},
                "rate": Rate(60_000_000),
            },
            "policies.meta: maxversions would collect events: in the layout bucket_cells, with keys like "
            "{sensor_id}#{bucket:1h}, each version of a cell is an event; use maxage",
        ),
    ],
)
def test_invalid_schemas(parts, problem):
    """A schema that could not work is refused when it is created, with the wrong key first."""
    assert problem_with(**parts) == problem


@pytest.mark.parametrize(
    "parts",
    [
        {"policies": {"raw": parse_policy("maxversions=1"), "stats": parse_policy("maxversions=1")}},
        {
            "layout": "bucket_cells",
            "key": "{sensor_id}#{bucket:1h}",
            "policies": {"stats": parse_policy("maxversions=1")},
        },
        {
            "layout": "bucket_serialized",
            "key": "{sensor_id}#{bucket:1h}",
            "metadata": FamilyRules(),
            "policies": {"raw": parse_policy("maxversions=1")},
        },
        {"layout": "bucket_cells", "key": "{sensor_id}#{reverse_s}"},
        *(
            {"key": key, "layout": layout, "policies": {"meta": parse_policy("maxversions=1")}, "rate": Rate(every_us)}
            for layout, key, every_us in (
                ("wide", "{sensor_id}#{reverse_ms}", 1),
                ("wide", "{sensor_id}#{reverse_s}", 1_000_000),
                ("tall", "{sensor_id}#{metric}#{reverse_s}", 60_000_000),
                ("wide", "{sensor_id}#{time:%Y-%m-%dT%H:%M}", 60_000_000),
            )
        ),
        {"layout": "bucket_columns", "key": "{sensor_id}#{metric}#{time:%Y-%m}", "values": Values.FLOAT64},
        {"layout": "tall", "key": "{sensor_id}#{reverse_us}#{metric}"},
        {"layout": "serialized", "key": "{sensor_id}#{reverse_us}#{event_id}", "metadata": FamilyRules()},
        {"metadata": FamilyRules()},
        {"metrics": FamilyRules(tuple((f"f{i}", (f"m{i}",)) for i in range(97)))},
        {"policies": {"raw": parse_policy("never")}},
    ],
)
def test_valid_schemas(parts):
    """Schemas just within the limits are accepted."""
    assert schema(**parts).families


# Problems that depend on the event


def refusal(table, event):
    with pytest.raises(BadData) as caught:
        table.check(event)
    return caught.value.reason, caught.value.detail


EVENT = Event("a", TEN_THIRTY, {"t": 1.0}, {"location": "x"})


def test_a_metric_that_no_family_takes():
    """An event with a metric or field that no family takes is a dead letter."""
    some = schema(metrics=FamilyRules((("temp", ("temp*",)),)))
    assert refusal(some, EVENT) == (Reason.NO_FAMILY, "metric t matches none of the table's families")
    some.check(EVENT._replace(readings={"temperature": 1.0}))


def test_metadata_that_no_family_takes():
    """Metadata in the key needs no family, and neither does metadata of a serialized event."""
    assert refusal(schema(metadata=FamilyRules()), EVENT) == (
        Reason.NO_FAMILY,
        "metadata location matches none of the table's families",
    )
    schema(metadata=FamilyRules()).check(EVENT._replace(metadata={}))
    schema(key="{metadata.location}#{sensor_id}#{iso_s}", metadata=FamilyRules()).check(EVENT)
    schema(layout="serialized", metadata=FamilyRules()).check(EVENT)


ROW_A_METRIC = [
    schema("{sensor_id}#{metric}#{reverse_us}", "tall"),
    schema("{metric}#{sensor_id}#{bucket:1d}", "bucket_columns", Values.FLOAT64),
]


def event_of(metrics, entries, value_bytes, sensor_id="balloon-7"):
    metadata = {f"k{i}": "x" * value_bytes for i in range(entries)}
    return Event(sensor_id, TEN_THIRTY, {f"m{i}": 23.5 for i in range(metrics)}, metadata)


def growth(table, event):
    rows = table.encoded_rows([event])
    return sum(len(row.key) + len(row.mutations) for row in rows) / len(serialized(event))


@pytest.mark.parametrize("table", ROW_A_METRIC)
def test_rows_much_larger_than_their_event(table):
    """An event whose rows would be many times larger is refused before they are built."""
    reason, detail = refusal(table, event_of(1000, 100, 3000))
    assert reason is Reason.ROWS_TOO_LARGE
    assert f"are more than {MAX_GROWTH} times the event's 318," in detail
    assert refusal(table, event_of(1000, 100, 1))[0] is Reason.ROWS_TOO_LARGE
    assert not table.accepts_all_events
    proto = sensor_event(*event_of(1000, 100, 3000)[:4])
    assert refusal(table, validate(proto, TEN_THIRTY))[0] is Reason.ROWS_TOO_LARGE


@given(
    st.sampled_from(ROW_A_METRIC),
    st.integers(9, 300),
    st.integers(1, 100),
    st.integers(1, 300),
    st.sampled_from(["a", "x" * 256]),
)
@example(ROW_A_METRIC[0], 9, 100, 1, "x" * 256)
def test_growth_is_bounded(table, metrics, entries, value_bytes, sensor_id):
    """With more than a few metrics, the rows never exceed MAX_GROWTH times the event."""
    event = event_of(metrics, entries, value_bytes, sensor_id)
    grown = growth(table, event)
    try:
        table.check(event)
    except BadData as problem:
        assert problem.reason is Reason.ROWS_TOO_LARGE  # noqa: PT017
        assert grown > MAX_GROWTH * 0.9
    else:
        assert grown <= MAX_GROWTH


# Pickling and equality


def test_metadata_alone():
    """A table keeps metadata alone if a cell is left for it; an event with all of its metadata in the key has none."""
    table = parse_schema('key = "{metadata.place}#{sensor_id}#{iso_us}"\nmetadata_alone = true')
    table.check(Event("a", TEN_THIRTY, {}, {"place": "lab", "status": "on"}))
    with pytest.raises(BadData, match="no readings, and no metadata outside the row key") as error:
        table.check(Event("a", TEN_THIRTY, {}, {"place": "lab"}))
    assert error.value.reason is Reason.NO_READINGS
    serialized_table = replace(table, layout=LAYOUTS["serialized"], metadata=FamilyRules(), policies={})
    serialized_table.check(Event("a", TEN_THIRTY, {}, {"place": "lab"}))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('key = "{sensor_id}#{metric}#{iso_us}"\nlayout = "tall"', "the layout tall has a row for each metric"),
        ("metadata = {}", 'the table has no family of metadata; add one, like meta = ["*"]'),
    ],
)
def test_no_room_for_metadata_alone(text, problem):
    """A schema whose rows can't store an event without readings may not promise it."""
    with pytest.raises(SchemaError, match=f"metadata_alone: {re.escape(problem)}"):
        parse_schema(f"metadata_alone = true\n{text}")
