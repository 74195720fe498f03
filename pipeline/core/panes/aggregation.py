"""The settings by which a table's windows are aggregated."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pipeline.core.panes.firing import FiringRules
from pipeline.core.panes.pane_outputs import RollupRules
from pipeline.core.results.window_results import ResultRules
from pipeline.core.schema.table_schema import Tier
from pipeline.core.windows import Window, sources

_MANY = 48  # windows of the shortest tier


def waiting(tiers: Sequence[Tier]) -> tuple[bool, ...]:
    """Returns for each tier whether its windows are computed from so many of the shortest that they wait for several.

    Args:
        tiers: the table's tiers, shortest first.
    """
    shortest = tiers[0].window
    return tuple(
        not source and shortest.count(start_us := tier.window.first_start(0), tier.window.end_of(start_us)) > _MANY
        for tier, source in zip(tiers, sources(tuple(tier.window for tier in tiers)), strict=True)
    )


def first_waiting(tiers: Sequence[Tier]) -> Window | None:
    """Returns the window of the first tier that waits; None if none does."""
    return next((tier.window for tier, waits in zip(tiers, waiting(tiers), strict=True) if waits), None)


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

    @cached_property
    def waits(self) -> tuple[bool, ...]:
        """Whether the windows of each tier wait for several of the shortest; see :func:`waiting`."""
        return waiting(self.tiers)

    @property
    def tells_ends(self) -> bool:
        """Whether each longer window has a pane when it is over, even if nothing came for long."""
        return self.results is not None or not self.firing.early_us

    @property
    def noted(self) -> tuple[Tier, ...]:
        """The tiers of whose open windows a process on one machine keeps notes: the table may lack what they count."""
        if self.tells_ends:
            return self.tiers
        return tuple(tier for tier, waits in zip(self.tiers, self.waits, strict=True) if tier == self.tiers[0] or waits)

    @cached_property
    def carries(self) -> bool:
        """Whether statistics continue from the window before, so that a window needs the ones around it."""
        return self.tiers[0].statistics.carries
