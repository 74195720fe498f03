"""Gathers a bundle's readings by group of sensors and window, as bytes that are shuffled and stored until a pane fires.

State and timers cost the same for one sensor as for many. So sensors share them in groups: a group is the key of the
step that aggregates. Within a group, each sensor has its own windows.

The readings of a group in one window, in the order in which they came. Little-endian, without padding:

    data    version; start of the window in µs; number of sets of metrics, plus 2^31 if texts follow; the sets; [size of
            the texts; the metadata of the newest events, separated by line feeds, and by tabs where an event
            came with two]; blocks until the end
    set     size of the names in bytes; the names, each preceded by its length in one byte
    block   size of the sensor's id in bytes, index of its set of metrics, number of events, size of a time in bytes (8,
            or 16 for wide times) plus 64 if one of the events is the sensor's newest; the id; [the index of what this
            event tells;] times in µs; values as doubles, event by event

:class:`RawRows` are rows of events with the readings that count once these rows are written. Their bytes: version;
number of readings; for each its group, its least event time in µs and its size, and then these bytes; the rows, as
:func:`pipeline.core.rows.rows.rows_bytes` serializes them, until the end.
"""

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple

from pipeline.core.accumulation.accumulator import Reader, WindowReadings, names_bytes
from pipeline.core.accumulation.reading_columns import Columns, event_key, time_of_key
from pipeline.core.events.dead_letter import RefusedRow
from pipeline.core.events.event import Event
from pipeline.core.rows.newest_row import is_latest_key
from pipeline.core.rows.rows import EncodedRow, EncodedRows, Row, read_rows, rows_bytes, rows_size
from pipeline.core.schema.layouts import BY_TIME, Identity
from pipeline.core.schema.rate import group_of, groups_for
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.member import Member, contradict, later, member_text
from pipeline.core.windows import Window

VERSION = 1

_HEADER = struct.Struct("<BqI")
_SIZE = struct.Struct("<I")
_BLOCK = struct.Struct("<HIIB")
_TIME, _WIDE_TIME = 8, 16
_HAS_TEXT, _HAVE_TEXTS = 64, 1 << 31
_new = tuple.__new__
_LONG_END = 1 << 63
_MOST_BYTES = 2 << 20  # of the readings in an element


class GroupReadings(NamedTuple):
    """A group's readings in one window.

    Attributes:
        group: the group.
        time_us: the least event time.
        data: the readings; :func:`read_group_readings` reads them.
    """

    group: int
    time_us: int
    data: bytes


class Readings(NamedTuple):
    """Readings of one sensor in a window. Without any, they make the window's pane fire, as the table has it.

    Attributes:
        sensor_id: the sensor.
        metrics: the metrics of each event.
        times: the keys of the events; see :func:`pipeline.core.accumulation.reading_columns.event_key`.
        values: event by event, in the order of the metrics.
        members: the newest of these events, if it is that of the sensor in the window; two if it came with two values
            of a field.
    """

    sensor_id: str
    metrics: tuple[str, ...]
    times: Sequence[int]
    values: Sequence[float]
    members: tuple[Member, ...] = ()


_Newest = tuple[int, tuple[Mapping[str, str]] | list[Mapping[str, str]]]
"""The key of an event, and its metadata: that of each of its parts, in the order in which these arrived."""


