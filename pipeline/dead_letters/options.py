"""Options that the commands of ``tidetable dead-letters`` share, and the scan of a subscription."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.console import open_backlog, progress_bar
from pipeline.cli.message_options import decoder_option, message_options
from pipeline.cli.options import COUNT, FROM_HELP, TIME, TO_HELP, Command, Parsed, wait_option
from pipeline.cloud.connection.names import subscription_path
from pipeline.cloud.pubsub.backlog import Backlog
from pipeline.core.dead_letters import DeadLetter, Selection
from pipeline.core.decoding.dry_decode import Trials
from pipeline.core.events.reasons import Reason
from pipeline.core.notation.durations import format_duration
from pipeline.core.notation.text import counted

if TYPE_CHECKING:
    from pipeline.core.decoding.message_types import DecoderFunction, MappedType

_PAGE = 1000


class LetterScan:
    """A scan of a subscription, open within the block of :meth:`ScanRequest.open`.

    Attributes:
        backlog: the subscription's backlog.
        stopped: returns whether Ctrl-C was pressed.
        inspected: the number of messages pulled so far.
        matched: the number of those that match the selection.
    """

    def __init__(self, request: "ScanRequest", backlog: Backlog, stopped: Callable[[], bool]) -> None:
        self._request = request
        self.backlog = backlog
        self.stopped = stopped
        self.inspected = 0
        self.matched = 0
        self._progress = progress_bar()
        self._task = self._progress.add_task("", total=None)

    def pages(self, what: str, limit: int | None = None) -> Iterator[list[DeadLetter]]:
        """Yields the selected dead letters in pages, with a progress bar on standard error.

        Args:
            what: the activity to show in the progress bar.
            limit: the most letters that the caller will take: no more are leased than needed.
        """
        self.show_progress(what)
        with self._progress:
            for messages in self.backlog.pages(
                self._request.max_messages,
                first=min(limit or _PAGE, _PAGE),
                wait_seconds=self._request.wait.total_seconds(),
                stopped=self.stopped,
            ):
                found = (DeadLetter.of(message, self._request.trials) for message in messages)
                letters = [letter for letter in found if letter in self._request.selection]
                self.inspected += len(messages)
                self.matched += len(letters)
                self._progress.update(self._task, completed=self.inspected)
                yield letters

    def show_progress(self, what: str) -> None:
        """Shows the current activity in the progress bar."""
        self._progress.update(self._task, description=what)

    def report(self) -> None:
        """Reports on standard error why the scan ended early or found nothing."""
        request = self._request
        if self.stopped():
            click.echo(f"interrupted after {counted(self.inspected, 'dead letter')}", err=True)
        elif self.inspected >= request.max_messages:
            click.echo(
                f"read {counted(request.max_messages, 'dead letter')}, the --scan-limit; there may be more",
                err=True,
            )
        elif not self.inspected:
            backoff = ""
            if self.backlog.backoff_seconds:
                delays = (timedelta(seconds=seconds) for seconds in self.backlog.backoff_seconds)
                shortest, longest = map(format_duration, delays)
                backoff = f"; its retry policy delays messages read before by {shortest} to {longest}"
            waited = f"within {format_duration(request.wait)}" if request.wait else "at once"
            click.echo(f"no message from {request.subscription} {waited}{backoff}", err=True)
        elif not self.matched:
            click.echo(f"none of {counted(self.inspected, 'dead letter')} matches", err=True)


@dataclass(frozen=True)
class ScanRequest:
    """Which dead letters to read, from which subscription."""

    subscription: str
    selection: Selection
    max_messages: int  # to pull, selected or not
    wait: timedelta
    trials: Trials | None = None  # the mappings and the decoder that read messages of other types

    @contextmanager
    def open(self) -> Iterator[LetterScan]:
        """Opens the subscription. Leaving the block returns the messages that were not acknowledged."""
        with open_backlog(self.subscription) as (backlog, stopped):
            yield LetterScan(self, backlog, stopped)


def scan_options(command: Command) -> Command:
    """Adds the subscription, the filters, the limits and the mappings; passes ``request``, a ScanRequest."""

    @click.option(
        "--subscription",
        required=True,
        type=Parsed("subscription", subscription_path),
        help="The subscription, projects/PROJECT/subscriptions/SUBSCRIPTION. Of the dead-letter topic.",
    )
    @click.option(
        "--reason",
        "reasons",
        multiple=True,
        metavar="REASON",
        type=click.Choice([reason.value for reason in Reason]),
        help="Only dead letters with this reason, such as UNPARSEABLE. Repeatable.",
    )
    @click.option(
        "--sensor",
        "sensors",
        multiple=True,
        metavar="SENSOR",
        help="Only this sensor. Repeatable. Dead letters of other types need their mapping.",
    )
    @click.option("--from", "start_us", type=TIME, help=FROM_HELP)
    @click.option("--to", "end_us", type=TIME, help=TO_HELP)
    @click.option(
        "--scan-limit",
        type=COUNT,
        default=10_000,
        show_default=True,
        help="Read at most this many messages, selected or not.",
    )
    @wait_option
    @message_options
    @decoder_option
    @functools.wraps(command)
    def with_request(
        *args: Any,
        subscription: str,
        reasons: tuple[str, ...],
        sensors: tuple[str, ...],
        start_us: int | None,
        end_us: int | None,
        scan_limit: int,
        wait: timedelta,
        mapped: Sequence["MappedType"],
        decoder: "DecoderFunction | None",
        **kwargs: Any,
    ) -> Any:
        if start_us is not None and end_us is not None and start_us >= end_us:
            raise click.UsageError("--to must be after --from")
        selection = Selection(frozenset(map(Reason, reasons)), frozenset(sensors), start_us, end_us)
        trials = Trials(mapped, decoder) if mapped or decoder else None
        return command(*args, request=ScanRequest(subscription, selection, scan_limit, wait, trials), **kwargs)

    return with_request
