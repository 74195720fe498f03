"""Settles the roll-ups of windows whose aggregate rows were written, in jobs that end."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows
from apache_beam.typehints import KV

from pipeline.cloud.connection.names import TableName
from pipeline.core.rollups.group_rules import Group, GroupRules
from pipeline.core.rollups.levels import GroupWindow, ShardWindow
from pipeline.core.rollups.settling import RollupSettling
from pipeline.core.schema.rate import group_of
from pipeline.core.schema.table_schema import TableSchema
from pipeline.transforms import metrics
from pipeline.transforms.tables import RETRY_S, TableReadingFn

MOST_WINDOWS = 64
"""The most windows of shards, or of groups, whose rows are in memory together."""
MOST_SENSORS = 5000
"""The most sensors in windows of shards that are settled together, if there are several."""

ShardKey = tuple[int, int, int]
"""A :class:`ShardWindow` as a plain tuple, which Beam encodes the same everywhere."""

GroupKey = tuple[int, int, str, str]
"""The index of the tier, the start, the roll-up and the value of a group's window."""


class WrittenWindow(NamedTuple):
    """A sensor's window whose aggregate row was written or deleted."""

    tier: int  # its index
    start_us: int
    sensor_id: str


@dataclass(eq=False)
class SettleRollups(beam.PTransform):
    """Brings the roll-ups of :class:`WrittenWindow` elements in line with the aggregate rows.

    Has no output, which is ready when the rows of groups are written.

    Args:
        name: the table's name.
        schema: the table's schema, with roll-ups.
        less: whether the windows may count less than before; see :class:`RollupSettling`.
    """

    name: TableName
    schema: TableSchema
    less: bool = False

    def expand(self, windows: PCollection) -> PCollection:
        return (
            windows
            | "ByShard" >> beam.Map(by_shard, self.schema.shards_of_rollups).with_output_types(KV[ShardKey, str])
            | "GatherShards" >> beam.GroupByKey()
            | "SettleShards" >> beam.ParDo(self.shards())
            | "EachOnce" >> beam.Distinct()  # when all shards are settled
            | "SettleGroups" >> beam.ParDo(self.groups())
        )

    def shards(self) -> beam.DoFn:
        """Returns the step that settles shards, given the sensors of each, and yields the groups that are due."""
        return _SettleShardFn(self.name, self.schema, less=self.less)

    def groups(self) -> beam.DoFn:
        """Returns the step that settles groups."""
        return _SettleGroupFn(self.name, self.schema, less=self.less)


def by_shard(window: WrittenWindow, shards: int) -> tuple[ShardKey, str]:
    """Returns the shard's window that a sensor's window belongs to, and the sensor."""
    tier, start_us, sensor_id = window
    return (tier, start_us, group_of(sensor_id.encode(), shards)), sensor_id


class SettlingFn(TableReadingFn):
    """Reads and writes the rows of roll-ups.

    Args:
        less: whether rows may count less than before.
    """

    def __init__(self, name: TableName, schema: TableSchema, *, less: bool) -> None:
        super().__init__(name, RETRY_S)
        self._schema, self._less = schema, less

    def setup(self) -> None:
        super().setup()
        self._rules = GroupRules(self._schema)
        self._settling = RollupSettling(self._rules, self._read, lambda rows: self._writer.write(rows), less=self._less)


@beam.typehints.with_output_types(GroupKey)
class _SettleShardFn(SettlingFn):
    """Settles shards, and yields the groups that are due."""

    def start_bundle(self) -> None:
        self._waiting: dict[ShardWindow, list[str]] = {}
        self._sensors = 0

    def process(self, element: tuple[ShardKey, Iterable[str]]) -> Iterator[GroupKey]:
        key, sensors = element
        self._waiting[ShardWindow(*key)] = found = list(dict.fromkeys(sensors))
        self._sensors += len(found)
        if self._sensors >= MOST_SENSORS or len(self._waiting) >= MOST_WINDOWS:
            yield from self._settle()

    def finish_bundle(self) -> Iterator[Any]:
        """Settles what is waiting. Beam asks for windowed values here."""
        return map(GlobalWindows.windowed_value, self._settle())

    def _settle(self) -> Iterator[GroupKey]:
        waiting, self._waiting, self._sensors = self._waiting, {}, 0
        groups = self._settling.members(waiting)
        self._settling.parts(groups)
        for (tier, start_us, _), of_shard in groups.items():
            yield from ((tier, start_us, *group) for group in of_shard)


class _SettleGroupFn(SettlingFn):
    def __init__(self, name: TableName, schema: TableSchema, *, less: bool) -> None:
        super().__init__(name, schema, less=less)
        self._written = metrics.counter(metrics.ROLLUP_ROWS)

    def start_bundle(self) -> None:
        self._waiting: list[GroupWindow] = []

    def process(self, element: GroupKey) -> None:
        self._waiting.append(group_window(element))
        if len(self._waiting) >= MOST_WINDOWS:
            self.finish_bundle()

    def finish_bundle(self) -> None:
        """Settles what is waiting."""
        waiting, self._waiting = self._waiting, []
        self._settling.groups(waiting)
        self._written.inc(len(waiting))


def group_window(key: GroupKey) -> GroupWindow:
    """Returns the window of a group that a key stands for."""
    tier, start_us, *group = key
    return GroupWindow(tier, start_us, Group(*group))
