"""Fires the panes of a group's windows.

A window is open until the watermark has passed its end by the allowed lateness. Until then the state has all of its
readings. When it closes, its last pane fires, and its state is dropped: from then on the window is in the table. Later
readings are in their raw rows by the time they come here, so the state notes only that the window is due. A late pane
computes it from the table.

Whether a window is open or late does not depend on a runner. It follows from ``closed_us``, which is part of the
group's state and grows only when a timer of the group fires.

No row is replaced by one that counts less, in whatever order panes and other writers' rows arrive: a cell's timestamp
tells how much its row counts. So a pane need not know what the table has, except for

- a window that began before the job: it is read from the table when its first readings come; from then on the state
  has all of its readings;
- a window that was over long ago by the clock when it closes, since the watermark lags: a backfill may have written it
  meanwhile, so its last pane is computed from the table, like a late one.

Longer windows have no state. They follow the windows from which they are computed, in the same firing: each one that is
over, and now and then those in progress. Their other shorter windows are read from the table. So those that have many
shorter windows follow now and then only, and when they are over.

Some statistics of a window depend on the last reading before it. So a window that fires makes the next one with data
fire too: one in the state looks again what is before it, and one that only the table has is computed anew. Windows in
the state keep what is before them, so that most panes read nothing. A firing of late readings does not read the open
windows: it wakes those that may continue from a late one. Readings without values make them fire.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from itertools import groupby
from typing import Any

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.accumulation.reading_columns import newest_of, time_of_key
from pipeline.core.completion.stored_windows import MOST_WINDOWS, ForEach, SensorStart
from pipeline.core.events.event import LATEST_US
from pipeline.core.panes.firing import END_US, IN_FLIGHT_US, NEVER_US, RollupRules
from pipeline.core.panes.group_state import GroupState, Leftovers, SensorWindow, StartWindows
from pipeline.core.panes.grouped_readings import (
    Readings,
    encoded_readings,
    read_group_readings,
    read_group_values,
    start_of_readings,
    wakes,
)
from pipeline.core.queries.reads import ForeignRow
from pipeline.core.results.window_results import Kind, PaneResult, ResultRules
from pipeline.core.rollups.contributions import Contribution
from pipeline.core.rollups.due import MOST_BYTES, Due, RowsThenDue, due_bytes, written_bytes
from pipeline.core.rows.aggregate_rows import encoded_aggregate_row
from pipeline.core.rows.newest_row import NewestReadings
from pipeline.core.rows.rollup_rows import members_key, versioned_row
from pipeline.core.rows.rows import EncodedRows, some_at_a_time
from pipeline.core.schema.rate import group_of
from pipeline.core.statistics.parts import At, carried
from pipeline.core.statistics.window_stats import WindowStats, lasts_of

# What is counted.
EARLY: Kind = "early"  # panes
ON_TIME: Kind = "on_time"
LATE: Kind = "late"
TOO_WIDE = "too wide"  # panes that are not written
RECOMPUTED = "recomputed"  # windows
RESTORED, INCOMPLETE = "restored", "incomplete"

_MOST_MEMBERS = 1000  # sensors in a mutation of a row of members
_CLOCKS_DIFFER_US = 60_000_000  # at most, between workers

HELD_S = 0.5
"""The seconds after which a firing restores no further windows from the table, if it may leave their readings."""

_FIRST_SENSORS = 8  # whose windows a firing restores first: dense ones take long

_Changed = dict[str, WindowStats]  # by sensor


class GroupFiring:
    """Fires panes of a group's windows.

    Args:
        state: the part of the group's state that the firing reads; its windows are changed in place.
        each: a function like ``map``, which may call a function for several windows at once.

    Attributes:
        rows: the aggregate rows, at most one for each sensor and window, and one of newest readings for each sensor.
        left: the readings and windows that wait for another firing.
        incomplete: ``(sensor id, start in µs)`` of windows that a repair has to check.
        counts: the number of each kind of pane or window, by the names above.
        results: the results to publish; None for a job that publishes none.
        contributions: the panes' contributions to roll-ups; None for a table without any.
    """

    def __init__(self, state: GroupState, each: ForEach = map) -> None:
        aggregation, completion, schedule, now_us = state.aggregation, state.completion, state.schedule, state.now_us
        self._state = state
        self._tiers, self._sources = aggregation.tiers, aggregation.sources
        self._early, self._tells_ends = bool(aggregation.firing.early_us), aggregation.tells_ends
        self._waits = aggregation.waits
        self._windows = windows = state.windows
        self._completion = [completion.tiers[tier] for tier in self._tiers]
        self._shortest = completion.shortest
        self._schedule, self._now_us = schedule, now_us
        self._drained = schedule.passed_us >= END_US
        self._each = each
        self._waiting: list[int] = []  # starts of windows that are yet to fire, as a heap
        self._held_until_s = time.monotonic() + HELD_S
        self._stored_until_us = -NEVER_US if aggregation.before_us is None else aggregation.before_us
        self._latest = aggregation.latest
        self._newest = NewestReadings()
        self._fired: dict[int, _Changed] = defaultdict(dict)  # panes of the shortest tier, by start
        # The longer windows that have to follow, of each tier by start and sensor: shorter ones that fired, by start.
        self._behind: list[dict[int, dict[str, dict[int, WindowStats]]]] = [
            defaultdict(lambda: defaultdict(dict)) for _ in self._tiers
        ]
        # A backfill lists the windows that were over later: a job may have them in its state.
        alone = aggregation.before_us is None
        self._over_us = -NEVER_US if alone else now_us - aggregation.firing.lateness_us - IN_FLIGHT_US
        self._open_from_us = LATEST_US
        if not windows.has_open:
            self._open_from_us = self._tiers[0].window.start_of(schedule.closed_before_us)
        self._neighbours = completion.neighbours
        self._carry_in = _CarryIn(self) if aggregation.carries else None
        self.results = aggregation.results and PaneResults(aggregation.results, state)
        self.contributions = aggregation.rollups and PaneContributions(aggregation.rollups)
        self.rows, self.left = EncodedRows(), Leftovers()
        self._rows_bytes, self._limits = 0, aggregation.firing.commit
        self.incomplete = list[tuple[str, int]]()
        self.counts = Counter[str]()

    def fire(self) -> None:
        """Adds waiting readings, and fires the panes of their windows, of marked ones, and of longer ones around."""
        for start_us, of_window in groupby(sorted(self._state.readings, key=start_of_readings), start_of_readings):
            self._add(start_us, [each for data in of_window for each in read_group_readings(data)])
        for part in self._state.marks:
            for sensor_id, *_ in read_group_values(part):
                self._make_due(start_of_readings(part), sensor_id)
        closed_us, now_us = self._schedule.closed_us, self._now_us
        over_us = max(self._schedule.passed_us, closed_us)
        self._windows.make_late(
            min(closed_us, self._over_us), lambda start_us: self._shortest.is_certain(start_us, now_us)
        )
        if self.results is not None:
            self.results.finish()
        windows = self._windows.of_tier[0]
        self._waiting = sorted(windows)
        while self._waiting:
            start_us = heappop(self._waiting)
            window = windows[start_us]
            if window.late or self._early or self._windows.ends_by(0, start_us, over_us):
                self._fire_window(start_us, window)
        if len(self._tiers) > 1:
            self._fire_longer()
        if self._latest is not None:
            from_us = self._state.completion.retention.cells_stay_from_us(self._latest, now_us)
            self.rows.extend(self._newest.rows(self._latest, from_us))
        if self._carry_in and self._carry_in.woken:
            stored = self._tiers[0].window.starts(self._open_from_us, self._written_until_us)
            for start_us in {self._open_from_us, *stored}:
                self.left.readings += wakes(start_us, sorted(self._carry_in.woken))
        self._windows.drop(NEVER_US if self._drained else closed_us)

    def _add(self, start_us: int, received: list[Readings]) -> None:
        """Adds readings to their sensors' windows."""
        window = self._of_start(start_us)
        new: dict[str, list[Readings]] = {}
        for each in received:
            if each.sensor_id not in window.entries or not each.times:  # woken: the table has more
                new.setdefault(each.sensor_id, []).append(each)
        left = self._begin_in_time(start_us, window, new)
        if left:
            self.left.readings += encoded_readings(start_us, [each for each in received if each.sensor_id in left])
            received = [each for each in received if each.sensor_id not in left]
        for sensor_id, metrics, times, values, members in received:
            entry = window.entries[sensor_id]
            entry.dirty = True
            if not times:
                entry.ahead = len(self._tiers) > 1  # even if it has no readings: the table may have longer ones
                if self._carry_in is not None:
                    self._carry_in.look_again(sensor_id, start_us)
                continue
            entry.accumulator.extend(metrics, times, values)
            if members:
                entry.moved |= entry.accumulator.note(*members)
            if self._latest is not None:
                newest = newest_of(times)
                begin = len(metrics) * (len(times) - 1 - times[::-1].index(newest))  # the last value counts
                self._newest.add(sensor_id, time_of_key(newest), zip(metrics, values[begin:], strict=False))

    def _make_due(self, start_us: int, sensor_id: str) -> None:
        """Makes a window of the shortest tier fire, computed anew if it is closed."""
        window = self._of_start(start_us)
        if sensor_id not in window.entries:
            self._begin(start_us, window, [sensor_id])
        entry = window.entries[sensor_id]
        entry.dirty = entry.moved = True
        entry.ahead = len(self._tiers) > 1

    def _of_start(self, start_us: int) -> StartWindows:
        """Returns the sensors' windows with this start."""
        found = self._windows.of_tier[0].get(start_us)
        if found is None:
            late = self._windows.ends_by(0, start_us, self._schedule.closed_before_us)
            found = self._windows.of_tier[0][start_us] = StartWindows(late)
        return found

    def _begin_in_time(
        self, start_us: int, window: StartWindows, received: Mapping[str, Sequence[Readings]]
    ) -> set[str]:
        """Adds windows. Returns the sensors whose readings have to wait for another firing.

        A group is held while its windows are restored. The readings that are left count as if they came a second later,
        which is possible until the window closes or the job is drained.
        """
        closes = self._windows.ends_by(0, start_us, self._schedule.closed_us)
        if closes or self._drained or not self._is_read(start_us, received):
            self._begin(start_us, window, list(received), received)
            return set()
        sensor_ids = list(received)
        began_s, begun, at_once = time.monotonic(), 0, _FIRST_SENSORS
        while at_once > 0 and begun < len(sensor_ids):
            self._begin(start_us, window, sensor_ids[begun : begun + at_once], received)
            begun, now_s = begun + at_once, time.monotonic()
            in_time = begun * (self._held_until_s - now_s) / max(now_s - began_s, 1e-6)
            at_once = min(round(in_time), MOST_WINDOWS)
        return set(sensor_ids[begun:])

    def _begin(
        self,
        start_us: int,
        window: StartWindows,
        sensor_ids: Sequence[str],
        received: Mapping[str, Sequence[Readings]] | None = None,
    ) -> None:
        """Adds windows, which continue from the table if it may store them. Woken ones get what it stores."""
        stored = not window.late and self._is_read(start_us, received or {})
        restored = self._restored(start_us, sensor_ids, received) if stored and sensor_ids else {}
        for sensor_id in sensor_ids:
            readings = restored.get(sensor_id)
            if known := window.entries.get(sensor_id):
                if readings is not None:
                    known.accumulator.merge(readings)
                known.before.clear()
                continue
            held = stored and readings is None
            value = WindowReadings() if readings is None else readings
            window.entries[sensor_id] = SensorWindow(value=value, held=held)

    def _is_read(self, start_us: int, received: Mapping[str, Sequence[Readings]]) -> bool:
        """Returns whether the table may store open windows whose readings come now; it does if one of them is woken."""
        woken = any(not each.times for of_sensor in received.values() for each in of_sensor)
        return woken or self.may_be_stored(start_us)

    def may_be_stored(self, start_us: int) -> bool:
        """Returns whether the table may store an open window whose first readings come now."""
        return start_us < self._stored_until_us

    @property
    def _written_until_us(self) -> int:
        """The time before which windows of the shortest tier start that are closed, or may be stored."""
        ended_us = self._schedule.closed_before_us
        first_us = self._tiers[0].window.start_of(min(ended_us, LATEST_US)) if ended_us > 0 else 0
        return max(first_us, self._stored_until_us)

    def _restored(
        self, start_us: int, sensor_ids: Sequence[str], received: Mapping[str, Sequence[Readings]] | None = None
    ) -> dict[str, WindowReadings | None]:
        """Returns all that the table stores of windows.

        None of a window if another program wrote its row. Such a window is listed, and so is one of which raw rows may
        have been collected.
        """
        completion = self._shortest
        fresh = dict[str, WindowReadings]()
        if received is not None and not completion.is_certain(start_us, self._now_us):
            for sensor_id in sensor_ids:
                fresh[sensor_id] = WindowReadings()
                for _, metrics, times, values, _ in received[sensor_id]:
                    fresh[sensor_id].extend(metrics, times, values)

        def restored(window: SensorStart) -> tuple[WindowReadings | None, bool]:
            with suppress(ForeignRow):  # the window waits for a repair
                return completion.restored(*window, self._now_us, fresh.get(window[0]))
            return None, False

        found = completion.each(restored, [(each, start_us) for each in sensor_ids], self._now_us, self._each)
        for (sensor_id, _), (readings, certain) in found.items():
            if readings is not None:
                self._add_newest(sensor_id, readings)
                self.counts[RESTORED] += 1
            if not certain:
                self._list_incomplete(sensor_id, start_us)
        return {sensor_id: readings for (sensor_id, _), (readings, _) in found.items()}

    def _add_newest(self, sensor_id: str, found: WindowReadings) -> None:
        """Adds the newest readings that were found in the table: an earlier job may have ended before it wrote them."""
        for time_us, metric, value in () if self._latest is None else found.newest():
            self._newest.add(sensor_id, time_us, ((metric, value),))

    def _list_incomplete(self, sensor_id: str, start_us: int) -> None:
        """Lists a window for a repair."""
        self.counts[INCOMPLETE] += 1
        self.incomplete.append((sensor_id, start_us))

    def _fire_window(self, start_us: int, window: StartWindows) -> None:
        """Fires the panes of sensors' windows of the shortest tier."""
        dirty = [sensor_id for sensor_id, entry in window.entries.items() if entry.dirty]
        for first in range(0, len(dirty), MOST_WINDOWS):
            if self._is_full and self._may_wait(start_us, window):
                self._leave(start_us, window, dirty[first:])
                break
            some = {sensor_id: window.entries[sensor_id] for sensor_id in dirty[first : first + MOST_WINDOWS]}
            self._fire_sensors(start_us, window, some)

    @property
    def _is_full(self) -> bool:
        """Whether so many panes have fired that the others have to wait."""
        others_bytes = self.contributions.size_bytes if self.contributions else 0
        return self._limits is not None and self._rows_bytes + others_bytes >= self._limits.panes_bytes

    def _may_wait(self, start_us: int, window: StartWindows) -> bool:
        """Returns whether a window may fire later: from the state, or from the table."""
        in_table = window.late or self._shortest.is_certain(start_us, self._now_us)
        return in_table or not self._closes(start_us)

    def _closes(self, start_us: int) -> bool:
        """Returns whether the state drops a window after this firing."""
        return self._drained or self._windows.ends_by(0, start_us, self._schedule.closed_us)

    def _leave(self, start_us: int, window: StartWindows, sensor_ids: list[str]) -> None:
        """Leaves windows to the next firing; those that close are computed from the table then."""
        if self._closes(start_us):
            self.left.marks[start_us] = sensor_ids
            return
        self.left.open.add(start_us)
        for sensor_id in sensor_ids:
            window.entries[sensor_id].moved |= window.entries[sensor_id].finished

    def _fire_sensors(self, start_us: int, window: StartWindows, dirty: Mapping[str, SensorWindow]) -> None:
        found = self._results(start_us, window, dirty)
        if self._carry_in is not None:
            known = {sensor_id: stats for sensor_id, stats in found.items() if stats is not None}
            self._carry_in.into(start_us, known)
            self._compute_stored(self._carry_in.beyond(start_us, known))
        changed, repeated = _Changed(), _Changed()
        for sensor_id, stats in found.items():
            entry = dirty[sensor_id]
            repeats = entry.finished and not entry.moved and stats is not None and stats.size == entry.written
            if entry.settle(stats) and stats is not None:
                (repeated if repeats else changed)[sensor_id] = stats
                entry.ahead |= not repeats and len(self._tiers) > 1
        if changed or repeated:
            self._fired[start_us] |= changed
            self._write(0, start_us, changed, repeated)

    def _results(
        self, start_us: int, window: StartWindows, dirty: Mapping[str, SensorWindow]
    ) -> dict[str, WindowStats | None]:
        """Returns the statistics of sensors' windows; None of one whose row has to stay as it is."""
        if not window.late:
            return {sensor_id: self._of_open(sensor_id, start_us, entry) for sensor_id, entry in dirty.items()}
        found = self._completed(0, start_us, {sensor_id: entry.accumulator for sensor_id, entry in dirty.items()})
        self.counts[RECOMPUTED] += sum(stats is not None for stats in found.values())
        return found

    def _compute_stored(self, stored: Iterable[tuple[str, int]]) -> None:
        """Makes windows of the shortest tier fire that only the table has.

        It does so whether or not the row continues from what fires: this firing may repeat one whose rows were written,
        and whose other outputs were lost.
        """
        for sensor_id, next_us in stored:
            window = self._of_start(next_us)
            if not (sensor_id in window.entries or window.late or self.may_be_stored(next_us)):
                # Another writer is ahead of this job.
                self._begin(next_us, window, [sensor_id], {sensor_id: [Readings(sensor_id, (), (), ())]})
            self._make_due(next_us, sensor_id)
            heappush(self._waiting, next_us)

    def _of_open(self, sensor_id: str, start_us: int, entry: SensorWindow) -> WindowStats | None:
        """Returns the statistics of an open window; None if its row has to stay as it is."""
        if entry.held:
            return None
        pane = entry.accumulator.pane(self._tiers[0].statistics)
        if not entry.accumulator.exact:  # a repair may have settled it since the last pane, by other statistics
            self.incomplete.append((sensor_id, start_us))
        if entry.accumulator.differs:
            entry.moved = True  # it counts as much as before, of other values
            self._list_incomplete(sensor_id, start_us)
        if pane.too_wide:
            self.counts[TOO_WIDE] += 1
            self._list_incomplete(sensor_id, start_us)
        return pane.stats if pane.stats.events else None

    def _completed(self, tier: int, start_us: int, fresh: Mapping[str, Any]) -> dict[str, WindowStats | None]:
        """Returns the statistics of sensors' windows, computed from the table; None of one that may lack something."""
        completion, now_us = self._completion[tier], self._now_us

        def completed(window: SensorStart) -> WindowStats | None:
            sensor_id, _ = window
            with suppress(ForeignRow):  # another program wrote this row: the window waits for a repair
                found = completion.completed(*window, now_us, fresh[sensor_id])
                if found is not None:
                    if not tier:
                        self._add_newest(sensor_id, found.known)
                    return found.stats
            return None

        of_windows = {(sensor_id, start_us): each for sensor_id, each in fresh.items()}
        of_each = completion.each(completed, list(of_windows), now_us, self._each, of_windows)
        found = {sensor_id: stats for (sensor_id, _), stats in of_each.items()}
        for sensor_id, stats in found.items():
            whole = stats is not None and (completion.is_certain(start_us, now_us) or (tier and stats.events))
            if not whole and (not tier or self._windows.ends_by(tier, start_us, self._schedule.passed_us)):
                self._list_incomplete(sensor_id, start_us)  # a longer one when it is over, not in each firing
        return {sensor_id: stats if stats is not None and stats.events else None for sensor_id, stats in found.items()}

    def _fire_longer(self) -> None:
        """Fires the panes of the longer windows that follow the shorter ones that fired.

        A longer window in progress is noted if it has to fire once more when it is over: to publish that it is over,
        because even longer ones have not followed, or because it could not be computed.
        """
        behind, windows, passed_us = self._behind, self._windows, self._schedule.passed_us
        follows = self._state.follows
        for start_us, window in windows.of_tier[0].items():
            if follows or window.late or windows.ends_by(0, start_us, passed_us):
                for sensor_id in windows.take_ahead(0, start_us):
                    self._follow(0, start_us, sensor_id, self._fired[start_us].get(sensor_id))
        for tier in range(1, len(self._tiers)):
            for start_us, sensor_ids in windows.take_over(tier, passed_us):
                for sensor_id in sensor_ids:
                    behind[tier][start_us].setdefault(sensor_id, {})
            for start_us in windows.of_tier[tier] if follows else ():
                for sensor_id in windows.take_ahead(tier, start_us):
                    behind[tier][start_us].setdefault(sensor_id, {})
            for start_us, shorter in sorted(behind[tier].items()):
                over = windows.ends_by(tier, start_us, passed_us)
                if self._waits[tier] and not (over or follows):
                    windows.note_longer(tier, start_us, shorter, ahead=self._early)
                    continue
                ahead = self._early and tier in self._sources and not (over or follows)
                if not over and (self._tells_ends or ahead):
                    windows.note_longer(tier, start_us, shorter, ahead=ahead)
                if over or self._early:
                    found = self._completed(tier, start_us, shorter)
                    changed = {sensor_id: stats for sensor_id, stats in found.items() if stats is not None}
                    if not over and len(changed) < len(found):
                        windows.note_longer(tier, start_us, found.keys() - changed.keys(), ahead=False)
                    self._write(tier, start_us, changed)
                    for sensor_id, stats in changed.items() if not ahead else ():
                        self._follow(tier, start_us, sensor_id, stats)

    def _follow(self, tier: int, start_us: int, sensor_id: str, stats: WindowStats | None) -> None:
        """Makes the longer windows follow that are computed from this one; without statistics, the table has them."""
        for longer, source in enumerate(self._sources):
            if source == tier:
                of_sensor = self._behind[longer][self._tiers[longer].window.start_of(start_us)][sensor_id]
                if stats is not None:
                    of_sensor[start_us] = stats

    def _write(self, tier: int, start_us: int, changed: _Changed, repeated: _Changed | None = None) -> None:
        """Writes rows of sensors' windows.

        Args:
            tier: the index of their tier.
            start_us: their start.
            changed: each sensor's statistics.
            repeated: the statistics of windows that are over and got nothing since their last pane.
        """
        of_tier, written = self._tiers[tier], {**changed, **(repeated or {})}
        rows = [
            encoded_aggregate_row(of_tier.window, sensor_id, start_us, stats, of_tier.family, of_tier.statistics)
            for sensor_id, stats in written.items()
        ]
        self.rows += rows
        self._rows_bytes += sum(len(row.key) + len(row.mutations) for row in rows)
        timing = LATE if self._windows.ends_by(tier, start_us, self._schedule.passed_before_us) else ON_TIME
        if not self._windows.ends_by(tier, start_us, self._schedule.passed_us):
            timing = EARLY
        self.counts[timing] += len(written)
        if self.results is not None:
            self.results.add(tier, start_us, written, timing)
        if self.contributions is not None:
            self.contributions.add(tier, start_us, changed)


