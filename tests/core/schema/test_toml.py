import pickle

import pytest
import tomlkit
from apache_beam.internal import pickler
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.notation.cell_values import Values
from pipeline.core.schema.declared_metric import DeclaredMetric
from pipeline.core.schema.family_rules import FamilyRules
from pipeline.core.schema.gc_policies import parse_policy
from pipeline.core.schema.key_template import KeyTemplate
from pipeline.core.schema.layouts import LAYOUTS
from pipeline.core.schema.rate import Rate
from pipeline.core.schema.table_schema import SchemaError, TableSchema, Tier
from pipeline.core.schema.toml import document_of, format_schema, parse_schema, schema_of
from pipeline.core.windows import DAILY, HOURLY
from tests.support.schemas import schemas

DEFAULT = """\
key = "{sensor_id}#{reverse_us}"
layout = "wide"
values = "text"

[metrics]
raw = ["*"]

[metadata]
meta = ["*"]

[tiers]
1h = "stats"

[policies]
raw = "maxage=90d"
meta = "maxage=90d"
stats = "maxage=730d || maxversions=1"
"""

WHOLE = """\
key = "{metadata.location}#{sensor_id}#{metric}#{bucket:1d}"
layout = "bucket_columns"
values = "float64"

[metrics]
measurements = ["temperature", "humidity"]
"log.files" = ["log_*"]

[metadata]
meta = ["*"]

[tiers]
1h = "hours"
1d = "days"

[policies]
measurements = "maxage=30d"
hours = "maxage=1d || (maxage=7d && maxversions=2)"
days = "never"

[rate]
every = "10ms"
metrics = 3
metadata = 1
event_bytes = 120
"""


def problem_with(text):
    with pytest.raises(SchemaError) as caught:
        parse_schema(text)
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_the_default_schema():
    """The default schema is written in full, and an empty text is the default schema."""
    assert format_schema(TableSchema.default()) == DEFAULT
    assert parse_schema(DEFAULT) == parse_schema("") == TableSchema.default()


def test_a_complete_schema():
    """Every key of the file is parsed."""
    assert parse_schema(WHOLE) == TableSchema(
        KeyTemplate.parse("{metadata.location}#{sensor_id}#{metric}#{bucket:1d}"),
        LAYOUTS["bucket_columns"],
        Values.FLOAT64,
        FamilyRules((("measurements", ("temperature", "humidity")), ("log.files", ("log_*",)))),
        FamilyRules((("meta", ("*",)),)),
        (Tier(HOURLY, "hours"), Tier(DAILY, "days")),
        {
            "measurements": parse_policy("maxage=30d"),
            "hours": parse_policy("maxage=1d || (maxage=7d && maxversions=2)"),
            "days": parse_policy("never"),
        },
        Rate(10_000, 3, 1, 120),
    )


def test_declared_metrics():
    """A metric's table declares it, beside the families or instead of them; they are written by name."""
    of_pm10 = '[metrics."air.pm10"]\nunit = "µg/m³"\nlabel = "PM10"\nvalid = [0, 1000.5]\n'
    of_t = '[metrics.t]\nunit = "°C"\n'
    text = DEFAULT.replace('raw = ["*"]\n', f'raw = ["*"]\n\n{of_pm10}\n{of_t}')
    schema = parse_schema(of_t + of_pm10)
    assert schema.declared["air.pm10"] == DeclaredMetric("µg/m³", "PM10", (0.0, 1000.5))
    assert schema.units == {"t": "°C", "air.pm10": "µg/m³"}
    assert schema.ranges == {"air.pm10": (0.0, 1000.5)}
    assert schema.metrics == TableSchema.default().metrics
    assert format_schema(schema) == text
    assert parse_schema(text) == schema


def test_missing_keys():
    """Missing keys have the defaults; an empty section is empty."""
    assert parse_schema("[tiers]\n").tiers == ()
    assert parse_schema("[metadata]\n").metadata == FamilyRules()
    assert parse_schema('values = "float64"').values is Values.FLOAT64
    assert parse_schema('[rate]\nevery = "1s"').rate == Rate(1_000_000, 1, 0, None)


