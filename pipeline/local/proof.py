"""Computes independently the rows that the table must contain, and compares them with the table's.

This module deliberately shares no code with the pipeline: it computes row keys, value texts and statistics in a
different way, from the published events alone. Do not make it call the pipeline's core.
"""

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import quote

from pipeline.proto.sensor_event_pb2 import SensorEvent

Table = Mapping[str, Mapping[str, str]]
"""Maps row key to ``family:qualifier`` to value, all as text."""

RELATIVE_TOLERANCE = 1e-9  # times Σ|x|: sums of the same values in different orders may differ by so much


class Expectation:
    """The rows that the published events must become.

    Args:
        events: the published events; more can be added.
        newest: whether the table has rows of newest readings.
        rollups: the metadata fields that each roll-up of the table groups by, by its name.
    """

    def __init__(
        self,
        events: Iterable[SensorEvent] = (),
        *,
        newest: bool = False,
        rollups: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.raw_rows: dict[str, dict[str, str]] = {}
        self._windows: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._events: dict[str, int] = defaultdict(int)
        self._rollups = rollups or {}
        self._members: dict[str, tuple[int, dict[str, str]]] = {}
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
        if self._rollups and microseconds >= self._members.get(key, (0, {}))[0]:
            self._members[key] = microseconds, dict(event.metadata)
        for metric, value in event.readings.items():
            if not math.isfinite(value):  # which the job leaves out
                continue
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
        return {*self.raw_rows, *self._events, *(self._newest or ()), *self._groups()}

    def is_complete(self, table: Table) -> bool:
        """Returns whether every row exists, every window counts all its events, and newest readings are right."""
        counts = {key: ("stats", events) for key, events in self._events.items()}
        for key, windows in self._groups().items():
            counts[key] = "rollup", sum(self._events[window] for window in windows)
        counted = all(
            float(table.get(key, {}).get(f"{family}:reading_count", 0)) >= events
            for key, (family, events) in counts.items()
        )
        return self.raw_rows.keys() <= table.keys() and counted and not any(self._newest_differences(table))

    def differences(self, table: Table) -> Iterator[str]:
        """Yields one line for each difference between the table and the published events."""
        for key in sorted(table.keys() - self.keys):
            yield f"{key}: not published"
        for key, expected in self.raw_rows.items():
            yield from _raw_differences(key, expected, table.get(key, {}))
        for key, events in self._events.items():
            actual = dict(table.get(key, {}))
            yield from self._member_differences(key, actual.pop("stats:member", "null"))
            yield from _aggregate_differences(key, events, self._windows[key], actual)
        yield from self._newest_differences(table)
        for key, windows in self._groups().items():
            events = sum(self._events[window] for window in windows)
            metrics: dict[str, list[float]] = defaultdict(list)
            for window in windows:
                for metric, values in self._windows[window].items():
                    metrics[metric] += values
            actual = dict(table.get(key, {}))
            if (sensors := actual.pop("rollup:sensors", None)) != str(len(windows)):
                yield f"{key} rollup:sensors: {sensors}, computed {len(windows)}"
            yield from _aggregate_differences(key, events, metrics, actual, "rollup")

    def _groups(self) -> dict[str, list[str]]:
        """Returns the keys of the windows that belong to each row of a roll-up: by what their newest events name."""
        groups: dict[str, list[str]] = defaultdict(list)
        for window, (_, metadata) in self._members.items():
            hour = window.rpartition("#")[2]
            for name, fields in self._rollups.items():
                if all(field in metadata for field in fields):
                    value = "/".join(quote(metadata[field], safe="") for field in fields) if fields else "all"
                    groups[f"rollup#hourly#{name}#{value}#{hour}"].append(window)
        return groups

    def _member_differences(self, key: str, stored: str) -> Iterator[str]:
        """Yields a line if a window's row names another newest event than the published ones."""
        if self._rollups:
            time_us, metadata = self._members[key]
            fields = {field for fields in self._rollups.values() for field in fields}
            expected = [time_us, {field: metadata[field] for field in fields & metadata.keys()}]
            if json.loads(stored) != expected:
                yield f"{key} stats:member: {stored}, computed {json.dumps(expected)}"

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
    key: str, events: int, metrics: Mapping[str, list[float]], actual: Mapping[str, str], family: str = "stats"
) -> Iterator[str]:
    expected: dict[str, tuple[float, float]] = {f"{family}:reading_count": (events, 0)}
    for metric, values in metrics.items():
        tolerance = RELATIVE_TOLERANCE * math.fsum(map(abs, values))
        expected |= {
            f"{family}:count_{metric}": (len(values), 0),
            f"{family}:min_{metric}": (min(values), 0),
            f"{family}:max_{metric}": (max(values), 0),
            f"{family}:sum_{metric}": (math.fsum(values), tolerance),
            f"{family}:avg_{metric}": (statistics.fmean(values), tolerance),
            f"{family}:stddev_{metric}": (statistics.pstdev(values), tolerance),
        }
    for column in sorted(expected.keys() | actual.keys()):
        computed, tolerance = expected.get(column, (math.nan, 0))
        stored = float(actual.get(column, "nan"))
        if not abs(stored - computed) <= tolerance:
            yield f"{key} {column}: {stored!r}, computed {computed!r}"
