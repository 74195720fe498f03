"""What every command shares in speaking to a person: consoles, progress, JSON lines."""

import json
import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


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
    sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
