"""Events that come too late: for their window, or for their table."""

from collections.abc import Iterable
from datetime import timedelta

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows

from pipeline.core.events import Event
from pipeline.core.rows import EncodedRows
from pipeline.core.schema.expiry import Expiry
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.work_list import encoded_work_rows
from pipeline.transforms import metrics

_MICROSECOND = timedelta(microseconds=1)
# From decoding a late event to having it in its window, behind a backlog: a part of the allowed lateness, within these.
_SPARE = 1 / 24
_LEAST_SPARE, _MOST_SPARE = timedelta(minutes=20), timedelta(hours=6)


class LateWindows:
    """Finds the windows of a table that may have missed an event, and counts such events. Part of a DoFn: it pickles.

    Beam drops an event from its window once the watermark has passed the window's end and the allowed lateness, and
    tells nobody. These are the windows whose lateness is over by a clock that is ``ahead`` of ours, or will be before
    the event can have come to its window; some of them, a repair finds right. Counts the events whose lateness is
    over, and those that are older than the policy of their family.

    An event that is not late holds the watermark back until it is in its window, however long that takes; one that is
    late does not, and has the spare time to get there.

    Args:
        schema: of the table.
        allowed_lateness: of its shortest windows.
        ahead: how far the watermark may be ahead of the clock.
    """

    def __init__(self, schema: TableSchema, allowed_lateness: timedelta, ahead: timedelta) -> None:
        self._tier = schema.tiers[0] if schema.tiers else None
        self._schema = schema
        self._lateness_us = allowed_lateness // _MICROSECOND
        spare = max(_LEAST_SPARE, min(allowed_lateness * _SPARE, _MOST_SPARE))
        self._spare_us = (spare + ahead) // _MICROSECOND
        self._expiry = Expiry.of(schema, schema.policies)
        spans_us = [self._expiry.shortest_us, self._lateness_us - self._spare_us if self._tier else None]
        # An event that is no older is neither too late nor expired, in whichever part of its window it is.
        self._young_us = min((span_us for span_us in spans_us if span_us is not None), default=None)
        self._late_events = metrics.counter(metrics.LATE_EVENTS)
        self._expired_events = metrics.counter(metrics.EXPIRED_EVENTS)
        self.start()

    def start(self) -> None:
        """Begins a bundle, in which each window is recorded once."""
        self._recorded: set[tuple[str, int]] = set()

    def inspect(self, events: Iterable[Event], now_us: int) -> None:
        """Counts those of the events, of one at least, that are too late, and records their windows."""
        earliest_us = min([event[1] for event in events])
        if self._young_us is None or now_us - earliest_us <= self._young_us:
            return  # as nearly always
        stay_us = self._expiry.shortest_us
        if stay_us is not None and earliest_us < now_us - stay_us:
            expires = self._expiry.expires
            self._expired_events.inc(sum(expires(event.event_time_us, event.readings, now_us) for event in events))
        if self._tier is None:
            return
        window = self._tier.window
        for sensor_id, time_us, *_ in events:
            start_us = window.start_of(time_us)
            left_us = start_us + window.length_us + self._lateness_us - now_us  # while the window takes events
            if left_us < 0:
                self._late_events.inc()
            if left_us < self._spare_us:
                self._recorded.add((sensor_id, start_us))

    def take(self) -> EncodedRows:
        """Rows of the table's work list for the windows that the bundle has recorded."""
        recorded, self._recorded = self._recorded, set()
        return encoded_work_rows(self._schema.tiers[0], sorted(recorded)) if recorded else EncodedRows()


class ListWindows(beam.PTransform):
    """``(sensor_id, start in µs)`` of windows to ``EncodedRows`` of the table's work list.

    Of a longer window its first one of the shortest tier is listed: a repair looks at all of them.
    """

    def __init__(self, schema: TableSchema) -> None:
        super().__init__()
        self._schema = schema

    def expand(self, windows: PCollection) -> PCollection:
        return (
            windows
            | "ToRows" >> beam.Map(_work_rows, self._schema).with_output_types(EncodedRows)
            | "OfNoWindow" >> beam.WindowInto(GlobalWindows())  # as other rows are that are written with them
        )


def _work_rows(element: tuple[str, int], schema: TableSchema) -> EncodedRows:
    return encoded_work_rows(schema.tiers[0], [element])
