"""Rolls up what panes contribute: a step with state for each shard of sensors, and one for the groups of roll-ups.

    contributions ─ MergeShards ─┬─ rows of members ────────────────────────────── Collect ─ rows
                                 └─ parts of groups ─ MergeGroups ─ their rows ──┘

State and timers cost the same for one group as for many. So groups of roll-ups share them in buckets. The groups of
sensors of a shard fire together, and the shard waits for all of them. Groups of roll-ups wait for the parts of other
shards, because each of them changes the same rows. All wait for the same time, and then all rows for each other: a
request costs more than a row.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder, VarIntCoder
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import (
    BagRuntimeState,
    BagStateSpec,
    ReadModifyWriteRuntimeState,
    ReadModifyWriteStateSpec,
    RuntimeTimer,
    TimerSpec,
    on_timer,
)
from apache_beam.typehints import KV
from apache_beam.utils.timestamp import Timestamp

from pipeline.cloud.connection.names import TableName
from pipeline.core.panes.firing import END_US, KEPT_US
from pipeline.core.panes.row_batches import parts_of
from pipeline.core.queries.seeks import RowSelection
from pipeline.core.rollups.bucket_parts import buckets_for, parts_of_buckets, read_parts
from pipeline.core.rollups.contributions import read_batch
from pipeline.core.rollups.group_rules import GroupRules
from pipeline.core.rollups.group_windows import RollupWindows
from pipeline.core.rollups.shard_windows import ShardWindows
from pipeline.core.rows.rollup_rows import FAMILY
from pipeline.core.rows.row_bytes import read_rows, rows_bytes
from pipeline.core.rows.rows import EncodedRows, KeyRange, Row
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.table_schema import TableSchema
from pipeline.private_apis.timer_holds import set_clock_timer
from pipeline.transforms.aggregate import Clock
from pipeline.transforms.stateful import StatefulFn
from pipeline.transforms.tables import RETRY_S, TableReadingFn

_ROWS, _PARTS = "rows", "parts"  # output tags, which an update of a job compares
_TOGETHER_S = 0.5  # the time for which what the sensors of a shard contribute waits for each other
_EVERY_S = 8.0  # the time between two merges of groups, of all groups together
_MERGED_S = 1.0  # the time for which the rows of a merge wait for each other
_OF_MEMBERS, _OF_GROUPS = b"\x00", b"\x01"  # what encoded rows begin with: those of members wait for those of groups
_SHARDS_OF_COLLECTOR = 256
_MOST_ROWS = 500  # in an output element
_MEMBERS_WAIT, _GROUPS_WAIT = 1, 2  # what a collector knows of its rows

# Names of timers differ from those of other steps: Beam's FnApiRunner confuses them within a stage.
_CHANGES_SPEC = BagStateSpec("changes", BytesCoder())
_ANY_CHANGE_SPEC = ReadModifyWriteStateSpec("any_change", VarIntCoder())
_CHANGES, _ANY_CHANGE = map(beam.DoFn.StateParam, (_CHANGES_SPEC, _ANY_CHANGE_SPEC))

_SHARD_SPEC = BagStateSpec("shard", BytesCoder())
_SHARD_DUE_SPEC = TimerSpec("shard_due", TimeDomain.REAL_TIME)
_SHARD_END_SPEC = TimerSpec("shard_end", TimeDomain.WATERMARK)
_SHARD = beam.DoFn.StateParam(_SHARD_SPEC)
_SHARD_DUE, _SHARD_END = map(beam.DoFn.TimerParam, (_SHARD_DUE_SPEC, _SHARD_END_SPEC))

_GROUPS_SPEC = BagStateSpec("groups", BytesCoder())
_DUE_SPEC = TimerSpec("rollups_due", TimeDomain.REAL_TIME)
_END_SPEC = TimerSpec("rollups_end", TimeDomain.WATERMARK)
_GROUPS = beam.DoFn.StateParam(_GROUPS_SPEC)
_DUE, _END = map(beam.DoFn.TimerParam, (_DUE_SPEC, _END_SPEC))

_ROWS_SPEC = BagStateSpec("rollup_rows", BytesCoder())
_ANY_ROW_SPEC = ReadModifyWriteStateSpec("any_row", VarIntCoder())
_ROWS_DUE_SPEC = TimerSpec("rollup_rows_due", TimeDomain.REAL_TIME)
_ROWS_END_SPEC = TimerSpec("rollup_rows_end", TimeDomain.WATERMARK)
_WAITING, _ANY_ROW = map(beam.DoFn.StateParam, (_ROWS_SPEC, _ANY_ROW_SPEC))
_ROWS_DUE, _ROWS_END = map(beam.DoFn.TimerParam, (_ROWS_DUE_SPEC, _ROWS_END_SPEC))


class RollUp(beam.PTransform):
    """Rolls up ``(shard, contributions)`` to ``EncodedRows``.

    The rows are shuffled before they are written. So only those of committed bundles are: if a bundle is repeated, a
    version of a cell may have another content.

    Args:
        name: the table.
        schema: the table's schema, which has roll-ups.
        before_us: the time before which windows start that the table may store already; None if it stores none.
        clock: a function that returns the current time.
    """

    def __init__(
        self, name: TableName, schema: TableSchema, before_us: int | None = None, clock: Clock = time.time
    ) -> None:
        super().__init__()
        self._arguments = name, schema, before_us, clock
        self._clock = clock

    def expand(self, contributions: PCollection) -> PCollection:
        shards_fn = _ShardsFn(*self._arguments)
        outputs = contributions | "MergeShards" >> beam.ParDo(shards_fn).with_outputs(_PARTS, main=_ROWS)
        outputs[_ROWS].element_type = outputs[_PARTS].element_type = KV[int, bytes]
        groups_fn = _GroupsFn(*self._arguments)
        groups = outputs[_PARTS] | "MergeGroups" >> beam.ParDo(groups_fn).with_output_types(KV[int, bytes])
        return (
            (outputs[_ROWS], groups)
            | "WithGroups" >> beam.Flatten()
            | "Collect" >> beam.ParDo(_CollectRollupsFn(self._clock)).with_output_types(EncodedRows)
        )


class _RollupFn(StatefulFn, TableReadingFn):
    """Keeps state of roll-ups, and reads their rows.

    Args:
        name: the table.
        schema: the table's schema.
        before_us: the time before which windows start that the table may store already; None if it stores none.
        clock: a function that returns the current time.
    """

    def __init__(self, name: TableName, schema: TableSchema, before_us: int | None, clock: Clock) -> None:
        super().__init__(name, RETRY_S)
        self._schema, self._clock = schema, clock
        self._rules = GroupRules(schema, 0 if before_us is None else before_us)
        self._collectors = max(1, schema.shards_of_rollups // _SHARDS_OF_COLLECTOR)

    def _rows(self, keys: Sequence[bytes]) -> dict[bytes, Row]:
        """Returns the rows of these keys, with the newest version of each cell."""
        ranges = tuple(KeyRange(key, key + b"\x00") for key in sorted(keys))
        return {row.key: row for row in self._read(RowSelection(ranges, CellSelection((FAMILY,), versions=1)))}

    def _collected(self, number: int, kind: bytes, rows: EncodedRows) -> Iterator[tuple[int, bytes]]:
        for part in parts_of(rows):
            yield number % self._collectors, kind + rows_bytes(part)

    def _now_us(self) -> int:
        return int(self._clock() * 1_000_000)


class _ShardsFn(_RollupFn):
    """Merges the contributions of a shard's sensors to parts of groups."""

    def process(
        self,
        element: tuple[int, bytes],
        changes: BagRuntimeState = _CHANGES,
        any_change: ReadModifyWriteRuntimeState = _ANY_CHANGE,
        due: RuntimeTimer = _SHARD_DUE,
        end: RuntimeTimer = _SHARD_END,
    ) -> None:
        _wait(element[1], changes, any_change, due, end, self._clock() + _TOGETHER_S)

    @on_timer(_SHARD_DUE_SPEC)
    def waited(
        self,
        shard: Any = beam.DoFn.KeyParam,
        kept: BagRuntimeState = _SHARD,
        changes: BagRuntimeState = _CHANGES,
        any_change: ReadModifyWriteRuntimeState = _ANY_CHANGE,
    ) -> Iterator[Any]:
        """Merges what waits."""
        return self._merge(shard, kept, changes, any_change)

    @on_timer(_SHARD_END_SPEC)
    def drained(
        self,
        shard: Any = beam.DoFn.KeyParam,
        kept: BagRuntimeState = _SHARD,
        changes: BagRuntimeState = _CHANGES,
        any_change: ReadModifyWriteRuntimeState = _ANY_CHANGE,
        due: RuntimeTimer = _SHARD_DUE,
    ) -> Iterator[Any]:
        """Merges what waits."""
        due.clear()  # a drain would wait for it
        return self._merge(shard, kept, changes, any_change)

    def _merge(
        self, shard: int, kept: BagRuntimeState, changes: BagRuntimeState, any_change: ReadModifyWriteRuntimeState
    ) -> Iterator[Any]:
        if not any_change.read():
            return
        windows = ShardWindows(self._rules, shard, self._rows, kept.read())
        now_us = self._now_us()
        windows.update([each for batch in changes.read() for each in read_batch(batch)], now_us)
        _settle(changes, any_change, kept, windows.chunks(now_us, KEPT_US))
        yield from self._collected(shard, _OF_MEMBERS, windows.rows)
        for of_bucket in parts_of_buckets(windows.parts, buckets_for(self._schema.shards_of_rollups)):
            yield TaggedOutput(_PARTS, of_bucket)


