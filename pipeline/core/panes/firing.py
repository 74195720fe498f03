"""Decides when the panes of a group's windows fire: at the watermark, and at times of the clock in between.

The rules limit what a firing commits, and are a part of :class:`Aggregation`, all settings of a table's windows.

A runner may deliver a timer twice, and clear it each time, even if it was set again in between: the DirectRunner does.
So a timer that fires counts as not set, whatever it was set to, and :meth:`Schedule.rearm` sets it again.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
        """Returns the starts of the windows that have to close, in order.

        Args:
            sizes: the bytes of windows that may close, and of their waiting readings, by start in µs.
            others_bytes: the bytes of all others.
        """
        closing, size = list[int](), sum(sizes.values()) + others_bytes
        for start_us in sorted(sizes):
            if size <= self.state_bytes:
                break
            closing.append(start_us)
            size -= sizes[start_us]
        return closing


VERSION = 6

NEVER_US = (1 << 63) - 1
"""Later than any watermark and any clock."""

IN_FLIGHT_US = 20 * 60 * 1_000_000
"""The time after which a row that another process wrote has certainly arrived: twice as long as writers retry."""

_FOLLOW_EVERY = 12  # early panes: each pane of a longer window reads what it counts
_FOLLOW_MOST = 12  # times in a window of the shortest tier, however many early panes it has
_FOLLOW_LEAST = 4  # times in a longer window that waits

_GOLDEN = 2_654_435_769  # the golden ratio of 32 bits: its multiples are spread evenly
_MS = 1000  # in µs; runners round timers down to it

MOST_SPREAD_US = 60_000_000
"""The most time by which a group's watermark may be behind the job's."""

END_US = 9_223_371_950_454_774_000
"""The last watermark: the end of Beam's global window, in whole milliseconds."""


