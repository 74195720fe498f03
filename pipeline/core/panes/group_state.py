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

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from pipeline.core.accumulation import accumulator
from pipeline.core.completion.stored_windows import Completion
from pipeline.core.panes import group_windows
from pipeline.core.panes.aggregation import Aggregation
from pipeline.core.panes.firing import END_US, NEVER_US, CommitLimits, Schedule
from pipeline.core.panes.group_firing import GroupFiring
from pipeline.core.panes.group_windows import GroupWindows, sensors_of, window_of
from pipeline.core.panes.grouped_readings import read_group_values, start_of_readings, wakes

_SOON_US = 1_000_000
_FORMATS = bytes([group_windows.VERSION, accumulator.VERSION])


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


def schedule_bytes(schedule: Schedule) -> bytes:
    """Serializes a group's schedule, with the versions of all formats of its state."""
    return schedule.to_bytes(_FORMATS)


def read_schedule(data: bytes | None, bags: Bags, aggregation: Aggregation, now_us: int) -> Schedule:
    """Parses a group's schedule; None for a new group.

    If another release wrote the state, its open windows are woken: waiting readings without values stand for them, and
    are due now. The table has what they contain, so an update does not need a drain for them.
    """
    if data is None:
        return Schedule()
    known = Schedule.from_bytes(data, _FORMATS)
    if known is not None:
        return known
    schedule = Schedule.of_another_release(data, _FORMATS)
    longer = GroupWindows(aggregation.tiers, aggregation.firing.lateness_us)
    for chunk in bags.open.read():
        (tier, start_us), sensor_ids = window_of(chunk), sensors_of(chunk)
        if tier:
            longer.note_longer(tier, start_us, sensor_ids, ahead=True)
        else:
            for part in wakes(start_us, sensor_ids):
                bags.parts.add(part)
    _replace(bags.open, longer.chunks())
    schedule.lags, schedule.open_watermark_us = longer.lags, longer.next_watermark_us(schedule.passed_us)
    schedule.due_us = {start_of_readings(part): now_us for part in [*bags.parts.read(), *bags.marks.read()]}
    return schedule


