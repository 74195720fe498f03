"""What ``python -m pipeline`` prints and returns before it reads a message."""

import shlex
import subprocess
import time
import uuid
from dataclasses import replace

import apache_beam as beam
import pytest
from click.testing import CliRunner

from pipeline.cli.root import main as toolbox
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import tables
from pipeline.cloud.tables.retention_notes import record_added_tiers, retention_of
from pipeline.cloud.tables.schema_store import text_of, write_schema
from pipeline.core.schema.changes import DeclaredSchema
from pipeline.core.schema.gc_policies import format_policy, parse_policy
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.core.windows import Window
from pipeline.job.launch import main
from tests.job.running import PROJECT
from tests.support.preloaded import JOB

UNUSED_ADDRESS = "127.0.0.1:1"


@pytest.fixture
def no_run(monkeypatch):
    """Fails the test if a pipeline runs."""

    def run(*_, **__):
        raise AssertionError("the pipeline was run")

    monkeypatch.setattr(beam.Pipeline, "run", run)


@pytest.fixture
def ran(monkeypatch):
    """The targets of each job that would have run; none is run."""
    ran = []
    monkeypatch.setattr("pipeline.job.launch.run_until_stopped", lambda _, targets, *__: ran.append(targets) or 0)
    return ran


def refusal(capsys, flags):
    """Returns the exit code and the one line on standard error."""
    code = main(flags)
    printed = capsys.readouterr()
    lines = printed.err.strip().splitlines()
    assert len(lines) == 1, printed.err
    assert lines[0].startswith("tidetable: ")
    return code, lines[0]


def test_missing_table(resources, capsys, no_run):
    """A missing table is reported in one line with the command that creates it."""
    code, line = refusal(capsys, resources.flags(bigtable_table="nowhere"))
    assert code == 1
    assert f"table projects/{PROJECT}/instances/instance/tables/nowhere does not exist" in line
    assert f"tidetable table create --project {PROJECT} --instance instance --table nowhere" in line


