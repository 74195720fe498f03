"""The command ``tidetable plan``."""

import json

import pytest
from click.testing import CliRunner

from pipeline.cli.root import main

FLEET = ("--sensor-count", "1000000", "--interval", "1m", "--metrics", "4")


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
    result = run(*FLEET, "--schema", str(schema), "--prices", str(prices), "--format=json")
    assert result.exit_code == 0
    record = json.loads(result.stdout)
    assert list(record["tiers"]) == ["1h", "1d", "newest readings"]
    assert record["costs_a_month"] == {
        years: {"Bigtable nodes": nodes * 365} for years, nodes in record["nodes"].items()
    }
    assert record["hottest_tablet"] == 1
    assert "begins with the time" in record["notes"][0]


def test_a_hundred_million_sensors():
    """A fleet of a hundred million sensors is estimated; what it passes is named, and the exit code is 1."""
    fleet = ("--sensor-count", "100000000", "--interval", "1s")
    result = run(*fleet, "--format=json")
    assert result.exit_code == 1
    (limit,) = json.loads(result.stdout)["limits_passed"]
    assert "over the 60 GB of a region's quota" in limit
    assert f"limit passed: {limit}\n" in run(*fleet).output


def test_what_costs_more_than_the_rest():
    """Such a cause is a line, and the exit code is 1; all of the plan is printed."""
    fleet = (*FLEET, "--metrics", "3", "--late", "0.5")
    result = run(*fleet, "--format=json")
    assert result.exit_code == 1
    record = json.loads(result.stdout)
    assert record["limits_passed"] == []
    (line,) = record["more_than_the_rest"]
    text = run(*fleet)
    assert text.exit_code == 1
    assert f"more than the rest together: {line}\n" in text.output
    assert "where the job runs" in text.output


def test_late_events_are_counted():
    """One event of a thousand is late unless --late has another share; with 0, none is."""
    default, none = (json.loads(run(*FLEET, *late, "--format=json").stdout) for late in ((), ("--late", "0")))
    assert default["late"]["events_per_second"] == pytest.approx(0.001 * default["events_per_second"])
    assert none["late"]["panes_per_second"] == 0
    assert default["vcpus"] > none["vcpus"]
    assert "late events a second" in run(*FLEET).output
    assert "late events a second" not in run(*FLEET, "--late", "0").output


def test_dataflow_beside_one_machine(tmp_path):
    """Both are printed, with what their machines are, which is cheaper, and the option of the launch."""
    prices = tmp_path / "prices.toml"
    prices.write_text("dataflow_vcpu_hour = 0.08\nvm_vcpu_hour = 0.03\nbigtable_node_hour = 0.65")
    small = ("--sensor-count", "10000", "--interval", "1m")
    record = json.loads(run(*small, "--prices", str(prices), "--format=json").stdout)
    assert record["worker"]["name"] == "n1-standard-1"
    assert record["one_machine"]["machine_type"]["name"] == "e2-small"
    assert record["costs_a_month_on_one_machine"]["1"] == {"Bigtable nodes": 474.5, "VM": pytest.approx(10.95)}
    assert record["cheaper"] == "one machine"
    output = run(*small, "--prices", str(prices)).output
    for text in (
        "make launch MACHINE_TYPE=n1-standard-1",
        "532.90",
        "485.45",
        "cheaper: one machine, by 47.45 a month\n",
    ):
        assert text in output
    large = run(*FLEET).output
    assert "one machine does not carry this: " in large
    assert "cheaper" not in large
    assert "MACHINE_TYPE" not in large


def test_what_numbers_contain():
    """What is added to a message's bytes, and left out of those stored, stands beside the tables."""
    output = " ".join(
        run(
            "--sensor-count", "1", "--interval", "1m", "--metrics", "8", "--metadata-fields", "3", "--batch", "6"
        ).output.split()
    )
    assert "A message of 2,284 bytes is billed as 2,438 when published, and again when delivered" in output
    assert "Bytes are those of requests: 541 for an event's raw rows. Of these 420 are stored" in output


def test_groups_that_the_schema_does_not_declare(tmp_path):
    """The figures are those of a schema that declares the rate; a schema that makes other groups is told."""
    (schema := tmp_path / "schema.toml").write_text('[rate]\nevery = "1m"\nsensors = 1_000_000')
    for args, notes in (((), 1), (("--schema", str(schema)), 0)):
        record = json.loads(run(*FLEET, *args, "--format=json").stdout)
        assert record["groups"]["groups"] == 1024
        assert len([note for note in record["notes"] if "sensors = 1000000" in note]) == notes


def test_a_window_too_large_for_state(tmp_path):
    """What a launch would refuse is a limit, not a note."""
    (schema := tmp_path / "schema.toml").write_text('tiers = { 6h = "stats" }')
    result = run(
        "--sensor-count", "1", "--interval", "10ms", "--metrics", "4", "--schema", str(schema), "--format=json"
    )
    assert result.exit_code == 1
    record = json.loads(result.stdout)
    assert "86.4 MB of state" in record["limits_passed"][0]
    assert not any("tiers" in note for note in record["notes"])


def test_a_table_without_windows(tmp_path):
    """Without windows there are no groups, no panes and no restart."""
    (schema := tmp_path / "schema.toml").write_text("tiers = {}")
    record = json.loads(run(*FLEET, "--schema", str(schema), "--format=json").stdout)
    assert record["groups"] is None
    assert record["vcpus_for_panes"] == record["state_bytes"] == record["restart"]["windows"] == 0
    assert run(*FLEET, "--schema", str(schema)).exit_code == 0


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("--sensor-count", "0"), "--sensor-count"),
        (("--sensor-count", "100000001"), "--sensor-count"),
        (("--interval", "0"), "--interval"),
        (("--metrics", "0"), "--metrics"),
        (("--metrics", "a,a"), "twice"),
        (("--metrics", "a,#"), "not a name"),
        (("--batch", "0"), "--batch"),
        (("--schema", "{bad}"), "no such key"),
        (("--prices", "{bad}"), "not a price"),
        (("--metrics", "a", "--schema", "{globs}"), "matches none of the families"),
        (("--interval", "1ms", "--schema", "{coarse}"), "would share a cell"),
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


def test_roll_ups(tmp_path):
    """The plan of a table with roll-ups has a table of them, and takes the number of their groups."""
    path = tmp_path / "schema.toml"
    path.write_text('[rollups]\nsite = { by = "metadata.site" }')
    arguments = ["--sensor-count", "1000", "--interval", "1m", "--rollup-groups", "7", "--schema", str(path)]
    text = run(*arguments).stdout
    assert "roll-ups" in text
    assert "rows read a second" in text
    assert json.loads(run(*arguments, "--format=json").stdout)["rollups"]["groups"] == 7
