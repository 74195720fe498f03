"""Holds a plan's arithmetic against messages and rows that the real code makes for a sample."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from pipeline.core.events.event import Event
from pipeline.core.events.publishing import message_of
from pipeline.core.events.wire import sensor_event
from pipeline.core.rows.aggregate_rows import aggregate_row, encoded_aggregate_row
from pipeline.core.rows.newest_row import NewestReadings
from pipeline.core.rows.rows import Row
from pipeline.plan.sizes import aggregate_size, latest_size, message_bytes, raw_size, window_events
from pipeline.plan.workload import START_US, Workload

TOLERANCE = 0.05
_SENSORS, _EVENTS = 40, 50
_WINDOWS = 10
_MOST_IN_BUCKET = 1000  # with more, the key does not count
_MOST_EVENTS = 19_997  # of a window: more change few sizes; a prime, whose averages have all their digits


class Checked(NamedTuple):
    """A figure by arithmetic, and as the real code has it."""

    name: str
    reckoned: float
    found: float

    @property
    def deviation(self) -> float:
        """The share by which the arithmetic is off."""
        if self.found:
            return self.reckoned / self.found - 1
        return 0.0 if not self.reckoned else float("inf")

    @property
    def deviates(self) -> bool:
        """Whether that is more than is tolerated."""
        return abs(self.deviation) > TOLERANCE


def readings() -> Iterator[float]:
    """Yields readings from 10 to 30 with two decimals, always the same."""
    rng = random.Random(1)
    while True:
        yield round(rng.uniform(10, 30), 2)


def simulate(workload: Workload) -> list[Checked]:
    """Returns all figures of messages and rows, as reckoned and as found."""
    return [*_of_messages(workload), *_of_raw_rows(workload), *_of_aggregates(workload), *_of_newest(workload)]


def _sample(workload: Workload) -> list[Event]:
    """Returns consecutive events of several sensors from all over the fleet; enough of each to fill a bucket."""
    rng, values = random.Random(2), readings()
    per_key = workload.schema.key.grain_us // workload.every_us if workload.schema.layout.bucketed else 0
    count = max(_EVENTS, min(per_key, _MOST_IN_BUCKET))
    sensors = min(workload.sensors, _SENSORS, max(2, _MOST_EVENTS // count))
    step = max(1, workload.sensors // sensors)
    return [
        workload.event(sensor * step, START_US + number * workload.every_us + rng.randrange(workload.every_us), values)
        for sensor in range(sensors)
        for number in range(count)
    ]


def _of_messages(workload: Workload) -> Iterator[Checked]:
    protos = [sensor_event(*event[:5]) for event in _sample(workload)]
    for batch in sorted({1, workload.batch}):
        cycle = protos * -(-batch // len(protos))
        sizes = [len(message_of(cycle[first : first + batch]).data) for first in range(0, len(cycle), batch)]
        full = sizes[: len(cycle) // batch]
        yield Checked(f"bytes of a message of {batch:,}", message_bytes(workload, batch), sum(full) / len(full))


def _of_raw_rows(workload: Workload) -> Iterator[Checked]:
    schema, events = workload.schema, _sample(workload)
    reckoned, count = raw_size(workload), len(events)
    encoded = schema.encoded_rows(events)
    yield Checked("raw rows an event", reckoned.rows, len(encoded) / count)
    yield Checked("raw cells an event", reckoned.cells, sum(row.cells for row in encoded) / count)
    sizes = sum(len(row.key) + len(row.mutations) for row in encoded)
    yield Checked("encoded raw bytes an event", reckoned.encoded, sizes / count)
    cells: dict[bytes, dict] = defaultdict(dict)
    for event in events:
        for row in schema.rows(event):
            cells[row.key] |= {cell[:3]: cell for cell in row.cells}
    stored = _stored(Row(key, list(of_row.values())) for key, of_row in cells.items())
    for family in sorted(stored.keys() | reckoned.stored.keys()):
        yield Checked(f"stored bytes of {family} an event", reckoned.stored.get(family, 0.0), stored[family] / count)


def _of_aggregates(workload: Workload) -> Iterator[Checked]:
    rng, values = random.Random(3), readings()
    for tier in workload.schema.tiers:
        window, text = tier.window, tier.window.text
        start_us = window.start_of(START_US)
        span_us = window.end_of(start_us) - start_us
        count = min(_MOST_EVENTS, round(window_events(workload, tier)))
        cells = encoded = 0
        stored: Counter[str] = Counter()
        for number in range(_WINDOWS if count > 200 else 10 * _WINDOWS):
            times = sorted(start_us + rng.randrange(span_us) // 1000 * 1000 for _ in range(count))
            columns = {name: [next(values) for _ in times] for name in workload.metrics}
            stats = tier.statistics.stats_of(times, columns)
            made = (window, f"sensor-{number:09}", start_us, stats, tier.family, tier.statistics)
            row = encoded_aggregate_row(*made)
            cells += row.cells
            encoded += len(row.key) + len(row.mutations)
            stored += _stored([aggregate_row(*made)])
        reckoned, rows = aggregate_size(workload, tier), number + 1
        yield Checked(f"cells of a row of {text}", reckoned.cells, cells / rows)
        yield Checked(f"encoded bytes of a row of {text}", reckoned.encoded, encoded / rows)
        yield Checked(f"stored bytes of a row of {text}", reckoned.stored[tier.family], stored[tier.family] / rows)


def _of_newest(workload: Workload) -> Iterator[Checked]:
    family = workload.schema.latest
    if family is None:
        return
    newest = NewestReadings()
    for event in _sample(workload):
        newest.add(event.sensor_id, event.event_time_us, event.readings.items())
    reckoned, rows = latest_size(workload, family), list(newest.rows(family))
    yield Checked("cells of a row of newest readings", reckoned.cells, sum(row.cells for row in rows) / len(rows))
    sizes = sum(len(row.key) + len(row.mutations) for row in rows)
    yield Checked("encoded bytes of a row of newest readings", reckoned.encoded, sizes / len(rows))


def _stored(rows: Iterator[Row] | list[Row]) -> Counter[str]:
    """Returns the bytes by family of the rows."""
    found: Counter[str] = Counter()
    for row in rows:
        found[row.cells[0].family] += len(row.key)
        for cell in row.cells:
            found[cell.family] += len(cell.family) + len(cell.qualifier) + len(cell.value) + 8
    return found
