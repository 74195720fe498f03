"""The state of a group in bags of bytes: what a firing reads of it, and what it writes back.

A bag can be added to and cleared without being read. So a firing reads only what it changes:

==========  ============================================================  ==========================================
bag         what it contains                                              read by
==========  ============================================================  ==========================================
parts       waiting readings of open windows                              panes that are early, on time or last
marks       closed windows that are due                                   late panes
open        open windows                                                  panes that are early, on time or last
==========  ============================================================  ==========================================

The :class:`Schedule` is read for every element.

The open windows are bytes: a sequence of chunks, of which none is much larger than :data:`_CHUNK_BYTES` unless a single
sensor's window is. An accumulator stays bytes until its sensor sends something. Little-endian, without padding:

    chunk   index of the tier; 1 if the entries are compressed; start in µs; size of the sensors' ids; the ids,
            separated by line feeds, by zlib; their entries, by zlib if they are compressed
    entry   flags, 1 for dirty, 2 for moved, 4 for held, 16 for ahead; number of events and readings in the last pane
            (-1: none); sizes of the accumulator and of the readings before; the accumulator; the readings before, if
            any, as JSON: time in µs and value by metric, null for a metric without one

Any release can read a chunk without its entries: they are a cache, and the table has what they contain.
"""

import json
import struct
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol
from zlib import compress, decompress

from pipeline.core.accumulation import accumulator
from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.completion.stored_windows import Completion
from pipeline.core.panes.firing import (
    END_US,
    NEVER_US,
    Aggregation,
    CommitLimits,
    FiringRules,
)
from pipeline.core.panes.grouped_readings import read_group_values, start_of_readings, wakes
from pipeline.core.schema.table_schema import Tier
from pipeline.core.statistics.parts import At
from pipeline.core.statistics.window_stats import WindowStats


@dataclass(slots=True)
class SensorWindow:
    """One sensor's window. Of a longer one, the state has no readings.

    Attributes:
        data: the bytes of the accumulator, if ``value`` is None.
        value: the accumulator.
        dirty: whether a pane has to be written.
        written: the number of events and readings in the last pane; -1 if there was none.
        moved: whether a pane has to be written although it counts the same as the last one.
        held: whether no pane is written, because the table's row may count readings that this job can't read.
        ahead: whether longer windows lack what the last pane counts.
        finished: whether a pane has to be written because the window is over. See
            :class:`pipeline.core.panes.group_firing.PaneResults`.
        before: the last reading before the window by metric; None for a metric without one. See
            :mod:`pipeline.core.panes.group_firing`.
    """

    data: bytes = b""
    value: WindowReadings | None = None
    dirty: bool = False
    written: int = -1
    moved: bool = False
    held: bool = False
    ahead: bool = False
    before: dict[str, At | None] = field(default_factory=dict)
    finished: bool = False

    @property
    def accumulator(self) -> WindowReadings:
        """The accumulator, to be changed."""
        if self.value is None:
            self.value = WindowReadings.from_bytes(self.data)
        return self.value

    def settle(self, stats: WindowStats | None) -> bool:
        """Notes that a pane fired, with this result or none. Returns whether it has to be written."""
        changed = stats is not None and (stats.size != self.written or self.moved or self.finished)
        self.dirty = self.moved = self.finished = False
        if stats is not None:
            self.written = stats.size
        return changed


@dataclass(slots=True)
class StartWindows:
    """The sensors' windows with the same start."""

    late: bool = False
    entries: dict[str, SensorWindow] = field(default_factory=dict)


VERSION = 7

_HEADER = struct.Struct("<BBqI")
_ENTRY = struct.Struct("<BqII")
_CHUNK_BYTES = 4 << 20
_FEW_BYTES = 300  # which are not worth compressing
PACKED_BYTES = 8 << 10
"""Sensors' windows that are larger are mostly packed blocks: they are not compressed."""
_DIRTY, _MOVED, _HELD, _AHEAD = 1, 2, 4, 16


