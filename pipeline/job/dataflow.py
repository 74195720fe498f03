"""Submits jobs to Dataflow: checks and labels them, explains refusals, and cleans up after failures."""

import hashlib
import json
import re
import secrets
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import apache_beam as beam
import google.auth
from apache_beam.io.gcp.gcsio import create_storage_client
from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    SetupOptions,
    WorkerOptions,
)
from apache_beam.runners.runner import PipelineResult
from google.api_core.exceptions import ClientError, Forbidden
from google.cloud import dataflow_v1beta3 as dataflow

from pipeline import __version__
from pipeline.cloud.connection.errors import ServerError, explained
from pipeline.core.events.event import LATEST_US
from pipeline.core.panes import grouped_readings
from pipeline.core.rollups import due
from pipeline.core.schema.declared_metric import DeclaredMetric
from pipeline.core.schema.rate import groups_for
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import document_of
from pipeline.job.flags import BadFlag
from pipeline.job.saying import say
from pipeline.job.settings import Settings, Target, is_flex_launch
from pipeline.private_apis.dataflow_client import (
    JobAlreadyExists,
    cancel,
    jobs_client,
    silence_loggers,
    staged_job,
    steps_of,
    unlisted_update,
)

# Labels of the job: the schemas of its tables, a hash of its graph, the launch, and the beginning of its state.
_SCHEMA = "tidetable-schema"
_GRAPH = "tidetable-graph"
_LAUNCH = "tidetable-launch"
_BEGAN = "tidetable-began"

_ALIVE = (
    dataflow.JobState.JOB_STATE_QUEUED,
    dataflow.JobState.JOB_STATE_PENDING,
    dataflow.JobState.JOB_STATE_RUNNING,
)
_TIMEOUT_S = 10.0
# The formats of a job's state that another release may not read. The rest is a cache.
_FORMATS = {"parts": grouped_readings.VERSION}
_ROLLUP_FORMATS = {"due": due.VERSION}
_JOB_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_REGION = re.compile(r"[a-z]+(-[a-z]+)+[0-9]+")
_GCS = re.compile(r"gs://[a-z0-9][-._a-z0-9]{1,61}[a-z0-9](/.*)?")


def prepare(options: PipelineOptions) -> None:
    """Checks Beam's flags for Dataflow, names a job without a name, and sets options that every job needs.

    Raises:
        BadFlag: the first flag that is missing or that Dataflow would refuse.
    """
    cloud = options.view_as(GoogleCloudOptions)
    if not cloud.region:
        raise BadFlag("--region is needed: where the job runs, like europe-west4")
    if not _REGION.fullmatch(cloud.region):
        raise BadFlag(f"--region is {cloud.region!r}; it has to be a region like europe-west4")
    if not cloud.temp_location:
        raise BadFlag("--temp-location is needed: a folder in a bucket for the job's files, like gs://my-bucket/temp")
    for flag, location in (("--temp-location", cloud.temp_location), ("--staging-location", cloud.staging_location)):
        if location and not _GCS.fullmatch(location):
            raise BadFlag(f"{flag} is {location!r}; it has to be a folder in a bucket, like gs://my-bucket/temp")
    if not _has_package(options):
        raise BadFlag("--sdk-container-image is needed: the image that 'make template' builds, with this package in it")
    if cloud.update and not cloud.job_name:
        raise BadFlag("--job-name is needed with --update: the name of the running job")
    if not cloud.job_name:
        cloud.job_name = f"tidetable-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    if not _JOB_NAME.fullmatch(cloud.job_name):
        raise BadFlag(
            f"--job-name is {cloud.job_name!r}; Dataflow takes lower-case letters, digits and '-', "
            "from a letter on, 63 at most, with no '-' at the end"
        )
    # Beam would pickle the main session and stage it. The image has everything, and workers should unpickle no more.
    options.view_as(SetupOptions).save_main_session = False
    cloud.enable_hot_key_logging = True  # names the group of sensors that is busier than a worker can handle


def check_cloud(options: PipelineOptions) -> None:
    """Checks credentials and buckets. Beam itself would retry for minutes, with a traceback each time.

    Raises:
        ServerError: credentials or a bucket are missing.
    """
    cloud = options.view_as(GoogleCloudOptions)
    silence_loggers()  # a failure is reported in one line, by us
    if not cloud.no_auth:
        with explained(f"Dataflow in {cloud.region} of {cloud.project}"):
            google.auth.default()
    for location in {cloud.temp_location, cloud.staging_location or cloud.temp_location}:
        bucket = location.removeprefix("gs://").partition("/")[0]
        with explained(f"bucket gs://{bucket}"):
            create_storage_client(options, not cloud.no_auth).get_bucket(bucket, timeout=_TIMEOUT_S)


def _has_package(options: PipelineOptions) -> bool:
    """Returns whether the workers will have this package, from an image or staged."""
    setup = options.view_as(SetupOptions)
    image = options.view_as(WorkerOptions).sdk_container_image
    return bool(image or setup.setup_file or setup.extra_packages or setup.requirements_file)


