"""Events and panes in, rows of the table out."""

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import IntervalWindow
from apache_beam.utils.windowed_value import PaneInfo, WindowedValue

from pipeline.core.events import Event
from pipeline.core.rows import Families, Row, aggregate_row, raw_row
from pipeline.core.stats import WindowStats
from pipeline.core.windows import Window
from pipeline.transforms import metrics


class FormatRawRows(beam.PTransform):
    """``Event`` elements to ``Row`` elements, one each."""

    def __init__(self, families: Families) -> None:
        super().__init__()
        self._families = families

    def expand(self, events: PCollection) -> PCollection:
        return events | "Format" >> beam.ParDo(_FormatRawRowFn(self._families))


class _FormatRawRowFn(beam.DoFn):
    def __init__(self, families: Families) -> None:
        self._families = families
        self._raw_rows = metrics.counter(metrics.RAW_ROWS)

    def process(self, element: Event) -> Iterator[Row]:
        self._raw_rows.inc()
        yield raw_row(element, self._families)


class FormatAggregateRows(beam.PTransform):
    """``(sensor_id, WindowStats)`` panes to ``Row`` elements, at most one for each sensor and window in a bundle.

    ``MutateRows`` promises no order among the entries of a request, so two panes of one row must never be in the
    sink's hands together: the last pane, which holds all that the others did, goes on alone.
    """

    def __init__(self, window: Window, families: Families) -> None:
        super().__init__()
        self._window = window
        self._families = families

    def expand(self, panes: PCollection) -> PCollection:
        return panes | "FormatLastPanes" >> beam.ParDo(_FormatLastPaneFn(self._window, self._families))


class _FormatLastPaneFn(beam.DoFn):
    def __init__(self, window: Window, families: Families) -> None:
        self._window = window
        self._families = families
        self._aggregate_rows = metrics.counter(metrics.AGGREGATE_ROWS)
        self._panes = {timing: metrics.counter(name) for timing, name in metrics.PANES.items()}

    def start_bundle(self) -> None:
        self._last: dict[tuple[str, IntervalWindow], tuple[int, WindowStats]] = {}

    def process(
        self,
        element: tuple[str, WindowStats],
        window: Any = beam.DoFn.WindowParam,
        pane: PaneInfo = beam.DoFn.PaneInfoParam,
    ) -> None:
        if pane.timing in self._panes:
            self._panes[pane.timing].inc()
        sensor_id, stats = element
        index, _ = self._last.get((sensor_id, window), (-1, None))
        if pane.index >= index:
            self._last[sensor_id, window] = pane.index, stats

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for (sensor_id, window), (_, stats) in self._last.items():
            self._aggregate_rows.inc()
            row = aggregate_row(self._window, sensor_id, window.start.micros, stats, self._families)
            yield WindowedValue(row, window.max_timestamp(), (window,))
