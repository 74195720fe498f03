"""Prints what ``tidetable mapping`` finds: tables of what a mapping reads, and messages beside their events."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from pipeline.cli.console import out
from pipeline.core.decoding.dry_decode import Trial
from pipeline.core.decoding.mapping.authoring.check import MappingReport
from pipeline.core.events.event import Event
from pipeline.core.events.message import Message
from pipeline.core.notation.cell_values import format_value
from pipeline.core.notation.text import counted, joined, plain
from pipeline.core.notation.times import format_time

_UNBOUNDED = Console(width=1_000_000, highlight=False, emoji=False)  # piped lines are not folded
_SIDE_BY_SIDE = 100  # columns of a terminal
_MAX_LINES = 60  # of a message
_MAX_EVENTS = 20
_MAX_TEXT = 2000


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
    _print(Text(f"{file}: {report.message}, {events}", style="bold"))
    _print_rows("reads", report.lines)
    _print_rows("reads twice", ((shared.name, ", ".join(shared.keys)) for shared in report.twice))
    _print_rows(
        "names alike, which refuses an event that has both",
        ((shared.name, ", ".join(shared.keys)) for shared in report.same_name),
    )
    _print_rows("reads in part", report.partly)
    _print_rows("leaves out", report.unmapped)
    _print("")


def print_trial(source: str, message: Message, trial: Trial) -> None:
    """Prints a message and what becomes of it: side by side on a wide terminal."""
    parts = [trial.type or "of no known type", counted(len(trial.events), "event")]
    parts += [f"{len(trial.problems):,} refused"] if trial.problems else []
    parts += [f"{trial.skipped:,} skipped"] if trial.skipped else []
    _print(Text(plain(f"{source}: {', '.join(parts)}"), style="bold"))
    if message.attributes:
        _print(Text(f"  attributes  {joined(message.attributes)}"))
    left, right = Group(*_message_lines(message, trial)), Group(*_outcome_lines(trial))
    if out.is_terminal and out.width >= _SIDE_BY_SIDE:
        grid = Table.grid(
            Column(ratio=1, overflow="fold"), Column(ratio=1, overflow="fold"), padding=(0, 3), expand=True
        )
        grid.add_row(left, right)
        _print(_indented(grid, 2))
    else:
        _print(_indented(left, 2))
        _print(_indented(right, 2))
    _print("")


def _message_lines(message: Message, trial: Trial) -> Iterator[Text]:
    if trial.message is None:
        more = " …" if len(message.data) > 64 else ""
        yield Text(f"{counted(len(message.data), 'byte')}: {message.data[:64].hex(' ')}{more}")
        return
    if isinstance(trial.message, str):
        lines = trial.message.splitlines()
    else:
        lines = json.dumps(trial.message, indent=2, ensure_ascii=False).splitlines()
    yield from (Text(_cut(line)) for line in lines[:_MAX_LINES])
    if len(lines) > _MAX_LINES:
        yield Text(f"… {len(lines) - _MAX_LINES:,} more lines; --json prints all")


def _outcome_lines(trial: Trial) -> Iterator[Text]:
    for event in trial.events[:_MAX_EVENTS]:
        yield from _event_lines(event)
    if len(trial.events) > _MAX_EVENTS:
        yield Text(f"… {len(trial.events) - _MAX_EVENTS:,} more events; --json prints all")
    for problem in trial.problems:
        yield Text(_cut(f"refused  {problem.reason}: {problem.detail}"), style="red")
    if trial.skipped:
        yield Text(f"skipped  {trial.skipped:,}: by conditions, or because an element has no reading")
    if not trial.events and not trial.problems and not trial.skipped:
        yield Text("nothing: the message becomes no event")


def _event_lines(event: Event) -> Iterator[Text]:
    yield Text(f"{event.sensor_id}  {format_time(event.event_time_us)}", style="bold")
    readings = {name: format_value(value).decode() for name, value in sorted(event.readings.items())}
    yield Text(_cut(f"  readings  {joined(readings)}"))
    if event.metadata:
        yield Text(_cut(f"  metadata  {joined(dict(sorted(event.metadata.items())))}"))
    if event.event_id:
        yield Text(_cut(f"  event id  {event.event_id}"))


def _print_rows(heading: str, rows: Iterable[Sequence[str]]) -> None:
    columns = [column for column in zip(*rows, strict=True) if any(column)]
    if not columns:
        return
    _print(Text(f"  {heading}:"))
    table = Table.grid(*(Column(overflow="fold") for _ in columns), padding=(0, 3, 0, 0))
    for row in zip(*columns, strict=True):
        table.add_row(*(Text(plain(cell)) for cell in row))
    _print(_indented(table, 4))


def _indented(what: RenderableType, columns: int) -> Padding:
    return Padding(what, (0, 0, 0, columns), expand=out.is_terminal)  # a pipe's lines have no width to fill


def _print(what: RenderableType) -> None:
    console = out if out.is_terminal else _UNBOUNDED
    console.print(what)


def _cut(text: str) -> str:
    short = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
    return plain(short)
