import pytest

from pipeline.core.rows.rollup_rows import parse_rollup_key, rollup_key
from pipeline.core.schema.gc_policies import format_policy
from pipeline.core.schema.rollup import Rollup, decoded_values, encoded_value
from pipeline.core.schema.table_schema import SchemaError, TableSchema
from pipeline.core.schema.toml import format_schema, parse_schema
from pipeline.core.windows import HOURLY


@pytest.mark.parametrize(
    ("values", "encoded"),
    [
        (["north"], "north"),
        (["Halle 7/Süd#1", "a~b._-"], "Halle%207%2FS%C3%BCd%231/a~b._-"),
        ([""], ""),
        (["n" * 200], "n" * 200),
        (["n" * 201], "n" * 180 + "+291c4194382c6bd5"),
        (["n" * 202], "n" * 180 + "+5b074d71f7a16acc"),
    ],
)
def test_encoded_value(values, encoded):
    """A group's value has no character with a meaning in row keys, and at most 200 bytes."""
    assert encoded_value(values) == encoded
    assert decoded_values(encoded) == ([f"{values[0][:180]}…"] if "+" in encoded else values)
    key = rollup_key(HOURLY, "site", encoded, 0)
    assert parse_rollup_key(HOURLY, key) == ("site", encoded, 0)


def test_the_group_of_a_sensor():
    """A sensor without one of the fields is in no group; all sensors are in the one of a roll-up by nothing."""
    assert Rollup("model", ("site", "model")).value_of({"model": "m/1", "site": "north", "floor": "2"}) == "north/m%2F1"
    assert Rollup("model", ("site", "model")).value_of({"site": "north"}) is None
    assert Rollup("fleet").value_of({}) == "all"


def test_a_value_that_was_shortened():
    """What is left of it can be read: no half of a character, and as many fields as there are."""
    assert decoded_values(encoded_value(["é" * 50, "m1"])) == ["é" * 30 + "…"]
    assert decoded_values(encoded_value(["n", "é" * 50])) == ["n", "é" * 29 + "…"]


# Roll-ups of a schema

THREE = """\
[tiers]
1h = "hours"
"1d@Europe/Berlin" = "days"
[rollups]
site = { by = "metadata.site", tiers = ["1d@Europe/Berlin", "60m"], metrics = ["temperature", "energy_*"] }
model = { by = ["metadata.site", "metadata.model"] }
fleet = { by = [], tiers = ["1h"] }
"""
ROLLUPS = "[rollups]\n"
SITE = '[rollups]\na = { by = "metadata.site" }\n'


def test_a_table_with_rollups():
    """Roll-ups name tiers as row keys do, and add one family. Their text has a line each, and their shards."""
    schema = parse_schema(THREE)
    site, model, fleet = schema.rollups
    assert site == Rollup("site", ("site",), ("1h", "1d@Europe/Berlin"), ("temperature", "energy_*"))
    assert model == Rollup("model", ("site", "model"), (), ("*",))
    assert schema.member_fields == ("model", "site")
    assert [schema.rollups_of(tier.window) for tier in schema.tiers] == [(site, model, fleet), (site, model)]
    assert schema.families[-1] == "rollup"
    assert format_policy(schema.policies["rollup"]) == "maxage=730d || maxversions=1"
    text = format_schema(schema)
    assert parse_schema(text) == schema
    assert (
        'model = {by = ["metadata.site", "metadata.model"]}\nfleet = {by = [], tiers = ["1h"]}\nshards = 256\n' in text
    )


def test_shards():
    """The number of shards follows from that of sensors unless it is declared, or the table has one already."""
    rate = '[rate]\nevery = "1m"\nsensors = 1000000'
    assert parse_schema(SITE).shards_of_rollups == 256
    assert parse_schema(SITE + rate).rollup_shards == 512
    assert parse_schema(SITE + "shards = 7\n" + rate).rollup_shards == 7
    assert parse_schema(SITE + rate, parse_schema(SITE)).rollup_shards == 256
    assert parse_schema(SITE + "shards = 7\n", parse_schema(SITE)).rollup_shards == 7
    assert parse_schema(SITE + rate.replace("1m", "1ms")).rollup_shards == 512
    assert parse_schema(SITE + rate.replace("1000000", "1000")).rollup_shards == 64
    assert parse_schema(SITE + rate.replace("1000000", "1000000000")).rollup_shards == 4096
    assert parse_schema("").rollup_shards is None


