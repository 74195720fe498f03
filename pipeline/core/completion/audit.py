"""Audits windows: computes their aggregates from raw readings and compares them with the stored aggregate rows.

Windows may be audited and rewritten that are neither collected nor still written by a job.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.notation.times import format_time
from pipeline.core.rollups.comparison import WrongColumn, differences_in_json, stored_value, wrong_columns
from pipeline.core.rows.aggregate_rows import (
    MEMBER,
    OF_WRITERS,
    READING_COUNT,
    aggregate_key,
    aggregate_row,
    values_of,
    version_us,
)
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import Tier
from pipeline.core.statistics.member import Member, member_fields, of_fields, parse_member
from pipeline.core.statistics.window_stats import BY_DEFAULT, Statistics, WindowStats
from pipeline.core.windows import chains

FOREIGN = "foreign raw rows"
TOO_WIDE = "too many metrics"
COLLECTED = "may be collected"  # the windows' raw rows
COLLECTED_ROWS = "of windows that may be collected"  # shorter ones, of which longer windows consist
UNSURE = "its shorter windows lack something"
KEPT_NO_LONGER = "kept no longer"  # the windows' aggregate rows
OPEN = "still open"

IN_FLIGHT = timedelta(minutes=20)
"""The time after which a row that was on its way has certainly arrived: twice as long as writers retry.

