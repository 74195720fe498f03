"""Prints how many bytes the state of one sensor takes, as a runner would store it.

The readings are like a sensor's: each metric starts anywhere from 10 to 30, moves by a normally distributed step (of a
standard deviation of 0.1) with each event, and is rounded to two decimals. Events come at a constant rate, with times
in whole milliseconds that are up to 10 ms late. As in a job, the state is read and written once a minute.

Run with ``.venv/bin/python -m tests.benchmarks.state_size``.
"""

from collections.abc import Iterator
from datetime import timedelta

import numpy as np

from pipeline.core.accumulation.accumulator import WindowReadings

METRICS = (1, 3, 10)
PER_MINUTE = {"1/min": 1, "1 Hz": 60, "10 Hz": 600, "100 Hz": 6000}
OPEN = timedelta(minutes=70)  # a window and the default of --allowed_lateness

_START_US = 1_771_329_600_000_000
_MINUTE_US = 60_000_000


def sizes(metrics: int, per_minute: int) -> list[int]:
    """Returns the bytes of an hour after each of its minutes."""
    return [len(state.to_bytes()) for state in _hour(metrics, per_minute)]


def _hour(metrics: int, per_minute: int) -> Iterator[WindowReadings]:
    """Yields the state after each minute."""
    rng = np.random.default_rng(1)
    names = tuple(f"metric_{number}" for number in range(metrics))
    values = rng.uniform(10, 30, metrics)
    state = WindowReadings()
    for minute in range(60):
        walk = values + rng.normal(0, 0.1, (per_minute, metrics)).cumsum(axis=0)
        values = walk[-1]
        times = _START_US + minute * _MINUTE_US + np.arange(per_minute) * _MINUTE_US // per_minute
        times += 1000 * rng.integers(0, 10, per_minute) - times % 1000
        state.extend(names, times.tolist(), walk.round(2).ravel().tolist())
        state = WindowReadings.from_bytes(state.to_bytes())
        yield state


def _line(rate: str, metrics: int) -> str:
    hour = sizes(metrics, PER_MINUTE[rate])
    together = hour[-1] + hour[OPEN // timedelta(minutes=1) - 60 - 1]  # the last window, and the first of the current
    return f"{rate:>6}  {metrics:8}  {hour[-1]:9,}  {together:9,}"


def lines() -> list[str]:
    """Returns the lines of the table."""
    return [
        "  rate   metrics    an hour   all open",
        *(_line(rate, metrics) for rate in PER_MINUTE for metrics in METRICS),
    ]


if __name__ == "__main__":
    print("\n".join(lines()))
