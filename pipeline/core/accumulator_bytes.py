"""Accumulators as bytes: what runners store and hand on, so that every byte is one of each sensor and window.

Little-endian, without padding:

    readings    flags (1: readings are kept, 2: whole, 4: statistics were recalled, 8: there are columns, 16: there are
                events, 32: whose times are wide, 64: there are statistics at least; 128, the form), statistics,
                [those recalled], [those at least], [columns], [events]; of too many metrics: flags (8; 128) alone
    statistics  number of events, names of metrics; for each its count, sum, minimum, maximum, average and deviation
    columns     number of groups, base in µs, bytes of a time behind it (wide: 16); first time, last time; groups
    group       number of metrics, number of events; the metrics, each as its number among the statistics; the events'
                times; values as doubles, event by event
    events      number of blocks; for each the bytes of its metrics' names, number of events, these names, times in µs
                (8 bytes, wide: 16), values as in a group
    windows     flags (1: whole, 64: there are statistics at least; 128, the form), twice the number of windows, those
                that came and those recalled; for each its start in µs and its statistics; [statistics at least]
    names       bytes of them all; for each its length, UTF-8
"""

import struct
import sys
from array import array
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from functools import lru_cache

from pipeline.core.columns import LONG, SHORT, WIDE, Group, ReadingColumns, blocks
from pipeline.core.stats import MetricStats, WindowStats

_COUNT = struct.Struct("<I")
_EVENTS = struct.Struct("<QI")
_METRIC = struct.Struct("<Qddddd")
_COLUMNS = struct.Struct("<IqB")
_GROUP = struct.Struct("<II")
_BLOCK = struct.Struct("<II")
_START = struct.Struct("<q")

FORM = 1 << 7  # of the bytes, above the flags: what is stored by another release is not mistaken for this one's

_NUMBERS = "I"
_SIZES = {SHORT: 4, LONG: 8, WIDE: 16}
_FORMS = {size: form for form, size in _SIZES.items()}
if [array(form).itemsize for form in (SHORT, LONG, _NUMBERS)] != [4, 8, 4] or sys.byteorder != "little":
    raise ImportError("this machine's integers are not those that accumulators are stored with")


