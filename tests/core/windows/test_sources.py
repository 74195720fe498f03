"""From which tiers the others are computed, and which tiers are refused."""

import pytest

from pipeline.core.schema.table_schema import SchemaError
from pipeline.core.schema.toml import document_of, format_schema, parse_schema
from pipeline.core.windows import chains, parse_window, sources


def schema(*windows):
    tiers = ", ".join(f'"{text}" = "f{number}"' for number, text in enumerate(windows))
    return parse_schema(f"tiers = {{ {tiers} }}")


def texts(*windows):
    """Returns each tier's source by text, and the chains."""
    of_tier = tuple(tier.window for tier in schema(*windows).tiers)
    by_text = {
        longer.text: of_tier[source].text
        for longer, source in zip(of_tier, sources(of_tier), strict=True)
        if source >= 0
    }
    return by_text, [[of_tier[index].text for index in chain] for chain in chains(of_tier)]


@pytest.mark.parametrize(
    ("windows", "expected", "nested"),
    [
        (["1h"], {}, [["1h"]]),
        (["15m", "1h", "1d"], {"1h": "15m", "1d": "1h"}, [["15m", "1h", "1d"]]),
        (["10m", "20m", "30m"], {"20m": "10m", "30m": "10m"}, [["10m", "30m"], ["20m"]]),
        (
            ["1h", "1d", "1d@Europe/Berlin", "1d@America/New_York"],
            {"1d": "1h", "1d@Europe/Berlin": "1h", "1d@America/New_York": "1h"},
            [["1h", "1d@Europe/Berlin"], ["1d"], ["1d@America/New_York"]],
        ),
        (
            ["30m", "1h", "1d@Asia/Kolkata", "1d@Europe/Berlin", "1w@Asia/Kolkata", "1mo@Asia/Kolkata"],
            {
                "1h": "30m",
                "1d@Asia/Kolkata": "30m",
                "1d@Europe/Berlin": "1h",
                "1w@Asia/Kolkata": "1d@Asia/Kolkata",
                "1mo@Asia/Kolkata": "1d@Asia/Kolkata",
            },
            [["30m", "1d@Asia/Kolkata", "1mo@Asia/Kolkata"], ["1h", "1d@Europe/Berlin"], ["1w@Asia/Kolkata"]],
        ),
        (["1h", "1mo@Europe/Berlin"], {"1mo@Europe/Berlin": "1h"}, [["1h", "1mo@Europe/Berlin"]]),
        (["1d", "1w", "1mo"], {"1w": "1d", "1mo": "1d"}, [["1d", "1mo"], ["1w"]]),
    ],
)
def test_sources_and_chains(windows, expected, nested):
    """Each tier is computed from the longest one that fits; tiers that contain each other form chains."""
    found, of_tier = texts(*windows)
    assert found == expected
    assert sorted(of_tier) == sorted(nested)
    assert of_tier[0][0] == windows[0]


@pytest.mark.parametrize(
    "zone", ["Europe/Berlin", "Asia/Kolkata", "Asia/Kathmandu", "Australia/Lord_Howe", "Pacific/Apia"]
)
@pytest.mark.parametrize("unit", ["1d", "1w", "1mo"])
def test_a_source_fits(zone, unit):
    """Every start of a window is that of one of its source, in every year."""
    window = parse_window(f"{unit}@{zone}")
    fits = [text for text in ("1m", "15m", "30m", "1h", "1d") if parse_window(text).is_source_of(window)]
    assert (
        fits
        == ["1m", "15m", "30m", "1h"][: {"Asia/Kathmandu": 2, "Asia/Kolkata": 3, "Australia/Lord_Howe": 3}.get(zone, 4)]
    )
    source = parse_window(fits[-1])
    for start_us in window.starts(946_684_800_000_000, 2_240_524_800_000_000):
        assert source.start_of(start_us) == start_us


@pytest.mark.parametrize(
    ("windows", "problem"),
    [
        (
            ["1h", "1d@Asia/Kolkata"],
            "tiers: windows of 1h do not fit into 1d@Asia/Kolkata: the offsets of Asia/Kolkata since 2000, +05:30, are "
            "multiples of 30m; add a tier of 30m, or of a length that divides it",
        ),
        (
            ["20m", "1w@Australia/Lord_Howe"],
            "tiers: windows of 20m do not fit into 1w@Australia/Lord_Howe: the offsets of Australia/Lord_Howe since "
            "2000, +10:30, +11:00, are multiples of 30m; add a tier of 10m, or of a length that divides it",
        ),
        (
            ["1d@Asia/Kathmandu", "1mo@Asia/Kathmandu"],
            "tiers: 1d@Asia/Kathmandu is computed from shorter windows, and there is no tier of them; add a tier of "
            "15m, or of a length that divides it",
        ),
        (
            ["1w"],
            "tiers: 1w is computed from shorter windows, and there is no tier of them; add a tier of 1d, or of a "
            "length that divides it",
        ),
        (
            ["1h", "1d@Europe/Berln"],
            "tiers.1d@Europe/Berln: 'Europe/Berln' is not a time zone; did you mean Europe/Berlin?",
        ),
        (["1h", "1d", "1d@UTC"], "tiers: two tiers have the same window, 1d"),
        (["1h", "1w", "1w@UTC"], "tiers: two tiers have the same window, 1w"),
        (["2h", "3h"], "tiers: 2h does not divide 3h, which is computed from it"),
    ],
)
def test_refused(windows, problem):
    """The arithmetic, and the tier that would do."""
    with pytest.raises(SchemaError) as error:
        schema(*windows)
    assert str(error.value) == problem


@pytest.mark.parametrize("wanted", [["10m", "1h", "1d@Asia/Kolkata"], ["15m", "1d@Asia/Kathmandu"], ["1d", "1w"]])
def test_the_advice_helps(wanted):
    """With the tier that the message names, the schema is valid."""
    assert schema(*wanted).tiers[-1].window.text == wanted[-1]


def test_toml():
    """Windows with a zone are quoted; without, the message says so. What is written reads back."""
    found = schema("1h", "1mo@Europe/Berlin", "1d@Europe/Berlin", "1w@UTC")
    assert list(document_of(found)["tiers"]) == ["1h", "1d@Europe/Berlin", "1w", "1mo@Europe/Berlin"]
    assert '"1d@Europe/Berlin" = "f2"' in format_schema(found)
    assert parse_schema(format_schema(found)) == found
    with pytest.raises(SchemaError, match='quote the window: "1d@Europe/Berlin" = …'):
        parse_schema('[tiers]\n1h = "stats"\n1d@Europe/Berlin = "berlin"\n')
