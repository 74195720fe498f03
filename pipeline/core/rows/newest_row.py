"""The newest reading of each metric of a sensor, and its newest metadata, in one row a sensor.

The key is ``latest#{sensor_id}``. A cell contains a metric's newest value as decimal text; its timestamp is the event
time, to the millisecond. Bigtable shows the newest version of a cell, and the family keeps one: so rows may be written
in any order, and a late event never replaces a newer one.

A table that keeps metadata alone has a cell for each name of metadata too. Its column is ``#`` and the name: no metric
has such a name.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice
from typing import NamedTuple

from pipeline.core.events.event import MAX_METADATA, Event, checked_sensor_id, name_of
from pipeline.core.notation.cell_values import format_value, parse_value, shown_bytes
from pipeline.core.rows.records import by_name
from pipeline.core.rows.rows import ColumnBytes, EncodedRow, KeyRange, Row, prefix_range, timestamp_of
from pipeline.core.statistics.parts import At
from pipeline.core.statistics.window_stats import MAX_METRICS

_PREFIX = b"latest#"
_METADATA = "#"  # the start of a column of metadata
_MOST_KNOWN = 20_000  # sensors of which a worker's thread knows what it has written


NewestCell = tuple[str, int, bytes]
"""A column, an event time in µs, and a value."""


class TextAt(NamedTuple):
    """A text of metadata and its event time in µs."""

    time_us: int
    text: str


@dataclass(frozen=True, slots=True)
class LatestRecord:
    """The newest readings of a sensor.

    Attributes:
        sensor_id: the sensor.
        readings: the newest reading of each metric, sorted by name; times are whole milliseconds.
        metadata: the newest text of each name of metadata, in the same way, if the table keeps metadata alone.
    """

    sensor_id: str
    readings: dict[str, At]
    metadata: dict[str, TextAt] = field(default_factory=dict)

    @property
    def event_time_us(self) -> int:
        """The time of the newest reading or metadata in µs."""
        return max(time_us for time_us, _ in chain(self.readings.values(), self.metadata.values()))


class NewestReadings:
    """Gathers the newest readings of sensors, and their newest metadata."""

    def __init__(self) -> None:
        self._sensors: dict[str, dict[str, At]] = {}
        self._metadata: dict[str, dict[str, TextAt]] = {}

    def add(self, sensor_id: str, time_us: int, readings: Iterable[tuple[str, float]]) -> None:
        """Adds an event's readings."""
        newest = self._sensors.setdefault(sensor_id, {})
        for metric, value in readings:
            known = newest.get(metric)
            if known is None or known.time_us <= time_us:
                newest[metric] = At(time_us, value)

    def add_metadata(self, sensor_id: str, time_us: int, metadata: Mapping[str, str]) -> None:
        """Adds an event's metadata."""
        newest = self._metadata.setdefault(sensor_id, {})
        for name, text in metadata.items():
            known = newest.get(name)
            if known is None or known.time_us <= time_us:
                newest[name] = TextAt(time_us, text)

    def rows(self, family: str, from_us: int = 0) -> Iterator[EncodedRow]:
        """Yields the rows of each sensor: one of readings and one of metadata.

        They contain at most as many metrics as an aggregate row, and as many names of metadata as an event.
        """
        for sensor_id, cells in self.cells(from_us):
            yield from _rows(sensor_id, family, cells)

    def cells(self, from_us: int = 0) -> Iterator[tuple[str, list[NewestCell]]]:
        """Yields the cells of each row, with its sensor."""
        for sensor_id, newest in self._sensors.items():
            values = ((metric, time_us, format_value(value)) for metric, (time_us, value) in newest.items())
            yield sensor_id, list(islice(_since(from_us, values), MAX_METRICS))
        for sensor_id, texts in self._metadata.items():
            cells = ((_METADATA + name, time_us, text.encode()) for name, (time_us, text) in texts.items())
            yield sensor_id, list(islice(_since(from_us, cells), MAX_METADATA))


