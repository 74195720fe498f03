"""``tidetable dead-letters replay``: dead letters, published again as the messages that they were."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import click

from pipeline.cli.console import print_json_line
from pipeline.cli.options import Parsed
from pipeline.cloud.errors import ServerProblem
from pipeline.cloud.names import topic_path
from pipeline.cloud.publisher import Pacer, Publisher, UnacceptableMessage
from pipeline.core.dead_letter_records import DeadLetter, Groups, together
from pipeline.core.dead_letters import replay_of
from pipeline.core.messages import EVENT_ID
from pipeline.core.refused_rows import ROW_REFUSED
from pipeline.core.text import plain
from pipeline.dead_letters.options import LetterScan, Look, counted, look_options
from pipeline.dead_letters.views import print_groups

_MOST_IN_REQUEST = 1000
_MOST_BYTES = 5_000_000  # of 10 MB, with all that is around payloads and attributes
_REQUESTS_PER_SECOND = 10  # where there is a rate to hold
# https://cloud.google.com/dataflow/docs/concepts/streaming-with-cloud-pubsub#efficient_deduplication
_IDS_KNOWN_US = 600_000_000


@dataclass
class _Tally:
    """What became of the dead letters that were wanted."""

    replayed: int = 0  # or would be
    exhausted: int = 0
    foreign: int = 0
    rows: int = 0  # of a table, which are no messages
    refused: int = 0
    refusal: str = ""  # the first
    young: int = 0  # of those replayed
    groups: Groups = field(default_factory=Groups)  # of those replayed
    unacknowledged: int = 0  # of those replayed
    problem: ServerProblem | None = None


@click.command()
@look_options
@click.option("--topic", required=True, type=Parsed("topic", topic_path), help="The job's input: projects/P/topics/T.")
@click.option(
    "--at-most", type=click.IntRange(1), default=3, show_default=True, help="Replay no message more often than this."
)
@click.option("--limit", type=click.IntRange(1), help="Replay no more than this many.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Events a second. Without it, as fast as can be.")
@click.option("--dry-run", is_flag=True, help="Say what would be replayed, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one line of JSON.")
@click.pass_context
def replay(
    ctx: click.Context,
    look: Look,
    topic: str,
    at_most: int,
    limit: int | None,
    rate: float | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Publish dead letters again, as the messages that they were before they were refused.

    Payload, attributes and ordering key are the original's; of ours, dead_letter_replays goes along and counts. A
    message that was replayed --at-most times already, and one that is no dead letter of Tidetable's, is left on the
    subscription. Each is acknowledged once it is known to be published; where that fails, it stays. Their order is not
    kept.

    A Dataflow job with --id_attribute drops an event_id that it has seen in the last ten minutes: leave that long
    between a refusal and its replay (--until).

    \b
    Exit code:
      0    everything that may be replayed was replayed
      1    the topic refused some, or the server had a problem: what was not replayed is still there
      2    the command line is wrong, or --topic is the topic of the dead letters themselves
      130  Ctrl-C: the rest is left where it is
    """  # noqa: D301 (\b is click's mark for a paragraph that keeps its lines)
    started = time.monotonic()
    tally = _Tally()
    with look.open() as looking:
        if looking.backlog.topic == topic:
            raise click.UsageError(f"{topic} is where these dead letters come from; --topic is the input of the job")
        if not looking.backlog.topic:
            click.echo(f"{look.subscription}: may not be looked at; make sure that its topic is not {topic}", err=True)
        with Publisher(topic) as publisher:
            pacer = Pacer(rate or math.inf, looking.stopped)
            most = _MOST_IN_REQUEST if rate is None else int(min(max(rate / _REQUESTS_PER_SECOND, 1), _MOST_IN_REQUEST))
            try:
                for letters in looking.pages("looked at", limit):
                    chosen = _chosen(letters, tally, at_most, limit)
                    if dry_run:
                        _note(chosen, tally)
                    else:
                        _replay(together(chosen, most, _MOST_BYTES), looking, publisher, pacer, tally)
                    if tally.replayed + tally.refused == limit or looking.stopped():
                        break
            except ServerProblem as problem:
                tally.problem = problem
    seconds = time.monotonic() - started
    if as_json:
        _print_json(tally, topic, looking, seconds, dry_run=dry_run)
    else:
        _print(tally, topic, looking, seconds, at_most, dry_run=dry_run)
    looking.tell()
    _tell(tally)
    if tally.problem:
        raise click.ClickException(str(tally.problem)) from tally.problem
    ctx.exit(130 if looking.stopped() else 1 if tally.refused else 0)


