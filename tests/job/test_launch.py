"""What ``python -m pipeline`` says and returns before it reads a message."""

import shlex
import subprocess
import sys

import apache_beam as beam
import pytest
from click.testing import CliRunner

from pipeline.cloud import tables
from pipeline.cloud.names import TableName
from pipeline.core.schema.policies import format_policy, parse_policy
from pipeline.job.launch import main
from pipeline.toolbox.cli import main as toolbox
from tests.job.running import PROJECT

NOBODY = "127.0.0.1:1"


@pytest.fixture
def no_run(monkeypatch):
    """Fails a test in which a pipeline runs."""

    def run(*_, **__):
        raise AssertionError("the pipeline was run")

    monkeypatch.setattr(beam.Pipeline, "run", run)


def refusal(capsys, flags):
    """The exit code and the one line on standard error."""
    code = main(flags)
    printed = capsys.readouterr()
    lines = printed.err.strip().splitlines()
    assert len(lines) == 1, printed.err
    assert lines[0].startswith("tidetable: ")
    return code, lines[0]


def test_missing_table(resources, capsys, no_run):
    """A table that is not there is one line that gives the command to create it."""
    code, line = refusal(capsys, resources.flags(bigtable_table="nowhere"))
    assert code == 1
    assert f"table projects/{PROJECT}/instances/instance/tables/nowhere does not exist" in line
    assert f"tidetable table create --project {PROJECT} --instance instance --table nowhere" in line


def test_missing_family(resources, capsys, no_run):
    """A missing family is named, beside those that are there."""
    code, line = refusal(capsys, resources.flags(stats_family="numbers", meta_family="labels"))
    assert code == 1
    assert "has no family numbers, labels (it has meta, raw, stats)" in line


def test_families_of_other_names(resources, capsys, no_run):
    """Families are checked under the names that the flags give them."""
    name = resources.table
    policy = parse_policy("maxversions=1")
    tables.create(TableName(name.project, name.instance, "renamed"), dict.fromkeys(("r", "s", "m"), policy))
    missing = f"projects/{PROJECT}/subscriptions/nowhere"
    renamed = {"bigtable_table": "renamed", "raw_family": "r", "stats_family": "s", "meta_family": "m"}
    code, line = refusal(capsys, resources.flags(**renamed, input_subscription=missing))
    assert (code, line) == (1, f"tidetable: subscription {missing} does not exist")


def test_the_advice_leaves_policies_and_names_as_they_are(resources, capsys, no_run):
    """The command that is advised keeps what is there: it names renamed families and policies that are not default."""
    name = TableName(PROJECT, "instance", "kept")
    tables.create(name, {"raw": parse_policy("maxage=3650d"), "numbers": parse_policy("maxage=730d")})
    _, line = refusal(capsys, resources.flags(bigtable_table="kept", stats_family="numbers"))
    arguments = shlex.split(line.partition("with: tidetable ")[2])
    assert arguments[-5:] == ["--stats-family", "numbers", "--gc", "raw=maxage=3650d", "--apply"]
    assert CliRunner().invoke(toolbox, arguments).exit_code == 0
    assert {family: format_policy(policy) for family, policy in tables.describe(name).items()} == {
        "raw": "maxage=3650d",
        "numbers": "maxage=730d",
        "meta": "maxage=90d",
    }


def test_missing_subscription(resources, capsys, no_run):
    """A subscription that is not there is one line."""
    missing = f"projects/{PROJECT}/subscriptions/nowhere"
    code, line = refusal(capsys, resources.flags(input_subscription=missing))
    assert (code, line) == (1, f"tidetable: subscription {missing} does not exist")


@pytest.mark.parametrize("flag", ["input_topic", "dead_letter_topic"])
def test_missing_topic(resources, capsys, no_run, flag):
    """A topic that is not there is one line, be it for reading or for dead letters."""
    missing = f"projects/{PROJECT}/topics/nowhere"
    flags = resources.flags(**{flag: missing})
    if flag == "input_topic":
        flags = [each for each in flags if not each.startswith("--input_subscription")]
    code, line = refusal(capsys, flags)
    assert (code, line) == (1, f"tidetable: topic {missing} does not exist")


@pytest.mark.parametrize("variable", ["BIGTABLE_EMULATOR_HOST", "PUBSUB_EMULATOR_HOST"])
def test_unreachable_server(resources, capsys, no_run, monkeypatch, variable):
    """A server that is not there is told within seconds."""
    monkeypatch.setenv(variable, NOBODY)
    code, line = refusal(capsys, resources.flags())
    assert code == 1
    assert "the server cannot be reached" in line


def test_no_credentials(resources, capsys, no_run, monkeypatch):
    """Without credentials and without emulators, the line says how to get either."""
    monkeypatch.delenv("BIGTABLE_EMULATOR_HOST")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent.json")
    code, line = refusal(capsys, resources.flags())
    assert code == 1
    assert "gcloud auth application-default login" in line


def test_bad_flag(capsys, no_run):
    """A bad flag is one line and the exit code of wrong usage, and no server is asked."""
    assert refusal(capsys, ["--window=7h"])[0] == 2


def test_no_checks(resources, monkeypatch):
    """With --launch_checks=off nobody is asked: the pipeline is run at once."""
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", NOBODY)
    ran = []
    monkeypatch.setattr("pipeline.job.launch.run_until_stopped", lambda *asked: ran.append(asked) or 0)
    assert main(resources.flags(launch_checks="off")) == 0
    assert len(ran) == 1


def test_no_credentials_and_no_checks(resources, capsys, no_run, monkeypatch):
    """Unasked, the servers are met when the job starts: that too is one line."""
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent.json")
    code, line = refusal(capsys, resources.flags(launch_checks="off"))
    assert code == 1
    assert "gcloud auth application-default login" in line


def test_as_a_process(resources):
    """The command itself prints one line on standard error, nothing on standard output, and fails."""
    finished = subprocess.run(
        [sys.executable, "-m", "pipeline", *resources.flags(bigtable_table="nowhere")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 1
    assert finished.stdout == ""
    assert len(finished.stderr.strip().splitlines()) == 1
