"""Prints how many bytes the state of one sensor's window takes, as a runner would store it.

Run with ``.venv/bin/python -m tests.benchmarks.state_size``.
"""

import random

from apache_beam import coders

from pipeline.core.stats import WindowStats


def encoded_bytes(metrics: int, events: int = 3600) -> int:
    """The bytes of an accumulator that has seen so many events of so many metrics."""
    rng = random.Random(1)
    stats = WindowStats()
    for _ in range(events):
        stats.add({f"metric_{number}": rng.uniform(10, 30) for number in range(metrics)})
    return len(coders.registry.get_coder(WindowStats).encode(stats))


if __name__ == "__main__":
    print("metrics  bytes a sensor and window")
    for metrics in (1, 3, 10, 50):
        print(f"{metrics:7}  {encoded_bytes(metrics):25,}")
