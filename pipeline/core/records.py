"""What readers give back: one event, and one window of one sensor."""

from dataclasses import dataclass, field

from pipeline.core.windows import Window


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
