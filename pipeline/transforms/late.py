"""Finds events that are too late for their window or their table, and puts the windows on the work list."""

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
# How long a decoded event may take to reach its window behind a backlog: a part of the allowed lateness, within limits.
_MARGIN = 1 / 24
_LEAST_MARGIN, _MOST_MARGIN = timedelta(minutes=20), timedelta(hours=6)


class LateWindows:
    """Finds the windows of a table that may have missed an event, and counts such events. Part of a DoFn: it pickles.

    Beam silently drops an event once the watermark is past the end of its window by the allowed lateness. A window is
    recorded if that may happen before the event reaches it, with the watermark ``ahead`` of the clock and a margin for
    the way. A repair may find a recorded window to be right.

    The margin is for late events: an event that is not late holds the watermark back until it is in its window,
    however long that takes.

    Counts the events whose allowed lateness is over, and those that are older than the policy of their family.

    Args:
        schema: of the table.
        allowed_lateness: of its shortest windows.
        ahead: how far the watermark may be ahead of the clock.
    """

    def __init__(self, schema: TableSchema, allowed_lateness: timedelta, ahead: timedelta) -> None:
        self._tier = schema.tiers[0] if schema.tiers else None
        self._schema = schema
        self._lateness_us = allowed_lateness // _MICROSECOND
        margin = max(_LEAST_MARGIN, min(allowed_lateness * _MARGIN, _MOST_MARGIN))
        self._margin_us = (margin + ahead) // _MICROSECOND
        self._expiry = Expiry.of(schema, schema.policies)
        ages_us = [self._expiry.shortest_us, self._lateness_us - self._margin_us if self._tier else None]
        # No event up to this age is too late or expired, wherever it lies in its window.
        self._safe_age_us = min((age_us for age_us in ages_us if age_us is not None), default=None)
        self._late_events = metrics.counter(metrics.LATE_EVENTS)
        self._expired_events = metrics.counter(metrics.EXPIRED_EVENTS)
        self.start()

    def start(self) -> None:
        """Begins a bundle. Each window is recorded once in a bundle."""
        self._recorded: set[tuple[str, int]] = set()

    def inspect(self, events: Iterable[Event], now_us: int) -> None:
        """Counts the events that are too late, and records their windows. Takes at least one event."""
        earliest_us = min([event[1] for event in events])
        if self._safe_age_us is None or now_us - earliest_us <= self._safe_age_us:
            return  # nearly always
        shortest_us = self._expiry.shortest_us
        if shortest_us is not None and earliest_us < now_us - shortest_us:
            expires = self._expiry.expires
            self._expired_events.inc(sum(expires(event.event_time_us, event.readings, now_us) for event in events))
        if self._tier is None:
            return
        window = self._tier.window
        for sensor_id, time_us, *_ in events:
            start_us = window.start_of(time_us)
            left_us = start_us + window.length_us + self._lateness_us - now_us  # for which the window accepts events
            if left_us < 0:
                self._late_events.inc()
            if left_us < self._margin_us:
                self._recorded.add((sensor_id, start_us))

    def take(self) -> EncodedRows:
        """Returns rows of the table's work list for the windows that the bundle has recorded."""
        recorded, self._recorded = self._recorded, set()
        return encoded_work_rows(self._schema.tiers[0], sorted(recorded)) if recorded else EncodedRows()


class ListWindows(beam.PTransform):
    """Formats ``(sensor_id, start in µs)`` of windows as ``EncodedRows`` of the table's work list.

    A longer window is listed as the first window of the shortest tier in it: a repair checks all tiers.
    """

    def __init__(self, schema: TableSchema) -> None:
        super().__init__()
        self._schema = schema

    def expand(self, windows: PCollection) -> PCollection:
        return (
            windows
            | "ToRows" >> beam.Map(_work_rows, self._schema).with_output_types(EncodedRows)
            | "OfNoWindow" >> beam.WindowInto(GlobalWindows())  # like the raw rows that are written with them
        )


def _work_rows(element: tuple[str, int], schema: TableSchema) -> EncodedRows:
    return encoded_work_rows(schema.tiers[0], [element])
