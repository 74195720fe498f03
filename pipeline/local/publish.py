"""``tidetable publish``: publishes the readings in a file to a Pub/Sub topic."""

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.console import err, print_json_line, progress_bar, stop_on_sigint
from pipeline.cli.message_options import (
    attribute_option,
    check_readers,
    decoder_option,
    file_decoder_option,
    message_options,
)
from pipeline.cli.options import InputPath, json_option, rate_option, topic_option
from pipeline.cli.record_options import (
    accept_expired_option,
    column_options,
    expired_message,
    max_record_bytes_option,
    optional_table_options,
)
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.pubsub.publisher import Pacer, Publisher, UnacceptableMessage
from pipeline.cloud.tables import tables
from pipeline.cloud.tables.schema_store import schema_of
from pipeline.core.events.event import Event
from pipeline.core.events.message import message_of, sensor_event
from pipeline.core.notation.text import counted, plain
from pipeline.core.schema.retention import Expiry
from pipeline.core.schema.table_schema import TableSchema
from pipeline.formats.decoded_files import FileDecoder
from pipeline.formats.files import RecordFile, ToPublish, open_records
from pipeline.formats.lines import Original, Refusal, Remark
from pipeline.formats.mapped import LeftOutReadings, SkippedElements
from pipeline.formats.values import FileColumns, UnreadableFile, clock_us
from pipeline.proto.sensor_event_pb2 import SensorEvent

if TYPE_CHECKING:
    from pipeline.core.decoding.message_types import DecoderFunction, MappedType

_MAX_REPORTED = 20  # refused lines
_MAX_BYTES = 9_000_000  # all events in a message; Pub/Sub accepts 10 MB with all overhead
_BYTES_AROUND_EVENT = 8  # a tag and a length for each event in a batch


@dataclass
class _PublishCounts:
    """Counts published events and messages, refused and skipped records, and readings that are left out."""

    events: int = 0
    messages: int = 0
    refused: int = 0
    skipped: int = 0
    dropped: int = 0
    interrupted: bool = False
    problem: UnreadableFile | None = None


