"""Prints how many bytes the state of one sensor's window takes, as a runner would store it.

Run with ``.venv/bin/python -m tests.benchmarks.state_size``.
"""

import random

from apache_beam import coders

from pipeline.core.stats import WindowStats
from pipeline.core.tiers import ShorterWindows


def encoded_bytes(metrics: int, events: int = 3600) -> int:
    """The bytes of an accumulator that has seen so many events of so many metrics."""
    return _encoded(_accumulator(metrics, events, random.Random(1)))


def encoded_day_bytes(metrics: int, events: int = 3600) -> int:
    """The bytes of a day that is computed from its hours, each with so many events of so many metrics."""
    rng = random.Random(1)
    day = ShorterWindows()
    for hour in range(24):
        day.put(hour * 3_600_000_000, _accumulator(metrics, events, rng))
    return _encoded(day)


def _accumulator(metrics: int, events: int, rng: random.Random) -> WindowStats:
    stats = WindowStats()
    for _ in range(events):
        stats.add({f"metric_{number}": rng.uniform(10, 30) for number in range(metrics)})
    return stats


def _encoded(state: WindowStats | ShorterWindows) -> int:
    return len(coders.registry.get_coder(type(state)).encode(state))


if __name__ == "__main__":
    print("metrics  bytes a sensor and window  a sensor and day, from hours")
    for metrics in (1, 3, 10, 50):
        print(f"{metrics:7}  {encoded_bytes(metrics):25,}  {encoded_day_bytes(metrics):28,}")
