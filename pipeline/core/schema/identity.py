"""What an event is: which messages, and which rows and cells, are one and the same."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from pipeline.core.events import Event
from pipeline.core.records import RawRecord, merge_parts


@dataclass(frozen=True)
class Identity:
    """What a table tells the events of a sensor apart by; aggregates count the same events.

    Two events are one where they agree in their time, floored to the grain, in the metadata that row keys are made of,
    and in the event_id where row keys have it.

    Args:
        grain_us: of the time, in microseconds.
        metadata: the names of metadata that is promoted to row keys.
        event_id: whether row keys have the event_id.
    """

    grain_us: int = 1
    metadata: tuple[str, ...] = ()
    event_id: bool = False

    @cached_property
    def distinguishes_by_time_only(self) -> bool:
        """Whether nothing but the time tells events of a sensor apart."""
        return not self.metadata and not self.event_id

    def of_event(self, event: Event) -> tuple[int, str]:
        """The time in µs, floored to the grain, and what else tells the event apart: "" where nothing does."""
        time_us = event[1]
        return time_us - time_us % self.grain_us, self._distinguishing_text(event[3], event[4])

    def of_record(self, record: RawRecord) -> tuple[int, str]:
        """The same of an event that was read back."""
        time_us = record.event_time_us
        return time_us - time_us % self.grain_us, self._distinguishing_text(record.metadata, record.event_id)

    def order(self, record: RawRecord) -> tuple[int, str]:
        """What events of one sensor are sorted by: the newest first."""
        return -record.event_time_us, self._distinguishing_text(record.metadata, record.event_id)

    def merged(self, parts: Iterable[RawRecord]) -> list[RawRecord]:
        """Events put together from their parts, the newest first; where two parts have the same, the first counts."""
        whole = merge_parts(parts, lambda part: (part.sensor_id, *self.of_record(part)))
        return sorted(whole, key=self.order)

    def _distinguishing_text(self, metadata: Mapping[str, str], event_id: str) -> str:
        texts = [metadata.get(name, "") for name in self.metadata]
        if self.event_id:
            texts.append(event_id)
        return "#".join(texts)  # which none of them holds, or it could not stand in a key


BY_TIME = Identity()
"""That of the default schema."""