def follow_every_us(window: Window, early_us: int, waiting: Window | None = None) -> int:
    """Returns the time in µs after which longer windows follow windows in progress again.

    Args:
        window: the window of the shortest tier.
        early_us: the time from a window's first new readings to an early pane in µs.
        waiting: the shortest longer window that waits; see :class:`FiringRules`.
    """
    every_us = _FOLLOW_EVERY * early_us
    if waiting is not None:
        every_us = min(every_us, waiting.length_us // _FOLLOW_LEAST)
    return max(every_us, window.length_us // _FOLLOW_MOST)


@dataclass(frozen=True)
class FiringRules:
    """The rules by which panes fire and windows close. All times are in µs.

    Args:
        window: the window of the shortest tier.
        early_us: the time from a window's first new readings to an early pane; zero for no early panes.
        late_us: the time from late readings to a late pane; zero for a pane at once.
        lateness_us: the time for which a window stays open after the watermark has passed its end.
        phases: the number of different times at which groups fire panes; None if each has its own.
        spread_us: the time over which groups fire on-time and last panes: a group's watermark is that of the job less
            the group's share of this time. Zero if all groups fire in the moment in which the watermark passes an end.
        commit: the limits of what a firing commits; None for a runner without any.
        waiting: the shortest longer window that has many of the shortest windows. Such windows do not follow each of
            these that is over, but wait for the group's next time. None if there is none.
    """

    window: Window
    early_us: int
    late_us: int
    lateness_us: int
    phases: int | None = None
    spread_us: int = 0
    commit: CommitLimits | None = None
    waiting: Window | None = None

    def closes(self, start_us: int, closed_us: int) -> bool:
        """Returns whether a window of the shortest tier is closed, if those are that end by ``closed_us``."""
        return self.window.end_of(start_us) <= closed_us

    def phase_of(self, group: int) -> int:
        """Returns the number that decides when a group fires."""
        return group % self.phases if self.phases else group

    def lag_us(self, group: int) -> int:
        """Returns the time by which a group's watermark is behind the job's; the last watermark of all is not."""
        return _share_of(self.phase_of(group), self.spread_us)


class Timers(NamedTuple):
    """The times that a group's timers have to be set to. None for a timer that stays as it is."""

    watermark_us: int | None
    clock_us: int | None


@dataclass
class Schedule:
    """The part of a group's state that is read for every element: it is small.

    Attributes:
        passed_us: an event time that the group's watermark has certainly passed.
        closed_us: the event time by which closed windows end: later readings of them are late. So this alone decides
            what is late, not a runner. It never decreases, even if an update of the job allows more lateness. It is
            ahead of the watermark if windows had to close that did not fit into the state.
        watermark_us: the time of the watermark's timer; :data:`NEVER_US` if it is not set.
        clock_us: the time of the clock's timer; :data:`NEVER_US` if it is not set.
        firings: the number of firings so far.
        follow_us: the time from which on a firing of open windows makes longer ones follow those in progress.
        lags: whether longer windows lack what panes of windows in progress count.
        open_watermark_us: the next watermark at which an open window fires or closes; :data:`NEVER_US` without one.
        due_us: the time at which waiting readings or marks have to be in a pane, by the start of their window;
            :data:`NEVER_US` if the watermark alone decides it.
        passed_before_us: the same as ``passed_us``, before the timer that fires now.
        closed_before_us: the same as ``closed_us``, before the timer that fires now.
    """

    passed_us: int = -NEVER_US
    closed_us: int = -NEVER_US
    watermark_us: int = NEVER_US
    clock_us: int = NEVER_US
    firings: int = 0
    follow_us: int = -NEVER_US
    lags: bool = False
    open_watermark_us: int = NEVER_US
    due_us: dict[int, int] = field(default_factory=dict)
    passed_before_us: int = field(init=False, compare=False)
    closed_before_us: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        self.passed_before_us, self.closed_before_us = self.passed_us, self.closed_us

    @property
    def is_over(self) -> bool:
        """Whether the watermark has passed the end of time, and nothing waits."""
        return self.passed_us >= END_US and not self.due_us

    def expect(self, start_us: int, now_us: int, firing: FiringRules, group: int = 0) -> Timers | None:
        """Notes that readings of a window wait. Returns the timers to set; None if nothing has changed.

        Early panes of a group fire at times of its own, or of its phase, ``early_us`` apart, and so do late ones,
        ``late_us`` apart: all groups together make an even load, and one firing reads the state for many windows.
        """
        if start_us in self.due_us:
            return None if self.is_armed else self.rearm(firing, group)
        phase = firing.phase_of(group)
        if firing.window.end_of(start_us) <= self.passed_us:
            due_us = _next_of(phase, now_us, firing.late_us) if firing.late_us else now_us
        else:
            due_us = _next_of(phase, now_us, firing.early_us) if firing.early_us else NEVER_US
        self.due_us[start_us] = due_us
        if not self.is_armed:  # others may be due, if another release wrote the state
            return self.rearm(firing, group)
        return self.arm(self._next_watermark_us(start_us, firing), due_us, firing.lag_us(group))

    def rearm(self, firing: FiringRules, group: int = 0) -> Timers:
        """Makes the timers fire when windows, or what waits, need it."""
        clock_us = min([*self.due_us.values(), self.follow_us if self.lags else NEVER_US])
        # A clock's timer that is still set is cleared at the last watermark: a drain would wait for it.
        watermark_us = min(self.open_watermark_us, NEVER_US if clock_us == self.clock_us == NEVER_US else END_US)
        watermarks_us = [self._next_watermark_us(start_us, firing) for start_us in self.due_us]
        return self.arm(min([watermark_us, *watermarks_us]), clock_us, firing.lag_us(group))

    def arm(self, watermark_us: int, clock_us: int, lag_us: int = 0) -> Timers:
        """Makes the timers fire at these times or earlier, but not a fraction of a millisecond too early.

        Args:
            watermark_us: the group's watermark.
            clock_us: the time of the clock.
            lag_us: the time by which the group's watermark is behind the job's.
        """
        watermark_us += lag_us if watermark_us < END_US else 0
        watermark_us, clock_us = _up_to_ms(watermark_us), _up_to_ms(clock_us)
        sooner = watermark_us < self.watermark_us, clock_us < self.clock_us
        self.watermark_us, self.clock_us = min(watermark_us, self.watermark_us), min(clock_us, self.clock_us)
        return Timers(watermark_us if sooner[0] else None, clock_us if sooner[1] else None)

    def pass_watermark(self, time_us: int, firing: FiringRules, group: int = 0) -> set[int]:
        """Notes that the watermark's timer fired. Returns the starts of the windows whose panes fire now."""
        time_us -= firing.lag_us(group) if time_us < END_US else 0
        before = self.passed_before_us, self.closed_before_us = self.passed_us, self.closed_us
        self.passed_us = max(self.passed_us, time_us)
        self.closed_us = max(self.closed_us, self.passed_us - firing.lateness_us)
        self.watermark_us = NEVER_US
        steps = list(zip(before, (self.passed_us, self.closed_us), strict=True))
        return {
            start_us
            for start_us in self.due_us
            if self.passed_us >= END_US
            or any(first_us < firing.window.end_of(start_us) <= last_us for first_us, last_us in steps)
        }

    def pass_time(self, time_us: int) -> set[int]:
        """Notes that the clock's timer fired. Returns the starts of the windows whose panes fire now."""
        self.clock_us = NEVER_US
        return {start_us for start_us, due_us in self.due_us.items() if due_us <= time_us}

    def follow(self, now_us: int, firing: FiringRules, group: int = 0) -> None:
        """Notes that longer windows follow those in progress now. They do so again at the group's next time."""
        every_us = follow_every_us(firing.window, firing.early_us, firing.waiting)
        self.follow_us = _next_of(firing.phase_of(group), now_us, every_us)

    def done(self, starts_us: Iterable[int]) -> None:
        """Notes that nothing waits for these windows any more."""
        for start_us in starts_us:
            del self.due_us[start_us]

    def _next_watermark_us(self, start_us: int, firing: FiringRules) -> int:
        """Returns the next watermark at which readings of a window may fire; otherwise the last watermark of all.

        At the last watermark, a job that is drained writes what waits.
        """
        end_us = firing.window.end_of(start_us)
        times_us = (end_us, end_us + firing.lateness_us, END_US)
        return next(time_us for time_us in times_us if time_us > self.passed_us or time_us == END_US)

    @property
    def is_armed(self) -> bool:
        """Whether a timer is set."""
        return min(self.watermark_us, self.clock_us) < NEVER_US

    def to_bytes(self, formats: bytes = b"") -> bytes:
        """Serializes the schedule: versions in one byte each, and 64-bit integers.

        Any other release can read the first three of these: what has passed, what is closed, and the number of firings.

        Args:
            formats: the versions of the formats of the rest of the state.
        """
        pairs = [number for pair in self.due_us.items() for number in pair]
        known, timers = [self.passed_us, self.closed_us, self.firings], [self.watermark_us, self.clock_us]
        rest = [self.follow_us, self.lags, self.open_watermark_us, *pairs]
        return bytes([VERSION, *formats]) + array("q", [*known, *timers, *rest]).tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, formats: bytes = b"") -> "Schedule | None":
        """Parses what :meth:`to_bytes` wrote; None if another release wrote the state, or some of it."""
        versions = bytes([VERSION, *formats])
        if data[: len(versions)] != versions:
            return None
        known, rest = _numbers(data, len(versions))
        watermark_us, clock_us, follow_us, lags, open_us, *pairs = rest
        due_us = dict(zip(pairs[::2], pairs[1::2], strict=True))
        passed_us, closed_us, firings = known
        times_us = passed_us, closed_us, watermark_us, clock_us
        return cls(*times_us, firings, follow_us, bool(lags), open_us, due_us)

    @classmethod
    def of_another_release(cls, data: bytes, formats: bytes) -> "Schedule":
        """Returns what another release's schedule tells. Timers may be set that it does not know."""
        (passed_us, closed_us, firings), _ = _numbers(data, 1 + len(formats))
        return cls(passed_us, closed_us, firings=firings)


def _numbers(data: bytes, begin: int) -> tuple[list[int], list[int]]:
    """Returns the numbers of a schedule that any release can read, and the others."""
    numbers = array("q", data[begin:])
    return list(numbers[:3]), list(numbers[3:])


def _next_of(phase: int, now_us: int, every_us: int) -> int:
    """Returns the next time of a phase after now."""
    return now_us + every_us - (now_us - _share_of(phase, every_us)) % every_us


def _share_of(phase: int, time_us: int) -> int:
    """Returns a phase's share of a time; shares of phases with neighbouring numbers are far apart."""
    return (phase * _GOLDEN % (1 << 32)) * time_us >> 32


def _up_to_ms(time_us: int) -> int:
    return min(-(-time_us // _MS) * _MS, NEVER_US)


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


class RollupRules(NamedTuple):
    """The rules by which panes contribute to roll-ups.

    Attributes:
        tiers: the table's tiers, shortest first.
        shards: the number of shards of sensors.
        of_tier: the contributions of each tier; None for a tier without roll-ups.
    """

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
