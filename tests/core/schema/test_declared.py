import pytest

from pipeline.core.schema.changes import DeclaredSchema
from pipeline.core.schema.table_schema import SchemaError, TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.core.windows import HOURLY, Window

TWO_TIERS = parse_schema('[tiers]\n1d = "days"\n1h = "hours"')


def disagreements_of(table, **declared):
    return list(DeclaredSchema(**declared).disagreements(table))


@pytest.mark.parametrize("table", [TableSchema.default(), TWO_TIERS, parse_schema("[tiers]\n[metadata]\n")])
def test_no_flags(table):
    """Flags that are not set leave everything to the table."""
    assert disagreements_of(table) == []


def test_agreement():
    """Flags agree if they mean what the table's schema means: 1h and 60m are the same window."""
    assert disagreements_of(TableSchema.default(), raw="raw", stats="stats", meta="meta", window=HOURLY) == []
    assert disagreements_of(TableSchema.default(), window=Window.parse("60m")) == []
    assert disagreements_of(TWO_TIERS, stats="hours", window=HOURLY) == []
    assert disagreements_of(TableSchema.default("r", "s", "m"), raw="r", stats="s", meta="m") == []


@pytest.mark.parametrize(
    ("table", "declared", "phrases"),
    [
        (
            TableSchema.default(),
            {"raw": "readings"},
            ["the family of readings is declared as readings, the table's is raw"],
        ),
        (
            parse_schema('[metrics]\nlogs = ["log_*"]\nraw = ["*"]'),
            {"raw": "raw"},
            ["the family of readings is declared as raw, the table's is logs, raw"],
        ),
        (
            TWO_TIERS,
            {"stats": "days", "window": Window.parse("1d")},
            [
                "the family of aggregates is declared as days, the table's is hours",
                "the shortest window is declared as 1d, the table's is 1h",
            ],
        ),
        (
            parse_schema("[tiers]\n"),
            {"stats": "stats", "window": HOURLY},
            [
                "the family of aggregates is declared as stats, the table's is none",
                "the shortest window is declared as 1h, the table's is none",
            ],
        ),
    ],
)
def test_disagreement(table, declared, phrases):
    """Each flag that contradicts the table is one phrase with both values, without either command's spelling."""
    assert disagreements_of(table, **declared) == phrases


def test_the_default_schema_is_declared():
    """A table that must have the default schema is compared without policies, rate, units and newest readings."""
    assert disagreements_of(TableSchema.default(), default=True) == []
    assert disagreements_of(TableSchema.for_new_table(), default=True) == []
    assert disagreements_of(parse_schema('[policies]\nraw = "never"\n[rate]\nevery = "1s"'), default=True) == []
    assert disagreements_of(parse_schema('[metrics.t]\nunit = "m"'), default=True) == []
    assert disagreements_of(TableSchema.default(raw="r"), default=True, raw="r") == []
    assert disagreements_of(parse_schema('key = "{sensor_id}#{reverse_ms}"\nvalues = "float64"'), default=True) == [
        "--schema=default: key is '{sensor_id}#{reverse_ms}', wanted '{sensor_id}#{reverse_us}'",
        "--schema=default: values is 'float64', wanted 'text'",
    ]


def test_default_schema_with_declared_names():
    """The default schema takes families and window from the flags."""
    assert DeclaredSchema().schema() == TableSchema.default()
    declared = DeclaredSchema(raw="r", stats="s", meta="m", window=Window.parse("15m"))
    assert declared.schema() == TableSchema.default("r", "s", "m", Window.parse("15m"))


def test_flags_that_contradict_each_other():
    """Two families of the same name are refused."""
    with pytest.raises(SchemaError, match="family raw is already used by metrics"):
        DeclaredSchema(stats="raw").schema()
