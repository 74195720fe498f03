"""Estimates the rows, reads and CPU time of roll-ups, for shards and groups that change as panes are written.

Each firing of groups of sensors writes rows of members. Such a row is read then, and writes parts of groups. The
changes of a group wait for each other; then the row of its parts is read, and its own is written.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import gcd

from pipeline.core.rows.aggregate_rows import READING_COUNT
from pipeline.core.rows.rollup_rows import (
    DELETES_EVERY,
    FAMILY,
    PARTS,
    SENSORS,
    members_key,
    merged_statistics,
    rollup_key,
)
from pipeline.core.schema.rate import groups_for, phases_for
from pipeline.core.schema.rollup import Rollup
from pipeline.core.schema.table_schema import Tier
from pipeline.core.statistics.window_stats import qualifier_of
from pipeline.plan.sizes import ID_BYTES, RowSize, row_size, sketch_bytes, statistic_bytes, window_events, window_us
from pipeline.plan.workload import START_US, Workload, Writes

ROLLUPS = "roll-ups"
"""The name of the writes of roll-ups, beside those of the tiers."""

_TOGETHER_US = 8_000_000  # the time for which changes of a group wait for each other
_SENSOR_US, _PART_US = (7.0, 0.7, 16.0, 7.0), (2.8, 0.4, 27.0, 3.0)
"""CPU time in µs of a sensor in a change of its shard, and of a shard's part in a change of its group: for each, and
for each metric, also each with quantiles and each of counters. Measured, with 2 µs for reading a cell.
"""
_HEAD_BYTES, _METRIC_BYTES, _PARTS_BYTES = 25, 49, 4  # of a contribution, and of each metric beside its name
_SKETCH_BYTES, _RISES_BYTES = 16, (24, 45)  # of a metric's parts; of counters with one reading, and with more
_FIELD_BYTES = 6  # of a field, beside its name and value
_DUE_BYTES = 45  # of a group that is due, in state and on its way
_CELLS = 1 + 1 / DELETES_EVERY  # mutations of a cell
_DELETION_BYTES = 19  # of the older versions of a cell, beside its family and column


@dataclass(frozen=True)
class Rollups:
    """What roll-ups take.

    Attributes:
        groups: the number of groups of all roll-ups.
        writes: the writes in a second.
        reads_per_second: the rows that are read in a second.
        cpu_us_per_second: the CPU time in µs in a second, without that of writing rows.
        traffic_per_second: the bytes of state that are read and written in a second.
        stored_per_day: the bytes that a day adds to the family of roll-ups, if no version is kept but the newest.
    """

    groups: int
    writes: Writes
    reads_per_second: float
    cpu_us_per_second: float
    traffic_per_second: float
    stored_per_day: float


def rollups_of(workload: Workload, tiers: Mapping[str, Writes]) -> Rollups | None:
    """Returns what the roll-ups of a table take; None for a table without any.

    Args:
        workload: the fleet.
        tiers: the writes of aggregate rows, by window.
    """
    if not workload.schema.rollups:
        return None
    rows = cells = encoded = reads = cpu_us = due = stored = 0.0
    shards = min(workload.schema.shards_of_rollups, workload.sensors)
    for tier in workload.schema.tiers:
        if not (rollups := workload.schema.rollups_of(tier.window)):
            continue
        panes, length_us = tiers[tier.window.text].rows, window_us(tier)
        windows, changes = 1_000_000 / length_us, shard_changes(workload, tier, panes)
        of_members = members_size(workload, tier, panes / changes)
        rows, cells, encoded = rows + changes, cells + _CELLS * panes, encoded + changes * of_members.encoded
        reads += changes
        cpu_us += changes * workload.sensors / shards * _cpu_us(workload, tier, _SENSOR_US)
        stored += 86_400 * windows * shards * members_size(workload, tier, workload.sensors / shards).stored[FAMILY]
        for rollup in rollups:
            groups = groups_in(workload, rollup)
            parts = min(shards, workload.sensors / groups)  # of a group
            updates = changes * min(groups, panes / changes)
            writes = updates / (1 + updates / groups * _TOGETHER_US / 1_000_000)
            of_part = part_bytes(workload, tier, workload.sensors / groups / parts)
            of_group = group_size(workload, tier, rollup)
            of_parts = parts_size(tier, rollup, of_part, 1)
            rows, cells = rows + updates + writes, cells + _CELLS * (updates + of_group.cells * writes)
            encoded += updates * of_parts.encoded + writes * of_group.encoded
            reads += writes
            cpu_us += writes * parts * _cpu_us(workload, tier, _PART_US)
            due += 2 * updates * _DUE_BYTES  # what makes a shard due names as many groups
            whole = parts_size(tier, rollup, of_part, parts)
            stored += 86_400 * windows * groups * (whole.stored[FAMILY] + of_group.stored[FAMILY])
    groups_of_all = sum(groups_in(workload, rollup) for rollup in workload.schema.rollups)
    return Rollups(groups_of_all, Writes(rows, cells, encoded), reads, cpu_us, 2 * due, stored)


def groups_in(workload: Workload, rollup: Rollup) -> int:
    """Returns the number of a roll-up's groups."""
    return min(workload.rollup_groups, workload.sensors) if rollup.by else 1


