"""``tidetable dead-letters replay``: publishes the original messages of dead letters again."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import click

from pipeline.cli.console import print_json_line
from pipeline.cli.options import dry_run_option, json_option, limit_option, rate_option, topic_option
from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.pubsub.publisher import Pacer, Publisher, UnacceptableMessage
from pipeline.core.dead_letters import DeadLetter, LetterGroups, replay_batches
from pipeline.core.events.dead_letter import ROW_REFUSED, replay_of
from pipeline.core.events.message import EVENT_ID
from pipeline.core.notation.text import counted, plain
from pipeline.dead_letters.options import LetterScan, ScanRequest, scan_options
from pipeline.dead_letters.views import print_groups

_MAX_IN_REQUEST = 1000
_MAX_BYTES = 5_000_000  # of payloads and attributes; a request is limited to 10 MB with all overhead
_REQUESTS_PER_SECOND = 10  # if --rate is set
# https://cloud.google.com/dataflow/docs/concepts/streaming-with-cloud-pubsub#efficient_deduplication
_DEDUPLICATION_US = 600_000_000


@dataclass
class _ReplayTally:
    """Counts what happened to the selected dead letters."""

    replayed: int = 0  # in a dry run, would be
    exhausted: int = 0  # had --max-replays replays before
    again: int = 0  # refused again since this command began
    started_us: int = field(default_factory=lambda: int(time.time() * 1_000_000))
    foreign: int = 0
    rows: int = 0  # refused table rows, which are not messages
    refused: int = 0
    refusal: str = ""  # the first error of the topic
    recent: int = 0  # replayed with an event_id within Dataflow's deduplication window
    groups: LetterGroups = field(default_factory=LetterGroups)  # of the replayed ones
    unacknowledged: int = 0  # replayed, but maybe still on the subscription
    problem: ServerError | None = None


@click.command()
@scan_options
@topic_option
@click.option(
    "--max-replays",
    type=click.IntRange(1, 1000),
    default=3,
    show_default=True,
    help="Replay a message at most this many times.",
)
@limit_option()
@rate_option
@dry_run_option
@json_option
@click.pass_context
def replay(
    ctx: click.Context,
    request: ScanRequest,
    topic: str,
    max_replays: int,
    limit: int | None,
    rate: float | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Publish the original messages of dead letters again.

    Payload, attributes and ordering key are the original message's, plus the attributes dead_letter_replays, which
    counts replays, and dead_letter_publish_time. A message that was already replayed --max-replays times, or is not a
    dead letter of Tidetable, stays on the subscription. A message is acknowledged once it is published; if publishing
    fails, it stays. The order of messages is not kept.

    A Dataflow job with --id-attribute drops an event_id that it has seen in the last ten minutes: replay a message at
    least ten minutes after its refusal (see --to).

    \b
    Exit codes:
      0    every eligible message was replayed
      1    the topic refused some messages, or the server failed; messages not replayed stay
      2    wrong usage, or --topic is the dead-letter topic itself
      130  Ctrl-C; the remaining messages stay
    """  # noqa: D301 (\b tells click to keep the line breaks of a paragraph)
    started = time.monotonic()
    tally = _ReplayTally()
    with request.open() as scan:
        if scan.backlog.topic == topic:
            raise click.UsageError(f"--topic is {topic}, the dead-letter topic itself; set it to the job's input topic")
        if not scan.backlog.topic:
            click.echo(
                f"no permission to read {request.subscription}; make sure that its topic is not {topic}", err=True
            )
        with Publisher(topic) as publisher:
            pacer = Pacer(rate or math.inf, scan.stopped)
            size = _MAX_IN_REQUEST if rate is None else int(min(max(rate / _REQUESTS_PER_SECOND, 1), _MAX_IN_REQUEST))
            try:
                for letters in scan.pages("reading", limit):
                    eligible = _eligible(letters, tally, max_replays, limit)
                    if dry_run:
                        _count(eligible, tally)
                    else:
                        _replay(replay_batches(eligible, size, _MAX_BYTES), scan, publisher, pacer, tally)
                    if tally.replayed + tally.refused == limit or scan.stopped():
                        break
            except ServerError as problem:
                tally.problem = problem
    seconds = time.monotonic() - started
    if as_json:
        _print_json(tally, topic, scan, seconds, dry_run=dry_run)
    else:
        _print(tally, topic, scan, seconds, max_replays, dry_run=dry_run)
    scan.report()
    _report_problems(tally)
    if tally.problem:
        raise click.ClickException(str(tally.problem)) from tally.problem
    ctx.exit(130 if scan.stopped() else 1 if tally.refused else 0)


