"""Collects batches of rows before they are written.

A runner's bundle is often one key, so it contains the batches of one group. Written as they come, small groups would
cost a request for every few rows. Here the batches of many groups wait for each other, for a moment.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder, VarIntCoder
from apache_beam.pvalue import PCollection
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

from pipeline.core.panes.firing import END_US
from pipeline.core.panes.row_batches import BatchOrder, number_of_rows, shards_for
from pipeline.core.rows.newest_row import is_latest_key
from pipeline.core.rows.rows import EncodedRows
from pipeline.private_apis.timer_holds import set_clock_timer
from pipeline.transforms import metrics
from pipeline.transforms.stateful import StatefulFn

Clock = Callable[[], float]

_ENOUGH_ROWS = 1000
_MOST_ROWS = 500  # in an output element
_WAIT_S = 0.5

# Names of timers differ from those of other steps: Beam's FnApiRunner confuses them within a stage.
_BATCHES_SPEC = BagStateSpec("panes", BytesCoder())
_ORDER_SPEC = ReadModifyWriteStateSpec("order", BytesCoder())
_WAITING_SPEC = ReadModifyWriteStateSpec("waiting", VarIntCoder())
_WATERMARK_SPEC = TimerSpec("drained", TimeDomain.WATERMARK)
_CLOCK_SPEC = TimerSpec("waited", TimeDomain.REAL_TIME)
_BATCHES, _ORDER, _WAITING = map(beam.DoFn.StateParam, (_BATCHES_SPEC, _ORDER_SPEC, _WAITING_SPEC))
_WATERMARK, _CLOCK = map(beam.DoFn.TimerParam, (_WATERMARK_SPEC, _CLOCK_SPEC))


class CollectRows(beam.PTransform):
    """Collects the rows of ``(group, batch)`` elements into ``EncodedRows``.

    The rows of a group come out in the order of its batches, and a row at most once in an element. They wait until they
    are a thousand, or half a second has passed.

    Args:
        clock: a function that returns the current time.
        groups: the number of groups.
    """

    def __init__(self, clock: Clock = time.time, groups: int = 1) -> None:
        super().__init__()
        self._clock = clock
        self._shards = shards_for(groups)

    def expand(self, batches: PCollection) -> PCollection:
        return (
            batches
            | "Shard" >> beam.Map(_with_shard, self._shards).with_output_types(KV[int, bytes])
            | "Collect" >> beam.ParDo(_CollectFn(self._clock)).with_output_types(EncodedRows)
        )


def _with_shard(element: tuple[int, bytes], shards: int) -> tuple[int, bytes]:
    group, batch = element
    return group % shards, batch


class _CollectFn(StatefulFn):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._aggregate_rows = metrics.counter(metrics.AGGREGATE_ROWS)

    def start_bundle(self) -> None:
        # A request may contain rows of the whole bundle, and Bigtable may apply its entries in any order.
        self._taken: set[int] = set()

    def process(
        self,
        element: tuple[int, bytes],
        batches: BagRuntimeState = _BATCHES,
        order: ReadModifyWriteRuntimeState = _ORDER,
        waiting: ReadModifyWriteRuntimeState = _WAITING,
        watermark: RuntimeTimer = _WATERMARK,
        clock: RuntimeTimer = _CLOCK,
    ) -> Iterator[EncodedRows]:
        shard, batch = element
        batches.add(batch)
        before = waiting.read() or 0
        rows = before + number_of_rows(batch)
        waiting.write(rows)
        if rows >= _ENOUGH_ROWS and shard not in self._taken:
            yield from self._take(shard, batches, order, waiting)
        elif not before:
            set_clock_timer(clock, Timestamp(self._clock() + _WAIT_S))
            watermark.set(Timestamp(micros=END_US))  # when a job is drained

    @on_timer(_CLOCK_SPEC)
    def waited(
        self,
        shard: Any = beam.DoFn.KeyParam,
        batches: BagRuntimeState = _BATCHES,
        order: ReadModifyWriteRuntimeState = _ORDER,
        waiting: ReadModifyWriteRuntimeState = _WAITING,
        clock: RuntimeTimer = _CLOCK,
    ) -> Iterator[EncodedRows]:
        """Passes on what waits."""
        if shard not in self._taken:
            yield from self._take(shard, batches, order, waiting)
        elif waiting.read():  # otherwise the bundle has passed on everything, and a drain would wait for the timer
            set_clock_timer(clock, Timestamp(self._clock() + _WAIT_S))

    @on_timer(_WATERMARK_SPEC)
    def drained(
        self,
        shard: Any = beam.DoFn.KeyParam,
        batches: BagRuntimeState = _BATCHES,
        order: ReadModifyWriteRuntimeState = _ORDER,
        waiting: ReadModifyWriteRuntimeState = _WAITING,
        watermark: RuntimeTimer = _WATERMARK,
        clock: RuntimeTimer = _CLOCK,
    ) -> Iterator[EncodedRows]:
        """Passes on what waits."""
        if shard in self._taken:
            watermark.set(Timestamp(micros=END_US))
        else:
            clock.clear()  # a drain would wait for it
            yield from self._take(shard, batches, order, waiting)

    def _take(
        self,
        shard: int,
        batches: BagRuntimeState,
        order: ReadModifyWriteRuntimeState,
        waiting: ReadModifyWriteRuntimeState,
    ) -> Iterator[EncodedRows]:
        of_groups = BatchOrder(order.read())
        rows, left = of_groups.take(batches.read())
        waiting.clear()
        batches.clear()
        for batch in left:
            batches.add(batch)
        if not rows:
            return  # batches that came twice, or have to wait
        self._taken.add(shard)
        order.write(of_groups.to_bytes())
        self._aggregate_rows.inc(sum(not is_latest_key(row.key) for row in rows))
        for start in range(0, len(rows), _MOST_ROWS):
            yield EncodedRows(rows[start : start + _MOST_ROWS])
