"""Computes independently the rows that the table must contain, and compares them with the table's.

This module deliberately shares no code with the pipeline: it computes row keys, value texts and statistics in a
different way, from the published events alone. Do not make it call the pipeline's core.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from pipeline.proto.sensor_event_pb2 import SensorEvent

Table = Mapping[str, Mapping[str, str]]
"""Maps row key to ``family:qualifier`` to value, all as text."""

RELATIVE_TOLERANCE = 1e-9  # times Σ|x|: sums of the same values in different orders may differ by so much


class Expectation:
    """The rows that the published events must become.

    Args:
        events: the published events; more can be added.
        newest: whether the table has rows of newest readings.
    """

    def __init__(self, events: Iterable[SensorEvent] = (), *, newest: bool = False) -> None:
        self.raw_rows: dict[str, dict[str, str]] = {}
        self._windows: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._events: dict[str, int] = defaultdict(int)
        self._newest: dict[str, dict[str, tuple[int, set[float]]]] | None = defaultdict(dict) if newest else None
        for event in events:
            self.add(event)

    def add(self, event: SensorEvent) -> None:
        """Adds a valid event. Each event must be added only once: this class does not de-duplicate."""
        microseconds = event.event_time.seconds * 10**6 + event.event_time.nanos // 1000
        row = self.raw_rows.setdefault(f"{event.sensor_id}#{10**16 - 1 - microseconds:016d}", {})
        hour = datetime.fromtimestamp(event.event_time.seconds, UTC).strftime("%Y-%m-%dT%H")
        key = f"agg#hourly#{event.sensor_id}#{hour}"
        self._events[key] += 1
        for metric, value in event.readings.items():
            row[f"raw:{metric}"] = str(value)
            self._windows[key][metric].append(value)
            if self._newest is not None:
                of_sensor = self._newest[f"latest#{event.sensor_id}"]
                latest_ms, values = of_sensor.get(f"latest:{metric}", (0, set()))
                if microseconds // 1000 == latest_ms:  # any reading of that millisecond may be the newest
                    values.add(value)
                elif microseconds // 1000 > latest_ms:
                    of_sensor[f"latest:{metric}"] = microseconds // 1000, {value}
        for name, text in event.metadata.items():
            row[f"meta:{name}"] = text

    @property
    def aggregate_keys(self) -> set[str]:
        return set(self._events)

    @property
    def keys(self) -> set[str]:
        """The keys of all rows."""
        return {*self.raw_rows, *self._events, *(self._newest or ())}

    def is_complete(self, table: Table) -> bool:
        """Returns whether every row exists, every window counts all its events, and newest readings are right."""
        counted = all(
            float(table.get(key, {}).get("stats:reading_count", 0)) >= events for key, events in self._events.items()
        )
        return self.raw_rows.keys() <= table.keys() and counted and not any(self._newest_differences(table))

    def differences(self, table: Table) -> Iterator[str]:
        """Yields one line for each difference between the table and the published events."""
        for key in sorted(table.keys() - self.keys):
            yield f"{key}: not published"
        for key, expected in self.raw_rows.items():
            yield from _raw_differences(key, expected, table.get(key, {}))
        for key, events in self._events.items():
            yield from _aggregate_differences(key, events, self._windows[key], table.get(key, {}))
        yield from self._newest_differences(table)

    def _newest_differences(self, table: Table) -> Iterator[str]:
        for key, expected in (self._newest or {}).items():
            actual = table.get(key, {})
            for column in sorted(expected.keys() | actual.keys()):
                _, values = expected.get(column, (0, set()))
                if column not in actual or float(actual[column]) not in values:
                    published = " or ".join(map(str, sorted(values))) or None
                    yield f"{key} {column}: {actual.get(column)}, published {published}"


def _raw_differences(key: str, expected: Mapping[str, str], actual: Mapping[str, str]) -> Iterator[str]:
    for column in sorted(expected.keys() | actual.keys()):
        published, stored = expected.get(column), actual.get(column)
        same = published == stored or (
            published and stored and column.startswith("raw:") and float(published) == float(stored)
        )
        if not same:
            yield f"{key} {column}: {stored}, published {published}"


def _aggregate_differences(
    key: str, events: int, metrics: Mapping[str, list[float]], actual: Mapping[str, str]
) -> Iterator[str]:
    expected: dict[str, tuple[float, float]] = {"stats:reading_count": (events, 0)}
    for metric, values in metrics.items():
        tolerance = RELATIVE_TOLERANCE * math.fsum(map(abs, values))
        expected |= {
            f"stats:count_{metric}": (len(values), 0),
            f"stats:min_{metric}": (min(values), 0),
            f"stats:max_{metric}": (max(values), 0),
            f"stats:sum_{metric}": (math.fsum(values), tolerance),
            f"stats:avg_{metric}": (statistics.fmean(values), tolerance),
            f"stats:stddev_{metric}": (statistics.pstdev(values), tolerance),
        }
    for column in sorted(expected.keys() | actual.keys()):
        computed, tolerance = expected.get(column, (math.nan, 0))
        stored = float(actual.get(column, "nan"))
        if not abs(stored - computed) <= tolerance:
            yield f"{key} {column}: {stored!r}, computed {computed!r}"
