"""The rules by which the panes of a group's windows fire, as a part of all settings by which windows are aggregated.

Panes fire at the watermark, and at times of the clock in between. The rules also limit what a firing commits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pipeline.core.results.window_results import ResultRules
from pipeline.core.rollups.contributions import Contributions
from pipeline.core.rollups.group_rules import GroupRules
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.windows import Window, sources

MAX_COMMIT_BYTES = 180_000_000
"""What Dataflow commits for a work item, here the firing of a group; it refuses more, again and again."""


@dataclass(frozen=True)
class CommitLimits:
    """The limits of what a firing commits: its runner refuses a larger commit, and repeats the firing for ever.

    A firing commits the state that it writes back, the results that it publishes, and what its panes contribute to
    roll-ups. Aggregate rows are in the table before, and no part of the commit.

    - **Panes**: once their rows and contributions have :attr:`panes_bytes`, the other panes stay due, and fire a second
      later.
    - **State**: a firing that reads more than :attr:`state_bytes` of windows and waiting readings closes the oldest
      windows, whatever the watermark. All of their readings are in the table, so late panes compute them from there.
      That is what an outage needs: the watermark lags until all is read that the job has missed.

    Windows that would be open even if the watermark were the clock stay open. Nothing limits them here: the launch
    checks them for the declared rate; see :mod:`pipeline.core.panes.group_sizes`.

    Args:
        bytes: the most that the runner commits.
    """

    bytes: int = MAX_COMMIT_BYTES

    @property
    def state_bytes(self) -> int:
        """The most that the state of open windows and waiting readings should take."""
        return self.bytes // 4 * 3

    @property
    def panes_bytes(self) -> int:
        """The bytes of rows and contributions after which no more panes fire.

        A result is smaller than the row of its pane. So results and contributions take a tenth of the commit each at
        most. The rest is for the panes that reach the limit, for marks and for the work list.
        """
        return self.bytes // 10

    def closing(self, sizes: Mapping[int, int], others_bytes: int) -> list[int]:
        """Returns the starts of the windows that have to close, in order."""
        closing, size = list[int](), sum(sizes.values()) + others_bytes
        for start_us in sorted(sizes):
            if size <= self.state_bytes:
                break
            closing.append(start_us)
            size -= sizes[start_us]
        return closing


NEVER_US = (1 << 63) - 1
"""Later than any watermark and any clock."""

IN_FLIGHT_US = 20 * 60 * 1_000_000
"""The time after which a row that another process wrote has certainly arrived: twice as long as writers retry."""

_MANY = 48  # windows of the shortest tier, of which a longer window waits for several
_FOLLOW_EVERY = 12  # early panes: each pane of a longer window reads what it counts
_FOLLOW_MOST = 12  # times in a window of the shortest tier, however many early panes it has
_FOLLOW_LEAST = 4  # times in a longer window that waits

_GOLDEN = 2_654_435_769  # the golden ratio of 32 bits: its multiples are spread evenly

MOST_SPREAD_US = 60_000_000
"""The most time by which a group's watermark may be behind the job's."""

END_US = 9_223_371_950_454_774_000
"""The last watermark: the end of Beam's global window, in whole milliseconds."""


@dataclass(frozen=True)
class FiringRules:
    """The rules by which panes fire and windows close. All times are in µs.

    Args:
        window: the window of the shortest tier.
        early_us: the time from a window's first new readings to an early pane; zero for no early panes.
        late_us: the time from late readings to a late pane; zero for a pane without delay.
        lateness_us: the time for which a window stays open after the watermark has passed its end.
        phases: the number of different times at which groups fire panes; None if each has its own.
        spread_us: the time over which groups fire on-time and last panes: a group's watermark is that of the job less
            the group's share of this time. Zero if all groups fire in the moment in which the watermark passes an end.
        commit: the limits of what a firing commits; None for a runner without any.
    """

    window: Window
    early_us: int
    late_us: int
    lateness_us: int
    phases: int | None = None
    spread_us: int = 0
    commit: CommitLimits | None = None

    def next_us(self, group: int, now_us: int, every_us: int) -> int:
        """Returns the next of a group's times after now, which are so far apart."""
        return now_us + every_us - (now_us - _share_of(self._phase_of(group), every_us)) % every_us

    def lag_us(self, group: int) -> int:
        """Returns the time by which a group's watermark is behind the job's; the last watermark of all is not."""
        return _share_of(self._phase_of(group), self.spread_us)

    def _phase_of(self, group: int) -> int:
        """Returns the number that decides when a group fires."""
        return group % self.phases if self.phases else group


def _share_of(phase: int, time_us: int) -> int:
    """Returns a phase's share of a time; shares of phases with neighbouring numbers are far apart."""
    return (phase * _GOLDEN % (1 << 32)) * time_us >> 32


class RollupRules(NamedTuple):
    """The rules by which panes contribute to roll-ups."""

    tiers: tuple[Tier, ...]
    shards: int
    of_tier: tuple[Contributions | None, ...]

    @classmethod
    def of(cls, schema: TableSchema) -> "RollupRules | None":
        """Returns the rules for a table; None for one without roll-ups."""
        if not schema.rollups:
            return None
        rules = GroupRules(schema)
        of_tier = [Contributions(rules, tier) if rules.rollups_of(tier) else None for tier in range(len(schema.tiers))]
        return cls(schema.tiers, rules.shards, tuple(of_tier))


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
        """Whether the windows of each tier are computed from so many of the shortest that they wait for several."""
        shortest = self.tiers[0].window
        return tuple(
            not source and shortest.count(start_us := tier.window.first_start(0), tier.window.end_of(start_us)) > _MANY
            for tier, source in zip(self.tiers, self.sources, strict=True)
        )

    @cached_property
    def follow_every_us(self) -> int:
        """The time in µs after which longer windows follow windows in progress again."""
        length_us, every_us = self.firing.window.length_us, _FOLLOW_EVERY * self.firing.early_us
        waiting = [tier.window.length_us for tier, waits in zip(self.tiers, self.waits, strict=True) if waits]
        return max(min([every_us, *(each // _FOLLOW_LEAST for each in waiting[:1])]), length_us // _FOLLOW_MOST)

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
