import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.core.events.event import Event, serialized, validate
from pipeline.core.events.message import sensor_event
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.cell_values import format_value
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.rows import Cell
from pipeline.core.schema.gc_policies import format_policy
from pipeline.core.schema.table_schema import MAX_GROWTH, SchemaError, TableSchema, Tier
from pipeline.core.schema.toml import parse_schema
from pipeline.core.windows import DAILY, HOURLY, Window
from tests.support.strategies import events

TEN_THIRTY = parse_time("2026-02-17T10:30:00.123456Z")


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
    assert default.reading_families == ("raw", "meta")
    assert {family: format_policy(policy) for family, policy in default.policies.items()} == {
        "raw": "maxage=90d",
        "meta": "maxage=90d",
        "stats": "maxage=730d || maxversions=1",
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


def test_tiers_are_sorted():
    """Tiers are sorted by length, whatever their order was, and are found by length."""
    three = parse_schema('[tiers]\n24h = "days"\n15m = "quarters"\n1h = "hours"')
    assert three.families == ("raw", "meta", "quarters", "hours", "days")
    assert three.tier(Window.parse("24h")) == Tier(DAILY, "days")
    assert three.tier(Window.parse("900s")).family == "quarters"
    assert three.tier(Window.parse("6h")) is None


# Refused schemas

BUCKET = 'layout = "bucket_cells"\nkey = "{sensor_id}#{bucket:1h}"\n'
BY_VERSIONS = '[policies]\nraw = "maxversions=1"\n'


def of_families(count):
    return "[metrics]\n" + "".join(f'f{i} = ["m{i}"]\n' for i in range(count))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[metrics]\n"a b" = ["*"]', "metrics: 'a b' is not a family name: 1 to 64 of -_.A-Za-z0-9"),
        (f'[tiers]\n1h = "{"x" * 65}"', f"tiers: '{'x' * 65}' is not a family name: 1 to 64 of -_.A-Za-z0-9"),
        ('[metrics]\ntidetable = ["*"]', "metrics: family tidetable is the table's own; choose another name"),
        ('[metadata]\nraw = ["*"]', "metadata: family raw is already used by metrics; each needs its own"),
        ('[tiers]\n1h = "s"\n1d = "s"', "tiers: family s is already used by tiers; each needs its own"),
        (of_families(98), "metrics: 100 families and the table's own are more than Bigtable's 100"),
        (
            'layout = "tall"',
            "key: {sensor_id}#{reverse_us} has no {metric}, and the layout tall has a row for each",
        ),
        (
            'key = "{sensor_id}#{metric}#{iso_s}"',
            "key: {sensor_id}#{metric}#{iso_s} has {metric}, but a row of the layout wide contains all metrics of an "
            "event",
        ),
        (
            'layout = "bucket_cells"',
            "key: {sensor_id}#{reverse_us} has no bucket, and the layout bucket_cells needs one, like {bucket:1h}",
        ),
        (
            'layout = "bucket_cells"\nkey = "{sensor_id}#{bucket:1h}#{event_id}"',
            "key: {sensor_id}#{bucket:1h}#{event_id} has {event_id}: a bucket would contain one event",
        ),
        (
            'layout = "serialized"\n[metrics]\na = ["t"]\nb = ["*"]',
            'metrics: the layout serialized stores whole events in one family: raw = ["*"]',
        ),
        (
            'layout = "serialized"\n[metadata]\nmeta = ["*"]',
            "metadata: the layout serialized stores metadata in the event; leave this out",
        ),
        (
            'layout = "serialized"\nvalues = "float64"',
            "values: the layout serialized stores values in the event; leave this out",
        ),
        ('[tiers]\n1h = "a"\n60m = "b"', "tiers: two tiers have the same window, 1h"),
        ('[tiers]\n2h = "a"\n3h = "b"', "tiers: 2h does not divide 3h, which is computed from it"),
        (
            'latest = "latest"\n[tiers]',
            "latest: is written with aggregates, and the table has no tiers; add one, or leave it out",
        ),
        (
            '[policies]\nrow = "maxage=1d"',
            "policies.row: there is no such family; the families are raw, meta, stats",
        ),
        (
            BUCKET + BY_VERSIONS,
            "policies.raw: maxversions would collect events: in the layout bucket_cells, with keys like "
            "{sensor_id}#{bucket:1h}, each version of a cell is an event; use maxage",
        ),
        (
            'key = "{sensor_id}#{reverse_s}"\n' + BY_VERSIONS,
            "policies.raw: maxversions would collect events: in the layout wide, with keys like "
            "{sensor_id}#{reverse_s}, each version of a cell is an event; use maxage, or declare that a sensor sends "
            'no faster: [rate] every = "1s", or longer',
        ),
        (
            'key = "{sensor_id}#{time:%Y-%m-%dT%H:%M}"\nrate.every = "59s"\npolicies.meta = "maxversions=1"',
            "policies.meta: maxversions would collect events: in the layout wide, with keys like "
            "{sensor_id}#{time:%Y-%m-%dT%H:%M}, each version of a cell is an event; use maxage, or declare that "
            'a sensor sends no faster: [rate] every = "1m", or longer',
        ),
        (
            'key = "{sensor_id}#{metric}#{iso_us}"\nlayout = "tall"\nmetadata_alone = true',
            "metadata_alone: the layout tall has a row for each metric, and none for metadata alone",
        ),
        (
            "metadata_alone = true\nmetadata = {}",
            'metadata_alone: the table has no family of metadata; add one, like meta = ["*"]',
        ),
    ],
)
def test_invalid_schemas(text, problem):
    """A schema that could not work is refused when it is created, with the wrong key first."""
    with pytest.raises(SchemaError) as caught:
        parse_schema(text)
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    "text",
    [
        '[policies]\nraw = "maxversions=1"\nstats = "maxversions=1"',
        BUCKET + '[policies]\nstats = "maxversions=1"',
        BUCKET.replace("cells", "serialized") + BY_VERSIONS,
        'layout = "bucket_cells"\nkey = "{sensor_id}#{reverse_s}"',
        *(
            f'key = "{key}"\nlayout = "{layout}"\nrate.every = "{every}"\npolicies.meta = "maxversions=1"'
            for layout, key, every in (
                ("wide", "{sensor_id}#{reverse_ms}", "1us"),
                ("wide", "{sensor_id}#{reverse_s}", "1s"),
                ("tall", "{sensor_id}#{metric}#{reverse_s}", "1m"),
                ("wide", "{sensor_id}#{time:%Y-%m-%dT%H:%M}", "1m"),
            )
        ),
        'layout = "serialized"\nkey = "{sensor_id}#{reverse_us}#{event_id}"',
        of_families(97),
    ],
)
def test_valid_schemas(text):
    """Schemas just within the limits are accepted."""
    assert parse_schema(text).families


