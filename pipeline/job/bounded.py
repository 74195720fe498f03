"""Jobs that end: run here or on Dataflow, waited for, with their counters at the end."""

import sys
from collections.abc import Callable, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, StandardOptions
from apache_beam.runners.runner import PipelineResult

from pipeline.cloud.errors import ServerProblem
from pipeline.core.schema.table_schema import TableSchema
from pipeline.job import dataflow
from pipeline.job.settings import BOUNDED_RUNNER, BadFlag, choose_runner, refuse_unknown, runs_here
from pipeline.private_apis import job_failures
from pipeline.private_apis.local_runner import LocalRunner
from pipeline.transforms.metrics import totals_of

# What these flags make is nothing that could be waited for.
_USELESS = ("--streaming", "--update", "--template_location", "--dataflow_job_file", "--no_wait_until_finish")


def beam_options(argv: Sequence[str], project: str) -> PipelineOptions:
    """Beam's options for a job that ends, from what a command line has for Beam; nothing in it runs the job here.

    Args:
        argv: Beam's own flags, like ``--runner=DataflowRunner``.
        project: whose Dataflow and buckets are used, where no flag says another.

    Raises:
        BadFlag: a flag that Beam does not know, one that a job that ends can't have, or one that Dataflow lacks.
    """
    _check_known(argv)
    options = PipelineOptions(list(argv))
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
        options: as :func:`beam_options` makes them.
        build: adds the job's steps to an empty pipeline.
        schemas: of the tables that it works on, for a label of the job on Dataflow.

    Returns:
        The totals of all counters in our namespace, by name.

    Raises:
        ServerProblem: why the job failed, in one line.
        BadFlag: what Beam's own validation found.
    """
    job_failures.silence_loggers()  # a failure is reported once, in one line
    if not runs_here(options):
        dataflow.check_cloud(options)
    pipeline = _pipeline(options)
    build(pipeline)
    if runs_here(options):
        return totals_of(_explained(lambda: _finished(pipeline.run())))
    result = dataflow.submit(pipeline, schemas)
    try:
        return totals_of(_explained(lambda: _finished(result)))
    except KeyboardInterrupt:
        region = options.view_as(GoogleCloudOptions).region
        print(
            f"tidetable: the job runs on; to end it: gcloud dataflow jobs cancel {result.job_id()} --region={region}",
            file=sys.stderr,
        )
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
        raise ServerProblem(job_failures.cause_of(failure)) from failure


def _pipeline(options: PipelineOptions) -> beam.Pipeline:
    try:
        return beam.Pipeline(LocalRunner() if runs_here(options) else None, options)
    except ValueError as error:  # all that Beam's own validation found
        raise BadFlag(" ".join(str(error).split())) from error


def _check_known(argv: Sequence[str]) -> None:
    refuse_unknown(argv, ours=False)  # a command has options of its own for these
    for flag in (argument.partition("=")[0] for argument in argv):
        if flag in _USELESS:
            raise BadFlag(f"{flag} is not for a job that ends and is waited for; leave it out")
