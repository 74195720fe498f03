"""Submission to Dataflow with Beam's real runner, a real storage emulator and a recorded job request."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions
from apache_beam.pipeline import PipelineVisitor
from apache_beam.portability.api import beam_runner_api_pb2 as beam_proto

from pipeline.core.events.event import LATEST_US
from pipeline.core.schema.changes import DeclaredSchema
from pipeline.core.schema.rollup import Rollup
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.job import dataflow as dataflow_job
from pipeline.job.checks import read_targets, read_types
from pipeline.job.dataflow import fingerprint, prepare, schema_label, state_of
from pipeline.job.graph import assemble
from pipeline.job.launch import main
from pipeline.job.settings import Target, parse_flags, settings_of
from pipeline.private_apis.bigtable_writer import ConnectorWriteFn
from pipeline.private_apis.dataflow_client import steps_of
from pipeline.transforms.write import BulkWriteFn
from tests.job import foreign
from tests.support.google_cloud import (
    BUCKET,
    CANCELLED,
    PENDING,
    RUNNING,
    keep_installed_packages,
    running_dataflow,
    running_storage,
)
from tests.support.preloaded import JOB

GOLDEN = Path(__file__).with_name("golden_steps.json")
STATE = {
    "formats": json.dumps(dataflow_job._FORMATS),
    "groups": "256",
    "--max_future": "1:00:00",
    "--bigtable_table": "projects/test-project/instances/instance/tables/table",
    "--window": "1h",
}
IMAGE = "example/tidetable:1"


@pytest.fixture(scope="module")
def storage():
    with running_storage() as storage:
        yield storage


@pytest.fixture
def dataflow():
    with running_dataflow() as (dataflow, endpoint):
        dataflow.endpoint = endpoint
        yield dataflow


@pytest.fixture(autouse=True)
def google(storage, monkeypatch):
    """Points Google's clients at the emulator, and keeps them from looking for a machine's account."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    keep_installed_packages(monkeypatch)


def flags(dataflow=None, **changes):
    parts = {
        "runner": "DataflowRunner",
        "project": "test-project",
        "region": "europe-west4",
        "temp_location": f"gs://{BUCKET}/temp",
        "staging_location": f"gs://{BUCKET}/staging",
        "sdk_container_image": IMAGE,
        "sdk_location": "container",
        "dataflow_endpoint": dataflow.endpoint if dataflow else "http://localhost:1",
        "input_subscription": "projects/test-project/subscriptions/events",
        "timestamp_attribute": "event_time",
        "id_attribute": "event_id",
        "dead_letter_topic": "projects/test-project/topics/dead-letters",
        "bigtable_instance": "instance",
        "bigtable_table": "table",
        "launch_checks": "off",
    }
    return ["--no_auth", *(f"--{name}={value}" for name, value in (parts | changes).items() if value is not None)]


def staged(storage, job):
    """Returns the pipeline in the job's staged file."""
    folder = next(
        option["value"]
        for option in job["environment"]["sdkPipelineOptions"]["display_data"]
        if option["key"] == "staging_location"
    )
    return beam_proto.Pipeline.FromString(storage.read(f"{folder.removeprefix(f'gs://{BUCKET}/')}/pipeline.pb"))


def refusal(capsys, arguments):
    code = main(arguments)
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return code, lines[0]