@given(schemas())
def test_round_trip(schema):
    """Every schema survives writing, parsing and pickling, Beam's too, and its text is always the same."""
    text = format_schema(schema)
    assert parse_schema(text) == schema
    assert format_schema(parse_schema(text)) == text
    assert schema_of(document_of(schema)) == schema
    for pickling in (pickle, pickler):
        copy = pickling.loads(pickling.dumps(schema))
        assert copy == schema
        assert copy.layout is schema.layout


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("key", "schema: it is not TOML: Expected '=' after a key in a key/value pair (at end of document)"),
        ("[metrics]\n[metrics]", "schema: it is not TOML: Cannot declare ('metrics',) twice (at line 2, column 9)"),
        ('key = "\n"', "schema: it is not TOML: Illegal character '\\n' (at line 1, column 8)"),
        (
            "keys = 1",
            "keys: there is no such key; the keys are key, layout, values, latest, metadata_alone, invalid, "
            "metrics, metadata, tiers, statistics, rollups, policies, rate",
        ),
        (
            '"a\\nb" = 1',
            "'a\\nb': there is no such key; the keys are key, layout, values, latest, metadata_alone, invalid, "
            "metrics, metadata, tiers, statistics, rollups, policies, rate",
        ),
        ("key = 7", 'key: takes a string, like "{sensor_id}#{reverse_us}", not 7'),
        ('key = ""', 'key: is empty; it takes a string, like "{sensor_id}#{reverse_us}"'),
        ('key = "{sensor_id}"', None),
        (
            'layout = "narrow"',
            "layout: 'narrow' is none of wide, tall, serialized, bucket_cells, bucket_columns, bucket_serialized",
        ),
        ('values = "int64"', "values: 'int64' is none of text, float64"),
        ('metrics = "*"', "metrics: must be a table: [metrics]"),
        ("[metrics]", 'metrics: has no family; add one, like raw = ["*"]'),
        ('[metrics]\nraw = "*"', 'metrics.raw: takes a list of globs, like ["temperature", "log_*"]'),
        (
            '[metrics]\nraw = ["*"]\n[metrics.raw]\nunit = "m"',
            "schema: it is not TOML: Cannot declare ('metrics', 'raw') twice (at line 3, column 13); if raw is a "
            "family, the metric of the same name can't be declared",
        ),
        ("[metrics.t]", 'metrics.t: is empty; it takes unit, label, valid, like unit = "µg/m³"'),
        (
            f'[metrics.t]\nunit = "{"m" * 33}"',
            f"metrics.t.unit: takes 1 to 32 printable characters, not '{'m' * 33}'",
        ),
        ('[metrics.t]\nunit = "\\u202e"', "metrics.t.unit: takes 1 to 32 printable characters, not '\\u202e'"),
        (
            '[metrics.t]\nname = "m"',
            "metrics.t.name: there is no such key; the keys of a metric are unit, label, valid",
        ),
        ('[metrics.t]\nlabel = " "', "metrics.t.label: takes 1 to 64 printable characters, not ' '"),
        *(
            (
                f"[metrics.t]\nvalid = {value}",
                f"metrics.t.valid: takes the least and the greatest valid number, like [-40, 60], not {value:.80}",
            )
            for value in ("[60, -40]", "[0]", "7", "[0, inf]", "[nan, 1]", "['0', 2]")
        ),
        ('invalid = "null"', "invalid: 'null' is none of drop reading, refuse event"),
        (
            '[metrics.a.b]\nunit = "m"',
            "metrics.a.b: there is no such key; the keys of a metric are unit, label, valid; quote a name with a dot: "
            '[metrics."a.b"]',
        ),
        (
            '[metrics."log_*"]\nunit = "m"',
            "metrics.log_*: is not a metric's name; each metric has a section of its own: [metrics.pm10]",
        ),
        (
            '[metrics]\nraw = ["t"]\n[metrics.u]\nunit = "m"',
            "metrics.u: no family takes this metric; add it to one, or leave this out",
        ),
        ("[tiers]\n1h = 1", 'tiers.1h: takes a string, like "stats", not 1'),
        (
            '[tiers]\n7h = "stats"',
            "tiers.7h: a window of 7h does not divide a day; use one like 15m, 1h, 6h or 1d",
        ),
        (
            '[policies]\nraw = "maxage=90"',
            "policies.raw: policy 'maxage=90': an age (a whole number of ms, s, m, h or d, from 1ms to 106751d) "
            "expected at character 8, not '90'; an example: maxage=30d || (maxage=3d && maxversions=100)",
        ),
        ("[statistics]\nt = 1", 'statistics.t: takes a list of statistics, like ["avg", "p95"]'),
        ('[statistics]\nt = ["sum", "sum"]', "statistics.t: t has a statistic twice"),
        (
            f"[statistics]\nt = {[f'p{n}' for n in range(1, 34)]}",
            "statistics.t: t has 33 statistics, more than 32; its sketch gives every quantile",
        ),
        (
            '[statistics]\nt = ["p100"]',
            "statistics.t: p100 is not a quantile; write p1 to p99, or p99.9 with up to three decimals",
        ),
        (
            '[statistics]\nt = ["sketch"]',
            "statistics.t: sketch is written with the statistics that need it; leave it out",
        ),
        ("[statistics]\nt = []", 'statistics.t: takes a list of statistics, like ["avg", "p95"]'),
        (
            '[statistics]\nt = ["median"]',
            "statistics.t: 'median' is not a statistic; there are count, sum, min, max, avg, stddev, first, "
            "first_time, last, last_time, increase, rate, time_weighted_mean, coverage, time_weighted_mean:locf, "
            "time_weighted_mean:linear, and quantiles like p50 and p99.9",
        ),
        (
            'key = \'{iso_us}#{sensor_id}\'\n[statistics]\nt = ["max", "increase"]',
            "statistics: increase needs the last reading before each window, and keys like {iso_us}#{sensor_id} don't "
            "find those of a sensor: begin keys with {sensor_id}, or leave it out",
        ),
        (
            '[policies]\nraw = "maxage=1h"\n[statistics]\nt = ["rate"]',
            "statistics: rate needs raw rows for two windows of 1h, and raw is collected after 1h: keep it longer, or "
            "leave rate out",
        ),
        (
            '[statistics]\nt = ["coverage"]',
            'statistics: coverage needs the rate that sensors are to have: [rate] every = "1m"',
        ),
        ('rate = "1s"', "rate: must be a table: [rate]"),
        ("[rate]", 'rate.every: is needed: the time from one event of a sensor to the next, like "1s"'),
        ('[rate]\nevery = "0s"', "rate.every: '0s' must be longer than zero, like 10ms, 1s or 15m"),
        ('[rate]\nevery = "1s"\nmetrics = true', "rate.metrics: takes a whole number from 1 to 1,000, not True"),
        (
            '[rate]\nevery = "1s"\nevent_bytes = ' + "9" * 100,
            f"rate.event_bytes: takes a whole number from 1 to 1,000,000,000, not {'9' * 80}",
        ),
        (
            '[rate]\nevery = "1s"\nsize = 1',
            "rate.size: there is no such key; the keys are every, metrics, metadata, event_bytes, sensors",
        ),
    ],
)
def test_invalid_schemas(text, problem):
    """An invalid schema is reported in one line that begins with the wrong key."""
    message = problem_with(text)
    assert message == problem or (problem is None and message.startswith("key: '{sensor_id}' has no time"))


