"""What every command shares in dealing with a person: consoles, progress, JSON lines, Ctrl-C."""

import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pipeline.core.text import json_line, plain

_MOST_FOREIGN = 3  # rows that are named

# Without emoji: rich would make a battery of the column raw:battery:.
out = Console(highlight=False, emoji=False)
err = Console(stderr=True, highlight=False, emoji=False)


def progress_bar() -> Progress:
    """A progress display on standard error; silent where that is not a terminal."""
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
    """One machine-readable line on standard output."""
    sys.stdout.write(json_line(record) + "\n")


def report_foreign_rows(lines: Iterable[str], count: int, what: str) -> None:
    """Tells on standard error of rows that their table's schema never writes; nothing where there are none.

    Args:
        lines: about the first of them, or more.
        count: how many there are.
        what: was done with them.
    """
    if not count:
        return
    for line in islice(lines, _MOST_FOREIGN):
        click.echo(f"{plain(line)}; {what}", err=True)
    click.echo(f"foreign rows {what}: {count:,}", err=True)


@contextmanager
def stop_on_sigint() -> Iterator[Callable[[], bool]]:
    """Makes of the first Ctrl-C in the block a wish to stop, for which the block asks; a second one interrupts.

    Interrupted anywhere, a publisher would not know which messages it had handed over.
    """
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        asked = True
        # Not back to what was before: a shell's background jobs begin with SIGINT ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