class _GroupsFn(_RollupFn):
    """Merges parts of groups to their rows."""

    def process(
        self,
        element: tuple[int, bytes],
        changes: BagRuntimeState = _CHANGES,
        any_change: ReadModifyWriteRuntimeState = _ANY_CHANGE,
        due: RuntimeTimer = _DUE,
        end: RuntimeTimer = _END,
    ) -> None:
        _wait(element[1], changes, any_change, due, end, _next_s(self._clock()))

    @on_timer(_DUE_SPEC)
    def waited(
        self,
        bucket: Any = beam.DoFn.KeyParam,
        kept: BagRuntimeState = _GROUPS,
        changes: BagRuntimeState = _CHANGES,
        any_change: ReadModifyWriteRuntimeState = _ANY_CHANGE,
    ) -> Iterator[tuple[int, bytes]]:
        """Writes the rows of groups that changed."""
        return self._merge(bucket, kept, changes, any_change)

    @on_timer(_END_SPEC)
    def drained(
        self,
        bucket: Any = beam.DoFn.KeyParam,
        kept: BagRuntimeState = _GROUPS,
        changes: BagRuntimeState = _CHANGES,
        any_change: ReadModifyWriteRuntimeState = _ANY_CHANGE,
        due: RuntimeTimer = _DUE,
    ) -> Iterator[tuple[int, bytes]]:
        """Writes the rows of groups that changed."""
        due.clear()  # a drain would wait for it
        return self._merge(bucket, kept, changes, any_change)

    def _merge(
        self, bucket: int, kept: BagRuntimeState, changes: BagRuntimeState, any_change: ReadModifyWriteRuntimeState
    ) -> Iterator[tuple[int, bytes]]:
        if not any_change.read():
            return
        windows = RollupWindows(self._rules, self._rows, kept.read())
        now_us = self._now_us()
        windows.update((part for some in changes.read() for part in read_parts(some)), now_us)
        _settle(changes, any_change, kept, windows.chunks(now_us, KEPT_US))
        yield from self._collected(bucket, _OF_GROUPS, windows.rows)


