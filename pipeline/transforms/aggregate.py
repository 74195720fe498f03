"""Aggregates events: the statistics of each sensor, window and pane; longer windows from shorter ones."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.coders import Coder
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms.trigger import (
    AccumulationMode,
    AfterCount,
    AfterProcessingTime,
    AfterWatermark,
)
from apache_beam.transforms.window import FixedWindows, GlobalWindow
from apache_beam.typehints import KV
from apache_beam.utils.timestamp import Duration, Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from pipeline.core.accumulator import Pane, RestoredReadings, WindowReadings
from pipeline.core.events import Event
from pipeline.core.pre_aggregation import BundlePreAggregator
from pipeline.core.schema.identity import Identity
from pipeline.core.stats import WindowStats
from pipeline.core.tiers import RestoredShorterWindows, ShorterWindows
from pipeline.core.windows import Window
from pipeline.transforms import metrics
from pipeline.transforms.coders import AccumulatorCoder
from pipeline.transforms.restore import RestoreWindows

_PANES, _TOO_WIDE = "panes", "too_wide"


@dataclass(frozen=True)
class Firing:
    """When panes fire, and how long windows are kept.

    Args:
        early: how long after a window's first new event an early pane fires; zero for no early panes.
        late: how long after a late event a late pane fires; zero for a pane for every late event.
        allowed_lateness: how far behind the watermark a window is kept.
    """

    early: timedelta
    late: timedelta
    allowed_lateness: timedelta

    def of_longer(self, shorter: Window) -> "Firing":
        """Returns the firing of windows computed from these, kept longer: they must not miss the last late pane.

        With the same allowed lateness, the last hour of a day would be kept as long as the day itself, and its last
        pane fires when that time is up, or later by the interval of late panes. The length of the shorter window is a
        margin, because watermarks jump.
        """
        return replace(self, allowed_lateness=self.allowed_lateness + self.late + shorter.length)


class Aggregated(NamedTuple):
    """The outputs of an aggregation.

    Attributes:
        panes: ``(sensor_id, WindowStats)``, one for each pane of a sensor's window.
        incomplete: ``(sensor_id, start in µs)`` of windows whose panes may be incomplete, or have too many metrics.
    """

    panes: PCollection
    incomplete: list[PCollection]


class PreAggregateReadings(beam.PTransform):
    """Combines the ``Event`` elements of a bundle into ``(sensor_id, WindowReadings)``, one for each window.

    The timestamp of an output is a time within its window.

    Args:
        window: of the tier.
        identity: how the table distinguishes the events of a sensor.
    """

    def __init__(self, window: Window, identity: Identity) -> None:
        super().__init__()
        self._pre_aggregator = BundlePreAggregator(window, identity)

    def expand(self, events: PCollection) -> PCollection:
        return events | "Gather" >> beam.ParDo(_GatherFn(self._pre_aggregator)).with_output_types(
            tuple[str, WindowReadings]
        )


class _GatherFn(beam.DoFn):
    def __init__(self, pre_aggregator: BundlePreAggregator) -> None:
        self._pre_aggregator = pre_aggregator

    def start_bundle(self) -> None:
        self._pre_aggregator.start()

    def process(self, element: Event) -> None:
        self._pre_aggregator.add([element])

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for sensor_id, time_us, readings in self._pre_aggregator.take():
            yield WindowedValue((sensor_id, readings), Timestamp(micros=time_us), (GlobalWindow(),))


class AggregateReadings(beam.PTransform):
    """Aggregates ``(sensor_id, WindowReadings)``, whose timestamps are within their windows, to :class:`Aggregated`.

    Panes accumulate: each contains everything that the window has received so far.

    Args:
        window: of the tier.
        firing: when panes fire.
        deduplicate: whether a repeated reading counts once.
        restore: restores windows that the table may store already; None if it stores none.
    """

    def __init__(
        self, window: Window, firing: Firing, *, deduplicate: bool = True, restore: RestoreWindows | None = None
    ) -> None:
        super().__init__()
        self._window = window
        self._firing = firing
        self._deduplicate = deduplicate
        self._restore = restore

    def expand(self, readings: PCollection) -> Any:  # Aggregated, which Beam would take for a type hint
        readings |= "Window" >> _into_windows(self._window, self._firing)
        readings.element_type = KV[str, Any]  # restored readings arrive in the same collection
        return _whole_panes(readings, WindowReadingsFn(deduplicate=self._deduplicate), self._restore)


class RollUp(beam.PTransform):
    """Aggregates ``(sensor_id, WindowStats)`` panes of shorter windows to :class:`Aggregated` of a longer window.

    The shorter windows divide the longer one. Input and output panes both accumulate.
    """

    def __init__(self, window: Window, firing: Firing, *, restore: RestoreWindows | None = None) -> None:
        super().__init__()
        self._window = window
        self._firing = firing
        self._restore = restore

    def expand(self, panes: PCollection) -> Any:
        # A pane's timestamp is the last instant of its window, which lies within the longer window.
        shorter = (
            panes
            | "WithStart" >> beam.Map(_with_start).with_output_types(tuple[str, Any])
            | "Window" >> _into_windows(self._window, self._firing)
        )
        return _whole_panes(shorter, RollUpFn(), self._restore)


def _whole_panes(parts: PCollection, combine: beam.CombineFn, restore: RestoreWindows | None) -> Aggregated:
    """Combines the parts with what the table stores, and holds back panes that lack the stored part."""
    incomplete = []
    if restore is not None:
        stored, not_restored = parts | "Recall" >> restore
        incomplete.append(not_restored)
        parts = (parts, stored) | "WithRecalled" >> beam.Flatten()
    panes = parts | "Combine" >> beam.CombinePerKey(combine).with_output_types(tuple[str, Pane])
    hold_back = _HoldBackFn(None if restore is None else restore.before_us)
    outputs = panes | "HoldBack" >> beam.ParDo(hold_back).with_outputs(_TOO_WIDE, main=_PANES)
    outputs[_PANES].element_type = KV[str, WindowStats]
    return Aggregated(outputs[_PANES], [*incomplete, outputs[_TOO_WIDE]])


class _HoldBackFn(beam.DoFn):
    """Holds back panes of windows that began before the job until they include what the table stores.

    A pane replaces the aggregate row. Panes with too many metrics never pass: their windows are listed instead.
    """

    def __init__(self, before_us: int | None) -> None:
        self._before_us = before_us
        self._held_back = metrics.counter(metrics.PANES_HELD_BACK)
        self._too_wide = metrics.counter(metrics.PANES_TOO_WIDE)

    def process(self, element: tuple[str, Pane], window: Any = beam.DoFn.WindowParam) -> Iterator[Any]:
        sensor_id, pane = element
        if pane.too_wide:
            self._too_wide.inc()
            yield TaggedOutput(_TOO_WIDE, (sensor_id, window.start.micros))
        elif self._before_us is None or pane.complete or window.start.micros >= self._before_us:
            yield sensor_id, pane.stats
        else:
            self._held_back.inc()


def _with_start(
    element: tuple[str, WindowStats], window: Any = beam.DoFn.WindowParam
) -> tuple[str, tuple[int, WindowStats]]:
    sensor_id, stats = element
    return sensor_id, (window.start.micros, stats)


def _into_windows(window: Window, firing: Firing) -> beam.WindowInto:
    early_s, late_s = (int(interval.total_seconds()) for interval in (firing.early, firing.late))
    return beam.WindowInto(
        FixedWindows(Duration(micros=window.length_us)),
        trigger=AfterWatermark(
            early=AfterProcessingTime(early_s) if early_s else None,
            late=AfterProcessingTime(late_s) if late_s else AfterCount(1),
        ),
        accumulation_mode=AccumulationMode.ACCUMULATING,
        allowed_lateness=Duration(seconds=firing.allowed_lateness.total_seconds()),
    )


class WindowReadingsFn(beam.CombineFn):
    """Combines the readings of bundles and the restored readings of a window into a :class:`Pane`."""

    def __init__(self, *, deduplicate: bool) -> None:
        self._deduplicate = deduplicate

    def create_accumulator(self) -> WindowReadings:
        return WindowReadings(deduplicate=self._deduplicate)

    def add_input(
        self, mutable_accumulator: WindowReadings, element: WindowReadings | RestoredReadings
    ) -> WindowReadings:
        if isinstance(element, RestoredReadings):
            mutable_accumulator.restore(element)
        else:
            mutable_accumulator.merge(element)
        return mutable_accumulator

    def merge_accumulators(self, accumulators: Iterable[WindowReadings], *_: Any) -> WindowReadings:
        merged = self.create_accumulator()
        for accumulator in accumulators:
            merged.merge(accumulator)
        return merged

    def extract_output(self, accumulator: WindowReadings) -> Pane:
        return accumulator.pane()

    def get_accumulator_coder(self) -> Coder:
        return AccumulatorCoder(WindowReadings)


class RollUpFn(beam.CombineFn):
    """Combines the statistics of shorter windows by their starts, and restored ones, into a :class:`Pane`."""

    def create_accumulator(self) -> ShorterWindows:
        return ShorterWindows()

    def add_input(
        self, mutable_accumulator: ShorterWindows, element: tuple[int, WindowStats] | RestoredShorterWindows
    ) -> ShorterWindows:
        if isinstance(element, RestoredShorterWindows):
            mutable_accumulator.restore(*element)
        else:
            mutable_accumulator.put(*element)
        return mutable_accumulator

    def merge_accumulators(self, accumulators: Iterable[ShorterWindows], *_: Any) -> ShorterWindows:
        merged = ShorterWindows()
        for accumulator in accumulators:
            merged.merge(accumulator)
        return merged

    def extract_output(self, accumulator: ShorterWindows) -> Pane:
        return accumulator.pane()

    def get_accumulator_coder(self) -> Coder:
        return AccumulatorCoder(ShorterWindows)
