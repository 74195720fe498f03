"""Prints the result of ``tidetable backfill --dry-run``: the totals, the metrics, and the first events."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from rich.table import Column, Table
from rich.text import Text

from pipeline.backfill.summary import Summary
from pipeline.cli.console import out
from pipeline.cli.trials import indented, print_trial, render
from pipeline.core.decoding.dry_decode import Trial
from pipeline.core.events.message import Message
from pipeline.core.notation.cell_values import format_value
from pipeline.core.notation.text import counted, plain
from pipeline.core.notation.times import format_time

if TYPE_CHECKING:
    from pipeline.backfill.survey import Survey

_MOST_METRICS = 50
_WRITTEN = (
    "raw_rows",
    "aggregate_rows",
    "rollup_rows",
    "windows_listed",
    "windows_left",
)  # keys of what a dry run does not write


@dataclass(frozen=True)
class DryRun:
    """The result of a dry run.

    Args:
        summary: the totals.
        survey: the survey of the events.
        trials: the first records: where each is, its message, and its events.
    """

    summary: Summary
    survey: "Survey"
    trials: Sequence[tuple[str, Message, Trial]]

    def as_json(self) -> dict[str, Any]:
        """Returns the result as a JSON object."""
        totals = {key: value for key, value in self.summary.as_json().items() if key not in _WRITTEN}
        has_events = bool(self.summary.events)
        return {
            **totals,
            "sensors": self.survey.sensors,
            "first": format_time(self.survey.first_us) if has_events else None,
            "last": format_time(self.survey.last_us) if has_events else None,
            "metrics": {
                name: {"readings": metric.readings, "min": metric.least, "max": metric.greatest}
                for name, metric in self.survey.metrics.items()
            },
            "first_records": [{"source": source, **trial.document()} for source, _, trial in self.trials],
        }

    def print(self) -> None:
        """Prints the result as text."""
        summary, survey = self.summary, self.survey
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
            render(out, indented(out, self._table(), 2))
        if (more := len(survey.metrics) - _MOST_METRICS) > 0:
            click.echo(f"  … {counted(more, 'more metric')}; --json prints all")
        click.echo()
        for trial in self.trials:
            print_trial(*trial)

    def _table(self) -> Table:
        table = Table.grid("metric", *(Column(justify="right") for _ in range(3)), padding=(0, 3, 0, 0))
        table.add_row(*(Text(name, style="bold") for name in ("metric", "readings", "least", "greatest")))
        for name, metric in list(self.survey.metrics.items())[:_MOST_METRICS]:
            extremes = (format_value(value).decode() for value in (metric.least, metric.greatest))
            table.add_row(Text(plain(name)), f"{metric.readings:,}", *extremes)
        return table
