"""Formats events and panes as rows of a table."""

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import IntervalWindow
from apache_beam.utils.windowed_value import PaneInfo, PaneInfoTiming, WindowedValue

from pipeline.core.aggregates import aggregate_row
from pipeline.core.events import Event
from pipeline.core.rows import Row
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.stats import WindowStats
from pipeline.transforms import metrics

_PANES = {
    PaneInfoTiming.EARLY: metrics.PANES_EARLY,
    PaneInfoTiming.ON_TIME: metrics.PANES_ON_TIME,
    PaneInfoTiming.LATE: metrics.PANES_LATE,
}


class FormatRawRows(beam.PTransform):
    """Formats ``Event`` elements that the schema can store as ``Row`` elements, one or more each."""

    def __init__(self, schema: TableSchema) -> None:
        super().__init__()
        self._schema = schema

    def expand(self, events: PCollection) -> PCollection:
        return events | "Format" >> beam.ParDo(_FormatRawRowsFn(self._schema))


class _FormatRawRowsFn(beam.DoFn):
    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self._raw_rows = metrics.counter(metrics.RAW_ROWS)

    def process(self, element: Event) -> Iterable[Row]:
        rows = self._schema.rows(element)
        self._raw_rows.inc(len(rows))
        return rows


class FormatAggregateRows(beam.PTransform):
    """Formats ``(sensor_id, WindowStats)`` panes as ``Row`` elements, at most one per sensor and window in a bundle.

    ``MutateRows`` may apply the entries of a request in any order, so two panes of a row must never reach the sink
    together. Only the last pane passes, which contains all that the others do. Panes accumulate, so it is the one with
    the most readings; the pane numbers of different runners cannot be relied on.
    """

    def __init__(self, tier: Tier) -> None:
        super().__init__()
        self._tier = tier

    def expand(self, panes: PCollection) -> PCollection:
        return panes | "FormatLastPanes" >> beam.ParDo(_FormatLastPaneFn(self._tier))


class _FormatLastPaneFn(beam.DoFn):
    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self._aggregate_rows = metrics.counter(metrics.AGGREGATE_ROWS)
        self._panes = {timing: metrics.counter(name) for timing, name in _PANES.items()}

    def start_bundle(self) -> None:
        self._last: dict[tuple[str, IntervalWindow], WindowStats] = {}

    def process(
        self,
        element: tuple[str, WindowStats],
        window: Any = beam.DoFn.WindowParam,
        pane: PaneInfo = beam.DoFn.PaneInfoParam,
    ) -> None:
        if pane.timing in self._panes:
            self._panes[pane.timing].inc()
        sensor_id, stats = element
        known = self._last.get((sensor_id, window))
        if known is None or stats.size >= known.size:
            self._last[sensor_id, window] = stats

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for (sensor_id, window), stats in self._last.items():
            self._aggregate_rows.inc()
            row = aggregate_row(self._tier.window, sensor_id, window.start.micros, stats, self._tier.family)
            yield WindowedValue(row, window.max_timestamp(), (window,))
