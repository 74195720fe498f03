"""Queries for the newest readings of many sensors, in the order of their ids. Like other queries, pure functions."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from heapq import nsmallest
from itertools import islice
from operator import attrgetter
from typing import TypeVar

from pipeline.core.notation.durations import format_duration
from pipeline.core.queries.events import places
from pipeline.core.queries.reads import MOST_RANGES, ForeignRow, OnForeign, ReadRows, RowSelection
from pipeline.core.rows.newest_row import (
    LastHeard,
    LatestRecord,
    TextAt,
    latest_key,
    latest_range,
    parse_last_heard,
    parse_latest_key,
    parse_latest_row,
)
from pipeline.core.rows.records import RawRecord, newest_first
from pipeline.core.rows.rows import KeyRange
from pipeline.core.schema.key_template import KeyBindings
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.parts import At

_AT_A_TIME = 100  # sensors that are looked up in parallel
_PAGE_KEYS = 1000  # of a scan that may end at any key

_T = TypeVar("_T")
_Heard = TypeVar("_Heard", LastHeard, LatestRecord)

LatestEvents = Callable[[list[str], Mapping[str, str]], Iterable[RawRecord]]
"""Returns the newest event of each sensor, given the sensors and the metadata in their row keys."""


def newest_rows(
    family: str,
    read: ReadRows,
    keys: KeyRange | tuple[KeyRange, ...],
    metrics: tuple[str, ...] | None,
    page_rows: int | None,
    on_foreign: OnForeign,
    silent_since_us: int | None = None,
) -> Iterator[LatestRecord]:
    """Yields the newest readings of sensors from their rows of newest readings, by one scan.

    Args:
        family: the column family of the newest readings.
        read: reads rows.
        keys: the keys to scan; see :func:`~pipeline.core.rows.newest_row.latest_range`.
        metrics: the metrics to return, without sensors that have none of them; None for all.
        page_rows: the number of rows that the caller will probably take, if known.
        on_foreign: receives rows that the schema does not write.
        silent_since_us: the time from which the server may leave out sensors that have sent something; None to return
            all sensors.
    """
    cells = _cells(family, metrics, silent_since_us)
    for row in read(RowSelection(keys, cells, page_rows=page_rows)):
        try:
            record = parse_latest_row(row)
        except ValueError as error:
            on_foreign(ForeignRow(row, error))
            continue
        if metrics is not None:  # if the names are too long for a filter, the server sends all columns
            selected = {metric: at for metric, at in record.readings.items() if metric in metrics}
            record = LatestRecord(record.sensor_id, selected)
        if record.readings or record.metadata:
            yield record


def _cells(family: str, metrics: tuple[str, ...] | None, silent_since_us: int | None) -> CellSelection:
    columns = None if metrics is None else tuple(metric.encode() for metric in metrics)
    since_us = None if silent_since_us is None else silent_since_us + -silent_since_us % 1000
    return CellSelection((family,), columns, versions=1, none_since_us=since_us)


def newest_rows_of(
    family: str,
    read: ReadRows,
    sensors: Iterable[str],
    metrics: tuple[str, ...] | None,
    on_foreign: OnForeign,
) -> Iterator[LatestRecord]:
    """Yields what :func:`newest_rows` does, of these sensors in their order: a request for 200 of them."""
    listed = iter(sensors)
    while some := list(islice(listed, MOST_RANGES)):
        keys = tuple(KeyRange(key, key + b"\x00") for key in sorted(set(map(latest_key, some))))
        found = {each.sensor_id: each for each in newest_rows(family, read, keys, metrics, None, on_foreign)}
        yield from (found[sensor] for sensor in some if sensor in found)


def sensors_with_rows(family: str, read: ReadRows, keys: KeyRange, on_foreign: OnForeign) -> Iterator[str]:
    """Yields the sensors that have a row of newest readings, by a scan of keys; see :func:`newest_rows`."""
    for row in read(RowSelection(keys, CellSelection((family,), keys_only=True), page_rows=_PAGE_KEYS)):
        try:
            yield parse_latest_key(row.key)
        except ValueError as error:
            on_foreign(ForeignRow(row, error))


def silent_sensors(
    family: str,
    read: ReadRows,
    keys: KeyRange,
    metrics: tuple[str, ...] | None,
    silent_since_us: int,
    on_foreign: OnForeign,
) -> Iterator[LastHeard]:
    """Yields the sensors that have sent nothing since a time, by a scan of their rows of newest readings.

    The server sends only rows of silent sensors, and no values: rows with foreign values are among them.
    """
    cells = _cells(family, metrics, silent_since_us)._replace(times_only=True)
    for row in read(RowSelection(keys, cells)):
        if cells.qualifiers is not None:  # see newest_rows
            row = row._replace(cells=[cell for cell in row.cells if cell.qualifier in cells.qualifiers])
            if not row.cells:
                continue
        try:
            heard = parse_last_heard(row)
        except ValueError as error:
            on_foreign(ForeignRow(row, error))
            continue
        if heard.event_time_us < silent_since_us:  # or else it sent something while the server looked
            yield heard


def or_events(
    schema: TableSchema, read: ReadRows, after: str, found: Callable[[str], Iterator[_T]], events: Iterator[_T]
) -> Iterator[_T]:
    """Yields what rows of newest readings say of sensors, or what their events do in a table without any such row.

    Args:
        schema: the table's schema.
        read: reads rows.
        after: the id of the sensor before the first one; empty for the first of all.
        found: a function of the family of such rows that returns the records of the rows.
        events: the records of events, for a table without such rows.
    """
    if schema.latest is None:
        yield from events
        return
    records = found(schema.latest)
    first = next(records, None)
    if first is not None:
        yield first
        yield from records
    elif not after:
        cells = CellSelection((schema.latest,), keys_only=True)
        if not any(read(RowSelection(latest_range(), cells, page_rows=1))):
            yield from events


def check_silence(silent_for: timedelta, behind: timedelta) -> None:
    """Raises ValueError if rows of newest readings may be behind by more than the time of silence."""
    if silent_for < behind:
        raise ValueError(
            f"newest readings may be {format_duration(behind)} behind, by the --newest-every of the table's job: ask "
            f"for sensors that are silent for {format_duration(behind)} or longer"
        )


def silent_since(silent_for: timedelta) -> int:
    """Returns the time in µs since which a sensor that is silent for so long has sent nothing."""
    return time.time_ns() // 1000 - silent_for // timedelta(microseconds=1) + 1


def longest_silent(found: Iterable[_Heard], since_us: int, limit: int | None = None) -> Iterator[_Heard]:
    """Yields the sensors that have sent nothing since then, the longest silent first: all, or as many as the limit."""
    silent = (each for each in found if each.event_time_us < since_us)
    by_time = attrgetter("event_time_us")
    yield from sorted(silent, key=by_time) if limit is None else nsmallest(limit, silent, key=by_time)


def newest_events(
    schema: TableSchema,
    read: ReadRows,
    sensors: Iterator[str],
    latest: LatestEvents,
    limit: int | None,
    on_foreign: OnForeign,
) -> Iterator[LatestRecord]:
    """Yields the readings of each sensor's newest event: for tables without rows of newest readings.

    Costs a read for each sensor; in a table whose keys have metadata that locates sensors, a seek as well for each
    sensor and place: a sensor may have moved.
    """
    located: dict[tuple[tuple[str, str], ...], set[str]] = {}
    if schema.key.missing_metadata(KeyBindings()):
        for place in places(schema, read, on_foreign):
            located.setdefault(tuple(place.metadata.items()), set()).add(str(place.sensor_id))
    while some := list(islice(sensors, min(limit or _AT_A_TIME, _AT_A_TIME))):
        found: list[RawRecord] = []
        for metadata, there in located.items() or [((), set(some))]:
            # If the time comes before the sensor, a place is known by one of its sensors only.
            wanted = some if schema.key.time_first else [sensor for sensor in some if sensor in there]
            found += latest(wanted, dict(metadata))
        newest: dict[str, RawRecord] = {}
        for event in sorted(found, key=newest_first):
            newest.setdefault(event.sensor_id, event)
        for event in (newest[sensor] for sensor in some if sensor in newest):
            readings = {metric: At(event.event_time_us, value) for metric, value in event.readings.items()}
            alone = event.metadata if schema.metadata_alone else {}
            texts = {name: TextAt(event.event_time_us, text) for name, text in alone.items()}
            yield LatestRecord(event.sensor_id, readings, texts)
