"""``tidetable mapping draft``: proposes a mapping for a message type, or for a sample of records or messages."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.console import err
from pipeline.cli.input_files import InputPath
from pipeline.cli.message_options import descriptors_option, mapping_problems
from pipeline.cli.options import ZONE, Parsed
from pipeline.cli.trials import print_trial
from pipeline.cloud.connection.names import subscription_path
from pipeline.core.notation.text import counted, plain
from pipeline.formats.lines import UnreadableFile

if TYPE_CHECKING:
    from pipeline.core.decoding.mapping.authoring.rows import Sampled

_SHOWN = 3  # records of the sample
_MESSAGES = 100
_WAIT = timedelta(seconds=3)


@click.command()
@click.argument("sample", required=False, type=InputPath(), metavar="[SAMPLE]")
@click.option("--message", metavar="TYPE", help="The full name of a message type, like acme.v1.Report.")
@descriptors_option
@click.option(
    "--subscription",
    type=Parsed("subscription", subscription_path),
    help="Take messages in JSON from here and give them back, projects/PROJECT/subscriptions/SUBSCRIPTION.",
)
@click.option(
    "--time-zone",
    type=ZONE,
    help="The zone of times without an offset, like Europe/Berlin. [default: a guess]",
)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file. [default: print]")
@click.option("--force", is_flag=True, help="Replace an existing file.")
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
    """Propose a mapping for your data: for a file, for messages in JSON, or for a message type.

    SAMPLE is .csv, .ndjson, .avro or .parquet, whose first 1,000 records count, or .json with one message. The draft
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
        text, show = _of_sample(sampled, time_zone or "", None if sample else datetime.now(UTC))
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
        click.echo(f"{output} written; look at its guesses, then: tidetable mapping check {output}", err=True)


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
    from pipeline.mapping.pulled import pulled_messages

    with pulled_messages(subscription, _MESSAGES, _WAIT) as pulled:
        messages = [message for _, message in pulled.messages]
    if not messages:
        raise click.ClickException("there is nothing to draft a mapping of")
    try:
        return sample_of_messages(messages, f"{counted(len(messages), 'message')} of {subscription}")
    except UnreadableFile as problem:
        raise click.ClickException(f"{subscription}: {problem}") from problem


def _of_sample(sampled: "Sampled", time_zone: str, publish_time: datetime | None) -> tuple[str, Callable[[], None]]:
    """Returns the draft for a sample, and the function that shows what it makes of the sample."""
    from pipeline.core.decoding.mapped_type import MappedType
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
