"""``tidetable mapping``: checks mappings of messages, tries them on payloads, and drafts them."""

import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from pipeline.cli.console import print_json_line
from pipeline.cli.examples import ExampleGroup
from pipeline.cli.input_files import InputPath
from pipeline.cli.message_options import (
    attribute_option,
    decoder_option,
    descriptors_option,
    mapping_problems,
    message_options,
)
from pipeline.cli.options import COUNT, TIME, Parsed
from pipeline.cli.trials import print_trial
from pipeline.cloud.connection.names import subscription_path
from pipeline.core.decoding.dry_decode import Trial, Trials
from pipeline.core.events.event import MAX_FUTURE_US
from pipeline.core.events.message import Message
from pipeline.core.notation.durations import parse_duration
from pipeline.core.notation.text import counted, plain
from pipeline.core.notation.times import to_datetime
from pipeline.formats.lines import UnreadableFile
from pipeline.formats.trials import is_record_file, trials_of_records
from pipeline.mapping.draft import draft
from pipeline.mapping.pulled import pulled_messages
from pipeline.mapping.views import print_report, report_document

if TYPE_CHECKING:
    from pipeline.core.decoding.mapped_type import MappedType
    from pipeline.core.decoding.message_types import DecoderFunction

json_option = click.option("--json", "as_json", is_flag=True, help="Print lines of JSON.")


@click.group(cls=ExampleGroup)
def mapping() -> None:
    """Check, try or draft mappings, which say how messages of other types become events.

    \b
    Exit codes:
      0    success; for check, every mapping compiles, and the decoder can be called
      1    a mapping or a decoder can't be used, or a file or a server is out of reach
      2    wrong usage
      130  Ctrl-C; pulled messages are returned first
    """  # noqa: D301 (\b tells click to keep the line breaks of a paragraph)


mapping.add_command(draft)


@mapping.command()
@click.argument("files", nargs=-1, metavar="[FILE]...")
@descriptors_option
@decoder_option
@json_option
@click.pass_context
def check(
    ctx: click.Context,
    files: tuple[str, ...],
    descriptors: tuple[str, ...],
    decoder: "DecoderFunction | None",
    as_json: bool,
) -> None:
    """Check mappings against the types of their messages, and that a decoder can be called.

    Prints what each mapping reads, with its type; what several entries read, or name alike; and what of the message is
    left out. FILE is local or in a bucket (gs://…).
    """
    from pipeline.cloud.pubsub.message_files import check_distinct, load_descriptors
    from pipeline.core.decoding.mapping.language.model import MappingError
    from pipeline.mapping.checking import checked

    if not files and not decoder:
        raise click.UsageError("pass the files of mappings, or --message-decoder")
    with mapping_problems():
        sets = load_descriptors(descriptors)
    if decoder:
        found = {"decoder": decoder.name, "problems": []}
        print_json_line(found) if as_json else click.echo(f"{decoder.name} takes a payload and its attributes\n")
    results = [checked(file, sets) for file in files]
    for result in results:
        if as_json:
            print_json_line({"file": result.file, **report_document(result.report)})
        elif not result.report.problems:
            print_report(result.file, result.report)
    problems = [problem for result in results for problem in result.problems]
    if not problems:
        try:
            check_distinct([result.mapped for result in results if result.mapped])
        except MappingError as error:
            problems.append(str(error))
    for problem in problems:
        click.echo(plain(problem), err=True)
    ctx.exit(1 if problems else 0)


@mapping.command("try")
@click.argument("files", nargs=-1, type=InputPath(), metavar="[FILE]...")
@click.option(
    "--subscription",
    type=Parsed("subscription", subscription_path),
    help="Take messages from here and give them back, projects/PROJECT/subscriptions/SUBSCRIPTION.",
)
@message_options
@decoder_option
@attribute_option
@click.option(
    "--publish-time", type=TIME, default="now", show_default=True, help="When each FILE was published, such as -1h."
)
@click.option(
    "--limit",
    type=COUNT,
    default=10,
    show_default=True,
    help="Take at most this many messages of --subscription, or records of each FILE.",
)
@click.option(
    "--wait",
    type=Parsed("duration", parse_duration),
    default="3s",
    show_default=True,
    help="Stop after this long without a new message.",
)
@json_option
@click.pass_context
def try_(
    ctx: click.Context,
    files: tuple[Path, ...],
    subscription: str | None,
    mapped: Sequence["MappedType"],
    decoder: "DecoderFunction | None",
    attributes: dict[str, str],
    publish_time: int,
    limit: int,
    wait: timedelta,
    as_json: bool,
) -> None:
    """Show the events that mappings or a decoder make of real messages, beside the messages. Takes nothing away.

    A FILE in a format of backfill (.csv, .ndjson, .pb, .binpb, .avro, .parquet) is read by record; any other contains
    the payload of one message. Messages of a subscription are given back when the command ends; to
    Pub/Sub that is a failed delivery (see dead-letters --help). A dead letter is tried as the message that it was.

    The attribute message_type names a message's type, or the conditions of a mapping do, as in the job. A single
    mapping is also tried on messages without that attribute.
    """
    on_command_line = ctx.get_parameter_source("subscription") is ParameterSource.COMMANDLINE
    if bool(files) == bool(subscription and (on_command_line or not files)):
        raise click.UsageError("pass either payload files or --subscription")
    if not mapped and not decoder:
        raise click.UsageError("--message-mapping is missing: pass the file of a mapping, or --message-decoder")
    trials = Trials(mapped, decoder)
    latest_us = time.time_ns() // 1000 + MAX_FUTURE_US
    if files:
        at = to_datetime(publish_time)
        tried: list[tuple[str, Message, Trial]] = []
        for file in files:
            if not is_record_file(file):
                message = Message(file.read_bytes(), attributes, "", at)
                tried.append((str(file), message, trials.of(message, latest_us)))
                continue
            try:
                tried += trials_of_records(file, mapped, decoder, attributes, at, limit, latest_us)
            except UnreadableFile as problem:
                raise click.ClickException(f"{file}: {problem}") from problem
        _show(tried, as_json=as_json)
        return
    if attributes:
        raise click.UsageError("--attribute is for payload files; messages of a subscription have their own")
    stopped = False
    with pulled_messages(str(subscription), limit, wait) as pulled:
        _show(((source, each, trials.of(each, latest_us)) for source, each in pulled.messages), as_json=as_json)
        stopped = pulled.stopped()
    ctx.exit(130 if stopped else 0)


def _show(tried: Iterable[tuple[str, Message, Trial]], *, as_json: bool) -> None:
    assumed = 0
    for source, message, trial in tried:
        assumed += trial.is_assumed
        if as_json:
            print_json_line({"source": source, "attributes": dict(message.attributes), **trial.document()})
        else:
            print_trial(source, message, trial)
    if assumed:
        click.echo(
            f"{counted(assumed, 'message')} without the attribute message_type: a job refuses such a message, unless "
            "the mapping has unmarked = true or --default_message_type names its type",
            err=True,
        )
