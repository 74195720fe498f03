"""``tidetable backfill``: writes readings from files to a table, as if they had been streamed."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.backfill.summary import DryRun, Summary, fail_on_unreadable, progress_of, report_records
from pipeline.cli.console import print_json_line
from pipeline.cli.message_options import (
    attribute_option,
    check_readers,
    decoder_option,
    file_decoder_option,
    message_options,
)
from pipeline.cli.options import (
    BeamCommand,
    Parsed,
    allowed_lateness_option,
    beam_flags,
    dry_run_option,
    force_option,
    json_option,
    late_firing_option,
    table_options,
)
from pipeline.cli.record_options import accept_expired_option, column_options, expired_message, max_record_bytes_option
from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import tables
from pipeline.cloud.tables.retention_notes import noted_id, record_losses, retention_of
from pipeline.cloud.tables.schema_store import schema_of
from pipeline.core.dead_letters import DeadLetter, letter_json
from pipeline.core.decoding.dry_decode import Trials
from pipeline.core.events.message import Message
from pipeline.core.notation.durations import parse_duration
from pipeline.core.notation.text import json_line
from pipeline.core.schema.gc_policies import Policy
from pipeline.core.schema.retention import Expiry
from pipeline.core.schema.table_schema import SCHEMA_FAMILY, TableSchema
from pipeline.formats.decoded_files import DecodingMaker, FileDecoder
from pipeline.formats.files import Maker
from pipeline.formats.mapped import MappedMaker
from pipeline.formats.values import EventMaker, FileColumns, clock_us
from pipeline.transforms import metrics

if TYPE_CHECKING:  # importing Beam takes seconds, too long for --help
    from pipeline.backfill.request import Backfill, Outcome
    from pipeline.core.decoding.message_types import DecoderFunction, MappedType

_DURATION = Parsed("duration", parse_duration)
_TO_GO_ON = "run the same command again to go on after the files that are done, or with --restart to begin anew"


@click.command(cls=BeamCommand)
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@table_options
@column_options
@message_options
@decoder_option
@file_decoder_option
@attribute_option
@max_record_bytes_option
@accept_expired_option
@allowed_lateness_option
@late_firing_option
@click.option(
    "--max-future",
    type=_DURATION,
    default="1h",
    show_default=True,
    help="How far ahead of now an event may be.",
)
@click.option("--refused", "dead_letters", metavar="FILE", help="Write refused records to this file.")
@force_option
@click.option("--restart", is_flag=True, help="Begin anew, after an interruption too.")
@dry_run_option
@json_option
@click.pass_context
def backfill(
    ctx: click.Context,
    inputs: tuple[str, ...],
    table: TableName,
    columns: FileColumns,
    mapped: Sequence["MappedType"],
    decoder: "DecoderFunction | None",
    file_decoder: FileDecoder | None,
    attributes: dict[str, str],
    max_record_bytes: int,
    accept_expired: bool,
    allowed_lateness: timedelta,
    late_firing: timedelta,
    max_future: timedelta,
    dead_letters: str | None,
    force: bool,
    restart: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Write the readings in files to the table, raw rows and aggregates, as if they had been streamed.

    INPUT is a file or a glob, local or in a bucket (gs://…): .csv, .ndjson, or .pb and .binpb (length-delimited
    SensorEvent messages), plain or as .gz; .avro or .parquet. Records are read as publish reads them. A field of Avro
    or Parquet is like one of NDJSON; dates, times and UUIDs are metadata, and a Parquet duration is a reading in
    seconds.

    With --message-mapping, a record becomes events as a message of the job does. Records are delimited messages of
    another type, or, with message = "json", lines of NDJSON or rows of CSV, Avro and Parquet. A --message-decoder
    takes each of these as a payload, rows as JSON. A --file-decoder gets whole files, of any format.

    Computes the aggregate of a window from the events in the files and from the window's raw rows in the table, and
    replaces the aggregate row. Roll-ups follow. Running the same files again changes nothing. Windows that a running
    job may still write go on the work list, and repair --listed brings their roll-ups in line.

    First counts the events that are older than the table keeps readings. If it finds any, it writes nothing, unless
    --accept-expired is set. Writes refused records to --refused FILE (.ndjson or .ndjson.gz), a line
    each, in the format of dead-letters export.

    With --dry-run, writes nothing: not even refused records. Prints the sensors, the span of time and the metrics of
    the events in the files, and the first records beside their events.

    Runs on this machine, in a process for each core. Interrupted and run again, it goes on after the files that are
    done. Pass Beam's flags after "--" to run on Dataflow: … -- --runner=DataflowRunner --region=…

    \b
    Exit code:
      0    every record was written, or would be
      1    records were refused, events are too old, or a file or a server has a problem
      2    wrong usage
      130  Ctrl-C: written rows stay; run the same command again to go on, or with --restart to begin anew
    """  # noqa: D301 (\b is click's mark for a paragraph with fixed line breaks)
    from pipeline.backfill import run as job
    from pipeline.backfill.request import Backfill
    from pipeline.job import bounded
    from pipeline.job.flags import BadFlag
    from pipeline.job.settings import Target

    started = time.monotonic()
    check_readers(attributes, mapped, decoder, file_decoder)
    flags = beam_flags() or ()
    try:
        options = bounded.beam_options(flags, table.project)
        _check_dead_letters(dead_letters)
        policies = tables.describe(table)
        schema = _schema(table, policies)
        maker: Maker = EventMaker(columns, clock_us, max_future, max_record_bytes, metadata_alone=schema.metadata_alone)
        if mapped or decoder:
            maker = MappedMaker(mapped, max_record_bytes, attributes, decoder)
        elif file_decoder:
            maker = DecodingMaker(file_decoder, clock_us, max_future, metadata_alone=schema.metadata_alone)
        files = job.find_inputs(inputs, dead_letters, maker, options, force=force or dry_run)
        expiry = Expiry.of(schema, policies)
        retention = retention_of(table, schema, policies)
        plan = Backfill(
            files,
            maker,
            Target(table, schema, retention),
            expiry,
            max_future,
            allowed_lateness,
            late_firing,
            dead_letters,
            partial(_letter_line, Trials(mapped, decoder) if mapped or decoder else None),
            flags,
            inputs=inputs,
        )
        if dry_run:
            with progress_of("counting"):
                outcome = job.count(plan, surveys=True)
            report_records(outcome)
            summary = Summary(table, len(files), outcome, time.monotonic() - started)
            result = DryRun(summary, job.trials_of_events(plan, Trials(mapped, decoder)))
            if as_json:
                print_json_line(result.as_json())
            else:
                result.print()
            fail_on_unreadable(outcome)
            if not accept_expired:
                _check_expired(outcome, plan, policies)
            ctx.exit(1 if summary.refused else 0)
        if expiry.ages and not accept_expired:
            with progress_of("counting"):
                counted = job.count(plan)
            _check_expired(counted, plan, policies)
        record_losses(table, schema, retention, policies)
        plan = replace(plan, table_id=noted_id(table) if SCHEMA_FAMILY in policies else b"")
        with progress_of(f"writing to {table.table}"):
            outcome = job.load(plan, restart=restart)
    except BadFlag as problem:
        raise click.UsageError(str(problem)) from problem
    except KeyboardInterrupt:
        click.echo(f"Interrupted: written rows stay; {_TO_GO_ON}", err=True)
        ctx.exit(130)
    report_records(outcome)
    summary = Summary(table, len(files), outcome, time.monotonic() - started)
    if as_json:
        print_json_line(summary.as_json())
    else:
        summary.print(dead_letters, allowed_lateness)
    fail_on_unreadable(outcome)
    ctx.exit(1 if summary.refused else 0)


