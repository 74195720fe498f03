"""Prints the dead letters of ``tidetable dead-letters``: as tables and blocks, or as JSON."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from pipeline.cli.console import out
from pipeline.cli.tables import RowBlock, TableColumn, number, print_block, print_table, prose, render, word
from pipeline.core.dead_letters import DeadLetter, LetterGroup, LetterGroups, event_time_text, publish_time_text
from pipeline.core.decoding.dry_decode import Trial
from pipeline.core.events.event import MAX_SENSOR_ID
from pipeline.core.notation.cell_values import format_value
from pipeline.core.notation.text import counted, joined
from pipeline.core.notation.times import format_time
from pipeline.proto.sensor_event_pb2 import SensorEvent

NO_REASON = "none"
GROUP_COLUMNS = ("reason", "sensor_id", "count", "oldest", "newest", "detail")
"""The names in :func:`group_json`."""

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
    width = len(f"{max(reasons.values()):,}")
    render(out, Text(f"{counted(reasons.total(), 'dead letter')} by reason:"))
    for reason, count in sorted(reasons.items(), key=lambda each: (-each[1], each[0])):
        of = f" of {counted(sensors[reason], 'known sensor')}" if sensors[reason] else ""
        render(out, Text(f"  {count:{width},}  {_text(reason or NO_REASON, 40)}{of}"))
    columns = word("reason"), word("sensor"), number("count"), word("oldest"), word("newest"), prose("example")
    rows = (
        (
            _text(group.reason or NO_REASON, 40),
            _text(group.sensor_id or "–"),
            f"{group.count:,}",
            _time(group.oldest_us, whole=True) or "–",
            _time(group.newest_us, whole=True) or "–",
            _text(group.detail, _MAX_TEXT),
        )
        for group in groups
    )
    print_table(columns, rows, lambda: map(_block_of, groups))


def _block_of(group: LetterGroup) -> RowBlock:
    return RowBlock(
        f"{group.count:,} {group.reason or NO_REASON}",
        [
            (word("sensor"), _text(group.sensor_id)),
            (word("oldest"), _time(group.oldest_us) or ""),
            (word("newest"), _time(group.newest_us) or ""),
            (prose("example"), _text(group.detail, _MAX_TEXT)),
        ],
    )


def print_letter(letter: DeadLetter) -> None:
    """Prints a dead letter. Long values, and payloads that can't be decoded, are cut short."""
    original = letter.original
    published = publish_time_text(original)
    message = f"{original.message_id}, published {published}" if published else original.message_id
    lines = [
        (prose("detail"), _text(letter.detail)),
        (word("step"), _text(letter.step)),
        (word("message"), _text(message)),
        (word("replays"), str(letter.replays) if letter.replays else ""),
        (prose("ordering key"), _text(original.ordering_key)),
        (prose("attributes"), _pairs(original.attributes)),
        (prose("mapped"), _text(_trial_line(letter.trial)) if letter.trial else ""),
    ]
    time = _time(letter.time_us)
    heading = f"{letter.reason or NO_REASON}, {time}" if time else letter.reason or NO_REASON
    events = [_event_lines(event) for event in letter.events]
    print_block(heading, lines + (events[0] if events else [(prose("bytes"), _dump(original.data))]))
    for position, event in enumerate(events[1:], start=2):
        print_block(f"event {position:,} of {len(events):,}", event)


def _trial_line(trial: Trial) -> str:
    parts = [counted(len(trial.events), "event")] if trial.events else []
    parts += [f"refused: {problem}" for problem in trial.problems]
    parts += [f"left out: {problem}" for problem in trial.dropped]
    parts += [f"{trial.skipped:,} skipped"] if trial.skipped else []
    return f"{trial.type}: {'; '.join(parts) or 'nothing'}"


def _event_lines(event: SensorEvent) -> list[tuple[TableColumn, str]]:
    readings = {metric: format_value(value).decode() for metric, value in sorted(event.readings.items())}
    return [
        (word("sensor"), _text(event.sensor_id or "–")),
        (word("event time"), event_time_text(event) or "–"),
        (word("event id"), _text(event.event_id)),
        (prose("readings"), _pairs(readings)),
        (prose("metadata"), _pairs(dict(sorted(event.metadata.items())))),
    ]


def _dump(data: bytes) -> str:
    """Returns the beginning of a payload, as text if it is text, otherwise in hexadecimal."""
    if not data:
        return "none"
    size = f"{len(data):,}: "
    try:
        text = data[:_MAX_TEXT].decode(errors="strict" if len(data) <= _MAX_TEXT else "ignore")
    except UnicodeDecodeError:
        text = "\0"
    if all(character.isprintable() or character.isspace() for character in text):
        return f"{size}{text!r}{'…' if len(data) > _MAX_TEXT else ''}"
    return f"{size}{data[:_MAX_BYTES].hex(' ')}{' …' if len(data) > _MAX_BYTES else ''}"


def _pairs(pairs: Mapping[str, str]) -> str:
    return _text(joined({name: _short(value, MAX_SENSOR_ID) for name, value in pairs.items()}), 10_000)


def _text(text: str, length: int = 1000) -> str:
    """Returns foreign text, shortened, with control characters escaped."""
    short = _short(text, length)
    return short if short.isprintable() else repr(short)


def _short(text: str, length: int = _MAX_TEXT) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _time(time_us: int | None, *, whole: bool = False) -> str | None:
    if time_us is None:
        return None
    return format_time(time_us // 1_000_000 * 1_000_000 if whole else time_us)
