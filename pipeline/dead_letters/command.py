"""``tidetable dead-letters``: looks at what waits on a subscription of dead letters, sends it back, or keeps it."""

import click

from pipeline.cli.console import print_json_line
from pipeline.core.dead_letter_records import Groups, letter_json
from pipeline.dead_letters.export import export
from pipeline.dead_letters.options import Look, counted, json_option, look_options
from pipeline.dead_letters.replay import replay
from pipeline.dead_letters.views import group_json, print_groups, print_letter


@click.group("dead-letters")
def dead_letters() -> None:
    """Look at dead letters, replay them, or export them.

    Each command pulls what waits on the subscription, every message once, up to --max, and takes nothing away: what it
    did not acknowledge it gives back when it ends, at once. To Pub/Sub that is a failed delivery, so:

    \b
      - it counts as an attempt, if the subscription has a dead-letter policy of its own: after as many
        as that allows, Pub/Sub takes the message away
      - a retry policy holds the message back for a while, and a look soon after does not find it
      - whoever else receives from the subscription does not get the message meanwhile
      - of messages with an ordering key, a subscription with ordering gives out only the first of each key

    Times are ISO 8601, UTC where they have no offset. Messages that are no dead letters of Tidetable's have the reason
    none.

    Exit codes: 0 also where nothing waits, which a line on standard error tells; 1 where the subscription or the topic
    is missing, or the server is away; 2 for wrong usage; 130 after Ctrl-C, once what was looked at is given back.
    """  # noqa: D301 (\b is click's mark for a paragraph that keeps its lines)


dead_letters.add_command(replay)
dead_letters.add_command(export)


@dead_letters.command("list")
@look_options
@json_option
@click.pass_context
def list_(ctx: click.Context, look: Look, as_json: bool) -> None:
    """Count the dead letters by reason and sensor, the biggest group first. Takes nothing away."""
    groups = Groups()
    with look.open() as looking:
        for letters in looking.pages("looked at"):
            for letter in letters:
                groups.add(letter)
    if as_json:
        for group in groups.by_size():
            print_json_line(group_json(group))
    else:
        print_groups(groups.by_size())
        if looking.wanted:
            click.echo(f"{counted(looking.wanted)}, by reason and sensor: {len(groups.by_size()):,}")
    looking.tell()
    ctx.exit(130 if looking.stopped() else 0)


@dead_letters.command()
@look_options
@click.option("--limit", type=click.IntRange(1), default=10, show_default=True, help="Show no more than this many.")
@json_option
@click.pass_context
def show(ctx: click.Context, look: Look, limit: int, as_json: bool) -> None:
    """Show dead letters in full, with the event where it can be decoded. Takes nothing away.

    Of long values it shows the beginning, and JSON all. There, data is the payload in base64; attributes, message_id
    and publish_time are the original message's.
    """
    found = []
    with look.open() as looking:
        for letters in looking.pages("looked at", limit):
            found += letters
            if len(found) >= limit:
                break
    for letter in found[:limit]:
        if as_json:
            print_json_line(letter_json(letter))
        else:
            print_letter(letter)
    looking.tell()
    ctx.exit(130 if looking.stopped() else 0)
