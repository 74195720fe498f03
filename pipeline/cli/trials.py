"""Prints messages, or records of files, beside the events that they become."""

import json
from collections.abc import Iterator

from rich.console import Console, Group
from rich.text import Text

from pipeline.cli.console import out
from pipeline.cli.tables import print_beside, render
from pipeline.core.decoding.dry_decode import Trial
from pipeline.core.events.event import Event
from pipeline.core.events.message import Message
from pipeline.core.notation.cell_values import format_value
from pipeline.core.notation.text import counted, joined, plain
from pipeline.core.notation.times import format_time

_MAX_LINES = 60  # of a message
_MAX_EVENTS = 20
_MAX_TEXT = 2000


def print_trial(source: str, message: Message, trial: Trial, console: Console = out) -> None:
    """Prints a message and what becomes of it: side by side on a wide terminal."""
    parts = [trial.type or "of no known type", counted(len(trial.events), "event")]
    parts += [f"{len(trial.problems):,} refused"] if trial.problems else []
    parts += [f"{counted(len(trial.dropped), 'reading')} left out"] if trial.dropped else []
    parts += [f"{trial.skipped:,} skipped"] if trial.skipped else []
    render(console, Text(plain(f"{source}: {', '.join(parts)}"), style="bold"))
    if message.attributes:
        render(console, Text(f"  attributes  {joined(message.attributes)}"))
    left, right = Group(*_message_lines(message, trial)), Group(*_outcome_lines(trial))
    print_beside(console, left, right)
    render(console, "")


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
        yield Text(f"… {len(lines) - _MAX_LINES:,} more lines; --format json prints all")


def _outcome_lines(trial: Trial) -> Iterator[Text]:
    for event in trial.events[:_MAX_EVENTS]:
        yield from _event_lines(event)
    if len(trial.events) > _MAX_EVENTS:
        yield Text(f"… {len(trial.events) - _MAX_EVENTS:,} more events; --format json prints all")
    for problem in trial.problems:
        yield Text(_cut(f"refused  {problem.reason}: {problem.detail}"), style="red")
    for problem in trial.dropped:
        yield Text(_cut(f"left out  {problem.reason}: {problem.detail}"), style="yellow")
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


def _cut(text: str) -> str:
    short = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
    return plain(short)