class _CarryIn:
    """Carries the last reading before a window into its statistics, for windows of the shortest tier.

    Args:
        firing: the firing.

    Attributes:
        woken: the sensors whose open windows have to look again what is before them.
    """

    def __init__(self, firing: GroupFiring) -> None:
        self._firing = firing
        self._windows: dict[int, StartWindows] = firing._windows.of_tier[0]
        self._tier = firing._tiers[0]
        self._reached: set[tuple[str, int]] = set()  # windows that fire only because one before them did
        self.woken: set[str] = set()

    def look_again(self, sensor_id: str, from_us: int) -> None:
        """Makes a sensor's windows from a start on look again what is before them."""
        for start_us, window in self._windows.items():
            if start_us >= from_us and (entry := window.entries.get(sensor_id)) is not None:
                entry.before.clear()
                entry.dirty = entry.moved = True

    def into(self, start_us: int, found: Mapping[str, WindowStats]) -> None:
        """Adds the last readings before a window to its statistics."""
        entries, carries_to = self._windows[start_us].entries, self._tier.statistics.carries_to
        missing: dict[str, list[str]] = {}
        for sensor_id, stats in found.items():
            known = entries[sensor_id].before
            if metrics := [metric for metric in stats.metrics if metric not in known and carries_to(metric)]:
                missing[sensor_id] = metrics
        looked_up = self._firing._each(lambda sensor_id: self._before(start_us, sensor_id, missing[sensor_id]), missing)
        for sensor_id, readings in zip(missing, looked_up, strict=True):
            entries[sensor_id].before |= readings
        for sensor_id, stats in found.items():
            for metric, of_metric in stats.metrics.items():
                if of_metric.parts:
                    of_metric.parts = carried(of_metric.parts, entries[sensor_id].before.get(metric))

    def beyond(self, start_us: int, found: Mapping[str, WindowStats]) -> list[tuple[str, int]]:
        """Makes the windows after a window that fires look again what is before them.

        Returns the sensors and starts of windows that only the table has.
        """
        end_us, carries_to = self._tier.window.end_of(start_us), self._tier.statistics.carries_to
        beyond_state = self._windows[start_us].late or self._firing.may_be_stored(end_us)
        stored = dict[str, dict[str, None]]()
        for sensor_id, stats in found.items():
            if (sensor_id, start_us) in self._reached:
                continue  # its last readings are what they were
            self.look_again(sensor_id, end_us)
            if beyond_state and (carried := [metric for metric in stats.metrics if carries_to(metric)]):
                stored[sensor_id] = dict.fromkeys(carried)

        def following(sensor_id: str) -> tuple[dict[int, bool], int]:
            return self._firing._neighbours.following(sensor_id, stored[sensor_id], end_us, self._firing._open_from_us)

        reached = list[tuple[str, int]]()
        for sensor_id, (starts, until_us) in zip(stored, self._firing._each(following, stored), strict=True):
            if until_us == self._firing._open_from_us < LATEST_US:
                self.woken.add(sensor_id)
            reached += [(sensor_id, each_us) for each_us in sorted(starts)]
            self._reached.update((sensor_id, each_us) for each_us in starts if not self._has(sensor_id, each_us))
        return reached

    def _has(self, sensor_id: str, start_us: int) -> bool:
        """Returns whether a window is in the state: it may fire because of readings of its own."""
        window = self._windows.get(start_us)
        return window is not None and sensor_id in window.entries

    def _before(self, start_us: int, sensor_id: str, metrics: Iterable[str]) -> dict[str, At | None]:
        """Returns the last reading of each metric before a window; None for a metric without one."""
        found, floors = dict[str, At | None](dict.fromkeys(metrics)), dict.fromkeys(metrics, 0)
        waiting, late = set(found), set[str]()
        for each_us in sorted((each_us for each_us in self._windows if each_us < start_us), reverse=True):
            if not waiting:
                break
            window = self._windows[each_us]
            stats, entry = self._firing._fired.get(each_us, {}).get(sensor_id), window.entries.get(sensor_id)
            if stats is None and entry is not None and not window.late:
                stats = entry.accumulator.pane(self._tier.statistics).stats
            lasts = {} if stats is None else lasts_of(stats)
            for metric in waiting & lasts.keys():
                found[metric], floors[metric] = lasts[metric], self._tier.window.end_of(each_us)
                late |= {metric} if window.late else set()
            waiting -= lasts.keys()
        by_floor: dict[int, list[str]] = {}
        for metric, floor_us in floors.items():
            # Of windows that this job has open, the state contains all.
            if floor_us < start_us and (not floor_us or metric in late or self._firing.may_be_stored(floor_us)):
                by_floor.setdefault(floor_us, []).append(metric)
        for floor_us, some in by_floor.items():
            stored = self._firing._neighbours.before(sensor_id, some, floor_us, start_us, self._firing._now_us)
            found |= {metric: max(at, found[metric] or at) for metric, at in stored.items()}
        return found