class GroupState:
    """What one firing reads and writes of a group's state.

    Args:
        bags: the state.
        aggregation: the settings.
        schedule: the group's schedule, which tells when the windows have to be read next.
        due: the starts of the windows in µs whose waiting readings or marks fire.
        now_us: the current time.
        completion: the completion of windows from the table.

    Attributes:
        windows: the windows that the firing may change.
        readings: the waiting readings that fire. The others stay.
        marks: the marks that fire. The others stay.
        follows: whether longer windows follow those in progress.
    """

    def __init__(
        self,
        bags: Bags,
        aggregation: Aggregation,
        schedule: Schedule,
        due: set[int],
        now_us: int,
        completion: Completion,
    ) -> None:
        self._bags, self._schedule, self._now_us, self._tiers = bags, schedule, now_us, aggregation.tiers
        self._firing, self._results = aggregation.firing, aggregation.results
        self._completion = completion.shortest
        late = {start_us for start_us in due if self._firing.closes(start_us, schedule.closed_before_us)}
        self.windows = GroupWindows(aggregation.tiers, aggregation.firing.lateness_us)
        fires_open = due > late or schedule.passed_us >= min(schedule.open_watermark_us, END_US)
        fires_open |= schedule.lags and schedule.follow_us <= now_us
        self.windows.has_open = fires_open
        self.follows = fires_open and schedule.follow_us <= now_us
        self._outgrown: dict[int, set[str]] = {}
        chunks = list(bags.open.read()) if fires_open else []
        parts = list(bags.parts.read()) if due > late else []
        if parts and aggregation.firing.commit:
            self._close_oldest(aggregation.firing.commit, chunks, parts)
        self.windows.read(chunk for chunk in chunks if not self._outgrows(*window_of(chunk)))
        parts = [part for part in parts if not self._outgrows(0, start_of_readings(part))]
        self.readings = _taken(bags.parts, parts, due - late)
        self.marks = _taken(bags.marks, bags.marks.read() if late else [], late)

    def _outgrows(self, tier: int, start_us: int) -> bool:
        return not tier and start_us in self._outgrown

    def _close_oldest(self, limits: CommitLimits, chunks: Sequence[bytes], parts: Sequence[bytes]) -> None:
        """Closes the oldest windows that do not fit into the state, which turns them into marks.

        Only windows close that a watermark at the clock would close, and none of them if the table may lack readings of
        any. Those that close in this firing in any case stay for their last pane: they take no state after it.
        """
        rules, schedule, sizes, others_bytes = self._firing, self._schedule, Counter[int](), 0
        for data, (tier, start_us) in [
            *((chunk, window_of(chunk)) for chunk in chunks),
            *((part, (0, start_of_readings(part))) for part in parts),
        ]:
            if tier or not rules.closes(start_us, self._now_us - rules.lateness_us):
                others_bytes += len(data)
            elif not rules.closes(start_us, schedule.closed_us):
                if not self._completion.is_certain(start_us, self._now_us):
                    return
                sizes[start_us] += len(data)
        closing = limits.closing(sizes, others_bytes)
        if not closing:
            return
        schedule.closed_us = schedule.closed_before_us = rules.window.end_of(closing[-1])
        self._outgrown = {start_us: set() for start_us in closing}
        outgrown = GroupWindows(self._tiers, 0, (each for each in chunks if self._outgrows(*window_of(each))))
        for start_us, window in outgrown.of_tier[0].items():
            self._outgrown[start_us].update(window.entries)
        for part in parts:
            if (start_us := start_of_readings(part)) in self._outgrown:
                self._outgrown[start_us].update(sensor_id for sensor_id, *_ in read_group_values(part))

    def write(self, firing: GroupFiring, group: int = 0) -> None:
        """Writes the windows back, and notes in the schedule when they have to be read next.

        Args:
            firing: the firing. What it left waits for the next one, which follows soon.
            group: the group.
        """
        schedule, bags = self._schedule, self._bags
        # A drain fires its last timer of the watermark again: it does not wait for one of the clock.
        soon_us = NEVER_US if schedule.passed_us >= END_US else self._now_us + _SOON_US
        for part in firing.left:
            bags.parts.add(part)
        for start_us, sensor_ids in [*self._outgrown.items(), *firing.left_marks.items()]:
            for mark in wakes(start_us, sensor_ids):
                bags.marks.add(mark)
        for start_us in {*map(start_of_readings, firing.left), *firing.left_marks, *firing.left_open}:
            schedule.due_us[start_us] = soon_us
        for start_us in self._outgrown:
            ended = self._firing.closes(start_us, schedule.passed_us)
            # The pane of the watermark publishes a result in any case.
            schedule.due_us[start_us] = NEVER_US if self._results and not ended else soon_us
        next_us = self.windows.next_watermark_us(schedule.passed_us, all_ends=self._results is not None)
        if self.windows.has_open:
            _replace(bags.open, self.windows.chunks())
            schedule.open_watermark_us, schedule.lags = next_us, self.windows.lags
            if self.follows:
                schedule.follow(self._now_us, self._firing, group)
        else:  # a firing of late readings has longer windows alone, which may be in the bag already
            for chunk in self.windows.chunks():
                bags.open.add(chunk)
            schedule.open_watermark_us = min(schedule.open_watermark_us, next_us)
            if self.windows.lags:
                schedule.lags, schedule.follow_us = True, max(schedule.follow_us, self._now_us)


def _taken(bag: Bag, values: Iterable[bytes], due: set[int]) -> list[bytes]:
    """Returns the values of a bag that are due; the others stay in it."""
    if not due:
        return []
    taken, left = list[bytes](), list[bytes]()
    for part in values:
        (taken if start_of_readings(part) in due else left).append(part)
    _replace(bag, left)
    return taken


def _replace(bag: Bag, values: Iterable[bytes]) -> None:
    values = list(values)
    bag.clear()
    for value in values:
        bag.add(value)
