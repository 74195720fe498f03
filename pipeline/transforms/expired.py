"""Counts events that Bigtable collects soon after they are written."""

from collections.abc import Sequence

from pipeline.core.events.event import Event
from pipeline.core.schema.expiry import Expiry
from pipeline.core.schema.table_schema import TableSchema
from pipeline.transforms import metrics


class Expired:
    """Counts the events that are older than the policy of their family. Part of a DoFn: it pickles."""

    def __init__(self, schema: TableSchema) -> None:
        self._expiry = Expiry.of(schema, schema.policies)
        self._events = metrics.counter(metrics.EXPIRED_EVENTS)

    def count(self, events: Sequence[Event], now_us: int) -> None:
        """Counts those of some events. Takes at least one event."""
        shortest_us = self._expiry.shortest_us
        if shortest_us is not None and min([event[1] for event in events]) < now_us - shortest_us:
            expires = self._expiry.expires
            self._events.inc(
                sum(expires(event.event_time_us, event.readings, now_us, event.metadata) for event in events)
            )
