"""Which windows are aggregated, out of what, and what each goes on from."""

from collections.abc import Sequence
from datetime import timedelta

from apache_beam.pvalue import PCollection

from pipeline.cloud.recall import HeldReadings, HeldWindows, Holdings
from pipeline.core.tiers import computed_from
from pipeline.core.windows import Window
from pipeline.job.settings import Settings, Target
from pipeline.transforms.aggregate import AggregateReadings, Firing, RollUp
from pipeline.transforms.recall import RecallWindows


def aggregate(
    events: PCollection, targets: Sequence[Target], settings: Settings, began_us: int | None
) -> dict[timedelta, PCollection]:
    """``(sensor_id, WindowStats)`` panes of every window that a table has, by its length; each is computed once."""
    firing = Firing(settings.early_firing, settings.late_firing, settings.allowed_lateness)
    windows = computed_from(tier.window for target in targets for tier in target.schema.tiers)
    made: dict[timedelta, tuple[PCollection, Firing]] = {}
    for window, shorter in windows.items():
        recall = _recall(window, shorter, targets, settings, began_us)
        if shorter is None:
            label = f"AggregateReadings[{window.text}]" if made else "AggregateReadings"
            from_events = AggregateReadings(
                window,
                firing,
                deduplicate=settings.deduplicate,
                grain_us=min(target.schema.grain_us for target in targets),
                recall=recall,
            )
            made[window.length] = events | label >> from_events, firing
        else:
            panes, of_shorter = made[shorter.length]
            of_longer = of_shorter.of_longer(shorter)
            made[window.length] = (
                panes | f"RollUp[{window.text}]" >> RollUp(window, of_longer, recall=recall),
                of_longer,
            )
    return {length: panes for length, (panes, _) in made.items()}


def _recall(
    window: Window, shorter: Window | None, targets: Sequence[Target], settings: Settings, began_us: int | None
) -> RecallWindows | None:
    """What completes windows that began before the job: of several tables, the first that has what it takes.

    A sensor whose clock is ahead may have been in windows that begin later than the job.
    """
    if began_us is None:
        return None
    of_tier = [target for target in targets if target.schema.tier(shorter or window)]
    if shorter is not None:
        holdings: Holdings = HeldWindows(*of_tier[0], window, shorter)
    else:
        best = min(of_tier, key=lambda target: (not target.schema.finds_sensors, target.schema.grain_us))
        holdings = HeldReadings(*best, window, settings.deduplicate)
    return RecallWindows(holdings, began_us + settings.max_future // timedelta(microseconds=1))