def shard_changes(workload: Workload, tier: Tier, panes: float) -> float:
    """Returns how many changes of shards the panes of a tier make in a second: those of a firing come together.

    The groups of sensors of a phase fire at the same time, and change every so many shards.
    """
    groups, shards = groups_for(workload.rate), workload.schema.shards_of_rollups
    phases = min(groups, phases_for(shards))
    firings = 1_000_000 / window_us(tier) + (1_000_000 / workload.early_us if workload.early_us else 0.0)
    return min(panes, phases * firings * shards / gcd(groups, shards))


def contribution_bytes(workload: Workload, tier: Tier) -> float:
    """Returns the bytes of what a sensor contributes to a window."""
    member = sum(len(name) + ID_BYTES + _FIELD_BYTES for name in workload.schema.member_fields)
    return member + part_bytes(workload, tier, 1)


def part_bytes(workload: Workload, tier: Tier, sensors: float) -> float:
    """Returns the bytes of a shard's part of a group, of which so many sensors are in the shard."""
    events, of_parts = window_events(workload, tier), 0.0
    metrics = _metrics(workload, tier)
    for parts in _parts(tier, metrics):
        of_parts += _SKETCH_BYTES + sketch_bytes(events * max(1, sensors)) if "sketch" in parts else 0
        of_parts += _RISES_BYTES[events > 1] if "rises" in parts else 0
    of_parts += _PARTS_BYTES * len(metrics) if of_parts else 0
    return _HEAD_BYTES + sum(_METRIC_BYTES + len(metric) for metric in metrics) + of_parts


def members_size(workload: Workload, tier: Tier, sensors: float) -> RowSize:
    """Returns the size of a row with the contributions of so many sensors of a shard."""
    key = len(members_key(tier.window, 100, tier.window.start_of(START_US)))
    return _versions(key, ID_BYTES, contribution_bytes(workload, tier), sensors)


def parts_size(tier: Tier, rollup: Rollup, of_part: float, shards: float) -> RowSize:
    """Returns the size of a row with so many parts of a group."""
    return _versions(_key_bytes(tier, rollup, PARTS), 3, of_part, shards)


def group_size(workload: Workload, tier: Tier, rollup: Rollup) -> RowSize:
    """Returns the size of a group's row."""
    events = window_events(workload, tier) * workload.sensors / groups_in(workload, rollup)
    digits = len(str(int(events)))
    cells = [(FAMILY, float(len(SENSORS)), 3.0), (FAMILY, float(len(READING_COUNT)), float(digits))]
    cells += [
        (FAMILY, float(len(qualifier_of(each.name, metric))), statistic_bytes(each, events, digits))
        for metric in _metrics(workload, tier, rollup)
        for each in merged_statistics(tier.statistics.of(metric))
    ]
    found = row_size(_key_bytes(tier, rollup), cells)
    deletions = sum(_DELETION_BYTES + len(FAMILY) + name for _, name, _ in cells) / DELETES_EVERY
    return RowSize(1, found.cells, found.encoded + deletions, found.stored)


def _versions(key: int, column: int, value: float, count: float) -> RowSize:
    one = row_size(0, [(FAMILY, column, value)])
    encoded = key + count * (one.encoded + (_DELETION_BYTES + len(FAMILY) + column) / DELETES_EVERY)
    return RowSize(1, round(count), encoded, {FAMILY: key + count * one.stored[FAMILY]})


def _key_bytes(tier: Tier, rollup: Rollup, *kind: str) -> int:
    value = rollup.value_of(dict.fromkeys(rollup.by, "v" * ID_BYTES)) or ""
    return len(rollup_key(tier.window, rollup.name, value, tier.window.start_of(START_US), *kind))


def _metrics(workload: Workload, tier: Tier, *rollups: Rollup) -> list[str]:
    of_tier = rollups or workload.schema.rollups_of(tier.window)
    return [metric for metric in workload.metrics if any(rollup.merges(metric) for rollup in of_tier)]


def _parts(tier: Tier, metrics: Iterable[str]) -> list[set[str | None]]:
    """Returns the parts of each metric."""
    return [{each.part for each in tier.statistics.of(metric)} for metric in metrics]


def _cpu_us(workload: Workload, tier: Tier, costs: tuple[float, float, float, float]) -> float:
    parts = _parts(tier, _metrics(workload, tier))
    each, of_metric, of_sketch, of_rises = costs
    with_parts = sum(of_sketch * ("sketch" in of) + of_rises * ("rises" in of) for of in parts)
    return each + of_metric * len(parts) + with_parts
