"""``tidetable dead-letters``: lists and shows the dead letters that wait on a subscription."""

import click

from pipeline.cli.hints import ExampleGroup
from pipeline.cli.options import limit_option
from pipeline.cli.output import Output, output_option, print_flat
from pipeline.core.dead_letters import LETTER_COLUMNS, LetterGroups, letter_json
from pipeline.dead_letters.export import export
from pipeline.dead_letters.options import ScanRequest, scan_options
from pipeline.dead_letters.replay import replay
from pipeline.dead_letters.views import GROUP_COLUMNS, group_json, print_groups, print_letter


@click.group("dead-letters", cls=ExampleGroup)
def dead_letters() -> None:
    """List, show, replay or export dead letters.

    Each command pulls the messages that wait on the subscription, each once, up to --scan-limit. When it ends, it
    returns all messages that it did not acknowledge. To Pub/Sub that is a failed delivery, so:

    \b
      - if the subscription has a dead-letter policy of its own, it counts as an attempt; after the
        allowed number of attempts Pub/Sub removes the message
      - a retry policy delays the message, and a command run soon afterwards does not find it
      - other subscribers do not receive the message while the command runs
      - if the subscription has message ordering, it delivers only the first message of each ordering key

    --from and --to choose dead letters by the time of their refusal. Times are in UTC: ISO 8601, now, today, yesterday,
    or a duration before now, such as -1h. Messages that are not Tidetable's dead letters have the reason none.

    \b
    Exit codes:
      0    success, even if nothing waits; a line on standard error reports that
      1    the subscription or topic does not exist, or the server is unavailable
      2    wrong usage
      130  Ctrl-C; pulled messages are returned first
    """  # noqa: D301 (\b tells click to keep the line breaks of a paragraph)


dead_letters.add_command(replay)
dead_letters.add_command(export)


@dead_letters.command("list")
@scan_options
@output_option
@click.pass_context
def list_(ctx: click.Context, request: ScanRequest, output: Output) -> None:
    """Count dead letters by reason, then by reason and sensor, the most frequent reason first. Removes nothing.

    Messages of other types need their mapping or decoder: without it, their sensor is unknown.
    """
    groups = LetterGroups()
    with request.open() as scan:
        for letters in scan.pages("reading"):
            for letter in letters:
                groups.add(letter)
    if output != Output.TABLE:
        print_flat(map(group_json, groups.by_reason()), GROUP_COLUMNS, output)
    else:
        print_groups(groups)
    scan.report()
    ctx.exit(130 if scan.stopped() else 0)


@dead_letters.command()
@scan_options
@limit_option(10)
@output_option
@click.pass_context
def show(ctx: click.Context, request: ScanRequest, limit: int, output: Output) -> None:
    """Show dead letters in full, with their events if they can be decoded. Removes nothing.

    With mappings or a decoder, messages of their types are shown with the events that these make of them now, or with
    the reason why they make none.

    Long values are cut short, except in the other formats. There, data is the payload in base64; attributes,
    message_id and publish_time are the original message's; mapped is what a mapping or a decoder makes of it. In CSV
    and Parquet, attributes, events and mapped are JSON.
    """
    found = []
    with request.open() as scan:
        for letters in scan.pages("reading", limit):
            found += letters
            if len(found) >= limit:
                break
    if output != Output.TABLE:
        columns = (*LETTER_COLUMNS, "mapped") if request.trials else LETTER_COLUMNS
        documents = map(letter_json, found[:limit])
        print_flat(({name: document.get(name) for name in columns} for document in documents), columns, output)
    else:
        for letter in found[:limit]:
            print_letter(letter)
    scan.report()
    ctx.exit(130 if scan.stopped() else 0)
