"""Checks whether another program's rows of roll-ups fit a schema: their groups, tiers, shards and cells."""

from pipeline.core.rollups.sums import read_sums
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
from pipeline.core.rows.rows import Row
from pipeline.core.schema.rate import group_of
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.windows import Window
from pipeline.table.fitting import Mismatch

KINDS = {ROLLUP: "rows of roll-ups", PARTS: "rows of their parts", MEMBERS: "rows of their sensors"}
"""The kinds of rows of roll-ups, by the first segment of their keys."""


def check_rollup_row(schema: TableSchema, kind: str, row: Row) -> None:
    """Raises Mismatch for a row of roll-ups that no job with the schema would read as it is meant.

    Args:
        schema: the schema.
        kind: the first segment of the row's key.
        row: the row, with all of its cells.
    """
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
