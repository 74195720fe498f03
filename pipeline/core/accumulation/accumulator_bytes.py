"""Serializes accumulators. Runners store and transfer these bytes for every sensor and window, so each byte counts.

Little-endian, without padding. Parts in brackets are optional; a flag tells whether they are present:

    readings    version; flags (4: restored statistics, 8: columns, 16: events, 32: the events' times are wide,
                128: too many metrics, and nothing follows); statistics, [restored statistics], [columns], [events]
    statistics  number of events; size of the names in bytes, of which the highest bit is set if there are parts, and
                the next one if there is a member; names of the metrics; for each metric its count, sum, minimum,
                maximum, average and deviation; [for each metric the size of its parts, and they, as
                :mod:`pipeline.core.statistics.parts` describes]; [size of the member, and it, as
                :mod:`pipeline.core.statistics.member` describes]
    columns     number of groups, number of sealed blocks, base in µs, size of a time in bytes (wide: 16); first time,
                last time; groups, in which times are relative to the base; sealed blocks
    group       number of metrics, number of events; each metric as its index among the statistics; event times; values
                as doubles, event by event
    sealed      number of metrics, number of events, size of the data in bytes; first time, last time in µs, in 16 bytes
                each; each metric as its index; the data, as :mod:`pipeline.core.accumulation.packed_block` describes
    events      number of blocks; for each block the size of its metric names in bytes, number of events, the names,
                event times in µs (8 bytes, wide: 16), values as in a group
    window      version; statistics
    names       for each its length in one byte, and its UTF-8
"""

import struct
import sys
from array import array
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from functools import lru_cache

from pipeline.core.accumulation.packed_block import Sealed
from pipeline.core.accumulation.reading_columns import LONG, SHORT, WIDE, ColumnGroup, ReadingColumns, blocks
from pipeline.core.statistics.member import Member, member_bytes, member_of
from pipeline.core.statistics.parts import parts_bytes, read_parts
from pipeline.core.statistics.window_stats import MetricStats, WindowStats

_COUNT = struct.Struct("<I")
_EVENTS = struct.Struct("<QI")
_METRIC = struct.Struct("<Qddddd")
_COLUMNS = struct.Struct("<IIqB")
_GROUP = struct.Struct("<II")
_SEALED = struct.Struct("<III16s16s")
_BLOCK = struct.Struct("<II")

VERSION = 0x1C  # no release before took it for a first byte; the next format takes another one

_METRIC_INDEX = "I"
_HAS_PARTS, _HAS_MEMBER = 1 << 31, 1 << 30
_TIME_SIZES = {SHORT: 4, LONG: 8, WIDE: 16}
_TIME_TYPES = {size: time_type for time_type, size in _TIME_SIZES.items()}
if [array(type_code).itemsize for type_code in (SHORT, LONG, _METRIC_INDEX)] != [4, 8, 4] or sys.byteorder != "little":
    raise ImportError("accumulators need a little-endian machine with integers of four and eight bytes")


