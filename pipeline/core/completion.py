"""What a table holds of a window: the one way in which the streaming job and backfill complete a window.

A window's raw rows are the truth where Bigtable surely has all of them. Nobody replaces an aggregate row by less than
it counts: what is found here comes with what the row counts, and with whether it is surely all there is. Pure: rows
come from a function of the caller's.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.core.accumulator import RestoredReadings, WindowReadings, at_least, covers
from pipeline.core.aggregates import aggregate_range, parse_aggregate_row, stats_of
from pipeline.core.schema.foreign import ForeignRow
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.queries import Query, events_of
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.seeks import ReadRows
from pipeline.core.schema.sensor_locator import SensorLocator
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.stats import WindowStats
from pipeline.core.tiers import RestoredShorterWindows, ShorterWindows
from pipeline.core.windows import Window

_TOLERANCE = 1e-9  # of Σ|x|, within which two sums of the same readings agree


class _TooWide(Exception):
    """A shorter window has too many metrics."""


class StoredWindow(NamedTuple):
    """What a table holds of a window that is computed from events.

    Attributes:
        readings: of its raw rows.
        row: what its aggregate row counts; nothing where there is none.
        complete: whether the raw rows are surely all that were ever written.
        repeats: whether the aggregate row may count one of them twice.
    """

    readings: WindowReadings
    row: WindowStats
    complete: bool
    repeats: bool

    @property
    def least(self) -> WindowStats:
        """What complete raw rows come to at the least."""
        return WindowStats() if self.repeats else self.row


class StoredLongerWindow(NamedTuple):
    """What a table holds of a window that is computed from shorter ones.

    Attributes:
        shorter: the shorter windows' statistics by their starts; None where they can't be had without losing what the
            aggregate row counts.
        row: what its aggregate row counts.
        complete: whether the shorter windows are surely all there are.
    """

    shorter: Mapping[int, WindowStats] | None
    row: WindowStats
    complete: bool


class Completion:
    """Completes the windows of one table.

    Args:
        schema: of the table.
        retention: what of the table may be collected.
        read: what its rows are had by.
        search: whether raw rows are also searched for where a sensor is not found by its id alone, at the price of a
            seek for each text that keys have before it.
    """

    def __init__(self, schema: TableSchema, retention: Retention, read: ReadRows, *, search: bool = False) -> None:
        self._schema = schema
        self._retention = retention
        self._read = read
        self._locator = SensorLocator(schema, read) if search else None

    def stored(self, tier: Tier, sensor_id: str, start_us: int, now_us: int) -> StoredWindow:
        """Reads the raw rows and the aggregate row of a window of the shortest tier.

        Raises:
            ForeignRow: one of them is not as the schema writes it.
        """
        end_us = start_us + tier.window.length_us
        row = self._row(tier, sensor_id, start_us)
        if not self._finds:
            return StoredWindow(WindowReadings(), row, complete=False, repeats=False)
        found = self._readings(sensor_id, start_us, end_us, tier.window)
        complete, repeats = self._complete(start_us, now_us), self._retention.may_repeat(start_us, end_us)
        return StoredWindow(found.get(start_us, WindowReadings()), row, complete, repeats)

    def completed(
        self,
        tier: Tier,
        sensor_id: str,
        start_us: int,
        now_us: int,
        fresh: WindowReadings,
        *,
        written: bool = False,
    ) -> WindowReadings | None:
        """A window of the shortest tier: of its raw rows and of fresh readings, each reading once.

        Where both have a reading it is the fresh one. Where raw rows may have been collected, the window is complete
        if its aggregate row counts what is left of them and nothing else; or if it has none, though it would have
        counted what is gone: the tier was there already. A row that counts as much as the fresh readings do proves
        nothing: others may have had the same values.

        Args:
            tier: the table's shortest.
            sensor_id: whose.
            start_us: the window's start.
            now_us: the time.
            fresh: readings that the raw rows may lack.
            written: whether the fresh readings are what the caller has written into the aggregate row itself.

        Returns:
            its readings; None where they would lack something that the aggregate row counts.

        Raises:
            ForeignRow: a row is not as the schema writes it.
        """
        stored = self.stored(tier, sensor_id, start_us, now_us)
        readings, row, complete, _ = stored
        whole = WindowReadings()  # what was given is not ours to change
        whole.merge(fresh)
        whole.merge(readings)
        stats, _, too_wide = whole.pane()
        if too_wide:
            return None
        if complete:
            exact = at_least([stats], stored.least)
        elif row.events:
            exact = _same(fresh if written else readings.without(fresh), row)
        else:
            exact = self._retention.counts(tier, start_us)
        return whole if exact else None

    def completed_longer(
        self,
        tiers: tuple[Tier, Tier],
        sensor_id: str,
        start_us: int,
        now_us: int,
        fresh: Mapping[int, WindowStats],
    ) -> WindowStats | None:
        """The same of a window that is computed from shorter ones, of which some are fresh."""
        shorter = self.stored_longer(tiers, sensor_id, start_us, now_us, fresh).shorter
        if shorter is None:
            return None
        longer = ShorterWindows()
        longer.restore(shorter)
        pane = longer.pane()
        return None if pane.too_wide else pane.stats

    def stored_longer(
        self,
        tiers: tuple[Tier, Tier],
        sensor_id: str,
        start_us: int,
        now_us: int,
        fresh: Mapping[int, WindowStats] | None = None,
    ) -> StoredLongerWindow:
        """Reads the aggregate rows of the shorter windows in a window, and raw rows for those that have none.

        Args:
            tiers: the shorter windows, and the window's own.
            sensor_id: whose.
            start_us: the window's start.
            now_us: the time.
            fresh: shorter windows that the caller has just computed: they count instead of their rows, unless these
                count more by now.

        Raises:
            ForeignRow: a row is not as the schema writes it.
        """
        row = self._row(tiers[1], sensor_id, start_us)
        try:
            return self._held_windows(tiers, sensor_id, start_us, now_us, fresh, row)
        except _TooWide:
            return StoredLongerWindow(None, row, complete=False)

    def _held_windows(
        self,
        tiers: tuple[Tier, Tier],
        sensor_id: str,
        start_us: int,
        now_us: int,
        fresh: Mapping[int, WindowStats] | None,
        row: WindowStats,
    ) -> StoredLongerWindow:
        shorter, tier = tiers
        end_us = start_us + tier.window.length_us
        found = _larger(dict(self._rows(shorter, sensor_id, start_us, end_us)), fresh)
        kept = self._retention.aggregates_from_us(shorter, now_us) <= start_us
        kept = kept and self._retention.counts(shorter, start_us)
        if self._finds and self._complete(start_us, now_us):
            kept = True
            if self._retention.may_repeat(start_us, end_us):
                row, found = WindowStats(), {}
            for gap_start_us, gap_end_us in _gaps(found, shorter.window, start_us, end_us):
                found = _larger(found | self._from_readings(sensor_id, gap_start_us, gap_end_us, shorter.window), fresh)
            if not at_least(found.values(), row):
                found = _larger(self._from_readings(sensor_id, start_us, end_us, shorter.window), fresh)
        # Without a row, nothing was ever counted: unless the tier was not there yet.
        if not at_least(found.values(), row) or not (
            kept or (not row.events and self._retention.counts(tier, start_us))
        ):
            return StoredLongerWindow(None, row, complete=False)
        return StoredLongerWindow(found, row, kept and self._retention.known)

    @property
    def _finds(self) -> bool:
        return self._locator is not None or self._schema.finds_sensors

    def _complete(self, start_us: int, now_us: int) -> bool:
        return self._retention.readings_from_us(now_us) <= start_us

    def _readings(self, sensor_id: str, start_us: int, end_us: int, window: Window) -> dict[int, WindowReadings]:
        """The readings of raw rows, by the starts of the windows that they are in."""
        identity_of = self._schema.identity.of_record
        found: dict[int, WindowReadings] = {}
        for metadata in [{}] if self._locator is None else self._locator.of(sensor_id):
            for record in events_of(self._schema, self._read, sensor_id, Query(start_us, end_us, metadata=metadata)):
                of_window = found.setdefault(window.start_of(record.event_time_us), WindowReadings())
                time_us, apart = identity_of(record)
                of_window.add(time_us, record.readings, apart)
        return found

    def _from_readings(self, sensor_id: str, start_us: int, end_us: int, window: Window) -> dict[int, WindowStats]:
        panes = {
            each_us: readings.pane()
            for each_us, readings in self._readings(sensor_id, start_us, end_us, window).items()
        }
        if any(pane.too_wide for pane in panes.values()):
            raise _TooWide
        return {each_us: pane.stats for each_us, pane in panes.items()}

    def _row(self, tier: Tier, sensor_id: str, start_us: int) -> WindowStats:
        rows = self._rows(tier, sensor_id, start_us, start_us + tier.window.length_us)
        return next((stats for _, stats in rows), WindowStats())

    def _rows(self, tier: Tier, sensor_id: str, start_us: int, end_us: int) -> Iterator[tuple[int, WindowStats]]:
        keys = aggregate_range(tier.window, sensor_id, start_us, end_us)
        for row in self._read(keys, CellSelection((tier.family,), versions=1), None, None, reverse=False):
            try:
                record = parse_aggregate_row(tier.window, row)
            except ValueError as error:
                raise ForeignRow(row, error) from error
            yield record.start_us, stats_of(record)


@dataclass(frozen=True)
class RestoreFromReadings:
    """What a job goes on from in a window of the shortest tier that began before it did. Part of a DoFn: it pickles.

    Args:
        tier: the table's shortest.
        deduplicate: whether the job tells readings apart, so that those that come again count once.
    """

    tier: Tier
    deduplicate: bool

    def restore(
        self, completion: Completion, sensor_id: str, start_us: int, now_us: int
    ) -> tuple[RestoredReadings, bool]:
        """Reads what the table holds; and whether that is surely all there is.

        Where raw rows may be gone, the job goes on from the aggregate row: it may lack what came after its last pane,
        and what of it comes again is not known.
        """
        stored = completion.stored(self.tier, sensor_id, start_us, now_us)
        if not (stored.complete and self.deduplicate):
            return RestoredReadings(statistics=stored.row), False
        return RestoredReadings(stored.readings, least=stored.least), covers(stored.readings.pane().stats, stored.least)


@dataclass(frozen=True)
class RestoreFromShorterWindows:
    """The same in a window that is computed from shorter ones.

    Args:
        tiers: the shorter windows, and the window's own.
    """

    tiers: tuple[Tier, Tier]

    def restore(
        self, completion: Completion, sensor_id: str, start_us: int, now_us: int
    ) -> tuple[RestoredShorterWindows | None, bool]:
        """Reads what the table holds, None where that would lose something; and whether it is surely all there is."""
        stored = completion.stored_longer(self.tiers, sensor_id, start_us, now_us)
        if stored.shorter is None:
            return None, False
        return RestoredShorterWindows(stored.shorter, stored.row), stored.complete


RestoreMethod = RestoreFromReadings | RestoreFromShorterWindows


def _same(readings: WindowReadings, row: WindowStats) -> bool:
    """Whether an aggregate row is that of these readings: exactly, but for the order in which sums were added."""
    stats, magnitudes = readings.pane().stats, readings.magnitudes()
    if stats.events != row.events or stats.metrics.keys() != row.metrics.keys():
        return False
    for metric, one in stats.metrics.items():
        other = row.metrics[metric]
        if (one.count, one.minimum, one.maximum) != (other.count, other.minimum, other.maximum):
            return False
        if one.total != other.total and abs(one.total - other.total) > _TOLERANCE * magnitudes[metric]:
            return False
    return True


def _larger(stored: Mapping[int, WindowStats], fresh: Mapping[int, WindowStats] | None) -> dict[int, WindowStats]:
    """Both, and of each window that both have, the one that counts more; the fresh one where they count alike."""
    found = dict(stored)
    for start_us, stats in (fresh or {}).items():
        if start_us not in found or stats.size >= found[start_us].size:
            found[start_us] = stats
    return found


def _gaps(found: Mapping[int, WindowStats], shorter: Window, start_us: int, end_us: int) -> Iterator[tuple[int, int]]:
    """The longest spans of shorter windows that are not among those found."""
    gap_us = start_us
    for each_us in [*sorted(found), end_us]:
        if gap_us < each_us:
            yield gap_us, each_us
        gap_us = each_us + shorter.length_us
