"""Determines which windows may be audited and rewritten: those neither collected nor still written by a job."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from pipeline.core.completion.audit import Extent
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import Tier
from pipeline.core.windows import chains

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
