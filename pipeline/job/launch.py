"""``python -m pipeline``: from flags to a running job."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.cloud.connection.errors import ServerError
from pipeline.core.events.event import LATEST_US
from pipeline.job import dataflow
from pipeline.job.checks import check_launch, read_targets, read_types, record_launch
from pipeline.job.flags import BadFlag
from pipeline.job.foreground import run_until_stopped
from pipeline.job.graph import assemble
from pipeline.job.saying import say
from pipeline.job.settings import parse_flags, runs_here, settings_of
from pipeline.job.status import write_status
from pipeline.private_apis.repeated_work import kept_views, specs_by_class


def main(argv: Sequence[str] | None = None, status_file: Path | None = None) -> int:
    """Runs the job on the DirectRunner until a signal stops it, or submits it to Dataflow.

    Args:
        argv: the flags; None for those of the process.
        status_file: the file to write the status of a job that runs here to; None for none.

    Returns:
        The exit code: 0 if the job was submitted, or stopped in order; 1 if a server lacks something or the job failed;
        2 if a flag is invalid; 130 after Ctrl-C during the launch.
    """
    try:
        options = parse_flags(sys.argv[1:] if argv is None else argv)
        settings = settings_of(options)
        if status_file is not None:
            _begin(status_file)
        began_us = time.time_ns() // 1000
        if not runs_here(options):
            dataflow.prepare(options)
        types = read_types(settings.messages)
        if not runs_here(options):
            if settings.messages.decoder:
                dataflow.tell_of_decoder(options, settings.messages.decoder)
            dataflow.check_cloud(options)
            began_us = dataflow.began_at_us(options)
            if settings.results and began_us == LATEST_US:
                raise BadFlag(
                    "--results-topic needs a job that starts at once: the numbers of results begin with the time at "
                    "which it began, and a classic template may be started at any time"
                )
        targets = read_targets(settings)
        if settings.launch_checks:
            check_launch(settings, targets)
            noted = record_launch(settings, targets)
            if began_us != LATEST_US:  # a classic template may be started when the table is another one
                targets = noted
        with specs_by_class(), kept_views():
            pipeline = _pipeline(options)
            assemble(pipeline, targets, settings, began_us, types)
            if runs_here(options):
                return run_until_stopped(pipeline, targets, settings, status_file)
            schemas = [target.schema for target in targets]
            dataflow.submit(pipeline, schemas, began_us, dataflow.state_of(settings, targets))
    except (BadFlag, ServerError) as problem:
        say(str(problem), "ERROR")
        return 2 if isinstance(problem, BadFlag) else 1
    except KeyboardInterrupt:
        return 130
    return 0


def _begin(status_file: Path) -> None:
    """Writes an empty status, whose age tells how long the launch takes."""
    try:
        write_status(status_file, {})
    except OSError as error:
        raise BadFlag(f"--status-file {status_file}: {error.strerror}") from error


def _pipeline(options: PipelineOptions) -> beam.Pipeline:
    try:
        return beam.Pipeline(options=options)
    except ValueError as error:  # everything that Beam's validation found
        raise BadFlag(" ".join(str(error).split())) from error
