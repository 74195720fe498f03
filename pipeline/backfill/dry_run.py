"""Prints the result of ``tidetable backfill --dry-run``: the totals, the metrics, and the first events."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from pipeline.backfill.summary import Summary
from pipeline.cli.tables import number, print_table, word
from pipeline.cli.trials import print_trial
from pipeline.core.decoding.dry_decode import Trial
from pipeline.core.events.message import Message
from pipeline.core.notation.cell_values import format_value
from pipeline.core.notation.text import counted
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
            self._print_metrics()
        if (more := len(survey.metrics) - _MOST_METRICS) > 0:
            click.echo(f"  … {counted(more, 'more metric')}; --format json prints all")
        click.echo()
        for trial in self.trials:
            print_trial(*trial)

    def _print_metrics(self) -> None:
        metrics = list(self.survey.metrics.items())[:_MOST_METRICS]
        rows = (
            (name, f"{metric.readings:,}", format_value(metric.least).decode(), format_value(metric.greatest).decode())
            for name, metric in metrics
        )
        print_table([word("metric"), *map(number, ("readings", "least", "greatest"))], rows, indent=2, is_bare=True)
