"""Collects what the panes of a firing contribute to roll-ups, for tables that have any."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pipeline.core.rollups.contributions import Contributions, Order, batches_of
from pipeline.core.rollups.group_rules import GroupRules
from pipeline.core.schema.rate import group_of
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.window_stats import WindowStats


class RollupRules(NamedTuple):
    """The rules by which panes contribute to roll-ups.

    Attributes:
        began_us: the time at which the job began, in µs since the epoch.
        shards: the number of shards of sensors.
        of_tier: the contributions of each tier, shortest first; None for a tier without roll-ups.
    """

    began_us: int
    shards: int
    of_tier: tuple[Contributions | None, ...]

    @classmethod
    def of(cls, schema: TableSchema, began_us: int) -> "RollupRules | None":
        """Returns the rules for a table and the time at which the job began; None for a table without roll-ups."""
        if not schema.rollups:
            return None
        rules = GroupRules(schema)
        of_tier = [Contributions(rules, tier) if rules.rollups_of(tier) else None for tier in range(len(schema.tiers))]
        return cls(began_us, schema.shards_of_rollups, tuple(of_tier))


class PaneContributions:
    """The contributions of a firing.

    Args:
        rules: the rules.
    """

    def __init__(self, rules: RollupRules) -> None:
        self._rules = rules
        self._found: dict[tuple[int, int], dict[int, dict[bytes, bytes]]] = {}

    def add(self, tier: int, start_us: int, changed: Mapping[str, tuple[WindowStats, bool]]) -> None:
        """Adds the panes of windows of a tier that have the same start, which are written with these statistics."""
        contributions, shards = self._rules.of_tier[tier], self._rules.shards
        if contributions is None:
            return
        found, of = self._found.setdefault((tier, start_us), defaultdict(dict)), contributions.of
        for sensor_id, (stats, _) in changed.items():
            sensor = sensor_id.encode()
            found[group_of(sensor, shards)][sensor] = of(start_us, stats)

    def batches(self, number: int) -> Iterator[tuple[int, bytes]]:
        """Yields ``(shard, batch)``, as :func:`pipeline.core.rollups.contributions.batches_of` encodes batches.

        Args:
            number: the number of batches of rows that the group of sensors had written before the firing.
        """
        order = Order(self._rules.began_us, number)
        for shard in dict.fromkeys(shard for of_window in self._found.values() for shard in of_window):
            windows = ((*window, found[shard]) for window, found in self._found.items() if shard in found)
            for batch in batches_of(windows, order):
                yield shard, batch