def _schema(name: TableName, policies: Mapping[str, Policy]) -> TableSchema:
    schema = schema_of(name)
    if missing := [family for family in schema.families if family not in policies]:
        raise ServerError(
            f"table {name} has no family {', '.join(missing)} (it has {', '.join(policies) or 'none'}); "
            f"{name.apply_command} adds what is missing"
        )
    return schema


def _check_dead_letters(file: str | None) -> None:
    if file is None or "://" in file:
        return
    if not Path(file).parent.is_dir():
        raise click.UsageError(f"--refused: {Path(file).parent} is not a directory")
    if Path(file).exists() and not Path(file).is_file():
        raise click.UsageError(f"--refused: {file} is not a regular file")


def _check_expired(outcome: "Outcome", plan: "Backfill", policies: Mapping[str, Policy]) -> None:
    """Raises ClickException if the count found unreadable files, or expired events."""
    # A decoder that refuses the rest of a file ends no other.
    if outcome.totals[metrics.BACKFILL_UNREADABLE_FILES] and not isinstance(plan.maker, DecodingMaker):
        report_records(outcome)
        fail_on_unreadable(outcome, ", and nothing was written")
    if expired := outcome.totals[metrics.EXPIRED_EVENTS]:
        raise click.ClickException(
            expired_message(expired, outcome.totals[metrics.EVENTS], plan.target.name, plan.expiry, policies, "written")
        )


def _letter_line(trials: Trials | None, letter: Message) -> str:
    return json_line(letter_json(DeadLetter.of(letter, trials)))