@pytest.mark.parametrize("text", ["a = " + "[" * 10_000, "a = " + "9" * 10_000, "[" + "a." * 10_000 + "a]\n"])
def test_files_that_exceed_the_parser(text):
    """A file that exceeds the parser's limits is also refused in one line."""
    assert problem_with(text).startswith(("schema: it is not TOML: ", "a: there is no such key"))


things = st.recursive(
    st.booleans() | st.integers(-5, 10**12) | st.floats() | st.text(max_size=4) | st.datetimes(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=5,
)


@given(
    st.dictionaries(
        st.sampled_from(["key", "layout", "values", "metrics", "metadata", "tiers", "policies", "rate"]),
        things
        | st.dictionaries(st.sampled_from(["raw", "meta", "1h", "stats", "every", "metrics"]), things, max_size=2)
        | st.sampled_from(["tall", "serialized", "bucket_cells", "float64", "{sensor_id}#{metric}#{bucket:1h}"]),
    )
)
def test_any_document(document):
    """Any document is either a schema or a SchemaError of one line."""
    try:
        schema = schema_of(document)
    except SchemaError as error:
        problem = str(error)
        assert problem.isprintable()
        return
    assert parse_schema(tomlkit.dumps(document_of(schema))) == schema


def test_metadata_alone():
    """The key is true or false, and written only if it is true."""
    assert "metadata_alone = true" in format_schema(parse_schema("metadata_alone = true"))
    assert format_schema(parse_schema("metadata_alone = false")) == DEFAULT
    assert problem_with('metadata_alone = "yes"') == "metadata_alone: takes true or false, not 'yes'"
