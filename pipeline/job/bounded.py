"""Runs jobs that end, here or on Dataflow, waits for them, and returns their counters."""

from collections.abc import Callable, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, StandardOptions
from apache_beam.runners.runner import PipelineResult

from pipeline.cloud.connection.errors import ServerError
from pipeline.core.schema.table_schema import TableSchema
from pipeline.job import dataflow
from pipeline.job.flags import BadFlag
from pipeline.job.saying import say
from pipeline.job.settings import BOUNDED_RUNNER, choose_runner, options_of, refuse_unknown, runs_here
from pipeline.private_apis import job_failures
from pipeline.private_apis.local_runner import LocalRunner
from pipeline.private_apis.repeated_work import kept_views, specs_by_class
from pipeline.transforms.metrics import totals_of

# These flags leave no job to wait for, or do not wait.
_REFUSED_FLAGS = ("--streaming", "--update", "--template_location", "--dataflow_job_file", "--no_wait_until_finish")


def beam_options(argv: Sequence[str], project: str) -> PipelineOptions:
    """Parses Beam's flags of a command line into options for a job that ends. Without flags, the job runs here.

    Args:
        argv: Beam's own flags, like ``--runner=DataflowRunner``.
        project: the project of Dataflow and the buckets, unless a flag names another.

    Raises:
        BadFlag: a flag is unknown to Beam, does not work for a job that ends, or is missing for Dataflow.
    """
    _check_flags(argv)
    options = options_of(argv)
    options.view_as(StandardOptions).streaming = False
    choose_runner(options, BOUNDED_RUNNER)
    cloud = options.view_as(GoogleCloudOptions)
    cloud.project = cloud.project or project
    if not runs_here(options):
        dataflow.prepare(options)
    return options


def run(
    options: PipelineOptions, build: Callable[[beam.Pipeline], None], schemas: Sequence[TableSchema]
) -> dict[str, int]:
    """Runs a job to its end, here or on Dataflow.

    Args:
        options: the options that :func:`beam_options` returned.
        build: the function that adds the job's steps to an empty pipeline.
        schemas: the schemas of the job's tables, for its labels on Dataflow.

    Returns:
        The totals of our counters, by name.

    Raises:
        ServerError: the job failed. ``str()`` is the cause in one line.
        BadFlag: Beam's validation refused the options.
    """
    job_failures.silence_loggers()  # a failure is reported once, in one line
    if not runs_here(options):
        dataflow.check_cloud(options)
    with specs_by_class(), kept_views():
        pipeline = _pipeline(options)
        build(pipeline)
        if runs_here(options):
            return totals_of(_explained(lambda: _finished(pipeline.run())))
    result = dataflow.submit(pipeline, schemas)
    try:
        return totals_of(_explained(lambda: _finished(result)))
    except KeyboardInterrupt:
        region = options.view_as(GoogleCloudOptions).region
        say(f"the job goes on; to end it: gcloud dataflow jobs cancel {result.job_id()} --region={region}")
        raise


def _finished(result: PipelineResult) -> PipelineResult:
    result.wait_until_finish()
    return result


def _explained(finish: Callable[[], PipelineResult]) -> PipelineResult:
    try:
        return finish()
    except Exception as failure:
        if job_failures.was_interrupted(failure):
            raise KeyboardInterrupt from failure
        raise ServerError(job_failures.cause_of(failure)) from failure


def _pipeline(options: PipelineOptions) -> beam.Pipeline:
    try:
        return beam.Pipeline(LocalRunner() if runs_here(options) else None, options)
    except ValueError as error:  # everything that Beam's validation found
        raise BadFlag(" ".join(str(error).split())) from error


def _check_flags(argv: Sequence[str]) -> None:
    refuse_unknown(argv, ours=False)  # commands have options of their own in place of our flags
    for flag in (argument.partition("=")[0] for argument in argv):
        if flag in _REFUSED_FLAGS:
            raise BadFlag(f"{flag} does not work here: the command waits for its job to end; leave it out")
