"""Estimates the messages of a fleet, the work and the writes of its job, and the storage in Bigtable."""

import math
from dataclasses import dataclass
from itertools import takewhile

from pipeline.core.schema.gc_policies import collected_after, counts_versions
from pipeline.core.schema.key_tokens import (
    MetadataToken,
    MetricToken,
    SaltToken,
    SensorToken,
    ShardToken,
    TimeToken,
)
from pipeline.core.schema.table_schema import Tier
from pipeline.plan.sizes import RowSize, aggregate_size, latest_size, message_bytes, raw_size, window_events, window_us
from pipeline.plan.workload import Workload

_CPU_S = {True: (20.62, 34.86), False: (46.06, 56.97)}
"""CPU seconds for a million events of three metrics, with a hundred in a message and with one, by whether the writer
is bulk: the medians of ``bulk``, ``bulk_single``, ``connector`` and ``connector_single`` in
tests/benchmarks/bench/result.json.
"""
_ON_DATAFLOW = 2  # docs/performance.md assumes that a worker's other work costs as much again
_WRITES_PER_NODE = {True: 14_000, False: 10_000}  # rows of 1 KB a second, SSD and HDD
_NODE_BYTES = {True: 5 * 10**12, False: 16 * 10**12}
_UTILIZATION = 70  # percent
_PACKED_EVENTS = 256
_LEAST_BILLED_BYTES = 1000
_OVERHEAD_BYTES = 20 + 16  # a message's timestamp, and the text of its id

TABLETS = 100
"""The number of tablets over which :func:`hottest_share` spreads the writes."""


@dataclass(frozen=True)
class Messages:
    """The messages of a fleet.

    Attributes:
        batch: events in a message.
        per_second: messages of all sensors in a second.
        bytes: the mean size of a message's data.
        bytes_per_second: bytes of all data in a second.
        billed_per_second: bytes that Pub/Sub counts in a second for publishing and delivering each message once.
    """

    batch: int
    per_second: float
    bytes: float
    bytes_per_second: float
    billed_per_second: float


@dataclass(frozen=True)
class Writes:
    """Rows, cells (a mutation each) and encoded bytes written in a second."""

    rows: float
    cells: float
    bytes: float


@dataclass(frozen=True)
class Estimate:
    """All figures.

    Attributes:
        events_per_second: events of all sensors in a second.
        messages: messages of one event, and messages of the fleet's batch.
        vcpus: busy vCPUs of Dataflow's workers, computed from CPU time that was measured elsewhere.
        raw: writes of raw rows.
        tiers: writes of aggregate rows, by window.
        nodes_for_writes: Bigtable nodes that take the writes.
        nodes_for_storage: Bigtable nodes that hold the storage; None if it grows without end.
        storage: bytes by family, after collection; None if nothing is ever collected.
        growth: bytes a day by family, before collection.
        state_bytes: bytes of state of all open windows.
        hottest_tablet: the share of raw writes that go to the hottest tablet; see :func:`hottest_share`.
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
        """The number of nodes that serve both writes and storage."""
        return max(self.nodes_for_writes, self.nodes_for_storage or 1)


def estimate_of(workload: Workload) -> Estimate:
    """Returns all figures, in a time that does not depend on the number of sensors."""
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
    """Returns the messages in and out of Pub/Sub, each in a request of its own.

    A request is billed for its data and attributes, 20 bytes for the timestamp, and the message's id, but for at least
    1,000 bytes: cloud.google.com/pubsub/pricing. Attributes are those of ``pipeline.core.events.publishing``.
    """
    per_second = workload.events_per_second / batch
    size = message_bytes(workload, batch)
    attributes = len("message_type") + len("SensorEvent" if batch == 1 else "SensorEventBatch")
    attributes += len("event_id") + 32 + len("event_time") + len("2026-02-17T10:30:00.123456Z")
    billed = max(_LEAST_BILLED_BYTES, size + attributes + _OVERHEAD_BYTES)
    return Messages(batch, per_second, size, per_second * size, 2 * per_second * billed)


def vcpus(workload: Workload) -> float:
    """Returns the number of fully busy vCPUs: measured CPU time, times two for Dataflow's own work.

    Events share their message's cost, so the cost of an event falls with 1/batch, between those measured with one event
    in a message and with a hundred. Measured with three metrics; docs/performance.md tells what that leaves out.
    """
    of_hundred, of_one = _CPU_S[workload.bulk]
    share = (1 / workload.batch - 0.01) / 0.99
    return workload.events_per_second / 1_000_000 * (of_hundred + (of_one - of_hundred) * share) * _ON_DATAFLOW


def raw_writes(workload: Workload) -> Writes:
    """Returns the writes of raw rows: an event's rows, times events a second."""
    return _writes(raw_size(workload), workload.events_per_second)


def _writes(size: RowSize, rate: float) -> Writes:
    return Writes(size.rows * rate, size.cells * rate, size.encoded * rate)


