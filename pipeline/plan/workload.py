"""What a plan is made for: a fleet of sensors, its events, and the table that stores them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from pipeline.core.events.event import Event
from pipeline.core.schema.key_tokens import EventIdToken
from pipeline.core.schema.table_schema import TableSchema

START_US = 1_771_286_400_000_000  # of generated events: midnight
MAX_SENSORS = 100_000_000


@dataclass(frozen=True)
class Workload:
    """A fleet and its table. Generated names, ids and metadata have the 16 bytes of ``pipeline.core.schema.sizing``.

    Args:
        schema: the table's.
        sensors: how many there are.
        every_us: µs from one event of a sensor to the next.
        metrics: the names of an event's readings.
        metadata: the names of its metadata fields, with those in the row key.
        batch: events in a message.
        early_us: ``--early_firing`` of the job; zero for no early panes.
        lateness_us: its ``--allowed_lateness``.
        bulk: whether ``--bigtable_writer`` is ``bulk``.
        ssd: whether nodes have SSD; otherwise HDD.
    """

    schema: TableSchema
    sensors: int
    every_us: int
    metrics: tuple[str, ...]
    metadata: tuple[str, ...] = ()
    batch: int = 100
    early_us: int = 300_000_000
    lateness_us: int = 600_000_000
    bulk: bool = False
    ssd: bool = True

    @property
    def events_per_second(self) -> float:
        """The events of all sensors together."""
        return self.sensors * 1_000_000 / self.every_us

    @cached_property
    def has_event_id(self) -> bool:
        """Whether events have ids: only where row keys contain them."""
        return self.schema.key.has(EventIdToken)

    def event(self, sensor: int, time_us: int, values: Iterator[float]) -> Event:
        """Returns an event of a sensor, by its number, with the next of the values as readings."""
        return Event(
            f"sensor-{sensor:09}",
            time_us,
            {name: next(values) for name in self.metrics},
            dict.fromkeys(self.metadata, f"value_{sensor:010}"),
            f"event_{time_us % 10**10:010}" if self.has_event_id else "",
        )


def names(kind: str, count: int) -> tuple[str, ...]:
    """Returns so many generated names of 16 bytes."""
    return tuple(f"{kind}_{number:0{15 - len(kind)}}" for number in range(count))
