"""Makes messages and rows with the real code, for a sample of a fleet, and compares them with the plan's arithmetic."""

import random
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import timedelta
from typing import NamedTuple

from pipeline.core.events.event import Event
from pipeline.core.events.message import message_of, sensor_event
from pipeline.core.rows.aggregate_rows import aggregate_row, encoded_aggregate_row
from pipeline.core.rows.newest_row import NewestReadings
from pipeline.core.rows.rows import Row
from pipeline.core.schema.gc_policies import collected_after
from pipeline.core.schema.key_tokens import EventIdToken
from pipeline.plan import sizes
from pipeline.plan.estimate import TABLETS
from pipeline.plan.workload import START_US, Workload

TOLERANCE = 0.05
_SENSORS, _EVENTS = 40, 50
_WINDOWS = 10
_HOT_SENSORS, _HOT_TIMES = 400, 50
_MOST_IN_BUCKET = 1000  # with more, the key does not count
_MOST_EVENTS = 4_999  # of a window: more change few sizes; a prime, whose averages have all their digits


class Figure(NamedTuple):
    """A figure by arithmetic, and as the real code has it."""

    name: str
    estimated: float
    found: float

    @property
    def deviates(self) -> bool:
        """Whether the arithmetic is off by more than is tolerated."""
        return abs(self.estimated - self.found) > TOLERANCE * self.found


def readings() -> Iterator[float]:
    """Yields readings from 10 to 30 with two decimals, always the same."""
    rng = random.Random(1)
    while True:
        yield round(rng.uniform(10, 30), 2)


def event_of(workload: Workload, sensor: int, time_us: int, values: Iterator[float]) -> Event:
    """Returns an event of a sensor, by its number, with the next of the values as readings."""
    return Event(
        f"sensor-{sensor:09}",
        time_us,
        {name: next(values) for name in workload.metrics},
        dict.fromkeys(workload.metadata, f"value_{sensor:010}"),
        f"event_{time_us % 10**10:010}" if workload.schema.key.has(EventIdToken) else "",
    )


def simulate(workload: Workload) -> list[Figure]:
    """Returns all figures of messages and rows, by arithmetic and as found."""
    return [*_of_messages(workload), *_of_raw_rows(workload), *_of_aggregates(workload), *_of_newest(workload)]


