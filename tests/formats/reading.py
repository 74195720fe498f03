"""Helpers for the tests of record readers: a fixed clock, and the events and refusals among records."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.core.decoding.message_types import MappedType
from pipeline.core.events.event import Event
from pipeline.core.notation.times import parse_time
from pipeline.formats.files import open_records
from pipeline.formats.lines import Record, Refusal
from pipeline.formats.values import MAX_RECORD_BYTES, EventMaker, FileColumns, UnreadableFile

MORNING = "2026-02-17T08:00:00Z"
MORNING_US = parse_time(MORNING)
NOW_US = parse_time("2026-02-17T10:00:00Z")
LATEST_US = NOW_US + 3_600_000_000
CSV = f"sensor_id,event_time,a,room\nA-1,{MORNING},1,küche\n"
NDJSON = f'{{"sensor_id": "A-1", "event_time": "{MORNING}", "a": 1, "room": "küche"}}\n'
EVENT = Event("A-1", MORNING_US, {"a": 1.0}, {"room": "küche"})
"""The event of these lines."""
SIMPLE = 'message = "json"\nsensor = "id"\ntime = "at"\n'


def maker(limit: int = MAX_RECORD_BYTES, **columns: str) -> EventMaker:
    return EventMaker(FileColumns(**columns), lambda: NOW_US, max_record_bytes=limit)


def too_long(limit: int) -> str:
    """Returns the reason to refuse a longer record."""
    return f"longer than {limit:,} bytes, the most that a record may have (--max-record-bytes)"


def events(records: Iterable[Record]) -> list[Event]:
    return [record._replace(message=None) for record in records if isinstance(record, Event)]


def read_until_damage(records: Iterable[Record]) -> tuple[list[Record], str]:
    """Returns the records before UnreadableFile and its message; an empty message if the whole file can be read."""
    found: list[Record] = []
    try:
        for record in records:
            found.append(record)  # noqa: PERF402 (keeps the records before a failure)
    except UnreadableFile as problem:
        return found, str(problem)
    return found, ""


def refusals(records: Iterable[Record]) -> list[Refusal]:
    return [record for record in records if isinstance(record, Refusal)]


def read(
    folder: Path, name: str, content: bytes, *mapped: MappedType, limit: int = 10_000, **attributes: str
) -> list[Any]:
    """Returns what publish would send of the records of a file."""
    (folder / name).write_bytes(content)
    with open_records(folder / name, FileColumns(), lambda: NOW_US, limit, mapped, attributes) as records:
        return list(records)


def plainly(found: Iterable[Event]) -> list[Any]:
    """Returns events as plain data."""
    return [event[:4] for event in found]