def test_a_job_that_does_not_start(resources, capsys, no_run):
    """A job that fails to start writes no window, so nothing is noted in the table."""
    schema = parse_schema("tiers = { 1h = 'hours' }")
    name = resources.table_of(schema)
    record_added_tiers(name, ["hours"])
    missing = f"projects/{PROJECT}/subscriptions/nowhere"
    flags = resources.flags(bigtable_table=name.table, input_subscription=missing)
    assert refusal(capsys, flags)[0] == 1
    retention = retention_of(name, schema, tables.describe(name))
    assert not retention.counts(schema.tiers[0], time.time_ns() // 1000)


def test_a_status_file_that_can_not_be_written(resources, capsys, no_run, tmp_path):
    """A wrong path of the status file is refused in one line."""
    file = tmp_path / "missing" / "status.json"
    assert main(resources.flags(), file) == 2
    assert capsys.readouterr().err == f"tidetable: --status-file {file}: No such file or directory\n"


def test_missing_family(resources, capsys, no_run):
    """A missing family is named, with the existing ones."""
    name = resources.table_of(TableSchema.default(), stored=False)
    flags = resources.flags(bigtable_table=name.table, stats_family="numbers", meta_family="labels")
    code, line = refusal(capsys, flags)
    assert code == 1
    assert "has no family labels, numbers (it has meta, raw, stats)" in line


def run_advice(line):
    """Runs the suggested command, and returns its arguments."""
    arguments = shlex.split(line.partition("with: tidetable ")[2])
    done = CliRunner().invoke(toolbox, arguments)
    assert done.exit_code == 0, done.output
    return arguments


def test_the_advice_keeps_policies_and_names(resources, capsys, no_run):
    """The suggested command keeps the table: it names renamed families and policies other than the default."""
    name = TableName(PROJECT, "instance", "kept")
    tables.create_bare(name, {"raw": parse_policy("maxage=3650d"), "numbers": parse_policy("maxage=730d")})
    _, line = refusal(capsys, resources.flags(bigtable_table="kept", stats_family="numbers"))
    assert run_advice(line)[-4:] == ["--stats-family", "numbers", "--gc", "raw=maxage=3650d"]
    assert {family: format_policy(policy) for family, policy in tables.describe(name).items()} == {
        "raw": "maxage=3650d",
        "numbers": "maxage=730d || maxversions=1",
        "meta": "maxage=90d",
        "latest": "maxage=730d || maxversions=1",
        "tidetable": "never",
    }


def test_a_table_that_keeps_older_rows_of_windows(resources, capsys, ran):
    """The launch names the command that makes the table collect them; the job starts, since readers take the newest."""
    name = resources.table_of(TableSchema.default())
    kept = {family: "never" if family == "stats" else "maxage=90d" for family in ("raw", "meta", "stats")}
    tables.apply(
        name, tables.differences(tables.describe(name), {family: parse_policy(text) for family, text in kept.items()})
    )
    assert main(resources.flags(bigtable_table=name.table)) == 0
    warned = [line for line in capsys.readouterr().err.splitlines() if "older" in line or "newest" in line]
    assert len(warned) == 1
    assert "the policy of family stats is never" in warned[0]
    assert "tidetable table apply adds maxversions=1" in warned[0]
    tables.apply(name, tables.differences(tables.describe(name), tables.policies_of(TableSchema.default())))
    assert main(resources.flags(bigtable_table=name.table)) == 0
    assert "policy" not in capsys.readouterr().err


def test_the_advice_creates_a_matching_table(resources, capsys, ran):
    """After the suggested command for a missing table, the same flags start the job with their schema."""
    name = f"t-{uuid.uuid4().hex}"
    flags = resources.flags(bigtable_table=name, window="15m", stats_family="numbers", raw_family="r")
    run_advice(refusal(capsys, flags)[1])
    assert main(flags) == 0
    (target,) = ran.pop()
    declared = DeclaredSchema(raw="r", stats="numbers", window=Window.parse("15m")).schema()
    assert target.schema == replace(declared, latest="latest")


def test_the_advice_for_a_stored_schema(resources, capsys, ran):
    """The suggested command creates a family that the stored schema has and the table lacks."""
    schema = parse_schema(
        'layout = "tall"\nkey = "{metric}#{sensor_id}#{reverse_us}"\n'
        '[tiers]\n1h = "h"\n1d = "d"\n[rollups]\nall = { by = [] }'
    )
    name = resources.table_of(TableSchema.default())
    tables.apply(name, tables.differences(tables.describe(name), {"h": schema.policies["h"]}))
    write_schema(name, schema, over=text_of(TableSchema.default()))
    flags = resources.flags(bigtable_table=name.table)
    line = refusal(capsys, flags)[1]
    assert "has no family d, rollup (it has h, meta, raw, stats, tidetable)" in line
    run_advice(line)
    assert main(flags) == 0
    (target,) = ran.pop()
    assert target.schema == schema


def test_a_table_that_is_being_created(resources, capsys, ran):
    """An empty table with a schema's family but no schema may be about to get one: refused."""
    name = TableName(PROJECT, "instance", f"t-{uuid.uuid4().hex}")
    tables.create_bare(name, tables.policies_of(TableSchema.default("r")))
    flags = resources.flags(bigtable_table=name.table, raw_family="r")
    code, line = refusal(capsys, flags)
    assert code == 1
    assert f"table {name} is empty, and has the family of a schema but no schema yet" in line
    assert "--raw-family r (with --schema FILE" in line
    assert line.endswith("or set --schema=default")
    assert main([*flags, "--schema=default"]) == 0
    tall = parse_schema('layout = "tall"\nkey = "{metric}#{sensor_id}#{reverse_us}"\nmetrics.r = ["*"]')
    write_schema(name, tall)
    assert main(flags) == 0
    assert [target.schema for targets in ran for target in targets] == [TableSchema.default("r"), tall]


def test_the_second_table_is_missing(resources, capsys, no_run):
    """Every table is checked."""
    code, line = refusal(capsys, resources.flags(bigtable_table=f"{resources.table.table},nowhere"))
    assert code == 1
    assert "tables/nowhere does not exist" in line


def test_a_window_too_large_for_state(resources, capsys, ran):
    """At the declared rate a window would exceed what Dataflow stores: refused."""
    large = parse_schema('tiers = { 6h = "stats" }\n[rate]\nevery = "10ms"\nmetrics = 4')
    name = resources.table_of(large)
    code, line = refusal(capsys, resources.flags(bigtable_table=f"{resources.table.table},{name.table}"))
    assert code == 1
    assert f"table {name}: a sensor's window of 6h may take 2,160,000 events × 40 bytes = 86.4 MB of state" in line
    assert not ran
    fits = resources.table_of(parse_schema('tiers = { 6h = "stats" }\n[rate]\nevery = "10ms"\nmetrics = 3'))
    assert main(resources.flags(bigtable_table=fits.table)) == 0
    assert len(ran) == 1


def test_groups_too_large_to_commit(resources, capsys, ran):
    """At the declared rate and number of sensors Dataflow could not commit a group's firing: refused."""
    large = 'tiers = { 1d = "stats" }\n[rate]\nevery = "1s"\nmetrics = 20\nsensors = 250_000'
    name = resources.table_of(parse_schema(large))
    code, line = refusal(capsys, resources.flags(bigtable_table=name.table))
    assert code == 1
    assert f"table {name}: the largest of 2,048 groups may have 168 sensors × 1,4" in line
    assert not ran


def test_rows_of_roll_ups_too_large(resources, capsys, ran):
    """At the declared number of sensors a row of roll-ups would be larger than Bigtable recommends: refused."""
    large = '[rollups]\nall = { by = [] }\nshards = 1\n[rate]\nevery = "1h"\nmetrics = 2\nsensors = 1_000_000'
    name = resources.table_of(parse_schema(large))
    code, line = refusal(capsys, resources.flags(bigtable_table=name.table))
    assert code == 1
    assert f"table {name}: a row may have 1,000,000 sensors × " in line
    assert not ran


def test_missing_subscription(resources, capsys, no_run):
    """A missing subscription is reported in one line."""
    missing = f"projects/{PROJECT}/subscriptions/nowhere"
    code, line = refusal(capsys, resources.flags(input_subscription=missing))
    assert (code, line) == (1, f"tidetable: subscription {missing} does not exist")


@pytest.mark.parametrize("flag", ["input_topic", "dead_letter_topic", "results_topic"])
def test_missing_topic(resources, capsys, no_run, flag):
    """A missing topic is reported in one line, whether for reading, for dead letters or for results."""
    missing = f"projects/{PROJECT}/topics/nowhere"
    flags = resources.flags(**{flag: missing})
    if flag == "input_topic":
        flags = [each for each in flags if not each.startswith("--input_subscription")]
    code, line = refusal(capsys, flags)
    assert (code, line) == (1, f"tidetable: topic {missing} does not exist")


def test_dead_letters_that_would_come_back(resources, capsys, no_run):
    """Reading from a subscription of the dead-letter topic is refused in one line."""
    code, line = refusal(capsys, resources.flags(input_subscription=resources.dead_letter_subscription))
    assert code == 1
    assert f"--dead-letter-topic={resources.dead_letter_topic} is the topic that " in line
    assert f"{resources.dead_letter_subscription} reads" in line


def test_results_that_would_come_back(resources, capsys, no_run):
    """A job that would read its own results is refused in one line."""
    code, line = refusal(capsys, resources.flags(results_topic=resources.topic))
    assert code == 1
    assert f"--results-topic={resources.topic} is the topic that {resources.subscription} reads" in line


def test_results_of_a_table_without_windows(resources, capsys, no_run):
    """There are none, which is refused in one line."""
    resources.table = resources.table_of(parse_schema("[tiers]\n"))
    topic, _ = resources.feed("results")
    code, line = refusal(capsys, resources.flags(results_topic=topic))
    assert code == 1
    assert line.endswith("has no tiers, so there are no results for --results-topic")


def test_the_id_of_the_table(resources, ran):
    """Every launch finds the id that the first one has noted, by which a job knows its table."""
    for _ in range(2):
        assert main(resources.flags()) == 0
    (first,), (second,) = ran
    assert first.table_id == second.table_id != b""
    resources.table = resources.table_of(TableSchema.default(), stored=False)
    assert main(resources.flags()) == 0
    assert ran[2][0].table_id == b""  # such a table can't store one


@pytest.mark.parametrize("variable", ["BIGTABLE_EMULATOR_HOST", "PUBSUB_EMULATOR_HOST"])
def test_unreachable_server(resources, capsys, no_run, monkeypatch, variable):
    """An emulator that is not there is reported with its variable, before the job starts."""
    monkeypatch.setenv(variable, UNUSED_ADDRESS)
    code, line = refusal(capsys, resources.flags())
    assert code == 1
    assert f"{variable} is {UNUSED_ADDRESS}, but nothing answers there" in line


def test_no_credentials(resources, capsys, no_run, monkeypatch):
    """Without credentials and emulators, the line says how to get either."""
    monkeypatch.delenv("BIGTABLE_EMULATOR_HOST")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent.json")
    code, line = refusal(capsys, resources.flags())
    assert code == 1
    assert "GOOGLE_APPLICATION_CREDENTIALS is /nonexistent.json, which does not exist" in line
    assert "gcloud auth application-default login" in line


def test_bad_flag(capsys, no_run):
    """An invalid flag is one line with the exit code for wrong usage, and no server is contacted."""
    assert refusal(capsys, ["--window=7h"])[0] == 2


def test_no_checks(resources, monkeypatch, ran):
    """With --launch_checks=off no server is contacted: the pipeline runs at once, with the flags' schema."""
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", UNUSED_ADDRESS)
    assert main(resources.flags(launch_checks="off", raw_family="r")) == 0
    assert [[target.schema for target in targets] for targets in ran] == [[DeclaredSchema(raw="r").schema()]]


def test_no_credentials_and_no_checks(resources, capsys, no_run, monkeypatch):
    """Without checks, missing credentials are found when the job starts, and reported in one line too."""
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent.json")
    code, line = refusal(capsys, resources.flags(launch_checks="off"))
    assert code == 1
    assert "gcloud auth application-default login" in line


def test_as_a_process(resources):
    """The command prints one line on standard error and nothing on standard output, and fails."""
    finished = subprocess.run(
        [*JOB, *resources.flags(bigtable_table="nowhere")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 1
    assert finished.stdout == ""
    assert len(finished.stderr.strip().splitlines()) == 1
