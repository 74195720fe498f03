"""Estimates the messages of a fleet, the work and the writes of its job, and the storage in Bigtable."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile

from pipeline.core.events.message import message_of, sensor_event
from pipeline.core.panes.group_sizes import GroupSizes, commit_problem, group_sizes, waiting_event_bytes
from pipeline.core.rows.rollup_rows import FAMILY
from pipeline.core.schema.key_tokens import (
    MetadataToken,
    MetricToken,
    SaltToken,
    SensorToken,
    ShardToken,
    TimeToken,
)
from pipeline.core.schema.sizing import rollup_problem, state_problem
from pipeline.core.schema.table_schema import Tier
from pipeline.plan.late import RAW_ROW_US, RESULT_US, Late, late_of, panes_of, results_of, rows_in
from pipeline.plan.machines import MachineType, OneMachine, between, one_machine, workers_for
from pipeline.plan.rollups import ROLLUPS, Rollups, rollups_of
from pipeline.plan.sizes import (
    UTILIZATION,
    YEARS,
    RowSize,
    aggregate_size,
    kept,
    latest_size,
    message_bytes,
    nodes_for_storage,
    raw_size,
    storage_after,
    stored_per_day,
    window_events,
    window_us,
    windows_per_second,
)
from pipeline.plan.workload import OVERHEAD_BYTES, START_US, Messages, Workload, Writes, billed_bytes

_CPU_S = {True: (20.62, 34.86), False: (46.06, 56.97)}
"""CPU seconds for a million events of three metrics, with a hundred in a message and with one, by whether the writer
is bulk: the medians of ``bulk``, ``bulk_single``, ``connector`` and ``connector_single`` in
benchmarks/bench/result.json.
"""
_PANE_US, _UNCHANGED_US = 100, 8
"""CPU time in µs of a sensor in a firing, measured with the job's own classes and three metrics: of a pane, and of a
sensor to which nothing came, whose window is read and written with the others of its group.
"""
_ROW_US, _NEWEST_ROW_US = 26, 18  # CPU time of a row with three metrics, through the connector
_RESTORED_US = 80  # CPU time of a window that a restart reads, without its rows
_RESTORED_TOGETHER, _PAGE_ROWS = 200, 1000  # windows, each with two requests, and rows of a request
_ON_DATAFLOW = 2  # docs/throughput.md assumes that a worker's other work costs as much again
_WRITES_PER_NODE = {True: 14_000, False: 10_000}  # rows of 1 KB a second, SSD and HDD

NEWEST = "newest readings"
"""The name of the writes of newest readings, beside those of the tiers."""

TABLETS = 100
"""The number of tablets over which :func:`hottest_share` spreads the writes."""

MAX_STREAMING_BYTES_A_MINUTE = 60 * 10**9
"""What Streaming Engine processes in a region, by a project's default quota."""

_MUCH_TRAFFIC = 10**9  # bytes a minute, a sixtieth of the quota: less is no reason for an exit code
_CHEAPER = {
    "Pub/Sub": "publish more events in a message",
    "Dataflow workers": "use --bigtable-writer bulk, or publish more events in a message",
    "Streaming Engine": "set a longer --early-firing, or have it billed by its compute units",
    "Bigtable nodes": "set a longer --early-firing or --newest-every",
    "Bigtable storage": "set shorter ages in the schema's policies",
}
"""What to do about each part of the costs, if it is the largest. The comparison needs the prices of all of them."""


@dataclass(frozen=True)
class Restart:
    """What a job does at its start if an earlier one has written the table.

    Attributes:
        windows: the open windows that it continues from the table.
        reads: the requests that read them.
        cpu_s: the CPU time that this takes, in seconds.
    """

    windows: float
    reads: float
    cpu_s: float


