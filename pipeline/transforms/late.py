"""Events that come too late: for their window, or for their table."""

from collections.abc import Iterator
from datetime import timedelta

import apache_beam as beam
from apache_beam.pvalue import PCollection

from pipeline.core.events import Event
from pipeline.core.rows import Row
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.work_list import work_row
from pipeline.transforms import metrics
from pipeline.transforms.decode import Clock

_MICROSECOND = timedelta(microseconds=1)


class RecordLateWindows(beam.PTransform):
    """``Event`` elements to ``Row`` elements of the table's work list: the windows that may have missed an event.

    Beam drops an event from its window once the watermark has passed the window's end and the allowed lateness, and
    tells nobody. The watermark is never ahead of the clock: so these are the windows whose lateness is over by the
    clock, and some more, which a repair finds right. Counts these events, and those that are older than the policy of
    their family.

    Args:
        schema: of the table.
        allowed_lateness: of its windows.
        clock: what time it is.
    """

    def __init__(self, schema: TableSchema, allowed_lateness: timedelta, clock: Clock) -> None:
        super().__init__()
        self._schema = schema
        self._allowed_lateness = allowed_lateness
        self._clock = clock

    def expand(self, events: PCollection) -> PCollection:
        late_fn = _RecordLateFn(self._schema, self._allowed_lateness, self._clock)
        return events | "Record" >> beam.ParDo(late_fn).with_output_types(Row)


class _RecordLateFn(beam.DoFn):
    def __init__(self, schema: TableSchema, allowed_lateness: timedelta, clock: Clock) -> None:
        self._tier = schema.tiers[0] if schema.tiers else None
        self._lateness_us = allowed_lateness // _MICROSECOND
        stay = schema.readings_stay
        self._stay_us = None if stay is None else stay // _MICROSECOND
        self._clock = clock
        self._late_events = metrics.counter(metrics.LATE_EVENTS)
        self._expired_events = metrics.counter(metrics.EXPIRED_EVENTS)

    def start_bundle(self) -> None:
        self._recorded: set[tuple[str, int]] = set()

    def process(self, element: Event) -> Iterator[Row]:
        time_us, now_us = element.event_time_us, int(self._clock() * 1_000_000)
        if self._stay_us is not None and time_us < now_us - self._stay_us:
            self._expired_events.inc()
        if self._tier is None:
            return
        window = self._tier.window
        start_us = window.start_of(time_us)
        if start_us + window.length_us + self._lateness_us >= now_us:
            return
        self._late_events.inc()
        if (element.sensor_id, start_us) not in self._recorded:
            self._recorded.add((element.sensor_id, start_us))
            yield work_row(self._tier, element.sensor_id, start_us)
