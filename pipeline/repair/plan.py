"""What a repair looks at: which windows, in which order, what it leaves alone and why."""

from collections.abc import Iterable, Mapping, Sequence

from pipeline.core.aggregates import AggregateKey
from pipeline.core.audit import Extent
from pipeline.core.extents import Bounds, round_up
from pipeline.core.schema.sweeps import Span
from pipeline.core.schema.table_schema import Tier


def slices_of(extents: Sequence[Extent], most: int, sensors: frozenset[str] | None = None) -> list[Span]:
    """All that has to be read for these windows, in order of time, in at most so many slices of whole longest windows.

    Args:
        extents: of the shortest tier first.
        most: slices, at least one.
        sensors: whose; None for everybody's.
    """
    inspected = [extent for extent in extents if extent.windows]
    if not inspected:
        return []
    start_us, end_us = min(extent.start_us for extent in inspected), max(extent.end_us for extent in inspected)
    longest = extents[-1].tier.window
    begin_us = longest.start_of(start_us)
    windows = (round_up(end_us, longest.length_us) - begin_us) // longest.length_us
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


def settled(start_us: int, extents: Iterable[Extent], bounds: Mapping[Tier, Bounds] | None) -> bool:
    """Whether the window of the shortest tier that starts then is looked at, and every longer one that holds it.

    Those whose aggregate rows are kept no longer need not be.
    """
    return all(
        extent.tier.window.start_of(start_us) in extent or _is_gone(extent.tier, start_us, bounds) for extent in extents
    )


def past(start_us: int, tiers: Iterable[Tier], bounds: Mapping[Tier, Bounds] | None) -> bool:
    """Whether no tier keeps an aggregate row of a window that holds this start any longer."""
    return all(_is_gone(tier, start_us, bounds) for tier in tiers)


def _is_gone(tier: Tier, start_us: int, bounds: Mapping[Tier, Bounds] | None) -> bool:
    return bounds is not None and tier.window.start_of(start_us) < bounds[tier].kept_us
