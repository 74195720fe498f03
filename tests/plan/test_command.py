"""The command ``tidetable plan``."""

import json

import pytest
from click.testing import CliRunner

from pipeline.cli.root import main

FLEET = ("--sensors", "1000000", "--every", "1m", "--metrics", "4")


def run(*args):
    return CliRunner().invoke(main, ["plan", *args])


def test_tables():
    """Prints a table for each part, without costs."""
    result = run(*FLEET)
    assert result.exit_code == 0
    for text in ("16,667 events a second", "Pub/Sub", "Bigtable writes", "maxage=90d", "estimated", "hottest"):
        assert text in result.output
    assert "cost" not in result.output


def test_json_with_prices_and_schema(tmp_path):
    """One line of JSON has every figure, with costs where there are prices, of the schema's tiers."""
    (prices := tmp_path / "prices.toml").write_text("bigtable_node_hour = 0.5")
    (schema := tmp_path / "schema.toml").write_text('key = "{iso_us}#{sensor_id}"\ntiers = { 1h = "h", 1d = "d" }')
    result = run(*FLEET, "--schema", str(schema), "--prices", str(prices), "--json")
    assert result.exit_code == 0
    record = json.loads(result.stdout)
    assert list(record["tiers"]) == ["1h", "1d"]
    assert record["costs_a_month"] == {"Bigtable nodes": record["nodes"] * 365}
    assert record["hottest_tablet"] == 1
    assert "begins with the time" in record["notes"][0]


def test_a_hundred_million_sensors():
    """A fleet of a hundred million sensors is estimated."""
    assert run("--sensors", "100000000", "--every", "1s", "--json").exit_code == 0


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("--sensors", "0"), "--sensors"),
        (("--sensors", "100000001"), "--sensors"),
        (("--every", "0"), "--every"),
        (("--metrics", "0"), "--metrics"),
        (("--metrics", "a,a"), "twice"),
        (("--metrics", "a,#"), "not a name"),
        (("--batch", "0"), "--batch"),
        (("--schema", "{bad}"), "no such key"),
        (("--prices", "{bad}"), "not a price"),
        (("--metrics", "a", "--schema", "{globs}"), "matches none of the families"),
        (("--every", "1ms", "--schema", "{coarse}"), "would share a cell"),
    ],
)
def test_bad_input(args, problem, tmp_path):
    """Bad input is one line, and exit code 2."""
    files = {"bad": "x = 1", "globs": '[metrics]\nraw = ["t_*"]', "coarse": 'key = "{sensor_id}#{reverse_s}"'}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    result = run(*FLEET, *(arg.format(**{name: tmp_path / name for name in files}) for arg in args))
    assert result.exit_code == 2
    assert problem in result.stderr
    assert len(result.stderr.partition("Error: ")[2].splitlines()) == 1
