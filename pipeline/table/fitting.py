"""Checks whether another program's rows fit a schema: their keys, cells, timestamps and values.

A row fits if the schema would have written the same cells, apart from the spelling of numbers. Readers accept more, but
a cell with too late a timestamp, for example, would hide all later results of a job.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from pipeline.core.completion.work_list import parse_work_key, work_key
from pipeline.core.events.event import LATEST_US, Event, validate
from pipeline.core.events.message import sensor_event
from pipeline.core.events.reasons import BadData
from pipeline.core.notation.text import shown
from pipeline.core.notation.times import format_time, shown_time
from pipeline.core.rollups.sums import read_sums
from pipeline.core.rows.aggregate_rows import (
    OF_WRITERS,
    READING_COUNT,
    AggregateKey,
    parse_aggregate_key,
    parse_statistic,
    size_of,
    version_us,
)
from pipeline.core.rows.records import RawRecord
from pipeline.core.rows.rollup_rows import (
    MEMBERS,
    PARTS,
    ROLLUP,
    is_sensor,
    parse_members_key,
    parse_rollup_key,
    parse_rollup_row,
    versions_in,
)
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.key_template import RawKey
from pipeline.core.schema.rate import group_of
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.statistics.window_stats import qualifier_of, split_qualifier
from pipeline.core.windows import Window

_T = TypeVar("_T")

_NO_READING = "x"  # the metric of a placeholder reading in an event of which only metadata is left

Column = tuple[str, bytes, int]
"""A cell's family, qualifier and timestamp."""

KINDS = {ROLLUP: "rows of roll-ups", PARTS: "rows of their parts", MEMBERS: "rows of their sensors"}
"""The kinds of rows of roll-ups, by the first segment of their keys."""


class Mismatch(Exception):
    """A row that the schema would not write. ``str()`` is the reason."""


def raw_events(schema: TableSchema, row: Row) -> list[RawRecord]:
    """Returns the events in a raw row, or parts of events. Ignores cells in families outside the schema.

    Raises:
        Mismatch: the schema would write other cells or another key for these events, or they are not valid.
    """
    raw_key = _parsed(schema.key.parse_key, row.key)
    cells = [cell for cell in row.cells if cell.family in schema.families]
    try:
        records = schema.layout.records(
            schema.layout_context, raw_key, [cell for cell in cells if cell.family in schema.reading_families]
        )
    except ValueError as error:
        raise Mismatch(f"its cells can't be read as layout {schema.layout.name}: {error}") from error
    written: set[Column] = set()
    for record in records:
        event = _event(schema, record, raw_key)
        expected = [each for each in schema.rows(event) if each.key == row.key]
        if not expected:
            raise Mismatch(
                f"the key of its event of {format_time(record.event_time_us)} should be "
                f"{shown_key(schema.rows(event)[0].key)}"
            )
        written.update(map(_column, expected[0].cells))
    _check_cells(cells, written)
    return records


def aggregate_window(tier: Tier, row: Row, families: Iterable[str]) -> AggregateKey:
    """Returns the sensor and the window of an aggregate row. Ignores cells in families outside the schema.

    Raises:
        Mismatch: the key is not the key of a window, or the cells are not exactly its statistics, with timestamps from
            the window's start to the version of their counts.
    """
    key = _parsed(lambda key: parse_aggregate_key(tier.window, key), row.key)
    _check_valid(RawRecord(key.sensor_id, key.start_us, {}))
    cells = [cell for cell in row.cells if cell.family in set(families)]
    names = {READING_COUNT}
    for cell in cells:
        try:
            parse_statistic(cell.qualifier, cell.value)
        except ValueError as error:
            raise Mismatch(f"cell {_shown_cell(cell)} is not part of an aggregate: {error}") from error
        if (name := cell.qualifier.decode()) in OF_WRITERS:
            names.add(name)
        elif name != READING_COUNT:
            _, metric = split_qualifier(name)
            names |= {qualifier_of(each.name, metric) for each in tier.statistics.of(metric)}
    newest_us = version_us(key.start_us, size_of(row))
    cells = [
        cell._replace(timestamp_us=key.start_us) if key.start_us <= cell.timestamp_us <= newest_us else cell
        for cell in cells
    ]
    _check_cells(cells, {(tier.family, name.encode(), key.start_us) for name in names})
    if missing := sorted(names - {cell.qualifier.decode() for cell in cells}):
        raise Mismatch(f"it lacks {', '.join(missing[:3])}{' …' if len(missing) > 3 else ''}")
    return key


