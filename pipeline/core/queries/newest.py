"""Queries for the newest readings of many sensors, in the order of their ids. Like other queries, pure functions."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from heapq import nsmallest
from itertools import islice
from operator import attrgetter

from pipeline.core.notation.durations import format_duration
from pipeline.core.queries.events import places
from pipeline.core.queries.reads import ForeignRow, OnForeign, ReadRows, RowSelection
from pipeline.core.rows.newest_row import LatestRecord, TextAt, latest_range, parse_latest_row
from pipeline.core.rows.records import RawRecord, newest_first
from pipeline.core.rows.rows import KeyRange
from pipeline.core.schema.key_space import KeyBindings
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.parts import At

_AT_A_TIME = 100  # sensors that are looked up in parallel

LatestEvents = Callable[[list[str], Mapping[str, str]], Iterable[RawRecord]]
"""Returns the newest event of each sensor, given the sensors and the metadata in their row keys."""


def newest_rows(
    family: str,
    read: ReadRows,
    keys: KeyRange,
    metrics: tuple[str, ...] | None,
    page_rows: int | None,
    on_foreign: OnForeign,
) -> Iterator[LatestRecord]:
    """Yields the newest readings of sensors from their rows of newest readings, by one scan.

    Args:
        family: the column family of the newest readings.
        read: reads rows.
        keys: the keys to scan; see :func:`~pipeline.core.rows.newest_row.latest_range`.
        metrics: the metrics to return, without sensors that have none of them; None for all.
        page_rows: the number of rows that the caller will probably take, if known.
        on_foreign: receives rows that the schema does not write.
    """
    columns = None if metrics is None else tuple(metric.encode() for metric in metrics)
    for row in read(RowSelection(keys, CellSelection((family,), columns, versions=1), page_rows=page_rows)):
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


def newest_of_all(
    schema: TableSchema,
    read: ReadRows,
    prefix: str,
    after: str,
    metrics: tuple[str, ...] | None,
    page_rows: int | None,
    on_foreign: OnForeign,
    events: Iterator[LatestRecord],
) -> Iterator[LatestRecord]:
    """Returns the newest readings of sensors: of their rows, or of their newest events without any such row.

    Args:
        schema: the table's schema.
        read: reads rows.
        prefix: the start of the sensors' ids.
        after: the id of the sensor before the first one; empty for the first of all.
        metrics: see :func:`newest_rows`, like the two below.
        page_rows: see above.
        on_foreign: see above.
        events: the answer of :func:`newest_events`.
    """
    if schema.latest is None:
        return events
    found = newest_rows(schema.latest, read, latest_range(prefix, after), metrics, page_rows, on_foreign)
    return found if after else _or_events(found, events, schema.latest, read)


def _or_events(
    found: Iterator[LatestRecord], events: Iterator[LatestRecord], family: str, read: ReadRows
) -> Iterator[LatestRecord]:
    first = next(found, None)
    if first is not None:
        yield first
        yield from found
    elif not any(read(RowSelection(latest_range(), CellSelection((family,), keys_only=True), page_rows=1))):
        yield from events


def check_silence(silent_for: timedelta, behind: timedelta) -> None:
    """Raises ValueError if rows of newest readings may be behind by more than the time of silence."""
    if silent_for < behind:
        raise ValueError(
            f"newest readings may be {format_duration(behind)} behind, by the --newest_every of the table's job: ask "
            f"for sensors that are silent for {format_duration(behind)} or longer"
        )


def longest_silent(found: Iterable[LatestRecord], silent_for: timedelta, limit: int | None) -> Iterator[LatestRecord]:
    """Returns the sensors that are silent for so long, the longest silent first: all, or as many as the limit."""
    until_us = time.time_ns() // 1000 - silent_for // timedelta(microseconds=1)
    silent = (each for each in found if each.event_time_us <= until_us)
    by_time = attrgetter("event_time_us")
    return iter(sorted(silent, key=by_time) if limit is None else nsmallest(limit, silent, key=by_time))


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

    Args:
        schema: the table's schema.
        read: reads rows.
        sensors: the sensors, in the order of the answer.
        latest: looks up newest events.
        limit: the number of sensors that the caller will take, if known.
        on_foreign: receives rows that the schema does not write.
    """
    located: dict[tuple[tuple[str, str], ...], set[str]] = {}
    if schema.keys.missing_metadata(KeyBindings()):
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
