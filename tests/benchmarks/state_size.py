"""Prints how many bytes the state of one sensor's window takes, as a runner would store it.

Run with ``.venv/bin/python -m tests.benchmarks.state_size``.
"""

import random

from pipeline.core.accumulator import WindowReadings
from pipeline.core.tiers import ShorterWindows
from pipeline.transforms.coders import AccumulatorCoder

METRICS = (1, 3, 10)


def hour_bytes(metrics: int, hertz: int, *, deduplicate: bool = True) -> int:
    """Returns the bytes of an hour of so many events per second, each with so many metrics."""
    return _encoded(_hour(metrics, hertz, deduplicate=deduplicate))


def day_bytes(metrics: int) -> int:
    """Returns the bytes of a day that is computed from its hours."""
    day = ShorterWindows()
    for hour in range(24):
        day.put(hour * 3_600_000_000, _hour(metrics, 1, deduplicate=False).pane().stats)
    return _encoded(day)


def _hour(metrics: int, hertz: int, *, deduplicate: bool) -> WindowReadings:
    rng = random.Random(1)
    state = WindowReadings(deduplicate=deduplicate)
    for i in range(3600 * hertz):
        state.add(i * 1_000_000 // hertz, {f"metric_{number}": rng.uniform(10, 30) for number in range(metrics)})
    return state


def _encoded(state: WindowReadings | ShorterWindows) -> int:
    return len(AccumulatorCoder(type(state)).encode(state))


def lines() -> list[str]:
    """Returns the lines of the table."""
    return [
        "metrics   an hour at 1 Hz   at 100 Hz   without de-duplication   a day, from hours",
        *(
            f"{metrics:7}  {hour_bytes(metrics, 1):16,}  {hour_bytes(metrics, 100):10,}"
            f"  {hour_bytes(metrics, 1, deduplicate=False):23,}  {day_bytes(metrics):18,}"
            for metrics in METRICS
        ),
    ]


if __name__ == "__main__":
    print("\n".join(lines()))