class Reader:
    """Reads values from bytes, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, size: int) -> bytes:
        """Reads the next ``size`` bytes."""
        begin = self._move(size)
        return self._data[begin : begin + size]

    def unpack(self, layout: struct.Struct) -> tuple:
        """Reads the next values, in this layout."""
        return layout.unpack_from(self._data, self._move(layout.size))

    def byte(self) -> int:
        """Reads the next byte."""
        return self.take(1)[0]

    def version(self, version: int = VERSION) -> None:
        """Reads the first byte. Raises ValueError if another release wrote the accumulator."""
        if self.byte() != version:
            raise ValueError("another release wrote this accumulator; drain the job that wrote it and start a new one")

    def count(self) -> int:
        """Reads the next count."""
        return int(self.unpack(_COUNT)[0])

    def counted(self) -> bytes:
        """Reads the next bytes, whose size is before them."""
        begin = self._position + _COUNT.size
        end = begin + _COUNT.unpack_from(self._data, self._position)[0]
        if end > len(self._data):
            raise ValueError("the accumulator is cut off")
        self._position = end
        return self._data[begin:end]

    def names(self, size: int) -> tuple[str, ...]:
        """Reads names that take ``size`` bytes."""
        return _names(self.take(size))

    @property
    def position(self) -> int:
        """The number of bytes read so far."""
        return self._position

    def chosen(self, names: Sequence[str], count: int) -> tuple[str, ...]:
        """Reads so many indexes, and returns the names at these."""
        indexes = array(_METRIC_INDEX, self.take(4 * count))
        if count and max(indexes) >= len(names):
            raise ValueError("the accumulator has readings of a metric without statistics")
        return tuple([names[index] for index in indexes])

    def end(self) -> None:
        """Raises ValueError if bytes are left."""
        if self._position < len(self._data):
            raise ValueError("the accumulator has bytes after its end")

    def expect(self, size: int) -> None:
        """Raises ValueError if fewer bytes are left."""
        if self._position + size > len(self._data):
            raise ValueError("the accumulator is cut off")

    def _move(self, size: int) -> int:
        begin = self._position
        self.expect(size)
        self._position += size
        return begin


def head_bytes(flags: int, version: int = VERSION) -> bytes:
    """Returns the first bytes of an accumulator."""
    return bytes([version, flags])


def stats_bytes(stats: WindowStats) -> bytes:
    """Serializes statistics."""
    names = names_bytes(tuple(stats.metrics))
    each = [
        _METRIC.pack(of.count, of.total, of.minimum, of.maximum, of.average, of.deviation)
        for of in stats.metrics.values()
    ]
    parts: list[bytes] = []
    if any(of_metric.parts for of_metric in stats.metrics.values()):
        for of_metric in stats.metrics.values():
            data = parts_bytes(of_metric.parts)
            parts += (_COUNT.pack(len(data)), data)
    size = len(names) | bool(parts) * _HAS_PARTS
    if stats.member is not None:
        size |= _HAS_MEMBER
        parts += _sized_member(stats.member)
    return b"".join((_EVENTS.pack(stats.events, size), names, *each, *parts))


def read_stats(reader: Reader) -> WindowStats:
    """Reads what :func:`stats_bytes` wrote."""
    stats = WindowStats()
    stats.events, size = reader.unpack(_EVENTS)
    for metric in reader.names(size & ~(_HAS_PARTS | _HAS_MEMBER)):
        of = stats.metrics[metric] = MetricStats()
        of.count, of.total, of.minimum, of.maximum, of.average, of.deviation = reader.unpack(_METRIC)
    if size & _HAS_PARTS:
        for of_metric in stats.metrics.values():
            of_metric.parts = read_parts(reader.counted())
    if size & _HAS_MEMBER:
        stats.member = member_of(reader.counted())
    return stats


def _sized_member(member: Member) -> tuple[bytes, bytes]:
    """Returns the size of a member, and its bytes."""
    data = member_bytes(member)
    return _COUNT.pack(len(data)), data


def window_bytes(stats: WindowStats) -> bytes:
    """Serializes a window's statistics alone."""
    return bytes([VERSION]) + stats_bytes(stats)


def read_window(data: bytes) -> WindowStats:
    """Parses what :func:`window_bytes` wrote. Raises ValueError for other bytes."""
    reader = Reader(data)
    reader.version()
    stats = read_stats(reader)
    reader.end()
    return stats


def columns_bytes(columns: ReadingColumns, metrics: Iterable[str]) -> bytes:
    """Serializes readings: eight bytes for a value, and four, eight or sixteen for a time.

    Args:
        columns: the readings.
        metrics: the metrics of their statistics, in the order in which these are written.
    """
    time_type = columns.time_type
    parts = [
        _COLUMNS.pack(len(columns.groups), len(columns.sealed), columns.base_us, _TIME_SIZES[time_type]),
        _times_bytes(time_type, (columns.first, columns.last)),
    ]
    indexes = {metric: index for index, metric in enumerate(metrics)}
    for names, (times, values) in columns.groups.items():
        parts += (
            _GROUP.pack(len(names), len(times)),
            array(_METRIC_INDEX, [indexes[name] for name in names]).tobytes(),
            _times_bytes(time_type, times),
            values.tobytes(),
        )
    for block in columns.sealed:
        ends = _wide_bytes(block.first), _wide_bytes(block.last)
        parts += (
            _SEALED.pack(len(block.metrics), block.events, len(block.data), *ends),
            array(_METRIC_INDEX, [indexes[name] for name in block.metrics]).tobytes(),
            block.data,
        )
    return b"".join(parts)