class TestSubmission:
    @pytest.fixture(scope="class")
    @staticmethod
    def submitted(storage):
        """Launches a job, and returns its request, the staged pipeline and the output."""
        environment = os.environ | {"STORAGE_EMULATOR_HOST": storage.url, "NO_GCE_CHECK": "true"}
        with running_dataflow() as (dataflow, endpoint):
            dataflow.endpoint = endpoint
            passed_on = {
                "update_compatibility_version": "2.76.0",
                "dataflow_service_options": "min_num_workers=2,worker_utilization_hint=0.6",
                "profile_location": f"gs://{BUCKET}/profiles",
            }
            command = [*JOB, "--profile_cpu", *flags(dataflow, **passed_on)]
            finished = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=100, check=False
            )
        assert finished.returncode == 0, finished.stderr
        (job,) = dataflow.jobs
        return job, staged(storage, job), finished

    def test_it_returns_at_once_and_prints_the_page(self, submitted):
        """One line on standard error names the job and its page, and the command returns without waiting."""
        job, _, finished = submitted
        assert finished.stdout == ""
        assert finished.stderr == (
            f"tidetable: submitted {job['name']}; see https://console.cloud.google.com/dataflow/jobs/"
            "europe-west4/job-0?project=test-project\n"
        )

    def test_streaming_with_streaming_engine_in_the_given_image(self, submitted):
        """The job streams by default, with Streaming Engine, and its workers run the given image."""
        job, _, _ = submitted
        assert job["type"] == 2  # JOB_TYPE_STREAMING
        assert "enable_streaming_engine" in job["environment"]["experiments"]
        (pool,) = job["environment"]["workerPools"]
        assert {image["containerImage"] for image in pool["sdkHarnessContainerImages"]} == {IMAGE}

    def test_hot_keys_are_logged(self, submitted):
        """Dataflow logs a hot key without being asked to."""
        job, _, _ = submitted
        assert job["environment"]["debugOptions"] == {"enableHotKeyLogging": True}

    def test_flags_of_beam_and_dataflow_are_passed_on(self, submitted):
        """Options of scaling reach the service; those of profiling and the compatibility version reach the workers."""
        job, _, _ = submitted
        environment = job["environment"]
        assert environment["serviceOptions"] == ["min_num_workers=2", "worker_utilization_hint=0.6"]
        passed_on = {option["key"]: option["value"] for option in environment["sdkPipelineOptions"]["display_data"]}
        assert passed_on["update_compatibility_version"] == "2.76.0"
        assert passed_on["profile_cpu"]
        assert passed_on["max_cache_memory_usage_mb"] == 100  # of state, unless the launch sets it
        assert passed_on["profile_location"] == f"gs://{BUCKET}/profiles"

    def test_no_pickled_main_session(self, submitted):
        """Only the list of installed packages is staged for the workers."""
        job, _, _ = submitted
        (pool,) = job["environment"]["workerPools"]
        assert [package["name"] for package in pool["packages"]] == ["submission_environment_dependencies.txt"]

    def test_name_and_labels(self, submitted):
        """The job gets a valid default name, and labels with version, schema and graph."""
        job, pipeline, _ = submitted
        assert job["name"].startswith("tidetable-2")
        assert len(job["name"]) <= 63
        labels = dict(job["labels"])
        assert labels.pop("tidetable-launch")
        assert abs(int(labels.pop("tidetable-began")) / 1_000_000 - time.time()) < 3600
        assert labels == {
            "tidetable-version": "0-1-0",
            "tidetable-schema": "default",
            "tidetable-graph": fingerprint(json.loads(GOLDEN.read_text()) | STATE),
        }
        assert pipeline.components.transforms

    def test_pubsub_read(self, submitted):
        """Dataflow's own Pub/Sub read has the subscription, timestamp attribute, id attribute and attributes."""
        _, pipeline, _ = submitted
        (read,) = with_urn(pipeline, "beam:transform:pubsub_read:v1")
        payload = beam_proto.PubSubReadPayload.FromString(read.spec.payload)
        assert payload.subscription == "projects/test-project/subscriptions/events"
        assert payload.timestamp_attribute == "event_time"
        assert payload.id_attribute == "event_id"
        assert payload.with_attributes

    def test_bigtable_writes_and_one_pubsub_write(self, submitted):
        """Beam's Bigtable connector writes rows of every kind, and its Pub/Sub write the dead letters."""
        _, pipeline, _ = submitted
        labels = {transform.unique_name for transform in pipeline.components.transforms.values()}
        for rows in ("WriteRawRows", "WriteOtherRows"):
            assert any(label.startswith(f"{rows}/WriteToBigTable") for label in labels)
        (write,) = with_urn(pipeline, "beam:transform:pubsub_write:v1")
        payload = beam_proto.PubSubWritePayload.FromString(write.spec.payload)
        assert payload.topic == "projects/test-project/topics/dead-letters"

    def test_windowing(self, submitted):
        """Everything is in the global window, where no event is too late for Dataflow."""
        _, pipeline, _ = submitted
        strategies = pipeline.components.windowing_strategies.values()
        assert {strategy.window_fn.urn for strategy in strategies} == {"beam:window_fn:global_windows:v1"}


