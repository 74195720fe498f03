"""Batch jobs: flags, counters and failures, on the local runner and on a Dataflow stand-in."""

import signal
from types import SimpleNamespace

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import GoogleCloudOptions, StandardOptions
from apache_beam.runners.dataflow.dataflow_runner import DataflowPipelineResult, DataflowRuntimeException

from pipeline.cloud.connection.errors import ServerError
from pipeline.core.schema.table_schema import TableSchema
from pipeline.job.bounded import beam_options, run
from pipeline.job.flags import BadFlag
from pipeline.job.settings import runs_here
from pipeline.transforms.metrics import counter
from tests.support.google_cloud import ON_DATAFLOW, submitting_to_dataflow


class Count(beam.DoFn):
    def __init__(self, failure=None):
        self._failure = failure
        self._things = counter("things")

    def process(self, element):
        self._things.inc()
        if self._failure:
            raise self._failure
        yield element


def build(failure=None):
    def add_steps(pipeline):
        things = pipeline | beam.Create([1, 2, 3]) | beam.Reshuffle()
        for step in "ab":
            _ = things | step >> beam.ParDo(Count(failure))

    return add_steps


@pytest.mark.parametrize(
    "flags", [[], ["--runner=DirectRunner"], ["--runner=FnApiRunner"], ["--direct_num_workers=1"], ["--project=p"]]
)
def test_the_default_runner(flags):
    """The default is the local runner, not Beam's DirectRunner, which would download another; jobs never stream."""
    options = beam_options(flags, "test-project")
    assert runs_here(options)
    assert not options.view_as(StandardOptions).streaming
    assert options.view_as(GoogleCloudOptions).project == ("p" if flags == ["--project=p"] else "test-project")


def test_totals():
    """Counters of the same name in several steps are added up."""
    assert run(beam_options([], "p"), build(), []) == {"things": 6}


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (ServerError("table t does not exist"), r"^table t does not exist$"),
        (ValueError("more than\none line"), r"^the job failed: .*one line$"),
    ],
)
def test_a_failing_job(failure, message):
    """The error is one line with the cause, without Beam's traceback and steps."""
    with pytest.raises(ServerError, match=message) as caught:
        run(beam_options([], "p"), build(failure), [])
    assert "\n" not in str(caught.value)
    assert "while running" not in str(caught.value)


def test_interrupted_here():
    """Ctrl-C raises KeyboardInterrupt, wherever it interrupts the job."""

    class Interrupt(beam.DoFn):
        def process(self, element):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(beam_options([], "p"), lambda pipeline: pipeline | beam.Create([1]) | beam.ParDo(Interrupt()) and None, [])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rgion=x"], "unknown argument --rgion=x; did you mean --region?"),
        (["something"], "unknown argument something"),
        (["--window=1h"], "unknown argument --window=1h"),  # a flag of the streaming job
        (["--runner=Flink"], "--runner is 'Flink'; it has to be DirectRunner or DataflowRunner"),
        (["--streaming"], "--streaming does not work here"),
        (["--update"], "--update does not work here"),
        (["--template_location=gs://b/t"], "--template_location does not work here"),
        (["--num_workers=many"], "argument --num_workers: invalid int value: 'many'"),
        (ON_DATAFLOW[:1], "--region is needed"),
        (ON_DATAFLOW[:2], "--temp-location is needed"),
        (ON_DATAFLOW[:3], "--sdk-container-image is needed"),
    ],
)
def test_bad_flags(flags, message):
    """An invalid flag is reported in one line that names it."""
    with pytest.raises(BadFlag) as caught:
        beam_options(list(flags), "test-project")
    assert str(caught.value).startswith(message)


@pytest.fixture
def dataflow(monkeypatch):
    with submitting_to_dataflow(monkeypatch) as dataflow:
        yield dataflow


def ending(monkeypatch, failure=None):
    """Makes Dataflow end the job at once, with a counter or with a failure."""

    def wait(result):
        if failure:
            raise failure

    things = SimpleNamespace(key=SimpleNamespace(metric=SimpleNamespace(name="things")), committed=7)
    metrics = SimpleNamespace(query=lambda _: {"counters": [things]})
    monkeypatch.setattr(DataflowPipelineResult, "wait_until_finish", wait)
    monkeypatch.setattr(DataflowPipelineResult, "metrics", lambda _: metrics)


def test_on_dataflow(dataflow, monkeypatch, capsys):
    """A batch job is submitted with our labels and waited for, and its counters are returned."""
    ending(monkeypatch)
    assert run(dataflow.options, build(), [TableSchema.default()]) == {"things": 7}
    (job,) = dataflow.jobs
    assert job["type"] == 1  # JOB_TYPE_BATCH
    assert job["labels"]["tidetable-schema"] == "default"
    assert job["name"].startswith("tidetable-")
    assert capsys.readouterr().err.startswith(f"tidetable: submitted {job['name']}; see https://")


def test_a_failing_job_on_dataflow(dataflow, monkeypatch):
    """The cause is the last line of a worker's text, or the message of our own error in it."""
    text = (
        "Dataflow pipeline failed. State: FAILED, Error:\nTraceback (most recent call last):\n  File x, line 1\n"
        "pipeline.cloud.connection.errors.ServerError: table t does not exist [while running 'a-ptransform-1']\n"
    )
    ending(monkeypatch, DataflowRuntimeException(text, None))
    with pytest.raises(ServerError, match=r"^table t does not exist$"):
        run(dataflow.options, build(), [])
    ending(monkeypatch, DataflowRuntimeException("Dataflow pipeline failed. State: CANCELLED, Error:\nNone", None))
    with pytest.raises(ServerError, match=r"^the job failed: Dataflow pipeline failed. State: CANCELLED"):
        run(dataflow.options, build(), [])


def test_interrupted_while_waiting(dataflow, monkeypatch, capsys):
    """The job continues, and a line says how to cancel it."""
    ending(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run(dataflow.options, build(), [])
    assert capsys.readouterr().err.splitlines()[-1] == (
        "tidetable: the job goes on; to end it: gcloud dataflow jobs cancel job-0 --region=europe-west4"
    )


def test_a_missing_bucket(dataflow, monkeypatch):
    """A missing bucket is reported before the pipeline is built."""
    dataflow.options.view_as(GoogleCloudOptions).temp_location = "gs://nowhere-at-all/temp"
    with pytest.raises(ServerError, match=r"^bucket gs://nowhere-at-all does not exist$"):
        run(dataflow.options, build(), [])
