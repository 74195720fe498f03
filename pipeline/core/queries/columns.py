"""Queries for one sensor's readings as columns of numbers, without an object for each event.

Blocks of rows become such columns at once if a row is an event, and its key ends with the event time in microseconds.
All other rows are read event by event.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from pipeline.core.events.event import name_of
from pipeline.core.queries.events import Query, events_of, selections_of
from pipeline.core.queries.seeks import ReadRows
from pipeline.core.rows.records import RawRecord
from pipeline.core.rows.rows import BlockOfRows, Row, in_parts
from pipeline.core.schema.key_tokens import ReverseToken
from pipeline.core.schema.layouts import Wide
from pipeline.core.schema.table_schema import TableSchema


class EventColumns(NamedTuple):
    """Events of a sensor with the same metrics.

    Attributes:
        metrics: the metrics, sorted by name.
        times_us: the event times, newest first.
        values: the readings event by event, in the order of the metrics.
        discriminator: the text that identifies these events besides their time; "" if the time alone does.
        metadata: the metadata of each of these events.
    """

    metrics: tuple[str, ...]
    times_us: list[int]
    values: list[float]
    discriminator: str
    metadata: Mapping[str, str]


def columns_of(schema: TableSchema, read: ReadRows, sensor_id: str, query: Query) -> Iterator[EventColumns]:
    """Yields one sensor's readings, newest first. Times are floored to the grain of the events' identity.

    Args:
        schema: the table's schema.
        read: reads rows, which cost least in blocks.
        sensor_id: the sensor.
        query: the events: of all metrics, without a limit.

    Raises:
        ValueError: row keys contain metadata that the query does not have.
        ForeignRow: the schema does not write a row.
    """
    selections = selections_of(schema, sensor_id, query) if _has_time_last(schema) else None
    if selections is None:
        yield from _by_event(schema, events_of(schema, read, sensor_id, query))
        return

    def by_event(rows: Iterable[Row]) -> Iterator[EventColumns]:
        return _by_event(schema, events_of(schema, lambda _: iter(rows), sensor_id, query))

    [selection] = selections
    rows: list[Row] = []  # consecutive ones that are in no block
    for part in in_parts(read(selection)):
        if not isinstance(part, BlockOfRows):
            rows.append(part)
            continue
        yield from by_event(rows)
        rows.clear()
        try:
            found = _columns_in(schema, part)
        except ValueError:  # a row may be foreign: the events tell which
            yield from by_event(part.rows())
        else:
            yield from found
    yield from by_event(rows)


def _has_time_last(schema: TableSchema) -> bool:
    """Whether a row is an event, and its key has the time once: at its end, in microseconds."""
    key = schema.key
    last = key.parts[-1]
    in_us = isinstance(last, ReverseToken) and last.grain_us == 1
    return schema.layout.name == Wide.name and in_us and len(key.times) == 1


def _by_event(schema: TableSchema, events: Iterable[RawRecord]) -> Iterator[EventColumns]:
    identity_of = schema.identity.of_record
    latest: EventColumns | None = None
    for event in events:
        readings, (time_us, discriminator) = event.readings, identity_of(event)
        if not readings:
            continue  # of metadata alone
        alike = (*readings,), discriminator, event.metadata
        if latest is None or alike != (latest.metrics, latest.discriminator, latest.metadata):
            if latest is not None:
                yield latest
            latest = EventColumns(alike[0], [], [], *alike[1:])
        latest.times_us.append(time_us)
        latest.values.extend(readings.values())
    if latest is not None:
        yield latest


def _columns_in(schema: TableSchema, block: BlockOfRows) -> list[EventColumns]:
    """Returns the events of a block. Raises ValueError if the schema may not write one of its rows."""
    if block.family not in schema.metrics.families:
        raise ValueError(f"{block.family} is no family of readings")
    times_us = _times_of(schema, block.keys)
    newest = schema.key.parse_key(block.keys[0])
    metadata = dict(newest.metadata)
    _, discriminator = schema.identity.of_record(RawRecord(newest.sensor_id, newest.time_us, {}, metadata))
    names = [name_of(qualifier) for qualifier in block.qualifiers]
    unpack_all = schema.values.unpack_all
    found = []
    for present, rows in _by_columns(block):
        of_rows = times_us if rows is None else [times_us[index] for index in rows]
        columns = [
            unpack_all(block.values[column] if rows is None else [block.values[column][index] for index in rows])
            for column in present
        ]
        values = list(chain.from_iterable(zip(*columns, strict=True)))
        found.append(EventColumns(tuple(names[each] for each in present), of_rows, values, discriminator, metadata))
    return found


def _by_columns(block: BlockOfRows) -> Iterator[tuple[Sequence[int], list[int] | None]]:
    """Yields indices of columns, and of the rows that have just these; None for all rows."""
    everything = range(len(block.values))
    if not any(b"" in column for column in block.values):
        yield everything, None
        return
    rows: dict[tuple[bool, ...], list[int]] = {}
    for index, has in enumerate(zip(*(map(bool, column) for column in block.values), strict=True)):
        rows.setdefault(has, []).append(index)
    for has, of_columns in rows.items():
        yield [column for column in everything if has[column]], of_columns


def _times_of(schema: TableSchema, keys: Sequence[bytes]) -> list[int]:
    """Returns the event times of ascending keys with the time at their end. Raises ValueError for any other key."""
    key, last = schema.key, keys[-1]
    end_us = key.parse_key(last).time_us
    digits = len(key.times[-1].render(end_us))
    texts = [key[-digits:] for key in keys]
    # Between two keys with the same start, all keys have that start.
    if set(map(len, keys)) != {len(last)} or keys[0][:-digits] != last[:-digits] or not b"".join(texts).isdigit():
        raise ValueError("not the keys of one sensor")
    greatest = int(texts[-1]) + end_us
    return [greatest - int(text) for text in texts]
