"""Whether rows that somebody else wrote are those of a schema: in keys, cells, timestamps and values.

A reader takes more than the schema writes, and a writer that comes later relies on all of it: a cell with a later
timestamp than ours, for one, would hide every result that replaces it. So a row fits when the schema itself would have
written its cells, but for how its numbers are spelled.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from pipeline.core.aggregates import (
    READING_COUNT,
    STATISTICS,
    AggregateKey,
    parse_aggregate_key,
    parse_statistic,
    split_qualifier,
)
from pipeline.core.events import LATEST_US, RESERVED_SENSOR_IDS, BadData, Event, sensor_event, shown, validate
from pipeline.core.records import RawRecord
from pipeline.core.rows import Cell, KeyRange, Row, after_prefix
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.schema.template import RawKey
from pipeline.core.times import format_time
from pipeline.core.work_list import parse_work_key, work_key

_T = TypeVar("_T")

_NO_READING = "x"  # stands for the readings of an event of which nothing but metadata is left

Column = tuple[str, bytes, int]
"""A cell's family, qualifier and timestamp."""


class Mismatch(Exception):
    """A row that the schema does not write. ``str()`` says how it is not, in a phrase."""


def raw_events(schema: TableSchema, row: Row) -> list[RawRecord]:
    """The events of a raw row, or their parts in it. Cells of families that the schema does not name are left out.

    Raises:
        Misfit: the schema would have written other cells, or another key, for these events, or they are not valid.
    """
    raw_key = _parsed(schema.key.parse_key, row.key)
    cells = [cell for cell in row.cells if cell.family in schema.families]
    try:
        records = schema.layout.records(
            schema.layout_context, raw_key, [cell for cell in cells if cell.family in schema.reading_families]
        )
    except ValueError as error:
        raise Mismatch(f"its cells are not read as {schema.layout.name}: {error}") from error
    written: set[Column] = set()
    for record in records:
        event = _event(record, raw_key)
        of_key = [each for each in schema.rows(event) if each.key == row.key]
        if not of_key:
            raise Mismatch(
                f"the event of {format_time(record.event_time_us)} in it has the key "
                f"{shown_key(schema.rows(event)[0].key)}"
            )
        written.update(map(_column, of_key[0].cells))
    _check_cells(cells, written)
    return records


def aggregate(tier: Tier, row: Row, families: Iterable[str]) -> AggregateKey:
    """Which sensor's window an aggregate row is of.

    Args:
        tier: which windows.
        row: with all of its cells.
        families: of the schema. Cells of others are left out.

    Raises:
        Misfit: the key is of no window, or the cells are not all of its statistics, at the window's start.
    """
    key = _parsed(lambda key: parse_aggregate_key(tier.window, key), row.key)
    _check_valid(RawRecord(key.sensor_id, key.start_us, {}))
    cells = [cell for cell in row.cells if cell.family in set(families)]
    names = {READING_COUNT}
    for cell in cells:
        try:
            parse_statistic(cell.qualifier, cell.value)
        except ValueError as error:
            raise Mismatch(f"cell {_shown_cell(cell)} is none of an aggregate: {error}") from error
        if cell.qualifier != READING_COUNT.encode():
            _, metric = split_qualifier(cell.qualifier.decode())
            names |= {f"{each}_{metric}" for each in STATISTICS}
    _check_cells(cells, {(tier.family, name.encode(), key.start_us) for name in names})
    if missing := sorted(names - {cell.qualifier.decode() for cell in cells}):
        raise Mismatch(f"it has no {', '.join(missing[:3])}{' …' if len(missing) > 3 else ''}")
    return key


def check_listed(tier: Tier, key: bytes) -> None:
    """Raises Misfit for a key under ``repair#`` that is none of a work list of the tier."""
    listed = _parsed(lambda key: parse_work_key(tier.window, key), key)
    if work_key(tier.window, *listed) != key:
        raise Mismatch(f"{shown_key(key)} is not the key of a work list's row")


def raw_key_ranges() -> list[KeyRange]:
    """Where raw rows may lie: everywhere but under the first segments that no sensor's id can be."""
    ranges, start = [], b""
    for reserved in sorted(RESERVED_SENSOR_IDS):
        prefix = f"{reserved}#".encode()
        ranges.append(KeyRange(start, prefix))
        start = after_prefix(prefix)
    return [*ranges, KeyRange(start, b"")]


def beginnings(first_key: Callable[[KeyRange], bytes | None], keys: KeyRange, within: int = 0) -> Iterator[KeyRange]:
    """Ranges of keys that begin alike, up to a ``#``: those of a sensor, say. One seek each.

    Args:
        first_key: the first key of a range that a row has; None where there is no row.
        keys: where.
        within: how many bytes all of these keys begin with, which are not looked at.
    """
    position, end = keys
    while (not end or position < end) and (key := first_key(KeyRange(position, end))) is not None:
        hash_at = key.find(b"#", within)
        position = after_prefix(key[: hash_at + 1]) if hash_at >= 0 else key + b"\x00"
        yield KeyRange(key, min(position, end) if end else position)


def shown_key(key: bytes) -> str:
    """A row's key for a line of ours."""
    return shown(key.decode(errors="backslashreplace"))


def _parsed(parse: Callable[[bytes], _T], key: bytes) -> _T:
    try:
        return parse(key)
    except ValueError as error:
        raise Mismatch(f"its key is not one: {error}") from error


def _event(record: RawRecord, raw_key: RawKey) -> Event:
    """What would be written for it; one of which nothing but metadata is left has some reading."""
    _check_valid(record)
    readings = record.readings or {raw_key.metric or _NO_READING: 0.0}
    return Event(record.sensor_id, record.event_time_us, readings, record.metadata, record.event_id)


def _check_valid(record: RawRecord) -> None:
    readings = record.readings or {_NO_READING: 0.0}
    try:
        validate(sensor_event(record.sensor_id, record.event_time_us, readings, record.metadata), LATEST_US)
    except BadData as problem:
        raise Mismatch(f"it is of no valid event: {problem.detail}") from problem
    except ValueError as error:
        raise Mismatch(f"it is of no valid event: {error}") from error


def _check_cells(cells: Iterable[Cell], written: set[Column]) -> None:
    times = {column[:2]: column[2] for column in written}
    for cell in cells:
        if _column(cell) in written:
            continue
        if (time_us := times.get((cell.family, cell.qualifier))) is None:
            raise Mismatch(f"cell {_shown_cell(cell)} is none that this schema writes there")
        raise Mismatch(
            f"cell {_shown_cell(cell)} has the timestamp {_shown_time(cell.timestamp_us)}, "
            f"and it has to be {_shown_time(time_us)}"
        )


def _column(cell: Cell) -> Column:
    return cell.family, cell.qualifier, cell.timestamp_us


def _shown_cell(cell: Cell) -> str:
    return f"{cell.family}:{cell.qualifier.decode(errors='backslashreplace')}"


def _shown_time(time_us: int) -> str:
    try:
        return format_time(time_us)
    except (ValueError, OverflowError):
        return f"{time_us} µs since the epoch"
