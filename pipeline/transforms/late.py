"""Events that come too late: for their window, or for their table."""

from collections.abc import Iterable
from datetime import timedelta

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows

from pipeline.core.events import Event
from pipeline.core.mutation_bytes import encoded
from pipeline.core.rows import EncodedRows, Row
from pipeline.core.schema.expiry import Expiry
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.windows import Window
from pipeline.core.work_list import work_row
from pipeline.transforms import metrics

_MICROSECOND = timedelta(microseconds=1)
# From decoding an event to having it in its window, with a table on the way that may be away for as long as a read
# waits for it.
_SPARE_US = timedelta(minutes=20) // _MICROSECOND


class LateWindows:
    """Finds the windows of a table that may have missed an event, and counts such events. Part of a DoFn: it pickles.

    Beam drops an event from its window once the watermark has passed the window's end and the allowed lateness, and
    tells nobody. The watermark is never ahead of the clock: so these are the windows whose lateness is over by the
    clock, or will be before the event can have come to its window; some of them, a repair finds right. Counts the
    events whose lateness is over, and those that are older than the policy of their family.

    Args:
        schema: of the table.
        counted: the windows in which events are counted, of which those of the table are made.
        allowed_lateness: of these windows.
    """

    def __init__(self, schema: TableSchema, counted: Window, allowed_lateness: timedelta) -> None:
        self._tier = schema.tiers[0] if schema.tiers else None
        self._counted = counted
        self._lateness_us = allowed_lateness // _MICROSECOND
        self._expiry = Expiry.of(schema, schema.policies)
        spans_us = [self._expiry.shortest_us, self._lateness_us - _SPARE_US if self._tier else None]
        # An event that is no older is neither too late nor expired, in whichever part of its window it is.
        self._young_us = min((span_us for span_us in spans_us if span_us is not None), default=None)
        self._late_events = metrics.counter(metrics.LATE_EVENTS)
        self._expired_events = metrics.counter(metrics.EXPIRED_EVENTS)
        self.start()

    def start(self) -> None:
        """Begins a bundle, in which each window is recorded once."""
        self._recorded: set[tuple[str, int]] = set()

    def rows(self, events: Iterable[Event], now_us: int) -> list[Row]:
        """Rows of the table's work list for those events, of one at least, that are too late or may come to be."""
        earliest_us = min([event[1] for event in events])
        if self._young_us is None or now_us - earliest_us <= self._young_us:
            return []  # as nearly always
        stay_us = self._expiry.shortest_us
        if stay_us is not None and earliest_us < now_us - stay_us:
            expires = self._expiry.expires
            self._expired_events.inc(sum(expires(event.event_time_us, event.readings, now_us) for event in events))
        if self._tier is None:
            return []
        rows = []
        for sensor_id, time_us, *_ in events:
            left_us = self._left_us(time_us, now_us)
            if left_us < 0:
                self._late_events.inc()
            start_us = self._tier.window.start_of(time_us)
            if left_us < _SPARE_US and (sensor_id, start_us) not in self._recorded:
                self._recorded.add((sensor_id, start_us))
                rows.append(work_row(self._tier, sensor_id, start_us))
        return rows

    def _left_us(self, time_us: int, now_us: int) -> int:
        """For how long the window of that time still takes events, by the clock."""
        return self._counted.start_of(time_us) + self._counted.length_us + self._lateness_us - now_us


class ListWindows(beam.PTransform):
    """``(sensor_id, start in µs)`` of windows to ``EncodedRows`` of the table's work list.

    Args:
        tier: the table's shortest; of a longer window its first is listed, and a repair looks at all of them.
    """

    def __init__(self, tier: Tier) -> None:
        super().__init__()
        self._tier = tier

    def expand(self, windows: PCollection) -> PCollection:
        return (
            windows
            | "ToRows" >> beam.Map(_work_rows, self._tier).with_output_types(EncodedRows)
            | "OfNoWindow" >> beam.WindowInto(GlobalWindows())  # as other rows are that are written with them
        )


def _work_rows(element: tuple[str, int], tier: Tier) -> EncodedRows:
    sensor_id, start_us = element
    return EncodedRows([encoded(work_row(tier, sensor_id, tier.window.start_of(start_us)))])
