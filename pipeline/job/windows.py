"""Aggregates the windows of a table, tier by tier."""

from datetime import timedelta
from typing import NamedTuple

from apache_beam.pvalue import PCollection

from pipeline.core.completion import RestoreFromReadings, RestoreFromShorterWindows, RestoreMethod
from pipeline.core.schema.table_schema import Tier
from pipeline.job.settings import Settings, Target
from pipeline.transforms.aggregate import AggregateReadings, Firing, RollUp
from pipeline.transforms.restore import RestoreWindows

_MICROSECOND = timedelta(microseconds=1)


class Aggregates(NamedTuple):
    """The aggregates of one table.

    Attributes:
        panes: ``(sensor_id, WindowStats)`` of each tier's windows.
        incomplete: ``(sensor_id, start in µs)`` of windows that a repair has to check.
    """

    panes: dict[Tier, PCollection]
    incomplete: list[PCollection]


def aggregate(
    readings: PCollection | None, target: Target, settings: Settings, began_us: int | None, mark: str = ""
) -> Aggregates:
    """Aggregates the windows of a table: the shortest from readings, each longer one from the tier before.

    Args:
        readings: ``(sensor_id, WindowReadings)`` of the shortest windows; None if the table has no tiers.
        target: the table.
        settings: of the job.
        began_us: as for :func:`pipeline.job.graph.build_graph`.
        mark: ends the labels of this table's steps.
    """
    aggregates = Aggregates({}, [])
    firing = Firing(settings.early_firing, settings.late_firing, settings.allowed_lateness)
    parts, shorter = readings, None
    for tier in target.schema.tiers:
        if shorter is None:
            label, method = f"AggregateReadings{mark}", RestoreFromReadings(tier, settings.deduplicate)
            step = AggregateReadings(
                tier.window,
                firing,
                deduplicate=settings.deduplicate,
                restore=_restore(method, target, settings, began_us),
            )
        else:
            firing = firing.of_longer(shorter.window)
            label = f"RollUp[{tier.window.text}]{mark}"
            step = RollUp(
                tier.window,
                firing,
                restore=_restore(RestoreFromShorterWindows((shorter, tier)), target, settings, began_us),
            )
        parts, incomplete = parts | label >> step
        aggregates.panes[tier] = parts
        aggregates.incomplete.extend(incomplete)
        shorter = tier
    return aggregates


def _restore(method: RestoreMethod, target: Target, settings: Settings, began_us: int | None) -> RestoreWindows | None:
    """Returns what restores windows that began before the job; None if nothing has to be restored.

    A sensor whose clock is ahead may already be in windows that begin after the job, by up to max_future inclusive.
    """
    if began_us is None:
        return None
    before_us = began_us + settings.max_future // _MICROSECOND + 1
    return RestoreWindows((target.name, target.schema, target.effective_retention), method, before_us)