def tell_of_decoder(options: PipelineOptions, decoder: str) -> None:
    """Prints that the workers need the decoder function too, unless they run a Flex Template's own image."""
    if not is_flex_launch(options.view_as(GoogleCloudOptions).template_location):
        say(f"the workers call {decoder} too: their image, or a package that is staged for them, must contain it")


def fingerprint(steps: dict[str, str]) -> str:
    """Returns a hash of :func:`steps_of`, short enough for a label."""
    return hashlib.sha256(json.dumps(steps, sort_keys=True).encode()).hexdigest()[:16]


def schema_label(schemas: Sequence[TableSchema]) -> str:
    """Returns the value of the schema label: ``default``, ``tall-1a2b3c4d`` or ``2-tables-1a2b3c4d``.

    ``default`` stands for one table of the default schema. The hash leaves out the keys that do not concern the job:
    policies, rates, units and labels.
    """
    parts = [_hashed_keys(schema) for schema in schemas]
    if parts == [_hashed_keys(TableSchema.default())]:
        return "default"
    kind = schemas[0].layout.name if len(schemas) == 1 else f"{len(schemas)}-tables"
    return f"{kind}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]}"


def _hashed_keys(schema: TableSchema) -> dict[str, Any]:
    ranges = {metric: DeclaredMetric(valid=valid) for metric, valid in schema.ranges.items()}
    document = document_of(replace(schema, declared=ranges))
    return {key: value for key, value in document.items() if key not in ("policies", "rate")}


def state_of(settings: Settings, targets: Iterable[Target]) -> dict[str, str]:
    """Returns the settings on which a job's state depends besides its steps: an update with others would misread it."""
    declared = [target.schema.statistics.globs for target in targets]
    return {
        **({"[statistics]": json.dumps(declared)} if any(declared) else {}),
        "formats": json.dumps(_FORMATS),
        **({"roll-ups": json.dumps(_ROLLUP_FORMATS)} if any(target.schema.rollups for target in targets) else {}),
        "groups": ",".join(str(groups_for(target.schema.rate)) for target in targets),
        "--max_future": str(settings.max_future),  # decides which windows count as begun before the job
        "--bigtable_table": ",".join(str(target.name) for target in targets),
        "--window": ",".join(tier.window.text for target in targets for tier in target.schema.tiers),
    }


def began_at_us(options: PipelineOptions) -> int:
    """Returns the time, in µs since the epoch, at which the job about to be submitted begins to see events.

    An update keeps the state of the job that it replaces, and thus its beginning; if that is unknown, the beginning is
    now, the latest possible time. A Flex Template's job starts at once, like one that is submitted from a shell. A
    classic template may be started at any time, so every window counts as begun before its job.

    Raises:
        ServerError: no job of that name runs that could be updated.
    """
    cloud = options.view_as(GoogleCloudOptions)
    if cloud.template_location and not is_flex_launch(cloud.template_location):
        return LATEST_US
    running = _running_job(options) if cloud.update else None
    if running is not None:
        began = dict(running.labels).get(_BEGAN, "")
        if began.isdigit():
            return int(began)
    return time.time_ns() // 1000


def submit(
    pipeline: beam.Pipeline,
    schemas: Sequence[TableSchema],
    began_us: int | None = None,
    state: Mapping[str, str] | None = None,
) -> PipelineResult:
    """Submits the job and returns at once: a Flex Template's launcher must not wait for a job that never ends.

    A submission that fails removes its staged files.

    Args:
        pipeline: the job.
        schemas: the schemas of the job's tables, for a label.
        began_us: the time at which the job begins to see events, for a label; see :func:`began_at_us`.
        state: the settings on which the job's state depends; see :func:`state_of`.

    Raises:
        ServerError: Google refused, or could not be reached.
    """
    options = pipeline.options
    cloud = options.view_as(GoogleCloudOptions)
    graph = fingerprint(steps_of(pipeline) | dict(state or {}))
    launch = secrets.token_hex(8)
    cloud.labels = [
        *(cloud.labels or []),
        f"tidetable-version={__version__.replace('.', '-')}",
        f"{_SCHEMA}={schema_label(schemas)}",
        f"{_GRAPH}={graph}",
        f"{_LAUNCH}={launch}",
        *([] if began_us is None else [f"{_BEGAN}={began_us}"]),
    ]
    unlisted = cloud.update and not _check_update(options, graph)
    for ending in (signal.SIGINT, signal.SIGTERM):  # both interrupt the submission, which is then taken back
        signal.signal(ending, signal.default_int_handler)
    with _cleaned_up(pipeline, launch), _refusals_explained(cloud), unlisted_update() if unlisted else nullcontext():
        result = pipeline.run()
    _report(result, cloud)
    return result


def _report(result: PipelineResult, cloud: GoogleCloudOptions) -> None:
    if cloud.template_location:
        say(f"staged as {cloud.template_location}")
        return
    page = f"https://console.cloud.google.com/dataflow/jobs/{cloud.region}/{result.job_id()}?project={cloud.project}"
    say(f"submitted {cloud.job_name}; see {page}")