class GroupWindows:
    """The windows of one group, or some of them: those of the shortest tier, with their readings.

    Of longer windows, the state has which sensors have one that has to fire once more when it is over.

    Args:
        tiers: the table's tiers, shortest first.
        lateness_us: the time for which a window stays open after the watermark has passed its end.
        chunks: the state, as :meth:`chunks` returned it.

    Attributes:
        of_tier: each tier's windows, by their start in µs.
        has_open: whether the open windows are among them.
        written_bytes: the bytes of all chunks that :meth:`chunks` has yielded.
    """

    def __init__(self, tiers: Sequence[Tier], lateness_us: int, chunks: Iterable[bytes] = ()) -> None:
        self._ends = [tier.window.end_of for tier in tiers]
        self._lateness_us = lateness_us
        self.has_open = True
        self.written_bytes = 0
        self.of_tier: list[dict[int, StartWindows]] = [{} for _ in tiers]
        self.read(chunks)

    def read(self, chunks: Iterable[bytes]) -> None:
        """Adds windows of the state."""
        for chunk in chunks:
            tier, start_us = window_of(chunk)
            self.of_tier[tier].setdefault(start_us, StartWindows()).entries.update(_entries(chunk))

    def ends_by(self, tier: int, start_us: int, time_us: int) -> bool:
        """Returns whether a window ends by an event time."""
        return self._ends[tier](start_us) <= time_us

    def make_late(self, over_us: int, is_certain: Callable[[int], bool]) -> None:
        """Makes open windows of the shortest tier late that end by ``over_us``: they are computed from the table."""
        for start_us, window in self.of_tier[0].items():
            if not window.late and self.ends_by(0, start_us, over_us) and is_certain(start_us):
                window.late = True
                for entry in window.entries.values():
                    entry.dirty = True
                    entry.moved |= bool(entry.before)
                    entry.before.clear()

    @property
    def lags(self) -> bool:
        """Whether longer windows lack what panes of these count."""
        windows = (window for of_tier in self.of_tier for window in of_tier.values())
        return any(entry.ahead for window in windows for entry in window.entries.values())

    def note_longer(self, tier: int, start_us: int, sensor_ids: Iterable[str], *, ahead: bool) -> None:
        """Keeps which sensors have a window of a longer tier, and whether those that are longer still lack it."""
        entries = self.of_tier[tier].setdefault(start_us, StartWindows()).entries
        for sensor_id in sensor_ids:
            entries.setdefault(sensor_id, SensorWindow()).ahead = ahead

    def take_ahead(self, tier: int, start_us: int) -> Iterator[str]:
        """Yields the sensors whose windows longer ones lack, which they do no more."""
        for sensor_id, entry in self.of_tier[tier][start_us].entries.items():
            if entry.ahead:
                entry.ahead = False
                yield sensor_id

    def take_over(self, tier: int, passed_us: int) -> list[tuple[int, list[str]]]:
        """Returns and forgets the starts and sensors of a longer tier's windows that end by ``passed_us``."""
        windows = self.of_tier[tier]
        starts = [start_us for start_us in windows if self.ends_by(tier, start_us, passed_us)]
        return [(start_us, list(windows.pop(start_us).entries)) for start_us in starts]

    def drop(self, closed_us: int) -> None:
        """Drops the windows that end by ``closed_us``: the table has them."""
        for tier, windows in enumerate(self.of_tier):
            for start_us in [each for each in windows if self.ends_by(tier, each, closed_us)]:
                del windows[start_us]

    def next_watermark_us(self, passed_us: int, *, all_ends: bool = False) -> int:
        """Returns the next watermark at which an open window fires or closes; :data:`NEVER_US` without one.

        If asked for all ends, each window fires at its end, even if nothing came since its last pane. Longer ones do so
        in any case: it is what they are kept for.
        """
        found = NEVER_US
        for tier, (end_of, windows) in enumerate(zip(self._ends, self.of_tier, strict=True)):
            for start_us, window in windows.items():
                end_us, entries = end_of(start_us), window.entries.values()
                fires = end_us > passed_us and (tier or all_ends or any(each.dirty or each.ahead for each in entries))
                found = min(found, end_us if fires else end_us + self._lateness_us)
        return found

    def chunks(self) -> Iterator[bytes]:
        """Yields the windows."""
        for tier, windows in enumerate(self.of_tier):
            for start_us, window in windows.items():
                ids, parts, size = list[str](), list[bytes](), 0
                for sensor_id, entry in window.entries.items():
                    encoded = _entry_parts(entry)
                    parts += encoded
                    ids.append(sensor_id)
                    size += sum(map(len, encoded))
                    if size >= _CHUNK_BYTES:
                        yield self._chunk(tier, start_us, ids, parts)
                        ids, parts, size = [], [], 0
                if parts:
                    yield self._chunk(tier, start_us, ids, parts)

    def _chunk(self, tier: int, start_us: int, sensor_ids: Sequence[str], parts: Iterable[bytes]) -> bytes:
        ids, body = compress("\n".join(sensor_ids).encode(), 1), b"".join(parts)
        compressed = len(body) < PACKED_BYTES * len(sensor_ids) and len(body) > _FEW_BYTES
        if compressed:
            body = compress(body, 1)
        self.written_bytes += _HEADER.size + len(ids) + len(body)
        return _HEADER.pack(tier, compressed, start_us, len(ids)) + ids + body

    def large(self, size_bytes: int) -> Iterator[tuple[str, int, int]]:
        """Yields the sensor id, the start in µs and the bytes of each accumulator that is larger."""
        for windows in self.of_tier:
            for start_us, window in windows.items():
                for sensor_id, entry in window.entries.items():
                    if len(entry.data) > size_bytes:
                        yield sensor_id, start_us, len(entry.data)


