"""Events of files in, the aggregate rows of their windows out: of these events and of what the table has already."""

import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import FixedWindows
from apache_beam.utils.timestamp import Duration

from pipeline.cloud.names import TableName
from pipeline.cloud.recall import readings_of, stored_stats
from pipeline.cloud.row_filters import row_filter
from pipeline.core.aggregates import aggregate_row
from pipeline.core.events import Event
from pipeline.core.readings import Recalled, WindowReadings
from pipeline.core.rows import KeyRange, Row
from pipeline.core.schema.expiry import Expiry
from pipeline.core.schema.homes import Homes
from pipeline.core.schema.layouts import Wanted
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.stats import WindowStats
from pipeline.core.tiers import ShorterWindows
from pipeline.core.windows import Window
from pipeline.core.work_list import work_row
from pipeline.transforms import metrics
from pipeline.transforms.aggregate import GatherReadings, WindowReadingsFn
from pipeline.transforms.reading import ReadingFn

WINDOWS_LISTED = "windows_listed"

_MICROSECOND = timedelta(microseconds=1)


class CountExpired(beam.PTransform):
    """Counts the ``Event`` elements that Bigtable would collect soon after they are written; passes nothing on."""

    def __init__(self, expiry: Expiry) -> None:
        super().__init__()
        self._expiry = expiry

    def expand(self, events: PCollection) -> PCollection:
        return events | "Count" >> beam.ParDo(_CountExpiredFn(self._expiry))


