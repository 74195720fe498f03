"""Collects the rows of panes before they are written.

A runner's bundle is often one key, so it contains the panes of one group. Written as they come, small groups would cost
a request for every few rows. Here the panes of many groups wait for each other, for a moment.
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
from pipeline.core.panes.pane_order import PaneOrder, number_of_rows
from pipeline.core.queries.newest_readings import is_latest_key
from pipeline.core.rows.rows import EncodedRows
from pipeline.private_apis import state_cache
from pipeline.transforms import metrics

Clock = Callable[[], float]

_SHARDS = 4  # keys, each of which is written by one thread at a time
_ENOUGH_ROWS = 1000
_MOST_ROWS = 500  # in an output element
_WAIT_S = 0.5

# Names of timers differ from those of other steps: Beam's FnApiRunner confuses them within a stage.
_PANES_SPEC = BagStateSpec("panes", BytesCoder())
_ORDER_SPEC = ReadModifyWriteStateSpec("order", BytesCoder())
_WAITING_SPEC = ReadModifyWriteStateSpec("waiting", VarIntCoder())
_WATERMARK_SPEC = TimerSpec("drained", TimeDomain.WATERMARK)
_CLOCK_SPEC = TimerSpec("waited", TimeDomain.REAL_TIME)
_PANES, _ORDER, _WAITING = map(beam.DoFn.StateParam, (_PANES_SPEC, _ORDER_SPEC, _WAITING_SPEC))
_WATERMARK, _CLOCK = map(beam.DoFn.TimerParam, (_WATERMARK_SPEC, _CLOCK_SPEC))


class CollectRows(beam.PTransform):
    """Collects the rows of ``(group, pane)`` elements into ``EncodedRows``.

    The rows of a group come out in the order of its panes, and a row at most once in an element. They wait until there
    are a thousand, or half a second has passed.

    Args:
        clock: returns the current time.
    """

    def __init__(self, clock: Clock = time.time) -> None:
        super().__init__()
        self._clock = clock

    def expand(self, panes: PCollection) -> PCollection:
        return (
            panes
            | "Shard" >> beam.Map(_with_shard).with_output_types(KV[int, bytes])
            | "Collect" >> beam.ParDo(_CollectFn(self._clock)).with_output_types(EncodedRows)
        )


def _with_shard(element: tuple[int, bytes]) -> tuple[int, bytes]:
    group, pane = element
    return group % _SHARDS, pane


class _CollectFn(beam.DoFn):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._aggregate_rows = metrics.counter(metrics.AGGREGATE_ROWS)

    def setup(self) -> None:
        state_cache.make_cheap()

    def start_bundle(self) -> None:
        # A request may contain rows of the whole bundle, and Bigtable may apply its entries in any order.
        self._taken: set[int] = set()

    def process(
        self,
        element: tuple[int, bytes],
        panes: BagRuntimeState = _PANES,
        order: ReadModifyWriteRuntimeState = _ORDER,
        waiting: ReadModifyWriteRuntimeState = _WAITING,
        watermark: RuntimeTimer = _WATERMARK,
        clock: RuntimeTimer = _CLOCK,
    ) -> Iterator[EncodedRows]:
        shard, pane = element
        panes.add(pane)
        before = waiting.read() or 0
        rows = before + number_of_rows(pane)
        waiting.write(rows)
        if rows >= _ENOUGH_ROWS and shard not in self._taken:
            yield from self._take(shard, panes, order, waiting)
        elif not before:
            clock.set(Timestamp(self._clock() + _WAIT_S))
            watermark.set(Timestamp(micros=END_US))  # when a job is drained

    @on_timer(_CLOCK_SPEC)
    def waited(
        self,
        shard: Any = beam.DoFn.KeyParam,
        panes: BagRuntimeState = _PANES,
        order: ReadModifyWriteRuntimeState = _ORDER,
        waiting: ReadModifyWriteRuntimeState = _WAITING,
        clock: RuntimeTimer = _CLOCK,
    ) -> Iterator[EncodedRows]:
        """Passes on what waits."""
        if shard in self._taken:
            clock.set(Timestamp(self._clock() + _WAIT_S))
        else:
            yield from self._take(shard, panes, order, waiting)

    @on_timer(_WATERMARK_SPEC)
    def drained(
        self,
        shard: Any = beam.DoFn.KeyParam,
        panes: BagRuntimeState = _PANES,
        order: ReadModifyWriteRuntimeState = _ORDER,
        waiting: ReadModifyWriteRuntimeState = _WAITING,
        watermark: RuntimeTimer = _WATERMARK,
    ) -> Iterator[EncodedRows]:
        """Passes on what waits."""
        if shard in self._taken:
            watermark.set(Timestamp(micros=END_US))
        else:
            yield from self._take(shard, panes, order, waiting)

    def _take(
        self,
        shard: int,
        panes: BagRuntimeState,
        order: ReadModifyWriteRuntimeState,
        waiting: ReadModifyWriteRuntimeState,
    ) -> Iterator[EncodedRows]:
        of_groups = PaneOrder(order.read())
        rows, left = of_groups.take(panes.read())
        waiting.clear()
        panes.clear()
        for pane in left:
            panes.add(pane)
        if not rows:
            return  # panes that came twice, or have to wait
        self._taken.add(shard)
        order.write(of_groups.to_bytes())
        self._aggregate_rows.inc(sum(not is_latest_key(row.key) for row in rows))
        for start in range(0, len(rows), _MOST_ROWS):
            yield EncodedRows(rows[start : start + _MOST_ROWS])