@dataclass(frozen=True)
class Estimate:
    """All figures.

    Attributes:
        events_per_second: events of all sensors in a second.
        messages: messages of one event, and messages of the fleet's batch.
        results: messages of finished windows; None if none are published.
        vcpus: busy vCPUs of Dataflow's workers, computed from CPU time that was measured elsewhere.
        vcpus_for_panes: those of them that fire panes, write their rows and publish their results.
        worker: the machine type of Dataflow's workers.
        workers: their number: at least one runs all the time.
        one_machine: the VM that could run the job instead.
        groups: the groups of sensors; None if the table has no windows.
        restart: the work of a restart.
        streaming_bytes_per_second: bytes that pass through Streaming Engine in a second.
        state_traffic_per_second: those of them that are windows.
        late: the cost of late events.
        raw: writes of raw rows.
        raw_event: the bytes of an event's raw rows as they are sent, and as they are stored.
        tiers: writes of aggregate rows, by window.
        nodes_for_writes: Bigtable nodes that take the writes.
        nodes_for_storage: Bigtable nodes that hold the storage, after each of :data:`pipeline.plan.sizes.YEARS`.
        storage: bytes by family, after collection; None if nothing is ever collected.
        storage_after: bytes by family, after each of :data:`pipeline.plan.sizes.YEARS`.
        growth: bytes a day by family, before collection.
        state_bytes: bytes of state of all windows, and of the readings that wait, when they take most.
        rollups: rows, reads and CPU time of roll-ups; None if the table has none.
        hottest_tablet: the share of raw writes that go to the hottest tablet; see :func:`hottest_share`.
    """

    events_per_second: float
    messages: tuple[Messages, Messages]
    results: Messages | None
    vcpus: float
    vcpus_for_panes: float
    worker: MachineType
    workers: int
    one_machine: OneMachine
    groups: GroupSizes | None
    restart: Restart
    streaming_bytes_per_second: float
    state_traffic_per_second: float
    late: Late
    raw: Writes
    raw_event: dict[str, float]
    tiers: dict[str, Writes]
    nodes_for_writes: int
    nodes_for_storage: dict[int, int]
    storage: dict[str, float | None]
    storage_after: dict[int, dict[str, float]]
    growth: dict[str, float]
    state_bytes: float
    hottest_tablet: float
    rollups: Rollups | None

    @property
    def nodes(self) -> dict[int, int]:
        """The number of nodes that serve both writes and storage, after each of :data:`pipeline.plan.sizes.YEARS`."""
        return {years: max(self.nodes_for_writes, nodes) for years, nodes in self.nodes_for_storage.items()}


def on_dataflow(vcpus: float) -> float:
    """Returns the vCPUs that work keeps busy on Dataflow, with Dataflow's own."""
    return vcpus * _ON_DATAFLOW


def estimate_of(workload: Workload) -> Estimate:
    """Returns all figures, in a time that does not depend on the number of sensors."""
    growth, late, of_event = stored_per_day(workload), late_of(workload), raw_size(workload)
    raw, tiers = _writes(of_event, workload.events_per_second), tier_writes(workload)
    groups = group_sizes(workload.aggregation, workload.rate) if workload.schema.tiers else None
    for_panes = vcpus_for_panes(workload, tiers, groups) + on_dataflow(late.vcpus)
    rollups = rollups_of(workload, tiers)
    if rollups is not None:
        tiers[ROLLUPS], growth[FAMILY] = rollups.writes, rollups.stored_per_day
        for_panes += (rollups.cpu_us_per_second + rollups.writes.rows * _ROW_US) / 1_000_000 * _ON_DATAFLOW
    storage = {family: kept(workload, family, growth[family]) for family in growth}
    after = {years: storage_after(years, storage, growth) for years in YEARS}
    results = results_of(workload, tiers)
    for_panes += 0.0 if results is None else results.per_second * RESULT_US / 1_000_000 * _ON_DATAFLOW
    vcpus = vcpus_for_events(workload) + for_panes
    worker, workers = workers_for(vcpus)
    state, traffic = 0.0, late.traffic_per_second + (rollups.traffic_per_second if rollups else 0)
    if groups is not None:
        state = workload.sensors * (groups.windows_bytes + groups.waiting_bytes) / groups.sensors
        traffic += workload.sensors * groups.traffic_per_second / groups.sensors
    return Estimate(
        events_per_second=workload.events_per_second,
        messages=(messages(workload, 1), messages(workload, workload.batch)),
        results=results,
        vcpus=vcpus,
        vcpus_for_panes=for_panes,
        worker=worker,
        workers=workers,
        one_machine=one_machine(workload, for_panes / _ON_DATAFLOW, state),
        groups=groups,
        restart=restart_of(workload),
        streaming_bytes_per_second=streaming_bytes(workload, tiers.values(), groups) + traffic,
        state_traffic_per_second=traffic,
        late=late,
        raw=raw,
        raw_event={"sent": of_event.encoded, "stored": sum(of_event.stored.values())},
        tiers=tiers,
        nodes_for_writes=nodes_for_writes(workload, [raw, *tiers.values(), Writes(late.load[0], 0, late.load[1])]),
        nodes_for_storage={years: nodes_for_storage(workload, sum(after[years].values())) for years in YEARS},
        storage=storage,
        storage_after=after,
        growth=growth,
        state_bytes=state,
        hottest_tablet=hottest_share(workload),
        rollups=rollups,
    )


