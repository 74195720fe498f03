"""Removes what sensors contribute to roll-ups.

The rows of groups are merged again before a contribution is deleted: whoever is interrupted finds it again. A job may
write them too, so they are settled :mod:`as often as it takes <pipeline.core.rollups.settling>`.
"""

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from pipeline.core.queries.seeks import ReadRows, RowSelection
from pipeline.core.rollups.bucket_parts import Part
from pipeline.core.rollups.group_rules import Group, GroupRules
from pipeline.core.rollups.group_settling import GroupSettling, GroupWindow
from pipeline.core.rollups.settling import MOST_TIMES, ShardSettling, ShardWindow, settled_parts, wait_for_jobs
from pipeline.core.rows.rollup_rows import FAMILY, MEMBERS, parse_members_key
from pipeline.core.rows.rows import EncodedRows, prefix_range
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.rate import group_of
from pipeline.core.schema.table_schema import TableSchema

if TYPE_CHECKING:
    from pipeline.cloud.writing.rewriter import Rewriter

_KEYS = CellSelection((), keys_only=True)
_TOGETHER = 64  # windows of a shard, whose rows are in memory together


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


class ContributionsOfSensors:
    """What sensors contribute to the roll-ups of a table.

    Args:
        schema: the table's schema.
        read: reads rows.
        writer: writes rows.

    Attributes:
        written: whether there was something to write the last time: a job keeps changing the roll-ups.
    """

    def __init__(self, schema: TableSchema, read: ReadRows, writer: "Rewriter") -> None:
        self._schema, self._writer = schema, writer
        self._rules = GroupRules(schema)
        self._groups_of: dict[ShardWindow, Collection[Group]] = {}
        self._same: dict[frozenset[Group], frozenset[Group]] = {}
        self.written = False
        self._shards = ShardSettling(schema, self._rules, read, self._write)
        self._groups = GroupSettling(self._rules, read, self._write)

    def remove(self, sensors: Mapping[str, Collection[bytes]]) -> Iterator[int]:
        """Removes the contributions of sensors that have no aggregate row of a window.

        Yields how many, in batches; and 0 before it waits for a job's rows.

        Args:
            sensors: the keys of the rows that contain them, by sensor.
        """
        by_key: dict[bytes, list[str]] = defaultdict(list)
        for sensor_id, keys in sensors.items():
            for key in keys:
                by_key[key].append(sensor_id)
        for number in range(MOST_TIMES):
            if number:
                yield 0
                wait_for_jobs(time.time())
            self.written = False
            rest = iter(sorted(by_key))
            while some := list(islice(rest, _TOGETHER)):
                self._settle({key: by_key[key] for key in some})
                if not number:
                    yield sum(len(by_key[key]) for key in some)
            if not self._groups_of or (number and not self.written):  # there is no window that a job may write
                return

    def _write(self, rows: EncodedRows) -> None:
        self._writer.write(rows)
        self.written = True

    def _settle(self, sensors: Mapping[bytes, Collection[str]]) -> None:
        """Settles windows without the sensors, and deletes their contributions."""
        groups: dict[GroupWindow, dict[int, Part]] = defaultdict(dict)
        windows = {key: self._window(key) for key in sensors}
        in_schema = {of: sensors[key] for key, of in windows.items() if of is not None}
        settled = self._shards.settle(in_schema, self._groups_of)
        for of_shard, each in settled.items():
            groups_of = frozenset(each.groups)
            self._groups_of[of_shard] = self._same.setdefault(groups_of, groups_of)
        for key, of in windows.items():
            if of is None:
                for sensor_id in sensors[key]:
                    self._writer.delete_column([key], FAMILY, sensor_id.encode())
                continue
            for part in settled_parts(self._rules, of, settled[of], settled[of].groups):
                groups[GroupWindow(of.tier, of.start_us, part.group)][of.shard] = part
        self._groups.settle(groups)
        if rows := self._shards.forgotten(settled):
            self._writer.write(rows)

    def _window(self, key: bytes) -> ShardWindow | None:
        """Returns the window that a row of members is of; None for one of a tier that the schema no longer has."""
        for index, tier in enumerate(self._schema.tiers):
            try:
                shard, start_us = parse_members_key(tier.window, key)
            except ValueError:
                continue
            return ShardWindow(index, start_us, shard)
        return None
