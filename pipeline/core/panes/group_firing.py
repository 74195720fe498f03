"""Fires the panes of a group's windows.

A window is open until the watermark has passed its end by the allowed lateness. Until then the state has all of its
readings. When it closes, its last pane fires, and its state is dropped: from then on the window is in the table. Later
readings are in their raw rows by the time they come here, so the state notes only that the window is due. A late pane
computes it from the table.

Whether a window is open or late does not depend on a runner. It follows from ``closed_us``, which is part of the
group's state and grows only when a timer of the group fires.

No row is replaced by one that counts less, in whatever order panes and other writers' rows arrive: a cell's timestamp
tells how much its row counts. So a pane need not know what the table has, except for

- a window that began before the job: it is read from the table before its first pane;
- a window that was over long ago by the clock when it closes, since the watermark lags: a backfill may have written it
  meanwhile, so its last pane is computed from the table, like a late one.

A firing of late readings does not read the open windows: what it changes of an open longer window, or of an open window
that continues from a late one, is deferred to that one's next pane.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from itertools import groupby
from typing import Any

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.accumulation.reading_columns import newest_of, time_of_key
from pipeline.core.accumulation.shorter_windows import ShorterWindows
from pipeline.core.completion.stored_windows import Completion
from pipeline.core.completion.tier_completion import ForEach
from pipeline.core.panes.aggregation import Aggregation
from pipeline.core.panes.begun_windows import BegunWindows
from pipeline.core.panes.carried_readings import CarryIn
from pipeline.core.panes.firing import END_US, IN_FLIGHT_US, NEVER_US, Schedule
from pipeline.core.panes.group_windows import GroupWindows
from pipeline.core.panes.grouped_readings import Readings, encoded_readings, read_group_readings, start_of_readings
from pipeline.core.panes.longer_windows import LongerWindows
from pipeline.core.panes.marks import read_marks
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
TOO_WIDE = "too wide"  # panes that are not written
RECOMPUTED = "recomputed"  # windows

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
        self._schedule, self._now_us = schedule, now_us
        self._drained = schedule.passed_us >= END_US
        self._each = each
        self._waiting: list[int] = []  # starts of windows that are yet to fire, as a heap
        self._begun = BegunWindows(aggregation, windows, completion, schedule, now_us, each)
        self._longer = LongerWindows(self._sources, windows, self._begun)
        # A backfill lists the windows that were over later: a job may have them in its state.
        alone = aggregation.before_us is None
        self._over_us = -NEVER_US if alone else now_us - aggregation.firing.lateness_us - IN_FLIGHT_US
        self._carry_in: CarryIn | None = None
        if aggregation.carries:
            self._open_from_us = NEVER_US
            if not windows.has_open:
                self._open_from_us = self._tiers[0].window.start_of(schedule.closed_before_us)
            self._carry_in = CarryIn(
                windows,
                self._tiers[0],
                self._open_from_us,
                completion.neighbours,
                now_us,
                self._begun.may_be_stored,
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

    def fire(self, readings: Iterable[bytes], marks: Iterable[bytes] = (), deferred: Iterable[bytes] = ()) -> None:
        """Adds readings, and fires the panes of their windows, of marked ones, and of longer ones that contain one.

        Args:
            readings: all waiting readings of the windows that fire, as :mod:`pipeline.core.panes.grouped_readings`
                encodes them.
            marks: the windows that are due, as :mod:`pipeline.core.panes.marks` encodes them.
            deferred: the results that earlier firings deferred, as :class:`GroupWindows` encodes them.
        """
        for start_us, of_window in groupby(sorted(readings, key=start_of_readings), start_of_readings):
            self._add(start_us, [each for data in of_window for each in read_group_readings(data)])
        for start_us, sensor_id in read_marks(marks):
            self._make_due(start_us, sensor_id)
        for chunk in deferred:
            self._add_deferred(GroupWindows(self._tiers, 0, [chunk]))
        passed_us, closed_us, now_us = self._schedule.passed_us, self._schedule.closed_us, self._now_us
        self._windows.make_late(
            min(closed_us, self._over_us), lambda tier, start_us: self._completion[tier].is_certain(start_us, now_us)
        )
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
        self._windows.drop(NEVER_US if self._drained else closed_us)

    def _add(self, start_us: int, received: list[Readings]) -> None:
        """Adds readings to their sensors' windows."""
        window: StartWindows[WindowReadings] = self._begun.of_start(0, start_us)
        new: dict[str, list[Readings]] = {}
        for each in received:
            if each.sensor_id not in window.entries:
                new.setdefault(each.sensor_id, []).append(each)
        left = self._begun.begin_in_time(start_us, window, new)
        if left:
            self.left += encoded_readings(start_us, [each for each in received if each.sensor_id in left])
            received = [each for each in received if each.sensor_id not in left]
        for sensor_id, metrics, times, values, members in received:
            entry = window.entries[sensor_id]
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

    def _make_due(self, start_us: int, sensor_id: str) -> None:
        """Makes a window of the shortest tier fire, computed anew if it is closed."""
        window = self._begun.of_start(0, start_us)
        if sensor_id not in window.entries:
            self._begun.begin(0, start_us, window, [sensor_id])
        entry = window.entries[sensor_id]
        entry.dirty = entry.moved = True

    def _fire_window(self, tier: int, start_us: int, window: StartWindows[Any]) -> None:
        dirty = {sensor_id: entry for sensor_id, entry in window.entries.items() if entry.dirty}
        if not dirty:
            return
        found = self._results(tier, start_us, window, dirty)
        if not tier:
            self._carry(start_us, found)
        changed, repeated = _Changed(), _Changed()
        for sensor_id, stats in found.items():
            entry = dirty[sensor_id]
            moved = entry.moved
            repeats = entry.finished and not moved and stats is not None and stats.size == entry.written
            if entry.settle(stats) and stats is not None:
                (repeated if repeats else changed)[sensor_id] = stats, moved
        if changed or repeated:
            self._write(tier, start_us, changed, repeated)

    def _results(
        self, tier: int, start_us: int, window: StartWindows[Any], dirty: Mapping[str, SensorWindow[Any]]
    ) -> dict[str, WindowStats | None]:
        """Returns the statistics of sensors' windows; None of one whose row has to stay as it is."""
        if not window.late:
            return {sensor_id: self._of_open(sensor_id, start_us, entry) for sensor_id, entry in dirty.items()}
        fresh = {sensor_id: entry.accumulator for sensor_id, entry in dirty.items()}
        recompute = partial(self._recomputed, tier, start_us, fresh)
        found = self._completion[tier].each(recompute, list(dirty), start_us, self._now_us, self._each, fresh)
        for sensor_id, stats in found.items():
            if stats is None:
                self._begun.list_incomplete(sensor_id, start_us)
            else:
                self.counts[RECOMPUTED] += 1
        return found

    def _carry(self, start_us: int, found: Mapping[str, WindowStats | None]) -> None:
        """Carries readings into a window of the shortest tier, and from it into the next."""
        if self._carry_in is None:
            return
        known = {sensor_id: stats for sensor_id, stats in found.items() if stats is not None}
        self._carry_in.into(start_us, known)
        self._compute_stored(self._carry_in.beyond(start_us, known))

    def _compute_stored(self, stored: Iterable[tuple[str, int]]) -> None:
        """Makes windows of the shortest tier fire that only the table has."""
        for sensor_id, next_us in stored:
            window = self._begun.of_start(0, next_us)
            if sensor_id not in window.entries and not window.late and not self._begun.may_be_stored(next_us):
                self._begun.list_incomplete(sensor_id, next_us)  # another writer is ahead of this job
                continue
            self._make_due(next_us, sensor_id)
            heappush(self._waiting, next_us)

    def _of_open(self, sensor_id: str, start_us: int, entry: SensorWindow[Any]) -> WindowStats | None:
        """Returns the statistics of an open window; None if its row has to stay as it is."""
        if entry.held:
            return None
        pane = entry.accumulator.pane(self._tiers[0].statistics)
        if not entry.accumulator.exact:  # a repair may have settled it since the last pane, by other statistics
            self.incomplete.append((sensor_id, start_us))
        if entry.accumulator.differs:
            entry.moved = True  # it counts as much as before, of other values
            self._begun.list_incomplete(sensor_id, start_us)
        if pane.too_wide:
            self.counts[TOO_WIDE] += 1
            self._begun.list_incomplete(sensor_id, start_us)
        return pane.stats if pane.stats.events else None

    def _recomputed(self, tier: int, start_us: int, fresh: Mapping[str, Any], sensor_id: str) -> WindowStats | None:
        """Returns the statistics of a late window, computed from the table; None if they may lack something."""
        with suppress(ForeignRow):  # another program wrote this row: the window waits for a repair
            found = self._completion[tier].completed(sensor_id, start_us, self._now_us, fresh[sensor_id])
            if found is not None:
                self._begun.add_newest(sensor_id, found.known)
                return found.stats if found.stats.events else None
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
            entry = window.entries[sensor_id]
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
