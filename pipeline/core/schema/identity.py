"""Event identity: decides whether two messages, or two rows, contain the same event."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from pipeline.core.events.event import Event
from pipeline.core.rows.records import RawRecord, merge_parts


@dataclass(frozen=True)
class Identity:
    """The rule by which a table distinguishes the events of a sensor; aggregates count the same events.

    Two events are the same if they agree in their event time, floored to the grain, in the metadata fields of row keys,
    and, if row keys contain it, in the event_id.

    Args:
        grain_us: the grain of the event time, in microseconds.
        metadata: the names of the metadata fields in row keys.
        event_id: whether row keys contain the event_id.
    """

    grain_us: int = 1
    metadata: tuple[str, ...] = ()
    event_id: bool = False

    @cached_property
    def distinguishes_by_time_only(self) -> bool:
        """Whether only the time distinguishes the events of a sensor."""
        return not self.metadata and not self.event_id

    def of_event(self, event: Event) -> tuple[int, str]:
        """Returns the time in µs, floored to the grain, and the other distinguishing fields as one text."""
        time_us = event[1]
        return time_us - time_us % self.grain_us, self._distinguishing_text(event[3], event[4])

    def of_record(self, record: RawRecord) -> tuple[int, str]:
        """Does the same as :meth:`of_event` for an event that was read from the table."""
        time_us = record.event_time_us
        if self.distinguishes_by_time_only:
            return time_us - time_us % self.grain_us, ""
        return time_us - time_us % self.grain_us, self._distinguishing_text(record.metadata, record.event_id)

    def order(self, record: RawRecord) -> tuple[int, str]:
        """Returns the sort key that puts the events of one sensor newest first."""
        return -record.event_time_us, self._distinguishing_text(record.metadata, record.event_id)

    def merged(self, parts: Iterable[RawRecord]) -> list[RawRecord]:
        """Merges parts into events, newest first. If two parts contain the same reading, the first counts."""
        whole = merge_parts(parts, lambda part: (part.sensor_id, *self.of_record(part)))
        return sorted(whole, key=self.order)

    def _distinguishing_text(self, metadata: Mapping[str, str], event_id: str) -> str:
        texts = [metadata.get(name, "") for name in self.metadata]
        if self.event_id:
            texts.append(event_id)
        return "#".join(texts)  # no field of a key contains '#'


BY_TIME = Identity()
"""The identity of the default schema."""
