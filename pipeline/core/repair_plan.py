"""What a repair looks at: which windows, in which order, what it leaves alone and why."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from pipeline.core.aggregates import AggregateKey
from pipeline.core.audit import Extent
from pipeline.core.schema.policies import Policy, collected_after, counts_versions
from pipeline.core.schema.sweeps import Span
from pipeline.core.schema.table_schema import TableSchema, Tier

COLLECTED = "may be collected"
OPEN = "still open"

_MICROSECOND = timedelta(microseconds=1)
_SPARE = timedelta(days=1)  # Bigtable collects when it likes, and clocks differ


class Bounds(NamedTuple):
    """Which windows of a tier may be touched."""

    earliest_us: int  # start
    latest_us: int  # end


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
    schema: TableSchema, policies: Mapping[str, Policy], lateness: Mapping[Tier, timedelta], now_us: int
) -> dict[Tier, Bounds]:
    """Which windows of each tier are neither collected by now, in part, nor still written by a job.

    Args:
        schema: the table's.
        policies: those that its families really have.
        lateness: how long after its end a job may write a window.
        now_us: the time.
    """
    raw_us = max(_kept_from(schema, policies, family, now_us) for family in schema.metrics.families)
    return {
        tier: Bounds(max(raw_us, _kept_from(schema, policies, tier.family, now_us)), now_us - late // _MICROSECOND)
        for tier, late in lateness.items()
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
        start, end = _up(start_us, length_us), tier.window.start_of(end_us)
        end = max(start, end)
        first, last = start, end
        if bounds is not None:
            first = min(max(_up(bounds[tier].earliest_us, length_us), start), end)
            last = min(max(tier.window.start_of(bounds[tier].latest_us), first), end)
        extents.append(Extent(tier, first, last))
        skipped += [
            each for each in (Skipped(tier, COLLECTED, start, first), Skipped(tier, OPEN, last, end)) if each.windows
        ]
    return extents, skipped


def slices_of(extents: Sequence[Extent], most: int, sensors: frozenset[str] | None = None) -> list[Span]:
    """All that has to be read for these windows, in order of time, in at most so many slices of whole longest windows.

    Args:
        extents: of the shortest tier first.
        most: slices, at least one.
        sensors: whose; None for everybody's.
    """
    looked_at = [extent for extent in extents if extent.windows]
    if not looked_at:
        return []
    start_us, end_us = min(extent.start_us for extent in looked_at), max(extent.end_us for extent in looked_at)
    longest = extents[-1].tier.window
    begin_us = longest.start_of(start_us)
    windows = (_up(end_us, longest.length_us) - begin_us) // longest.length_us
    step_us = -(-windows // most) * longest.length_us
    return [
        Span(max(each_us, start_us), min(each_us + step_us, end_us), sensors)
        for each_us in range(begin_us, end_us, step_us)
    ]


def spans_of(listed: Iterable[AggregateKey], extents: Sequence[Extent]) -> list[Span]:
    """What has to be read for the windows of a work list, each widened to the longest window that holds it.

    Leaves out what holds no window that may be touched.
    """
    longest = extents[-1].tier.window
    sensors: dict[int, set[str]] = {}
    for sensor_id, start_us in listed:
        sensors.setdefault(longest.start_of(start_us), set()).add(sensor_id)
    return [
        Span(start_us, start_us + longest.length_us, frozenset(sensors[start_us]))
        for start_us in sorted(sensors)
        if any(extent.start_us < start_us + longest.length_us and start_us < extent.end_us for extent in extents)
    ]


def settled(start_us: int, extents: Iterable[Extent]) -> bool:
    """Whether the window of the shortest tier that starts then is looked at, and every longer one that holds it."""
    return all(extent.tier.window.start_of(start_us) in extent for extent in extents)


def _kept_from(schema: TableSchema, policies: Mapping[str, Policy], family: str, now_us: int) -> int:
    """The time from which on a family surely has all its cells; 0 where nothing is ever collected by age."""
    policy = policies[family]
    readings = family in schema.metrics.families
    if readings and counts_versions(policy) and schema.versions_are_events:
        return now_us  # each version is an event, and nobody knows how many have gone
    age = collected_after(policy)
    return 0 if age is None else max(now_us - (age - _SPARE) // _MICROSECOND, 0)


def _up(time_us: int, length_us: int) -> int:
    return -(-time_us // length_us) * length_us