@click.command()
@click.argument("file", type=InputPath())
@topic_option
@column_options
@message_options
@decoder_option
@file_decoder_option
@attribute_option
@max_record_bytes_option
@click.option("--batch", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Events per message.")
@rate_option
@optional_table_options
@accept_expired_option
@json_option
@click.pass_context
def publish(
    ctx: click.Context,
    file: Path,
    topic: str,
    columns: FileColumns,
    mapped: Sequence["MappedType"],
    decoder: "DecoderFunction | None",
    file_decoder: FileDecoder | None,
    attributes: dict[str, str],
    max_record_bytes: int,
    batch: int,
    rate: float | None,
    table: TableName | None,
    accept_expired: bool,
    as_json: bool,
) -> None:
    """Publish the readings in FILE, by its suffix.

    CSV is .csv, .tsv (with tabs), .txt or .dat. Other suffixes are .ndjson, .lp, .pb and .binpb, all plain or gzipped
    (.gz), and .avro and .parquet.

    Each record becomes one event. In a CSV file, a column whose values in the first 1,000 records are all numbers is
    a reading; all other columns are metadata. The values NA, N/A, NaN, null, None and the empty value mean that the
    event does not have the reading or metadata. An NDJSON file has one flat object per line; numbers are readings,
    strings and booleans are metadata. A .pb or .binpb file contains SensorEvent messages, each preceded by its length.

    FILE may also be an output of read --output or of dead-letters export: each dead letter becomes a message with its
    attributes and ordering key, as in dead-letters replay. Edited events are published instead of its payload.

    With --message-mapping, FILE contains messages of another type, delimited or as lines of JSON or of InfluxDB's line
    protocol (.lp), which are published unchanged with their message_type. A mapping with message = "json" may also read
    the columns of CSV, Avro or Parquet; then the events that it makes are published. --message-decoder reads files
    likewise. With --file-decoder, FILE is of any format, and the events that the function yields are published.

    Records that are not valid events are refused, and the reason is printed. A reading that is NaN or infinite is left
    out of its event.

    A job counts old events too: it reads each of their windows from the table. For many of them, backfill is faster.

    With --project, --instance and --table, the command first checks for events that are older than the table keeps
    readings. If it finds any, it publishes nothing unless --accept-expired is set. It also publishes events of metadata
    alone, if the table keeps them.

    \b
    Exit codes:
      0    every record was published
      1    records were refused, events are too old, or the file or the server had a problem
      2    wrong usage
      130  Ctrl-C; messages already sent are published, the rest of the file is not
    """  # noqa: D301 (\b tells click to keep the line breaks of a paragraph)
    started = time.monotonic()
    check_readers(attributes, mapped, decoder, file_decoder)
    opened = partial(
        open_records,
        file,
        columns,
        max_record_bytes=max_record_bytes,
        mapped=mapped,
        attributes=attributes,
        decoder=decoder,
        file_decoder=file_decoder,
    )
    try:
        if table is not None:
            schema = schema_of(table)
            opened = partial(opened, metadata_alone=schema.metadata_alone)
            if not accept_expired:
                with opened() as records:
                    _check_expired(records, table, schema)
        with stop_on_sigint() as stopped, opened() as records, Publisher(topic) as publisher:
            pacer = Pacer(rate or math.inf, stopped)
            tally = _publish(file, records, batch, publisher, pacer, stopped)
    except UnreadableFile as problem:
        raise click.ClickException(f"{file}: {problem}") from problem
    except KeyboardInterrupt:
        click.echo("Interrupted twice: some messages may not have been published", err=True)
        os._exit(130)  # a regular exit would wait for the client's requests
    _print_summary(tally, topic, time.monotonic() - started, as_json=as_json)
    if tally.problem:
        raise click.ClickException(f"{file}: {tally.problem}") from tally.problem
    if tally.interrupted:
        ctx.exit(130)
    ctx.exit(1 if tally.refused else 0)


def batches(
    records: Iterable[Event | Original], size: int, max_bytes: int = _MAX_BYTES
) -> Iterator[list[SensorEvent] | Original]:
    """Yields lists of ``size`` events, or of fewer at the end and where more would exceed ``max_bytes``.

    Passes on messages to be replayed, or to be published as they are.
    """
    batch: list[SensorEvent] = []
    batch_bytes = 0
    for record in records:
        if isinstance(record, Original):
            yield record
            continue
        event = record.message or sensor_event(*record[:5])
        event_bytes = event.ByteSize() + _BYTES_AROUND_EVENT
        if batch and batch_bytes + event_bytes > max_bytes:
            yield batch
            batch, batch_bytes = [], 0
        batch.append(event)
        batch_bytes += event_bytes
        if len(batch) == size:
            yield batch
            batch, batch_bytes = [], 0
    if batch:
        yield batch


def _check_expired(records: RecordFile, table: TableName, schema: TableSchema) -> None:
    """Raises ClickException if the file has events that are too old for the table. Reads the whole file."""
    policies = tables.describe(table)
    expiry = Expiry.of(schema, policies)
    if not expiry.ages:
        return
    events = expired = 0
    now_us = clock_us()
    for record in records:
        found = [record] if isinstance(record, Event) else record.events if isinstance(record, Original) else []
        events += len(found)
        expired += sum(expiry.expires(event[1], event.readings, now_us, event.metadata) for event in found)
    if expired:
        raise click.ClickException(expired_message(expired, events, table, expiry, policies, "published"))


def _publish(
    file: Path, records: RecordFile, batch: int, publisher: Publisher, pacer: Pacer, stopped: Callable[[], bool]
) -> _PublishCounts:
    tally = _PublishCounts()
    with progress_bar() as progress:
        task = progress.add_task("publishing", total=records.size)
        for outgoing in batches(_valid(file, records, tally, stopped), batch):
            events = len(outgoing.events if isinstance(outgoing, Original) else outgoing)
            pacer.wait(events)
            if stopped():
                break
            try:
                if not isinstance(outgoing, Original):
                    publisher.send(message_of(outgoing))
                elif outgoing.is_replay:  # with attributes that send can't publish, or the topic refuses
                    publisher.send_batch([outgoing.message])
                else:
                    publisher.send(outgoing.message)
            except UnacceptableMessage as problem:
                tally.refused += 1
                click.echo(plain(f"{file}: {problem}"), err=True)
                continue
            tally.events += events
            tally.messages += 1
            if not progress.disable:
                progress.update(task, completed=records.position)
    tally.interrupted = stopped()
    if tally.refused > _MAX_REPORTED:
        err.out(f"and {tally.refused - _MAX_REPORTED:,} more", highlight=False)
    return tally


def _valid(
    file: Path, records: Iterable[ToPublish], tally: _PublishCounts, stopped: Callable[[], bool]
) -> Iterator[Event | Original]:
    """Yields valid events, and messages and dead letters with valid events.

    Prints and counts refusals; records an unreadable file in the tally.
    """
    try:
        for record in records:
            if stopped():
                return
            match record:
                case Event() | Original():
                    yield record
                case Refusal(line, reason):
                    tally.refused += 1
                    if tally.refused <= _MAX_REPORTED:
                        _report(file, line, reason)
                case SkippedElements(number):
                    tally.skipped += number
                case LeftOutReadings(line, number, text):
                    if tally.dropped < _MAX_REPORTED:
                        _report(file, line, f"left out: {text}")
                    tally.dropped += number
                case Remark(line, text):
                    _report(file, line, text)
    except UnreadableFile as problem:
        tally.problem = problem


def _report(file: Path, line: int, text: str) -> None:
    err.out(plain(f"{file}:{line}: {text}"), highlight=False)


def _print_summary(tally: _PublishCounts, topic: str, seconds: float, *, as_json: bool) -> None:
    events_per_second = tally.events / seconds
    if as_json:
        print_json_line(
            {
                "topic": topic,
                "events": tally.events,
                "messages": tally.messages,
                "skipped": tally.skipped,
                "dropped_readings": tally.dropped,
                "refused": tally.refused,
                "seconds": round(seconds, 3),
                "events_per_second": round(events_per_second, 1),
                "interrupted": tally.interrupted,
            }
        )
        return
    click.echo(
        f"{counted(tally.events, 'event')} in {counted(tally.messages, 'message')} published to {topic}, "
        f"{counted(tally.refused, 'line')} refused; "
        f"{f'{tally.skipped:,} skipped by the mapping; ' if tally.skipped else ''}"
        f"{counted(tally.dropped, 'reading') + ' left out; ' if tally.dropped else ''}"
        f"{seconds:.1f} s, {events_per_second:,.0f} events/s{'; interrupted' if tally.interrupted else ''}"
    )