def test_the_main_session_is_never_pickled():
    """Beam would pickle it on Dataflow by default, but not for a local endpoint."""
    options = parse_flags(["--save_main_session", *flags()])
    prepare(options)
    assert not options.view_as(SetupOptions).save_main_session


def with_urn(pipeline, urn):
    return [transform for transform in pipeline.components.transforms.values() if transform.spec.urn == urn]


def graph_of(*schemas, **changes):
    """Returns the steps of the flags' job; with schemas, one per table replaces what the flags declare."""
    options = parse_flags(flags(**changes))
    settings = settings_of(options)
    types = read_types(settings.messages)
    targets = read_targets(settings)
    if schemas:
        targets = [Target(name, schema) for name, schema in zip(settings.tables, schemas, strict=True)]
    pipeline = beam.Pipeline(options=options)
    assemble(pipeline, targets, settings, began_us=0, types=types)
    return steps_of(pipeline)


def test_golden_steps():
    """Every step has the label and coders of the golden file, so running jobs can be updated in place."""
    steps = graph_of()
    assert steps == json.loads(GOLDEN.read_text()), (
        "The graph has changed, so jobs that are running can't be updated in place: they have to be drained and "
        "started again, or their steps mapped with --transform-name-mapping (docs/update.md). If you intend that, "
        "note it in CHANGELOG.md and write the new graph to the golden file: "
        "python -m tests.job.test_dataflow"
    )


def test_flags_that_do_not_change_the_graph():
    """Names and durations do not change the graph; dropping dead letters does."""
    assert graph_of(window="15m", bigtable_table="other", early_firing="0", raw_family="r") == graph_of()
    assert graph_of(dead_letters="drop") != graph_of()


def test_rollups_are_steps_of_their_own():
    """Tables without roll-ups have no step for them; with them, all other steps have the same labels."""
    schema = TableSchema.for_new_table()
    steps, without = graph_of(replace(schema, rollups=(Rollup("fleet"),))), graph_of(schema)
    added = {"/".join(label.split("/")[:2]) for label in steps.keys() - without.keys()}
    inner = ("WriteMembers", "Shards", "WriteParts", "Groups")
    assert added == {"RollUp", *(f"RollUp/{each}" for each in inner)}
    assert without.keys() < steps.keys()


def test_results_are_steps_of_their_own():
    """Without a topic there is no step for them; with one, all other steps have the same labels."""
    topic = "projects/test-project/topics/results"
    steps, without = graph_of(results_topic=topic), graph_of()
    assert {label.partition("/")[0] for label in steps.keys() - without.keys()} == {"PublishResults"}
    assert without.keys() < steps.keys()
    changed = {label.partition("/")[0] for label in without if steps[label] != without[label]}
    assert changed == {"AggregateWindows"}  # which has another output
    assert graph_of(results_topic=topic, results="all", results_encoding="json") == steps
    two = graph_of(bigtable_table="a,b", results_topic=topic).keys() - graph_of(bigtable_table="a,b").keys()
    assert two == steps.keys() - without.keys()  # of the first table


def test_mappings_do_not_change_the_graph(tmp_path):
    """A running job can take other mappings, another decoder or its first ones: the form of its state stays."""
    changes = foreign.flags(tmp_path)
    assert graph_of(**changes) == graph_of()
    settings = [settings_of(parse_flags(flags(**each))) for each in (changes, {})]
    assert state_of(settings[0], []) == state_of(settings[1], [])