class PaneContributions:
    """The contributions of a firing.

    Attributes:
        size_bytes: their bytes so far.
    """

    def __init__(self, rules: RollupRules) -> None:
        self._rules = rules
        self.size_bytes = 0
        self._found: dict[tuple[int, int, int], dict[bytes, Contribution]] = defaultdict(dict)

    def add(self, tier: int, start_us: int, changed: Mapping[str, WindowStats]) -> None:
        """Adds the panes of windows of a tier that have the same start, which are written with these statistics."""
        contributions, shards = self._rules.of_tier[tier], self._rules.shards
        if contributions is None:
            return
        found, of = self._found, contributions.of
        for sensor_id, stats in changed.items():
            sensor = sensor_id.encode()
            contribution = found[tier, start_us, group_of(sensor, shards)][sensor] = of(start_us, stats)
            self.size_bytes += len(sensor) + len(contribution.cell.value) + sum(map(len, contribution.texts))

    def batches(self) -> Iterator[bytes]:
        """Yields rows of members of limited size, encoded with what is due once they are written."""
        rows, due, size = EncodedRows(), defaultdict[int, Due](dict), 0
        for (tier, start_us, shard), contributions in self._found.items():
            key = members_key(self._rules.tiers[tier].window, shard, start_us)
            for some in some_at_a_time(contributions.items(), _value_bytes, MOST_BYTES, _MOST_MEMBERS):
                row = versioned_row(key, start_us, [(sensor, each.cell) for sensor, each in some])
                rows.append(row)
                texts = due[shard].setdefault((tier, start_us), {})
                texts.update(dict.fromkeys([text for _, each in some for text in each.texts]))
                size += len(row.mutations)
                if size >= MOST_BYTES:
                    yield _encoded(rows, due)
                    rows, due, size = EncodedRows(), defaultdict(dict), 0
        if rows:
            yield _encoded(rows, due)


