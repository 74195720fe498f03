"""What a table held of a window before a job saw the first of it: what the job has to go on from."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from pipeline.cloud.names import TableName
from pipeline.cloud.reader import SensorTable
from pipeline.core.aggregates import stats_of
from pipeline.core.readings import Recalled
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.stats import WindowStats
from pipeline.core.windows import Window

_MICROSECOND = timedelta(microseconds=1)
_DAY_US = timedelta(days=1) // _MICROSECOND


@dataclass(frozen=True)
class HeldReadings:
    """What a table holds of windows that are computed from events: their readings, or else their statistics.

    Readings are told apart, so that those which come again count once. They are not asked for where Bigtable may have
    collected some of them, where a sensor's events are only found among those of others, or where nobody deduplicates:
    there the aggregate row tells what was counted.

    Args:
        name: of the table.
        schema: of the table.
        window: how long windows are.
        deduplicate: whether readings are kept.
    """

    name: TableName
    schema: TableSchema
    window: Window
    deduplicate: bool

    def recall(self, table: SensorTable, sensor_id: str, start_us: int) -> Recalled:
        """Reads the raw rows of the window, or its aggregate row."""
        end_us = start_us + self.window.length_us
        if self.deduplicate and self.schema.finds_sensors and not may_be_collected(self.schema, start_us):
            return Recalled(readings_of(table, sensor_id, start_us, end_us))
        if self.schema.tier(self.window) is None:
            return Recalled({})
        stored = stored_stats(table, self.window, sensor_id, start_us, end_us)
        return Recalled({}, stored.get(start_us))


@dataclass(frozen=True)
class HeldWindows:
    """What a table holds of windows that are computed from shorter ones: the aggregate rows of these.

    Args:
        name: of the table.
        schema: of the table.
        window: how long the windows are.
        shorter: those that they are computed from.
    """

    name: TableName
    schema: TableSchema
    window: Window
    shorter: Window

    def recall(self, table: SensorTable, sensor_id: str, start_us: int) -> Mapping[int, WindowStats]:
        """Reads the aggregate rows of the shorter windows."""
        return stored_stats(table, self.shorter, sensor_id, start_us, start_us + self.window.length_us)


Holdings = HeldReadings | HeldWindows
"""What is recalled of a table."""


def may_be_collected(schema: TableSchema, time_us: int) -> bool:
    """Whether Bigtable may have collected readings of that time; a day is to spare."""
    stay = schema.readings_stay
    return stay is not None and time_us < time.time_ns() // 1000 - stay // _MICROSECOND + _DAY_US


def readings_of(
    table: SensorTable, sensor_id: str, start_us: int, end_us: int, metadata: Mapping[str, str] | None = None
) -> dict[int, dict[str, float]]:
    """The readings of a sensor's raw rows from ``start_us`` to ``end_us``, exclusive, by event time."""
    grain_us = table.schema.grain_us
    found: dict[int, dict[str, float]] = {}
    for record in table.range(sensor_id, start_us, end_us, metadata=metadata or {}):
        time_us = record.event_time_us - record.event_time_us % grain_us
        found[time_us] = found.get(time_us, {}) | record.readings
    return found


def stored_stats(
    table: SensorTable, window: Window, sensor_id: str, start_us: int, end_us: int
) -> dict[int, WindowStats]:
    """The aggregate rows of a sensor's windows that start from ``start_us`` to ``end_us``, exclusive, by start."""
    return {record.start_us: stats_of(record) for record in table.aggregates(sensor_id, start_us, end_us, tier=window)}
