import pytest

from pipeline.core.schema.changes import changes
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import format_schema, parse_schema

DEFAULT = parse_schema("")
INSTEAD = (
    "create another table with the new schema, and let the pipeline write to both: --bigtable-table may be repeated"
)


def found_changes(stored, requested):
    return [(str(change), change.safe) for change in changes(parse_schema(stored), parse_schema(requested))]


def test_statistics_are_lists():
    """A difference shows statistics as the TOML does."""
    [(shown, _)] = found_changes('[statistics]\nt = ["min", "max"]', '[statistics]\nt = ["min"]')
    assert shown == "statistics.t is ['min', 'max'], wanted ['min']"


def test_nothing_changes():
    """The same schema, however it is written, is no change."""
    assert changes(DEFAULT, DEFAULT) == []
    assert changes(parse_schema(format_schema(DEFAULT)), TableSchema.default()) == []
    assert found_changes('[tiers]\n60m = "stats"', '[tiers]\n1h = "stats"') == []
    assert (
        found_changes(
            '[policies]\nraw = "maxage=24h || maxversions=1"', '[policies]\nraw = "maxversions=1 or maxage=1d"'
        )
        == []
    )


@pytest.mark.parametrize(
    ("stored", "requested", "changed"),
    [
        ("", '[policies]\nraw = "maxage=7d"', ["policies.raw is 'maxage=90d', wanted 'maxage=7d'"]),
        (
            "",
            '[policies]\nstats = "never"',
            ["policies.stats is 'maxage=730d || maxversions=1', wanted 'maxversions=1'"],
        ),
        (
            "",
            '[metrics]\nraw = ["*"]\nlogs = ["log_*"]',
            ["metrics.logs is absent, wanted ['log_*']", "policies.logs is absent, wanted 'maxage=90d'"],
        ),
        ('[metrics]\nraw = ["t"]', '[metrics]\nraw = ["t", "h"]', ["metrics.raw is ['t'], wanted ['t', 'h']"]),
        (
            '[metrics]\nraw = ["*"]\nlogs = ["log_*"]',
            '[metrics]\nlogs = ["log_*"]\nraw = ["*"]',
            ["metrics is ['raw', 'logs'], wanted ['logs', 'raw']"],
        ),
        (
            "[metadata]\n",
            "",
            ["metadata.meta is absent, wanted ['*']", "policies.meta is absent, wanted 'maxage=90d'"],
        ),
        (
            "",
            '[tiers]\n1h = "stats"\n1d = "days"',
            ["tiers.1d is absent, wanted 'days'", "policies.days is absent, wanted 'maxage=730d || maxversions=1'"],
        ),
        ("", '[rate]\nevery = "1s"', ["rate is absent, wanted {'every': '1s', 'metrics': 1, 'metadata': 0}"]),
        ("", '[metrics.t]\nunit = "m"', ["metrics.t.unit is absent, wanted 'm'"]),
        ('[metrics.t]\nunit = "m"', "", ["metrics.t.unit is 'm', wanted absent"]),
        ("", "metadata_alone = true", ["metadata_alone is absent, wanted True"]),
        ("metadata_alone = true", "", ["metadata_alone is True, wanted absent"]),
        ('[rate]\nevery = "1s"', "", ["rate is {'every': '1s', 'metrics': 1, 'metadata': 0}, wanted absent"]),
    ],
)
def test_safe(stored, requested, changed):
    """Changes of policies, globs, units, the rate and metadata alone are safe, and so are new families and tiers."""
    assert found_changes(stored, requested) == [(change, True) for change in changed]


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
            '[metrics]\nreadings = ["*"]',
            "metrics.raw is ['*'], wanted absent",
            "the family may contain readings, and no reader would look for them there any more",
        ),
        (
            "",
            "[tiers]\n",
            "tiers.1h is 'stats', wanted absent",
            "the family may contain aggregates, and no reader would look for them there any more",
        ),
        (
            "",
            '[tiers]\n1h = "hours"',
            "tiers.1h is 'stats', wanted 'hours'",
            "the family may contain aggregates, and no reader would look for them there any more",
        ),
    ],
)
def test_unsafe(stored, requested, change, why):
    """Changes that would lose rows are refused with the reason and an alternative."""
    (unsafe,) = (each for each in changes(parse_schema(stored), parse_schema(requested)) if not each.safe)
    assert str(unsafe) == change
    assert unsafe.refusal == f"{change}: {why}; {INSTEAD}"


def test_a_family_that_moves():
    """A family of readings can't become a family of metadata."""
    requested = parse_schema('[metrics]\nmeta = ["*"]\n[metadata]\nraw = ["*"]')
    assert [change.key for change in changes(DEFAULT, requested) if not change.safe] == ["metrics.raw", "metadata.meta"]


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
    actual, wanted = (parse_schema(f"[statistics]\n{rules}") for rules in (before, after))
    found = changes(actual, wanted)
    assert found
    assert all(change.safe for change in found) is safe


SITE = 'site = { by = "metadata.site", tiers = ["1h"], metrics = ["t"] }\n'
SHOWN = "{'by': 'metadata.site', 'tiers': ['1h'], 'metrics': ['t']}"


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        (
            "",
            SITE,
            [f"rollups.site is absent, wanted {SHOWN}", "rollups.shards is absent, wanted 256"],
        ),
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
    """Roll-ups may be added, dropped, and have other tiers and metrics; only what they mean counts."""
    tiers = '[tiers]\n1h = "hours"\n1d = "days"\n[rollups]\n'
    found = changes(parse_schema(tiers + before), parse_schema(tiers + after))
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
    (change,) = changes(parse_schema("[rollups]\n" + SITE), parse_schema("[rollups]\n" + after))
    assert not change.safe
    assert change.refusal == refusal
