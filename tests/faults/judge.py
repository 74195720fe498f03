"""Compares a table with the published events: raw rows, their aggregates, newest readings, and nothing else.

The expectation is computed from the published events and from rows read by Google's client, not by pipeline code.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

import google.cloud.bigtable

from pipeline.cloud.connection.names import TableName
from pipeline.local.proof import Expectation
from pipeline.proto.sensor_event_pb2 import SensorEvent

Cells = Mapping[str, Mapping[str, list[tuple[int, str]]]]
"""Row key to ``family:qualifier`` to versions, each the cell's timestamp in microseconds and its text."""

_OF_THE_TABLE = ("schema#", "repair#")  # the table's own rows
_NEWEST = 10**16 - 1


def differences(name: TableName, events: Iterable[SensorEvent]) -> list[str]:
    """Returns the differences between the table and what the events should have become, a line each.

    Args:
        events: all valid events that were published, each as often as it was.
    """
    cells = _read(name)
    text = {key: {column: versions[0][1] for column, versions in row.items()} for key, row in cells.items()}
    raw = {key: row for key, row in text.items() if not key.startswith(("agg#", "latest#"))}
    published = Expectation(distinct(events), newest=True)
    return [
        *published.differences(text),
        *_inexact(raw, published.raw_rows),
        *Expectation(map(_event, raw, raw.values()), newest=True).differences(text),
        *_wrong_versions(cells),
    ]


def distinct(events: Iterable[SensorEvent]) -> list[SensorEvent]:
    """Returns each event once, by its sensor and its time to the microsecond."""
    found = {(event.sensor_id, microseconds(event)): event for event in events}
    return list(found.values())


def microseconds(event: SensorEvent) -> int:
    return event.event_time.seconds * 10**6 + event.event_time.nanos // 1000


def window_key(event: SensorEvent) -> str:
    """Returns the key of the event's aggregate row."""
    return f"agg#hourly#{event.sensor_id}#{hour(event)}"


def raw_key(event: SensorEvent) -> str:
    """Returns the key of the event's raw row."""
    return f"{event.sensor_id}#{_NEWEST - microseconds(event)}"


def hour(event: SensorEvent) -> str:
    return datetime.fromtimestamp(event.event_time.seconds, UTC).strftime("%Y-%m-%dT%H")


def counts(name: TableName) -> dict[str, int]:
    """Returns the ``reading_count`` of every aggregate row."""
    rows = _table(name).read_rows(start_key=b"agg#", end_key=b"agg$")
    return {row.row_key.decode(): int(row.cells["stats"][b"reading_count"][0].value) for row in rows}


def is_written(name: TableName, event: SensorEvent) -> bool:
    """Returns whether the event's raw row exists."""
    return _table(name).read_row(raw_key(event).encode()) is not None


def work_list(name: TableName) -> set[str]:
    """Returns the keys of the work list's rows."""
    return {row.row_key.decode() for row in _table(name).read_rows(start_key=b"repair#", end_key=b"repair$")}


def _table(name: TableName) -> google.cloud.bigtable.table.Table:
    return google.cloud.bigtable.Client(project=name.project).instance(name.instance).table(name.table)


def _read(name: TableName) -> Cells:
    return {
        key: {
            f"{family}:{qualifier.decode()}": [(cell.timestamp_micros, cell.value.decode()) for cell in versions]
            for family, columns in row.cells.items()
            for qualifier, versions in columns.items()
        }
        for row in _table(name).read_rows()
        if not (key := row.row_key.decode()).startswith(_OF_THE_TABLE)
    }


def _event(key: str, row: Mapping[str, str]) -> SensorEvent:
    """Returns the event that a raw row was written for."""
    sensor_id, _, reverse = key.rpartition("#")
    event = SensorEvent(sensor_id=sensor_id)
    event.event_time.FromMicroseconds(_NEWEST - int(reverse))
    for column, text in row.items():
        family, _, qualifier = column.partition(":")
        if family == "raw":
            event.readings[qualifier] = float(text)
        else:
            event.metadata[qualifier] = text
    return event


def _inexact(raw: Mapping[str, Mapping[str, str]], published: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yields values that are not the shortest text of their number."""
    for key in raw.keys() & published.keys():
        for column, text in raw[key].items():
            if column.startswith("raw:") and text != str(float(text)).removesuffix(".0"):
                yield f"{key} {column}: {text} is not the shortest text of the value"


def _wrong_versions(cells: Cells) -> Iterator[str]:
    """Yields columns of raw rows with several versions, and newest cells whose timestamp is not their row's."""
    for key, row in cells.items():
        start, _, last = key.rpartition("#")
        if start == "latest":
            continue  # older versions are collected later
        if start.startswith("agg#"):
            start_s = int(datetime.strptime(last, "%Y-%m-%dT%H").replace(tzinfo=UTC).timestamp())
            time_us = start_s * 10**6 + 1000 * sum(
                int(versions[0][1])
                for column, versions in row.items()
                if column.startswith(("stats:reading_count", "stats:count_"))
            )
            row = {column: versions[:1] for column, versions in row.items()}  # older ones are collected later
        else:
            time_us = (_NEWEST - int(last)) // 1000 * 1000
        for column, versions in row.items():
            times = [timestamp for timestamp, _ in versions]
            if times != [time_us]:
                yield f"{key} {column}: cells of the times {times}, expected one of {time_us}"
