"""The input of an estimate: a fleet of sensors, its events, and the table that stores them."""

from dataclasses import dataclass
from typing import Literal

from pipeline.core.panes.firing import Aggregation, FiringRules
from pipeline.core.schema.rate import Rate
from pipeline.core.schema.table_schema import TableSchema

START_US = 1_771_286_400_000_000
"""A midnight, at which the estimated events begin."""

MAX_SENSORS = 100_000_000

LATE_FIRING_US = 60_000_000
"""The default of the job's ``--late-firing``."""

LEAST_BILLED_BYTES = 1000
"""What Pub/Sub counts for a request at least."""

OVERHEAD_BYTES = 20 + 16
"""What it adds to a message for its timestamp, and for the text of its id."""


@dataclass(frozen=True)
class Workload:
    """A fleet and its table. Names, ids and metadata take 16 bytes each, as in ``pipeline.core.schema.sizing``.

    Args:
        schema: the table's schema.
        sensors: the number of sensors.
        every_us: µs from one event of a sensor to the next.
        metrics: the names of an event's readings.
        metadata: the names of an event's metadata fields, with those in the row key.
        batch: events in a message.
        early_us: the job's ``--early-firing`` in µs; zero for no early panes.
        lateness_us: the job's ``--allowed-lateness`` in µs.
        newest_us: the job's ``--newest-every`` in µs.
        bulk: whether the job's ``--bigtable-writer`` is ``bulk``.
        ssd: whether nodes have SSD; otherwise HDD.
        rollup_groups: the number of groups of each roll-up by metadata.
        late: the share of events that come after their window has closed, by up to a day.
        results: the job's ``--results``; None if it has no ``--results-topic``.
    """

    schema: TableSchema
    sensors: int
    every_us: int
    metrics: tuple[str, ...]
    metadata: tuple[str, ...] = ()
    batch: int = 100
    early_us: int = 300_000_000
    lateness_us: int = 600_000_000
    newest_us: int = 0
    bulk: bool = False
    ssd: bool = True
    rollup_groups: int = 100
    late: float = 0.0
    results: Literal["final", "all"] | None = None

    @property
    def events_per_second(self) -> float:
        """The events of all sensors together."""
        return self.sensors * 1_000_000 / self.every_us

    @property
    def rate(self) -> Rate:
        """The rate and the number of the sensors, as a schema declares them."""
        return Rate(self.every_us, len(self.metrics), len(self.metadata), sensors=self.sensors)

    @property
    def aggregation(self) -> Aggregation:
        """The job's settings for windows, of which the table has some."""
        tiers = self.schema.tiers
        firing = FiringRules(tiers[0].window, self.early_us, LATE_FIRING_US, self.lateness_us)
        return Aggregation(tiers, firing, latest=self.schema.latest)


def names(kind: str, count: int) -> tuple[str, ...]:
    """Returns ``count`` generated names of 16 bytes."""
    return tuple(f"{kind}_{number:0{15 - len(kind)}}" for number in range(count))


@dataclass(frozen=True)
class Messages:
    """The messages of a fleet.

    Attributes:
        batch: events in a message.
        per_second: messages of all sensors in a second.
        bytes: the mean size of a message's data.
        added_bytes: the bytes that Pub/Sub counts beside a message's data: its attributes, time and id.
        billed_bytes: the bytes that Pub/Sub counts for publishing a message, and again for delivering it.
        bytes_per_second: bytes of all data in a second.
        billed_per_second: bytes that Pub/Sub counts in a second for publishing and delivering each message once.
    """

    batch: int
    per_second: float
    bytes: float
    added_bytes: float
    billed_bytes: float
    bytes_per_second: float
    billed_per_second: float


@dataclass(frozen=True)
class Writes:
    """Rows, cells (a mutation each) and encoded bytes written in a second."""

    rows: float
    cells: float
    bytes: float


def billed_bytes(size: float) -> float:
    """Returns the bytes that Pub/Sub counts for a message, alone in its request, with so many of data and attributes.

    It adds 20 bytes for the timestamp and the message's id, and counts 1,000 at least: cloud.google.com/pubsub/pricing
    """
    return max(LEAST_BILLED_BYTES, size + OVERHEAD_BYTES)
