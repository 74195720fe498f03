"""Events that come too late: for their window, or for their table."""

from collections.abc import Iterator
from datetime import timedelta

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows

from pipeline.core.events import Event
from pipeline.core.rows import Row
from pipeline.core.schema.expiry import Expiry
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.windows import Window
from pipeline.core.work_list import work_row
from pipeline.transforms import metrics
from pipeline.transforms.decode import Clock

_MICROSECOND = timedelta(microseconds=1)
# From decoding an event to having it in its window, with a table on the way that may be away for as long as a read
# waits for it.
_SPARE_US = timedelta(minutes=20) // _MICROSECOND


class RecordLateWindows(beam.PTransform):
    """``Event`` elements to ``Row`` elements of the table's work list: the windows that may have missed an event.

    Beam drops an event from its window once the watermark has passed the window's end and the allowed lateness, and
    tells nobody. The watermark is never ahead of the clock: so these are the windows whose lateness is over by the
    clock, or will be before the event can have come to its window; some of them, a repair finds right. Counts the
    events whose lateness is over, and those that are older than the policy of their family.

    Args:
        schema: of the table.
        counted: the windows in which events are counted, of which those of the table are made.
        allowed_lateness: of these windows.
        clock: what time it is.
    """

    def __init__(self, schema: TableSchema, counted: Window, allowed_lateness: timedelta, clock: Clock) -> None:
        super().__init__()
        self._late_fn = _RecordLateFn(schema, counted, allowed_lateness, clock)

    def expand(self, events: PCollection) -> PCollection:
        return events | "Record" >> beam.ParDo(self._late_fn).with_output_types(Row)


class ListWindows(beam.PTransform):
    """``(sensor_id, start in µs)`` of windows to ``Row`` elements of the table's work list.

    Args:
        tier: the table's shortest; of a longer window its first is listed, and a repair looks at all of them.
    """

    def __init__(self, tier: Tier) -> None:
        super().__init__()
        self._tier = tier

    def expand(self, windows: PCollection) -> PCollection:
        return (
            windows
            | "ToRow" >> beam.Map(_work_row, self._tier).with_output_types(Row)
            | "OfNoWindow" >> beam.WindowInto(GlobalWindows())  # as other rows are that are written with them
        )


def _work_row(element: tuple[str, int], tier: Tier) -> Row:
    sensor_id, start_us = element
    return work_row(tier, sensor_id, tier.window.start_of(start_us))


class _RecordLateFn(beam.DoFn):
    def __init__(self, schema: TableSchema, counted: Window, allowed_lateness: timedelta, clock: Clock) -> None:
        self._tier = schema.tiers[0] if schema.tiers else None
        self._counted = counted
        self._lateness_us = allowed_lateness // _MICROSECOND
        self._expiry = Expiry.of(schema, schema.policies)
        self._clock = clock
        self._late_events = metrics.counter(metrics.LATE_EVENTS)
        self._expired_events = metrics.counter(metrics.EXPIRED_EVENTS)

    def start_bundle(self) -> None:
        self._recorded: set[tuple[str, int]] = set()

    def process(self, element: Event) -> Iterator[Row]:
        time_us, now_us = element.event_time_us, int(self._clock() * 1_000_000)
        if self._expiry.expires(time_us, element.readings, now_us):
            self._expired_events.inc()
        left_us = self._counted.start_of(time_us) + self._counted.length_us + self._lateness_us - now_us
        if self._tier is None or left_us >= _SPARE_US:
            return
        if left_us < 0:
            self._late_events.inc()
        start_us = self._tier.window.start_of(time_us)
        if (element.sensor_id, start_us) not in self._recorded:
            self._recorded.add((element.sensor_id, start_us))
            yield work_row(self._tier, element.sensor_id, start_us)
