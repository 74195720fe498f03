import pytest

from pipeline.core.schema.changes import ALTERNATIVE, DeclaredSchema, changes
from pipeline.core.schema.table_schema import SchemaError, TableSchema
from pipeline.core.schema.toml import format_schema, parse_schema
from pipeline.core.windows import HOURLY, Window

DEFAULT = TableSchema.default()
POLICIES = "policies.{} is absent, wanted '{}'"
NEWEST = "maxage=730d || maxversions=1"
RATE = "{'every': '1s', 'metrics': 1, 'metadata': 0}"
TWO = 'raw = ["*"]\nlogs = ["log_*"]'


def found_changes(stored, requested):
    return changes(parse_schema(stored), parse_schema(requested))


@pytest.mark.parametrize(
    ("stored", "requested", "changed"),
    [
        ("", format_schema(DEFAULT), []),
        ('[tiers]\n60m = "stats"', '[tiers]\n1h = "stats"', []),
        ('policies.raw = "maxage=24h || maxversions=1"', 'policies.raw = "maxversions=1 or maxage=1d"', []),
        ("", 'policies.raw = "maxage=7d"', ["policies.raw is 'maxage=90d', wanted 'maxage=7d'"]),
        ("", 'policies.stats = "never"', [f"policies.stats is '{NEWEST}', wanted 'maxversions=1'"]),
        (
            "",
            f"[metrics]\n{TWO}",
            ["metrics.logs is absent, wanted ['log_*']", POLICIES.format("logs", "maxage=90d")],
        ),
        ('metrics.raw = ["t"]', 'metrics.raw = ["t", "h"]', ["metrics.raw is ['t'], wanted ['t', 'h']"]),
        (
            f"[metrics]\n{TWO}",
            '[metrics]\nlogs = ["log_*"]\nraw = ["*"]',
            ["metrics is ['raw', 'logs'], wanted ['logs', 'raw']"],
        ),
        ("[metadata]", "", ["metadata.meta is absent, wanted ['*']", POLICIES.format("meta", "maxage=90d")]),
        (
            "",
            '[tiers]\n1h = "stats"\n1d = "days"',
            ["tiers.1d is absent, wanted 'days'", POLICIES.format("days", NEWEST)],
        ),
        ("", 'rate.every = "1s"', [f"rate is absent, wanted {RATE}"]),
        ('rate.every = "1s"', "", [f"rate is {RATE}, wanted absent"]),
        ("", 'metrics.t.unit = "m"', ["metrics.t.unit is absent, wanted 'm'"]),
        ('metrics.t.unit = "m"', "", ["metrics.t.unit is 'm', wanted absent"]),
        (
            "metrics.t.valid = [0, 1]",
            'metrics.t = { valid = [0, 2], label = "T" }',
            ["metrics.t.label is absent, wanted 'T'", "metrics.t.valid is [0, 1], wanted [0, 2]"],
        ),
        (
            "metrics.t.valid = [0, 1]",
            'invalid = "refuse event"',
            ["metrics.t.valid is [0, 1], wanted absent", "invalid is absent, wanted 'refuse event'"],
        ),
        ("", "metadata_alone = true", ["metadata_alone is absent, wanted True"]),
    ],
)
def test_safe(stored, requested, changed):
    """Changes of policies, globs, metrics, the rate and metadata alone are safe, and so are new families and tiers."""
    found = found_changes(stored, requested)
    assert [str(change) for change in found] == changed
    assert all(change.safe for change in found)


ELSEWHERE = "and no reader would look for {} there any more"


@pytest.mark.parametrize(
    ("stored", "requested", "change", "why"),
    [
        (
            "",
            'key = "{sensor_id}#{reverse_ms}"',
            "key is '{sensor_id}#{reverse_us}', wanted '{sensor_id}#{reverse_ms}'",
            "existing rows have the old keys, and no reader would find them",
        ),
        (
            'key = "{sensor_id}#{bucket:1h}"',
            'key = "{sensor_id}#{bucket:1h}"\nlayout = "bucket_cells"',
            "layout is 'wide', wanted 'bucket_cells'",
            "existing rows have the old layout, and no reader could distinguish the two",
        ),
        (
            "",
            'values = "float64"',
            "values is 'text', wanted 'float64'",
            "existing cells have the old encoding, and no reader could distinguish the two",
        ),
        (
            "",
            'metrics.readings = ["*"]',
            "metrics.raw is ['*'], wanted absent",
            f"the family may contain readings, {ELSEWHERE.format('them')}",
        ),
        (
            "",
            'metadata.info = ["*"]',
            "metadata.meta is ['*'], wanted absent",
            f"the family may contain metadata, {ELSEWHERE.format('it')}",
        ),
        (
            "",
            '[tiers]\n1h = "hours"',
            "tiers.1h is 'stats', wanted 'hours'",
            f"the family may contain aggregates, {ELSEWHERE.format('them')}",
        ),
    ],
)
def test_unsafe(stored, requested, change, why):
    """Changes that would lose rows are refused with the reason and an alternative."""
    (unsafe,) = (each for each in found_changes(stored, requested) if not each.safe)
    assert str(unsafe) == change
    assert unsafe.refusal == f"{change}: {why}; {ALTERNATIVE}"