class _CollectRollupsFn(StatefulFn):
    """Passes on rows, those of many shards and groups at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def process(
        self,
        element: tuple[int, bytes],
        waiting: BagRuntimeState = _WAITING,
        any_row: ReadModifyWriteRuntimeState = _ANY_ROW,
        due: RuntimeTimer = _ROWS_DUE,
        end: RuntimeTimer = _ROWS_END,
    ) -> None:
        waiting.add(element[1])
        known, now_s = any_row.read(), self._clock()
        if element[1].startswith(_OF_GROUPS) and known != _GROUPS_WAIT:
            any_row.write(_GROUPS_WAIT)
            set_clock_timer(due, Timestamp(now_s + _MERGED_S))
        elif not known:
            any_row.write(_MEMBERS_WAIT)
            set_clock_timer(due, Timestamp(_next_s(now_s) + 2 * _MERGED_S))
        if not known:
            end.set(Timestamp(micros=END_US))

    @on_timer(_ROWS_DUE_SPEC)
    def waited(
        self, waiting: BagRuntimeState = _WAITING, any_row: ReadModifyWriteRuntimeState = _ANY_ROW
    ) -> Iterator[EncodedRows]:
        """Passes on what waits."""
        return self._take(waiting, any_row)

    @on_timer(_ROWS_END_SPEC)
    def drained(
        self,
        waiting: BagRuntimeState = _WAITING,
        any_row: ReadModifyWriteRuntimeState = _ANY_ROW,
        due: RuntimeTimer = _ROWS_DUE,
    ) -> Iterator[EncodedRows]:
        """Passes on what waits."""
        due.clear()  # a drain would wait for it
        return self._take(waiting, any_row)

    @staticmethod
    def _take(waiting: BagRuntimeState, any_row: ReadModifyWriteRuntimeState) -> Iterator[EncodedRows]:
        batches = list(waiting.read())
        waiting.clear()
        any_row.clear()
        for batch in batches:
            rows = read_rows(batch[1:])
            for start in range(0, len(rows), _MOST_ROWS):
                yield EncodedRows(rows[start : start + _MOST_ROWS])


def _wait(
    change: bytes,
    changes: BagRuntimeState,
    any_change: ReadModifyWriteRuntimeState,
    due: RuntimeTimer,
    end: RuntimeTimer,
    due_s: float,
) -> None:
    """Keeps a change until a time of the clock, or until the job is drained."""
    changes.add(change)
    if not any_change.read():
        any_change.write(1)
        set_clock_timer(due, Timestamp(due_s))
        end.set(Timestamp(micros=END_US))


def _settle(
    changes: BagRuntimeState, any_change: ReadModifyWriteRuntimeState, kept: BagRuntimeState, chunks: Iterable[bytes]
) -> None:
    """Keeps windows instead of the changes that they have now."""
    changes.clear()
    any_change.clear()
    kept.clear()
    for chunk in chunks:
        kept.add(chunk)


def _next_s(now_s: float) -> float:
    """Returns the next time at which groups are merged."""
    return now_s - now_s % _EVERY_S + _EVERY_S
