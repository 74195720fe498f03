"""The arithmetic of a plan: what a fleet sends, what the job computes and writes, and what Bigtable stores."""

import math
from dataclasses import dataclass

from pipeline.core.schema.gc_policies import collected_after, counts_versions
from pipeline.core.schema.table_schema import Tier
from pipeline.plan.hotspot import hottest_share
from pipeline.plan.sizes import aggregate_size, latest_size, message_bytes, raw_size, window_events, window_us
from pipeline.plan.workload import Workload

_CPU_S = {True: (20.62, 34.86), False: (46.06, 56.97)}
"""CPU seconds for a million events of three metrics, a hundred in a message and one, by whether the writer is bulk:
the medians of ``bulk``, ``bulk_single``, ``connector`` and ``connector_single`` in tests/benchmarks/bench/result.json.
"""
_ON_DATAFLOW = 2  # assumed in docs/performance.md: a worker's other work costs as much again
_WRITES_PER_NODE = {True: 14_000, False: 10_000}  # rows of 1 KB a second, SSD and HDD
_NODE_BYTES = {True: 5 * 10**12, False: 16 * 10**12}
_UTILIZATION = 70  # percent
_PACKED_EVENTS = 256
_LEAST_BILLED_BYTES = 1000
_OVERHEAD_BYTES = 20 + 16  # of a message: its timestamp, and the text of its id


@dataclass(frozen=True)
class Messages:
    """Messages of so many events, a second.

    Attributes:
        batch: events in a message.
        per_second: messages of all sensors.
        bytes: the mean size of a message's data.
        bytes_per_second: of the data of all.
        billed_per_second: bytes that Pub/Sub counts for publishing and delivering them once each.
    """

    batch: int
    per_second: float
    bytes: float
    bytes_per_second: float
    billed_per_second: float


@dataclass(frozen=True)
class Writes:
    """Rows, cells (each is a mutation) and encoded bytes that are written in a second."""

    rows: float
    cells: float
    bytes: float


@dataclass(frozen=True)
class Estimate:
    """The figures of a plan.

    Attributes:
        events_per_second: of all sensors.
        messages: one event a message, then those of the plan.
        vcpus: busy vCPUs of Dataflow's workers; reckoned, not measured there.
        raw: writes of raw rows.
        tiers: writes of aggregate rows, by window.
        nodes_for_writes: of Bigtable.
        nodes_for_storage: None if storage grows without end.
        storage: bytes by family, after collection; None if nothing is ever collected.
        growth: bytes a day by family, before collection.
        state_bytes: of all open windows.
        hottest_tablet: share of raw writes.
    """

    events_per_second: float
    messages: tuple[Messages, Messages]
    vcpus: float
    raw: Writes
    tiers: dict[str, Writes]
    nodes_for_writes: int
    nodes_for_storage: int | None
    storage: dict[str, float | None]
    growth: dict[str, float]
    state_bytes: float
    hottest_tablet: float

    @property
    def nodes(self) -> int:
        """The nodes that serve both writes and storage."""
        return max(self.nodes_for_writes, self.nodes_for_storage or 1)


def estimate_of(workload: Workload) -> Estimate:
    """Returns all figures. Takes as long for 10^8 sensors as for a thousand."""
    raw, tiers = raw_writes(workload), tier_writes(workload)
    growth = stored_per_day(workload)
    storage = {family: _kept(workload, family, growth[family]) for family in growth}
    known = [size for size in storage.values() if size is not None]
    per_node = _NODE_BYTES[workload.ssd] * _UTILIZATION / 100
    return Estimate(
        events_per_second=workload.events_per_second,
        messages=(messages(workload, 1), messages(workload, workload.batch)),
        vcpus=vcpus(workload),
        raw=raw,
        tiers=tiers,
        nodes_for_writes=nodes_for_writes(workload, [raw, *tiers.values()]),
        nodes_for_storage=max(1, math.ceil(sum(known) / per_node)) if len(known) == len(storage) else None,
        storage=storage,
        growth=growth,
        state_bytes=workload.sensors * state_bytes(workload),
        hottest_tablet=hottest_share(workload),
    )


def messages(workload: Workload, batch: int) -> Messages:
    """Returns the messages, one in a request, in and out of Pub/Sub.

    It counts data, attributes, 20 bytes for the timestamp and the message's id, at least 1,000 bytes a request:
    cloud.google.com/pubsub/pricing. Attributes are those of ``pipeline.core.events.publishing``.
    """
    per_second = workload.events_per_second / batch
    size = message_bytes(workload, batch)
    attributes = len("message_type") + len("SensorEvent" if batch == 1 else "SensorEventBatch")
    attributes += len("event_id") + 32 + len("event_time") + len("2026-02-17T10:30:00.123456Z")
    billed = max(_LEAST_BILLED_BYTES, size + attributes + _OVERHEAD_BYTES)
    return Messages(batch, per_second, size, per_second * size, 2 * per_second * billed)


def vcpus(workload: Workload) -> float:
    """Returns the vCPUs that are busy, of 100 % each: measured CPU time, times two for Dataflow's own work.

    An event costs a part of its message's, so that the cost falls with 1/batch between what was measured with one
    event and with a hundred. Measured with three metrics; docs/performance.md says what it leaves out.
    """
    of_hundred, of_one = _CPU_S[workload.bulk]
    share = (1 / workload.batch - 0.01) / 0.99
    return workload.events_per_second / 1_000_000 * (of_hundred + (of_one - of_hundred) * share) * _ON_DATAFLOW


