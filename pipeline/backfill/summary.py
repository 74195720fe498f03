"""What ``tidetable backfill`` tells: the first of what was refused, and the sums."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from pipeline.cli.console import err
from pipeline.cloud.names import TableName
from pipeline.core.durations import format_duration
from pipeline.core.text import plain
from pipeline.transforms import metrics

if TYPE_CHECKING:
    from pipeline.backfill.run import Outcome


@dataclass(frozen=True)
class Summary:
    """What became of the files.

    Args:
        table: where the rows went.
        files: how many there were.
        totals: the job's counters.
        seconds: how long it took.
    """

    table: TableName
    files: int
    totals: Mapping[str, int]
    seconds: float

    @property
    def refused(self) -> int:
        """Records that made no event of the table."""
        return self._of(metrics.BACKFILL_REFUSED_RECORDS) + self._of(metrics.DEAD_LETTERS)

    def as_json(self) -> dict[str, Any]:
        """As an object. Of what was refused, ``malformed`` is what was no event at all."""
        return {
            "table": str(self.table),
            "files": self.files,
            "records": self._of(metrics.BACKFILL_RECORDS),
            "events": self._of(metrics.EVENTS),
            "refused": self.refused,
            "malformed": self._of(metrics.BACKFILL_REFUSED_RECORDS),
            "dead_letters": self._reasons,
            "raw_rows": self._of(metrics.RAW_ROWS),
            "aggregate_rows": self._of(metrics.AGGREGATE_ROWS),
            "windows_listed": self._of(metrics.BACKFILL_WINDOWS_LISTED),
            "windows_left": self._of(metrics.BACKFILL_WINDOWS_LEFT),
            "expired": self._of(metrics.EXPIRED_EVENTS),
            "seconds": round(self.seconds, 3),
        }

    def tell(self, dead_letters: str | None, allowed_lateness: timedelta) -> None:
        """Prints it, for a person."""
        click.echo(
            f"{_counted(self.files, 'file')}, {_counted(self._of('records'), 'record')}, "
            f"{_counted(self._of('events'), 'event')}: {_counted(self._of('raw_rows'), 'raw row')} and "
            f"{_counted(self._of('aggregate_rows'), 'aggregate row')} written to {self.table}, "
            f"{_counted(self.refused, 'record')} refused; {self.seconds:.1f} s"
        )
        if self.refused:
            reasons = {"malformed": self._of(metrics.BACKFILL_REFUSED_RECORDS), **self._reasons}
            counts = ", ".join(f"{number:,} {reason}" for reason, number in reasons.items() if number)
            click.echo(f"refused: {counts}" + (f"; they are in {dead_letters}" if dead_letters else ""))
        if left := self._of(metrics.BACKFILL_WINDOWS_LEFT):
            click.echo(
                f"{_counted(left, 'window')} may have been collected in part, or count more than their raw rows: left "
                "as they are, and on the table's work list now; tidetable repair --listed settles those whose raw "
                "rows are all there"
            )
        if listed := self._of(metrics.BACKFILL_WINDOWS_LISTED) - left:
            click.echo(
                f"{_counted(listed, 'window')} may still be written by a job with "
                f"{format_duration(allowed_lateness)} of allowed lateness, which does not know these events: on the "
                "table's work list now, for tidetable repair --listed to settle later"
            )
        if expired := self._of(metrics.EXPIRED_EVENTS):
            click.echo(f"older than the table keeps readings, and soon to be collected: {_counted(expired, 'event')}")

    def _of(self, name: str) -> int:
        return self.totals.get(name, 0)

    @property
    def _reasons(self) -> dict[str, int]:
        return {
            reason: number
            for name, number in sorted(self.totals.items())
            if number and (reason := metrics.dead_letter_reason(name))
        }


def progress_of(bytes_read: Callable[[], int], total: int, doing: str) -> Progress:
    """A progress display on standard error, where that is a terminal; of a total of 0 no more than a sign of life."""

    class Read(ProgressColumn):
        def render(self, task: Task) -> Text:  # noqa: ARG002 (rich's signature)
            return Text(f"{min(bytes_read() / total, 1):4.0%}" if total else "")

    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        Read(),
        TimeElapsedColumn(),
        console=err,
        disable=not err.is_terminal,
        transient=True,
    )
    progress.add_task(doing, total=None)
    return progress


def report_records(outcome: "Outcome") -> None:
    """Prints the first of what was refused, and what is remarkable, as publish does."""
    for file, line, text in [*outcome.remarks, *outcome.refused]:
        err.out(plain(f"{file}:{line}: {text}" if line else f"{file}: {text}"), highlight=False)
    refused = outcome.totals.get(metrics.BACKFILL_REFUSED_RECORDS, 0) + outcome.totals.get(metrics.DEAD_LETTERS, 0)
    if refused > len(outcome.refused):
        err.out(f"and {refused - len(outcome.refused):,} more", highlight=False)


def fail_on_unreadable(outcome: "Outcome", consequence: str = "") -> None:
    """Raises ClickException where a file could not be read as a whole."""
    if unreadable := outcome.totals.get(metrics.BACKFILL_UNREADABLE_FILES, 0):
        raise click.ClickException(f"{_counted(unreadable, 'file')} could not be read to the end{consequence}")


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