def check_listed(tier: Tier, key: bytes) -> None:
    """Raises Mismatch for a key under ``repair#`` that is not in the form of the tier's work list."""
    listed = _parsed(lambda key: parse_work_key(tier.window, key), key)
    if work_key(tier.window, *listed) != key:
        raise Mismatch(f"{shown_key(key)} is not a key of the work list")


def shown_key(key: bytes) -> str:
    """Returns a row key as text for a message."""
    return shown(key.decode(errors="backslashreplace"))


def _parsed(parse: Callable[[bytes], _T], key: bytes) -> _T:
    try:
        return parse(key)
    except ValueError as error:
        raise Mismatch(f"its key does not fit the schema: {error}") from error


def _event(schema: TableSchema, record: RawRecord, raw_key: RawKey) -> Event:
    """Returns the event that the schema would write. Adds a placeholder reading if only metadata is left."""
    _check_valid(record)
    readings = record.readings
    if not readings and not schema.layout.serializes:  # which stores metadata alone as it came
        readings = {raw_key.metric or _NO_READING: 0.0}
    return Event(record.sensor_id, record.event_time_us, readings, record.metadata, record.event_id)


def _check_valid(record: RawRecord) -> None:
    readings = record.readings or {_NO_READING: 0.0}
    try:
        validate(sensor_event(record.sensor_id, record.event_time_us, readings, record.metadata), LATEST_US)
    except BadData as problem:
        raise Mismatch(f"its event is not valid: {problem.detail}") from problem
    except ValueError as error:
        raise Mismatch(f"its event is not valid: {error}") from error


def _check_cells(cells: Iterable[Cell], written: set[Column]) -> None:
    times = {column[:2]: column[2] for column in written}
    for cell in cells:
        if _column(cell) in written:
            continue
        if (time_us := times.get((cell.family, cell.qualifier))) is None:
            raise Mismatch(f"the schema would not write cell {_shown_cell(cell)}")
        raise Mismatch(
            f"cell {_shown_cell(cell)} has the timestamp {shown_time(cell.timestamp_us)} "
            f"instead of {shown_time(time_us)}"
        )


def _column(cell: Cell) -> Column:
    return cell.family, cell.qualifier, cell.timestamp_us


def _shown_cell(cell: Cell) -> str:
    return f"{cell.family}:{cell.qualifier.decode(errors='backslashreplace')}"


def check_rollup_row(schema: TableSchema, kind: str, row: Row) -> None:
    """Raises Mismatch for a row of roll-ups, of a kind of :data:`KINDS`, that no job with the schema would write."""
    window = _window(schema, row.key)
    try:
        if kind == MEMBERS:
            _check_members(schema, window, row)
        else:
            _check_group(schema, window, kind, row)
    except ValueError as error:
        raise Mismatch(str(error)) from error


def _window(schema: TableSchema, key: bytes) -> Window:
    label = key.split(b"#")[1].decode(errors="backslashreplace")
    for tier in schema.tiers:
        if tier.window.label == label and schema.rollups_of(tier.window):
            return tier.window
    raise Mismatch("the schema has no roll-up of such windows")


def _check_group(schema: TableSchema, window: Window, kind: str, row: Row) -> None:
    name, _, start_us = parse_rollup_key(window, row.key, kind)
    if name not in [rollup.name for rollup in schema.rollups_of(window)]:
        raise Mismatch(f"the schema has no roll-up {name} of {window.text}")
    if kind == ROLLUP:
        parse_rollup_row(window, row)
        return
    for column in versions_in(row, start_us):
        if column.isdigit() and int(column) >= schema.shards_of_rollups:
            raise Mismatch(_other_shards(schema, f"it has a part of shard {int(column)}"))


def _check_members(schema: TableSchema, window: Window, row: Row) -> None:
    shard, start_us = parse_members_key(window, row.key)
    for sensor_id, (_, value) in versions_in(row, start_us).items():
        if not is_sensor(sensor_id):
            continue
        if group_of(sensor_id, schema.shards_of_rollups) != shard:
            raise Mismatch(_other_shards(schema, f"it has sensor {sensor_id.decode(errors='backslashreplace')}"))
        if value:
            read_sums(value)


def _other_shards(schema: TableSchema, found: str) -> str:
    return f"{found}, which is none of this row's with {schema.shards_of_rollups:,} shards; declare [rollups] shards"