class Reader:
    """Takes values from bytes, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, size: int) -> bytes:
        """The next so many bytes."""
        begin = self._move(size)
        return self._data[begin : begin + size]

    def unpack(self, form: struct.Struct) -> tuple:
        """The next values of that form."""
        return form.unpack_from(self._data, self._move(form.size))

    def byte(self) -> int:
        """The next byte."""
        return self.take(1)[0]

    def flags(self) -> int:
        """The flags that :func:`flags_byte` wrote. Raises ValueError where another release wrote what follows."""
        found = self.byte()
        if found & -FORM != FORM:
            raise ValueError("an accumulator of another release: drain the job that wrote it, and start it anew")
        return found

    def count(self) -> int:
        """The next number of things."""
        return int(self.unpack(_COUNT)[0])

    def names(self, size: int) -> tuple[str, ...]:
        """The next names, which take so many bytes."""
        return _names(self.take(size))

    def end(self) -> None:
        """Raises ValueError where there is more."""
        if self._position < len(self._data):
            raise ValueError("an accumulator goes on behind its end")

    def _move(self, size: int) -> int:
        begin = self._position
        self._position += size
        if self._position > len(self._data):
            raise ValueError("an accumulator ends before its end")
        return begin


def flags_byte(flags: int) -> bytes:
    """What an accumulator begins with."""
    return bytes([FORM | flags])


def stats_bytes(stats: WindowStats) -> bytes:
    """The statistics."""
    names = _names_bytes(tuple(stats.metrics))
    each = [
        _METRIC.pack(
            of_metric.count,
            of_metric.total,
            of_metric.minimum,
            of_metric.maximum,
            of_metric.average,
            of_metric.deviation,
        )
        for of_metric in stats.metrics.values()
    ]
    return b"".join((_EVENTS.pack(stats.events, len(names)), names, *each))


def read_stats(reader: Reader) -> WindowStats:
    """What :func:`stats_bytes` wrote."""
    stats = WindowStats()
    stats.events, size = reader.unpack(_EVENTS)
    for metric in reader.names(size):
        of_metric = stats.metrics[metric] = MetricStats()
        (
            of_metric.count,
            of_metric.total,
            of_metric.minimum,
            of_metric.maximum,
            of_metric.average,
            of_metric.deviation,
        ) = reader.unpack(_METRIC)
    return stats


def columns_bytes(columns: ReadingColumns, metrics: Iterable[str]) -> bytes:
    """Readings: eight bytes a value, and four or eight a time.

    Args:
        columns: of the readings.
        metrics: of their statistics, in the order in which these are written.
    """
    parts = [
        _COLUMNS.pack(len(columns.groups), columns.base_us, _SIZES[columns.form]),
        _times_bytes(columns.form, (columns.first, columns.last)),
    ]
    numbers = {metric: number for number, metric in enumerate(metrics)}
    for names, (times, values) in columns.groups.items():
        parts += (
            _GROUP.pack(len(names), len(times)),
            array(_NUMBERS, [numbers[name] for name in names]).tobytes(),
            _times_bytes(columns.form, times),
            values.tobytes(),
        )
    return b"".join(parts)


def read_columns(reader: Reader, metrics: Iterable[str]) -> ReadingColumns:
    """What :func:`columns_bytes` wrote with these metrics."""
    columns = ReadingColumns()
    groups, columns.base_us, size = reader.unpack(_COLUMNS)
    columns.form = _FORMS[size]
    columns.first, columns.last = _read_times(columns.form, reader.take(2 * size))
    names = list(metrics)
    for _ in range(groups):
        width, events = reader.unpack(_GROUP)
        of_group = tuple([names[number] for number in array(_NUMBERS, reader.take(4 * width))])
        times = _read_times(columns.form, reader.take(size * events))
        columns.groups[of_group] = Group(times, array("d", reader.take(8 * width * events)))
    return columns


def events_bytes(events: Mapping[int, Mapping[str, float]], *, wide: bool) -> bytes:
    """Readings by event time: a few, as they are."""
    parts: list[bytes] = []
    for metrics, times_us, values in blocks(events):
        names = _names_bytes(metrics)
        form = _block(len(metrics), len(times_us), wide)
        times = map(_wide_bytes, times_us) if wide else times_us
        parts += (_BLOCK.pack(len(names), len(times_us)), names, form.pack(*times, *values))
    return b"".join((_COUNT.pack(len(parts) // 3), *parts))


def read_events(reader: Reader, *, wide: bool) -> dict[int, Mapping[str, float]]:
    """What :func:`events_bytes` wrote."""
    events: dict[int, Mapping[str, float]] = {}
    for _ in range(reader.count()):
        size, count = reader.unpack(_BLOCK)
        metrics = reader.names(size)
        width = len(metrics)
        numbers = reader.unpack(_block(width, count, wide))
        times = map(_wide, numbers[:count]) if wide else numbers[:count]
        for index, time_us in enumerate(times):
            begin = count + index * width
            events[time_us] = dict(zip(metrics, numbers[begin : begin + width], strict=True))
    return events


def windows_bytes(windows: Mapping[int, WindowStats]) -> bytes:
    """Statistics by the start of their window."""
    parts = [_COUNT.pack(len(windows))]
    for start_us, stats in windows.items():
        parts += (_START.pack(start_us), stats_bytes(stats))
    return b"".join(parts)


def read_windows(reader: Reader) -> dict[int, WindowStats]:
    """What :func:`windows_bytes` wrote."""
    return {reader.unpack(_START)[0]: read_stats(reader) for _ in range(reader.count())}


def _times_bytes(form: str, times: Sequence[int]) -> bytes:
    return b"".join(map(_wide_bytes, times)) if form == WIDE else array(form, times).tobytes()


def _read_times(form: str, data: bytes) -> MutableSequence[int]:
    if form == WIDE:
        return [_wide(data[begin : begin + 16]) for begin in range(0, len(data), 16)]
    return array(form, data)


def _wide_bytes(time: int) -> bytes:
    return time.to_bytes(16, "little", signed=True)


def _wide(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


@lru_cache(maxsize=256)
def _block(metrics: int, events: int, wide: bool) -> struct.Struct:
    return struct.Struct(f"<{'16s' * events if wide else f'{events}q'}{events * metrics}d")


# A sensor's metrics are mostly the same, and so are those of sensors of a kind.
@lru_cache(maxsize=128)
def _names_bytes(names: tuple[str, ...]) -> bytes:
    encoded = [name.encode() for name in names]
    return b"".join([bytes([len(name)]) + name for name in encoded])  # each at most 128, by the contract


@lru_cache(maxsize=128)
def _names(data: bytes) -> tuple[str, ...]:
    names = []
    begin = 0
    while begin < len(data):
        end = begin + 1 + data[begin]
        names.append(data[begin + 1 : end].decode())
        begin = end
    return tuple(names)
