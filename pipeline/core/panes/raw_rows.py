"""The rows of events with the readings that count once these rows are written.

Little-endian: version; number of readings; for each its group, its least event time in µs and its size, and then the
bytes of :mod:`pipeline.core.panes.grouped_readings`; the bytes of :mod:`pipeline.core.rows.row_bytes` until the end.
"""

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from pipeline.core.dead_letters.refused_rows import RefusedRow
from pipeline.core.events.event import Event
from pipeline.core.panes.grouped_readings import GroupedReadings, GroupReadings
from pipeline.core.rows.newest_row import is_latest_key
from pipeline.core.rows.row_bytes import read_rows, rows_bytes, rows_size
from pipeline.core.rows.rows import EncodedRow, EncodedRows, Row
from pipeline.core.schema.identity import Identity
from pipeline.core.schema.rate import groups_for
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.windows.fixed import Window

_VERSION = 1
_HEADER = struct.Struct("<BI")
_PART = struct.Struct("<IqI")
_MOST_BYTES = 8 << 20  # of rows and readings that wait for a confirmation


Kind = tuple[Window, Identity, int, tuple[str, ...]]
"""The arguments of :class:`GroupedReadings`."""


class RawRows(NamedTuple):
    """Rows of events, and of newest readings, which are written together.

    Attributes:
        rows: the rows.
        readings: all readings of these events; empty for a table without aggregates.
    """

    rows: EncodedRows
    readings: list[GroupReadings]

    @property
    def size_bytes(self) -> int:
        """The number of bytes that :func:`raw_rows_bytes` returns."""
        readings = sum([_PART.size + len(data) for _, _, data in self.readings])
        return _HEADER.size + readings + rows_size(self.rows)


def raw_rows_bytes(raw: RawRows) -> bytes:
    """Serializes raw rows."""
    parts = [_HEADER.pack(_VERSION, len(raw.readings))]
    for group, time_us, data in raw.readings:
        parts += (_PART.pack(group, time_us, len(data)), data)
    return b"".join((*parts, rows_bytes(raw.rows)))


def read_raw_rows(data: bytes) -> RawRows:
    """Returns the raw rows in the bytes of :func:`raw_rows_bytes`. Raises ValueError for other bytes."""
    version, count = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise ValueError("another release wrote these raw rows; drain the job that wrote them and start a new one")
    readings, begin = list[GroupReadings](), _HEADER.size
    for _ in range(count):
        group, time_us, size = _PART.unpack_from(data, begin)
        begin += _PART.size + size
        readings.append(GroupReadings(group, time_us, data[begin - size : begin]))
    return RawRows(read_rows(data, begin), readings)


def kind_of(schema: TableSchema) -> Kind | None:
    """Returns the arguments by which a table's readings are gathered; None for a table without aggregates."""
    if not schema.tiers:
        return None
    return schema.tiers[0].window, schema.identity, groups_for(schema.rate), schema.member_fields


class Unconfirmed:
    """The raw rows of a bundle that the server has yet to confirm.

    Args:
        schema: the table's schema.
        kind: the kind of the gathered readings; None for a table without aggregates.
        cells_of: decodes a row.
    """

    def __init__(self, schema: TableSchema, kind: Kind | None, cells_of: Callable[[EncodedRow], Row]) -> None:
        self._schema = schema
        self._kind = kind
        self._cells_of = cells_of
        self._raw: list[RawRows] = []
        self._size_bytes = 0

    def add(self, raw: RawRows) -> bool:
        """Adds raw rows. Returns whether so many wait that they should be confirmed before others are added."""
        if raw.readings:
            self._raw.append(raw)
            self._size_bytes += raw.size_bytes
        return self._size_bytes >= _MOST_BYTES

    def confirm(self, refused: Iterable[RefusedRow]) -> list[GroupReadings]:
        """Returns the readings of all rows but the refused ones, and forgets them. The others are in the table."""
        raw, self._raw, self._size_bytes = self._raw, [], 0
        entries: dict[bytes, list[bytes]] = defaultdict(list)
        for row in refused:
            entries[row.key].append(row.entry)
        return [readings for each in raw for readings in self._written(each, entries)]

    def _written(self, raw: RawRows, refused: Mapping[bytes, list[bytes]]) -> list[GroupReadings]:
        """Returns the readings of written rows: as they came, or read from the rows if some were refused."""
        if self._kind is None or not refused or not any(row.key in refused for row in raw.rows):
            return raw.readings
        gathered = GroupedReadings(*self._kind)
        for row in raw.rows:
            # An entry contains all that was added to its row, or less: another request may have written the rest.
            if not is_latest_key(row.key) and not any(row.mutations in entry for entry in refused.get(row.key, ())):
                gathered.add(self._events(row))
        return list(gathered.take_groups())

    def _events(self, row: EncodedRow) -> list[Event]:
        """Returns the events of a row that have readings."""
        schema = self._schema
        key, cells = self._cells_of(row)
        records = schema.layout.records(schema.layout_context, schema.key.parse_key(key), cells)
        return [
            Event(record.sensor_id, record.event_time_us, record.readings, record.metadata, record.event_id)
            for record in records
            if record.readings
        ]