class NewestOfBundle:
    """The newest events of a bundle, by sensor and metrics, whose readings are written beside their raw rows.

    Args:
        family: the column family of the newest readings.
        every_us: the event time after readings of a sensor for which others of the same metrics are left to a pane, as
            far as this object knows; zero to leave none.
        metadata: whether metadata is gathered too.
    """

    def __init__(self, family: str, every_us: int, *, metadata: bool) -> None:
        self._family, self._every_us, self._metadata = family, every_us, metadata
        self._next_us: dict[tuple[str, ...], int] = {}  # of what was written before
        self.start()

    def start(self) -> None:
        """Begins a bundle. Drops what was not taken of one that failed."""
        self._events: dict[tuple[str, ...], Event] = {}
        self._texts = NewestReadings()

    def __len__(self) -> int:
        return len(self._events)

    def add(self, events: Iterable[Event]) -> None:
        """Adds events."""
        newest, next_us = self._events, self._next_us
        for event in events:
            sensor_id, time_us, readings, metadata = event[:4]
            if readings:
                key = (sensor_id, *readings)
                known = newest.get(key)
                if (known is None or known[1] <= time_us) and (not next_us or time_us >= next_us.get(key, 0)):
                    newest[key] = event
            if self._metadata and metadata:
                self._texts.add_metadata(sensor_id, time_us, metadata)

    def take(self, from_us: int) -> list[EncodedRow]:
        """Returns and removes the rows of the newest readings and of metadata."""
        rows, family = list(self._texts.rows(self._family, from_us)), self._family
        for sensor_id, time_us, readings, *_ in self._events.values():
            if time_us < from_us:
                continue
            time, parts = timestamp_of(time_us - time_us % 1000), list[bytes]()
            append = parts.append
            for metric, value in readings.items():
                text = repr(value).removesuffix(".0").encode()  # format_value, without the call
                before, between = _column(family, metric)[len(text)]
                append(before)
                append(time)
                append(between)
                append(text)
            rows.append(EncodedRow(latest_key(sensor_id), b"".join(parts), len(readings)))
        if self._every_us:
            if len(self._next_us) > _MOST_KNOWN:
                self._next_us.clear()
            self._next_us.update((key, event[1] + self._every_us) for key, event in self._events.items())
        self.start()
        return rows


def _since(from_us: int, cells: Iterable[NewestCell]) -> Iterator[NewestCell]:
    return (cell for cell in cells if cell[1] >= from_us)


def _rows(sensor_id: str, family: str, cells: Iterable[NewestCell]) -> Iterator[EncodedRow]:
    """Yields the row with these cells; none without cells."""
    parts: list[bytes] = []
    for qualifier, time_us, value in cells:
        before, between = _column(family, qualifier)[len(value)]
        parts += (before, timestamp_of(time_us - time_us % 1000), between, value)
    if parts:
        yield EncodedRow(latest_key(sensor_id), b"".join(parts), len(parts) // 4)


@lru_cache(maxsize=8192)
def _column(family: str, qualifier: str) -> ColumnBytes:
    return ColumnBytes(family, qualifier.encode())


class LastHeard(NamedTuple):
    """The time of a sensor's newest reading or metadata, in µs, and its id."""

    event_time_us: int
    sensor_id: str


def latest_key(sensor_id: str) -> bytes:
    """Returns the key of the sensor's row."""
    return _PREFIX + sensor_id.encode()


def tells_metadata(qualifier: bytes) -> bool:
    """Returns whether a column of such a row contains metadata."""
    return qualifier.startswith(_METADATA.encode())


def is_latest_key(key: bytes) -> bool:
    """Returns whether a row with this key contains newest readings."""
    return key.startswith(_PREFIX)


def latest_range(prefix: str = "", after: str = "") -> KeyRange:
    """Returns the key range of the sensors whose ids have the prefix and follow ``after`` in the order of ids."""
    of_prefix = prefix_range(_PREFIX + prefix.encode())
    return of_prefix._replace(start=max(of_prefix.start, _PREFIX + after.encode() + b"\x00")) if after else of_prefix


def parse_latest_key(key: bytes) -> str:
    """Returns the sensor of a row. Raises ValueError for a key that no such row has."""
    if not key.startswith(_PREFIX):
        raise ValueError(f"the key does not begin with {_PREFIX.decode()}")
    return checked_sensor_id(key.removeprefix(_PREFIX).decode())


def parse_latest_row(row: Row) -> LatestRecord:
    """Returns the newest readings in a row. Raises ValueError for a key, column or value that no such row has."""
    sensor_id = parse_latest_key(row.key)
    readings: dict[str, At] = {}
    metadata: dict[str, TextAt] = {}
    for _, qualifier, time_us, value in row.cells:
        try:
            name = _name_in(qualifier)
            if tells_metadata(qualifier):
                metadata[name] = TextAt(time_us, value.decode())
            else:
                readings[name] = At(time_us, parse_value(value))
        except ValueError as error:
            raise ValueError(f"{shown_bytes(qualifier)}: {error}") from error
    return LatestRecord(sensor_id, by_name(readings), by_name(metadata))


def parse_last_heard(row: Row) -> LastHeard:
    """Returns when the sensor of a row was heard last. Raises ValueError for a key or column that no such row has."""
    sensor_id = parse_latest_key(row.key)
    for cell in row.cells:
        _name_in(cell.qualifier)
    return LastHeard(max(cell.timestamp_us for cell in row.cells), sensor_id)


@lru_cache(maxsize=8192)
def _name_in(qualifier: bytes) -> str:
    return name_of(qualifier[1:] if tells_metadata(qualifier) else qualifier)
