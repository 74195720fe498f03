"""Which windows are aggregated, out of what, and what each goes on from."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from apache_beam.pvalue import PCollection

from pipeline.cloud.recall import Held, HeldReadings, HeldWindows, Holdings
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.tiers import computed_from
from pipeline.core.windows import Window
from pipeline.job.settings import Settings, Target
from pipeline.transforms.aggregate import Aggregated, AggregateReadings, Firing, RollUp
from pipeline.transforms.recall import RecallWindows


class Aggregates(NamedTuple):
    """What becomes of events.

    Attributes:
        panes: ``(sensor_id, WindowStats)`` of every window that a table has, by its length; each is computed once.
        unsure: ``(sensor_id, start in µs)`` of windows that a repair has to look at; one collection for each length.
    """

    panes: dict[timedelta, PCollection]
    unsure: list[PCollection]


def counted_as(schema: TableSchema, targets: Sequence[Target]) -> Window | None:
    """The window in which events are counted that a table's shortest is computed from; None without aggregates."""
    if not schema.tiers:
        return None
    window = schema.tiers[0].window
    computed = {each.length: (each, shorter) for each, shorter in _computed(targets).items()}
    while shorter := computed[window.length][1]:
        window = shorter
    return computed[window.length][0]


def _computed(targets: Sequence[Target]) -> dict[Window, Window | None]:
    return computed_from(tier.window for target in targets for tier in target.schema.tiers)


def aggregate(
    gathered: Mapping[Window, PCollection], targets: Sequence[Target], settings: Settings, began_us: int | None
) -> Aggregates:
    """Aggregates every window that a table has, of what is gathered of those in which events are counted."""
    firing = Firing(settings.early_firing, settings.late_firing, settings.allowed_lateness)
    made: dict[timedelta, tuple[Aggregated, Firing]] = {}
    for window, shorter in _computed(targets).items():
        recall = _recall(window, shorter, targets, settings, began_us)
        if shorter is None:
            label = f"AggregateReadings[{window.text}]" if made else "AggregateReadings"
            readings = AggregateReadings(window, firing, deduplicate=settings.deduplicate, recall=recall)
            made[window.length] = gathered[window] | label >> readings, firing
        else:
            of_shorter, firing_of_shorter = made[shorter.length]
            of_longer = firing_of_shorter.of_longer(shorter)
            roll_up = RollUp(window, of_longer, recall=recall)
            made[window.length] = of_shorter.panes | f"RollUp[{window.text}]" >> roll_up, of_longer
    return Aggregates(
        {length: aggregated.panes for length, (aggregated, _) in made.items()},
        [aggregated.unsure for aggregated, _ in made.values() if aggregated.unsure is not None],
    )


def _recall(
    window: Window, shorter: Window | None, targets: Sequence[Target], settings: Settings, began_us: int | None
) -> RecallWindows | None:
    """What completes windows that began before the job: what every table holds that has anything to do with them.

    A sensor whose clock is ahead may have been in windows that begin later than the job.
    """
    if began_us is None:
        return None
    lengths = (window, shorter) if shorter else (window,)
    tables = tuple(Held(*target) for target in targets if any(map(target.schema.tier, lengths)))
    if shorter is not None:
        holdings: Holdings = HeldWindows(tables, window, shorter)
    else:
        identity = min((target.schema.identity for target in targets), key=lambda each: each.grain_us)
        holdings = HeldReadings(tables, window, identity, settings.deduplicate)
    return RecallWindows(holdings, began_us + settings.max_future // timedelta(microseconds=1))