def test_a_schema_does_not_change_the_graph():
    """Keys, layout, encoding and families do not change the graph if there is one window."""
    other = parse_schema(
        'layout = "tall"\nvalues = "float64"\nkey = "{salt:2}#{sensor_id}#{metric}#{reverse_ms}"\n[tiers]\n6h = "six"'
    )
    assert graph_of(other) == graph_of()


FAST = parse_schema('[rate]\nevery = "1s"')


def state(schema=None, **changes):
    """Returns what the state of the flags' job depends on; a schema replaces the one that the flags declare."""
    settings = settings_of(parse_flags(flags(**changes)))
    targets = [Target(target.name, schema or target.schema) for target in read_targets(settings)]
    return state_of(settings, targets)


def test_flags_that_do_not_change_the_state():
    """When panes fire and windows close can be changed by an update."""
    changes = dict.fromkeys(["early_firing", "late_firing", "allowed_lateness"], "7m")
    assert state(**changes) == state() == STATE
    assert graph_of(**changes) == graph_of()


def test_what_changes_the_state(monkeypatch):
    """The number of groups, which follows from the rate, de-duplication, and each format that the state contains."""
    same = parse_schema('[rate]\nevery = "10s"')
    assert state(same) == state()
    others = [state(FAST), state(max_future="2h")]
    for name in dataflow_job._FORMATS:
        monkeypatch.setattr(dataflow_job, "_FORMATS", dataflow_job._FORMATS | {name: 99})
        others.append(state())
    rolled_up = parse_schema("[rollups]\nfleet = { by = [] }")
    others.append(state(rolled_up))
    for name in dataflow_job._ROLLUP_FORMATS:
        monkeypatch.setattr(dataflow_job, "_ROLLUP_FORMATS", dataflow_job._ROLLUP_FORMATS | {name: 99})
        others.append(state(rolled_up))
    assert len({fingerprint(each) for each in [STATE, *others]}) == 1 + len(others)


def test_rows_have_a_coder_of_their_own():
    """Rows cross between steps as bytes that do not name a class of this package."""
    steps = graph_of()
    assert steps["OtherRows"] == "RowsCoder"
    assert steps["AggregateWindows"] == "RowsCoder"
    assert "RawRowsCoder" in steps["ProcessMessages"]


@pytest.mark.parametrize(("writer", "kind"), [("connector", ConnectorWriteFn), ("bulk", BulkWriteFn)])
def test_aggregate_rows_are_written_where_they_are_computed(writer, kind):
    """By the configured writer: so a firing finds the rows of earlier ones in the table, on any runner."""
    options = parse_flags(flags(bigtable_writer=writer))
    settings = settings_of(options)
    pipeline = beam.Pipeline(options=options)
    assemble(pipeline, read_targets(settings), settings, began_us=0)
    steps = _Steps()
    pipeline.visit(steps)
    (aggregate,) = (step for label, step in steps.found.items() if label.startswith("AggregateWindows/Aggregate"))
    assert isinstance(aggregate.fn.writer, kind)


class _Steps(PipelineVisitor):
    """Collects the transforms by label."""

    def __init__(self):
        self.found = {}

    def visit_transform(self, transform_node):
        self.found[transform_node.full_label] = transform_node.transform


def top_level(steps):
    return [label for label in steps if "/" not in label]


def test_further_tables_add_steps():
    """Steps of the first table keep their labels; steps of other tables get a suffix. Windows add no steps."""
    days = parse_schema('[tiers]\n1h = "hours"\n1d = "days"')
    odd = parse_schema('[tiers]\n40m = "forty"\n1d = "days"')
    one_table, further = graph_of(), graph_of(days, odd, bigtable_table="table,1d")
    assert {
        step: coders for step, coders in one_table.items() if "ProcessMessages" not in step
    }.items() <= further.items()
    assert [label for label in top_level(further) if label not in one_table] == [
        "AggregateWindows[1d]",
        "OtherRows[1d]",
        "WakeListed[1d]",
        "WithWoken[1d]",
        "WriteOtherRows[1d]",
        "WriteRawRows[1d]",
    ]


