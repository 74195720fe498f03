"""Fires the panes of a group's windows.

A window is open until the watermark has passed its end by the allowed lateness. Until then the state contains all of
its readings. Later readings make the job compute the window again from its raw rows: such a window is late.

**One writer.** Open windows and late ones belong to the same group, and a group is processed in one place, one element
or timer after the other. So no pane replaces a row that counts more, whatever the watermark does:

- Whether a window is open or late does not depend on a runner. It follows from ``closed_us``, which is part of the
  group's state and grows only when a timer of the group fires. So a window without state was either never seen, or is
  known to be late.
- No pane of an open window fires after it is closed: closing fires the last one.
- The panes of a group are numbered, and :mod:`pipeline.core.panes.row_batches` passes them on in that order.
- A window that began before the job is read from the table before its first pane; see
  :mod:`pipeline.core.completion.stored_windows`. So is one whose first readings come long after its end by the clock,
  if the watermark lags or the group was silent: a backfill may have written it meanwhile.

Rows may reach the table after their readings reach a window: panes are on their way, and some runners write raw rows in
another step. So the state keeps a closed window for twice as long as writers retry, and a computation of the window
includes its readings. If it has statistics, which can't be merged with raw rows, it goes on as if it were open.

Open windows may not be part of a firing of late readings: what these change of a longer window, or of a window that
continues from theirs, is deferred to its next pane.

A backfill or a repair may write a window while a pane is on its way that lacks what they read. If a job may still have
the window open, it goes on the work list. A window that was over long ago is read a second time, when that pane has
certainly arrived, and written again if the table has more by then; if raw rows may be gone, and a backfill ran
meanwhile, it is listed.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from itertools import groupby
from typing import Any

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.accumulation.pane import Accumulator
from pipeline.core.accumulation.reading_columns import newest_of, time_of_key
from pipeline.core.accumulation.shorter_windows import ShorterWindows
from pipeline.core.completion.stored_windows import Completion
from pipeline.core.completion.tier_completion import ForEach
from pipeline.core.panes.aggregation import Aggregation
from pipeline.core.panes.begun_windows import BegunWindows
from pipeline.core.panes.carried_readings import CarryIn
from pipeline.core.panes.firing import END_US, KEPT_US, NEVER_US, Schedule
from pipeline.core.panes.group_windows import GroupWindows
from pipeline.core.panes.grouped_readings import Readings, encoded_readings, read_group_readings, start_of_readings
from pipeline.core.panes.longer_windows import LongerWindows
from pipeline.core.panes.pane_contributions import PaneContributions
from pipeline.core.panes.pane_results import PaneResults
from pipeline.core.panes.sensor_window import SensorWindow, StartWindows
from pipeline.core.queries.foreign import ForeignRow
from pipeline.core.results.window_results import Kind
from pipeline.core.rows.aggregate_rows import encoded_aggregate_row
from pipeline.core.rows.rows import EncodedRows
from pipeline.core.statistics.window_stats import WindowStats

# What is counted, beside what BegunWindows counts.
EARLY: Kind = "early"  # panes
ON_TIME: Kind = "on_time"
LATE: Kind = "late"
HELD_BACK, TOO_WIDE = "held back", "too wide"  # panes that are not written
RECOMPUTED = "recomputed"  # windows
LATE_EVENTS = "late events"

_Changed = dict[str, tuple[WindowStats, bool]]


class GroupFiring:
    """Fires panes of a group's windows.

    Args:
        aggregation: the settings.
        windows: the group's windows, which are changed in place.
        completion: the completion of windows from the table.
        schedule: the group's schedule, which tells how far the watermark has passed.
        now_us: the current time.
        each: a function like ``map``, which may call a function for several windows at once.

    Attributes:
        rows: the aggregate rows, at most one for each sensor and window, and one of newest readings for each sensor.
        left: readings that wait for another firing, encoded as they came.
        deferred: results of closed windows, for longer ones that are open and that this firing does not have, and last
            readings, for open windows that continue from them; None without any.
        incomplete: ``(sensor id, start in µs)`` of windows that a repair has to check.
        counts: the number of each kind of pane or window, by the names above.
        results: the results to publish; None for a job that publishes none.
        contributions: the panes' contributions to roll-ups; None for a table without any.
    """

    def __init__(
        self,
        aggregation: Aggregation,
        windows: GroupWindows,
        completion: Completion,
        schedule: Schedule,
        now_us: int,
        each: ForEach = map,
    ) -> None:
        self._tiers, self._sources = aggregation.tiers, aggregation.sources
        self._early = bool(aggregation.firing.early_us)
        self._latest = aggregation.latest
        self._windows = windows
        self._retention = completion.retention
        self._completion = [completion.tiers[tier] for tier in self._tiers]
        self._backfilled_since = completion.backfilled_since
        self._schedule, self._now_us = schedule, now_us
        self._drained = schedule.passed_us >= END_US
        self._each = each
        self._waiting: list[int] = []  # starts of windows that are yet to fire, as a heap
        self._begun = BegunWindows(aggregation, windows, completion, schedule, now_us, each)
        self._longer = LongerWindows(self._sources, windows, self._begun)
        self._carry_in: CarryIn | None = None
        if aggregation.carries:
            self._open_from_us = NEVER_US
            if not windows.has_open:
                self._open_from_us = self._tiers[0].window.start_of(schedule.closed_before_us)
            may_be_stored = partial(self._begun.may_be_stored, 0)
            self._carry_in = CarryIn(
                windows,
                self._tiers[0],
                self._open_from_us,
                completion.neighbours,
                now_us,
                may_be_stored,
                self._begun.written_until_us,
                each,
            )
        rules = aggregation.results
        self.results = rules and PaneResults(rules, windows, schedule, now_us)
        self.contributions = aggregation.rollups and PaneContributions(aggregation.rollups)
        self.rows = EncodedRows()
        self.left: list[bytes] = []
        self.deferred: GroupWindows | None = None
        self.incomplete = self._begun.incomplete
        self.counts: Counter[str] = self._begun.counts

    def fire(self, readings: Iterable[bytes], deferred: Iterable[bytes] = ()) -> None:
        """Adds readings, and fires the panes of their windows and of each longer window that contains one.

        Args:
            readings: all waiting readings of the windows that fire, as :mod:`pipeline.core.panes.grouped_readings`
                encodes them.
            deferred: the results that earlier firings deferred, as :class:`GroupWindows` encodes them.
        """
        for start_us, of_window in groupby(sorted(readings, key=start_of_readings), start_of_readings):
            self._add(start_us, [each for data in of_window for each in read_group_readings(data)])
        for chunk in deferred:
            self._add_deferred(GroupWindows(self._tiers, 0, [chunk]))
        passed_us, now_us = self._schedule.passed_us, self._now_us
        for tier, windows in enumerate(self._windows.of_tier):
            if self.results is not None:
                self.results.finish(tier)
            self._waiting = sorted(windows)
            while self._waiting:
                start_us = heappop(self._waiting)
                window = windows[start_us]
                if not tier or window.late or self._early or self._windows.ends_by(tier, start_us, passed_us):
                    self._fire_window(tier, start_us, window)
        if self._latest is not None:
            from_us = self._retention.cells_stay_from_us(self._latest, now_us)
            self.rows.extend(self._begun.newest.rows(self._latest, from_us))
        if self._carry_in and self._carry_in.deferred:
            self.deferred = self.deferred or GroupWindows(self._tiers, 0)
            self.deferred.put_lasts(self._open_from_us, self._carry_in.deferred)
        if self._drained:
            self._windows.drop_all()
        self._windows.close(self._schedule.closed_us, now_us + KEPT_US)
        self._windows.drop(now_us)

    def _add(self, start_us: int, received: list[Readings]) -> None:
        """Adds readings to their sensors' windows."""
        window: StartWindows[WindowReadings] = self._begun.of_start(0, start_us)
        sensor_ids = dict.fromkeys(each.sensor_id for each in received)
        left = self._begun.begin_in_time(start_us, window, [each for each in sensor_ids if each not in window.entries])
        if left:
            self.left += encoded_readings(start_us, [each for each in received if each.sensor_id in left])
            received = [each for each in received if each.sensor_id not in left]
        for sensor_id, metrics, times, values, members in received:
            entry = self._begun.entry(window, sensor_id)
            entry.dirty = True
            if not times:
                continue
            entry.accumulator.extend(metrics, times, values)
            if members:
                entry.moved |= entry.accumulator.note(*members)
            if self._latest is not None:
                newest = newest_of(times)
                begin = len(metrics) * (len(times) - 1 - times[::-1].index(newest))  # the last value counts
                self._begun.newest.add(sensor_id, time_of_key(newest), zip(metrics, values[begin:], strict=False))
        if window.late:
            self.counts[LATE_EVENTS] += sum(len(each.times) for each in received)

    def _fire_window(self, tier: int, start_us: int, window: StartWindows[Any]) -> None:
        ending = {
            key: entry
            for key, entry in (window.entries.items() if window.late else ())
            if self._drained or entry.kept_until_us <= self._now_us
        }
        dirty = {key: entry for key, entry in window.entries.items() if entry.dirty or (entry.again and key in ending)}
        if not dirty:
            return
        found = self._results(tier, start_us, window, dirty)
        again = {key: entry for key, entry in ending.items() if entry.again and found.get(key)}
        self._list_overwritten(tier, start_us, again)
        if not tier:
            self._carry(start_us, found, ending)
        changed, repeated = _Changed(), _Changed()
        for sensor_id, stats in found.items():
            entry = dirty[sensor_id]
            moved = entry.moved
            repeats = entry.finished and not moved and stats is not None and stats.size == entry.written
            if entry.settle(stats, late=window.late) and stats is not None:
                entry.again = self._windows.ends_by(tier, start_us, self._begun.over_us) and not self._drained
                if sensor_id in ending:
                    entry.kept_until_us = self._now_us + KEPT_US
                if entry.unsure:  # a repair may have settled it meanwhile, by other statistics
                    self.incomplete.append((sensor_id, start_us))
                (repeated if repeats else changed)[sensor_id] = stats, moved
        if changed or repeated:
            self._write(tier, start_us, changed, repeated)

    def _list_overwritten(self, tier: int, start_us: int, again: Mapping[str, SensorWindow[Any]]) -> None:
        """Lists windows whose last pane may have replaced what a backfill wrote, if the table can't tell any more."""
        if not again or self._completion[tier].is_certain(start_us, self._now_us):
            return
        fired_us = min(entry.kept_until_us for entry in again.values()) - KEPT_US
        if self._backfilled_since(fired_us - KEPT_US):  # clocks differ
            for sensor_id in again:
                self._begun.list_incomplete(sensor_id, start_us)

    def _results(
        self, tier: int, start_us: int, window: StartWindows[Any], dirty: Mapping[str, SensorWindow[Any]]
    ) -> dict[str, WindowStats | None]:
        """Returns the statistics of sensors' windows; None of one whose row has to stay as it is."""
        found = dict[str, WindowStats | None]()
        late: list[str] = []
        for sensor_id, entry in dirty.items():
            if not (entry.dirty or entry.exact):
                if entry.kept_until_us > self._now_us:  # a drain: its last pane may be on its way, and is not repeated
                    found[sensor_id] = None
                    self._begun.list_incomplete(sensor_id, start_us)
                    continue
                entry.forget()  # nothing came: only the table tells whether others wrote the row
            # Statistics can't be merged with raw rows. While they are kept, they are all that the row counts.
            if window.late and entry.exact:
                late.append(sensor_id)
            else:
                found[sensor_id] = self._of_open(sensor_id, start_us, entry)
        fresh = {sensor_id: dirty[sensor_id].whole() for sensor_id in late}
        recompute = partial(self._recomputed, tier, start_us, dirty, fresh)
        recomputed = self._completion[tier].each(recompute, late, start_us, self._now_us, self._each, fresh)
        for sensor_id, stats in recomputed.items():
            found[sensor_id] = stats
            if stats is None:
                self._begun.list_incomplete(sensor_id, start_us)
            else:
                self.counts[RECOMPUTED] += 1
        return found

    def _carry(self, start_us: int, found: Mapping[str, WindowStats | None], again: Collection[str]) -> None:
        """Carries readings into a window of the shortest tier, and from it into the next."""
        if self._carry_in is None:
            return
        known = {sensor_id: stats for sensor_id, stats in found.items() if stats is not None}
        self._carry_in.into(start_us, known, again)
        self._compute_stored(self._carry_in.beyond(start_us, known, again))

    def _compute_stored(self, stored: Iterable[tuple[str, int]]) -> None:
        """Makes windows of the shortest tier fire that only the table has."""
        for sensor_id, next_us in stored:
            window = self._begun.of_start(0, next_us)
            if sensor_id not in window.entries:
                if not window.late and not self._begun.may_be_stored(0, next_us):
                    self._begun.list_incomplete(sensor_id, next_us)  # another writer is ahead of this job
                    continue
                self._begun.begin(0, next_us, window, [sensor_id])
            entry = self._begun.entry(window, sensor_id)
            entry.dirty = entry.moved = True
            heappush(self._waiting, next_us)

    def _of_open(self, sensor_id: str, start_us: int, entry: SensorWindow[Any]) -> WindowStats | None:
        """Returns the statistics of an open window; None if its row has to stay as it is."""
        pane = entry.accumulator.pane(self._tiers[0].statistics)
        if entry.accumulator.differs:
            entry.moved = True  # it counts as much as before, of other values
            self._begun.list_incomplete(sensor_id, start_us)
        if pane.too_wide:
            self.counts[TOO_WIDE] += 1
        elif pane.stats.events and (pane.complete or not entry.stored):
            return pane.stats  # without events, only raw rows tell of the window, and they may not be all
        else:
            self.counts[HELD_BACK] += 1
        self._begun.list_incomplete(sensor_id, start_us)
        return None

    def _recomputed(
        self,
        tier: int,
        start_us: int,
        dirty: Mapping[str, SensorWindow[Any]],
        fresh: Mapping[str, Accumulator],
        sensor_id: str,
    ) -> WindowStats | None:
        """Returns the statistics of a late window from the table and what came; None if they may lack something."""
        entry, now_us = dirty[sensor_id], self._now_us
        with suppress(ForeignRow):  # another program wrote this row: the window waits for a repair
            found = self._completion[tier].completed(
                sensor_id, start_us, now_us, fresh[sensor_id], entry.last_written()
            )
            if found is not None:
                self._begun.add_newest(sensor_id, found.known)
                if found.known.differs or not found.proven:
                    self._begun.list_incomplete(sensor_id, start_us)
                if self._retention.readings_from_us(now_us) > start_us:
                    # Once raw rows may be gone, only these readings tell whether the row still counts nothing else.
                    entry.value = found.known
                return found.stats if found.stats.events else None  # without events, not even its row has arrived
        return None

    def _put(self, tier: int, shorter_us: int, changed: _Changed) -> None:
        """Adds sensors' shorter windows to the longer one that contains them; see :meth:`_write`."""
        start_us = self._tiers[tier].window.start_of(shorter_us)
        if not (self._windows.has_open or self._windows.ends_by(tier, start_us, self._schedule.closed_before_us)):
            self.deferred = self.deferred or GroupWindows(self._tiers, 0)
            for sensor_id, (stats, _) in changed.items():
                self.deferred.put(tier, start_us, sensor_id, shorter_us, stats)
            return
        window: StartWindows[ShorterWindows] = self._begun.of_start(tier, start_us)
        begun = [sensor_id for sensor_id in changed if sensor_id not in window.entries]
        self._begun.begin(tier, start_us, window, begun)
        for sensor_id in begun:
            self._longer.keep_stored(tier, sensor_id, window.entries[sensor_id].accumulator)
        for sensor_id, (stats, moved) in changed.items():
            entry = self._begun.entry(window, sensor_id)
            if not window.late:
                self._longer.settle(tier, start_us, sensor_id, entry, shorter_us)
            entry.moved |= entry.accumulator.put(shorter_us, stats) or moved
            entry.dirty = True

    def _write(self, tier: int, start_us: int, changed: _Changed, repeated: _Changed) -> None:
        """Writes rows of sensors' windows, and adds those that changed to the longer ones.

        Args:
            tier: the index of their tier.
            start_us: their start.
            changed: each sensor's statistics, and whether a row has to be written even if it counts the same.
            repeated: those of windows that are over and got nothing since their last pane.
        """
        of_tier, written = self._tiers[tier], {**changed, **repeated}
        self.rows.extend(
            encoded_aggregate_row(of_tier.window, sensor_id, start_us, stats, of_tier.family, of_tier.statistics)
            for sensor_id, (stats, _) in written.items()
        )
        if not self._windows.ends_by(tier, start_us, self._schedule.passed_us):
            timing = EARLY
        else:
            timing = LATE if self._windows.ends_by(tier, start_us, self._schedule.passed_before_us) else ON_TIME
        self.counts[timing] += len(written)
        if self.results is not None:
            self.results.add(tier, start_us, written, timing)
        if self.contributions is not None:
            self.contributions.add(tier, start_us, changed)
        for longer, source in enumerate(self._sources):
            if changed and source == tier:
                self._put(longer, start_us, changed)

    def _add_deferred(self, deferred: GroupWindows) -> None:
        if self._carry_in is not None:
            for from_us, of_start in deferred.of_tier[0].items():
                lasts = {sensor_id: entry.last for sensor_id, entry in of_start.entries.items()}
                self._compute_stored(self._carry_in.onward(from_us, lasts, beyond_state=True))
        for tier, windows in enumerate(deferred.of_tier[1:], 1):
            for window in windows.values():
                for sensor_id, entry in window.entries.items():
                    for shorter_us, stats in entry.accumulator.latest.items():
                        self._put(tier, shorter_us, {sensor_id: (stats, True)})
