"""The spans that a repair reads, and the listed windows that it settles."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from pipeline.core.completion.audit import Extent
from pipeline.core.completion.auditable_windows import Bounds
from pipeline.core.queries.sweeps import Span
from pipeline.core.rows.aggregate_rows import AggregateKey
from pipeline.core.schema.table_schema import Tier


def slices_of(extents: Sequence[Extent], most: int, sensors: frozenset[str] | None = None) -> list[Span]:
    """Returns the spans to read for these windows, in time order; each slice covers whole windows of the longest tier.

    Args:
        extents: the windows to audit, of tiers that nest.
        most: the maximum number of slices, at least one.
        sensors: the sensors to audit; None for all.
    """
    inspected = [extent for extent in extents if extent.start_us < extent.end_us]
    if not inspected:
        return []
    start_us, end_us = min(extent.start_us for extent in inspected), max(extent.end_us for extent in inspected)
    longest = extents[-1].tier.window
    cuts = {longest.start_of(start_us + (end_us - start_us) * part // most) for part in range(1, most)}
    bounds = [start_us, *sorted(cut for cut in cuts if cut > start_us), end_us]
    return [Span(*each, sensors) for each in pairwise(bounds)]


def spans_of(listed: Iterable[AggregateKey], extents: Sequence[Extent]) -> list[Span]:
    """Returns the spans to read for listed windows, each widened to the longest window that contains it.

    Skips a span that contains no window of the extents.
    """
    longest = extents[-1].tier.window
    sensors: dict[int, set[str]] = {}
    for sensor_id, start_us in listed:
        sensors.setdefault(longest.start_of(start_us), set()).add(sensor_id)
    return [
        Span(start_us, longest.end_of(start_us), frozenset(sensors[start_us]))
        for start_us in sorted(sensors)
        if any(extent.start_us < longest.end_of(start_us) and start_us < extent.end_us for extent in extents)
    ]


def settles(
    start_us: int,
    extents: Iterable[Extent],
    bounds: Mapping[Tier, Bounds] | None,
    computes: Callable[[Tier, int], bool] = lambda _tier, _start_us: False,
) -> bool:
    """Whether auditing the extents settles a window of the shortest tier, which starts at ``start_us``.

    It does if the extents cover that window and every longer window around it, but for those that are computed from
    shorter ones. Windows whose aggregate rows have expired need no audit.
    """
    return all(
        extent.tier.window.start_of(start_us) in extent
        or computes(extent.tier, extent.tier.window.start_of(start_us))
        or _is_expired(extent.tier, start_us, bounds)
        for extent in extents
    )


def aggregates_expired(start_us: int, tiers: Iterable[Tier], bounds: Mapping[Tier, Bounds] | None) -> bool:
    """Whether every tier's aggregate row for this time has expired."""
    return all(_is_expired(tier, start_us, bounds) for tier in tiers)


def _is_expired(tier: Tier, start_us: int, bounds: Mapping[Tier, Bounds] | None) -> bool:
    return bounds is not None and tier.window.start_of(start_us) < bounds[tier].kept_us
