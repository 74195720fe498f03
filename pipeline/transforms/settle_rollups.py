"""Settles the roll-ups of windows whose aggregate rows were written, in jobs that end.

A streaming job may write the same windows: see :mod:`pipeline.core.rollups.settling`. So all are settled again, once
its rows have arrived, unless there was nothing to write the time before.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import AsSingleton, PCollection, TaggedOutput
from apache_beam.transforms.window import GlobalWindows
from apache_beam.typehints import KV

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.writing.rewriter import Rewriter
from pipeline.core.rollups.bucket_parts import Part
from pipeline.core.rollups.group_rules import Group, GroupRules
from pipeline.core.rollups.group_settling import GroupSettling, GroupWindow
from pipeline.core.rollups.settling import (
    MOST_TIMES,
    STILL_WRITTEN,
    ShardSettling,
    ShardWindow,
    settled_parts,
    wait_for_jobs,
)
from pipeline.core.rows.rows import EncodedRows
from pipeline.core.schema.rate import group_of
from pipeline.core.schema.table_schema import TableSchema
from pipeline.transforms import metrics
from pipeline.transforms.tables import RETRY_S, TableReadingFn

MOST_WINDOWS = 64
"""The most windows of shards, or of groups, whose rows are in memory together."""
MOST_SENSORS = 5000
"""The most sensors in windows of shards that are settled together, if there are several."""

_LOG = logging.getLogger(__name__)
_PARTS, _AGAIN = "parts", "again"  # output tags

ShardKey = tuple[int, int, int]
"""A :class:`ShardWindow` as a plain tuple, which Beam encodes the same everywhere."""

GroupKey = tuple[int, int, str, str]
"""The index of the tier, the start, the roll-up and the value of a group's window."""

GroupPart = tuple[int, int, bytes]
"""The shard, the version and the data of a part."""


class WrittenWindow(NamedTuple):
    """A sensor's window whose aggregate row was written or deleted."""

    tier: int  # its index
    start_us: int
    sensor_id: str


@dataclass(eq=False)
class SettleRollups(beam.PTransform):
    """Brings the roll-ups of :class:`WrittenWindow` elements in line with the aggregate rows.

    Its output is a single time in seconds since the epoch: when something was written the last time that windows were
    settled. It is 0 if nothing was, as it should be.

    Each shard's window is read and written together, and so is each group's. The aggregate rows are read again, since
    others may write them too: the last writer has seen what all have written.

    Args:
        name: the table's name.
        schema: the table's schema, with roll-ups.
    """

    name: TableName
    schema: TableSchema

    def expand(self, windows: PCollection) -> PCollection:
        unsettled = (
            windows
            | "ByShard" >> beam.Map(_by_shard, self.schema.shards_of_rollups).with_output_types(KV[ShardKey, str])
            | "GatherShards" >> beam.GroupByKey()
            | "New" >> beam.MapTuple(lambda key, sensors: _Unsettled(key, list(dict.fromkeys(sensors))))
        )
        again, written_s = self._once(unsettled, 1)
        for number in range(2, MOST_TIMES + 1):
            wait_fn = _WaitFn(always=number == 2)
            unsettled = again | f"Wait{number}" >> beam.ParDo(wait_fn, AsSingleton(written_s))
            again, written_s = self._once(unsettled, number)
        return written_s | "Warn" >> beam.Map(_warned)

    def _once(self, unsettled: PCollection, number: int) -> tuple[PCollection, PCollection]:
        """Settles windows. Returns what to settle the next time, and the last time at which something was written."""
        shard_fn, group_fn = _SettleShardFn(self.name, self.schema), _SettleGroupFn(self.name, self.schema)
        settled = unsettled | f"SettleShards{number}" >> beam.ParDo(shard_fn).with_outputs(_AGAIN, main=_PARTS)
        written_s = (
            settled[_PARTS]
            | f"GatherGroups{number}" >> beam.GroupByKey()
            | f"SettleGroups{number}" >> beam.ParDo(group_fn)
            | f"Written{number}" >> beam.CombineGlobally(_latest)
        )
        return settled[_AGAIN], written_s


class _Unsettled(NamedTuple):
    """A shard's window to settle.

    Attributes:
        key: the window.
        sensors: the sensors to settle.
        groups: the groups that they were in the last time.
        settled_s: the last time, in seconds since the epoch.
    """

    key: ShardKey
    sensors: list[str]
    groups: Sequence[Group] = ()
    settled_s: float = 0


class _WaitFn(beam.DoFn):
    """Passes on windows once a job's rows have arrived; none if there was nothing to write, unless always."""

    def __init__(self, *, always: bool) -> None:
        self._always = always

    def process(self, element: _Unsettled, written_s: float) -> Iterator[_Unsettled]:
        if self._always or written_s:
            wait_for_jobs(max(element.settled_s, written_s))
            yield element