class GroupedReadings:
    """The readings of a bundle, which are taken by group.

    Readings are kept by the metrics of their events, in the order in which these came.

    Args:
        window: the windows' length.
        identity: the rule by which the table distinguishes the events of a sensor.
        groups: the number of groups.
        fields: the metadata that roll-ups group by, sorted; the newest event of each sensor and window is noted.
    """

    def __init__(
        self, window: Window, identity: Identity = BY_TIME, groups: int = 1, fields: tuple[str, ...] = ()
    ) -> None:
        self._length_us = window.length_us
        self._identity = identity
        self._groups = groups
        self._fields = fields
        self._values_of = itemgetter(*fields or ("",))  # takes a quarter of the time of several calls
        self.start()

    def start(self) -> None:
        """Drops all content. If a bundle failed, its events are delivered again."""
        self._windows: dict[tuple[str, int], Columns] = {}
        self._newest: dict[tuple[str, int], _Newest] = {}

    def add(self, events: Iterable[Event]) -> None:
        """Adds the events' readings."""
        length_us, windows, identity = self._length_us, self._windows, self._identity
        grain_us, distinguishes_by_time_only = identity.grain_us, identity.distinguishes_by_time_only
        with_metadata, newest = bool(self._fields), self._newest
        for event in events:
            time_us, readings = event[1], event[2]
            key = event[0], time_us - time_us % length_us
            of_window = windows.get(key)
            if of_window is None:
                of_window = windows[key] = {}
            metrics = tuple(readings)
            columns = of_window.get(metrics)
            if columns is None:
                columns = of_window[metrics] = [], []
            if distinguishes_by_time_only:
                identifier = time_us - time_us % grain_us
            else:
                identifier = event_key(*identity.of_event(event))
            columns[0].append(identifier)
            columns[1].extend(readings.values())
            if with_metadata:
                if key in newest:
                    newest[key] = _newer(newest[key], identifier, event[3])
                else:
                    newest[key] = identifier, (event[3],)

    def take_groups(self) -> Iterator[GroupReadings]:
        """Yields the readings, those of a group and window together, and drops them."""
        windows = self._windows
        newest = self._newest.values() if self._fields else repeat((0, ()))  # windows came in the same order
        self.start()
        found: dict[tuple[int, int], _Encoding] = {}
        texts = dict[Any, str]()
        for ((sensor_id, start_us), of_window), (newest_key, parts) in zip(windows.items(), newest, strict=False):
            encoded = sensor_id.encode()
            of_newest = self._text_of_parts(newest_key, parts, texts) if parts else ""
            key = group_of(encoded, self._groups), start_us
            for metrics, (times, values) in of_window.items():
                width = len(metrics)
                at_once = max(1, _MOST_BYTES // (_WIDE_TIME + 8 * width))  # events
                for first in range(0, len(times), at_once):
                    of_events = times[first : first + at_once]
                    encoding = found.get(key)
                    if encoding is None:
                        encoding = found[key] = _Encoding()
                    elif encoding.size_bytes + 8 * (width + 1) * len(of_events) > _MOST_BYTES:
                        yield GroupReadings(key[0], encoding.least_us, encoding.finish(start_us))
                        encoding = found[key] = _Encoding()
                    of_values = values[first * width : (first + at_once) * width]
                    text = of_newest if of_newest and newest_key in of_events else ""
                    encoding.add(encoded, metrics, of_events, of_values, text)
        for (group, start_us), encoding in found.items():
            yield GroupReadings(group, encoding.least_us, encoding.finish(start_us))

    def _text_of_parts(self, key: int, parts: Sequence[Mapping[str, str]], texts: dict[Any, str]) -> str:
        """Returns the metadata of an event, as roll-ups need it, given that of its parts."""
        try:
            values = self._values_of(parts[0])
        except KeyError:
            values = tuple(map(parts[0].get, self._fields))
        text = texts.get(values) or texts.setdefault(values, member_text(self._fields, parts[0]))
        for part in parts[1:]:
            text = _with_part(key, text, member_text(self._fields, part))
        return text


def encoded_readings(start_us: int, readings: Iterable[Readings]) -> Iterator[bytes]:
    """Yields the readings of a group in one window, as :func:`read_group_readings` reads them."""
    encoding = _Encoding()
    for sensor_id, metrics, times, values, members in readings:
        encoding.add(sensor_id.encode(), metrics, times, values, _text_of(members))
        if encoding.size_bytes > _MOST_BYTES // 2:  # one of them has at most as many again
            yield encoding.finish(start_us)
            encoding = _Encoding()
    if encoding.size_bytes:
        yield encoding.finish(start_us)


class _Encoding:
    """The encoded readings of a group and window.

    Attributes:
        least_us: the least event time.
        size_bytes: the size of the readings.
    """

    def __init__(self) -> None:
        self.least_us = _LONG_END
        self.size_bytes = 0
        self._sets: dict[tuple[str, ...], int] = {}
        self._texts: dict[str, int] = {}
        self._blocks: list[bytes] = []

    def add(
        self, sensor_id: bytes, metrics: tuple[str, ...], times: Sequence[int], values: Sequence[float], text: str
    ) -> None:
        index = self._sets.setdefault(metrics, len(self._sets))
        count = len(times)
        size = _WIDE_TIME if times and max(times) >= _LONG_END else _TIME
        if times:
            self.least_us = min(
                self.least_us, time_of_key(min(times, key=time_of_key) if size == _WIDE_TIME else min(times))
            )
        of_times = times if size == _TIME else [time.to_bytes(_WIDE_TIME, "little") for time in times]
        if text:
            if text not in self._texts:
                self._texts[text] = len(self._texts)
                self.size_bytes += len(text)
            size |= _HAS_TEXT
            block = _layout(count, len(metrics), size).pack(self._texts[text], *of_times, *values)
        else:
            block = _layout(count, len(metrics), size).pack(*of_times, *values)
        self.size_bytes += _BLOCK.size + len(sensor_id) + len(block)
        self._blocks += (_BLOCK.pack(len(sensor_id), index, count, size), sensor_id, block)

    def finish(self, start_us: int) -> bytes:
        sets: list[bytes] = []
        for metrics in self._sets:
            names = names_bytes(metrics)
            sets += (_SIZE.pack(len(names)), names)
        if self._texts:
            texts = "\n".join(self._texts).encode()
            sets += (_SIZE.pack(len(texts)), texts)
        count = len(self._sets) | bool(self._texts) * _HAVE_TEXTS
        return b"".join((_HEADER.pack(VERSION, start_us, count), *sets, *self._blocks))


def start_of_readings(data: bytes) -> int:
    """Returns the start of the readings' window in µs. Raises ValueError for bytes that another release wrote."""
    version, start_us, _ = _HEADER.unpack_from(data)
    if version != VERSION:
        raise ValueError("another release wrote these readings; drain the job that wrote them and start a new one")
    return int(start_us)


def read_group_readings(data: bytes) -> Iterator[Readings]:
    """Yields the readings by sensor and set of metrics. Raises ValueError for other bytes."""
    start_of_readings(data)
    sets, encoded, end = _read_head(data)
    texts = [each.split("\t") for each in encoded.decode().split("\n")]
    while end < len(data):
        id_size, index, events, size = _BLOCK.unpack_from(data, end)
        sensor_id = end + _BLOCK.size
        begin = sensor_id + id_size
        metrics = sets[index]
        layout = _layout(events, len(metrics), size)
        end = begin + layout.size
        if end > len(data):
            raise ValueError("the readings are cut off")
        numbers = layout.unpack_from(data, begin)
        first, members = size // _HAS_TEXT, tuple[Member, ...]()
        times = numbers[first : first + events]
        if size & _WIDE_TIME:
            times = tuple([int.from_bytes(time, "little") for time in times])
        if first:
            newest = times[0] if events == 1 else max(times, key=_moment)
            of_event = texts[numbers[0]]
            members = (_new(Member, (newest, of_event[-1], ())),)
            if len(of_event) > 1:
                members = *(Member(newest, text) for text in of_event[:-1]), *members
        yield Readings(data[sensor_id:begin].decode(), metrics, times, numbers[first + events :], members)


def _read_head(data: bytes) -> tuple[list[tuple[str, ...]], bytes, int]:
    """Returns the sets of metrics, the encoded texts, and the position of the first block."""
    reader = Reader(data)
    _, _, count = reader.unpack(_HEADER)
    sets = [reader.names(reader.count()) for _ in range(count & ~_HAVE_TEXTS)]
    return sets, reader.counted() if count & _HAVE_TEXTS else b"", reader.position


def read_group_values(data: bytes) -> Iterator[tuple[str, tuple[str, ...], Sequence[float]]]:
    """Yields the sensor, metrics and values of what :func:`read_group_readings` yields, in half the time."""
    sets, _, end = _read_head(data)
    while end < len(data):
        id_size, index, events, size = _BLOCK.unpack_from(data, end)
        begin = end + _BLOCK.size + id_size
        layout = _layout(events, len(sets[index]), size)
        end = begin + layout.size
        values = layout.unpack_from(data, begin)[size // _HAS_TEXT + events :]
        yield data[begin - id_size : begin].decode(), sets[index], values


def _newer(known: _Newest, key: int, metadata: Mapping[str, str]) -> _Newest:
    if key == known[0]:
        if metadata == known[1][-1]:
            return known
        parts = [*known[1]] if isinstance(known[1], tuple) else known[1]
        parts.append(metadata)
        return key, parts
    return known if (time_of_key(key), key) < (time_of_key(known[0]), known[0]) else (key, (metadata,))


def _with_part(key: int, texts: str, text: str) -> str:
    """Returns the texts of an event whose next part has this text: two texts if a field has two values."""
    *others, last = (Member(key, each) for each in texts.split("\t"))
    part = Member(key, text)
    whole = later(last, part) or part
    return _text_of([last, whole] if contradict(last, part) else [*others, whole])


def _text_of(members: Iterable[Member]) -> str:
    return "\t".join([member.text for member in members])  # JSON contains no tab


def _moment(key: int) -> tuple[int, int]:
    """Returns what orders the events of a sensor by their keys."""
    return time_of_key(key), key


def accumulators_of(parts: Iterable[bytes]) -> dict[str, dict[int, WindowReadings]]:
    """Returns the accumulators of windows by sensor and start in µs. Raises ValueError for other bytes."""
    found: dict[str, dict[int, WindowReadings]] = defaultdict(dict)
    for data in parts:
        start_us = start_of_readings(data)
        for sensor_id, metrics, times, values, members in read_group_readings(data):
            of_sensor = found[sensor_id]
            if start_us not in of_sensor:
                of_sensor[start_us] = WindowReadings()
            of_sensor[start_us].extend(metrics, times, values)
            of_sensor[start_us].note(*members)
    return found


def wakes(start_us: int, sensor_ids: Iterable[str]) -> Iterator[bytes]:
    """Yields encoded readings of sensors without any value: their windows fire, with what the table has."""
    return encoded_readings(start_us, [Readings(sensor_id, (), (), ()) for sensor_id in sensor_ids])


@lru_cache(maxsize=1024)
def _layout(events: int, metrics: int, size: int) -> struct.Struct:
    text, times = "I" * bool(size & _HAS_TEXT), "16s" * events if size & _WIDE_TIME else f"{events}q"
    return struct.Struct(f"<{text}{times}{events * metrics}d")


_RAW_VERSION = 1
_RAW_HEADER = struct.Struct("<BI")
_RAW_PART = struct.Struct("<IqI")
_MOST_UNCONFIRMED_BYTES = 8 << 20  # of rows and readings that wait for a confirmation


Kind = tuple[Window, Identity, int, tuple[str, ...]]
"""The arguments of :class:`GroupedReadings`."""


class RawRows(NamedTuple):
    """Rows of events, and of newest readings, which are written together."""

    rows: EncodedRows
    readings: list[GroupReadings]

    @property
    def size_bytes(self) -> int:
        """The number of bytes that :func:`raw_rows_bytes` returns."""
        readings = sum([_RAW_PART.size + len(data) for _, _, data in self.readings])
        return _RAW_HEADER.size + readings + rows_size(self.rows)


def raw_rows_bytes(raw: RawRows) -> bytes:
    """Serializes raw rows."""
    parts = [_RAW_HEADER.pack(_RAW_VERSION, len(raw.readings))]
    for group, time_us, data in raw.readings:
        parts += (_RAW_PART.pack(group, time_us, len(data)), data)
    return b"".join((*parts, rows_bytes(raw.rows)))


def read_raw_rows(data: bytes) -> RawRows:
    """Returns the raw rows in the bytes of :func:`raw_rows_bytes`. Raises ValueError for other bytes."""
    version, count = _RAW_HEADER.unpack_from(data)
    if version != _RAW_VERSION:
        raise ValueError("another release wrote these raw rows; drain the job that wrote them and start a new one")
    readings, begin = list[GroupReadings](), _RAW_HEADER.size
    for _ in range(count):
        group, time_us, size = _RAW_PART.unpack_from(data, begin)
        begin += _RAW_PART.size + size
        readings.append(GroupReadings(group, time_us, data[begin - size : begin]))
    return RawRows(read_rows(data, begin), readings)


def kind_of(schema: TableSchema) -> Kind | None:
    """Returns the arguments by which a table's readings are gathered; None for a table without aggregates."""
    if not schema.tiers:
        return None
    return schema.tiers[0].window, schema.identity, groups_for(schema.rate), schema.member_fields


class Unconfirmed:
    """The raw rows of a bundle that the server has yet to confirm."""

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
        return self._size_bytes >= _MOST_UNCONFIRMED_BYTES

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
