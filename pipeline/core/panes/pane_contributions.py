"""Collects what the panes of a firing contribute to roll-ups, for tables that have any."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from pipeline.core.rollups.contributions import Contributed, Order, batches_of, contribution_bytes
from pipeline.core.schema.rate import group_of
from pipeline.core.schema.rollup import Rollup
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.statistics.window_stats import WindowStats


class RollupRules(NamedTuple):
    """The rules by which panes contribute to roll-ups.

    Attributes:
        began_us: the time at which the job began, in µs since the epoch.
        shards: the number of shards of sensors.
        of_tier: the roll-ups of each tier, shortest first.
    """

    began_us: int
    shards: int
    of_tier: tuple[tuple[Rollup, ...], ...]

    @classmethod
    def of(cls, schema: TableSchema, began_us: int) -> "RollupRules | None":
        """Returns the rules for a table and the time at which the job began; None for a table without roll-ups."""
        of_tier = tuple(schema.rollups_of(tier.window) for tier in schema.tiers)
        return cls(began_us, schema.shards_of_rollups, of_tier) if any(of_tier) else None


class PaneContributions:
    """The contributions of a firing.

    Args:
        rules: the rules.
        tiers: the table's tiers, shortest first.
    """

    def __init__(self, rules: RollupRules, tiers: Sequence[Tier]) -> None:
        self._rules, self._tiers = rules, tiers
        self._found: dict[int, list[Contributed]] = defaultdict(list)  # by shard

    def add(self, tier: int, start_us: int, changed: Mapping[str, tuple[WindowStats, bool]]) -> None:
        """Adds the panes of windows of a tier that have the same start, which are written with these statistics."""
        rollups, shards = self._rules.of_tier[tier], self._rules.shards
        if not rollups:
            return
        of_tier = self._tiers[tier]
        span = of_tier.statistics.span(of_tier.window, start_us)
        for sensor_id, (stats, _) in changed.items():
            data = contribution_bytes(stats, span, lambda metric: _is_merged(rollups, metric))
            shard = group_of(sensor_id.encode(), shards)
            self._found[shard].append(Contributed(tier, start_us, sensor_id, data))

    def batches(self, number: int) -> Iterator[tuple[int, bytes]]:
        """Yields ``(shard, batch)``, as :func:`pipeline.core.rollups.contributions.batches_of` encodes batches.

        Args:
            number: the number of batches of rows that the group of sensors had written before the firing.
        """
        order = Order(self._rules.began_us, number)
        for shard, contributed in self._found.items():
            for batch in batches_of(contributed, order):
                yield shard, batch


@lru_cache(maxsize=1 << 14)
def _is_merged(rollups: tuple[Rollup, ...], metric: str) -> bool:
    return any(rollup.merges(metric) for rollup in rollups)