def messages(workload: Workload, batch: int) -> Messages:
    """Returns the messages in and out of Pub/Sub, each in a request of its own.

    Attributes are those of :func:`message_of`, with an event time in µs.
    """
    per_second = workload.events_per_second / batch
    size = message_bytes(workload, batch)
    made = message_of([sensor_event("s", START_US + 123_456, {}, {})] * min(batch, 2))
    attributes = sum(len(name) + len(value) for name, value in made.attributes.items())
    billed = billed_bytes(size + attributes)
    added = attributes + OVERHEAD_BYTES
    return Messages(batch, per_second, size, added, billed, per_second * size, 2 * per_second * billed)


def vcpus_for_events(workload: Workload) -> float:
    """Returns the number of vCPUs that messages, events and raw rows keep busy.

    That is measured CPU time, times two for Dataflow's own work. Events share their message's cost, so the cost of an
    event falls with 1/batch, between those measured with one event in a message and with a hundred. Measured with three
    metrics; docs/throughput.md states what that leaves out.
    """
    return workload.events_per_second / 1_000_000 * between(*_CPU_S[workload.bulk], workload.batch) * _ON_DATAFLOW


def vcpus_for_panes(workload: Workload, tiers: Mapping[str, Writes], groups: GroupSizes | None) -> float:
    """Returns the number of vCPUs that panes and their rows keep busy."""
    if groups is None:
        return 0.0
    panes_a_second = sum(tiers[tier.window.text].rows for tier in workload.schema.tiers)
    newest_a_second = tiers[NEWEST].rows if NEWEST in tiers else 0
    unchanged = max(0.0, workload.sensors * groups.firings_per_second - panes_a_second)
    busy_us = panes_a_second * (_PANE_US + _ROW_US) + newest_a_second * _NEWEST_ROW_US + unchanged * _UNCHANGED_US
    return busy_us / 1_000_000 * _ON_DATAFLOW


def restart_of(workload: Workload) -> Restart:
    """Returns the work of a job that continues from another one: it reads each open window from the table, once.

    On average, half of a window's raw rows are there.
    """
    if not workload.schema.tiers:
        return Restart(0.0, 0.0, 0.0)
    tier, of_window, _ = rows_in(workload)[0]
    windows = workload.sensors * min(1.0, window_us(tier) / workload.every_us)
    raw = windows * of_window / 2
    reads = windows * 2 / _RESTORED_TOGETHER + raw / _PAGE_ROWS
    return Restart(windows, reads, (windows * _RESTORED_US + raw * RAW_ROW_US) / 1_000_000)


def _writes(size: RowSize, rate: float) -> Writes:
    return Writes(size.rows * rate, size.cells * rate, size.encoded * rate)


def panes(workload: Workload, tier: Tier) -> float:
    """Returns how often the row of a sensor's window is written, late panes aside.

    Without early firing, once. With early firing, a row of the shortest tier is written once for each --early-firing in
    which an event came, and a row of a longer tier when a shorter window in it is over, and with some of the early
    panes. tests/plan/test_estimate.py counts both in a day of windows.
    """
    if not workload.early_us:
        return 1.0
    shortest = workload.schema.tiers[0]
    of_shortest = min(window_events(workload, shortest), math.ceil(window_us(shortest) / workload.early_us))
    if tier is shortest:
        return of_shortest
    aggregation = workload.aggregation
    every_us = aggregation.follow_every_us
    if aggregation.waits[workload.schema.tiers.index(tier)]:
        return 1 + window_us(tier) / max(every_us, workload.every_us)
    of_shortest = min(of_shortest, 1 + window_us(shortest) / every_us)
    return of_shortest * max(1.0, window_us(tier) / max(window_us(shortest), workload.every_us))


def tier_writes(workload: Workload) -> dict[str, Writes]:
    """Returns the writes of aggregate rows by window: windows a second, times panes, times the row; and late panes.

    With results, a window that gets nothing after its last early pane is written once more when it is over.

    A sensor's row of newest readings is written with each pane of the shortest tier, and at most once for each event or
    --newest-every: a bundle with several events of the sensor writes it once.
    """
    tiers, latest = workload.schema.tiers, workload.schema.latest
    repeated = 0.0 if workload.results is None else max(0.0, 1 - (workload.early_us or math.inf) / workload.every_us)
    rates = [(windows_per_second(workload, tier), panes(workload, tier)) for tier in tiers]
    found = {
        tier.window.text: _writes(
            aggregate_size(workload, tier),
            windows * (of_window + repeated) + panes_of(workload),
        )
        for tier, (windows, of_window) in zip(tiers, rates, strict=True)
    }
    if latest is not None and rates:
        with_raw_rows = workload.sensors * 1_000_000 / max(workload.every_us, workload.newest_us)
        found[NEWEST] = _writes(latest_size(workload, latest), math.prod(rates[0]) + with_raw_rows)
    return found


