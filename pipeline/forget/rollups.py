"""Removes what sensors contribute to roll-ups.

The rows of groups are merged again before the cells of sensors are deleted: whoever is interrupted finds them again.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from pipeline.core.queries.reads import ReadRows, RowSelection
from pipeline.core.rollups.group_rules import GroupRules
from pipeline.core.rollups.levels import GroupWindow, ShardWindow
from pipeline.core.rollups.settling import RollupSettling
from pipeline.core.rows.rollup_rows import FAMILY, MEMBERS, parse_members_key
from pipeline.core.rows.rows import prefix_range
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.rate import group_of
from pipeline.core.schema.table_schema import TableSchema

if TYPE_CHECKING:
    from pipeline.cloud.writing.rewriter import Rewriter

_KEYS = CellSelection((), keys_only=True)
_TOGETHER = 64  # windows of shards, whose rows are in memory together


def contribution_keys(schema: TableSchema, read: ReadRows, sensor_id: str) -> Iterator[bytes]:
    """Yields the key of each row that tells what a sensor contributes to roll-ups, also of former tiers.

    Without roll-ups in the schema, the number of shards is not known: the server searches them all.
    """
    shard = b"%d#" % group_of(sensor_id.encode(), schema.shards_of_rollups) if schema.rollups else b""
    cells = CellSelection((FAMILY,), qualifiers=(sensor_id.encode(),), versions=1)
    rest = prefix_range(f"{MEMBERS}#".encode())
    while row := next(read(RowSelection(rest, _KEYS, page_rows=1)), None):
        label = row.key.split(b"#")[1]
        of_label = b"%b#%b#" % (MEMBERS.encode(), label)
        rest = rest._replace(start=prefix_range(of_label).end)
        for found in read(RowSelection(prefix_range(of_label + shard), cells)):
            yield found.key


def remove_contributions(
    schema: TableSchema, read: ReadRows, writer: "Rewriter", sensors: Mapping[str, Collection[bytes]]
) -> Iterator[int]:
    """Removes the contributions of sensors that have no aggregate rows any more. Yields how many, in batches.

    Args:
        schema: the table's schema.
        read: reads rows.
        writer: writes rows.
        sensors: the keys of the rows that contain the contributions, by sensor.
    """
    settling = RollupSettling(GroupRules(schema), read, writer.write)
    by_key: dict[bytes, list[str]] = defaultdict(list)
    for sensor_id, keys in sensors.items():
        for key in keys:
            by_key[key].append(sensor_id)
    rest = iter(sorted(by_key))
    while some := list(islice(rest, _TOGETHER)):
        windows = {of: by_key[key] for key in some if (of := _window(schema, key)) is not None}
        groups = settling.members(windows, less=True)
        settling.parts(groups, resets=True)
        of_groups = {GroupWindow(*of[:2], group) for of, of_shard in groups.items() for group in of_shard}
        settling.groups(of_groups, resets=True)
        settling.forgotten(windows)
        for key in some:
            if _window(schema, key) is None:
                for sensor_id in by_key[key]:
                    writer.delete_column([key], FAMILY, sensor_id.encode())
        yield sum(len(by_key[key]) for key in some)


def _window(schema: TableSchema, key: bytes) -> ShardWindow | None:
    """Returns the window that a row of members is of; None for one of a tier that the schema no longer has."""
    for index, tier in enumerate(schema.tiers):
        try:
            shard, start_us = parse_members_key(tier.window, key)
        except ValueError:
            continue
        return ShardWindow(index, start_us, shard)
    return None
