"""Audits: what the aggregates of windows have to be by their raw readings, and how those that are stored differ."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from sys import float_info
from typing import Any, NamedTuple

from pipeline.core.accumulator import MOST_METRICS, WindowReadings
from pipeline.core.aggregates import READING_COUNT, aggregate_key, aggregate_row, parse_statistic, split_qualifier
from pipeline.core.rows import Cell
from pipeline.core.schema.table_schema import Tier
from pipeline.core.stats import WindowStats
from pipeline.core.times import format_time

# Sums depend on the order of adding: two computations agree within this share of Σ|x|.
_TOLERANCE = 1e-9
_EXACT = ("count", "min", "max")
_MOST_EXACT = 2**53  # up to which every whole number is a double
_GREATEST = float_info.max
_LEAST = 5e-324

FOREIGN = "foreign raw rows"
TOO_WIDE = "too many metrics"

Stored = Mapping[str, bytes]  # an aggregate row's values by qualifier


class Extent(NamedTuple):
    """Windows of a tier: those that start from ``start_us``, inclusive, to ``end_us``, exclusive; both are starts."""

    tier: Tier
    start_us: int
    end_us: int

    def __contains__(self, start_us: object) -> bool:
        return isinstance(start_us, int) and self.start_us <= start_us < self.end_us

    @property
    def windows(self) -> int:
        """How many there are, of each sensor."""
        return max(self.end_us - self.start_us, 0) // self.tier.window.length_us


@dataclass
class Recomputed:
    """A window's statistics by its raw readings.

    Args:
        stats: what the aggregate has to be.
        magnitudes: Σ|x| by metric: what the tolerance is measured by.
        too_wide: whether there are more metrics than a row has.
    """

    stats: WindowStats = field(default_factory=WindowStats)
    magnitudes: dict[str, float] = field(default_factory=dict)
    too_wide: bool = False

    @classmethod
    def of(cls, readings: WindowReadings) -> "Recomputed":
        """Of all the window's readings."""
        stats, _, too_wide = readings.pane()
        return cls(stats, readings.magnitudes(), too_wide)

    def merge(self, other: "Recomputed") -> None:
        """Adds the readings of another window."""
        self.stats.merge(other.stats)
        for metric, magnitude in other.magnitudes.items():
            self.magnitudes[metric] = self.magnitudes.get(metric, 0.0) + magnitude
        self.too_wide |= other.too_wide or len(self.stats.metrics) > MOST_METRICS


class Difference(NamedTuple):
    """One statistic that is not as it has to be: None where there is none; text where nobody of ours writes it."""

    statistic: str  # as the column is called, like sum_temperature
    stored: float | str | None
    recomputed: float | None


@dataclass(frozen=True)
class Finding:
    """A window whose aggregate row is wrong.

    Args:
        tier: which windows.
        sensor_id: whose.
        start_us: the window's start.
        differences: the statistics that are wrong, in order; of a row that is missing, or has no raw rows, all of them.
        cells: what has to be stored instead; none where there are no raw rows.
    """

    tier: Tier
    sensor_id: str
    start_us: int
    differences: tuple[Difference, ...]
    cells: tuple[Cell, ...]

    @property
    def key(self) -> bytes:
        """The aggregate row's key."""
        return aggregate_key(self.tier.window, self.sensor_id, self.start_us)

    @property
    def problem(self) -> str:
        """``no raw rows``, ``no aggregate row`` or ``differs``."""
        if not self.cells:
            return "no raw rows"
        return "no aggregate row" if all(each.stored is None for each in self.differences) else "differs"

    def record(self) -> dict[str, Any]:
        """The finding as JSON has it; an infinite number is text, as JSON has none."""
        return {
            "sensor_id": self.sensor_id,
            "window": self.tier.window.text,
            "start": format_time(self.start_us),
            "problem": self.problem,
            "differences": {
                each.statistic: {"stored": _in_json(each.stored), "recomputed": _in_json(each.recomputed)}
                for each in self.differences
            },
        }


class Untouched(NamedTuple):
    """A window that is left as it is: some of its raw rows may be foreign, or it has too many metrics for a row."""

    tier: Tier
    sensor_id: str
    start_us: int
    problem: str = FOREIGN

    def record(self) -> dict[str, Any]:
        """The window as JSON has it, with what a finding's record has."""
        return {
            "sensor_id": self.sensor_id,
            "window": self.tier.window.text,
            "start": format_time(self.start_us),
            "problem": self.problem,
            "differences": {},
        }


class Audited(NamedTuple):
    """One window that was looked at."""

    tier: Tier
    finding: Finding | None  # None: its row is right