def _latest(times_s: Iterable[float]) -> float:
    return max(times_s, default=0.0)


def _warned(written_s: float) -> float:
    if written_s:
        _LOG.warning(STILL_WRITTEN)
    return written_s


def _by_shard(window: WrittenWindow, shards: int) -> tuple[ShardKey, str]:
    tier, start_us, sensor_id = window
    return (tier, start_us, group_of(sensor_id.encode(), shards)), sensor_id


class SettlingFn(TableReadingFn):
    """Reads and writes the rows of roll-ups.

    Args:
        name: the table.
        schema: the table's schema.
    """

    def __init__(self, name: TableName, schema: TableSchema) -> None:
        super().__init__(name, RETRY_S)
        self._schema = schema

    def setup(self) -> None:
        super().setup()
        self._rules = GroupRules(self._schema)
        self._rewriter: Rewriter | None = None
        self._written_s = 0.0
        self._shards = ShardSettling(self._schema, self._rules, self._read, self._write)
        self._groups = GroupSettling(self._rules, self._read, self._write)

    def _write(self, rows: EncodedRows) -> None:
        if self._rewriter is None:
            self._rewriter = self._connections.enter_context(Rewriter.open(self._name))
        self._rewriter.write(rows)
        self._written_s = time.time()


@beam.typehints.with_output_types(tuple[GroupKey, GroupPart])
class _SettleShardFn(SettlingFn):
    def start_bundle(self) -> None:
        self._waiting: dict[ShardWindow, _Unsettled] = {}
        self._sensors = 0

    def process(self, element: _Unsettled) -> Iterator[Any]:
        self._waiting[ShardWindow(*element.key)] = element
        self._sensors += len(element.sensors)
        if self._sensors >= MOST_SENSORS or len(self._waiting) >= MOST_WINDOWS:
            yield from self._settle()

    def finish_bundle(self) -> Iterator[Any]:
        """Settles what is waiting. Beam asks for windowed values here."""
        for each in self._settle():
            if isinstance(each, TaggedOutput):
                yield TaggedOutput(each.tag, GlobalWindows.windowed_value(each.value))
            else:
                yield GlobalWindows.windowed_value(each)

    def _settle(self) -> Iterator[Any]:
        waiting, self._waiting, self._sensors = self._waiting, {}, 0
        sensors = {of: each.sensors for of, each in waiting.items()}
        groups = {of: each.groups for of, each in waiting.items()}
        for of, settled in self._shards.settle(sensors, groups).items():
            yield from keyed_parts(settled_parts(self._rules, of, settled, settled.groups))
            again = waiting[of]._replace(groups=[*settled.groups], settled_s=time.time())
            yield TaggedOutput(_AGAIN, again)


@beam.typehints.with_output_types(float)
class _SettleGroupFn(SettlingFn):
    def __init__(self, name: TableName, schema: TableSchema) -> None:
        super().__init__(name, schema)
        self._written = metrics.counter(metrics.ROLLUP_ROWS)

    def start_bundle(self) -> None:
        self._waiting: dict[GroupWindow, dict[int, Part]] = {}

    def process(self, element: tuple[GroupKey, Iterable[GroupPart]]) -> Iterator[float]:
        of = group_window(element[0])
        self._waiting[of] = parts_by_shard(of, element[1])
        if len(self._waiting) >= MOST_WINDOWS:
            yield from self._settle()

    def finish_bundle(self) -> Iterator[Any]:
        """Settles what is waiting. Beam asks for windowed values here."""
        return map(GlobalWindows.windowed_value, self._settle())

    def _settle(self) -> Iterator[float]:
        """Yields the time of the last write, if there was any."""
        waiting, self._waiting = self._waiting, {}
        self._written.inc(len(self._groups.settle(waiting)))
        if self._written_s:
            yield self._written_s


def keyed_parts(parts: Iterable[Part]) -> Iterator[tuple[GroupKey, GroupPart]]:
    """Yields parts by the windows of their groups."""
    for (name, value), tier, start_us, shard, version, data in parts:
        yield (tier, start_us, name, value), (shard, version, data)


def parts_by_shard(of: GroupWindow, parts: Iterable[GroupPart]) -> dict[int, Part]:
    """Returns the parts of a group's window, by shard."""
    return {part[0]: Part(of.group, of.tier, of.start_us, *part) for part in parts}


def group_window(key: GroupKey) -> GroupWindow:
    """Returns the window of a group that a key stands for."""
    tier, start_us, *group = key
    return GroupWindow(tier, start_us, Group(*group))
