"""The state of a group in bags of bytes: what a firing reads of it, and what it writes back.

A bag can be added to and cleared without being read. So a firing reads only what it changes:

==========  ============================================================  ==========================================
bag         what it contains                                              read by
==========  ============================================================  ==========================================
parts       waiting readings of open windows                              panes that are early, on time or last
marks       closed windows that are due                                   late panes
open        open windows                                                  panes that are early, on time or last
deferred    results of closed windows, for longer ones that are open,     panes that are early, on time or last
            and their last readings, from which others continue
==========  ============================================================  ==========================================
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from pipeline.core.panes.aggregation import Aggregation
from pipeline.core.panes.firing import END_US, Schedule
from pipeline.core.panes.group_firing import GroupFiring
from pipeline.core.panes.group_windows import GroupWindows
from pipeline.core.panes.grouped_readings import start_of_readings
from pipeline.core.panes.marks import start_of_marks

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
    marks: Bag
    open: Bag
    deferred: Bag


class GroupState:
    """What one firing reads and writes of a group's state.

    Args:
        bags: the state.
        aggregation: the settings.
        schedule: the group's schedule, which tells when the windows have to be read next.
        due: the starts of the windows in µs whose waiting readings or marks fire.
        now_us: the current time.

    Attributes:
        windows: the windows that the firing may change.
        readings: the waiting readings that fire. The others stay.
        marks: the marks that fire. The others stay.
        deferred: the results that earlier firings deferred to this one.
    """

    def __init__(self, bags: Bags, aggregation: Aggregation, schedule: Schedule, due: set[int], now_us: int) -> None:
        self._bags, self._schedule, self._now_us = bags, schedule, now_us
        self._firing, self._results = aggregation.firing, aggregation.results
        late = {start_us for start_us in due if self._firing.closes(start_us, schedule.closed_before_us)}
        self.windows = GroupWindows(aggregation.tiers, aggregation.firing.lateness_us)
        fires_open = due > late or schedule.passed_us >= min(schedule.open_watermark_us, END_US)
        self.windows.has_open = fires_open
        self.deferred = list[bytes]()
        if fires_open:
            self.windows.read(bags.open.read())
            if aggregation.carries or len(aggregation.tiers) > 1:
                self.deferred += bags.deferred.read()
        self.readings = _taken(bags.parts, due - late, start_of_readings)
        self.marks = _taken(bags.marks, late, start_of_marks)

    def write(self, firing: GroupFiring, group: int = 0) -> None:
        """Writes the windows back, and notes in the schedule when they have to be read next.

        Args:
            firing: the firing. The readings that it left wait for the next one, which follows soon; the results that it
                deferred wait for the group's next early or on-time pane.
            group: the group.
        """
        schedule, bags = self._schedule, self._bags
        for part in firing.left:
            bags.parts.add(part)
            schedule.due_us[start_of_readings(part)] = self._now_us + _SOON_US
        if self.deferred:
            bags.deferred.clear()
        for chunk in firing.deferred.chunks() if firing.deferred else ():
            bags.deferred.add(chunk)
            schedule.wait(self._firing.window.start_of(schedule.passed_us), self._now_us, self._firing, group)
        if self.windows.has_open:
            _replace(bags.open, self.windows.chunks())
            schedule.open_watermark_us = self.windows.next_watermark_us(
                schedule.passed_us, all_ends=self._results is not None
            )


def _taken(bag: Bag, due: set[int], start_of: Callable[[bytes], int]) -> list[bytes]:
    if not due:
        return []
    taken, left = list[bytes](), list[bytes]()
    for part in bag.read():
        (taken if start_of(part) in due else left).append(part)
    _replace(bag, left)
    return taken


def _replace(bag: Bag, values: Iterable[bytes]) -> None:
    values = list(values)
    bag.clear()
    for value in values:
        bag.add(value)
