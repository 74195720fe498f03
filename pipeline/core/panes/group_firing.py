"""Fires the panes of a group's windows.

A window is open until the watermark has passed its end by the allowed lateness. Until then the state contains all of
its readings. What comes later makes the job compute the window anew from its raw rows: such a window is late.

**One writer.** Open windows and late ones are the same group's, and a group is processed in one place, one element or
timer after the other. So no pane replaces a row that knows more, whatever the watermark does, and whenever:

- What is open and what is late does not depend on a runner. It follows from ``closed_us``, which is part of the group's
  state and grows only when a timer of the group fires. So a window without state was either never seen, or is known to
  be late.
- No pane of an open window fires after it is closed: closing fires the last one.
- The panes of a group are numbered, and :mod:`pipeline.core.panes.row_batches` passes them on in that order.
- A window that began before the job is read from the table before its first pane; see
  :mod:`pipeline.core.completion.stored_windows`. So is one whose first readings come long after its end by the clock,
  if the watermark lags or the group was silent: a backfill may have written it meanwhile.

Rows may reach the table after their readings reach a window: panes are on their way, and some runners write raw rows
apart. So what is known of a closed window is kept for twice as long as writers retry. A computation of the window
includes its readings; statistics, which can't be merged with raw rows, go on as if the window were open.

A backfill or a repair may write a window while the job's pane is on its way, computed without what they read. A window
that a job may still have open goes on the work list then. One that was over long ago is read a second time, when that
pane has certainly arrived, and written again if the table has more by then.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from heapq import heappop, heappush
from itertools import groupby
from typing import NamedTuple

from pipeline.core.accumulation.accumulator import RestoredReadings, WindowReadings
from pipeline.core.accumulation.reading_columns import newest_of, time_of_key
from pipeline.core.accumulation.shorter_windows import ShorterWindows
from pipeline.core.completion.stored_windows import Completion, RestoreFromReadings, RestoreFromShorterWindows
from pipeline.core.panes.carried_readings import CarryIn, ForEach
from pipeline.core.panes.firing import END_US, NEVER_US, FiringRules
from pipeline.core.panes.group_windows import GroupWindows, SensorWindow, StartWindows
from pipeline.core.panes.grouped_readings import Readings, read_group_readings, start_of_readings
from pipeline.core.queries.foreign import ForeignRow
from pipeline.core.rows.aggregate_rows import encoded_aggregate_row
from pipeline.core.rows.newest_row import NewestReadings
from pipeline.core.rows.rows import EncodedRows
from pipeline.core.schema.table_schema import Tier
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.core.windows.tier_sources import sources

# What is counted.
EARLY, ON_TIME, LATE = "early", "on time", "late"  # panes
HELD_BACK, TOO_WIDE = "held back", "too wide"  # panes that are not written
RESTORED, INCOMPLETE, RECOMPUTED = "restored", "incomplete", "recomputed"  # windows
LATE_EVENTS = "late events"

_KEPT_US = 20 * 60 * 1_000_000  # twice as long as writers retry


@dataclass(frozen=True)
class Aggregation:
    """How the windows of a table are aggregated. GroupReadings of a DoFn: it pickles.

    Args:
        tiers: of the table, the shortest first.
        firing: when panes fire, and windows close.
        before_us: windows that start earlier may be stored in the table already; None if no window is.
        deduplicate: whether a repeated reading counts once.
        latest: the family of the newest readings; None if the table has no rows of them.
    """

    tiers: tuple[Tier, ...]
    firing: FiringRules
    before_us: int | None = None
    deduplicate: bool = True
    latest: str | None = None

    @cached_property
    def sources(self) -> tuple[int, ...]:
        """The index of each tier's source; -1 for the shortest."""
        return sources(tuple(tier.window for tier in self.tiers))


class FiringTimes(NamedTuple):
    """When panes fire.

    Attributes:
        passed_us: the watermark.
        before_us: the watermark before that, of the group's last firing.
        closed_us: windows that end by this event time are closed.
        closed_before_us: windows that end by this event time were closed before.
        now_us: the clock.
    """

    passed_us: int
    before_us: int
    closed_us: int
    closed_before_us: int
    now_us: int