Groups of a job on Dataflow fire up to a minute after the watermark, which this includes.
"""

_MICROSECOND = timedelta(microseconds=1)


class StoredRow(dict[str, bytes]):
    """The values of an aggregate row by column, and the timestamps of its cells, in µs."""

    def __init__(self, values: Mapping[str, bytes] | None = None, times_us: Mapping[str, int] | None = None) -> None:
        super().__init__(values or {})
        self.times_us = times_us or {}

    @classmethod
    def of(cls, row: Row) -> "StoredRow":
        """Returns the newest cells of a row."""
        names = [cell.qualifier.decode(errors="backslashreplace") for cell in row.cells]
        times_us = {name: cell.timestamp_us for name, cell in zip(names, row.cells, strict=True)}
        return cls({name: cell.value for name, cell in zip(names, row.cells, strict=True)}, times_us)

    def hides(self, version_us: int) -> bool:
        """Returns whether a cell is newer than those of a row with this version."""
        return any(time_us > version_us for time_us in self.times_us.values())

    def told(self, version_us: int) -> Mapping[str, bytes]:
        """Returns the values; another one for a cell that would hide those of the right row, which has this version."""
        times_us = self.times_us
        return {
            name: b"timestamp %d: %b" % (times_us[name], value) if times_us[name] > version_us else value
            for name, value in self.items()
        }


class Extent(NamedTuple):
    """The windows of a tier that start in [``start_us``, ``end_us``). Both are starts of windows."""

    tier: Tier
    start_us: int
    end_us: int

    def __contains__(self, start_us: object) -> bool:
        return isinstance(start_us, int) and self.start_us <= start_us < self.end_us

    @property
    def windows(self) -> int:
        """The number of windows per sensor."""
        return self.tier.window.count(self.start_us, self.end_us)


class Bounds(NamedTuple):
    """The windows of a tier that may be audited."""

    raw_us: int  # the earliest start of a window that has all its raw rows
    kept_us: int  # the earliest start of a window whose aggregate row is not collected
    latest_us: int  # the latest end of a window


class SkippedWindows(NamedTuple):
    """Windows of a tier that are skipped: those that start in [``start_us``, ``end_us``)."""

    tier: Tier
    reason: str
    start_us: int
    end_us: int

    @property
    def windows(self) -> int:
        """The number of windows per sensor."""
        return self.tier.window.count(self.start_us, self.end_us)


def bounds_of(
    tiers: Iterable[Tier], retention: Retention, lateness: timedelta, now_us: int, present: Retention | None = None
) -> dict[Tier, Bounds]:
    """Returns which windows of each tier are neither partly collected nor still written by a job.

    Args:
        tiers: the tiers.
        retention: the rows that the table certainly keeps.
        lateness: the time after its end for which a job may write a window.
        now_us: the current time.
        present: the retention by the table's current policies, which decide whether a row written now would be kept;
            None excludes all windows whose rows may be collected within a day or may have been collected before.
    """
    raw_us = min(retention.readings_from_us(now_us), now_us)
    kept_us = present.aggregates_stay_from_us if present else retention.aggregates_from_us
    return {tier: Bounds(raw_us, kept_us(tier, now_us), now_us - lateness // _MICROSECOND) for tier in tiers}


def extents_of(
    start_us: int, end_us: int, tiers: Sequence[Tier], bounds: Mapping[Tier, Bounds] | None
) -> tuple[list[Extent], list[SkippedWindows]]:
    """Returns the windows of each tier that lie entirely between two times, without those outside the bounds.

    Also returns the windows that the bounds exclude. None for the bounds excludes none. A tier without a window gets
    an empty extent.
    """
    extents, skipped = [], []
    for tier in tiers:
        first_start = tier.window.first_start
        start, end = first_start(start_us), tier.window.start_of(end_us)
        end = max(start, end)
        kept, first, last = start, start, end
        if bounds is not None:
            kept, first = (
                first_start(min(max(each_us, start), end)) for each_us in (bounds[tier].kept_us, bounds[tier].raw_us)
            )
            first = max(kept, first)
            last = min(max(tier.window.start_of(bounds[tier].latest_us), first), end)
        extents.append(Extent(tier, first, last))
        of_tier = (
            SkippedWindows(tier, KEPT_NO_LONGER, start, kept),
            SkippedWindows(tier, COLLECTED, kept, first),
            SkippedWindows(tier, OPEN, last, end),
        )
        skipped += [each for each in of_tier if each.windows]
    return extents, skipped


def chains_of(extents: Sequence[Extent]) -> list[list[Extent]]:
    """Returns the extents of the tiers that are audited together: in each list, the last tier contains the others.

    Weeks and months do not nest, nor do days of two zones: they are audited apart. Each tier's windows are in one of
    the lists. Each list begins with the shortest tier, from which the others are computed; in further ones without a
    window of it.

    Args:
        extents: the extents of all tiers, shortest first.
    """
    none = extents[0]._replace(start_us=0, end_us=0)
    found = [[extents[index] for index in chain] for chain in chains(tuple(each.tier.window for each in extents))]
    return found[:1] + [[none, *chain] for chain in found[1:]]


def lateness_of(allowed: timedelta, late_firing: timedelta) -> timedelta:
    """Returns the time after its end for which a job may write a window from its state; zero if no job runs.

    A window's last pane fires when the allowed lateness ends, or up to one late firing interval later. Then the row may
    be in flight for as long as writers retry.

    Args:
        allowed: the job's allowed lateness; zero if no job runs.
        late_firing: the job's late firing interval.
    """
    return allowed + late_firing + IN_FLIGHT if allowed else allowed


@dataclass
class Recomputed:
    """A window's statistics, recomputed from its raw readings.

    Args:
        stats: the correct aggregate.
        magnitudes: Σ|x| by metric, to which the tolerance is relative.
        too_wide: whether the window has more metrics than fit in a row.
        sizes: the sizes of the shorter windows that it is computed from, by start in µs.
    """

    stats: WindowStats = field(default_factory=WindowStats)
    magnitudes: dict[str, float] = field(default_factory=dict)
    too_wide: bool = False
    sizes: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, readings: WindowReadings, statistics: Statistics = BY_DEFAULT) -> "Recomputed":
        """Computes the statistics of all readings of a window."""
        stats, too_wide = readings.pane(statistics)
        return cls(stats, readings.magnitudes(), too_wide)

    def fits(self, statistics: Statistics) -> bool:
        """Returns whether a row has room for all metrics."""
        return not self.too_wide and len(self.stats.metrics) <= statistics.most_metrics

    def merge(self, other: "Recomputed") -> None:
        """Adds the readings of another window."""
        self.stats.merge(other.stats)
        for metric, magnitude in other.magnitudes.items():
            self.magnitudes[metric] = self.magnitudes.get(metric, 0.0) + magnitude
        self.too_wide |= other.too_wide


@dataclass(frozen=True)
class Finding:
    """A window whose aggregate row is wrong.

    Args:
        differences: the wrong statistics, in order; all of them if the row is missing or the window has no raw rows.
        cells: the correct cells; empty if the window has no raw rows.
        deletes: whether the row's other cells have to go: some are newer than these, since the row counts more or
            another program wrote them, or are in other columns.
    """

    tier: Tier
    sensor_id: str
    start_us: int
    differences: tuple[WrongColumn, ...]
    cells: tuple[Cell, ...]
    deletes: bool = True

    @property
    def key(self) -> bytes:
        """The aggregate row's key."""
        return aggregate_key(self.tier.window, self.sensor_id, self.start_us)

    @property
    def problem(self) -> str:
        """``no raw rows``, ``no aggregate row`` or ``differs``."""
        if not self.cells:
            return "no raw rows"
        missing = self.differences[0].column == READING_COUNT and all(each.stored is None for each in self.differences)
        return "no aggregate row" if missing else "differs"

    def record(self) -> dict[str, Any]:
        """Returns the finding as a JSON object. Infinite numbers become text, because JSON has none."""
        differences = differences_in_json(self.differences, "recomputed")
        return Untouched(self.tier, self.sensor_id, self.start_us, self.problem).record() | {"differences": differences}


