"""``tidetable mapping``: checks mappings of messages, tries them on payloads, and drafts them."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource
from rich.text import Text

from pipeline.cli.console import err, open_backlog, out, print_json_line
from pipeline.cli.hints import ExampleGroup
from pipeline.cli.message_options import (
    attribute_option,
    check_readers,
    decoder_option,
    descriptors_option,
    file_decoder_option,
    mapping_option,
    mapping_problems,
    message_options,
)
from pipeline.cli.options import TIME, ZONE, InputPath, Parsed, force_option, json_option, limit_option, wait_option
from pipeline.cli.tables import print_table, prose, render
from pipeline.cli.trials import print_trial
from pipeline.cloud.connection.names import subscription_path
from pipeline.cloud.pubsub.message_files import DescriptorFile, located, parse_mapping_file, with_type
from pipeline.core.decoding.dry_decode import Trial, Trials
from pipeline.core.decoding.file_names import file_attributes
from pipeline.core.decoding.mapping.authoring.check import MappingReport
from pipeline.core.decoding.mapping.authoring.check import check as report_on
from pipeline.core.decoding.mapping.authoring.guesses import toml_key, toml_text
from pipeline.core.decoding.mapping.language.model import PLAIN_TYPES, MappingError
from pipeline.core.decoding.mapping.values.descriptors import Descriptors
from pipeline.core.decoding.message_types import MappedType
from pipeline.core.events.dead_letter import REASON, original_of
from pipeline.core.events.event import MAX_FUTURE_US
from pipeline.core.events.message import Message
from pipeline.core.notation.documents import placed
from pipeline.core.notation.durations import format_duration
from pipeline.core.notation.text import counted, plain
from pipeline.core.notation.times import to_datetime
from pipeline.formats.decoded_files import DecodingMaker, FileDecoder
from pipeline.formats.files import Maker, is_record_file, trials_of_records
from pipeline.formats.mapped import MappedMaker
from pipeline.formats.values import UnreadableFile

if TYPE_CHECKING:
    from pipeline.core.decoding.mapping.authoring.rows import Sampled
    from pipeline.core.decoding.message_types import DecoderFunction


_MISSING = "--message-mapping is missing: pass the file of a mapping, --message-decoder or --file-decoder"
_SHOWN = 3  # records of the sample
_MESSAGES = 100
_WAIT = timedelta(seconds=3)


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


@mapping.command()
@mapping_option
@descriptors_option
@decoder_option
@file_decoder_option
@json_option
@click.pass_context
def check(
    ctx: click.Context,
    mappings: tuple[str, ...],
    descriptors: tuple[str, ...],
    decoder: "DecoderFunction | None",
    file_decoder: FileDecoder | None,
    as_json: bool,
) -> None:
    """Check mappings against the types of their messages, and that a decoder can be called.

    Prints what each mapping reads, with its type; what several entries read, or name alike; and what of the message is
    left out; and the units of its metrics, as the table's schema declares them.
    """
    from pipeline.cloud.pubsub.message_files import check_distinct, load_descriptors
    from pipeline.core.decoding.mapping.language.model import MappingError

    if not mappings and not decoder and not file_decoder:
        raise click.UsageError(_MISSING)
    with mapping_problems():
        sets = load_descriptors(descriptors)
    for function, takes in (decoder, "a payload and its attributes"), (file_decoder, "a file and its name"):
        if function:
            found = {"decoder": function.name, "problems": []}
            print_json_line(found) if as_json else click.echo(f"{function.name} takes {takes}\n")
    results = [checked(file, sets) for file in mappings]
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
    help="The subscription, projects/PROJECT/subscriptions/SUBSCRIPTION. Gets its messages back.",
)
@message_options
@decoder_option
@file_decoder_option
@attribute_option
@click.option(
    "--publish-time", type=TIME, default="now", show_default=True, help="When each FILE was published, such as -1h."
)
@limit_option(10)
@wait_option
@json_option
@click.pass_context
def try_(
    ctx: click.Context,
    files: tuple[Path, ...],
    subscription: str | None,
    mapped: Sequence[MappedType],
    decoder: "DecoderFunction | None",
    file_decoder: FileDecoder | None,
    attributes: dict[str, str],
    publish_time: int,
    limit: int,
    wait: timedelta,
    as_json: bool,
) -> None:
    """Show the events that mappings or a decoder make of real messages, beside the messages. Takes nothing away.

    A FILE in a format of backfill (.csv, .tsv, .txt, .dat, .ndjson, .lp, .pb, .binpb, .avro, .parquet) is read by
    record; any other contains the payload of one message. A --file-decoder reads any FILE. --limit is for the messages
    of the subscription, or the records of each FILE. Messages of a subscription are given back when the command ends;
    to Pub/Sub that is a failed delivery (see dead-letters --help). A dead letter is tried as the message that it was.

    The attribute message_type names a message's type, or the conditions of a mapping do, as in the job. A single
    mapping is also tried on messages without that attribute.
    """
    on_command_line = ctx.get_parameter_source("subscription") is ParameterSource.COMMANDLINE
    if bool(files) == bool(subscription and (on_command_line or not files)):
        raise click.UsageError("pass either payload files or --subscription")
    if not mapped and not decoder and not file_decoder:
        raise click.UsageError(_MISSING)
    check_readers(attributes, mapped, decoder, file_decoder)
    if file_decoder and not files:
        raise click.UsageError("--file-decoder reads files, not messages: pass a FILE")
    trials = Trials(mapped, decoder)
    of_file = [f"{one.file}: {one.mapping.of_file}" for one in mapped if one.mapping.of_file]
    latest_us = time.time_ns() // 1000 + MAX_FUTURE_US
    if files:
        at = to_datetime(publish_time)
        tried: list[tuple[str, Message, Trial]] = []
        maker: Maker = MappedMaker(mapped, attributes=attributes, decoder=decoder)
        if file_decoder:
            maker = DecodingMaker(file_decoder)
        for file in files:
            if not file_decoder and not is_record_file(file):
                named = {**attributes, **file_attributes(str(file))} if of_file else attributes
                message = Message(file.read_bytes(), named, "", at)
                tried.append((str(file), message, trials.of(message, latest_us)))
                continue
            try:
                tried += trials_of_records(file, maker, trials, at, limit, latest_us)
            except UnreadableFile as problem:
                _show(tried, as_json=as_json)
                raise click.ClickException(f"{file}: {problem}") from problem
        _show(tried, as_json=as_json)
        return
    if attributes:
        raise click.UsageError("--attribute is for payload files; messages of a subscription have their own")
    if of_file:
        raise click.UsageError(f"{of_file[0]}: messages of a subscription have no file; try the mapping on a FILE")
    with pulled_messages(str(subscription), limit, wait) as (pulled, stopped):
        _show(((source, each, trials.of(each, latest_us)) for source, each in pulled), as_json=as_json)
        exit_code = 130 if stopped() else 0
    ctx.exit(exit_code)


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
            "the mapping has unmarked = true or --default-message-type names its type",
            err=True,
        )


_Pulled = tuple[list[tuple[str, Message]], Callable[[], bool]]
"""Messages with their sources, and whether Ctrl-C was pressed."""


@contextmanager
def pulled_messages(subscription: str, limit: int, wait: timedelta) -> Iterator[_Pulled]:
    """Pulls messages, and gives them back at the end; a dead letter is the message that was refused."""
    with open_backlog(subscription) as (backlog, stopped):
        found: list[tuple[str, Message]] = []
        for page in backlog.pages(limit, first=limit, wait_seconds=wait.total_seconds(), stopped=stopped):
            for message in page:
                original = original_of(message) if REASON in message.attributes else message
                found.append((f"message {original.message_id}", original))
        if not found and not stopped():
            waited = f"within {format_duration(wait)}" if wait else "at once"
            click.echo(f"no message from {subscription} {waited}", err=True)
        yield found, stopped


class CheckedMapping(NamedTuple):
    """The result of checking a mapping's file: ``mapped`` is None if the mapping does not hold.

    Each problem of the report is in ``problems``, after the file and the line.
    """

    file: str
    report: MappingReport
    mapped: MappedType | None
    problems: Sequence[str] = ()


def checked(file: str, sets: Sequence[DescriptorFile]) -> CheckedMapping:
    """Checks a mapping against the first descriptors with its type.

    Raises ServerError if a bucket is out of reach.
    """
    try:
        mapped = parse_mapping_file(file, sets)
        types = Descriptors() if mapped.name in PLAIN_TYPES else with_type(mapped.name, sets).types
        report = report_on(mapped.mapping, types)
        if not report.problems:
            with located(file, mapped.text):
                mapped.compile()  # of a schema, against its older revisions too
    except MappingError as error:
        return CheckedMapping(file, MappingReport("", problems=[error.problem]), None, [str(error)])
    problems = [f"{placed(file, mapped.text, problem)}: {problem}" for problem in report.problems]
    return CheckedMapping(file, report, None if problems else mapped, problems)


def report_document(report: MappingReport) -> dict[str, Any]:
    """Returns a report as a JSON object."""
    if report.problems:
        return {"message": report.message or None, "problems": report.problems}
    return {
        "message": report.message,
        "each": list(report.each),
        "entries": [line._asdict() for line in report.lines],
        "twice": [{"path": shared.name, "keys": list(shared.keys)} for shared in report.twice],
        "same_name": [{"name": shared.name, "keys": list(shared.keys)} for shared in report.same_name],
        "partly": [left._asdict() for left in report.partly],
        "unmapped": [left._asdict() for left in report.unmapped],
        "units": report.units,
        "problems": [],
    }


def print_report(file: str, report: MappingReport) -> None:
    """Prints what a mapping reads and what it leaves."""
    events = f"events of {', '.join(report.each)}" if report.each else "one event a message"
    render(out, Text(f"{file}: {report.message}, {events}", style="bold"))
    _print_rows("reads", report.lines)
    _print_rows("reads twice", ((shared.name, ", ".join(shared.keys)) for shared in report.twice))
    _print_rows(
        "names alike, which refuses an event that has both",
        ((shared.name, ", ".join(shared.keys)) for shared in report.same_name),
    )
    _print_rows("reads in part", report.partly)
    _print_rows("leaves out", report.unmapped)
    if report.units:
        render(out, Text("  has units; for the table's schema:"))
    for name, unit in report.units.items():
        render(out, Text(f"    [metrics.{toml_key(name)}]\n    unit = {toml_text(unit)}"))
    render(out, "")


def _print_rows(heading: str, rows: Iterable[Sequence[str]]) -> None:
    columns = [column for column in zip(*rows, strict=True) if any(column)]
    if not columns:
        return
    render(out, Text(f"  {heading}:"))
    print_table([prose("") for _ in columns], zip(*columns, strict=True), indent=4, is_bare=True)


@mapping.command()
@click.argument("sample", required=False, type=InputPath(), metavar="[SAMPLE]")
@click.option("--message", metavar="TYPE", help="The full name of a message type, like acme.v1.Report.")
@descriptors_option
@click.option(
    "--subscription",
    type=Parsed("subscription", subscription_path),
    help="The subscription, projects/PROJECT/subscriptions/SUBSCRIPTION. Gets its messages back.",
)
@click.option(
    "--time-zone",
    type=ZONE,
    help="The time zone of times without an offset, such as Europe/Berlin. [default: a guess]",
)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file. [default: print]"
)
@force_option
@click.pass_context
def draft(
    ctx: click.Context,
    sample: Path | None,
    message: str | None,
    descriptors: tuple[str, ...],
    subscription: str | None,
    time_zone: str | None,
    output: Path | None,
    force: bool,
) -> None:
    """Propose a mapping for your data: for a file, for messages, or for a message type.

    SAMPLE is CSV, .ndjson, .lp, .avro or .parquet, whose first 1,000 records count, or any other file with one message:
    JSON, a form, or InfluxDB's line protocol. A subscription has such messages too. The draft
    guesses the columns of the sensor and the time, how times and numbers are written, the readings and the metadata.
    For --message, it goes by the names and types of fields.

    It compiles; comments say what is in doubt. Below it, on standard error, stand the first records with the events
    that they become.
    """
    from_subscription = ctx.get_parameter_source("subscription") is click.core.ParameterSource.COMMANDLINE
    if sum((sample is not None, message is not None, from_subscription)) != 1:
        raise click.UsageError("pass a SAMPLE, --message with --message-descriptors, or --subscription")
    if output and output.exists() and not force:
        raise click.UsageError(f"{output} exists; pass --force to replace it")
    show: Callable[[], None] | None = None
    if message:
        text = _of_type(message, descriptors)
    else:
        sampled = _read(sample) if sample else _pulled(str(subscription))
        text, show = _of_sample(
            sampled, time_zone or "", None if sample and is_record_file(sample) else datetime.now(UTC)
        )
    if output is None:
        click.echo(text, nl=False)
    else:
        try:
            output.write_text(text)
        except OSError as error:
            raise click.ClickException(f"{output}: {error.strerror or error}") from error
    if show:
        show()
    if output:
        click.echo(
            f"{output} written; look at its guesses, then: tidetable mapping check --message-mapping {output}", err=True
        )


def _of_type(message: str, descriptors: tuple[str, ...]) -> str:
    from pipeline.cloud.pubsub.message_files import load_descriptors, with_type
    from pipeline.core.decoding.mapping.authoring.draft import draft as drafted

    if not descriptors:
        raise click.UsageError("--message-descriptors is missing: pass the file that defines the message type")
    with mapping_problems():
        return drafted(with_type(message, load_descriptors(descriptors)).types, message)


def _read(sample: Path) -> "Sampled":
    from pipeline.formats.samples import read_sample

    try:
        return read_sample(sample)
    except (UnreadableFile, OSError) as problem:
        raise click.ClickException(plain(f"{sample}: {problem}")) from problem


def _pulled(subscription: str) -> "Sampled":
    from pipeline.formats.samples import sample_of_messages

    with pulled_messages(subscription, _MESSAGES, _WAIT) as (pulled, _):
        messages = [message for _, message in pulled]
    if not messages:
        raise click.ClickException("there is nothing to draft a mapping of")
    try:
        return sample_of_messages(messages, f"{counted(len(messages), 'message')} of {subscription}")
    except UnreadableFile as problem:
        raise click.ClickException(f"{subscription}: {problem}") from problem


def _of_sample(sampled: "Sampled", time_zone: str, publish_time: datetime | None) -> tuple[str, Callable[[], None]]:
    """Returns the draft for a sample, and the function that shows what it makes of the sample."""
    from pipeline.core.decoding.message_types import MappedType
    from pipeline.formats.samples import draft_of, trials_of_sample

    text = draft_of(sampled, time_zone)
    with mapping_problems("the draft does not compile: "):
        tried = trials_of_sample(sampled, MappedType("draft", text), publish_time)

    def show() -> None:
        click.echo(err=True)
        for source, record, trial in tried[:_SHOWN]:
            print_trial(source, record, trial, err)
        events = sum(len(trial.events) for *_, trial in tried)
        problems = [problem for *_, trial in tried for problem in trial.problems]
        refused = f", {len(problems):,} refused, such as {problems[0]}" if problems else ""
        err.out(plain(f"{counted(len(tried), 'record')} of the sample: {counted(events, 'event')}{refused}"))

    return text, show