def panes(workload: Workload, tier: Tier) -> float:
    """Returns how often the row of a sensor's window is written if no event is late.

    Without early firing, once. With early firing, a row of the shortest tier is written once for each --early_firing in
    which an event came, and a row of a longer tier with each pane of a shorter window in it.
    tests/benchmarks/amplification.py measures both.
    """
    if not workload.early_us:
        return 1.0
    shortest = workload.schema.tiers[0]
    of_shortest = min(window_events(workload, shortest), math.ceil(window_us(shortest) / workload.early_us))
    return of_shortest * max(1.0, window_us(tier) / max(window_us(shortest), workload.every_us))


def windows_per_second(workload: Workload, tier: Tier) -> float:
    """Returns the number of windows of all sensors that begin in a second and get an event."""
    return workload.sensors * 1_000_000 / max(window_us(tier), workload.every_us)


def tier_writes(workload: Workload) -> dict[str, Writes]:
    """Returns the writes of aggregate rows by window: windows a second, times panes, times the row.

    A sensor's row of newest readings is written with each pane of the shortest tier.
    """
    tiers, latest = workload.schema.tiers, workload.schema.latest
    rates = [windows_per_second(workload, tier) * panes(workload, tier) for tier in tiers]
    found = {
        tier.window.text: _writes(aggregate_size(workload, tier), rate) for tier, rate in zip(tiers, rates, strict=True)
    }
    if latest is not None and rates:
        found["newest readings"] = _writes(latest_size(workload, latest), rates[0])
    return found


def nodes_for_writes(workload: Workload, writes: list[Writes]) -> int:
    """Returns the number of nodes that take the writes at 70 % of their CPU.

    A node takes 14,000 rows of 1 KB a second on SSD and 10,000 on HDD: cloud.google.com/bigtable/docs/performance. The
    limit of 70 % is that of one cluster: cloud.google.com/bigtable/docs/monitoring-instance. A larger row counts as
    several of 1 KB.
    """
    rows = sum(max(each.rows, each.bytes / 1000) for each in writes)
    return max(1, math.ceil(rows * 100 / (_WRITES_PER_NODE[workload.ssd] * _UTILIZATION)))


def stored_per_day(workload: Workload) -> dict[str, float]:
    """Returns the bytes by family that a day's raw rows and aggregate rows add."""
    found = dict.fromkeys(workload.schema.families, 0.0)
    for family, size in raw_size(workload).stored.items():
        found[family] += size * workload.events_per_second * 86_400
    for tier in workload.schema.tiers:
        windows = windows_per_second(workload, tier) * 86_400
        for family, size in aggregate_size(workload, tier).stored.items():
            found[family] += size * windows
    return found


def _kept(workload: Workload, family: str, per_day: float) -> float | None:
    """Returns the bytes that remain after collection: a day's growth, times the days of the policy's maximal age.

    Leaves out what Bigtable may collect and has not yet, for up to a week:
    cloud.google.com/bigtable/docs/garbage-collection. Ignores limits on versions: a cell of one event has one version.
    """
    if family == workload.schema.latest:
        return workload.sensors * latest_size(workload, family).stored[family]  # a row a sensor, which is overwritten
    age = collected_after(workload.schema.policies[family])
    return None if age is None and per_day else per_day * (age.total_seconds() / 86_400 if age else 0)


def counts_versions_of(workload: Workload) -> list[str]:
    """Returns the families whose cells a limit on versions may collect sooner than estimated."""
    schema = workload.schema
    return [family for family, policy in schema.policies.items() if family != schema.latest and counts_versions(policy)]


def hottest_share(workload: Workload) -> float:
    """Returns the share of raw writes that go to the hottest of a hundred tablets of equal size, from 0 to 1.

    A tablet holds contiguous keys, and Bigtable splits tablets as they grow: Chang et al., "Bigtable: A Distributed
    Storage System for Structured Data" (OSDI 2006), section 5.1. The newest keys share their time, so the tokens before
    the time spread them over as many places. A coarse time counts alike: a new day's keys are in one place at first.
    """
    places = 1
    for token in takewhile(lambda token: not isinstance(token, TimeToken), workload.schema.key.tokens):
        match token:
            case SensorToken() | MetadataToken():
                places = workload.sensors
                break
            case MetricToken():
                places *= len(workload.metrics)
            case SaltToken() | ShardToken():
                places *= len(token.values)
    return 1 / min(TABLETS, workload.sensors, places)


def state_bytes(workload: Workload) -> float:
    """Returns the bytes of one sensor's open windows: one that has ended, and the next until lateness has passed.

    Fitted to tests/benchmarks/state_size.py. With fewer than 256 events, a window takes 4.55 bytes for each event and
    8.07 for each reading; with more, packed, 1 and 0.8. Its statistics take 14 bytes, and 57 for each metric; those of
    a longer window 74 and 171, and 557 more if statistics are declared. docs/state.md has the measured table;
    ``sizing.state_problem`` computes an upper bound.
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