def read_columns(reader: Reader, metrics: Iterable[str]) -> ReadingColumns:
    """Reads what :func:`columns_bytes` wrote, given the same metrics."""
    columns = ReadingColumns()
    groups, sealed, columns.base_us, size = reader.unpack(_COLUMNS)
    if size not in _TIME_TYPES:
        raise ValueError(f"the accumulator has times of {size} bytes")
    time_type = columns.time_type = _TIME_TYPES[size]
    columns.first, columns.last = _read_times(time_type, reader.take(2 * size))
    names = list(metrics)
    for _ in range(groups):
        width, events = reader.unpack(_GROUP)
        of_group = reader.chosen(names, width)
        times = _read_times(time_type, reader.take(size * events))
        columns.groups[of_group] = ColumnGroup(times, array("d", reader.take(8 * width * events)))
    for _ in range(sealed):
        width, events, size, first, last = reader.unpack(_SEALED)
        of_block = reader.chosen(names, width)
        columns.sealed.append(Sealed(of_block, events, _wide(first), _wide(last), reader.take(size)))
    return columns


def events_bytes(events: Mapping[int, Mapping[str, float]], *, wide: bool) -> bytes:
    """Serializes a few events' readings, by event time."""
    parts: list[bytes] = []
    for metrics, times_us, values in blocks(events):
        names = names_bytes(metrics)
        layout = _block(len(metrics), len(times_us), wide)
        times = map(_wide_bytes, times_us) if wide else times_us
        parts += (_BLOCK.pack(len(names), len(times_us)), names, layout.pack(*times, *values))
    return b"".join((_COUNT.pack(len(parts) // 3), *parts))


def read_events(reader: Reader, *, wide: bool) -> dict[int, Mapping[str, float]]:
    """Reads what :func:`events_bytes` wrote."""
    events: dict[int, Mapping[str, float]] = {}
    for _ in range(reader.count()):
        size, count = reader.unpack(_BLOCK)
        metrics = reader.names(size)
        width = len(metrics)
        reader.expect(count * ((16 if wide else 8) + 8 * width))  # before a layout of that size is made
        numbers = reader.unpack(_block(width, count, wide))
        times = map(_wide, numbers[:count]) if wide else numbers[:count]
        for index, time_us in enumerate(times):
            begin = count + index * width
            events[time_us] = dict(zip(metrics, numbers[begin : begin + width], strict=True))
    return events


def _times_bytes(time_type: str, times: Sequence[int]) -> bytes:
    return b"".join(map(_wide_bytes, times)) if time_type == WIDE else array(time_type, times).tobytes()


def _read_times(time_type: str, data: bytes) -> MutableSequence[int]:
    if time_type == WIDE:
        return [_wide(data[begin : begin + 16]) for begin in range(0, len(data), 16)]
    return array(time_type, data)


def _wide_bytes(time: int) -> bytes:
    return time.to_bytes(16, "little", signed=True)


def _wide(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


@lru_cache(maxsize=256)
def _block(metrics: int, events: int, wide: bool) -> struct.Struct:
    return struct.Struct(f"<{'16s' * events if wide else f'{events}q'}{events * metrics}d")


# Cached because a sensor's metrics rarely change, and sensors of a kind have the same metrics.
@lru_cache(maxsize=128)
def names_bytes(names: tuple[str, ...]) -> bytes:
    """Serializes names; :meth:`Reader.names` reads them."""
    encoded = [name.encode() for name in names]
    return b"".join([bytes([len(name)]) + name for name in encoded])  # the contract limits a name to 128 bytes


@lru_cache(maxsize=128)
def _names(data: bytes) -> tuple[str, ...]:
    names = []
    begin = 0
    while begin < len(data):
        end = begin + 1 + data[begin]
        if end > len(data):
            raise ValueError("the accumulator has names that are cut off")
        names.append(data[begin + 1 : end].decode())
        begin = end
    return tuple(names)