def _eligible(letters: list[DeadLetter], tally: _ReplayTally, max_replays: int, limit: int | None) -> list[DeadLetter]:
    """Returns the letters that may be replayed, up to the limit. Counts the others by why they may not."""
    eligible: list[DeadLetter] = []
    for letter in letters:
        if limit is not None and tally.replayed + tally.refused + len(eligible) >= limit:
            break
        if not letter.reason:
            tally.foreign += 1
        elif letter.reason == ROW_REFUSED:
            tally.rows += 1
        elif letter.replays >= max_replays:
            tally.exhausted += 1
        elif letter.replays and (letter.time_us or 0) >= tally.started_us:
            tally.again += 1
        else:
            eligible.append(letter)
    return eligible


def _replay(
    requests: list[list[DeadLetter]], scan: LetterScan, publisher: Publisher, pacer: Pacer, tally: _ReplayTally
) -> None:
    for request in requests:
        pacer.wait(sum(max(1, len(letter.events)) for letter in request))
        if scan.stopped():
            return
        for published in _published(request, publisher, tally):
            _count(published, tally)
            tally.unacknowledged += len(published)
            scan.backlog.acknowledge(letter.message for letter in published)
            tally.unacknowledged -= len(published)
            scan.show_progress(f"replayed {tally.replayed:,}, read")


def _published(letters: list[DeadLetter], publisher: Publisher, tally: _ReplayTally) -> Iterator[list[DeadLetter]]:
    """Publishes the letters and yields those that succeed. One that the topic refuses does not block the others."""
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


def _count(replayed: list[DeadLetter], tally: _ReplayTally) -> None:
    now_us = int(time.time() * 1_000_000)
    tally.replayed += len(replayed)
    for letter in replayed:
        tally.groups.add(letter)
        age_us = now_us - (letter.time_us or 0)
        tally.recent += EVENT_ID in letter.original.attributes and age_us < _DEDUPLICATION_US


def _print(
    tally: _ReplayTally, topic: str, scan: LetterScan, seconds: float, max_replays: int, *, dry_run: bool
) -> None:
    if dry_run:
        print_groups(tally.groups)
    left = {
        f"already replayed {max_replays} times" if max_replays > 1 else "already replayed": tally.exhausted,
        "refused again": tally.again,
        "not dead letters of Tidetable": tally.foreign,
        "rows that Bigtable refused": tally.rows,
        "refused by the topic": tally.refused,
        "not selected": scan.inspected - scan.matched,
    }
    reasons = ", ".join(f"{count:,} {why}" for why, count in left.items() if count)
    click.echo(
        f"{counted(tally.replayed, 'dead letter')} {'would be ' if dry_run else ''}replayed to {topic}"
        f"{f'; left on the subscription: {reasons}' if reasons else ''}; {seconds:.1f} s"
        f"{'; interrupted' if scan.stopped() else ''}"
    )


def _print_json(tally: _ReplayTally, topic: str, scan: LetterScan, seconds: float, *, dry_run: bool) -> None:
    print_json_line(
        {
            "topic": topic,
            "dry_run": dry_run,
            "replayed": tally.replayed,
            "had_their_replays": tally.exhausted,
            "refused_again": tally.again,
            "foreign": tally.foreign,
            "rows": tally.rows,
            "refused": tally.refused,
            "not_wanted": scan.inspected - scan.matched,
            "unacknowledged": tally.unacknowledged,
            "seconds": round(seconds, 3),
            "interrupted": scan.stopped(),
        }
    )


def _report_problems(tally: _ReplayTally) -> None:
    if tally.recent:
        click.echo(
            f"{counted(tally.recent, 'dead letter')} with an event_id, refused less than ten minutes ago: a Dataflow "
            "job with --id-attribute drops it as a duplicate of the original",
            err=True,
        )
    if tally.refusal:
        click.echo(plain(f"refused: {tally.refusal}"), err=True)
    if tally.unacknowledged:
        click.echo(
            f"acknowledging failed: {counted(tally.unacknowledged, 'dead letter')} "
            f"{'was' if tally.unacknowledged == 1 else 'were'} published and may still be on the subscription",
            err=True,
        )
