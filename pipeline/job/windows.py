"""How a table's windows are aggregated, out of what, and what each goes on from."""

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
    """What becomes of events in one table.

    Attributes:
        panes: ``(sensor_id, WindowStats)`` of each tier's windows.
        unsure: ``(sensor_id, start in µs)`` of windows that a repair has to look at.
    """

    panes: dict[Tier, PCollection]
    incomplete: list[PCollection]


def aggregate(
    gathered: PCollection | None, target: Target, settings: Settings, began_us: int | None, mark: str = ""
) -> Aggregates:
    """Aggregates the windows of a table: the shortest of what is gathered of events, each other of the one before it.

    Args:
        gathered: ``(sensor_id, WindowReadings)`` of its shortest windows; None where it has no tier.
        target: the table.
        settings: how.
        began_us: when the job began; None for a job whose tables are empty, and nobody else's.
        mark: what tells the labels of this table from those of others.
    """
    made = Aggregates({}, [])
    firing = Firing(settings.early_firing, settings.late_firing, settings.allowed_lateness)
    parts, before = gathered, None
    for tier in target.schema.tiers:
        if before is None:
            label, restore = f"AggregateReadings{mark}", RestoreFromReadings(tier, settings.deduplicate)
            step = AggregateReadings(
                tier.window,
                firing,
                deduplicate=settings.deduplicate,
                restore=_restore(restore, target, settings, began_us),
            )
        else:
            firing = firing.of_longer(before.window)
            label = f"RollUp[{tier.window.text}]{mark}"
            step = RollUp(
                tier.window,
                firing,
                restore=_restore(RestoreFromShorterWindows((before, tier)), target, settings, began_us),
            )
        parts, incomplete = parts | label >> step
        made.panes[tier] = parts
        made.incomplete.extend(incomplete)
        before = tier
    return made


def _restore(restore: RestoreMethod, target: Target, settings: Settings, began_us: int | None) -> RestoreWindows | None:
    """What completes windows that began before the job did.

    A sensor whose clock is ahead may have been in windows that begin later than the job, by max_future inclusive.
    """
    if began_us is None:
        return None
    before_us = began_us + settings.max_future // _MICROSECOND + 1
    return RestoreWindows((target.name, target.schema, target.kept), restore, before_us)
