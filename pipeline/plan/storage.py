"""Estimates the storage in Bigtable, and the nodes that hold it."""

import math
from collections.abc import Mapping

from pipeline.core.rows.rollup_rows import FAMILY
from pipeline.core.schema.gc_policies import collected_after, counts_versions
from pipeline.plan.sizes import aggregate_size, latest_size, raw_size, windows_per_second
from pipeline.plan.workload import Workload

YEARS = (1, 5)
"""The ages of a table for which its storage is estimated."""

UTILIZATION = 70
"""The percentage of a node's capacity that is used."""

_NODE_BYTES = {True: 5 * 10**12, False: 16 * 10**12}


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


def kept(workload: Workload, family: str, per_day: float) -> float | None:
    """Returns the bytes that remain after collection: a day's growth, times the days of the policy's maximal age.

    Leaves out what Bigtable may collect and has not yet, for up to a week:
    cloud.google.com/bigtable/docs/garbage-collection. Ignores limits on versions: a cell of one event has one version.
    """
    if family == workload.schema.latest:
        return workload.sensors * latest_size(workload, family).stored[family]  # a row a sensor, which is overwritten
    age = collected_after(workload.schema.policies[family])
    return None if age is None and per_day else per_day * (age.total_seconds() / 86_400 if age else 0)


def storage_after(years: int, storage: Mapping[str, float | None], growth: Mapping[str, float]) -> dict[str, float]:
    """Returns the bytes by family of a table of this age: what came until then, and is not collected."""
    grown = {family: per_day * 365.25 * years for family, per_day in growth.items()}
    return {
        family: grown[family] if kept is None else min(kept, grown[family] or kept) for family, kept in storage.items()
    }


def nodes_for_storage(workload: Workload, size: float) -> int:
    """Returns the number of nodes that hold so many bytes, at 70 % of what each can."""
    return max(1, math.ceil(size * 100 / (_NODE_BYTES[workload.ssd] * UTILIZATION)))


def counts_versions_of(workload: Workload) -> list[str]:
    """Returns the families whose cells a limit on versions may collect sooner than estimated."""
    schema = workload.schema
    replaced = (schema.latest, FAMILY, *(tier.family for tier in schema.tiers))  # whose older versions nobody reads
    return [family for family, policy in schema.policies.items() if family not in replaced and counts_versions(policy)]
