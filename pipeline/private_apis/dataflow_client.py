"""Beam's Dataflow client: running jobs, the job that is being submitted, its steps, and the client's log.

Relies on, in ``apache-beam``:

- ``DataflowApplicationClient`` in apache_beam/runners/dataflow/internal/apiclient.py creates ``_jobs_client``, Google's
  public client, with the endpoint, credentials and transport of Beam's options. Its ``modify_job_state`` cancels a job.
- ``submit_job_description``, in the same class, raises ``DataflowJobAlreadyExistsError`` if a job of that name runs.
- ``DataflowRunner.run_pipeline`` in apache_beam/runners/dataflow/dataflow_runner.py sets ``job``, an ``apiclient.Job``,
  before it stages anything. ``Job.__init__`` sets ``staging_location`` to a folder of this job alone.
- ``Job.__init__`` asks ``Job.job_id_for_name`` for the job to update, which lists jobs.
- The loggers of the modules in ``_LOGGERS`` log every failed attempt with a traceback.
- ``Pipeline.to_runner_api`` in apache_beam/pipeline.py, for internal use, returns the pipeline as a protobuf message.
  With ``return_context``, it also returns the context that resolves the ids of coders.
- ``Coder.__repr__`` and its overrides in apache_beam/coders/coders.py name the coder and its component coders.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pipeline import Pipeline
from apache_beam.runners.dataflow.internal.apiclient import DataflowApplicationClient, Job
from apache_beam.runners.dataflow.internal.apiclient import DataflowJobAlreadyExistsError as JobAlreadyExists
from google.cloud.dataflow_v1beta3 import JobsV1Beta3Client

from pipeline.private_apis.replace import replaced

__all__ = [
    "JobAlreadyExists",
    "StagedJob",
    "cancel",
    "jobs_client",
    "silence_loggers",
    "staged_job",
    "steps_of",
    "unlisted_update",
]

_LOGGERS = (
    "google.auth._default",
    "apache_beam.internal.gcp.auth",
    "apache_beam.runners.dataflow.internal.apiclient",
    "apache_beam.utils.retry",
)


class StagedJob(NamedTuple):
    """A job whose submission ended early."""

    options: PipelineOptions
    staging_location: str
    """The folder of this job's files."""


def jobs_client(options: PipelineOptions) -> JobsV1Beta3Client:
    """Returns Google's client of jobs, with the endpoint, credentials and transport that Beam uses."""
    return DataflowApplicationClient(options)._jobs_client


def cancel(options: PipelineOptions, job_id: str) -> None:
    """Cancels a job."""
    DataflowApplicationClient(options).modify_job_state(job_id, "JOB_STATE_CANCELLED")


def staged_job(pipeline: Pipeline) -> StagedJob | None:
    """Returns the job of a pipeline that was run; None if the run ended before staging began."""
    job = getattr(pipeline.runner, "job", None)
    return None if job is None else StagedJob(job.options, job.google_cloud_options.staging_location)


@contextmanager
def unlisted_update() -> Iterator[None]:
    """Stages an update without listing jobs and without the id of the job to update, which is left to Dataflow."""
    with replaced(Job, "job_id_for_name", lambda *_: ""):
        yield


def silence_loggers() -> None:
    """Keeps Beam and Google's client from logging failures, for callers that report them in one line."""
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def steps_of(pipeline: Pipeline) -> dict[str, str]:
    """Returns the coders of every step's outputs, by the step's label: what Dataflow compares in an update."""
    proto, context = pipeline.to_runner_api(return_context=True)
    steps = {}
    for id_, transform in proto.components.transforms.items():
        if id_ not in proto.root_transform_ids:
            coder_ids = [proto.components.pcollections[output].coder_id for output in transform.outputs.values()]
            steps[transform.unique_name] = ", ".join(
                sorted(str(context.coders.get_by_id(coder_id)) for coder_id in coder_ids)
            )
    return dict(sorted(steps.items()))