@pytest.mark.parametrize(
    ("before", "after", "safe"),
    [
        ("", 't = ["count", "sum", "min", "max", "avg", "stddev", "p50"]', True),
        ("", 't = ["p50"]', False),
        ('t = ["last"]', 't = ["last", "p99"]', True),
        ('t = ["last", "p99"]', 't = ["last"]', False),
        ('t = ["last"]', "", False),
        ('t = ["last"]\n"*" = ["sum"]', '"*" = ["sum"]\nt = ["last"]', False),
    ],
)
def test_statistics(before, after, safe):
    """Statistics may be added. One that is taken away would keep its old value in rows that are written again."""
    found = found_changes(f"[statistics]\n{before}", f"[statistics]\n{after}")
    assert found
    assert all(change.safe for change in found) is safe


SITE = 'site = { by = "metadata.site", tiers = ["1h"], metrics = ["t"] }\n'
SHOWN = "{'by': 'metadata.site', 'tiers': ['1h'], 'metrics': ['t']}"


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("", SITE, [f"rollups.site is absent, wanted {SHOWN}", "rollups.shards is absent, wanted 256"]),
        ("shards = 256\n", SITE, [f"rollups.site is absent, wanted {SHOWN}"]),
        (SITE, "shards = 256", [f"rollups.site is {SHOWN}, wanted absent"]),
        (SITE, SITE.replace('["1h"]', '["60m"]'), []),
        (SITE, SITE.replace('tiers = ["1h"], ', ""), ["rollups.site.tiers is ['1h'], wanted ['1h', '1d']"]),
        (SITE, SITE.replace(', metrics = ["t"]', ""), ["rollups.site.metrics is ['t'], wanted ['*']"]),
        ("all = { by = [] }", 'all = { by = [], tiers = ["1h", "1d"], metrics = ["*"] }', []),
        ("a = { by = [] }\nb = { by = [] }", "b = { by = [] }\na = { by = [] }", []),
        ('a = { by = "metadata.b" }', 'a = { by = ["metadata.b"] }', []),
    ],
)
def test_rollups(before, after, changed):
    """Roll-ups may be added, dropped, and have other tiers and metrics; another notation is no change."""
    tiers = '[tiers]\n1h = "hours"\n1d = "days"\n[rollups]\n'
    found = found_changes(tiers + before, tiers + after)
    assert [str(change) for change in found if change.key != "policies.rollup"] == changed
    assert all(change.safe for change in found)


@pytest.mark.parametrize(
    ("after", "refusal"),
    [
        (
            SITE.replace('"metadata.site"', '["metadata.site", "metadata.floor"]'),
            "rollups.site.by is 'metadata.site', wanted ['metadata.site', 'metadata.floor']: existing rows are of "
            "other groups, which would stay beside the new ones; declare another roll-up, with a new name",
        ),
        (
            SITE + "shards = 512",
            "rollups.shards is 256, wanted 512: sensors would be in other shards, and count twice in rows that exist; "
            "leave the number as it is",
        ),
    ],
)
def test_unsafe_changes_of_rollups(after, refusal):
    """Other groups of the same name, and other shards, would mix with the rows that exist."""
    (change,) = found_changes("[rollups]\n" + SITE, "[rollups]\n" + after)
    assert not change.safe
    assert change.refusal == refusal


# Flags

TWO_TIERS = parse_schema('[tiers]\n1d = "days"\n1h = "hours"')
NO_TIERS = parse_schema("[tiers]\n")
OTHER_KEY = parse_schema('key = "{sensor_id}#{reverse_ms}"\nvalues = "float64"')


@pytest.mark.parametrize(
    ("table", "declared", "phrases"),
    [
        (TWO_TIERS, {}, []),
        (NO_TIERS, {}, []),
        (DEFAULT, {"raw": "raw", "stats": "stats", "meta": "meta", "window": Window.parse("60m")}, []),
        (TWO_TIERS, {"stats": "hours", "window": HOURLY}, []),
        (DEFAULT, {"raw": "readings"}, ["the family of readings is declared as readings, the table's is raw"]),
        (
            parse_schema(f"[metrics]\n{TWO}"),
            {"raw": "raw"},
            ["the family of readings is declared as raw, the table's is raw, logs"],
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
            NO_TIERS,
            {"stats": "stats", "window": HOURLY},
            [
                "the family of aggregates is declared as stats, the table's is none",
                "the shortest window is declared as 1h, the table's is none",
            ],
        ),
        (TableSchema.for_new_table(), {"default": True}, []),
        (parse_schema('policies.raw = "never"\nrate.every = "1s"\nmetrics.t.unit = "m"'), {"default": True}, []),
        (TableSchema.default(raw="r"), {"default": True, "raw": "r"}, []),
        (
            OTHER_KEY,
            {"default": True},
            [
                "--schema=default: key is '{sensor_id}#{reverse_ms}', wanted '{sensor_id}#{reverse_us}'",
                "--schema=default: values is 'float64', wanted 'text'",
            ],
        ),
    ],
)
def test_declared_by_flags(table, declared, phrases):
    """Each flag that contradicts the table is a phrase with both values; flags that are not set leave all to it."""
    assert list(DeclaredSchema(**declared).disagreements(table)) == phrases


def test_default_schema_with_declared_names():
    """The default schema takes families and window from the flags, which may not contradict each other."""
    declared = DeclaredSchema(raw="r", stats="s", meta="m", window=Window.parse("15m"))
    assert declared.schema() == TableSchema.default("r", "s", "m", Window.parse("15m"))
    with pytest.raises(SchemaError, match="family raw is already used by metrics"):
        DeclaredSchema(stats="raw").schema()