def test_without_aggregates():
    """A table without tiers has raw rows only."""
    assert top_level(graph_of(parse_schema("[tiers]"))) == [
        "ProcessMessages", "ReadMessages", "WriteDeadLetters", "WriteRawRows",
    ]  # fmt: skip


def test_schema_labels():
    """One default table has the label default, whatever policies and units; others a layout or count, and a hash."""
    default, tall = TableSchema.default(), parse_schema('layout = "tall"\nkey = "{sensor_id}#{metric}#{reverse_us}"')
    other_policies = parse_schema('[policies]\nraw = "never"\n[rate]\nevery = "1s"\n[metrics.t]\nunit = "m"')
    assert schema_label([default]) == schema_label([other_policies]) == "default"
    labels = [
        schema_label(schemas)
        for schemas in (
            [DeclaredSchema(raw="r").schema()],
            [tall],
            [default, tall],
            [tall, default],
            [default, default],
        )
    ]
    assert len(set(labels)) == len(labels)
    for label, kind in zip(labels, ("wide", "tall", "2-tables", "2-tables", "2-tables"), strict=True):
        assert re.fullmatch(rf"{kind}-[0-9a-f]{{8}}", label)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"region": None}, "--region is needed"),
        ({"region": "Europe"}, "--region is 'Europe'"),
        ({"temp_location": None}, "--temp-location is needed"),
        ({"temp_location": "/tmp/x"}, "--temp-location is '/tmp/x'"),  # noqa: S108 (refused, not used)
        ({"staging_location": "bucket/staging"}, "--staging-location is 'bucket/staging'"),
        ({"sdk_container_image": None}, "--sdk-container-image is needed"),
        ({"job_name": "Tide_Table"}, "--job-name is 'Tide_Table'"),
        ({"job_name": "x" * 64}, "63 at most"),
        ({"update": ""}, "--job-name is needed with --update"),
        ({"project": "12345"}, "'12345'"),
    ],
)
def test_bad_flags(capsys, changes, message):
    """Flags that Dataflow would refuse are reported in one line before anything is staged."""
    arguments = [flag.removesuffix("=") if flag == "--update=" else flag for flag in flags(**changes)]
    code, line = refusal(capsys, arguments)
    assert code == 2
    assert message in line


def test_missing_bucket(capsys, storage):
    """A missing bucket is reported in one line, at once."""
    code, line = refusal(capsys, flags(temp_location="gs://nowhere-at-all/temp"))
    assert (code, line) == (1, "tidetable: bucket gs://nowhere-at-all does not exist")


def test_a_decoder_has_to_be_in_the_image(capsys, monkeypatch):
    """The launch can't look into the image, so it says what the workers need, unless they run the launcher's image."""
    arguments = flags(message_decoder=foreign.DECODER, temp_location="gs://no-such-bucket/temp")
    needed = f"tidetable: the workers call {foreign.DECODER} too: their image, or a package that is staged for them, "
    assert main(arguments) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines == [needed + "must contain it", "tidetable: bucket gs://no-such-bucket does not exist"]
    monkeypatch.setenv("FLEX_TEMPLATE_PYTHON_PY_FILE", sys.argv[0])
    assert refusal(capsys, arguments) == (1, lines[1])


def test_missing_credentials(capsys, monkeypatch):
    """Without credentials, the line says how to get them, at once."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent.json")
    code, line = refusal(capsys, [flag for flag in flags() if flag != "--no_auth"])
    assert code == 1
    assert "gcloud auth application-default login" in line


def test_a_refused_job_leaves_no_files(capsys, storage, dataflow):
    """An unknown region is one line with Google's message, and staged files are removed."""
    before = storage.names()
    dataflow.refusal = 400, "Unknown region mars-north1"
    code, line = refusal(capsys, flags(dataflow, region="mars-north1"))
    assert code == 1
    assert "Unknown region mars-north1" in line
    assert storage.names() == before