class _CountExpiredFn(beam.DoFn):
    def __init__(self, expiry: Expiry) -> None:
        self._expiry = expiry
        self._expired = metrics.counter(metrics.EXPIRED_EVENTS)

    def process(self, element: Event) -> None:
        if self._expiry.expires(element.event_time_us, element.readings, time.time_ns() // 1000):
            self._expired.inc()


class CompleteWindows(beam.PTransform):
    """``Event`` elements to ``(sensor_id, (start in µs, WindowStats))``, one for each window that has one of them.

    The statistics are those of the events and of the raw rows that the table has of the window, each reading once;
    where both have a reading, it is the events' own, which the raw row will hold.

    Args:
        name: of the table.
        schema: of the table.
        window: of its shortest tier.
    """

    def __init__(self, name: TableName, schema: TableSchema, window: Window) -> None:
        super().__init__()
        self._name = name
        self._schema = schema
        self._window = window

    def expand(self, events: PCollection) -> PCollection:
        return (
            events
            | "GatherReadings" >> GatherReadings(self._window, self._schema.identity)
            | "Window" >> _windows(self._window)
            | "Gather" >> beam.CombinePerKey(_KeepFn(deduplicate=True)).with_output_types(tuple[str, WindowReadings])
            | "Complete"
            >> beam.ParDo(_CompleteFn(self._name, self._schema, self._window)).with_output_types(tuple[str, Any])
        )


class CompleteLongerWindows(beam.PTransform):
    """``(sensor_id, (start in µs, WindowStats))`` of shorter windows to the same of those that they divide.

    The shorter windows that do not come are as their aggregate rows in the table have them.

    Args:
        name: of the table.
        schema: of the table.
        window: of a tier.
        shorter: of the tier before it.
    """

    def __init__(self, name: TableName, schema: TableSchema, window: Window, shorter: Window) -> None:
        super().__init__()
        self._name = name
        self._schema = schema
        self._window = window
        self._shorter = shorter

    def expand(self, windows: PCollection) -> PCollection:
        # The timestamp of what came out of a shorter window is within it, and so within the longer one.
        complete_fn = _CompleteLongerFn(self._name, self._schema, self._window, self._shorter)
        return (
            windows
            | "Window" >> _windows(self._window)
            | "Gather" >> beam.GroupByKey()
            | "Complete" >> beam.ParDo(complete_fn).with_output_types(tuple[str, Any])
        )


class FormatWindows(beam.PTransform):
    """``(sensor_id, (start in µs, WindowStats))`` to aggregate rows."""

    def __init__(self, tier: Tier) -> None:
        super().__init__()
        self._tier = tier

    def expand(self, windows: PCollection) -> PCollection:
        return windows | "Format" >> beam.ParDo(_FormatFn(self._tier)).with_output_types(Row)


class ListWindows(beam.PTransform):
    """``(sensor_id, (start in µs, WindowStats))`` of the shortest tier to rows of the table's work list.

    Of those alone that a job may still write, or a longer one that holds them: it knows nothing of these events, and
    what it writes next is without them. A repair will find them then.

    Args:
        schema: of the table.
        allowed_lateness: of the job.
    """

    def __init__(self, schema: TableSchema, allowed_lateness: timedelta) -> None:
        super().__init__()
        self._schema = schema
        self._allowed_lateness = allowed_lateness

    def expand(self, windows: PCollection) -> PCollection:
        return windows | "List" >> beam.ParDo(_ListFn(self._schema, self._allowed_lateness)).with_output_types(Row)


def _windows(window: Window) -> beam.WindowInto:
    return beam.WindowInto(FixedWindows(Duration(micros=window.length_us)))


class _KeepFn(WindowReadingsFn):
    """Gives the accumulator itself: there is more to add."""

    def extract_output(self, accumulator: WindowReadings) -> Any:
        return accumulator


class _CompleteFn(ReadingFn):
    def __init__(self, name: TableName, schema: TableSchema, window: Window) -> None:
        super().__init__([(name, schema)])
        self._schema = schema
        self._length_us = window.length_us

    def _read(
        self, key_range: KeyRange, wanted: Wanted, pattern: str | None, page_rows: int | None, *, reverse: bool
    ) -> Iterator[Row]:
        return self._tables[0].rows.read(key_range, row_filter(wanted, pattern), page_rows=page_rows, reverse=reverse)

    def start_bundle(self) -> None:
        self._homes = Homes(self._schema, self._read)

    def process(
        self, element: tuple[str, WindowReadings], window: Any = beam.DoFn.WindowParam
    ) -> Iterator[tuple[str, tuple[int, WindowStats]]]:
        sensor_id, gathered = element
        start_us = window.start.micros
        readings = WindowReadings()  # a combiner's output is not ours to change
        readings.merge(gathered)
        for metadata in self._homes.of(sensor_id):
            of_table = readings_of(self._tables[0], sensor_id, start_us, start_us + self._length_us, metadata)
            readings.recall(Recalled(of_table))
        yield sensor_id, (start_us, readings.pane().stats)


class _CompleteLongerFn(ReadingFn):
    def __init__(self, name: TableName, schema: TableSchema, window: Window, shorter: Window) -> None:
        super().__init__([(name, schema)])
        self._length_us = window.length_us
        self._shorter = shorter

    def process(
        self, element: tuple[str, Iterable[tuple[int, WindowStats]]], window: Any = beam.DoFn.WindowParam
    ) -> Iterator[tuple[str, tuple[int, WindowStats]]]:
        sensor_id, own = element
        start_us = window.start.micros
        stored = stored_stats(self._tables[0], self._shorter, sensor_id, start_us, start_us + self._length_us)
        shorter = ShorterWindows()
        shorter.recall({**stored, **dict(own)})
        yield sensor_id, (start_us, shorter.pane().stats)


class _FormatFn(beam.DoFn):
    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self._aggregate_rows = metrics.counter(metrics.AGGREGATE_ROWS)

    def process(self, element: tuple[str, tuple[int, WindowStats]]) -> Iterator[Row]:
        sensor_id, (start_us, stats) = element
        self._aggregate_rows.inc()
        yield aggregate_row(self._tier.window, sensor_id, start_us, stats, self._tier.family)


class _ListFn(beam.DoFn):
    def __init__(self, schema: TableSchema, allowed_lateness: timedelta) -> None:
        self._tier = schema.tiers[0]
        *shorter, self._longest = (tier.window for tier in schema.tiers)
        # A job keeps a longer window for as long as the last shorter one, and the length of that to spare.
        kept = sum((window.length for window in shorter), allowed_lateness)
        self._kept_us = kept // _MICROSECOND
        self._listed = metrics.counter(WINDOWS_LISTED)

    def process(self, element: tuple[str, tuple[int, WindowStats]]) -> Iterator[Row]:
        sensor_id, (start_us, _) = element
        end_us = self._longest.start_of(start_us) + self._longest.length_us
        if end_us + self._kept_us > time.time_ns() // 1000:
            self._listed.inc()
            yield work_row(self._tier, sensor_id, start_us)
