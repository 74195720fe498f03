"""What readers give back: one event, and one window of one sensor."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from pipeline.core.windows import Window

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class RawRecord:
    """One event, as the table has it. Readings and metadata are sorted by name.

    Its time is to the microsecond where row keys are, or where the event is serialized; else to the millisecond.
    """

    sensor_id: str
    event_time_us: int
    readings: dict[str, float]
    metadata: dict[str, str] = field(default_factory=dict)
    event_id: str = ""  # where the table keeps it: in its row keys, or with the serialized event


def merge_parts(parts: Iterable[RawRecord], identity_of: Callable[[RawRecord], Hashable]) -> list[RawRecord]:
    """Events made of their parts, in the order of their first; where two parts have the same, the first counts."""
    whole: dict[Hashable, RawRecord] = {}
    for part in parts:
        identity = identity_of(part)
        first = whole.get(identity)
        if first is None:
            whole[identity] = part
            continue
        whole[identity] = RawRecord(
            first.sensor_id,
            first.event_time_us,
            by_name(part.readings | first.readings),
            by_name(part.metadata | first.metadata),
            first.event_id or part.event_id,
        )
    return list(whole.values())


def by_name(values: dict[str, _Value]) -> dict[str, _Value]:
    """The same, sorted by name."""
    return dict(sorted(values.items())) if len(values) > 1 else values


def newest_first(record: RawRecord) -> int:
    """What events are sorted by, whosever they are."""
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
    """One window of one sensor, as its aggregate row has it. Metrics are sorted by name."""

    sensor_id: str
    start_us: int
    window: Window
    reading_count: int
    metrics: dict[str, MetricSummary]