def _entry_parts(entry: SensorWindow) -> list[bytes]:
    if entry.value is not None:
        entry.data = entry.value.to_bytes()
    before = json.dumps(entry.before, separators=(",", ":")).encode() if entry.before else b""
    flags = _DIRTY * entry.dirty | _MOVED * entry.moved | _HELD * entry.held | _AHEAD * entry.ahead
    return [_ENTRY.pack(flags, entry.written, len(entry.data), len(before)), entry.data, before]


def window_of(chunk: bytes) -> tuple[int, int]:
    """Returns the index of the tier of a chunk's windows, and their start in µs. Any release can read them."""
    tier, _, start_us, _ = _HEADER.unpack_from(chunk)
    return tier, start_us


def sensors_of(chunk: bytes) -> list[str]:
    """Returns the ids of the sensors of a chunk's windows. Any release can read them."""
    size = _HEADER.unpack_from(chunk)[3]
    return decompress(chunk[_HEADER.size : _HEADER.size + size]).decode().split("\n")


def _entries(chunk: bytes) -> Iterator[tuple[str, SensorWindow]]:
    """Yields a chunk's windows by sensor id."""
    _, compressed, _, size = _HEADER.unpack_from(chunk)
    body, end = chunk[_HEADER.size + size :], 0
    if compressed:
        body = decompress(body)
    for sensor_id in sensors_of(chunk):
        flags, written, size, before_size = _ENTRY.unpack_from(body, end)
        data = end + _ENTRY.size
        before, end = data + size, data + size + before_size
        entry = SensorWindow(body[data:before], None, bool(flags & _DIRTY), written)
        entry.moved, entry.held, entry.ahead = bool(flags & _MOVED), bool(flags & _HELD), bool(flags & _AHEAD)
        if before_size:
            entry.before = {metric: at and At(*at) for metric, at in json.loads(body[before:end]).items()}
        yield sensor_id, entry
    if end != len(body):
        raise ValueError("the windows are cut off")


_SOON_US = 1_000_000
_MS = 1000  # in µs; runners round timers down to it
_VERSIONS = bytes([6, VERSION, accumulator.VERSION])  # of the schedule, of windows, and of their accumulators


class Timers(NamedTuple):
    """The times that a group's timers have to be set to. None for a timer that stays as it is."""

    watermark_us: int | None
    clock_us: int | None


