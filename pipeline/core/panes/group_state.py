"""The state of a group in bags of bytes: what a firing reads of it, and what it writes back.

A bag can be added to and cleared without being read. So a firing reads only what it changes:

==========  ============================================================  ==========================================
bag         what it contains                                              read by
==========  ============================================================  ==========================================
parts       waiting readings of open windows                              panes that are early, on time or last
marks       closed windows that are due                                   late panes
open        open windows                                                  panes that are early, on time or last
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
        follows: whether longer windows follow those in progress.
    """

    def __init__(self, bags: Bags, aggregation: Aggregation, schedule: Schedule, due: set[int], now_us: int) -> None:
        self._bags, self._schedule, self._now_us = bags, schedule, now_us
        self._results = aggregation.results
        late = {start_us for start_us in due if aggregation.firing.closes(start_us, schedule.closed_before_us)}
        self.windows = GroupWindows(aggregation.tiers, aggregation.firing.lateness_us)
        fires_open = due > late or schedule.passed_us >= min(schedule.open_watermark_us, END_US)
        self.windows.has_open = fires_open
        self.follows = fires_open and schedule.read_open()
        if fires_open:
            self.windows.read(bags.open.read())
        self.readings = _taken(bags.parts, due - late, start_of_readings)
        self.marks = _taken(bags.marks, late, start_of_marks)

    def write(self, firing: GroupFiring) -> None:
        """Writes the windows back, and notes in the schedule when they have to be read next.

        Args:
            firing: the firing. The readings that it left wait for the next one, which follows soon.
        """
        schedule, bags = self._schedule, self._bags
        for part in firing.left:
            bags.parts.add(part)
            schedule.due_us[start_of_readings(part)] = self._now_us + _SOON_US
        next_us = self.windows.next_watermark_us(schedule.passed_us, all_ends=self._results is not None)
        if self.windows.has_open:
            _replace(bags.open, self.windows.chunks())
            schedule.open_watermark_us = next_us
        else:  # a firing of late readings has longer windows alone, which may be in the bag already
            for chunk in self.windows.chunks():
                bags.open.add(chunk)
            schedule.open_watermark_us = min(schedule.open_watermark_us, next_us)


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
