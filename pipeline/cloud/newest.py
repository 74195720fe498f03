"""What every sensor of a table says now."""

import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING

from pipeline.core.latest import LatestRecord, latest_of
from pipeline.core.schema.foreign import OnForeign
from pipeline.core.statistics.courses import At

if TYPE_CHECKING:
    from pipeline.cloud.reader import SensorTable

_AT_A_TIME = 100  # sensors that are looked up in parallel
_MICROSECOND = timedelta(microseconds=1)


def newest_of(
    table: "SensorTable",
    prefix: str,
    after: str,
    metrics: tuple[str, ...] | None,
    silent_for: timedelta | None,
    limit: int | None,
    on_foreign: OnForeign,
) -> Iterator[LatestRecord]:
    """Yields what the sensors say; see :meth:`pipeline.cloud.reader.SensorTable.newest`."""
    family, page_rows = table.schema.latest, limit if silent_for is None else None
    if family is None:
        found = _by_lookup(table, prefix, after, metrics, min(limit or _AT_A_TIME, _AT_A_TIME))
    else:
        found = latest_of(family, table.rows.read_selection, prefix, after, metrics, page_rows, on_foreign)
    if silent_for is None:
        return islice(found, limit)
    until_us = time.time_ns() // 1000 - silent_for // _MICROSECOND
    silent = (record for record in found if record.event_time_us <= until_us)
    return islice(sorted(silent, key=lambda record: record.event_time_us), limit)


def _by_lookup(
    table: "SensorTable", prefix: str, after: str, metrics: tuple[str, ...] | None, at_a_time: int
) -> Iterator[LatestRecord]:
    """Yields the newest event of each sensor. Costs a seek and a read for each."""
    sensors = table.sensors(prefix, after=after)
    while some := list(islice(sensors, at_a_time)):
        for event in table.latest(some, metrics=metrics):
            readings = {metric: At(event.event_time_us, value) for metric, value in event.readings.items()}
            yield LatestRecord(event.sensor_id, readings)
