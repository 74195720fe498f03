import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline.core.notation.durations import format_interval
from pipeline.core.schema.rate import Rate
from pipeline.core.schema.sizing import check_sizes, rollup_problem, state_problem, warnings
from pipeline.core.schema.table_schema import SchemaError, TableSchema
from pipeline.core.schema.toml import parse_schema

SECOND_US = 1_000_000


def schema(key, layout, rate=None, more="", tiers=""):
    """Returns a schema without tiers, unless some are named."""
    text = f"key = '{key}'\nlayout = '{layout}'\n{more}\ntiers = {{ {tiers} }}\n"
    if rate is not None:
        numbers = {"metrics": rate.metrics, "metadata": rate.metadata, "event_bytes": rate.event_bytes}
        text += f"[rate]\nevery = '{format_interval(rate.every_us)}'\n"
        text += "".join(f"{name} = {number}\n" for name, number in numbers.items() if number is not None)
    return parse_schema(text)


def problem_with(*parts):
    with pytest.raises(SchemaError) as caught:
        check_sizes(schema(*parts))
    assert str(caught.value).isprintable()
    return str(caught.value)


# Two events on one cell


@pytest.mark.parametrize(
    ("key", "layout", "rate"),
    [
        ("{sensor_id}#{reverse_us}", "wide", Rate(1)),
        ("{sensor_id}#{bucket:1d}#{reverse_us}", "wide", Rate(1)),
        ("{sensor_id}#{reverse_s}#{event_id}", "wide", Rate(1)),
        ("{sensor_id}#{bucket:1h}", "bucket_cells", Rate(SECOND_US)),
        ("{sensor_id}#{reverse_s}", "bucket_serialized", Rate(2)),
        ("{sensor_id}#{reverse_ms}", "serialized", Rate(1)),
        ("{sensor_id}#{reverse_s}#{event_id}", "serialized", Rate(1)),
    ],
)
def test_distinguishable_events(key, layout, rate):
    """A key finer than the rate, a bucket with distinct cells, and the publisher's event id all distinguish events."""
    check_sizes(schema(key, layout, rate))


def test_a_key_coarser_than_the_rate():
    """If events come faster than keys change, two would share a cell: refused."""
    assert problem_with("{sensor_id}#{reverse_s}", "wide", Rate(100_000)) == (
        "key: {sensor_id}#{reverse_s} distinguishes events by 1s, and there is one every 100ms: two would share a "
        "cell; use a finer time, or a layout with buckets"
    )
    assert problem_with("{sensor_id}#{metric}#{time:%Y-%m-%d}", "tall", Rate(3600 * SECOND_US)) == (
        "key: {sensor_id}#{metric}#{time:%Y-%m-%d} distinguishes events by 1d, and there is one every 1h: two would "
        "share a cell; use a finer time, or a layout with buckets"
    )


def test_a_bucket_of_events_faster_than_timestamps():
    """A bucket that distinguishes cells by timestamp holds at most one event per millisecond."""
    assert problem_with("{sensor_id}#{bucket:1m}", "bucket_cells", Rate(999)) == (
        "layout: bucket_cells distinguishes events by cell timestamp, 1ms, and there is one every 999us: "
        "two would share a cell; use bucket_serialized, or a layout with a row per event"
    )


# Rows and cells that are too large


def test_arithmetic():
    """A row that is too large is refused with the arithmetic and a bucket that would fit, if any would."""
    assert problem_with("{sensor_id}#{bucket:1w}", "bucket_cells", Rate(10_000, metrics=3)) == (
        "key: a row of {sensor_id}#{bucket:1w} would be 60,480,000 events × 96 bytes = 5.81 GB, over the 100 MB that "
        "Bigtable recommends at most; {bucket:2h} would fit, with 69.12 MB"
    )
    assert problem_with("{sensor_id}#{bucket:1h}", "bucket_serialized", Rate(1, event_bytes=1000)) == (
        "key: a row of {sensor_id}#{bucket:1h} would be 3,600,000,000 events × 1,051 bytes = 3.78 TB, over the 100 MB "
        "that Bigtable recommends at most; no bucket would fit; store less of each event"
    )
    assert problem_with("{sensor_id}#{time:%Y}", "bucket_serialized", Rate(SECOND_US, event_bytes=1000)) == (
        "key: a row of {sensor_id}#{time:%Y} would be 31,622,400 events × 1,051 bytes = 33.24 GB, over the 100 MB that "
        "Bigtable recommends at most; {bucket:1d} would fit, with 90.81 MB"
    )