class Untouched(NamedTuple):
    """A window that is not compared: some of its raw rows may be foreign, or it has too many metrics for a row."""

    tier: Tier
    sensor_id: str
    start_us: int
    problem: str = FOREIGN

    def record(self) -> dict[str, Any]:
        """Returns the window as a JSON object with the same fields as :meth:`Finding.record`."""
        return {
            "sensor_id": self.sensor_id,
            "window": self.tier.window.text,
            "start": self.tier.window.shown(self.start_us),
            "problem": self.problem,
            "differences": {},
        }


class Audited(NamedTuple):
    """One window that was compared."""

    tier: Tier
    finding: Finding | None  # None if the row is correct


def audit(
    sensor_id: str,
    extents: Iterable[Extent],
    shortest: Mapping[int, Recomputed],
    stored: Mapping[tuple[Tier, int], StoredRow],
    foreign: Collection[tuple[int, int]] = (),
) -> Iterator[Audited | Untouched]:
    """Audits every window of a sensor that has raw rows or an aggregate row, tier by tier, in order of time.

    A window with too many metrics, or with foreign raw rows, cannot be compared and yields :class:`Untouched`. If any
    window in the extents has foreign raw rows, every window of the shortest tier with such rows is yielded, including
    those outside its extent: all of them belong on the work list.

    Args:
        sensor_id: the sensor.
        extents: the windows to compare, the shortest tier first. All their raw rows must have been read.
        shortest: the recomputed windows of the shortest tier, by start; longer windows are computed from them.
        stored: the stored aggregate rows, by tier and start.
        foreign: spans of time, each with an exclusive end, that contain foreign raw rows.
    """
    extents = list(extents)
    untouched = [_overlapping_starts(extent.tier, foreign) for extent in extents]
    yield from _untouched(sensor_id, list(zip(extents, untouched, strict=True)))
    for index, (extent, left) in enumerate(zip(extents, untouched, strict=True)):
        tier, recomputed = extent.tier, _rolled_up(extent, shortest, extents[index - 1].tier if index else None)
        starts = {start_us for of_tier, start_us in stored if of_tier == tier and start_us in extent}
        for start_us in sorted((starts | recomputed.keys()) - left):
            found = recomputed.get(start_us)
            if found is None or found.fits(tier.statistics):
                row = stored.get((tier, start_us), StoredRow())
                yield Audited(tier, finding_of(tier, sensor_id, start_us, found, row))
            else:  # the work list contains windows of the shortest tier
                for each in dict.fromkeys((tier, extents[0].tier)):
                    yield Untouched(each, sensor_id, start_us, TOO_WIDE)


def _untouched(sensor_id: str, starts: Sequence[tuple[Extent, Collection[int]]]) -> Iterator[Untouched]:
    """Yields the windows with foreign raw rows, given their starts for each extent."""
    if any(start_us in extent for extent, of_extent in starts for start_us in of_extent):
        for index, (extent, of_extent) in enumerate(starts):
            for start_us in sorted(of_extent):
                if not index or start_us in extent:
                    yield Untouched(extent.tier, sensor_id, start_us)


