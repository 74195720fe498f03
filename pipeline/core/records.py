"""The records that readers return: one event, and one window of one sensor."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from pipeline.core.windows import Window

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class RawRecord:
    """One event as stored in the table. Readings and metadata are sorted by name.

    The time is exact to the microsecond if row keys are, or if the table stores serialized events; otherwise to the
    millisecond.
    """

    sensor_id: str
    event_time_us: int
    readings: dict[str, float]
    metadata: dict[str, str] = field(default_factory=dict)
    event_id: str = ""  # empty unless the table stores it in row keys or in serialized events


def merge_parts(parts: Iterable[RawRecord], identity_of: Callable[[RawRecord], Hashable]) -> list[RawRecord]:
    """Merges the parts of each event, in the order of first parts. If two parts have the same entry, the first wins."""
    merged: dict[Hashable, RawRecord] = {}
    for part in parts:
        identity = identity_of(part)
        first = merged.get(identity)
        if first is None:
            merged[identity] = part
            continue
        merged[identity] = RawRecord(
            first.sensor_id,
            first.event_time_us,
            by_name(part.readings | first.readings),
            by_name(part.metadata | first.metadata),
            first.event_id or part.event_id,
        )
    return list(merged.values())


def by_name(values: dict[str, _Value]) -> dict[str, _Value]:
    """Returns the values sorted by name."""
    return dict(sorted(values.items())) if len(values) > 1 else values


def newest_first(record: RawRecord) -> int:
    """A sort key that puts the newest event first, across sensors."""
    return -record.event_time_us


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """The statistics of one metric in one window. A sum that overflowed is infinite; nothing is NaN."""

    count: int
    sum: float
    min: float
    max: float
    avg: float
    stddev: float


@dataclass(frozen=True, slots=True)
class AggregateRecord:
    """One window of one sensor, as stored in its aggregate row. Metrics are sorted by name."""

    sensor_id: str
    start_us: int
    window: Window
    reading_count: int
    metrics: dict[str, MetricSummary]
