"""Prints the size of an event as a message and as rows, and of a sensor's state in flight.

The event has three metrics and two metadata entries. The state is as a runner would store it, after an hour and with
all open windows. Each of its metrics starts anywhere from 10 to 30, moves by a normally distributed step (of a standard
deviation of 0.1) with each event, and is rounded to two decimals. Events come at a constant rate, with times in whole
milliseconds that are up to 10 ms late. As in a job, the state is read and written once a minute.
"""

from collections.abc import Iterator
from datetime import timedelta

import numpy as np

from benchmarks.measuring import arguments
from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.events.event import Event, validate
from pipeline.core.events.message import message_of, sensor_event
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.rows.rows import Row
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.core.windows import HOURLY

METRICS = (1, 3, 10)
PER_MINUTE = {"1/min": 1, "1 Hz": 60, "10 Hz": 600, "100 Hz": 6000}
OPEN = timedelta(minutes=70)  # a window and the default of --allowed_lateness

_T, _START_US, _MINUTE_US = 1_771_324_200_123_456, 1_771_329_600_000_000, 60_000_000


def _events(count: int) -> list:
    readings = {"temperature": 21.57, "humidity": 48.3, "pressure": 101325.0}
    metadata = {"location": "north", "model": "TH-200"}
    return [sensor_event("greenhouse-0042", _T + i * 1_000_000, readings, metadata) for i in range(count)]


def _bytes(row: Row) -> int:
    """Returns the bytes of key, families, qualifiers, values and timestamps (eight per cell), uncompressed."""
    cells = sum(len(cell.family) + len(cell.qualifier) + len(cell.value) + 8 for cell in row.cells)
    return len(row.key) + cells


def sizes() -> dict[str, int]:
    """Returns the printed sizes in bytes."""
    event: Event = validate(_events(1)[0], _T)
    stats = WindowStats()
    for _ in range(360):
        stats.add(event.readings)
    return {
        "message of one event": len(message_of(_events(1)).data),
        "event in a message of a hundred": len(message_of(_events(100)).data) // 100,
        "raw row": _bytes(*TableSchema.default().rows(event)),
        "aggregate row": _bytes(
            aggregate_row(HOURLY, event.sensor_id, HOURLY.start_of(event.event_time_us), stats, "stats")
        ),
    }


def lines() -> list[str]:
    """Returns the lines of the table."""
    return [f"{what:35}{size:6,} bytes" for what, size in sizes().items()]


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
    hour = [len(state.to_bytes()) for state in _hour(metrics, PER_MINUTE[rate])]
    together = hour[-1] + hour[OPEN // timedelta(minutes=1) - 60 - 1]  # the last window, and the first of the current
    return f"{rate:>6}  {metrics:8}  {hour[-1]:9,}  {together:9,}"


def state_lines() -> list[str]:
    """Returns the lines of the table of states."""
    return [
        "  rate   metrics    an hour   all open",
        *(_line(rate, metrics) for rate in PER_MINUTE for metrics in METRICS),
    ]


if __name__ == "__main__":
    arguments()
    print("\n".join([*lines(), "", *state_lines()]))
