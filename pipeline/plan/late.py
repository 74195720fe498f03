"""Estimates what late events cost: a window that one changes is read from the table before its pane."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.core.panes.group_sizes import MARK_BYTES
from pipeline.core.results.window_results import PaneResult, batches_of, message_of, read_batch
from pipeline.core.schema.table_schema import Tier
from pipeline.core.statistics.window_stats import MetricStats, WindowStats
from pipeline.core.windows import sources
from pipeline.plan.sizes import raw_size, window_events, window_us
from pipeline.plan.workload import (
    LATE_FIRING_US,
    OVERHEAD_BYTES,
    START_US,
    Messages,
    Workload,
    Writes,
    billed_bytes,
    names,
)

RAW_ROW_US, SHORTER_ROW_US = 25, 30
"""CPU time in µs of a raw row that is read, and of the row of a shorter window. benchmarks/engine.py measures the
first.
"""
_WINDOW_US = 2_500  # CPU time of a window that is read alone, without its rows
_SCANNED_BYTES = 16  # which a node reads in the time in which it writes one, by the rates of its documentation

RESULT_US = 17.0
"""CPU time in µs of a result of three metrics: to encode it, and to make a message of it. Measured."""


@dataclass(frozen=True)
class Late:
    """What late events take, beside their raw rows and the aggregate rows that they change.

    Attributes:
        events_per_second: late events in a second.
        panes_per_second: panes of closed windows of the shortest tier in a second.
        reads_per_second: requests that read these windows, and the longer ones that contain them.
        read_bytes_per_second: bytes of the raw rows that they read.
        vcpus: vCPUs that the reading keeps busy, without Dataflow's own work.
        traffic_per_second: bytes of state that late panes read and write in a second.
    """

    events_per_second: float
    panes_per_second: float
    reads_per_second: float
    read_bytes_per_second: float
    vcpus: float
    traffic_per_second: float

    @property
    def load(self) -> tuple[float, float]:
        """The reading as rows a second, and as bytes a second, that a node could write instead."""
        return self.reads_per_second, self.read_bytes_per_second / _SCANNED_BYTES


def rows_in(workload: Workload) -> list[tuple[Tier, float, float]]:
    """Returns the raw rows, and the rows of shorter windows, from which a full window of each tier is computed."""
    tiers, found = workload.schema.tiers, []
    for tier, source in zip(tiers, sources(tuple(tier.window for tier in tiers)), strict=True):
        events = window_events(workload, tier)
        raw = events * raw_size(workload).rows if source < 0 else 0.0
        shorter = min(window_us(tier) / window_us(tiers[source]), events) if source >= 0 else 0.0
        found.append((tier, raw, shorter))
    return found


def panes_of(workload: Workload) -> float:
    """Returns the late panes of the shortest tier in a second.

    Late events of a sensor come in runs of a minute, the default of --late-firing, since a connection that is lost is
    lost for a while. A run is a pane. Windows that are late as a whole make fewer.
    """
    if not workload.schema.tiers:
        return 0.0
    return workload.late * workload.sensors * 1_000_000 / max(workload.every_us, LATE_FIRING_US)


def late_of(workload: Workload) -> Late:
    """Returns what late events take."""
    panes, events = panes_of(workload), workload.late * workload.events_per_second
    reads = read_bytes = busy_us = 0.0
    for _, raw, shorter in rows_in(workload):
        reads += panes
        read_bytes += panes * raw * raw_size(workload).encoded / raw_size(workload).rows
        busy_us += panes * (_WINDOW_US + raw * RAW_ROW_US + shorter * SHORTER_ROW_US)
    return Late(events, panes, reads, read_bytes, busy_us / 1_000_000, 2 * events * MARK_BYTES)


def results_of(workload: Workload, tiers: Mapping[str, Writes]) -> Messages | None:
    """Returns the results of all windows, delivered to one subscription; None if none are published.

    A window has one final result, and one for each late pane. All of them are as many as its panes.

    Args:
        workload: the fleet.
        tiers: the writes of aggregate rows, by window.
    """
    if workload.results is None or not workload.schema.tiers:
        return None
    per_second = size = billed = added = 0.0
    for tier in workload.schema.tiers:
        of_tier = tiers[tier.window.text].rows
        if workload.results == "final":
            final = workload.sensors / max(window_us(tier), workload.every_us) * 1_000_000
            of_tier = min(of_tier, final + panes_of(workload))
        data, attributes = _bytes_of(workload, tier)
        per_second += of_tier
        size += of_tier * data
        added += of_tier * (attributes + OVERHEAD_BYTES)
        billed += of_tier * billed_bytes(data + attributes)
    return Messages(1, per_second, size / per_second, added / per_second, billed / per_second, size, 2 * billed)


def _bytes_of(workload: Workload, tier: Tier) -> tuple[int, int]:
    """Returns the bytes of a result's data and of its attributes."""
    stats, (sensor_id,) = WindowStats(), names("sensor", 1)
    stats.events = 1
    for metric in workload.metrics:
        stats.metrics[metric] = MetricStats.of((1.0, 2.0))  # of two values, no statistic is zero
    start_us = tier.window.start_of(START_US)
    (batch,) = batches_of([PaneResult(0, sensor_id, start_us, stats, "on_time")], (tier,), START_US, 0)
    (message,) = (message_of(each, "protobuf") for each in read_batch(batch))
    return len(message.data), sum(len(name) + len(value) for name, value in message.attributes.items())