def _check_update(options: PipelineOptions, graph: str) -> bool:
    """Compares this graph with the running job's. Dataflow would do so only after starting workers.

    With a mapping of steps the graphs are meant to differ, so they are not compared.

    Returns:
        Whether the running job is known; if not, Dataflow alone decides whether it can be updated.
    """
    cloud = options.view_as(GoogleCloudOptions)
    job = _running_job(options)
    if job is None:
        say(
            f"listing the jobs of {cloud.project} is denied, so Dataflow alone checks whether {cloud.job_name} can be "
            "updated; grant roles/dataflow.viewer to the launcher's account to have it checked here"
        )
        return False
    running = dict(job.labels).get(_GRAPH)
    if running != graph and not cloud.transform_name_mapping:
        raise ServerError(
            f"{cloud.job_name} runs another graph ({running or 'of unknown version'}; this one is {graph}), or its "
            "state differs: by tables, windows, a declared rate, --max-future, or the release's "
            "formats; so it can't be updated in place: drain it and start a new job, or, if only steps differ, map "
            "them with --transform-name-mapping; docs/update.md explains both"
        )
    return True


def _running_job(options: PipelineOptions) -> dataflow.Job | None:
    """Returns the job to update; None if a Flex Template's launcher may not list jobs.

    Raises:
        ServerError: no such job runs, or Dataflow could not be asked.
    """
    cloud = options.view_as(GoogleCloudOptions)
    try:
        running = _find_job(options, dataflow.JobState.JOB_STATE_RUNNING)
    except ServerError as problem:
        if isinstance(problem.__cause__, Forbidden) and is_flex_launch(cloud.template_location):
            return None
        raise
    if running is None:
        raise ServerError(
            f"no running job is called {cloud.job_name} in {cloud.region} of {cloud.project}; "
            "leave out --update to start one"
        )
    return running


def _find_job(options: PipelineOptions, *states: dataflow.JobState) -> dataflow.Job | None:
    """Returns the job of that name in one of the states, with all of its fields; None if there is no such job."""
    cloud = options.view_as(GoogleCloudOptions)
    with explained(f"Dataflow in {cloud.region} of {cloud.project}"):
        client = jobs_client(options)
        request = dataflow.ListJobsRequest(
            project_id=cloud.project, location=cloud.region, filter=dataflow.ListJobsRequest.Filter.ACTIVE
        )
        for job in client.list_jobs(request):
            if job.name == cloud.job_name and job.current_state in states:
                return client.get_job(
                    dataflow.GetJobRequest(
                        project_id=cloud.project,
                        location=cloud.region,
                        job_id=job.id,
                        view=dataflow.JobView.JOB_VIEW_ALL,
                    )
                )
    return None


@contextmanager
def _refusals_explained(cloud: GoogleCloudOptions) -> Iterator[None]:
    what = f"Dataflow in {cloud.region} of {cloud.project}"
    try:
        with explained(what):
            yield
    except JobAlreadyExists as error:
        raise ServerError(f"{what}: {error}") from error
    except OSError as error:  # a broken connection, or Beam was refused to write to the bucket
        raise ServerError(f"{what}: {' '.join(str(error).split())[:500]}") from error


@contextmanager
def _cleaned_up(pipeline: beam.Pipeline, launch: str) -> Iterator[None]:
    """Takes a failed launch back: cancels the job if Google has it already, and removes its staged files."""
    try:
        yield
    except BaseException as error:
        job = staged_job(pipeline)
        if job is not None:
            if _is_refusal(error) or _is_taken_back(job.options, launch):
                _remove_files(job.options, job.staging_location)
            else:
                say(f"staged files are left in {job.staging_location}")
        raise


def _is_refusal(error: BaseException) -> bool:
    """Returns whether Google refused the job. After Ctrl-C or a broken connection it may have accepted it."""
    return isinstance(error.__cause__, ClientError | JobAlreadyExists)


def _is_taken_back(options: PipelineOptions, launch: str) -> bool:
    """Returns whether no job of this launch needs its files: none was created, or it is cancelled now."""
    cloud = options.view_as(GoogleCloudOptions)
    try:
        with _refusals_explained(cloud):
            job = _find_job(options, *_ALIVE)
            if job is None or dict(job.labels).get(_LAUNCH) != launch:
                return True
            if cloud.update:  # cancelling it would end the job that it replaces
                say(f"{job.name} is being updated all the same: the request was already sent, as job {job.id}")
                return False
            cancel(options, job.id)
    except ServerError as problem:
        say(f"can't tell whether the job was submitted: {problem}")
        return False
    say(f"{job.name} was already submitted and is cancelled now")
    return True


def _remove_files(options: PipelineOptions, folder: str) -> None:
    # Not by FileSystems, which looks for credentials for half a minute even with --no_auth.
    bucket, _, path = folder.removeprefix("gs://").partition("/")
    try:
        with explained(folder):
            client = create_storage_client(options, not options.view_as(GoogleCloudOptions).no_auth)
            for blob in client.list_blobs(bucket, prefix=f"{path.rstrip('/')}/"):
                blob.delete()
    except (ServerError, OSError) as problem:  # OSError: a broken connection
        say(f"staged files are left in {folder}: {problem}")
