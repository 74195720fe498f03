"""Events in, one accumulated statistic for each sensor, window and pane out; and longer windows out of shorter ones."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.trigger import (
    AccumulationMode,
    AfterCount,
    AfterProcessingTime,
    AfterWatermark,
)
from apache_beam.transforms.window import FixedWindows
from apache_beam.utils.timestamp import Duration

from pipeline.core.events import Event
from pipeline.core.stats import WindowStats
from pipeline.core.tiers import ShorterWindows
from pipeline.core.windows import Window


@dataclass(frozen=True)
class Firing:
    """When panes fire, and how long windows are kept.

    Args:
        early: how long after a window's first new event an early pane fires; zero for no early panes.
        late: the same behind the watermark; zero for a pane for every late event.
        allowed_lateness: how far behind the watermark a window is still kept.
    """

    early: timedelta
    late: timedelta
    allowed_lateness: timedelta

    def of_longer(self, shorter: Window) -> "Firing":
        """Of windows that are computed from these: kept longer, or they could miss the last late pane.

        The last hour of a day is kept as long as the day, and its last pane fires when that time is up, or later by
        the interval of late panes. The length of the shorter window is to spare, as watermarks jump.
        """
        return replace(self, allowed_lateness=self.allowed_lateness + self.late + shorter.length)


class AggregateReadings(beam.PTransform):
    """``Event`` elements to ``(sensor_id, WindowStats)``, one for each pane of a sensor's window.

    Panes accumulate: each holds everything that the window has seen so far.
    """

    def __init__(self, window: Window, firing: Firing) -> None:
        super().__init__()
        self._window = window
        self._firing = firing

    def expand(self, events: PCollection) -> PCollection:
        return (
            events
            | "KeyBySensor" >> beam.Map(_key_by_sensor).with_output_types(tuple[str, dict[str, float]])
            | "Window" >> _into_windows(self._window, self._firing)
            | "Combine" >> beam.CombinePerKey(WindowStatsFn()).with_output_types(tuple[str, WindowStats])
        )


class RollUp(beam.PTransform):
    """``(sensor_id, WindowStats)`` panes of shorter windows to the same of a window that they divide.

    The panes that go in accumulate, and so do those that come out.
    """

    def __init__(self, window: Window, firing: Firing) -> None:
        super().__init__()
        self._window = window
        self._firing = firing

    def expand(self, panes: PCollection) -> PCollection:
        # A pane's timestamp is the end of its window, less the least that there is: within the longer one.
        return (
            panes
            | "WithStart" >> beam.Map(_with_start).with_output_types(tuple[str, tuple[int, WindowStats]])
            | "Window" >> _into_windows(self._window, self._firing)
            | "Combine" >> beam.CombinePerKey(RollUpFn()).with_output_types(tuple[str, WindowStats])
        )


def _key_by_sensor(event: Event) -> tuple[str, dict[str, float]]:
    return event.sensor_id, event.readings


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


class WindowStatsFn(beam.CombineFn):
    """Readings of one event each, metric name to value, combined into :class:`WindowStats`."""

    def create_accumulator(self) -> WindowStats:
        return WindowStats()

    def add_input(self, mutable_accumulator: WindowStats, element: dict[str, float]) -> WindowStats:
        mutable_accumulator.add(element)
        return mutable_accumulator

    def merge_accumulators(self, accumulators: Iterable[WindowStats], *_: Any) -> WindowStats:
        merged = WindowStats()
        for accumulator in accumulators:
            merged.merge(accumulator)
        return merged

    def extract_output(self, accumulator: WindowStats) -> WindowStats:
        # A copy: the window goes on accumulating while this pane is on its way.
        return self.merge_accumulators([accumulator])


class RollUpFn(beam.CombineFn):
    """Starts and accumulators of shorter windows combined into the :class:`WindowStats` of all of them."""

    def create_accumulator(self) -> ShorterWindows:
        return ShorterWindows()

    def add_input(self, mutable_accumulator: ShorterWindows, element: tuple[int, WindowStats]) -> ShorterWindows:
        mutable_accumulator.put(*element)
        return mutable_accumulator

    def merge_accumulators(self, accumulators: Iterable[ShorterWindows], *_: Any) -> ShorterWindows:
        merged = ShorterWindows()
        for accumulator in accumulators:
            merged.merge(accumulator)
        return merged

    def extract_output(self, accumulator: ShorterWindows) -> WindowStats:
        return accumulator.total()
