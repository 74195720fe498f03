"""How ``tidetable dead-letters`` shows dead letters: for people, or as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from pipeline.cli.console import out
from pipeline.core.dead_letter_records import DeadLetter, Group, event_time_text, publish_time_text
from pipeline.core.text import joined
from pipeline.core.times import format_time
from pipeline.core.values import format_value
from pipeline.proto.sensor_event_pb2 import SensorEvent

NO_REASON = "none"

_UNBOUNDED = Console(width=1_000_000, highlight=False, emoji=False)  # what is piped is not folded
_NAME_WIDTH = 12
_MOST_TEXT = 200
_MOST_BYTES = 64


def group_json(group: Group) -> dict[str, Any]:
    """A group as an object: no reason and no sensor are null, and so are times that nothing says."""
    return {
        "reason": group.reason or None,
        "sensor_id": group.sensor_id or None,
        "count": group.count,
        "oldest": _time(group.oldest_us),
        "newest": _time(group.newest_us),
        "detail": group.detail,
    }


def print_groups(groups: Sequence[Group]) -> None:
    """Prints a table of groups; a block for each where a terminal is too narrow for a table."""
    if not groups:
        return
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
            _text(group.detail, _MOST_TEXT),
        )
    console = out if out.is_terminal else _UNBOUNDED
    if Measurement.get(_UNBOUNDED, _UNBOUNDED.options, table).minimum <= console.width:
        console.print(table)
        return
    for group in groups:
        _print_block(
            f"{group.count:,} {group.reason or NO_REASON}",
            {
                "sensor": _text(group.sensor_id, _MOST_TEXT),
                "oldest": Text(_time(group.oldest_us) or ""),
                "newest": Text(_time(group.newest_us) or ""),
                "example": _text(group.detail, _MOST_TEXT),
            },
        )


def print_letter(letter: DeadLetter) -> None:
    """Prints a dead letter; of long values, and of a payload that can't be decoded, the beginning."""
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
    }
    time = _time(letter.time_us)
    heading = f"{letter.reason or NO_REASON}, {time}" if time else letter.reason or NO_REASON
    events = [_event_lines(event) for event in letter.events]
    _print_block(heading, lines | (events[0] if events else {"bytes": _dump(original.data)}))
    for number, event in enumerate(events[1:], start=2):
        _print_block(f"event {number:,} of {len(events):,}", event)


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
    """The beginning of a payload: as text where it is some, else in hexadecimal."""
    if not data:
        return Text("none")
    size = f"{len(data):,}: "
    try:
        text = data[:_MOST_TEXT].decode(errors="strict" if len(data) <= _MOST_TEXT else "ignore")
    except UnicodeDecodeError:
        text = "\0"
    if all(character.isprintable() or character.isspace() for character in text):
        return Text(f"{size}{text!r}{'…' if len(data) > _MOST_TEXT else ''}")
    return Text(f"{size}{data[:_MOST_BYTES].hex(' ')}{' …' if len(data) > _MOST_BYTES else ''}")


def _pairs(pairs: Mapping[str, str]) -> Text:
    return _text(joined({name: _short(value) for name, value in pairs.items()}), 10_000)


def _text(text: str, most: int = 1000) -> Text:
    """Foreign text, so that it can neither steer a terminal nor fill it."""
    short = _short(text, most)
    return Text(short if short.isprintable() else repr(short))


def _short(text: str, most: int = _MOST_TEXT) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _time(time_us: int | None, *, whole: bool = False) -> str | None:
    if time_us is None:
        return None
    return format_time(time_us // 1_000_000 * 1_000_000 if whole else time_us)
