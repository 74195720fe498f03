"""Prints the dead letters of ``tidetable dead-letters``: as tables and blocks, or as JSON."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from pipeline.cli.console import out
from pipeline.core.dead_letters.records import DeadLetter, LetterGroup, LetterGroups, event_time_text, publish_time_text
from pipeline.core.decoding.dry_decode import Trial
from pipeline.core.notation.cell_values import format_value
from pipeline.core.notation.text import counted, joined
from pipeline.core.notation.times import format_time
from pipeline.proto.sensor_event_pb2 import SensorEvent

NO_REASON = "none"
GROUP_COLUMNS = ("reason", "sensor_id", "count", "oldest", "newest", "detail")
"""The names in :func:`group_json`."""

_UNBOUNDED = Console(width=1_000_000, highlight=False, emoji=False)  # piped lines are not folded
_NAME_WIDTH = 12
_MAX_TEXT = 200
_MAX_BYTES = 64


def group_json(group: LetterGroup) -> dict[str, Any]:
    """Returns a group as a JSON object. A missing reason, sensor or time is null."""
    return {
        "reason": group.reason or None,
        "sensor_id": group.sensor_id or None,
        "count": group.count,
        "oldest": _time(group.oldest_us),
        "newest": _time(group.newest_us),
        "detail": group.detail,
    }


def print_groups(letters: LetterGroups) -> None:
    """Prints the number of letters of each reason, and a table of groups, or one block each on a narrow terminal."""
    groups, reasons = letters.by_reason(), letters.reasons()
    if not groups:
        return
    sensors = Counter(group.reason for group in groups if group.sensor_id)
    console = out if out.is_terminal else _UNBOUNDED
    width = len(f"{max(reasons.values()):,}")
    console.print(Text(f"{counted(reasons.total(), 'dead letter')} by reason:"))
    for reason, count in sorted(reasons.items(), key=lambda each: (-each[1], each[0])):
        of = f" of {counted(sensors[reason], 'known sensor')}" if sensors[reason] else ""
        console.print(Text(f"  {count:{width},}  ") + _text(reason or NO_REASON, 40) + Text(of))
    table = Table(
        Column("reason", no_wrap=True),
        Column("sensor", no_wrap=True),
        Column("count", justify="right", no_wrap=True),
        Column("oldest", no_wrap=True),
        Column("newest", no_wrap=True),
        Column("example", overflow="fold", min_width=24),
        box=box.SIMPLE,
        pad_edge=False,
        collapse_padding=True,
    )
    for group in groups:
        table.add_row(
            _text(group.reason or NO_REASON, 40),
            _text(group.sensor_id or "–", 40),
            f"{group.count:,}",
            _time(group.oldest_us, whole=True) or "–",
            _time(group.newest_us, whole=True) or "–",
            _text(group.detail, _MAX_TEXT),
        )
    if Measurement.get(_UNBOUNDED, _UNBOUNDED.options, table).minimum <= console.width:
        console.print(table)
        return
    for group in groups:
        _print_block(
            f"{group.count:,} {group.reason or NO_REASON}",
            {
                "sensor": _text(group.sensor_id, _MAX_TEXT),
                "oldest": Text(_time(group.oldest_us) or ""),
                "newest": Text(_time(group.newest_us) or ""),
                "example": _text(group.detail, _MAX_TEXT),
            },
        )


def print_letter(letter: DeadLetter) -> None:
    """Prints a dead letter. Long values, and payloads that can't be decoded, are cut short."""
    original = letter.original
    published = publish_time_text(original)
    message = f"{original.message_id}, published {published}" if published else original.message_id
    lines = {
        "detail": _text(letter.detail),
        "step": _text(letter.step),
        "message": _text(message),
        "replays": Text(str(letter.replays) if letter.replays else ""),
        "ordering key": _text(original.ordering_key),
        "attributes": _pairs(original.attributes),
        "mapped": _text(_trial_line(letter.trial)) if letter.trial else Text(),
    }
    time = _time(letter.time_us)
    heading = f"{letter.reason or NO_REASON}, {time}" if time else letter.reason or NO_REASON
    events = [_event_lines(event) for event in letter.events]
    _print_block(heading, lines | (events[0] if events else {"bytes": _dump(original.data)}))
    for number, event in enumerate(events[1:], start=2):
        _print_block(f"event {number:,} of {len(events):,}", event)


def _trial_line(trial: Trial) -> str:
    parts = [counted(len(trial.events), "event")] if trial.events else []
    parts += [f"refused: {problem}" for problem in trial.problems]
    parts += [f"{trial.skipped:,} skipped"] if trial.skipped else []
    return f"{trial.type}: {'; '.join(parts) or 'nothing'}"


def _print_block(heading: str, lines: Mapping[str, Text]) -> None:
    out.print(_text(heading), style="bold", soft_wrap=True)
    shown = {name: line for name, line in lines.items() if line}
    if out.is_terminal:
        grid = Table.grid(Column(no_wrap=True, min_width=_NAME_WIDTH), Column(overflow="fold"), padding=(0, 2))
        for name, line in shown.items():
            grid.add_row(name, line)
        out.print(Padding(grid, (0, 0, 0, 2)))
    else:
        for name, line in shown.items():
            out.print(Text(f"  {name:<{_NAME_WIDTH}}  ") + line, soft_wrap=True)
    out.print()


def _event_lines(event: SensorEvent) -> dict[str, Text]:
    readings = {metric: format_value(value).decode() for metric, value in sorted(event.readings.items())}
    return {
        "sensor": _text(event.sensor_id or "–"),
        "event time": Text(event_time_text(event) or "–"),
        "event id": _text(event.event_id),
        "readings": _pairs(readings),
        "metadata": _pairs(dict(sorted(event.metadata.items()))),
    }


def _dump(data: bytes) -> Text:
    """Returns the beginning of a payload, as text if it is text, otherwise in hexadecimal."""
    if not data:
        return Text("none")
    size = f"{len(data):,}: "
    try:
        text = data[:_MAX_TEXT].decode(errors="strict" if len(data) <= _MAX_TEXT else "ignore")
    except UnicodeDecodeError:
        text = "\0"
    if all(character.isprintable() or character.isspace() for character in text):
        return Text(f"{size}{text!r}{'…' if len(data) > _MAX_TEXT else ''}")
    return Text(f"{size}{data[:_MAX_BYTES].hex(' ')}{' …' if len(data) > _MAX_BYTES else ''}")


def _pairs(pairs: Mapping[str, str]) -> Text:
    return _text(joined({name: _short(value) for name, value in pairs.items()}), 10_000)


def _text(text: str, length: int = 1000) -> Text:
    """Returns foreign text, shortened, with control characters escaped."""
    short = _short(text, length)
    return Text(short if short.isprintable() else repr(short))


def _short(text: str, length: int = _MAX_TEXT) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _time(time_us: int | None, *, whole: bool = False) -> str | None:
    if time_us is None:
        return None
    return format_time(time_us // 1_000_000 * 1_000_000 if whole else time_us)
