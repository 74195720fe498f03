"""The state of a group in bags of bytes: what a firing reads of it, and what it writes back.

A bag can be added to and cleared without being read. So a firing reads only what it changes:

==========  ============================================================  ==========================================
bag         what it contains                                              read by
==========  ============================================================  ==========================================
parts       waiting readings of open windows                              panes that are early, on time or last
late parts  waiting readings of closed windows                            late panes
open        open windows                                                  panes that are early, on time or last
closed      readings that came for closed windows                         late panes, and when one is read once more
resting     windows as they were when they closed, in two generations     late panes, and never written again
deferred    results of closed windows, for longer ones that are open,     panes that are early, on time or last
            and their last readings, from which others continue
==========  ============================================================  ==========================================

A window that closes goes to a generation of resting windows, which is cleared as a whole. Late readings are kept with
the closed ones, and are merged with what still rests. If that can't be merged, like statistics, the sensor's window
moves to the closed ones, which hide the copy that rests; and so does a window that is read once more. A generation
takes windows for as long as each is kept, so the older one has expired by the time a third would begin.

If statistics continue from the window before, a window needs those around it: late panes read all closed and resting
windows, and the other panes read these too.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from pipeline.core.panes.aggregation import Aggregation
from pipeline.core.panes.firing import END_US, KEPT_US, NEVER_US, Generation, Schedule
from pipeline.core.panes.group_firing import GroupFiring
from pipeline.core.panes.group_windows import GroupWindows, window_of
from pipeline.core.panes.grouped_readings import start_of_readings

_SOON_US = 1_000_000


class Bag(Protocol):
    """A part of the state, as runners store it."""

    def read(self) -> Iterable[bytes]:
        """Returns what was added."""

    def add(self, value: bytes) -> None:
        """Adds a value."""

    def clear(self) -> None:
        """Removes all values."""


class Bags(NamedTuple):
    """The state of a group."""

    parts: Bag
    late_parts: Bag
    open: Bag
    closed: Bag
    resting: tuple[Bag, Bag]
    deferred: Bag


class GroupState:
    """What one firing reads and writes of a group's state.

    Args:
        bags: the state.
        aggregation: the settings.
        schedule: the group's schedule, which tells when the windows have to be read next.
        due: the starts of the windows in µs whose waiting readings fire.
        now_us: the current time.

    Attributes:
        windows: the windows that the firing may change.
        deferred: the results that earlier firings deferred to this one.
    """

    def __init__(self, bags: Bags, aggregation: Aggregation, schedule: Schedule, due: set[int], now_us: int) -> None:
        self._bags, self._schedule, self._due, self._now_us = bags, schedule, due, now_us
        self._firing, self._results = aggregation.firing, aggregation.results
        tiers, carries = aggregation.tiers, aggregation.carries
        closed_us = schedule.closed_before_us
        self._late_due = {start_us for start_us in due if self._firing.closes(start_us, closed_us)}
        self._drained = schedule.passed_us >= END_US
        self.windows = windows = GroupWindows(tiers, aggregation.firing.lateness_us)
        fires_open = due > self._late_due or schedule.passed_us >= schedule.open_watermark_us
        windows.has_open = fires_open or self._drained
        self.deferred = list(bags.deferred.read()) if windows.has_open and (carries or len(tiers) > 1) else []
        late = {window for window in map(window_of, self.deferred) if windows.ends_by(*window, closed_us)}
        late |= {(tier, each.window.start_of(us)) for tier, each in enumerate(tiers) for us in self._late_due}
        self._reads_closed = bool(late) or now_us >= schedule.closed_until_us or self._drained or carries
        if windows.has_open:
            windows.read(bags.open.read())
        if self._reads_closed:
            windows.read(bags.closed.read())
            schedule.closed_from_us = NEVER_US
        if self._drained:  # any of them may be computed a last time
            late |= windows.closed()
        starts_us = {start_us for _, start_us in late}
        for bag, generation in zip(bags.resting, schedule.resting, strict=True):
            if generation.is_kept(now_us) and (carries or generation.has_one_of(starts_us)):
                windows.read_resting(bag.read(), None if carries else late, now_us)
        windows.others_from_us = schedule.unread_from_us(now_us)
        # What others wrote since is not known: late readings make the job read such a window again.
        windows.drop(now_us, but_again=True)

    def take(self) -> list[bytes]:
        """Returns the waiting readings of the windows that fire, and leaves the others."""
        open_due = self._due - self._late_due
        return [*_taken(self._bags.parts, open_due), *_taken(self._bags.late_parts, self._late_due)]

    def write(self, firing: GroupFiring, group: int = 0) -> None:
        """Writes the windows back, and notes in the schedule when they have to be read next.

        Args:
            firing: the firing. The readings that it left wait for the next one, which follows soon; the results that it
                deferred wait for the group's next early or on-time pane.
            group: the group.
        """
        windows, schedule, bags = self.windows, self._schedule, self._bags
        for part in firing.left:
            bags.parts.add(part)
            schedule.due_us[start_of_readings(part)] = self._now_us + _SOON_US
        if self.deferred:
            bags.deferred.clear()
        for chunk in firing.deferred.open_chunks() if firing.deferred else ():
            bags.deferred.add(chunk)
            schedule.wait(self._firing.window.start_of(schedule.passed_us), self._now_us, self._firing, group)
        if windows.has_open:
            _replace(bags.open, windows.open_chunks())
            schedule.open_watermark_us = windows.next_watermark_us(
                schedule.passed_us, all_ends=self._results is not None
            )
        closed = list(windows.closed_chunks())
        if self._reads_closed:
            bags.closed.clear()
            schedule.closed_until_us = NEVER_US
        for chunk in closed:
            bags.closed.add(chunk)
        schedule.closed_until_us = min(schedule.closed_until_us, windows.next_time_us())
        schedule.closed_from_us = min([schedule.closed_from_us, *(start_us for _, start_us in map(window_of, closed))])
        self._rest()

    def _rest(self) -> None:
        """Adds windows that close to the generation that takes them, and clears those that have expired."""
        generations = self._schedule.resting
        for index, each in enumerate(generations):
            if each.since_us != NEVER_US and (self._drained or each.until_us <= self._now_us):
                self._bags.resting[index].clear()
                generations[index] = Generation()
        chunks = list(self.windows.resting_chunks())
        if chunks:
            takes = [index for index, each in enumerate(generations) if each.since_us + KEPT_US > self._now_us]
            # The one that has some already, if it is young enough. A clock that was set back may leave none.
            index = min(takes or range(len(generations)), key=lambda each: generations[each].since_us)
            generations[index].take(
                self._now_us, self._now_us + KEPT_US, (start_us for _, start_us in map(window_of, chunks))
            )
            for chunk in chunks:
                self._bags.resting[index].add(chunk)


def _taken(bag: Bag, due: set[int]) -> list[bytes]:
    if not due:
        return []
    taken, left = list[bytes](), list[bytes]()
    for part in bag.read():
        (taken if start_of_readings(part) in due else left).append(part)
    _replace(bag, left)
    return taken


def _replace(bag: Bag, values: Iterable[bytes]) -> None:
    values = list(values)
    bag.clear()
    for value in values:
        bag.add(value)
