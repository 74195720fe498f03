"""Estimates the messages that a job publishes about finished windows."""

from collections.abc import Mapping

from pipeline.core.results.window_results import PaneResult, batches_of, message_of, read_batch
from pipeline.core.schema.table_schema import Tier
from pipeline.core.statistics.window_stats import MetricStats, WindowStats
from pipeline.plan.late import panes_of
from pipeline.plan.sizes import window_us
from pipeline.plan.traffic import OVERHEAD_BYTES, Messages, Writes, billed_bytes
from pipeline.plan.workload import START_US, Workload, names

RESULT_US = 17.0
"""CPU time in µs of a result of three metrics: to encode it, and to make a message of it. Measured."""


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
