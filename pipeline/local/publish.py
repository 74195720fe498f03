"""``tidetable publish``: the readings in a file, to a Pub/Sub topic."""

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from pipeline.cli.console import err, print_json_line, progress_bar, stop_on_sigint
from pipeline.cli.options import Parsed, schema_options
from pipeline.cli.record_options import (
    accept_expired_option,
    column_options,
    expired_message,
    max_record_bytes_option,
    optional_table_options,
)
from pipeline.cloud import tables
from pipeline.cloud.names import TableName, topic_path
from pipeline.cloud.publisher import Pacer, Publisher
from pipeline.cloud.schema_store import schema_of
from pipeline.core.outgoing import message_of
from pipeline.core.schema.declared import DeclaredSchema
from pipeline.core.schema.expiry import Expiry
from pipeline.core.text import plain
from pipeline.formats.files import FileColumns, Record, RecordFile, Refusal, Remark, UnreadableFile, open_records
from pipeline.formats.values import clock_us
from pipeline.proto.sensor_event_pb2 import SensorEvent

_MOST_TOLD = 20
_MOST_BYTES = 9_000_000  # of a message's events; Pub/Sub takes 10 MB, with all that is around them
_BYTES_AROUND_EVENT = 8  # in its batch: a tag and a length


@dataclass
class _Tally:
    """What became of the file so far."""

    events: int = 0
    messages: int = 0
    refused: int = 0
    interrupted: bool = False
    problem: UnreadableFile | None = None


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--topic", required=True, type=Parsed("topic", topic_path), help="projects/PROJECT/topics/TOPIC.")
@column_options
@max_record_bytes_option
@click.option("--batch", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Events in a message.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Events a second. Without it, as fast as can be.")
@optional_table_options
@schema_options
@accept_expired_option
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one line of JSON.")
@click.pass_context
def publish(
    ctx: click.Context,
    file: Path,
    topic: str,
    columns: FileColumns,
    max_record_bytes: int,
    batch: int,
    rate: float | None,
    table: TableName | None,
    declared: DeclaredSchema,
    accept_expired: bool,
    as_json: bool,
) -> None:
    """Publish the readings in FILE, a .csv or .ndjson, or .pb or .binpb, plain or as .gz.

    Each record becomes one event. In a CSV, a column is numeric when all its values in the first 1,000 records are
    numbers, and is a reading then; all other columns are metadata. An empty value, NA, N/A, NaN, null and None mean
    that the event lacks it. In NDJSON, one flat object a line, numbers are readings, strings and booleans metadata.
    In a .pb or .binpb are SensorEvent messages, each behind its length.

    Lines that make no valid event are refused, each with its reason.

    With --project, --instance and --table, events that are older than that table keeps readings are counted before
    anything is published, and --accept-expired goes on all the same.

    \b
    Exit code:
      0    every line was published
      1    lines were refused, events are too old, or the file or the server had a problem
      2    the command line is wrong
      130  Ctrl-C: the rest of the file is left out; what was sent is published all the same
    """  # noqa: D301 (\b is click's mark for a paragraph that keeps its lines)
    started = time.monotonic()
    opened = partial(open_records, file, columns, max_record_bytes=max_record_bytes)
    try:
        if table is not None and not accept_expired:
            with opened() as records:
                _check_expired(records, table, declared)
        with stop_on_sigint() as stopped, opened() as records, Publisher(topic) as publisher:
            pacer = Pacer(rate or math.inf, stopped)
            tally = _publish(file, records, batch, publisher, pacer, stopped)
    except UnreadableFile as problem:
        raise click.ClickException(f"{file}: {problem}") from problem
    except KeyboardInterrupt:
        click.echo("Interrupted twice: not all that was sent may be published", err=True)
        os._exit(130)  # an orderly end would wait for the client's requests
    _sum_up(tally, topic, time.monotonic() - started, as_json=as_json)
    if tally.problem:
        raise click.ClickException(f"{file}: {tally.problem}") from tally.problem
    if tally.interrupted:
        ctx.exit(130)
    ctx.exit(1 if tally.refused else 0)


def batches(events: Iterable[SensorEvent], most: int, most_bytes: int = _MOST_BYTES) -> Iterator[list[SensorEvent]]:
    """The events in lists of ``most``; fewer in the last, and where more would be beyond ``most_bytes``."""
    batch: list[SensorEvent] = []
    batch_bytes = 0
    for event in events:
        size = event.ByteSize() + _BYTES_AROUND_EVENT
        if batch and batch_bytes + size > most_bytes:
            yield batch
            batch, batch_bytes = [], 0
        batch.append(event)
        batch_bytes += size
        if len(batch) == most:
            yield batch
            batch, batch_bytes = [], 0
    if batch:
        yield batch


def _check_expired(records: RecordFile, table: TableName, declared: DeclaredSchema) -> None:
    """Reads the file once, before anything of it is published."""
    policies = tables.describe(table)
    expiry = Expiry.of(schema_of(table, declared), policies)
    if not expiry.ages:
        return
    events = expired = 0
    now_us = clock_us()
    for record in records:
        if isinstance(record, SensorEvent):
            events += 1
            expired += expiry.expires(record.event_time.ToMicroseconds(), record.readings, now_us)
    if expired:
        raise click.ClickException(
            expired_message(expired, events, table, expiry, policies)
            + "; nothing was published; set --accept-expired to publish them anyway"
        )


def _publish(
    file: Path, records: RecordFile, batch: int, publisher: Publisher, pacer: Pacer, stopped: Callable[[], bool]
) -> _Tally:
    tally = _Tally()
    with progress_bar() as progress:
        task = progress.add_task("publishing", total=records.size)
        for events in batches(_valid(file, records, tally, stopped), batch):
            pacer.wait(len(events))
            if stopped():
                break
            publisher.send(message_of(events))
            tally.events += len(events)
            tally.messages += 1
            if not progress.disable:
                progress.update(task, completed=records.position)
    tally.interrupted = stopped()
    if tally.refused > _MOST_TOLD:
        err.out(f"and {tally.refused - _MOST_TOLD:,} more", highlight=False)
    return tally


def _valid(file: Path, records: Iterable[Record], tally: _Tally, stopped: Callable[[], bool]) -> Iterator[SensorEvent]:
    """The events. Refusals are told and counted; a file that ends before its time is noted in the tally."""
    try:
        for record in records:
            if stopped():
                return
            match record:
                case SensorEvent():
                    yield record
                case Refusal(line, reason):
                    tally.refused += 1
                    if tally.refused <= _MOST_TOLD:
                        _tell(file, line, reason)
                case Remark(line, text):
                    _tell(file, line, text)
    except UnreadableFile as problem:
        tally.problem = problem


def _tell(file: Path, line: int, text: str) -> None:
    err.out(plain(f"{file}:{line}: {text}"), highlight=False)


def _sum_up(tally: _Tally, topic: str, seconds: float, *, as_json: bool) -> None:
    events_per_second = tally.events / seconds
    if as_json:
        print_json_line(
            {
                "topic": topic,
                "events": tally.events,
                "messages": tally.messages,
                "refused": tally.refused,
                "seconds": round(seconds, 3),
                "events_per_second": round(events_per_second, 1),
                "interrupted": tally.interrupted,
            }
        )
        return
    click.echo(
        f"{tally.events:,} events in {tally.messages:,} messages published to {topic}, {tally.refused:,} lines "
        f"refused; {seconds:.1f} s, {events_per_second:,.0f} events/s{'; interrupted' if tally.interrupted else ''}"
    )
