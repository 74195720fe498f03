"""What every sensor of a table says now."""

import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING

from pipeline.core.queries.events import places
from pipeline.core.queries.foreign import OnForeign
from pipeline.core.queries.newest_readings import LatestRecord, latest_of
from pipeline.core.rows.records import RawRecord
from pipeline.core.schema.key_space import KeyBindings
from pipeline.core.statistics.courses import At

if TYPE_CHECKING:
    from pipeline.cloud.reading.reader import SensorTable

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
    """Yields what the sensors say; see :meth:`pipeline.cloud.reading.reader.SensorTable.newest`."""
    family, page_rows = table.schema.latest, limit if silent_for is None else None
    if family is None:
        found = _by_lookup(table, prefix, after, metrics, min(limit or _AT_A_TIME, _AT_A_TIME), on_foreign)
    else:
        found = latest_of(family, table.rows.read_selection, prefix, after, metrics, page_rows, on_foreign)
    if silent_for is None:
        return islice(found, limit)
    until_us = time.time_ns() // 1000 - silent_for // _MICROSECOND
    silent = (record for record in found if record.event_time_us <= until_us)
    return islice(sorted(silent, key=lambda record: record.event_time_us), limit)


def _by_lookup(
    table: "SensorTable",
    prefix: str,
    after: str,
    metrics: tuple[str, ...] | None,
    at_a_time: int,
    on_foreign: OnForeign,
) -> Iterator[LatestRecord]:
    """Yields the newest event of each sensor. Costs a seek and a read for each; another seek if metadata locates it."""
    found, sensors = _Places(table, on_foreign), table.sensors(prefix, after=after)
    while some := list(islice(sensors, at_a_time)):
        for event in found.latest(some, metrics):
            readings = {metric: At(event.event_time_us, value) for metric, value in event.readings.items()}
            yield LatestRecord(event.sensor_id, readings)


class _Places:
    """Where the sensors of a table are, if its keys have metadata that locates them: a sensor may be in several places.

    Seeks each sensor and place once.
    """

    def __init__(self, table: "SensorTable", on_foreign: OnForeign) -> None:
        self._table = table
        self._sensors: dict[tuple[tuple[str, str], ...], set[str]] = {}
        if table.schema.keys.missing_metadata(KeyBindings()):
            for place in places(table.schema, table.rows.read_selection, on_foreign):
                self._sensors.setdefault(tuple(place.metadata.items()), set()).add(str(place.sensor_id))

    def latest(self, sensors: list[str], metrics: tuple[str, ...] | None) -> Iterable[RawRecord]:
        """Returns the newest event of each sensor, in their order."""
        if not self._sensors:
            return self._table.latest(sensors, metrics=metrics)
        newest: dict[str, RawRecord] = {}
        for metadata, there in self._sensors.items():
            # If the time comes before the sensor, a place is known by one of its sensors only.
            wanted = sensors if self._table.schema.key.time_first else [each for each in sensors if each in there]
            for event in self._table.latest(wanted, metrics=metrics, metadata=dict(metadata)):
                known = newest.get(event.sensor_id)
                if known is None or known.event_time_us < event.event_time_us:
                    newest[event.sensor_id] = event
        return [newest[each] for each in sensors if each in newest]
