"""Which windows may be compared with their raw rows, and rewritten: neither collected, nor still written by a job."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from pipeline.core.audit import Extent
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import Tier

COLLECTED = "may be collected"  # their raw rows
KEPT_NO_LONGER = "kept no longer"  # their aggregate rows
OPEN = "still open"

_MICROSECOND = timedelta(microseconds=1)
_ON_ITS_WAY = timedelta(minutes=20)  # twice as long as the writers try


class Bounds(NamedTuple):
    """Which windows of a tier may be touched."""

    raw_us: int  # the earliest start of which all raw rows are there
    kept_us: int  # the earliest start of which the aggregate row is not collected itself
    latest_us: int  # the latest end


class Skipped(NamedTuple):
    """Windows of a tier that are left alone: those that start from ``start_us`` to ``end_us``, exclusive."""

    tier: Tier
    reason: str
    start_us: int
    end_us: int

    @property
    def windows(self) -> int:
        """How many there are, of each sensor."""
        return (self.end_us - self.start_us) // self.tier.window.length_us


def bounds_of(
    retention: Retention, lateness: Mapping[Tier, timedelta], now_us: int, present: Retention | None = None
) -> dict[Tier, Bounds]:
    """Which windows of each tier are neither collected by now, in part, nor still written by a job.

    Args:
        retention: what the table keeps.
        lateness: how long after its end a job may write a window.
        now_us: the time.
        present: by the policies that the table has now, which alone tell whether a row would stay that is written now;
            None leaves all windows alone whose rows may be collected within a day, or once were.
    """
    raw_us = min(retention.readings_from_us(now_us), now_us)
    kept_us = present.aggregates_stay_from_us if present else retention.aggregates_from_us
    return {
        tier: Bounds(raw_us, kept_us(tier, now_us), now_us - late // _MICROSECOND) for tier, late in lateness.items()
    }


def extents_of(
    start_us: int, end_us: int, tiers: Sequence[Tier], bounds: Mapping[Tier, Bounds] | None
) -> tuple[list[Extent], list[Skipped]]:
    """The windows wholly within two times, for each tier, and those of them that are left alone; without bounds none.

    A tier without such a window has an empty extent.
    """
    extents, skipped = [], []
    for tier in tiers:
        length_us = tier.window.length_us
        start, end = round_up(start_us, length_us), tier.window.start_of(end_us)
        end = max(start, end)
        gone, first, last = start, start, end
        if bounds is not None:
            gone, first = (
                min(max(round_up(each_us, length_us), start), end)
                for each_us in (bounds[tier].kept_us, bounds[tier].raw_us)
            )
            first = max(gone, first)
            last = min(max(tier.window.start_of(bounds[tier].latest_us), first), end)
        extents.append(Extent(tier, first, last))
        of_tier = (
            Skipped(tier, KEPT_NO_LONGER, start, gone),
            Skipped(tier, COLLECTED, gone, first),
            Skipped(tier, OPEN, last, end),
        )
        skipped += [each for each in of_tier if each.windows]
    return extents, skipped


def lateness_of(tiers: Sequence[Tier], allowed: timedelta, late_firing: timedelta) -> dict[Tier, timedelta]:
    """How long after its end a job may write a window of each tier; not at all where no job runs.

    The last pane of a window fires when its lateness is over, or later by the interval of late panes; a longer window
    is kept for as much longer, and for the length of the shorter one. Then its row may be on its way for as long as
    writers try.

    Args:
        tiers: the shortest first.
        allowed: the job's allowed lateness; zero where none runs.
        late_firing: its interval of late panes.
    """
    if not allowed:
        return dict.fromkeys(tiers, allowed)
    found, kept = {}, allowed
    for tier in tiers:
        found[tier] = kept + late_firing + _ON_ITS_WAY
        kept += late_firing + tier.window.length
    return found


def round_up(time_us: int, length_us: int) -> int:
    """Returns the first multiple of the length that is not before the time."""
    return -(-time_us // length_us) * length_us
