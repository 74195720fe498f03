"""The newest metadata of sensors, for rules that ask for it."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from pipeline.core.queries.events import Query, events_of, selections_of
from pipeline.core.queries.reads import ReadRows, RowSelection, RowsTogether, in_batches
from pipeline.core.rows.newest_row import latest_key, parse_latest_row
from pipeline.core.rows.rows import KeyRange
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.table_schema import TableSchema

_KNOWN_S = 60.0
_MISSING_S = 1.0  # for a sensor without rows: that of its first reading may be on its way
_MOST_KNOWN = 50_000  # sensors
_MILLISECOND_US = 1000


class NewestMetadata:
    """The newest metadata of sensors, which is read again after a minute.

    It is in their newest raw rows; in a table that keeps metadata alone, in the rows of newest readings, as the newest
    raw row may have readings alone. Without those, a sensor has no metadata if row keys do not locate it.

    Args:
        schema: the table's schema.
        read: reads the table's rows.
    """

    def __init__(self, schema: TableSchema, read: ReadRows) -> None:
        self._schema, self._read = schema, read
        self._family = schema.latest if schema.metadata_alone else None
        self._known: dict[str, tuple[float, Mapping[str, str]]] = {}  # until a time of the monotonic clock

    def of(self, sensor_id: str) -> Mapping[str, str]:
        """Returns the metadata of a sensor."""
        if not self._knows(sensor_id):
            found = self._newest([sensor_id]) if self._family else self._events(self._read, sensor_id, Query(limit=1))
            self._keep(sensor_id, next((metadata for _, metadata in found), None))
        return self._known[sensor_id][1]

    def learn(self, newest_us: Mapping[str, int]) -> None:
        """Reads the metadata of many sensors together, given the times of their newest readings."""
        unknown = [sensor_id for sensor_id in newest_us if not self._knows(sensor_id)]
        for sensor_id, metadata in self._newest(unknown) if self._family else self._together(unknown, newest_us):
            self._keep(sensor_id, metadata)

    def _knows(self, sensor_id: str) -> bool:
        return sensor_id in self._known and time.monotonic() < self._known[sensor_id][0]

    def _keep(self, sensor_id: str, metadata: Mapping[str, str] | None) -> None:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        until_s = time.monotonic() + (_MISSING_S if metadata is None else _KNOWN_S)
        self._known[sensor_id] = until_s, metadata or {}

    def _newest(self, sensors: Sequence[str]) -> Iterator[tuple[str, Mapping[str, str]]]:
        cells = CellSelection((str(self._family),), versions=1)
        for keys in in_batches(KeyRange(key, key + b"\x00") for key in map(latest_key, sensors)):
            for row in self._read(RowSelection(keys, cells)):
                with suppress(ValueError):  # another program's row
                    record = parse_latest_row(row)
                    yield record.sensor_id, {name: at.text for name, at in record.metadata.items()}

    def _together(
        self, sensors: Sequence[str], newest_us: Mapping[str, int]
    ) -> Iterator[tuple[str, Mapping[str, str]]]:
        if not self._schema.finds_sensors:
            return
        queries = {}
        for sensor_id in sensors:
            begin_us = newest_us[sensor_id] - newest_us[sensor_id] % _MILLISECOND_US
            queries[sensor_id] = Query(begin_us, begin_us + _MILLISECOND_US, limit=1)
        together = RowsTogether(self._read)
        wanted = {sensor_id: selections_of(self._schema, sensor_id, query) for sensor_id, query in queries.items()}
        for some in together.batches(wanted):
            for sensor_id in some:
                yield from self._events(together, sensor_id, queries[sensor_id])

    def _events(self, read: ReadRows, sensor_id: str, query: Query) -> Iterator[tuple[str, Mapping[str, str]]]:
        if self._schema.finds_sensors:
            for event in events_of(self._schema, read, sensor_id, query, _left_out):
                yield sensor_id, dict(event.metadata)


def _left_out(_: object) -> None:
    """Leaves out a row that the schema does not write."""