@dataclass
class Schedule:
    """The part of a group's state that is read for every element: it is small.

    A runner may deliver a timer twice, and clear it each time, even if it was set again in between: the DirectRunner
    does. So a timer that fires counts as not set, whatever it was set to, and :meth:`rearm` sets it again.

    Attributes:
        rules: the rules by which panes fire.
        group: the group.
        passed_us: an event time that the group's watermark has certainly passed.
        closed_us: the event time by which closed windows end: later readings of them are late. So this time decides
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

    rules: FiringRules
    group: int = 0
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

    def is_late(self, start_us: int) -> bool:
        """Returns whether a window of the shortest tier is closed."""
        return self.rules.window.end_of(start_us) <= self.closed_us

    def expect(self, start_us: int, now_us: int) -> Timers | None:
        """Notes that readings of a window wait. Returns the timers to set; None if nothing has changed.

        Early panes of a group fire at times of its own, or of its phase, ``early_us`` apart, and so do late ones,
        ``late_us`` apart: all groups together make an even load, and one firing reads the state for many windows.
        """
        if start_us in self.due_us:
            return None if self.is_armed else self.rearm()
        rules = self.rules
        if rules.window.end_of(start_us) <= self.passed_us:
            due_us = rules.next_us(self.group, now_us, rules.late_us) if rules.late_us else now_us
        else:
            due_us = rules.next_us(self.group, now_us, rules.early_us) if rules.early_us else NEVER_US
        self.due_us[start_us] = due_us
        if not self.is_armed:  # others may be due, if another release wrote the state
            return self.rearm()
        return self._arm(self._next_watermark_us(start_us), due_us)

    def rearm(self) -> Timers:
        """Makes the timers fire when windows, or what waits, need it."""
        clock_us = min([*self.due_us.values(), self.follow_us if self.lags else NEVER_US])
        # A clock's timer that is still set is cleared at the last watermark: a drain would wait for it.
        watermark_us = min(self.open_watermark_us, NEVER_US if clock_us == self.clock_us == NEVER_US else END_US)
        watermarks_us = [self._next_watermark_us(start_us) for start_us in self.due_us]
        return self._arm(min([watermark_us, *watermarks_us]), clock_us)

    def _arm(self, watermark_us: int, clock_us: int) -> Timers:
        """Makes the timers fire at these times or earlier, but not a fraction of a millisecond too early."""
        watermark_us += self.rules.lag_us(self.group) if watermark_us < END_US else 0
        watermark_us, clock_us = _up_to_ms(watermark_us), _up_to_ms(clock_us)
        sooner = watermark_us < self.watermark_us, clock_us < self.clock_us
        self.watermark_us, self.clock_us = min(watermark_us, self.watermark_us), min(clock_us, self.clock_us)
        return Timers(watermark_us if sooner[0] else None, clock_us if sooner[1] else None)

    def pass_watermark(self, time_us: int) -> set[int]:
        """Notes that the watermark's timer fired. Returns the starts of the windows whose panes fire now."""
        time_us -= self.rules.lag_us(self.group) if time_us < END_US else 0
        before = self.passed_before_us, self.closed_before_us = self.passed_us, self.closed_us
        self.passed_us = max(self.passed_us, time_us)
        self.closed_us = max(self.closed_us, self.passed_us - self.rules.lateness_us)
        self.watermark_us = NEVER_US
        steps = list(zip(before, (self.passed_us, self.closed_us), strict=True))
        return {
            start_us
            for start_us in self.due_us
            if self.passed_us >= END_US
            or any(first_us < self.rules.window.end_of(start_us) <= last_us for first_us, last_us in steps)
        }

    def pass_time(self, time_us: int) -> set[int]:
        """Notes that the clock's timer fired. Returns the starts of the windows whose panes fire now."""
        self.clock_us = NEVER_US
        return {start_us for start_us, due_us in self.due_us.items() if due_us <= time_us}

    def follow(self, now_us: int, every_us: int) -> None:
        """Notes that longer windows follow those in progress now. They do so again at the group's next time."""
        self.follow_us = self.rules.next_us(self.group, now_us, every_us)

    def done(self, starts_us: Iterable[int]) -> None:
        """Notes that nothing waits for these windows any more."""
        for start_us in starts_us:
            del self.due_us[start_us]

    def _next_watermark_us(self, start_us: int) -> int:
        """Returns the next watermark at which readings of a window may fire; otherwise the last watermark of all.

        At the last watermark, a job that is drained writes what waits.
        """
        end_us = self.rules.window.end_of(start_us)
        times_us = (end_us, end_us + self.rules.lateness_us, END_US)
        return next(time_us for time_us in times_us if time_us > self.passed_us or time_us == END_US)

    @property
    def is_armed(self) -> bool:
        """Whether a timer is set."""
        return min(self.watermark_us, self.clock_us) < NEVER_US

    def to_bytes(self) -> bytes:
        """Serializes the schedule: the versions of all formats of the state in one byte each, and 64-bit integers.

        Any other release can read the first three of these: what has passed, what is closed, and the number of firings.
        """
        pairs = [number for pair in self.due_us.items() for number in pair]
        known, timers = [self.passed_us, self.closed_us, self.firings], [self.watermark_us, self.clock_us]
        rest = [self.follow_us, self.lags, self.open_watermark_us, *pairs]
        return _VERSIONS + array("q", [*known, *timers, *rest]).tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, rules: FiringRules, group: int = 0) -> tuple["Schedule", bool]:
        """Parses what :meth:`to_bytes` wrote. Returns whether this release wrote all of the state.

        If another did, the schedule has only the numbers that any release can read, and timers may be set.
        """
        passed_us, closed_us, firings, *rest = array("q", data[len(_VERSIONS) :])
        schedule = cls(rules, group, passed_us, closed_us, firings=firings)
        if data[: len(_VERSIONS)] != _VERSIONS:
            return schedule, False
        schedule.watermark_us, schedule.clock_us, schedule.follow_us, lags, schedule.open_watermark_us, *pairs = rest
        schedule.lags, schedule.due_us = bool(lags), dict(zip(pairs[::2], pairs[1::2], strict=True))
        return schedule, True


