"""Prints the result of ``tidetable backfill`` or of its dry run: the first refused records, totals, first events."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import click
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from pipeline.cli.console import err
from pipeline.cli.tables import number, print_table, word
from pipeline.cli.trials import print_trial
from pipeline.cloud.connection.names import TableName
from pipeline.core.notation.cell_values import format_value
from pipeline.core.notation.durations import format_duration
from pipeline.core.notation.text import counted, plain
from pipeline.core.notation.times import format_time
from pipeline.transforms import metrics

if TYPE_CHECKING:
    from pipeline.backfill.request import Outcome
    from pipeline.core.decoding.dry_decode import Trial
    from pipeline.core.events.message import Message

_MOST_METRICS = 50
_WRITTEN = ("raw_rows", "aggregate_rows", "rollup_rows", "windows_listed", "windows_left")  # keys that a dry run lacks
_REFRESH_S = 0.2
_LINE_S = 30.0  # between two lines of a log
_SKIPPED = metrics.TYPE_COUNTERS[2]


@dataclass(frozen=True)
class Summary:
    """The result of a backfill."""

    table: TableName
    files: int
    outcome: "Outcome"
    seconds: float

    @property
    def records(self) -> int:
        """The number of records, valid or not."""
        return self._of(metrics.BACKFILL_RECORDS)

    @property
    def events(self) -> int:
        """The number of valid events."""
        return self._of(metrics.EVENTS)

    @property
    def refused(self) -> int:
        """The number of refused records."""
        return self._of(metrics.BACKFILL_REFUSED_RECORDS) + self._of(metrics.DEAD_LETTERS)

    def as_json(self) -> dict[str, Any]:
        """Returns the summary as a JSON object. ``malformed`` counts the refused records that are not events."""
        return {
            "table": str(self.table),
            "files": self.files,
            "records": self.records,
            "events": self.events,
            "distinct_events": self._distinct,
            "repeated_readings": self.outcome.repeated.readings,
            "lost_readings": self.outcome.repeated.lost,
            "lost_examples": [
                {
                    "sensor_id": lost.sensor_id,
                    "event_time": format_time(lost.time_us),
                    "metric": lost.metric,
                    "values": lost.values,
                }
                for lost in self.outcome.repeated.examples
            ],
            "skipped": self._skipped,
            "dropped_readings": self._of(metrics.READINGS_DROPPED),
            "replaced_times": self._of(metrics.REPLACED_TIMES),
            "refused": self.refused,
            "malformed": self._of(metrics.BACKFILL_REFUSED_RECORDS),
            "dead_letters": self._reasons,
            "raw_rows": self._of(metrics.RAW_ROWS),
            "aggregate_rows": self._of(metrics.AGGREGATE_ROWS),
            "rollup_rows": self._of(metrics.ROLLUP_ROWS),
            "windows_listed": self._of(metrics.BACKFILL_WINDOWS_LISTED),
            "windows_left": self._of(metrics.BACKFILL_WINDOWS_LEFT),
            "expired": self._of(metrics.EXPIRED_EVENTS),
            "refused_by_file": self._of_files,
            "seconds": round(self.seconds, 3),
        }

    def print(self, dead_letters: str | None, allowed_lateness: timedelta) -> None:
        """Prints the summary as text."""
        rows = self._of(metrics.ROLLUP_ROWS)
        rolled_up = f"and {counted(rows, 'row')} of roll-ups " if rows else ""
        click.echo(
            f"{counted(self.files, 'file')}, {counted(self.records, 'record')}, "
            f"{counted(self.events, 'event')}: {counted(self._of('raw_rows'), 'raw row')} and "
            f"{counted(self._of('aggregate_rows'), 'aggregate row')} "
            f"{rolled_up}written to {self.table}, "
            f"{counted(self.refused, 'record')} refused; {self.seconds:.1f} s {self._way}"
        )
        if self.outcome.done_before:
            click.echo(
                f"of these, an earlier run that was interrupted had written {counted(self.outcome.done_before, 'file')}"
            )
        self.print_notes(dead_letters)
        if left := self._of(metrics.BACKFILL_WINDOWS_LEFT):
            click.echo(
                f"{counted(left, 'window')} left unchanged and put on the table's work list: raw rows of theirs may "
                "be collected, a job may still write them while their aggregates count other values than the raw rows, "
                "or another program wrote one of their rows; tidetable repair --listed settles those that are over and "
                "have all raw rows"
            )
        if listed := self._of(metrics.BACKFILL_WINDOWS_LISTED) - left:
            why = (
                f"a job with an allowed lateness of {format_duration(allowed_lateness)} may still write aggregates "
                "without these events; run tidetable repair --listed once these windows are over, or pass "
                "--allowed-lateness 0s if no job runs"
                if allowed_lateness
                else "raw rows of theirs may be collected, so nothing proves that their aggregates count all events; "
                "tidetable repair --listed settles those that have all raw rows"
            )
            click.echo(f"{counted(listed, 'window')} put on the table's work list: {why}")

    def print_notes(self, dead_letters: str | None = None) -> None:
        """Prints why records were refused or skipped, and how many events fell on one another or are too old."""
        if self.refused:
            reasons = {"malformed": self._of(metrics.BACKFILL_REFUSED_RECORDS), **self._reasons}
            counts = ", ".join(f"{number:,} {reason}" for reason, number in reasons.items() if number)
            click.echo(f"refused: {counts}" + (f"; see {dead_letters}" if dead_letters else ""))
            if self.files > 1:
                for path, number in sorted(self._of_files.items()):
                    click.echo(f"  {plain(path)}: {counted(number, 'record')}")
        if skipped := self._skipped:
            click.echo(f"skipped by conditions of a mapping, or without readings: {skipped:,}")
        if dropped := self._of(metrics.READINGS_DROPPED):
            see = f"; {dead_letters} has one of each metric and reason a minute" if dead_letters else ""
            click.echo(f"invalid readings that were left out of their events: {dropped:,}{see}")
        if replaced := self._of(metrics.REPLACED_TIMES):
            click.echo(f"times that are not plausible, replaced by the next of a mapping's list: {replaced:,}")
        fall = f"{counted(self.events, 'event')} fall on {self._distinct:,}"
        if again := self.outcome.repeated.readings:
            click.echo(
                f"{fall}: {counted(again, 'reading')} came again with the same sensor, time, metric "
                "and value, which changes nothing"
            )
        if count := self.outcome.repeated.lost:
            examples = "; ".join(
                f"{plain(lost.sensor_id)} at {format_time(lost.time_us)}: {plain(lost.metric)} is "
                f"{' and '.join(format_value(value).decode() for value in lost.values)}"
                for lost in self.outcome.repeated.examples
            )
            click.echo(
                f"{fall}: {counted(count, 'reading')} lost, since the same sensor, time and metric came with another "
                f"value, of which the table keeps one, such as {examples}"
            )
        if expired := self._of(metrics.EXPIRED_EVENTS):
            click.echo(
                f"{counted(expired, 'event')} older than the table keeps readings: Bigtable will collect them soon"
            )

    @property
    def _way(self) -> str:
        """Which way the backfill ran, and how fast."""
        count = self.outcome.processes
        processes = "1 process" if count == 1 else f"{count} processes"
        rate = self._of(metrics.RAW_ROWS) / self.seconds if self.seconds else 0
        return f"{f'in {processes} on this machine' if count else 'on Dataflow'}, {rate:,.0f} raw rows/s"

    @property
    def _distinct(self) -> int:
        """How many events the table distinguishes."""
        return self.events - self.outcome.repeated.events

    @property
    def _skipped(self) -> int:
        return sum(
            number for name, number in self.outcome.totals.items() if name.startswith(metrics.of_type(_SKIPPED, ""))
        )

    @property
    def _of_files(self) -> dict[str, int]:
        """The number of refused records by file: of many files, those with most."""
        from pipeline.backfill.request import MAX_FILES

        return dict(self.outcome.of_files.most_common(MAX_FILES))

    def _of(self, name: str) -> int:
        return self.outcome.totals[name]

    @property
    def _reasons(self) -> dict[str, int]:
        return {
            reason: number
            for name, number in sorted(self.outcome.totals.items())
            if number and (reason := metrics.dead_letter_reason(name))
        }


@dataclass(frozen=True)
class DryRun:
    """The result of a dry run."""

    summary: Summary
    trials: Sequence[tuple[str, "Message", "Trial"]]

    def as_json(self) -> dict[str, Any]:
        """Returns the result as a JSON object."""
        survey = self.summary.outcome.survey
        totals = {key: value for key, value in self.summary.as_json().items() if key not in _WRITTEN}
        has_events = bool(self.summary.events)
        return {
            **totals,
            "sensors": survey.sensors,
            "first": format_time(survey.first_us) if has_events else None,
            "last": format_time(survey.last_us) if has_events else None,
            "metrics": {
                name: {"readings": metric.readings, "min": metric.least, "max": metric.greatest}
                for name, metric in survey.metrics.items()
            },
            "first_records": [{"source": source, **trial.document()} for source, _, trial in self.trials],
        }

    def print(self) -> None:
        """Prints the result as text."""
        summary, survey = self.summary, self.summary.outcome.survey
        what = counted(summary.events, "event")
        if summary.events:
            what += (
                f" of {counted(survey.sensors, 'sensor')} from {format_time(survey.first_us)} to "
                f"{format_time(survey.last_us)}"
            )
        click.echo(
            f"{counted(summary.files, 'file')}, {counted(summary.records, 'record')}, {what}, "
            f"{counted(summary.refused, 'record')} refused; {summary.seconds:.1f} s; nothing was written to "
            f"{summary.table}"
        )
        summary.print_notes()
        if survey.metrics:
            self._print_metrics()
        if (more := len(survey.metrics) - _MOST_METRICS) > 0:
            click.echo(f"  … {counted(more, 'more metric')}; --json prints all")
        click.echo()
        for trial in self.trials:
            print_trial(*trial)

    def _print_metrics(self) -> None:
        metrics = list(self.summary.outcome.survey.metrics.items())[:_MOST_METRICS]
        rows = (
            (name, f"{metric.readings:,}", format_value(metric.least).decode(), format_value(metric.greatest).decode())
            for name, metric in metrics
        )
        print_table([word("metric"), *map(number, ("readings", "least", "greatest"))], rows, indent=2, is_bare=True)


@contextmanager
def progress_of(doing: str) -> Iterator[None]:
    """Shows on standard error how far the backfill in this process is: a bar on a terminal, lines in a log."""
    from pipeline.backfill.files import METER

    class Rows(ProgressColumn):
        def render(self, task: Task) -> Text:
            rows = METER.raw_rows
            return Text(f"{counted(rows, 'row')}, {rows / task.elapsed:,.0f}/s" if rows and task.elapsed else "")

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(20),
        TaskProgressColumn(),
        Rows(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=err,
        disable=not err.is_terminal,
        transient=True,
    )
    task, ended = bar.add_task(doing, total=None), Event()

    def follow() -> None:
        started = shown = time.monotonic()
        while not ended.wait(_REFRESH_S):
            bar.update(task, total=METER.total or None, completed=METER.size)
            if bar.disable and time.monotonic() >= shown + _LINE_S:
                shown = time.monotonic()
                err.out(_line(doing, METER.size / (METER.total or 1), METER.raw_rows, shown - started), highlight=False)

    thread = Thread(target=follow, daemon=True)
    with bar:
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _line(doing: str, share: float, rows: int, seconds: float) -> str:
    """Returns a line of a log."""
    rate = f", {counted(rows, 'row')}, {rows / seconds:,.0f}/s" if rows else ""
    left = f", {format_duration(timedelta(seconds=round(seconds / share * (1 - share))))} left" if share else ""
    return f"{doing}: {share:.0%}{rate}{left}"


def report_records(outcome: "Outcome") -> None:
    """Prints the remarks and the first refused records, in the format of publish."""
    for file, line, text in [*outcome.remarks, *outcome.refused]:
        err.out(plain(f"{file}:{line}: {text}" if line else f"{file}: {text}"), highlight=False)
    refused = outcome.totals[metrics.BACKFILL_REFUSED_RECORDS] + outcome.totals[metrics.DEAD_LETTERS]
    if refused > len(outcome.refused):
        err.out(f"and {refused - len(outcome.refused):,} more", highlight=False)


def fail_on_unreadable(outcome: "Outcome", consequence: str = "") -> None:
    """Raises ClickException if a file could not be read to its end."""
    if unreadable := outcome.totals[metrics.BACKFILL_UNREADABLE_FILES]:
        raise click.ClickException(f"{counted(unreadable, 'file')} could not be read to the end{consequence}")
