"""Terminal handling that all commands share: consoles, progress bars, JSON lines, backlogs, Ctrl-C."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from pipeline.core.notation.text import json_line, plain

if TYPE_CHECKING:
    from rich.progress import Progress

    from pipeline.cloud.pubsub.backlog import Backlog


_MAX_FOREIGN = 3  # rows named in a report

# Without emoji: rich would print the column raw:battery: as a battery.
out = Console(highlight=False, emoji=False)
err = Console(stderr=True, highlight=False, emoji=False)


def progress_bar() -> "Progress":
    """Returns a progress bar on standard error. It prints nothing if that is not a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=err,
        disable=not err.is_terminal,
        transient=True,
    )


def print_json_line(record: dict[str, Any]) -> None:
    """Prints a line of JSON on standard output, with escapes for characters that its encoding lacks."""
    print_json(json_line(record))


def print_json(line: str) -> None:
    """Prints what :func:`print_json_line` does, given the line."""
    try:
        line.encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        line = json.dumps(json.loads(line))
    sys.stdout.write(line + "\n")


def report_foreign_rows(lines: Iterable[str], count: int, what: str) -> None:
    """Reports foreign rows, which the table's schema never writes, on standard error. Prints nothing without any.

    Args:
        lines: a line for each of the first rows, or more.
        count: the number of foreign rows.
        what: the treatment of the rows, such as ``left out``.
    """
    if not count:
        return
    for line in islice(lines, _MAX_FOREIGN):
        click.echo(f"{plain(line)}; {what}", err=True)
    click.echo(f"foreign rows {what}: {count:,}", err=True)


@contextmanager
def stop_on_sigint() -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether Ctrl-C was pressed. A second Ctrl-C raises KeyboardInterrupt.

    A publisher interrupted at an arbitrary point would not know which messages it had sent.
    """
    requested = False

    def request_stop(*_: object) -> None:
        nonlocal requested
        requested = True
        # Not the previous handler: a shell starts background jobs with SIGINT ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, request_stop)
    try:
        yield lambda: requested
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def open_backlog(subscription: str) -> Iterator[tuple["Backlog", Callable[[], bool]]]:
    """Opens a subscription's backlog. Yields it with a function that returns whether Ctrl-C was pressed.

    Leaving the block returns the messages that were not acknowledged. Exits with 130 at a second Ctrl-C.
    """
    from pipeline.cloud.pubsub.backlog import Backlog

    try:
        with stop_on_sigint() as stopped, Backlog(subscription) as backlog:
            if backlog.max_attempts:
                click.echo(
                    f"{subscription} has a dead-letter policy: this command counts as one of the "
                    f"{backlog.max_attempts} deliveries after which Pub/Sub removes a message",
                    err=True,
                )
            yield backlog, stopped
    except KeyboardInterrupt:
        click.echo("Interrupted twice: messages already read come back when their one-minute lease expires", err=True)
        os._exit(130)  # a regular exit would wait for the client's requests
