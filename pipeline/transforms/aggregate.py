"""Events in, one accumulated statistic for each sensor, window and pane out."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.trigger import (
    AccumulationMode,
    AfterCount,
    AfterProcessingTime,
    AfterWatermark,
    TriggerFn,
)
from apache_beam.transforms.window import FixedWindows
from apache_beam.utils.timestamp import Duration

from pipeline.core.events import Event
from pipeline.core.stats import WindowStats
from pipeline.core.windows import Window


class AggregateReadings(beam.PTransform):
    """``Event`` elements to ``(sensor_id, WindowStats)``, one for each pane of a sensor's window.

    Panes accumulate: each holds everything that the window has seen so far.

    Args:
        window: the fixed window.
        early_firing: how long after a window's first new event an early pane fires; zero for no early panes.
        late_firing: the same behind the watermark; zero for a pane for every late event.
        allowed_lateness: how far behind the watermark a window is still kept.
    """

    def __init__(
        self, window: Window, early_firing: timedelta, late_firing: timedelta, allowed_lateness: timedelta
    ) -> None:
        super().__init__()
        self._window = window
        self._trigger = _trigger(early_firing, late_firing)
        self._allowed_lateness = allowed_lateness

    def expand(self, events: PCollection) -> PCollection:
        return (
            events
            | "KeyBySensor" >> beam.Map(_key_by_sensor).with_output_types(tuple[str, dict[str, float]])
            | "Window"
            >> beam.WindowInto(
                FixedWindows(Duration(micros=self._window.length_us)),
                trigger=self._trigger,
                accumulation_mode=AccumulationMode.ACCUMULATING,
                allowed_lateness=Duration(seconds=self._allowed_lateness.total_seconds()),
            )
            | "Combine" >> beam.CombinePerKey(WindowStatsFn()).with_output_types(tuple[str, WindowStats])
        )


def _key_by_sensor(event: Event) -> tuple[str, dict[str, float]]:
    return event.sensor_id, event.readings


def _trigger(early_firing: timedelta, late_firing: timedelta) -> TriggerFn:
    early_s, late_s = (int(firing.total_seconds()) for firing in (early_firing, late_firing))
    return AfterWatermark(
        early=AfterProcessingTime(early_s) if early_s else None,
        late=AfterProcessingTime(late_s) if late_s else AfterCount(1),
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
