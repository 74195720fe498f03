"""What a table held of a window before a job saw the first of it: what the job has to go on from."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from pipeline.cloud.names import TableName
from pipeline.cloud.reader import SensorTable
from pipeline.core.aggregates import stats_of
from pipeline.core.readings import Recalled, narrow_time, wide_time
from pipeline.core.schema.identity import Identity
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.stats import WindowStats
from pipeline.core.windows import Window

_MICROSECOND = timedelta(microseconds=1)
_DAY_US = timedelta(days=1) // _MICROSECOND


class Held(NamedTuple):
    """A table that may hold something."""

    name: TableName
    schema: TableSchema


@dataclass(frozen=True)
class HeldReadings:
    """What tables hold of windows that are computed from events: their readings, or else their statistics.

    Readings are told apart, so that those which come again count once. They are not asked for where Bigtable may have
    collected some of them, where a sensor's events are only found among those of others, where a table tells events
    apart by something else, or where nobody deduplicates: there the aggregate row tells what was counted.

    Args:
        tables: that are asked.
        window: how long windows are.
        identity: what events are told apart by.
        deduplicate: whether readings are kept.
    """

    tables: tuple[Held, ...]
    window: Window
    identity: Identity
    deduplicate: bool

    def recall(self, tables: Sequence[SensorTable], sensor_id: str, start_us: int) -> tuple[Recalled, bool]:
        """Reads the raw rows of the window, or aggregate rows; and whether that is surely all there is.

        An aggregate row may lack what came after its last pane, and what of it comes again is not known.
        """
        end_us = start_us + self.window.length_us
        readings: dict[int, dict[str, float]] = {}
        statistics = WindowStats()
        for table in tables:
            tier = table.schema.tier(self.window)
            if self._tells_apart(table.schema, start_us):
                for time_us, of_event in readings_of(table, sensor_id, start_us, end_us).items():
                    readings[time_us] = of_event | readings.get(time_us, {})
            elif tier is not None:
                stored = stored_stats(table, tier.window, sensor_id, start_us, end_us)
                statistics = max([statistics, *stored.values()], key=_size)
        if statistics.size > sum(1 + len(of_event) for of_event in readings.values()):
            return Recalled({}, statistics), False
        return Recalled(readings), True

    def _tells_apart(self, schema: TableSchema, start_us: int) -> bool:
        return (
            self.deduplicate
            and schema.finds_sensors
            and schema.identity == self.identity
            and not may_be_collected(schema, start_us)
        )


@dataclass(frozen=True)
class HeldWindows:
    """What tables hold of windows that are computed from shorter ones: the aggregate rows of these.

    Args:
        tables: that are asked.
        window: how long the windows are.
        shorter: those that they are computed from.
    """

    tables: tuple[Held, ...]
    window: Window
    shorter: Window

    def recall(
        self, tables: Sequence[SensorTable], sensor_id: str, start_us: int
    ) -> tuple[Mapping[int, WindowStats] | None, bool]:
        """Reads the aggregate rows of the shorter windows; and whether these are surely all there are.

        There are fewer where a tier was added since, or is kept for less long than the longer one: the longer
        window's own row has seen more. Then they are computed from raw rows; None where that can't be.
        """
        end_us = start_us + self.window.length_us
        shorter: dict[int, WindowStats] = {}
        own = WindowStats()
        for table in tables:
            if tier := table.schema.tier(self.shorter):
                stored = stored_stats(table, tier.window, sensor_id, start_us, end_us)
                shorter |= {start: max(stats, shorter.get(start, stats), key=_size) for start, stats in stored.items()}
            if tier := table.schema.tier(self.window):
                stored = stored_stats(table, tier.window, sensor_id, start_us, end_us)
                own = max([own, *stored.values()], key=_size)
        if own.size <= sum(map(_size, shorter.values())):
            return shorter, True
        for table in tables:
            if table.schema.finds_sensors and not may_be_collected(table.schema, start_us):
                return self._from_readings(readings_of(table, sensor_id, start_us, end_us)), True
        return None, False

    def _from_readings(self, readings: Mapping[int, Mapping[str, float]]) -> dict[int, WindowStats]:
        shorter: dict[int, WindowStats] = {}
        for time_us, of_event in readings.items():
            shorter.setdefault(self.shorter.start_of(narrow_time(time_us)), WindowStats()).add(of_event)
        return shorter


Holdings = HeldReadings | HeldWindows
"""What is recalled of tables."""


def _size(stats: WindowStats) -> int:
    return stats.size


def may_be_collected(schema: TableSchema, time_us: int) -> bool:
    """Whether Bigtable may have collected readings of that time; a day is to spare."""
    stay = schema.readings_stay
    return stay is not None and time_us < time.time_ns() // 1000 - stay // _MICROSECOND + _DAY_US


def readings_of(
    table: SensorTable, sensor_id: str, start_us: int, end_us: int, metadata: Mapping[str, str] | None = None
) -> dict[int, dict[str, float]]:
    """The readings of a sensor's raw rows from ``start_us`` to ``end_us``, exclusive, by event time, wide or not."""
    records = table.range(sensor_id, start_us, end_us, metadata=metadata or {})
    identity_of = table.schema.identity.of_record
    return {wide_time(*identity_of(record)): record.readings for record in records if record.readings}


def stored_stats(
    table: SensorTable, window: Window, sensor_id: str, start_us: int, end_us: int
) -> dict[int, WindowStats]:
    """The aggregate rows of a sensor's windows that start from ``start_us`` to ``end_us``, exclusive, by start."""
    return {record.start_us: stats_of(record) for record in table.aggregates(sensor_id, start_us, end_us, tier=window)}
