"""Answers which sensors belong to a group in a window, and to which groups a sensor belongs."""

from collections.abc import Iterator

from pipeline.core.events.event import LATEST_US
from pipeline.core.queries.reads import ForeignRow, OnForeign, ReadRows, RowSelection, in_batches
from pipeline.core.rollups.contributions import is_contribution, texts_in
from pipeline.core.rows.aggregate_rows import MEMBER, READING_COUNT, aggregate_range
from pipeline.core.rows.records import SensorGroup
from pipeline.core.rows.rollup_rows import FAMILY, PARTS, is_sensor, members_key, rollup_key
from pipeline.core.rows.rows import KeyRange, Row
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.rollup import Rollup
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.member import member_fields, parse_member
from pipeline.core.windows import Window

_CELLS = CellSelection((FAMILY,), versions=1)


def sensors_of_group(
    rollup: Rollup, window: Window, read: ReadRows, group: SensorGroup, start_us: int, on_foreign: OnForeign
) -> Iterator[str]:
    """Yields the sensors that belong to a group in the window that starts then, in the order of shards.

    Reads the row of the group's parts, which tells the shards, and what all sensors of these contribute, a few shards
    at first.
    """
    shards = sorted(
        int(cell.qualifier)
        for row in read(RowSelection(_one(rollup_key(window, rollup.name, group.text, start_us, PARTS)), _CELLS))
        for cell in row.cells
        if cell.qualifier.isdigit()
    )
    for ranges in in_batches(_one(members_key(window, shard, start_us)) for shard in shards):
        for row in read(RowSelection(ranges, _CELLS)):
            try:
                yield from _members(rollup, row, group)
            except (ValueError, IndexError) as error:
                on_foreign(ForeignRow(row, ValueError(str(error))))


def groups_of_sensor(schema: TableSchema, read: ReadRows, sensor_id: str, on_foreign: OnForeign) -> list[SensorGroup]:
    """Returns the groups that a sensor belongs to in its newest window, by the order of the schema's roll-ups.

    Reads that window's aggregate row, of the shortest tier that has one.
    """
    columns = READING_COUNT.encode(), MEMBER.encode()
    for tier in schema.tiers if schema.rollups else ():
        keys = aggregate_range(tier.window, sensor_id, 0, LATEST_US + 1)
        selection = RowSelection(keys, CellSelection((tier.family,), columns, versions=1), page_rows=1, reverse=True)
        row = next(read(selection), None)
        if row is None:
            continue
        try:
            texts = [parse_member(cell.value).text for cell in row.cells if cell.qualifier == MEMBER.encode()]
        except ValueError as error:
            on_foreign(ForeignRow(row, error))
            continue
        member = member_fields(texts[0]) if texts else {}
        return [
            SensorGroup(rollup.name, text, {field: member[field] or "" for field in rollup.by})
            for rollup in schema.rollups
            if (text := rollup.value_of(member)) is not None
        ]
    return []


def _members(rollup: Rollup, row: Row, group: SensorGroup) -> list[str]:
    """Returns the sensors of the group among those of a shard."""
    found = [
        (cell.qualifier, texts_in(cell.value)[0].decode())
        for cell in row.cells
        if cell.value and is_sensor(cell.qualifier) and is_contribution(cell.value)
    ]
    return [sensor.decode() for sensor, text in found if rollup.value_of(member_fields(text)) == group.text]


def _one(key: bytes) -> KeyRange:
    return KeyRange(key, key + b"\x00")