def _sample(workload: Workload) -> list[Event]:
    """Returns consecutive events of several sensors from all over the fleet; enough of each to fill a bucket."""
    rng, values = random.Random(2), readings()
    per_key = workload.schema.key.grain_us // workload.every_us if workload.schema.layout.bucketed else 0
    count = max(_EVENTS, min(per_key, _MOST_IN_BUCKET))
    sensors = min(workload.sensors, _SENSORS, max(2, _MOST_EVENTS // count))
    step = max(1, workload.sensors // sensors)
    return [
        event_of(
            workload, sensor * step, START_US + number * workload.every_us + rng.randrange(workload.every_us), values
        )
        for sensor in range(sensors)
        for number in range(count)
    ]


def _of_messages(workload: Workload) -> Iterator[Figure]:
    protos = [sensor_event(*event[:5]) for event in _sample(workload)]
    for batch in sorted({1, workload.batch}):
        cycle = protos * -(-batch // len(protos))
        made = [len(message_of(cycle[first : first + batch]).data) for first in range(0, len(cycle), batch)]
        full = made[: len(cycle) // batch]
        yield Figure(f"bytes of a message of {batch:,}", sizes.message_bytes(workload, batch), sum(full) / len(full))


def _of_raw_rows(workload: Workload) -> Iterator[Figure]:
    schema, events = workload.schema, _sample(workload)
    estimated, count = sizes.raw_size(workload), len(events)
    encoded = schema.encoded_rows(events)
    yield Figure("raw rows an event", estimated.rows, len(encoded) / count)
    yield Figure("raw cells an event", estimated.cells, sum(row.cells for row in encoded) / count)
    total = sum(len(row.key) + len(row.mutations) for row in encoded)
    yield Figure("encoded raw bytes an event", estimated.encoded, total / count)
    cells: dict[bytes, dict] = defaultdict(dict)
    for event in events:
        for row in schema.rows(event):
            cells[row.key] |= {cell[:3]: cell for cell in row.cells}
    stored = _stored(Row(key, list(of_row.values())) for key, of_row in cells.items())
    for family in sorted(stored.keys() | estimated.stored.keys()):
        yield Figure(f"stored bytes of {family} an event", estimated.stored.get(family, 0.0), stored[family] / count)


def _of_aggregates(workload: Workload) -> Iterator[Figure]:
    rng, values = random.Random(3), readings()
    for tier in workload.schema.tiers:
        window, text = tier.window, tier.window.text
        start_us = window.start_of(START_US)
        span_us = window.end_of(start_us) - start_us
        count = min(_MOST_EVENTS, round(sizes.window_events(workload, tier)))
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
        estimated, rows = sizes.aggregate_size(workload, tier), number + 1
        yield Figure(f"cells of a row of {text}", estimated.cells, cells / rows)
        yield Figure(f"encoded bytes of a row of {text}", estimated.encoded, encoded / rows)
        yield Figure(f"stored bytes of a row of {text}", estimated.stored[tier.family], stored[tier.family] / rows)


def _of_newest(workload: Workload) -> Iterator[Figure]:
    family = workload.schema.latest
    if family is None:
        return
    newest = NewestReadings()
    for event in _sample(workload):
        newest.add(event.sensor_id, event.event_time_us, event.readings.items())
    estimated, rows = sizes.latest_size(workload, family), list(newest.rows(family))
    yield Figure("cells of a row of newest readings", estimated.cells, sum(row.cells for row in rows) / len(rows))
    total = sum(len(row.key) + len(row.mutations) for row in rows)
    yield Figure("encoded bytes of a row of newest readings", estimated.encoded, total / len(rows))


def _stored(rows: Iterator[Row] | list[Row]) -> Counter[str]:
    """Returns the bytes by family of the rows."""
    found: Counter[str] = Counter()
    for row in rows:
        found[row.cells[0].family] += len(row.key)
        for cell in row.cells:
            found[cell.family] += len(cell.family) + len(cell.qualifier) + len(cell.value) + 8
    return found


def hottest_share(workload: Workload) -> float:
    """Returns the share of raw writes that go to the hottest of a hundred tablets of equal size, from 0 to 1.

    Divides the rendered keys of the stored events into equal parts, and counts the part of each sensor's next event.
    Sensors report at random moments. Tablets are neither split for load nor moved, as Bigtable also does; if all writes
    go to the newest keys, neither helps ("Schema design", cloud.google.com/bigtable/docs/schema-design).
    """
    rng, values = random.Random(1), readings()
    step = max(1, workload.sensors // _HOT_SENSORS)
    sensors = [number * step for number in range(min(workload.sensors, _HOT_SENSORS))]
    policies = workload.schema.policies
    ages = [collected_after(policies[family]) or timedelta(days=90) for family in workload.schema.metrics.families]
    age_us = max(ages) // timedelta(microseconds=1)

    def key(sensor: int, time_us: int) -> bytes:
        event = event_of(workload, sensor, time_us + rng.randrange(workload.every_us), values)
        return workload.schema.key.render(event, workload.metrics[0])

    stored = sorted(
        key(sensor, START_US - age_us + age_us * (number + 1) // (_HOT_TIMES + 1))
        for sensor in sensors
        for number in range(_HOT_TIMES)
    )
    splits = [stored[len(stored) * number // TABLETS] for number in range(1, TABLETS)]
    writes = Counter(bisect_right(splits, key(sensor, START_US + workload.every_us)) for sensor in sensors)
    return max(writes.values()) / len(sensors)