def test_the_limit_itself_fits():
    """A row of exactly a hundred million bytes is accepted; one more event is not."""
    key = "{sensor_id}#{bucket:1d}"
    # 86,400 events a day of 51 bytes and the event
    check_sizes(schema(key, "bucket_serialized", Rate(SECOND_US, event_bytes=100_000_000 // 86_400 - 51)))
    with pytest.raises(SchemaError, match=r"86,400 events × 1,158 bytes = 100\.05 MB, over the 100 MB"):
        check_sizes(schema(key, "bucket_serialized", Rate(SECOND_US, event_bytes=100_000_000 // 86_400 - 50)))


def test_a_cell_too_large():
    """An event larger than the maximum cell size is refused, even in a row of its own."""
    check_sizes(schema("{sensor_id}#{reverse_us}", "serialized", Rate(SECOND_US, event_bytes=10_000_000)))
    assert problem_with("{sensor_id}#{reverse_us}", "serialized", Rate(SECOND_US, event_bytes=10_500_000)) == (
        "rate.event_bytes: an event of 10.5 MB in one cell exceeds the 10 MB that Bigtable recommends at most; "
        "use a layout with a column per metric"
    )


# State


def windows(length, *rate, key="{sensor_id}#{reverse_us}"):
    return schema(key, "wide", Rate(*rate), tiers=f"{length} = 'stats'")


OVER = "of state, over the 80 MB of an element on Dataflow;"
SHORTER = f"{OVER} declare a shorter first tier"
FOUR = f"6h may take 2,160,000 events × 40 bytes = 86.4 MB {SHORTER} (4h takes 57.6 MB)"


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (TableSchema.default(), None),
        (schema("{sensor_id}#{reverse_us}", "wide", Rate(1)), None),  # no tiers
        (windows("1h", 720, 1), None),  # 5,000,000 events of 16 bytes
        (
            windows("1h", 719, 1),
            f"1h may take 5,006,955 events × 16 bytes = 80.11 MB {SHORTER} (30m takes 40.06 MB)",
        ),
        (windows("6h", 10_000, 3), None),
        (windows("6h", 10_000, 4), FOUR),
        (windows("6h", 10_000, 3, key="{sensor_id}#{metadata.place}#{reverse_us}"), FOUR),
        (windows("1h", 100, 1, key="{sensor_id}#{reverse_ms}"), None),  # events within a key's grain are one event
        (windows("1m", 1, 10), f"1m may take 60,000,000 events × 88 bytes = 5.28 GB {OVER} send less often"),
    ],
)
def test_state(table, problem):
    """A reading takes eight bytes, like the time; a time that does not identify an event takes sixteen."""
    assert state_problem(table) == (problem and f"a sensor's window of {problem}")
    assert list(warnings(table)) == ([f"tiers: {state_problem(table)}"] if problem else [])


BUCKETS = ["1w", "1d", "12h", "6h", "4h", "3h", "2h", "1h", "30m", "15m", "10m", "5m", "1m", "30s", "10s", "1s"]
KEYS = {
    "bucket_cells": "{sensor_id}#%s",
    "bucket_columns": "{sensor_id}#{metric}#%s",
    "bucket_serialized": "{sensor_id}#%s",
}


rates = st.builds(
    Rate,
    st.integers(1000, 60 * SECOND_US),
    st.integers(1, 1000),
    st.integers(0, 100),
    st.none() | st.integers(1, 10**7),
)


@given(st.sampled_from(sorted(KEYS)), rates, st.sampled_from(["{bucket:1w}", "{bucket:1h}", "{time:%Y-%m}"]))
def test_the_suggested_bucket_fits(layout, rate, grain):
    """The suggested bucket is accepted, and the next larger one is refused."""
    message = ""
    try:
        check_sizes(schema(KEYS[layout] % grain, layout, rate))
    except SchemaError as error:
        message = str(error)
    assume("would fit, with" in message)
    fits = message.partition("{bucket:")[2] if grain.startswith("{time") else message.rpartition("{bucket:")[2]
    fits = fits.partition("}")[0]
    check_sizes(schema(KEYS[layout] % f"{{bucket:{fits}}}", layout, rate))
    if BUCKETS.index(fits):
        larger = BUCKETS[BUCKETS.index(fits) - 1]
        with pytest.raises(SchemaError, match=r"would fit, with"):
            check_sizes(schema(KEYS[layout] % f"{{bucket:{larger}}}", layout, rate))


# Warnings


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (TableSchema.default(), []),
        (schema("{sensor_id}#{bucket:1h}", "bucket_cells", Rate(SECOND_US)), []),
        (schema("{sensor_id}#{reverse_s}", "wide", Rate(SECOND_US)), []),
        (schema("{sensor_id}#{reverse_s}#{event_id}", "wide"), []),
        (
            schema("{iso_us}#{sensor_id}", "wide"),
            [
                "key: {iso_us}#{sensor_id} begins with the time: all sensors write to one tablet at a time, and "
                "reading one sensor reads the rows of all sensors; put {sensor_id} first"
            ],
        ),
        (
            schema("{salt:3}#{sensor_id}#{reverse_us}", "wide"),
            [
                "key: {salt:3}#{sensor_id}#{reverse_us} spreads sensors over 4,096 ranges: reading all sensors takes "
                "as many scans"
            ],
        ),
        (
            schema("{sensor_id}#{reverse_us}", "wide", None, "metrics = { raw = ['t*'] }\nmetadata = {}"),
            [
                'metrics: an event with a metric that no glob matches becomes a dead letter; "*" takes the others',
                'metadata: an event with a field that no glob matches becomes a dead letter; "*" takes the others',
            ],
        ),
        (
            schema(
                "{sensor_id}#{reverse_us}",
                "wide",
                None,
                'metrics = { a = ["log_*", "*"], b = ["temp", "t\\n*"], c = ["*"] }\n'
                'metadata = { meta = ["m*"], others = ["*"], never = ["model"] }',
            ),
            [
                'metrics.b: "temp" never matches: "*" of a, which comes first, takes everything',
                'metrics.b: "t\\n*" never matches: "*" of a, which comes first, takes everything',
                'metrics.c: "*" never matches: "*" of a, which comes first, takes everything',
                'metadata.never: "model" never matches: "*" of others, which comes first, takes everything',
            ],
        ),
        (
            schema("{sensor_id}#{bucket:6h}", "bucket_cells"),
            ["rate: is not declared; the size of a row of 6h is unknown"],
        ),
        (
            schema("{sensor_id}#{reverse_s}", "wide"),
            [
                "rate: is not declared; events of a sensor within 1s share a row, distinguished only by cell "
                "timestamps, in milliseconds"
            ],
        ),
        (
            schema("{sensor_id}#{reverse_ms}", "wide"),
            ["rate: is not declared; two events of a sensor within 1ms become one event"],
        ),
        (schema("{sensor_id}#{reverse_ms}", "serialized"), []),
        (
            schema("{sensor_id}#{time:%Y-%m-%d}", "serialized"),
            ["rate: is not declared; the size of a row of 1d is unknown"],
        ),
    ],
)
def test_warnings(table, expected):
    """Each known problem is one line; the default schema has none."""
    assert list(warnings(table)) == expected


def test_rows_of_roll_ups_too_large():
    """A shard whose sensors contribute more than a row of Bigtable should hold is told, with what to do."""
    text = '[rollups]\na = {{ by = [] }}\nshards = {}\n[rate]\nevery = "1m"\nsensors = {}\nmetrics = 100'
    assert rollup_problem(parse_schema(text.format(4096, 10_000_000))) is None
    assert rollup_problem(parse_schema(text.format(256, 10_000_000))) == (
        "a row may have 39,063 sensors × 6,620 bytes = 258.6 MB, over the 100 MB that Bigtable recommends at most; "
        "roll up fewer metrics, or declare up to 4,096 shards"
    )
    assert rollup_problem(parse_schema(text.format(4096, 100_000_000))).endswith("roll up fewer metrics")
    assert rollup_problem(parse_schema(text.format(256, 10_000_000).replace("a = { by = [] }", ""))) is None
    quantiles = text.format(4096, 50_000).replace("[rollups]", 'statistics = { "*" = ["p50"] }\n[rollups]')
    assert rollup_problem(parse_schema(quantiles)) == (
        "a row may have 4,096 parts of a group × 32,500 bytes = 133.12 MB, over the 100 MB that Bigtable recommends at "
        "most; roll up fewer metrics, or declare fewer shards"
    )
    assert "rollups: a row may have 39,063 sensors" in "\n".join(warnings(parse_schema(text.format(256, 10_000_000))))
