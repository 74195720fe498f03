"""The settings by which a table's windows are aggregated."""

from dataclasses import dataclass
from functools import cached_property

from pipeline.core.panes.firing import FiringRules
from pipeline.core.panes.pane_outputs import RollupRules
from pipeline.core.results.window_results import ResultRules
from pipeline.core.schema.table_schema import Tier
from pipeline.core.windows.tier_sources import sources


@dataclass(frozen=True)
class Aggregation:
    """The settings by which a table's windows are aggregated. Part of a DoFn, so it pickles.

    Args:
        tiers: the table's tiers, shortest first.
        firing: the rules by which panes fire and windows close.
        before_us: the time before which windows start that the table may store already; None if it stores none.
        latest: the family of the newest readings; None if the table has no rows of them.
        results: the rules by which results are published; None for a job that publishes none.
        rollups: the rules by which panes contribute to roll-ups; None for a table without any.
    """

    tiers: tuple[Tier, ...]
    firing: FiringRules
    before_us: int | None = None
    latest: str | None = None
    results: ResultRules | None = None
    rollups: RollupRules | None = None

    @cached_property
    def sources(self) -> tuple[int, ...]:
        """The index of each tier's source; -1 for the shortest."""
        return sources(tuple(tier.window for tier in self.tiers))

    @property
    def tells_ends(self) -> bool:
        """Whether each longer window has a pane when it is over, even if nothing came for long."""
        return self.results is not None or not self.firing.early_us

    @cached_property
    def carries(self) -> bool:
        """Whether statistics continue from the window before, so that a window needs the ones around it."""
        return self.tiers[0].statistics.carries