# Problems that depend on the event


def refusal(text, event):
    with pytest.raises(BadData) as caught:
        parse_schema(text).check(event)
    return caught.value.reason, caught.value.detail


EVENT = Event("a", TEN_THIRTY, {"t": 1.0}, {"location": "x"})
PROMOTED = 'key = "{metadata.location}#{sensor_id}#{iso_s}"\n'


def test_names_that_no_family_takes():
    """Such an event is a dead letter. Metadata in the key, or of a serialized event, needs no family."""
    temperatures = '[metrics]\ntemp = ["temp*"]'
    assert refusal(temperatures, EVENT) == (Reason.NO_FAMILY, "metric t matches none of the table's families")
    parse_schema(temperatures).check(EVENT._replace(readings={"temperature": 1.0}))
    assert refusal("[metadata]", EVENT) == (
        Reason.NO_FAMILY,
        "metadata location matches none of the table's families",
    )
    parse_schema("[metadata]").check(EVENT._replace(metadata={}))
    parse_schema(f"{PROMOTED}[metadata]").check(EVENT)
    parse_schema('layout = "serialized"').check(EVENT)


def test_metadata_alone():
    """A table keeps metadata alone if a cell is left for it; an event with all of its metadata in the key has none."""
    table, alone = PROMOTED + "metadata_alone = true\n", EVENT._replace(readings={})
    parse_schema(table).check(alone._replace(metadata={"location": "x", "status": "on"}))
    assert refusal(table, alone) == (
        Reason.NO_READINGS,
        "the event has no readings, and no metadata outside the row key",
    )
    parse_schema(table + 'layout = "serialized"').check(alone)


ROW_A_METRIC = [
    'key = "{sensor_id}#{metric}#{reverse_us}"\nlayout = "tall"',
    'key = "{metric}#{sensor_id}#{bucket:1d}"\nlayout = "bucket_columns"\nvalues = "float64"',
]


def event_of(metrics, entries, value_bytes, sensor_id="balloon-7"):
    metadata = {f"k{i}": "x" * value_bytes for i in range(entries)}
    return Event(sensor_id, TEN_THIRTY, {f"m{i}": 23.5 for i in range(metrics)}, metadata)


@pytest.mark.parametrize("text", ROW_A_METRIC)
def test_rows_much_larger_than_their_event(text):
    """An event whose rows would be many times larger is refused before they are built; within reason, it is not."""
    for accepted in ((100, 1, 1000), (100, 100, 10), (1000, 10, 20), (8, 100, 2000)):
        parse_schema(text).check(event_of(*accepted))
    reason, detail = refusal(text, event_of(1000, 100, 3000))
    assert reason is Reason.ROWS_TOO_LARGE
    assert f"are more than {MAX_GROWTH} times the event's 318," in detail
    assert not parse_schema(text).accepts_all_events
    proto = sensor_event(*event_of(1000, 100, 3000)[:4])
    assert refusal(text, validate(proto, TEN_THIRTY))[0] is Reason.ROWS_TOO_LARGE
    parse_schema("").check(event_of(1000, 100, 4096))  # one row repeats nothing


@given(
    st.sampled_from([parse_schema(text) for text in ROW_A_METRIC]),
    st.integers(9, 300),
    st.integers(1, 100),
    st.integers(1, 300),
    st.sampled_from(["a", "x" * 256]),
)
@example(parse_schema(ROW_A_METRIC[0]), 9, 100, 1, "x" * 256)
def test_growth_is_bounded(table, metrics, entries, value_bytes, sensor_id):
    """With more than a few metrics, the rows never exceed MAX_GROWTH times the event."""
    event = event_of(metrics, entries, value_bytes, sensor_id)
    grown = sum(len(row.key) + len(row.mutations) for row in table.encoded_rows([event])) / len(serialized(event))
    try:
        table.check(event)
    except BadData as problem:
        assert problem.reason is Reason.ROWS_TOO_LARGE  # noqa: PT017
        assert grown > MAX_GROWTH * 0.9
    else:
        assert grown <= MAX_GROWTH
