"""Prints what ``tidetable mapping check`` finds: tables of what a mapping reads."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.text import Text

from pipeline.cli.console import out
from pipeline.cli.tables import print_table, prose, render
from pipeline.core.decoding.mapping.authoring.check import MappingReport


def report_document(report: MappingReport) -> dict[str, Any]:
    """Returns a report as a JSON object."""
    if report.problems:
        return {"message": report.message or None, "problems": report.problems}
    return {
        "message": report.message,
        "each": list(report.each),
        "entries": [line._asdict() for line in report.lines],
        "twice": [{"path": shared.name, "keys": list(shared.keys)} for shared in report.twice],
        "same_name": [{"name": shared.name, "keys": list(shared.keys)} for shared in report.same_name],
        "partly": [left._asdict() for left in report.partly],
        "unmapped": [left._asdict() for left in report.unmapped],
        "problems": [],
    }


def print_report(file: str, report: MappingReport) -> None:
    """Prints what a mapping reads and what it leaves."""
    events = f"events of {', '.join(report.each)}" if report.each else "one event a message"
    render(out, Text(f"{file}: {report.message}, {events}", style="bold"))
    _print_rows("reads", report.lines)
    _print_rows("reads twice", ((shared.name, ", ".join(shared.keys)) for shared in report.twice))
    _print_rows(
        "names alike, which refuses an event that has both",
        ((shared.name, ", ".join(shared.keys)) for shared in report.same_name),
    )
    _print_rows("reads in part", report.partly)
    _print_rows("leaves out", report.unmapped)
    render(out, "")


def _print_rows(heading: str, rows: Iterable[Sequence[str]]) -> None:
    columns = [column for column in zip(*rows, strict=True) if any(column)]
    if not columns:
        return
    render(out, Text(f"  {heading}:"))
    print_table([prose("") for _ in columns], zip(*columns, strict=True), indent=4, is_bare=True)