class GroupFiring:
    """Fires panes of a group's windows.

    Args:
        aggregation: how windows are aggregated.
        windows: of the group; changed in place.
        completion: completes windows from the table.
        times: when.
        each: as ``map``: calls a function for several windows, whose reads may overlap.

    Attributes:
        rows: the aggregate rows, at most one for each sensor and window, and one of newest readings for each sensor.
        incomplete: ``(sensor id, start in µs)`` of windows that a repair has to check.
        counts: how many of each kind.
    """

    def __init__(
        self,
        aggregation: Aggregation,
        windows: GroupWindows,
        completion: Completion,
        times: FiringTimes,
        each: ForEach = map,
    ) -> None:
        self._tiers, self._sources = aggregation.tiers, aggregation.sources
        self._early = bool(aggregation.firing.early_us)
        self._before_us, self._over_us = -NEVER_US, -NEVER_US
        if aggregation.before_us is not None:
            self._before_us = aggregation.before_us
            # A backfill lists windows that were over later: a job may have them in its state.
            self._over_us = times.now_us - aggregation.firing.lateness_us - _KEPT_US
        self._deduplicate = aggregation.deduplicate
        self._latest, self._newest = aggregation.latest, NewestReadings()
        self._windows = windows
        self._completion = completion
        self._times = times
        self._each = each
        self._waiting: list[int] = []  # starts of windows that are yet to fire, as a heap
        self._carry_in: CarryIn | None = None
        if self._tiers[0].statistics.carries:
            self._carry_in = CarryIn(
                windows,
                self._tiers[0],
                completion.neighbours,
                times.now_us,
                lambda start_us: self._may_be_stored(0, start_us),
                each,
            )
        self.rows = EncodedRows()
        self.incomplete: list[tuple[str, int]] = []
        self.counts: Counter[str] = Counter()

    def fire(self, parts: Iterable[bytes]) -> None:
        """Adds readings, and fires the panes of their windows and of each longer window that contains one.

        Args:
            parts: all waiting readings of the windows that fire, as :mod:`pipeline.core.panes.grouped_readings` encodes
                them.
        """
        for start_us, of_window in groupby(sorted(parts, key=start_of_readings), start_of_readings):
            window = self._window(0, start_us)
            self._add(window, start_us, [readings for part in of_window for readings in read_group_readings(part)])
        passed_us, now_us = self._times.passed_us, self._times.now_us
        for tier in range(len(self._tiers)):
            self._waiting = sorted(self._windows.of_tier[tier])
            while self._waiting:
                start_us = heappop(self._waiting)
                window = self._windows.of_tier[tier][start_us]
                if tier == 0 or window.late or self._early or self._windows.ends_by(tier, start_us, passed_us):
                    self._fire_window(tier, start_us, window)
        if self._latest is not None:
            from_us = self._completion.retention.cells_stay_from_us(self._latest, now_us)
            self.rows.extend(self._newest.rows(self._latest, from_us))
        self._windows.close(self._times.closed_us, now_us + _KEPT_US)
        self._windows.drop(now_us)

    def _window(self, tier: int, start_us: int) -> StartWindows:
        found = self._windows.of_tier[tier].get(start_us)
        if found is None:
            found = self._windows.of_tier[tier][start_us] = StartWindows()
            if self._windows.ends_by(tier, start_us, self._times.closed_before_us):
                found.kept_until_us = self._times.now_us + _KEPT_US
        elif found.late:
            found.kept_until_us = self._times.now_us + _KEPT_US
        return found

    def _add(self, window: StartWindows, start_us: int, of_window: list[Readings]) -> None:
        """Adds readings to their sensors' windows, the new ones of which are restored if the table may store them."""
        fresh = [each for each in dict.fromkeys(each.sensor_id for each in of_window) if each not in window.entries]
        self._begin(window, start_us, fresh)
        for sensor_id, metrics, times, values in of_window:
            entry = window.entries[sensor_id]
            entry.readings().extend(metrics, times, values, self._tiers[0].statistics)
            entry.dirty = True
            if self._latest is not None:
                newest = newest_of(times)
                begin = len(metrics) * times.index(newest)
                self._newest.add(sensor_id, time_of_key(newest), zip(metrics, values[begin:], strict=False))
        if window.late:
            self.counts[LATE_EVENTS] += sum(len(each.times) for each in of_window)

    def _add_newest(self, sensor_id: str, found: WindowReadings | None) -> None:
        """Adds the newest readings that were found in the table: an earlier job may have ended before it wrote them."""
        for time_us, metric, value in () if self._latest is None or found is None else found.newest():
            self._newest.add(sensor_id, time_us, ((metric, value),))

    def _begin(self, window: StartWindows, start_us: int, sensor_ids: list[str]) -> None:
        """Adds windows of sensors, and restores them if the table may store them."""
        stored = not window.late and self._may_be_stored(0, start_us)
        for sensor_id in sensor_ids:
            # Raw rows tell which readings of a late window repeat, whether or not the job de-duplicates.
            exact = self._deduplicate or window.late
            entry = SensorWindow(value=WindowReadings(deduplicate=exact), stored=stored, exact=exact)
            window.entries[sensor_id] = entry
        if sensor_ids and stored:
            self._restore(window, start_us, sensor_ids)

    def _may_be_stored(self, tier: int, start_us: int) -> bool:
        """Returns whether the table may store an open window whose first readings come now."""
        return start_us < self._before_us or self._windows.ends_by(tier, start_us, self._over_us)

    def _restore(self, window: StartWindows, start_us: int, sensor_ids: list[str]) -> None:
        """Adds what the table stores of windows that it may store."""
        method = RestoreFromReadings(self._tiers[0], self._deduplicate)

        def stored(sensor_id: str) -> tuple[RestoredReadings | None, bool]:
            try:
                return method.restore(self._completion, sensor_id, start_us, self._times.now_us)
            except ForeignRow:
                return None, False  # another program wrote this row: the window is held back, and waits for a repair

        for sensor_id, (restored, complete) in zip(sensor_ids, self._each(stored, sensor_ids), strict=True):
            if restored is not None:
                entry = window.entries[sensor_id]
                self._add_newest(sensor_id, restored.readings)
                entry.readings().restore(restored)
                entry.exact = restored.statistics is None
            self._count_restored(sensor_id, start_us, restored is not None, complete)

    def _restore_longer(
        self, tier: int, accumulator: ShorterWindows, sensor_id: str, start_us: int, is_stored: Callable[[int], bool]
    ) -> None:
        """Adds what the table stores of shorter windows that it may store; the others are still to fire."""
        method = RestoreFromShorterWindows(self._with_source(tier))
        restored, complete = None, False
        with suppress(ForeignRow):
            restored, complete = method.restore(self._completion, sensor_id, start_us, self._times.now_us)
        if restored is not None:
            shorter = {each_us: stats for each_us, stats in restored.shorter.items() if is_stored(each_us)}
            accumulator.restore(shorter, restored.floor)
        self._count_restored(sensor_id, start_us, restored is not None, complete)

    def _count_restored(self, sensor_id: str, start_us: int, restored: bool, complete: bool) -> None:
        self.counts[RESTORED] += restored
        if not complete:
            self._list(sensor_id, start_us)

    def _fire_window(self, tier: int, start_us: int, window: StartWindows) -> None:
        drained, now_us = self._times.passed_us >= END_US, self._times.now_us
        ends = window.late and (drained or window.kept_until_us <= now_us)
        dirty = {key: entry for key, entry in window.entries.items() if entry.dirty or (ends and entry.again)}
        if not dirty:
            return
        for entry in dirty.values():
            if not (entry.dirty or entry.exact):
                entry.forget()  # nothing came: only the table tells whether others wrote the row
        # Statistics can't be merged with raw rows. While they are kept, they are all that the row counts.
        late = {sensor_id: entry for sensor_id, entry in dirty.items() if window.late and entry.exact}
        found = self._recomputed(tier, start_us, late)
        for sensor_id in dirty.keys() - late.keys():
            found[sensor_id] = self._of_open(tier, sensor_id, start_us, dirty[sensor_id])
        if tier == 0 and self._carry_in is not None:
            self._carry(self._carry_in, start_us, {key: stats for key, stats in found.items() if stats}, again=ends)
        for sensor_id, stats in found.items():
            entry = dirty[sensor_id]
            came, moved = entry.dirty, entry.moved
            entry.dirty = entry.again = entry.moved = False
            if stats is None:
                if window.late:
                    entry.written = -1  # what its row counts is not known any more
                continue
            # A late window's row may be written by others too: it is written whenever something came.
            if stats.size != entry.written or moved or (window.late and came):
                entry.written = stats.size
                entry.again = self._windows.ends_by(tier, start_us, self._over_us) and not drained
                if ends:
                    window.kept_until_us = now_us + _KEPT_US
                self._write(tier, sensor_id, start_us, stats)
                for longer, source in enumerate(self._sources):
                    if source == tier:
                        self._put(longer, sensor_id, start_us, stats, moved=moved)

    def _carry(self, carry_in: CarryIn, start_us: int, found: Mapping[str, WindowStats], *, again: bool) -> None:
        """Carries readings into a window of the shortest tier, and from it into the next."""
        carry_in.into(start_us, found, again=again)
        for sensor_id, next_us in carry_in.beyond(start_us, found):
            window = self._window(0, next_us)
            if sensor_id not in window.entries:
                if not window.late and not self._may_be_stored(0, next_us):
                    self._list(sensor_id, next_us)  # another writer is ahead of this job
                    continue
                self._begin(window, next_us, [sensor_id])
            entry = window.entries[sensor_id]
            entry.dirty = entry.moved = True
            heappush(self._waiting, next_us)

    def _of_open(self, tier: int, sensor_id: str, start_us: int, entry: SensorWindow) -> WindowStats | None:
        """Returns the statistics of an open window; None if its row has to stay as it is."""
        pane = (entry.shorter() if tier else entry.readings()).pane(self._tiers[0].statistics)
        if pane.too_wide:
            self.counts[TOO_WIDE] += 1
        elif pane.complete or not entry.stored:
            return pane.stats
        else:
            self.counts[HELD_BACK] += 1
        self._list(sensor_id, start_us)
        return None

    def _recomputed(self, tier: int, start_us: int, dirty: Mapping[str, SensorWindow]) -> dict[str, WindowStats | None]:
        """Returns the statistics of late windows from the table and what came; None if they may lack something."""

        def completed(sensor_id: str) -> WindowStats | None:
            with suppress(ForeignRow):  # another program wrote this row: the window waits for a repair
                return self._completed(tier, sensor_id, start_us, dirty[sensor_id])
            return None

        found = dict(zip(dirty, self._each(completed, dirty), strict=True))
        for sensor_id, stats in found.items():
            if stats is None:
                self._list(sensor_id, start_us)
            else:
                self.counts[RECOMPUTED] += 1
        return found

    def _completed(self, tier: int, sensor_id: str, start_us: int, entry: SensorWindow) -> WindowStats | None:
        now_us = self._times.now_us
        if tier:
            tiers = self._with_source(tier)
            return self._completion.completed_longer(tiers, sensor_id, start_us, now_us, entry.shorter().latest)
        written = WindowReadings.from_bytes(entry.data) if entry.written >= 0 else None
        whole = self._completion.completed(
            self._tiers[0], sensor_id, start_us, now_us, entry.readings(), written=written
        )
        if whole is None:
            return None
        self._add_newest(sensor_id, whole)
        if not self._completion.keeps_readings(start_us, now_us):
            # Once raw rows may be gone, only these readings tell whether the row still counts nothing else.
            entry.value = whole
        stats = whole.pane(self._tiers[0].statistics).stats
        return stats if stats.events else None  # nothing is known of a window if not even its row has arrived

    def _with_source(self, tier: int) -> tuple[Tier, Tier]:
        return self._tiers[self._sources[tier]], self._tiers[tier]

    def _put(self, tier: int, sensor_id: str, shorter_us: int, stats: WindowStats, *, moved: bool) -> None:
        """Adds a shorter window to the longer one that contains it."""
        start_us = self._tiers[tier].window.start_of(shorter_us)
        window = self._window(tier, start_us)
        entry = window.entries.get(sensor_id)
        if entry is None:
            accumulator = ShorterWindows()
            stored = not window.late and self._may_be_stored(tier, start_us)
            entry = window.entries[sensor_id] = SensorWindow(value=accumulator, stored=stored)
            if stored:
                source = self._sources[tier]
                is_stored = partial(self._may_be_stored, source)
                self._restore_longer(tier, accumulator, sensor_id, start_us, is_stored)
        accumulator = entry.shorter()
        if not window.late:
            settled_us = accumulator.settled_us
            if shorter_us < settled_us:
                accumulator.unsettle()
                entry.stored = True
                self._restore_longer(tier, accumulator, sensor_id, start_us, lambda each_us: each_us < settled_us)
            # The table has the rows of windows that are not in the state any more.
            accumulator.settle(min(self._windows.of_tier[self._sources[tier]]))
        accumulator.put(shorter_us, stats)
        entry.dirty = True
        entry.moved |= moved

    def _write(self, tier: int, sensor_id: str, start_us: int, stats: WindowStats) -> None:
        of_tier = self._tiers[tier]
        self.rows.append(
            encoded_aggregate_row(of_tier.window, sensor_id, start_us, stats, of_tier.family, of_tier.statistics)
        )
        if not self._windows.ends_by(tier, start_us, self._times.passed_us):
            timing = EARLY
        else:
            timing = LATE if self._windows.ends_by(tier, start_us, self._times.before_us) else ON_TIME
        self.counts[timing] += 1

    def _list(self, sensor_id: str, start_us: int) -> None:
        self.counts[INCOMPLETE] += 1
        self.incomplete.append((sensor_id, start_us))