def _up_to_ms(time_us: int) -> int:
    return min(-(-time_us // _MS) * _MS, NEVER_US)


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


@dataclass(slots=True)
class Leftovers:
    """What a firing leaves to the next one, which follows soon.

    Attributes:
        readings: readings that wait, encoded as they came, and without values for open windows that a late one wakes.
        marks: sensors whose closed windows wait, by the windows' start.
        open: starts of open windows of which some wait.
    """

    readings: list[bytes] = field(default_factory=list)
    marks: dict[int, list[str]] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)


def read_schedule(data: bytes | None, bags: Bags, aggregation: Aggregation, now_us: int, group: int = 0) -> Schedule:
    """Parses a group's schedule; None for a new group.

    If another release wrote the state, its open windows are woken: waiting readings without values stand for them, and
    are due now. The table has what they contain, so an update does not need a drain for them.
    """
    rules = aggregation.firing
    if data is None:
        return Schedule(rules, group)
    schedule, is_ours = Schedule.from_bytes(data, rules, group)
    if is_ours:
        return schedule
    longer = GroupWindows(aggregation.tiers, rules.lateness_us)
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
    """What one firing reads and writes of a group's state: waiting readings and marks of the starts ``due``.

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
        self._bags, self._due = bags, due
        self.aggregation, self.schedule, self.now_us, self.completion = aggregation, schedule, now_us, completion
        self.windows = GroupWindows(aggregation.tiers, aggregation.firing.lateness_us)
        late = {start_us for start_us in due if self.windows.ends_by(0, start_us, schedule.closed_before_us)}
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
        schedule, ends_by, sizes, others_bytes = self.schedule, self.windows.ends_by, Counter[int](), 0
        for data, (tier, start_us) in [
            *((chunk, window_of(chunk)) for chunk in chunks),
            *((part, (0, start_of_readings(part))) for part in parts),
        ]:
            if tier or not ends_by(0, start_us, self.now_us - schedule.rules.lateness_us):
                others_bytes += len(data)
            elif not ends_by(0, start_us, schedule.closed_us):
                if not self.completion.shortest.is_certain(start_us, self.now_us):
                    return
                sizes[start_us] += len(data)
        closing = limits.closing(sizes, others_bytes)
        if not closing:
            return
        schedule.closed_us = schedule.closed_before_us = schedule.rules.window.end_of(closing[-1])
        self._outgrown = {start_us: set() for start_us in closing}
        of_closing = (each for each in chunks if self._outgrows(*window_of(each)))
        outgrown = GroupWindows(self.aggregation.tiers, 0, of_closing)
        for start_us, window in outgrown.of_tier[0].items():
            self._outgrown[start_us].update(window.entries)
        for part in parts:
            if (start_us := start_of_readings(part)) in self._outgrown:
                self._outgrown[start_us].update(sensor_id for sensor_id, *_ in read_group_values(part))

    def write(self, left: Leftovers) -> Timers:
        """Writes the windows back, and schedules when they are read next. Returns the timers to set."""
        schedule, bags, has_results = self.schedule, self._bags, self.aggregation.results is not None
        schedule.done(self._due)
        # A drain fires its last timer of the watermark again: it does not wait for one of the clock.
        soon_us = NEVER_US if schedule.passed_us >= END_US else self.now_us + _SOON_US
        for part in left.readings:
            bags.parts.add(part)
        for start_us, sensor_ids in [*self._outgrown.items(), *left.marks.items()]:
            for mark in wakes(start_us, sensor_ids):
                bags.marks.add(mark)
        for start_us in {*map(start_of_readings, left.readings), *left.marks, *left.open}:
            schedule.due_us[start_us] = soon_us
        for start_us in self._outgrown:
            ended = self.windows.ends_by(0, start_us, schedule.passed_us)
            # The pane of the watermark publishes a result in any case.
            schedule.due_us[start_us] = NEVER_US if has_results and not ended else soon_us
        next_us = self.windows.next_watermark_us(schedule.passed_us, all_ends=has_results)
        if self.windows.has_open:
            _replace(bags.open, self.windows.chunks())
            schedule.open_watermark_us, schedule.lags = next_us, self.windows.lags
            if self.follows:
                schedule.follow(self.now_us, self.aggregation.follow_every_us)
        else:  # a firing of late readings has only longer windows, which may be in the bag already
            for chunk in self.windows.chunks():
                bags.open.add(chunk)
            schedule.open_watermark_us = min(schedule.open_watermark_us, next_us)
            if self.windows.lags:
                schedule.lags, schedule.follow_us = True, max(schedule.follow_us, self.now_us)
        return schedule.rearm()


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