def _value_bytes(item: tuple[bytes, Contribution]) -> int:
    return len(item[1].cell.value)


def _encoded(rows: EncodedRows, due: Mapping[int, Mapping[tuple[int, int], Iterable[bytes]]]) -> bytes:
    return written_bytes(RowsThenDue(rows, [(shard, data) for shard, each in due.items() for data in due_bytes(each)]))


class PaneResults:
    """The results that a firing publishes: its panes, early ones only if the rules ask for them.

    When the watermark passes the end of a window, a pane fires even if nothing arrived since the one before: it shows
    that the window is done. Each group passes each time once, so nothing has to be kept for that.

    A drain passes the end of windows that are still in progress, and so may publishers whose clocks are ahead. By the
    clock, such results are early. They are published in any case: the next job may get nothing more for their windows.

    Args:
        rules: the rules.
        state: the group's state, whose windows are changed in place.

    Attributes:
        found: the results.
    """

    def __init__(self, rules: ResultRules, state: GroupState) -> None:
        self._early = rules.early
        self._windows, self._schedule = state.windows, state.schedule
        self._in_progress_us = state.now_us + _CLOCKS_DIFFER_US
        self.found: list[PaneResult] = []

    def finish(self) -> None:
        """Makes windows of the shortest tier fire whose end the watermark passes."""
        for start_us, window in self._windows.of_tier[0].items():
            if self._ends(start_us):
                for entry in window.entries.values():
                    if entry.written >= 0:
                        entry.dirty = entry.finished = True

    def add(self, tier: int, start_us: int, changed: Mapping[str, WindowStats], kind: Kind) -> None:
        """Adds the panes of windows of a tier that have the same start, which are written with these statistics."""
        if kind == "early" and not self._early:
            return
        if not self._windows.ends_by(tier, start_us, self._in_progress_us):
            kind = "early"
        self.found += [PaneResult(tier, sensor, start_us, stats, kind) for sensor, stats in changed.items()]

    def _ends(self, start_us: int) -> bool:
        ends_by, schedule = self._windows.ends_by, self._schedule
        return ends_by(0, start_us, schedule.passed_us) and not ends_by(0, start_us, schedule.passed_before_us)
