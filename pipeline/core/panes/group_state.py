"""The state of a group in bags of bytes: what a firing reads of it, and what it writes back.

A bag can be added to and cleared without being read. So a firing reads only what it changes:

==========  ============================================================  ==========================================
bag         what it contains                                              read by
==========  ============================================================  ==========================================
parts       waiting readings of open windows                              panes that are early, on time or last
late parts  waiting readings of closed windows                            late panes
open        open windows                                                  panes that are early, on time or last
closed      closed windows that got readings, or are read once more       late panes, and when one is read once more
resting     windows as they were when they closed, in two generations     late panes, and never written again
==========  ============================================================  ==========================================

A window that closes goes to a generation of resting windows, which is cleared as a whole. A late reading moves its
sensor's window to the closed ones, which hide the copy that rests. A generation takes windows for as long as each is
kept, so the older one has expired by the time a third would begin.

If a window depends on others (longer tiers, statistics that continue from the window before), every firing reads all
windows, and none rests.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from pipeline.core.panes.aggregation import Aggregation
from pipeline.core.panes.firing import END_US, NEVER_US, Generation, Schedule
from pipeline.core.panes.group_firing import KEPT_US
from pipeline.core.panes.group_windows import GroupWindows, start_of_windows
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
    """

    def __init__(self, bags: Bags, aggregation: Aggregation, schedule: Schedule, due: set[int], now_us: int) -> None:
        self._bags, self._schedule, self._due, self._now_us = bags, schedule, due, now_us
        closes = aggregation.firing.closes
        self._late_due = {start_us for start_us in due if closes(start_us, schedule.closed_before_us)}
        self._drained = schedule.passed_us >= END_US
        apart = aggregation.windows_are_apart
        self._reads_open = not apart or due > self._late_due or schedule.passed_us >= schedule.open_watermark_us
        self._reads_closed = not apart or bool(self._late_due) or now_us >= schedule.closed_until_us or self._drained
        self.windows = GroupWindows(aggregation.tiers, aggregation.firing.lateness_us, resting=apart)
        for bag, is_read in ((bags.open, self._reads_open), (bags.closed, self._reads_closed)):
            if is_read:
                self.windows.read(bag.read())
        for bag, generation in zip(bags.resting, schedule.resting, strict=True):
            if generation.has_one_of(self._late_due, now_us):
                self.windows.read_resting(bag.read(), self._late_due, now_us)
        # What others wrote since is not known: late readings make the job read such a window again.
        self.windows.drop(now_us, but_again=True)

    def take(self) -> list[bytes]:
        """Returns the waiting readings of the windows that fire, and leaves the others."""
        open_due = self._due - self._late_due
        return [*_taken(self._bags.parts, open_due), *_taken(self._bags.late_parts, self._late_due)]

    def write(self, left: Iterable[bytes] = ()) -> None:
        """Writes the windows back, and notes in the schedule when they have to be read next.

        Args:
            left: the readings of open windows that the firing left for the next one, which follows soon.
        """
        for part in left:
            self._bags.parts.add(part)
            self._schedule.due_us[start_of_readings(part)] = self._now_us + _SOON_US
        windows, schedule, bags = self.windows, self._schedule, self._bags
        if self._reads_open:
            _replace(bags.open, windows.open_chunks())
            schedule.open_watermark_us = windows.next_watermark_us(schedule.passed_us)
        if self._reads_closed:
            _replace(bags.closed, windows.closed_chunks())
            schedule.closed_until_us = windows.next_time_us()
        else:
            for chunk in windows.closed_chunks():
                bags.closed.add(chunk)
            schedule.closed_until_us = min(schedule.closed_until_us, windows.next_time_us())
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
            # The one that has some already, if it is young enough.
            index = min(takes, key=lambda each: generations[each].since_us)
            generations[index].take(self._now_us, self._now_us + KEPT_US, map(start_of_windows, chunks))
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