def audit(
    sensor_id: str,
    extents: Iterable[Extent],
    shortest: Mapping[int, Recomputed],
    stored: Mapping[tuple[Tier, int], Stored],
    foreign: Collection[tuple[int, int]] = (),
) -> Iterator[Audited | Untouched]:
    """Every window of a sensor that has raw rows or an aggregate row, tier by tier, in order of time.

    Nothing can be told of a window that has too many metrics, or that foreign raw rows may be part of. With one of
    the latter come all of the shortest tier that have such rows, also those that are not looked at: what the work list
    has to have.

    Args:
        sensor_id: whose windows.
        extents: which windows are looked at. All raw rows of such a window have been read.
        shortest: what the windows of the shortest tier have to be, by their starts; the others are made of them.
        stored: what is stored, by tier and start.
        foreign: the times of foreign raw rows: from the first, inclusive, to the second, exclusive.
    """
    extents = list(extents)
    untouched = [_holding(extent.tier, foreign) for extent in extents]
    if any(start_us in extent for extent, starts in zip(extents, untouched, strict=True) for start_us in starts):
        shortest_tier = extents[0].tier
        yield from (Untouched(shortest_tier, sensor_id, start_us) for start_us in sorted(untouched[0]))
        for extent, starts in list(zip(extents, untouched, strict=True))[1:]:
            yield from (Untouched(extent.tier, sensor_id, each) for each in sorted(starts) if each in extent)
    for extent, left in zip(extents, untouched, strict=True):
        recomputed = _rolled_up(extent, shortest)
        starts = {start_us for tier, start_us in stored if tier == extent.tier and start_us in extent}
        for start_us in sorted((starts | recomputed.keys()) - left):
            if start_us in recomputed and recomputed[start_us].too_wide:
                yield Untouched(extent.tier, sensor_id, start_us, TOO_WIDE)
                if extent is not extents[0]:  # which is what the work list has
                    yield Untouched(extents[0].tier, sensor_id, start_us, TOO_WIDE)
                continue
            row = stored.get((extent.tier, start_us), {})
            yield Audited(extent.tier, _finding(extent.tier, sensor_id, start_us, recomputed.get(start_us), row))


def _holding(tier: Tier, spans: Iterable[tuple[int, int]]) -> set[int]:
    """The starts of the windows that have something of these spans of time."""
    window = tier.window
    return {
        each_us for start_us, end_us in spans for each_us in range(window.start_of(start_us), end_us, window.length_us)
    }


def differences(recomputed: Recomputed, stored: Stored, tier: Tier) -> Iterator[Difference]:
    """The statistics in which a row differs by more than the contract allows: the number of events, then by name.

    Counts, minima and maxima are exact; sums agree within 1e-9 · Σ|x|, averages and deviations within that over the
    count. Deviations among the least of doubles agree within count · 5e-324. An infinite sum counts as the greatest
    double: near there, one order of adding overflows and another does not.
    """
    wanted = _values(recomputed.stats, tier)
    for name in sorted(wanted.keys() | stored.keys(), key=_by_name):
        value = _value(name, stored.get(name))
        if name not in wanted or not _agree(name, value, wanted[name], recomputed):
            yield Difference(name, value, wanted.get(name))


def _by_name(name: str) -> tuple[bool, str]:
    return name != READING_COUNT, name


def _finding(
    tier: Tier, sensor_id: str, start_us: int, recomputed: Recomputed | None, stored: Stored
) -> Finding | None:
    if recomputed is None:
        gone = tuple(Difference(name, _value(name, value), None) for name, value in sorted(stored.items()))
        return Finding(tier, sensor_id, start_us, gone, ())
    found = tuple(differences(recomputed, stored, tier))
    if not found:
        return None
    row = aggregate_row(tier.window, sensor_id, start_us, recomputed.stats, tier.family)
    return Finding(tier, sensor_id, start_us, found, tuple(row.cells))


def _rolled_up(extent: Extent, shortest: Mapping[int, Recomputed]) -> dict[int, Recomputed]:
    """The windows of the extent, each merged in order of time of those of the shortest tier in it."""
    found: dict[int, Recomputed] = defaultdict(Recomputed)
    for start_us in sorted(shortest):
        longer_us = extent.tier.window.start_of(start_us)
        if longer_us in extent:
            found[longer_us].merge(shortest[start_us])
    return dict(found)


def _values(stats: WindowStats, tier: Tier) -> dict[str, float]:
    """A row's values by qualifier, as they are written."""
    row = aggregate_row(tier.window, "", 0, stats, tier.family)
    return {cell.qualifier.decode(): parse_statistic(cell.qualifier, cell.value) for cell in row.cells}


def _agree(name: str, stored: float | str | None, wanted: float, recomputed: Recomputed) -> bool:
    if stored is None or isinstance(stored, str):
        return False
    if stored == wanted:
        return True
    if name == READING_COUNT:
        return False
    statistic, metric = split_qualifier(name)
    if statistic in _EXACT:
        return False
    of_metric = recomputed.stats.metrics[metric]
    # Σ|x| overflows where readings do not; the greatest of them is never less than their mean.
    magnitude = min(recomputed.magnitudes[metric] / of_metric.count, max(-of_metric.minimum, of_metric.maximum))
    tolerance = _TOLERANCE * magnitude
    if statistic == "sum":
        tolerance *= of_metric.count
        stored, wanted = (min(max(value, -_GREATEST), _GREATEST) for value in (stored, wanted))
    elif statistic == "stddev":
        tolerance = max(tolerance, _LEAST * of_metric.count)
    return abs(stored - wanted) <= tolerance  # never of NaN


def _value(name: str, value: bytes | None) -> float | str | None:
    """What a reader reads there; text where it would leave the row out."""
    if value is None:
        return None
    try:
        return parse_statistic(name.encode(), value)
    except ValueError:
        return value.decode(errors="backslashreplace")


def _in_json(value: float | str | None) -> float | str | None:
    if not isinstance(value, float):
        return value
    if not -inf < value < inf:
        return str(value)
    return int(value) if value.is_integer() and abs(value) < _MOST_EXACT else value
