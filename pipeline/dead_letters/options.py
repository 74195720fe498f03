"""What the commands of ``tidetable dead-letters`` share: which dead letters, and how they are looked at."""

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import click

from pipeline.cli.console import progress_bar, stop_on_sigint
from pipeline.cli.options import Command, Parsed
from pipeline.cloud.names import subscription_path
from pipeline.core.dead_letter_records import DeadLetter, Selection
from pipeline.core.durations import format_duration, parse_duration
from pipeline.core.events import Reason
from pipeline.core.times import parse_time
from pipeline.dead_letters.backlog import Backlog

_TIME = Parsed("time", parse_time)
_PAGE = 1000

json_option = click.option("--json", "as_json", is_flag=True, help="Print lines of JSON.")


class LetterScan:
    """One look at a subscription, which is open as long as the block of :meth:`Look.open` lasts.

    Attributes:
        backlog: what waits there.
        stopped: whether Ctrl-C was pressed.
        looked_at: dead letters that came so far.
        wanted: those of them that are in the selection.
    """

    def __init__(self, look: "Look", backlog: Backlog, stopped: Callable[[], bool]) -> None:
        self._look = look
        self.backlog = backlog
        self.stopped = stopped
        self.inspected = 0
        self.wanted = 0
        self._progress = progress_bar()
        self._task = self._progress.add_task("", total=None)

    def pages(self, what: str, limit: int | None = None) -> Iterator[list[DeadLetter]]:
        """The dead letters that are wanted, some at a time, with progress on standard error.

        Args:
            what: is being done, as the progress names it.
            limit: how many the caller is going to take, so that no more are leased than are needed.
        """
        self.say(what)
        with self._progress:
            for messages in self.backlog.pages(
                self._look.most,
                first=min(limit or _PAGE, _PAGE),
                wait_seconds=self._look.wait.total_seconds(),
                stopped=self.stopped,
            ):
                letters = [letter for message in messages if (letter := DeadLetter.of(message)) in self._look.selection]
                self.inspected += len(messages)
                self.wanted += len(letters)
                self._progress.update(self._task, completed=self.inspected)
                yield letters

    def say(self, what: str) -> None:
        """Names in the progress what is being done now."""
        self._progress.update(self._task, description=what)

    def tell(self) -> None:
        """Says on standard error what a person should know of the look, once it is over."""
        look = self._look
        if self.stopped():
            click.echo(f"interrupted after {counted(self.inspected)}", err=True)
        elif self.inspected >= look.most:
            click.echo(f"looked at {counted(look.most)}, the most that --max allows: there may be more", err=True)
        elif not self.inspected:
            backoff = ""
            if self.backlog.backoff_seconds:
                least, most = (format_duration(timedelta(seconds=seconds)) for seconds in self.backlog.backoff_seconds)
                backoff = f"; what was looked at is held back for {least} to {most}, says its retry policy"
            waited = f"in {format_duration(look.wait)}" if look.wait else "at once"
            click.echo(f"nothing came from {look.subscription} {waited}{backoff}", err=True)
        elif not self.wanted:
            click.echo(f"none of {counted(self.inspected)} is wanted", err=True)


@dataclass(frozen=True)
class Look:
    """Where and at which dead letters to look."""

    subscription: str
    selection: Selection
    most: int
    wait: timedelta

    @contextmanager
    def open(self) -> Iterator[LetterScan]:
        """Opens the subscription; leaving the block gives back what was not acknowledged."""
        try:
            with stop_on_sigint() as stopped, Backlog(self.subscription) as backlog:
                if backlog.most_attempts:
                    click.echo(
                        f"{self.subscription} has a dead-letter policy: each look is one of the "
                        f"{backlog.most_attempts} deliveries after which it takes a message away",
                        err=True,
                    )
                yield LetterScan(self, backlog, stopped)
        except KeyboardInterrupt:
            click.echo("Interrupted twice: what was looked at comes back when its lease of a minute ends", err=True)
            os._exit(130)  # an orderly end would wait for the client's requests


def look_options(command: Command) -> Command:
    """Adds ``--subscription``, the filters, ``--max`` and ``--wait``; the command is given ``look``, a Look."""

    @click.option(
        "--subscription",
        required=True,
        type=Parsed("subscription", subscription_path),
        help="Of the dead-letter topic: projects/PROJECT/subscriptions/SUBSCRIPTION.",
    )
    @click.option(
        "--reason",
        "reasons",
        multiple=True,
        metavar="REASON",
        type=click.Choice([reason.value for reason in Reason]),
        help="Only those refused for this reason, such as UNPARSEABLE. Repeatable.",
    )
    @click.option(
        "--sensor",
        "sensors",
        multiple=True,
        metavar="SENSOR",
        help="Only those of this sensor, where they can be decoded. Repeatable.",
    )
    @click.option("--since", type=_TIME, help="Only those refused at this time or later, in ISO 8601.")
    @click.option("--until", type=_TIME, help="Only those refused before this time.")
    @click.option(
        "--max",
        "most",
        type=click.IntRange(1),
        default=10_000,
        show_default=True,
        help="Look at no more than this many, wanted or not.",
    )
    @click.option(
        "--wait",
        type=Parsed("duration", parse_duration),
        default="3s",
        show_default=True,
        help="How long nothing more is taken for the end: Pub/Sub does not tell it.",
    )
    @functools.wraps(command)
    def with_look(
        *args: Any,
        subscription: str,
        reasons: tuple[str, ...],
        sensors: tuple[str, ...],
        since: int | None,
        until: int | None,
        most: int,
        wait: timedelta,
        **kwargs: Any,
    ) -> Any:
        if since is not None and until is not None and since >= until:
            raise click.UsageError("--until must be after --since")
        selection = Selection(frozenset(map(Reason, reasons)), frozenset(sensors), since, until)
        return command(*args, look=Look(subscription, selection, most, wait), **kwargs)

    return with_look


def counted(count: int) -> str:
    """So many dead letters, in words."""
    return f"{count:,} dead letter{'' if count == 1 else 's'}"