def nodes_for_writes(workload: Workload, writes: list[Writes]) -> int:
    """Returns the number of nodes that take the writes at 70 % of their CPU.

    A node takes 14,000 rows of 1 KB a second on SSD and 10,000 on HDD: cloud.google.com/bigtable/docs/performance. The
    limit of 70 % is that of one cluster: cloud.google.com/bigtable/docs/monitoring-instance. A larger row counts as
    several of 1 KB.
    """
    rows = sum(max(each.rows, each.bytes / 1000) for each in writes)
    return max(1, math.ceil(rows * 100 / (_WRITES_PER_NODE[workload.ssd] * UTILIZATION)))


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


def streaming_bytes(workload: Workload, tiers: Iterable[Writes], groups: GroupSizes | None) -> float:
    """Returns the bytes that pass through Streaming Engine in a second.

    Messages come in once. Readings by group, and rows of panes, are each shuffled, stored and read again. State that
    firings read and write is left out.
    """
    found = messages(workload, workload.batch).bytes_per_second
    if groups is not None:
        found += 3 * workload.events_per_second * waiting_event_bytes(len(workload.metrics))
    return found + 3 * sum(each.bytes for each in tiers)


def limits_passed(workload: Workload, estimate: Estimate) -> list[str]:
    """Returns a line for each limit of Dataflow that the fleet passes."""
    schema = replace(workload.schema, rate=workload.rate)
    found = [state_problem(schema), rollup_problem(schema)]
    found += [commit_problem(workload.aggregation, schema.rate)] if schema.tiers else []
    per_minute = estimate.streaming_bytes_per_second * 60
    if per_minute > MAX_STREAMING_BYTES_A_MINUTE:
        found.append(
            f"Streaming Engine would process {per_minute / 1e9:,.0f} GB a minute, of which firings read and write "
            f"{estimate.state_traffic_per_second * 60 / 1e9:,.0f} GB of windows, over the "
            f"{MAX_STREAMING_BYTES_A_MINUTE // 10**9} GB of a region's quota; set a longer --early-firing, send less, "
            "divide the fleet among regions, or ask Google for more"
        )
    return [each for each in found if each is not None]


def outweighing(estimate: Estimate, costs: Mapping[int, Mapping[str, float]]) -> list[str]:
    """Returns a line for each cause or part of the costs that is larger than the rest together.

    What a job needs at least is none, since no choice makes it smaller; see :func:`least_costs`.
    """
    found = list(_causes(estimate, costs.get(YEARS[0], {}).get("Streaming Engine")))
    return found + [f"{text}; {_CHEAPER[name]}" for name, text in _largest(costs) if not _is_least(estimate, name)]


def least_costs(estimate: Estimate, costs: Mapping[int, Mapping[str, float]]) -> list[str]:
    """Returns a line if the one worker or the one node that a job needs at least costs more than the rest together."""
    return [
        f"{text}, more than the rest together, for the one that runs all the time"
        for name, text in _largest(costs)
        if _is_least(estimate, name)
    ]


def _largest(costs: Mapping[int, Mapping[str, float]]) -> Iterator[tuple[str, str]]:
    of_year = costs.get(YEARS[0], {})
    if _CHEAPER.keys() <= of_year.keys():
        name, total = max(_CHEAPER, key=of_year.__getitem__), sum(of_year.values())
        if 2 * of_year[name] > total:
            yield name, f"{name}: {of_year[name]:,.2f} of {total:,.2f} a month"


def _is_least(estimate: Estimate, name: str) -> bool:
    return {"Dataflow workers": estimate.workers, "Bigtable nodes": estimate.nodes[YEARS[0]]}.get(name) == 1


def _causes(estimate: Estimate, streaming_cost: float | None) -> Iterator[str]:
    late, all_bytes = estimate.late, estimate.streaming_bytes_per_second * 60
    part = 60 * late.traffic_per_second
    if part > _MUCH_TRAFFIC and 2 * part > all_bytes:
        cost = "" if streaming_cost is None else f", some {streaming_cost * part / all_bytes:,.0f} a month"
        of_all = f"{part / 1e9:,.1f} of the {all_bytes / 1e9:,.1f} GB a minute of Streaming Engine{cost}"
        yield f"late events: {of_all}; set a longer --allowed-lateness or --late-firing"
    if estimate.workers > 1 and 2 * (busy := on_dataflow(late.vcpus)) > estimate.vcpus:
        yield (
            f"late events: {busy:,.1f} of {estimate.vcpus:,.1f} busy vCPUs, which read closed windows from the table; "
            "set a longer --allowed-lateness, or a shorter first tier"
        )