def _chosen(letters: list[DeadLetter], tally: _Tally, at_most: int, limit: int | None) -> list[DeadLetter]:
    """Those that may be replayed; the others are counted, up to where the limit is reached."""
    chosen: list[DeadLetter] = []
    for letter in letters:
        if limit is not None and tally.replayed + tally.refused + len(chosen) >= limit:
            break
        if not letter.reason:
            tally.foreign += 1
        elif letter.reason == ROW_REFUSED:
            tally.rows += 1
        elif letter.replays >= at_most:
            tally.exhausted += 1
        else:
            chosen.append(letter)
    return chosen


def _replay(
    requests: list[list[DeadLetter]], looking: LetterScan, publisher: Publisher, pacer: Pacer, tally: _Tally
) -> None:
    for request in requests:
        pacer.wait(sum(max(1, len(letter.events)) for letter in request))
        if looking.stopped():
            return
        for published in _published(request, publisher, tally):
            _note(published, tally)
            tally.unacknowledged += len(published)
            looking.backlog.acknowledge(letter.message for letter in published)
            tally.unacknowledged -= len(published)
            looking.say(f"replayed {tally.replayed:,}, looked at")


def _published(letters: list[DeadLetter], publisher: Publisher, tally: _Tally) -> Iterator[list[DeadLetter]]:
    """Publishes them, and gives those that are; one that the topic refuses does not keep back the others."""
    try:
        publisher.send_batch(replay_of(letter.message) for letter in letters)
    except UnacceptableMessage as problem:
        if len(letters) == 1:
            tally.refused += 1
            tally.refusal = tally.refusal or str(problem)
            return
    else:
        yield letters
        return
    for letter in letters:
        yield from _published([letter], publisher, tally)


def _note(replayed: list[DeadLetter], tally: _Tally) -> None:
    now_us = int(time.time() * 1_000_000)
    tally.replayed += len(replayed)
    for letter in replayed:
        tally.groups.add(letter)
        age_us = now_us - (letter.time_us or 0)
        tally.young += EVENT_ID in letter.original.attributes and age_us < _IDS_KNOWN_US


def _print(tally: _Tally, topic: str, looking: LetterScan, seconds: float, at_most: int, *, dry_run: bool) -> None:
    if dry_run:
        print_groups(tally.groups.by_size())
    left = {
        f"replayed {at_most} times already" if at_most > 1 else "replayed already": tally.exhausted,
        "no dead letters of Tidetable's": tally.foreign,
        "rows that Bigtable refused": tally.rows,
        "refused by the topic": tally.refused,
        "not wanted": looking.inspected - looking.wanted,
    }
    told = ", ".join(f"{count:,} {why}" for why, count in left.items() if count)
    click.echo(
        f"{counted(tally.replayed)} {'would be ' if dry_run else ''}replayed to {topic}"
        f"{f'; left where they are: {told}' if told else ''}; {seconds:.1f} s"
        f"{'; interrupted' if looking.stopped() else ''}"
    )


def _print_json(tally: _Tally, topic: str, looking: LetterScan, seconds: float, *, dry_run: bool) -> None:
    print_json_line(
        {
            "topic": topic,
            "dry_run": dry_run,
            "replayed": tally.replayed,
            "had_their_replays": tally.exhausted,
            "foreign": tally.foreign,
            "rows": tally.rows,
            "refused": tally.refused,
            "not_wanted": looking.inspected - looking.wanted,
            "unacknowledged": tally.unacknowledged,
            "seconds": round(seconds, 3),
            "interrupted": looking.stopped(),
        }
    )


def _tell(tally: _Tally) -> None:
    if tally.young:
        click.echo(
            f"{counted(tally.young)} with an event_id, refused less than ten minutes ago: a Dataflow job with "
            "--id_attribute takes that for a duplicate of the original, and drops it",
            err=True,
        )
    if tally.refusal:
        click.echo(plain(f"refused: {tally.refusal}"), err=True)
    if tally.unacknowledged:
        click.echo(
            f"{counted(tally.unacknowledged)} {'was' if tally.unacknowledged == 1 else 'were'} published and may still "
            "be on the subscription: acknowledging failed",
            err=True,
        )