def test_shards_without_rollups():
    """A table keeps its number for roll-ups that are added again; a person can't declare one for none."""
    kept = parse_schema("", parse_schema(SITE))
    assert "shards = 256" in format_schema(kept)
    assert parse_schema(format_schema(kept)) == parse_schema(format_schema(kept, for_new_table=True), kept) == kept
    for current in (TableSchema.for_new_table(), kept):
        with pytest.raises(SchemaError) as caught:
            parse_schema("[rollups]\nshards = 256", current)
        assert str(caught.value) == (
            "rollups.shards: is for the sensors of roll-ups, and there are none: add one, like "
            'site = { by = "metadata.site" }, or leave it out'
        )


@pytest.mark.parametrize(
    "text",
    [
        'key = "{metadata.site}#{sensor_id}#{reverse_us}"\n[metadata]\n' + SITE,
        'layout = "serialized"\n' + SITE,
        '[metadata]\nmeta = ["si*"]\n' + SITE,
        '[policies]\nraw = "maxage=7d"\nmeta = "maxage=7d"\n' + SITE,
    ],
)
def test_raw_rows_keep_fields_of_rollups(text):
    """A field may be in the row key, in the event, or in a family that keeps it as long as readings."""
    assert parse_schema(text).member_fields == ("site",)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rollups = 1", "rollups: must be a table: [rollups]"),
        (
            "[tiers]\n" + SITE,
            "rollups: are computed from aggregates, and the table has no tiers; add one, or leave them out",
        ),
        (
            '[tiers]\n1h = "rollup"\n' + SITE,
            "rollups: family rollup is already used by tiers; each needs its own",
        ),
        (
            '[metadata]\nmeta = ["floor"]\n' + SITE,
            "rollups.a: raw rows don't keep metadata.site, which late data needs: add it to a family of [metadata]",
        ),
        (
            '[policies]\nmeta = "maxage=7d"\n' + SITE,
            "rollups.a: late data needs metadata.site as long as there are readings, and meta is collected before "
            "them, after 7d: keep it as long",
        ),
        (
            '[metrics]\nraw = ["temp_*", "h"]\n[rollups]\na = { by = [], metrics = ["temp*", "energy"] }',
            "rollups.a.metrics: no family of [metrics] takes 'energy'; name metrics that the table stores",
        ),
        (ROLLUPS + "a = 1", 'rollups.a: takes a table, like { by = "metadata.site" }'),
        (
            ROLLUPS + "a = {}",
            'rollups.a.by: is needed: a metadata field, like "metadata.site", a list, or [] for all sensors',
        ),
        (ROLLUPS + 'a = { by = [], of = "x" }', "rollups.a.of: there is no such key; the keys are by, tiers, metrics"),
        (
            ROLLUPS + 'a = { by = ["metadata.a", "site"] }',
            "rollups.a.by: takes \"metadata.site\", or a list of such names, or [] for all sensors, not ['metadata.a', "
            "'site']",
        ),
        (
            ROLLUPS + 'a = { by = "metadata.7" }',
            "rollups.a.by: metadata.'7' is not a metadata field: no event can have a field of this name",
        ),
        (ROLLUPS + 'a = { by = ["metadata.a", "metadata.a"] }', "rollups.a.by: names the same field twice"),
        (
            ROLLUPS + 'a = { by = ["metadata.a", "metadata.b", "metadata.c", "metadata.d", "metadata.e"] }',
            "rollups.a.by: 5 fields are more than 4",
        ),
        (ROLLUPS + 'a = { by = [], tiers = ["1d"] }', "rollups.a.tiers: the table has no tier 1d; its tiers are 1h"),
        (
            ROLLUPS + "a = { by = [], tiers = [] }",
            'rollups.a.tiers: takes a list, like ["1h", "1d"], not []; leave it out for all',
        ),
        (
            ROLLUPS + 'a = { by = [], metrics = "t" }',
            'rollups.a.metrics: takes a list, like ["temperature", "energy_*"], not \'t\'; leave it out for all',
        ),
        (ROLLUPS + "shards = 0", "rollups.shards: takes a whole number from 1 to 4,096, not 0"),
        (
            ROLLUPS + '"a b" = { by = [] }',
            "rollups.a b: a name has 1 to 64 of A-Za-z0-9_.- and begins with a letter or a digit",
        ),
        (
            ROLLUPS + "\n".join(f"a{number} = {{ by = [] }}" for number in range(17)),
            "rollups: 17 roll-ups are more than 16",
        ),
    ],
)
def test_invalid_rollups(text, problem):
    """A roll-up that can't be computed from the table's rows is refused in a line that begins with the wrong key."""
    with pytest.raises(SchemaError) as caught:
        parse_schema(text)
    assert str(caught.value) == problem
    parse_schema(ROLLUPS + "\n".join(f"a{number} = {{ by = [] }}" for number in range(16)))