@pytest.mark.parametrize(("folder", "known"), [("templates", False), ("template_launches/1", True)])
def test_when_the_job_of_a_template_began(storage, folder, known):
    """A Flex Template starts its job now; a classic one at any time, so every window counts as begun before it."""
    before_us = time.time_ns() // 1000
    assert main(flags(template_location=f"gs://{BUCKET}/{folder}/job")) == 0
    began_us = int(json.loads(storage.read(f"{folder}/job"))["labels"]["tidetable-began"])
    if known:
        assert before_us <= began_us <= time.time_ns() // 1000
    else:
        assert began_us == LATEST_US


def test_results_of_a_classic_template(capsys):
    """The numbers of results begin with the time at which the job began, which a classic template does not know."""
    template = f"gs://{BUCKET}/templates/job"
    assert main(flags(template_location=template, results_topic="projects/test-project/topics/results")) == 2
    assert "--results-topic needs a job that starts at once" in capsys.readouterr().err


def test_staged_files_that_cannot_be_removed(capsys, monkeypatch):
    """A connection that breaks meanwhile is one line more, and does not replace the reason of the failure."""

    def broken(*_):
        raise ConnectionResetError("connection reset")

    monkeypatch.setattr(dataflow_job, "create_storage_client", broken)
    dataflow_job._remove_files(PipelineOptions([]), "gs://bucket/staging/job")
    assert capsys.readouterr().err == (
        "tidetable: staged files are left in gs://bucket/staging/job: connection reset\n"
    )


class TestUpdate:
    def test_listing_is_denied(self, capsys, dataflow):
        """From a shell, an update without the permission to list jobs is refused."""
        dataflow.may_list = False
        code, line = refusal(capsys, ["--update", *flags(dataflow, job_name="tide")])
        assert code == 1
        assert "permission denied" in line

    def test_listing_is_denied_to_a_flex_template(self, capsys, storage, dataflow):
        """A launcher that may not list jobs says so in one line, and leaves it to Dataflow whether the job is updated.
        It began now at the latest.
        """
        dataflow.may_list = False
        before_us = time.time_ns() // 1000
        template = f"gs://{BUCKET}/template_launches/2/job"
        assert main(["--update", *flags(dataflow, job_name="tide", template_location=template)]) == 0
        warning, staged = capsys.readouterr().err.splitlines()
        assert "grant roles/dataflow.viewer to the launcher's account" in warning
        assert staged == f"tidetable: staged as {template}"
        job = json.loads(storage.read("template_launches/2/job"))
        assert before_us <= int(job["labels"]["tidetable-began"]) <= time.time_ns() // 1000
        assert "replaceJobId" not in job

    def test_incompatible_state(self, capsys, dataflow, monkeypatch):
        """The state of a job depends on these flags, and on the number of groups that a rate needs, so a job with other
        ones can't replace it.
        """
        assert main(flags(dataflow, job_name="tide")) == 0
        capsys.readouterr()
        dataflow.jobs[0]["currentState"] = RUNNING
        for changes in ({"max_future": "2h"}, {"bigtable_table": "other"}):
            code, line = refusal(capsys, ["--update", *flags(dataflow, job_name="tide", **changes)])
            assert code == 1
            assert "tables, windows, a declared rate, --max-future" in line
        declared = [Target(target.name, FAST) for target in read_targets(settings_of(parse_flags(flags())))]
        monkeypatch.setattr("pipeline.job.launch.read_targets", lambda _: declared)
        code, line = refusal(capsys, ["--update", *flags(dataflow, job_name="tide")])
        assert code == 1
        assert "a declared rate" in line
        assert "drain it and start a new job" in line

    def test_no_such_job(self, capsys, dataflow):
        """An update fails if no job of that name is running."""
        code, line = refusal(capsys, ["--update", *flags(dataflow, job_name="tide")])
        assert code == 1
        assert "no running job is called tide" in line

    def test_same_graph(self, dataflow):
        """A job with the same graph and state is replaced, whatever its firing and lateness. The other job keeps the
        start: windows that began after it still count as seen from their beginning.
        """
        assert main(flags(dataflow, job_name="tide")) == 0
        dataflow.jobs[0]["currentState"] = RUNNING
        firing = {"early_firing": "30s", "late_firing": "2m", "allowed_lateness": "1d"}
        assert main(["--update", *flags(dataflow, job_name="tide", **firing)]) == 0
        assert dataflow.jobs[1]["replaceJobId"] == "job-0"
        assert main(flags(dataflow, job_name="another")) == 0
        began = [int(job["labels"]["tidetable-began"]) for job in dataflow.jobs]
        assert began[0] == began[1] < began[2]

    def test_another_graph(self, capsys, dataflow):
        """A job with another graph can't be replaced, and the line says what to do."""
        assert main(flags(dataflow, job_name="tide")) == 0
        capsys.readouterr()
        dataflow.jobs[0]["currentState"] = RUNNING
        code, line = refusal(capsys, ["--update", *flags(dataflow, job_name="tide", dead_letters="drop")])
        assert code == 1
        assert "drain it and start a new job" in line
        assert len(dataflow.jobs) == 1


