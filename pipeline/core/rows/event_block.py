"""Events, or windows, of many sensors as columns, without an object for each of them."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from pipeline.core.rows.records import RawRecord

_T = TypeVar("_T")


class EventBlock:
    """Events of any sensors, column by column; or windows, each as an event whose readings are its statistics.

    Attributes:
        sensor_ids: the sensor of each event.
        times_us: the time of each event.
        event_ids: the id of each event; empty for an event without one.
        readings: the values of each metric, event by event; None where an event lacks the metric.
        metadata: the texts of each name of metadata, in the same way.
    """

    def __init__(self) -> None:
        self.sensor_ids: list[str] = []
        self.times_us: list[int] = []
        self.event_ids: list[str] = []
        self.readings: dict[str, list[float | None]] = {}
        self.metadata: dict[str, list[str | None]] = {}

    def __len__(self) -> int:
        return len(self.times_us)

    def add(self, record: RawRecord) -> None:
        """Adds an event."""
        _extend(self.readings, {metric: (value,) for metric, value in record.readings.items()}, len(self), 1)
        _extend(self.metadata, {name: (text,) for name, text in record.metadata.items()}, len(self), 1)
        self.sensor_ids.append(record.sensor_id)
        self.times_us.append(record.event_time_us)
        self.event_ids.append(record.event_id)

    def extend(
        self,
        sensor_ids: Sequence[str],
        times_us: Sequence[int],
        readings: Mapping[str, Sequence[float | None]],
        metadata: Mapping[str, Sequence[str | None]],
    ) -> None:
        """Adds events without ids; the sequences have an item for each event."""
        _extend(self.readings, readings, len(self), len(times_us))
        _extend(self.metadata, metadata, len(self), len(times_us))
        self.sensor_ids.extend(sensor_ids)
        self.times_us.extend(times_us)
        self.event_ids.extend([""] * len(times_us))

    def first(self, count: int) -> "EventBlock":
        """Returns the first events."""
        found = EventBlock()
        for record in islice(self.records(), count):
            found.add(record)
        return found

    def records(self) -> Iterator[RawRecord]:
        """Yields the events one by one."""
        readings, metadata = sorted(self.readings.items()), sorted(self.metadata.items())
        for n, (sensor_id, time_us, event_id) in enumerate(
            zip(self.sensor_ids, self.times_us, self.event_ids, strict=True)
        ):
            values = {metric: value for metric, column in readings if (value := column[n]) is not None}
            texts = {name: text for name, column in metadata if (text := column[n]) is not None}
            yield RawRecord(sensor_id, time_us, values, texts, event_id)


def _extend(
    columns: dict[str, list[_T | None]], more: Mapping[str, Sequence[_T | None]], length: int, count: int
) -> None:
    """Extends columns of a length by others of ``count`` items; a name that either lacks has None there."""
    for name, column in more.items():
        known = columns.get(name)
        if known is None:
            known = columns[name] = [None] * length
        known.extend(column)
    if len(more) < len(columns):
        for name, known in columns.items():
            if name not in more:
                known.extend([None] * count)