def raw_writes(workload: Workload) -> Writes:
    """Returns the writes of raw rows: those of an event, times events a second."""
    size, rate = raw_size(workload), workload.events_per_second
    return Writes(size.rows * rate, size.cells * rate, size.encoded * rate)


def panes(workload: Workload, tier: Tier) -> float:
    """Returns how often the row of a sensor's window is written, if no event is late.

    As tests/benchmarks/amplification.py measures. In the shortest tier: once for each --early_firing in which
    something came, at most once for each event; once without early firing. A longer tier's row is written with each
    pane of a shorter one in it; once without early firing.
    """
    if not workload.early_us:
        return 1.0
    shortest = workload.schema.tiers[0]
    of_shortest = min(window_events(workload, shortest), math.ceil(window_us(shortest) / workload.early_us))
    return of_shortest * max(1.0, window_us(tier) / max(window_us(shortest), workload.every_us))


def windows_per_second(workload: Workload, tier: Tier) -> float:
    """Returns the windows of all sensors that begin in a second and get an event."""
    return workload.sensors * 1_000_000 / max(window_us(tier), workload.every_us)


def tier_writes(workload: Workload) -> dict[str, Writes]:
    """Returns the writes of aggregate rows by window: windows a second, times panes, times the row.

    A sensor's row of newest readings is written with each pane of the shortest tier.
    """
    found = {}
    for tier in workload.schema.tiers:
        size = aggregate_size(workload, tier)
        rate = windows_per_second(workload, tier) * panes(workload, tier)
        found[tier.window.text] = Writes(rate, size.cells * rate, size.encoded * rate)
    family = workload.schema.latest
    if family is not None and workload.schema.tiers:
        shortest = workload.schema.tiers[0]
        size, rate = latest_size(workload, family), windows_per_second(workload, shortest) * panes(workload, shortest)
        found["newest readings"] = Writes(rate, size.cells * rate, size.encoded * rate)
    return found


def nodes_for_writes(workload: Workload, writes: list[Writes]) -> int:
    """Returns the nodes that take the writes with their CPU at 70 %.

    A node takes 14,000 rows of 1 KB a second on SSD and 10,000 on HDD, cloud.google.com/bigtable/docs/performance; at
    most 70 % average CPU in one cluster, cloud.google.com/bigtable/docs/monitoring-instance. Larger rows count as so
    many of 1 KB.
    """
    rows = sum(max(each.rows, each.bytes / 1000) for each in writes)
    return max(1, math.ceil(rows * 100 / (_WRITES_PER_NODE[workload.ssd] * _UTILIZATION)))


def stored_per_day(workload: Workload) -> dict[str, float]:
    """Returns the bytes by family that a day adds: raw rows, and one aggregate row for each window."""
    found = dict.fromkeys(workload.schema.families, 0.0)
    for family, size in raw_size(workload).stored.items():
        found[family] += size * workload.events_per_second * 86_400
    for tier in workload.schema.tiers:
        windows = windows_per_second(workload, tier) * 86_400
        for family, size in aggregate_size(workload, tier).stored.items():
            found[family] += size * windows
    return found


def _kept(workload: Workload, family: str, per_day: float) -> float | None:
    """Returns the bytes that remain after collection: a day's, times the days of the policy's maximal age.

    Bigtable takes up to a week to remove what may be collected, which comes on top:
    cloud.google.com/bigtable/docs/garbage-collection. A node stores 5 TB on SSD and 16 TB on HDD, of which 70 % should
    be used: cloud.google.com/bigtable/quotas and …/docs/monitoring-instance. Versions count where each cell has one
    event only: there none is ever collected.
    """
    if family == workload.schema.latest:
        return workload.sensors * latest_size(workload, family).stored[family]  # one row a sensor, written over
    age = collected_after(workload.schema.policies[family])
    return None if age is None and per_day else per_day * (age.total_seconds() / 86_400 if age else 0)


def counts_versions_of(workload: Workload) -> list[str]:
    """Returns the families of which versions may be collected sooner than this plan says."""
    schema = workload.schema
    return [family for family, policy in schema.policies.items() if family != schema.latest and counts_versions(policy)]


def state_bytes(workload: Workload) -> float:
    """Returns the bytes of one sensor's open windows, at the end of one: with the next, until lateness has passed.

    Fitted to tests/benchmarks/state_size.py. With fewer than 256 events: 4.55 bytes for each and 8.07 for a reading;
    packed: 1 and 0.8. Statistics take 14 bytes and 57 for each metric; a longer window 74 and 171, and 557 more with
    declared statistics. docs/guarantees.md has the measured table; ``sizing.state_problem`` has the most it can be.
    """
    tiers, metrics = workload.schema.tiers, len(workload.metrics)
    if not tiers:
        return 0.0

    def of_window(events: float) -> float:
        for_event, for_reading = (4.55, 8.07) if events < _PACKED_EVENTS else (1.0, 0.8)
        return events * (for_event + for_reading * metrics) + 14 + 57 * metrics

    length_us, events = window_us(tiers[0]), window_events(workload, tiers[0])
    share = min(1.0, workload.lateness_us / length_us)
    extra = 557 if workload.schema.statistics.has_parts else 0
    longer = (len(tiers) - 1) * (74 + (171 + extra) * metrics)
    opened = min(1.0, (length_us + workload.lateness_us) / max(length_us, workload.every_us))
    return opened * (of_window(events) + (of_window(events * share) if share else 0)) + longer