@contextmanager
def launching(dataflow, *arguments, **changes):
    """Launches in another process, while Dataflow delays its answer."""
    dataflow.answer.clear()
    command = [*JOB, *arguments, *flags(dataflow, **changes)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert dataflow.asked.wait(60)
        yield process


@pytest.mark.parametrize("signum", [pytest.param(signal.SIGINT, marks=pytest.mark.exhaustive), signal.SIGTERM])
def test_interrupted_while_launching(storage, dataflow, signum):
    """SIGTERM, like Ctrl-C, during the request cancels a job that was created by then, and removes staged files."""
    before = storage.names()
    with launching(dataflow) as process:
        assert len(storage.names()) > len(before)
        process.send_signal(signum)
        assert process.wait(60) == 130
    assert dataflow.jobs[0]["currentState"] == CANCELLED
    assert storage.names() == before


def test_interrupted_beside_a_job_of_the_same_name(storage, dataflow):
    """Only this launch's job is cancelled, never an earlier one of the same name."""
    assert main(flags(dataflow, job_name="tide")) == 0
    dataflow.jobs[0]["currentState"] = RUNNING
    dataflow.asked.clear()
    dataflow.accepts_jobs = False
    with launching(dataflow, job_name="tide") as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert [job["currentState"] for job in dataflow.jobs] == [RUNNING]


def test_interrupted_while_updating(storage, dataflow):
    """An update that was already sent continues and keeps its files, and the line says so."""
    assert main(flags(dataflow, job_name="tide")) == 0
    dataflow.jobs[0]["currentState"] = RUNNING
    dataflow.asked.clear()
    before = storage.names()
    with launching(dataflow, "--update", job_name="tide") as process:
        dataflow.jobs[0]["currentState"] = CANCELLED  # how a listing shows a replaced job
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        printed = process.stderr.read()
    assert "tide is being updated all the same" in printed
    assert "staged files are left in" in printed
    assert len(storage.names()) > len(before)
    assert dataflow.jobs[1]["currentState"] == PENDING


def test_a_name_in_use(capsys, storage, dataflow):
    """If a job of that name is running, the launch fails with one line and leaves no files."""
    assert main(flags(dataflow, job_name="tide")) == 0
    before = storage.names()
    capsys.readouterr()
    dataflow.name_taken = True
    code, line = refusal(capsys, flags(dataflow, job_name="tide"))
    assert code == 1
    assert "There is already active job named tide" in line
    assert storage.names() == before


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(graph_of(), indent=2) + "\n")
