"""Terminal handling that all commands share: consoles, progress bars, JSON lines, Ctrl-C."""

import json
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
    line = json_line(record)
    try:
        line.encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        line = json.dumps(record)
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