def _overlapping_starts(tier: Tier, spans: Iterable[tuple[int, int]]) -> set[int]:
    """Returns the starts of the windows that overlap these spans of time."""
    window = tier.window
    return {each_us for start_us, end_us in spans for each_us in window.starts(window.start_of(start_us), end_us)}


def differences(
    recomputed: Recomputed, stored: Mapping[str, bytes], tier: Tier, start_us: int
) -> Iterator[WrongColumn]:
    """Yields what differs in a row by more than the contract allows: the event count, statistics by name, the member.

    The metadata of the newest event is compared as far as the table's roll-ups group by it.
    """
    right = values_of(tier.window, start_us, recomputed.stats, tier.statistics)
    yield from wrong_columns(stored, right, recomputed.stats, recomputed.magnitudes, OF_WRITERS)
    newest, values = (
        recomputed.stats.member,
        {name: stored_value(name, stored[name]) for name in OF_WRITERS & stored.keys()},
    )
    right_member = newest and _text_of_member(newest)
    foreign = {name: value for name, value in sorted(values.items()) if isinstance(value, str)}
    for name, text in foreign.items():
        yield WrongColumn(name, text, right_member if name == MEMBER else None)
    if newest is not None and MEMBER not in foreign:
        told = parse_member(stored[MEMBER]) if MEMBER in stored else None
        if newest != of_fields(told, member_fields(newest.text)):
            yield WrongColumn(MEMBER, told and _text_of_member(told), right_member)


def finding_of(
    tier: Tier, sensor_id: str, start_us: int, recomputed: Recomputed | None, stored: StoredRow
) -> Finding | None:
    """Returns what is wrong with a window's row; None if it is right.

    Args:
        tier: the window's tier.
        sensor_id: the sensor.
        start_us: the window's start.
        recomputed: the window's statistics; None if it should have no row.
        stored: the stored row; empty if there is none.
    """
    if recomputed is None and not stored:
        return None
    if recomputed is None:
        values = {name: stored_value(name, value) for name, value in sorted(stored.items()) if name not in OF_WRITERS}
        superfluous = tuple(WrongColumn(name, value, None) for name, value in values.items())
        return Finding(tier, sensor_id, start_us, superfluous, ())
    version = version_us(start_us, recomputed.stats.size)
    found = tuple(differences(recomputed, stored, tier, start_us))
    if not found and stored.hides(version):  # another program's cells, which would hide what comes
        found = tuple(differences(recomputed, stored.told(version), tier, start_us))
    if not found:
        return None
    recomputed.stats.sizes = recomputed.sizes
    row = aggregate_row(tier.window, sensor_id, start_us, recomputed.stats, tier.family, tier.statistics)
    columns = {cell.qualifier.decode() for cell in row.cells}
    deletes = stored.hides(version) or not stored.keys() <= columns
    return Finding(tier, sensor_id, start_us, found, tuple(row.cells), deletes)


def _rolled_up(extent: Extent, shortest: Mapping[int, Recomputed], source: Tier | None) -> dict[int, Recomputed]:
    """Computes the extent's windows by merging the windows of the shortest tier in them, in order of time.

    Args:
        extent: the windows to compute.
        shortest: the recomputed windows of the shortest tier, by start.
        source: the tier of whose windows these consist, so that a row tells how much it counts of each.
    """
    found: dict[int, Recomputed] = defaultdict(Recomputed)
    for start_us in sorted(shortest):
        longer_us = extent.tier.window.start_of(start_us)
        if longer_us in extent:
            found[longer_us].merge(shortest[start_us])
            if source is not None:
                sizes, shorter_us = found[longer_us].sizes, source.window.start_of(start_us)
                sizes[shorter_us] = sizes.get(shorter_us, 0) + shortest[start_us].stats.size
    # Raw rows without readings, of which only metadata is left, make no aggregate row.
    return {start_us: each for start_us, each in found.items() if each.stats.events or each.too_wide}


def _text_of_member(member: Member) -> str:
    return f"{member.text} at {format_time(member.event_time_us)}"
