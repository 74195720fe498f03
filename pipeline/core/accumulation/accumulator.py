"""Accumulates a window from its readings, of which it keeps each once: a redelivered event does not count again.

Statistics alone cannot show which readings two accumulators have in common; the readings themselves can. So the
accumulator keeps them, and counts each once however often and in whatever order accumulators are merged.

An event is identified by its time. If its identity includes more than that, it is identified by a *wide* time: the time
followed by 64 bits of a digest of the rest.

New readings are buffered. They are deduplicated and counted when a result is needed: in bulk, this is far cheaper.
Counted readings are kept to recognize others, and are rarely looked at: what is serialized often is sealed.

Runners store and transfer the bytes of accumulators for every sensor and window, so each byte counts. They are
little-endian, without padding. Parts in brackets are optional; a flag tells whether they are present:

    readings    version; flags (4: restored statistics, 8: columns, 16: events, 32: the events' times are wide,
                128: too many metrics, and nothing follows); statistics, [restored statistics], [columns], [events]
    statistics  number of events; size of the names in bytes, of which the highest bit is set if there are parts, and
                the next one if there is a member; names of the metrics; for each metric its count, sum, minimum,
                maximum, average and deviation; [for each metric the size of its parts, and they, as
                :mod:`pipeline.core.statistics.parts` describes]; [size of the member, and it, as
                :mod:`pipeline.core.statistics.member` describes]
    columns     number of groups, number of sealed blocks, size of a time in bytes (4, 8 or 16), first time of a group
                in 16 bytes; groups, in which times are relative to that time; sealed blocks
    group       number of metrics, number of events; each metric as its index among the statistics; event times; values
                as doubles, event by event
    sealed      number of metrics, number of events, size of the data in bytes; first time, last time in µs, in 16 bytes
                each; each metric as its index; the data, as :mod:`pipeline.core.accumulation.reading_columns` describes
    events      number of blocks; for each block the size of its metric names in bytes, number of events, the names,
                event times in µs (8 bytes, wide: 16), values as in a group
    window      version; statistics
    names       for each its length in one byte, and its UTF-8
"""

import struct
import sys
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from pipeline.core.accumulation.reading_columns import (
    FEW,
    Block,
    ColumnGroup,
    Columns,
    ReadingColumns,
    Sealed,
    blocks,
    count_events,
    event_key,
    is_wide,
    newest_first,
    time_of_key,
)
from pipeline.core.statistics.member import Member, after, member_bytes, member_of, noted
from pipeline.core.statistics.parts import parts_bytes, read_parts
from pipeline.core.statistics.window_stats import (
    BY_DEFAULT,
    MAX_METRICS,
    MetricStats,
    Statistics,
    WindowStats,
    add_parts,
)

_COUNT = struct.Struct("<I")
_EVENTS = struct.Struct("<QI")
_METRIC = struct.Struct("<Qddddd")
_COLUMNS = struct.Struct("<IIB16s")
_GROUP = struct.Struct("<II")
_SEALED = struct.Struct("<III16s16s")
_BLOCK = struct.Struct("<II")

VERSION = 0x1D  # no release before took it for a first byte; the next format takes another one

_METRIC_INDEX = "I"
_HAS_PARTS, _HAS_MEMBER = 1 << 31, 1 << 30
_TIME_TYPES = {4: "I", 8: "Q"}
if [array(type_code).itemsize for type_code in ("I", "Q", _METRIC_INDEX)] != [4, 8, 4] or sys.byteorder != "little":
    raise ImportError("accumulators need a little-endian machine with integers of four and eight bytes")


class Reader:
    """Reads values from bytes, one after the other.

    Attributes:
        position: the number of bytes read so far.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

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

    def version(self) -> None:
        """Reads the first byte. Raises ValueError if another release wrote the accumulator."""
        if self.byte() != VERSION:
            raise ValueError("another release wrote this accumulator; drain the job that wrote it and start a new one")

    def count(self) -> int:
        """Reads the next count."""
        return int(self.unpack(_COUNT)[0])

    def counted(self) -> bytes:
        """Reads the next bytes, whose size is before them."""
        begin = self.position + _COUNT.size
        end = begin + _COUNT.unpack_from(self._data, self.position)[0]
        if end > len(self._data):
            raise ValueError("the accumulator is cut off")
        self.position = end
        return self._data[begin:end]

    def names(self, size: int) -> tuple[str, ...]:
        """Reads names that take ``size`` bytes."""
        return _names(self.take(size))

    def chosen(self, names: Sequence[str], count: int) -> tuple[str, ...]:
        """Reads ``count`` indexes, and returns the names at these."""
        indexes = array(_METRIC_INDEX, self.take(4 * count))
        if count and max(indexes) >= len(names):
            raise ValueError("the accumulator has readings of a metric without statistics")
        return tuple([names[index] for index in indexes])

    def end(self) -> None:
        """Raises ValueError if bytes are left."""
        if self.position < len(self._data):
            raise ValueError("the accumulator has bytes after its end")

    def expect(self, size: int) -> None:
        """Raises ValueError if fewer bytes are left."""
        if self.position + size > len(self._data):
            raise ValueError("the accumulator is cut off")

    def _move(self, size: int) -> int:
        begin = self.position
        self.expect(size)
        self.position += size
        return begin


def _stats_bytes(stats: WindowStats) -> bytes:
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
        data = member_bytes(stats.member)
        parts += (_COUNT.pack(len(data)), data)
    return b"".join((_EVENTS.pack(stats.events, size), names, *each, *parts))


def _read_stats(reader: Reader) -> WindowStats:
    """Reads what :func:`_stats_bytes` wrote."""
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


def window_bytes(stats: WindowStats) -> bytes:
    """Serializes a window's statistics."""
    return bytes([VERSION]) + _stats_bytes(stats)


def read_window(data: bytes) -> WindowStats:
    """Parses what :func:`window_bytes` wrote. Raises ValueError for other bytes."""
    reader = Reader(data)
    reader.version()
    stats = _read_stats(reader)
    reader.end()
    return stats


def _columns_bytes(columns: ReadingColumns, metrics: Iterable[str]) -> bytes:
    """Serializes readings, given the metrics of their statistics in the order in which these are written."""
    first, bits = columns.first, (columns.last - columns.first).bit_length()
    size = 4 if bits <= 32 else 8 if bits <= 64 else 16
    parts = [_COLUMNS.pack(len(columns.groups), len(columns.sealed), size, _wide_bytes(first))]
    indexes = {metric: index for index, metric in enumerate(metrics)}
    for names, (times, values) in columns.groups.items():
        parts += (
            _GROUP.pack(len(names), len(times)),
            array(_METRIC_INDEX, [indexes[name] for name in names]).tobytes(),
            _times_bytes(size, [time - first for time in times]),
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


def _read_columns(reader: Reader, metrics: Iterable[str]) -> ReadingColumns:
    """Reads what :func:`_columns_bytes` wrote, given the same metrics."""
    columns = ReadingColumns()
    groups, sealed, time_size, first = reader.unpack(_COLUMNS)
    if time_size not in (*_TIME_TYPES, 16):
        raise ValueError(f"the accumulator has times of {time_size} bytes")
    columns.first = columns.last = first_us = _wide(first)
    names = list(metrics)
    for _ in range(groups):
        width, events = reader.unpack(_GROUP)
        of_group = reader.chosen(names, width)
        times = [first_us + time for time in _read_times(time_size, reader.take(time_size * events))]
        columns.groups[of_group] = ColumnGroup(times, array("d", reader.take(8 * width * events)))
        columns.last = max(columns.last, max(times, default=first_us))
    for _ in range(sealed):
        width, events, size, first, last = reader.unpack(_SEALED)
        of_block = reader.chosen(names, width)
        columns.sealed.append(Sealed(of_block, events, _wide(first), _wide(last), reader.take(size)))
    return columns


def _events_bytes(events: Mapping[int, Mapping[str, float]], *, wide: bool) -> bytes:
    """Serializes a few events' readings, by event time."""
    parts: list[bytes] = []
    for metrics, times_us, values in blocks(events):
        names = names_bytes(metrics)
        layout = _block(len(metrics), len(times_us), wide)
        times = map(_wide_bytes, times_us) if wide else times_us
        parts += (_BLOCK.pack(len(names), len(times_us)), names, layout.pack(*times, *values))
    return b"".join((_COUNT.pack(len(parts) // 3), *parts))


def _read_events(reader: Reader, *, wide: bool) -> dict[int, Mapping[str, float]]:
    """Reads what :func:`_events_bytes` wrote."""
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


def _times_bytes(size: int, times: Sequence[int]) -> bytes:
    return array(_TIME_TYPES[size], times).tobytes() if size < 16 else b"".join(map(_wide_bytes, times))


def _read_times(size: int, data: bytes) -> Sequence[int]:
    if size < 16:
        return array(_TIME_TYPES[size], data)
    return [_wide(data[begin : begin + 16]) for begin in range(0, len(data), 16)]


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


class Pane(NamedTuple):
    """The result of a window so far."""

    stats: WindowStats
    too_wide: bool = False


_TOO_WIDE = 128  # a flag
SEAL_AT = 256  # events, from which on they are sealed: larger blocks are hardly smaller, and more events wait for them


class WindowReadings:
    """The accumulator of a window of the shortest tier.

    A reading is identified by its event and its metric. Of several values for one reading, the last counts, as in a
    table. Not thread-safe: even reading a result may count buffered readings.

    Attributes:
        differs: whether a reading had several values since it was made: its raw cell may contain another one.
    """

    __slots__ = ("_bulk", "_fresh", "_kept", "_restored", "_stats", "_too_wide", "differs")

    def __init__(self) -> None:
        # Added but not counted yet: readings by event time.
        self._fresh: dict[int, Mapping[str, float]] = {}
        self._bulk: list[Block] = []  # the same, of many events at once; they count before the fresh ones
        self._stats = WindowStats()  # of the counted readings
        self._kept = ReadingColumns()  # the counted readings
        self._restored: WindowStats | None = None  # of other readings than those added
        self._too_wide = False
        self.differs = False

    @classmethod
    def of(cls, columns: Columns) -> "WindowReadings":
        """Returns the accumulator of gathered readings, with each once."""
        found = cls()
        for metrics, (times, values) in columns.items():
            found.extend(metrics, times, values)
        return found

    def add(self, time_us: int, readings: Mapping[str, float], discriminator: str = "") -> None:
        """Adds an event's readings, and replaces those already known.

        Args:
            time_us: the event time.
            readings: metric name to finite value; they must not change later.
            discriminator: the text that identifies the event besides its time; "" if the time alone does.
        """
        if not readings:
            return  # from a row that contains only metadata
        if discriminator:
            time_us = event_key(time_us, discriminator)
        first = self._fresh.setdefault(time_us, readings)
        if first is not readings:
            self._fresh[time_us] = {**first, **readings}
            self.differs |= any(first.get(metric, value) != value for metric, value in readings.items())

    def extend(self, metrics: tuple[str, ...], times: Sequence[int], values: Sequence[float]) -> None:
        """Adds the readings of events with the same metrics, as :meth:`add` does for each.

        Args:
            metrics: the metric names, at least one.
            times: the event times; wide ones if more than the time identifies an event.
            values: finite values, event by event.
        """
        if self._too_wide:
            return
        width = len(metrics)
        if len(times) < FEW or not self._fresh.keys().isdisjoint(times):
            for index, time_us in enumerate(times):
                self.add(time_us, dict(zip(metrics, values[index * width : (index + 1) * width], strict=True)))
            return
        self._bulk.append(Block(metrics, list(times), list(values)))

    @property
    def member(self) -> Member | None:
        """The newest event, if roll-ups group sensors by metadata."""
        return self._stats.member

    def note(self, *members: Member) -> bool:
        """Notes the newest of these events if no reading is newer. Returns whether a known one has other metadata."""
        stats = self._stats
        newest, changed, contradicted = noted(stats.member, members)
        if stats.member is None and newest is not None:  # roll-ups may not have needed metadata until now
            newest_us = self._kept.newest_us(list(self._fresh), *(block.times_us for block in self._bulk))
            if newest.event_time_us < newest_us:
                return False
        stats.member = newest
        self.differs |= contradicted
        return changed

    def follow(self, earlier: Member | None) -> None:
        """Notes the metadata that the window had earlier, if it has any now."""
        if self._stats.member is not None and earlier is not None:
            self._stats.member = after(self._stats.member, earlier)

    @property
    def exact(self) -> bool:
        return self._restored is None

    def restore(self, statistics: WindowStats) -> None:
        """Continues from an aggregate row's statistics, whose readings are not known."""
        self._restored = statistics

    def merge(self, other: "WindowReadings") -> None:
        """Adds the readings of ``other``, which stays unchanged; its values count where they differ."""
        if self._too_wide or other._too_wide:
            self._give_up()
            return
        if other.member is not None:
            self.note(other.member)
        if other._kept:
            self._merge_kept(other._kept, other._stats)
        for block in other._bulk:
            self.extend(*block)
        for time_us, readings in other._fresh.items():
            self.add(time_us, readings)
        self.differs |= other.differs
        self._check_width()

    def distinct(self) -> tuple[int, int]:
        """Returns the number of events and that of readings; zeros if the window is too wide."""
        if not self._kept and not self._bulk:
            return len(self._fresh), sum(map(len, self._fresh.values()))
        if len(self._bulk) == 1 and not self._kept and not self._fresh:
            [block] = self._bulk
            if len(set(block.times_us)) == len(block.times_us):
                return len(block.times_us), len(block.values)
        self._count()
        return self._stats.events, sum([stats.count for stats in self._stats.metrics.values()])

    def as_read(self) -> "WindowReadings":
        """Returns the same readings in the order in which a table returns them, on which sums of a few depend."""
        columns = self._columns()
        if columns is None or self._kept or self._bulk:
            return self
        return WindowReadings.of(newest_first(columns))

    def compare(self, other: "WindowReadings") -> tuple[bool, bool]:
        """Returns whether all readings of ``other`` are here, with their values, and whether there are no others here.

        Both have the same newest event then, if any. Returns False if the answer takes more than a look.
        """
        ours, others = self._columns(), other._columns()
        if ours is None or others is None or self.member != other.member:
            return False, False
        for metrics, (times, values) in others.items():
            known_times, known_values = ours.get(metrics, ((), ()))
            known = dict(zip(known_times, _rows_of(known_values, len(metrics)), strict=True))
            if any(known.get(at) != row for at, row in zip(times, _rows_of(values, len(metrics)), strict=True)):
                return False, False
        return True, sum(len(each[0]) for each in ours.values()) == sum(len(each[0]) for each in others.values())

    def _columns(self) -> Columns | None:
        """Returns times and values by the sorted names of metrics, newest first if they are few.

        Returns None if some are sealed or of several groups.
        """
        if self._too_wide or self._restored is not None or self._kept.sealed:
            return None
        kept = self._kept
        found = {metrics: (times[:], values.tolist()) for metrics, (times, values) in kept.groups.items()}
        some = [*self._bulk, *blocks(dict(sorted(self._fresh.items(), reverse=True)))]
        for metrics, times, values in map(Block.in_order, some):
            if metrics in found:
                return None
            found[metrics] = times, values
        return found

    def pane(self, statistics: Statistics = BY_DEFAULT) -> Pane:
        self._settle()
        if self._too_wide:
            return Pane(WindowStats(), too_wide=True)
        total = WindowStats()
        total.merge(self._stats)
        for readings in self._fresh.values():
            total.add(readings)
        if statistics.has_parts:
            add_parts(total, statistics, self._series())
        if self._restored is not None:
            restored = WindowStats()
            restored.merge(self._restored)
            restored.merge(total)
            total = restored
        if len(total.metrics) > statistics.most_metrics:
            return Pane(WindowStats(), too_wide=True)
        return Pane(total)

    def _series(self) -> Iterator[tuple[Sequence[int], Mapping[str, Sequence[float]]]]:
        """Yields times in µs with each metric's values at these times."""
        for times, values in self._kept.series():
            yield (times if not is_wide(max(times)) else list(map(time_of_key, times))), values
        for time_us, readings in self._fresh.items():
            yield (time_of_key(time_us),), {metric: (value,) for metric, value in readings.items()}

    def magnitudes(self) -> dict[str, float]:
        """Returns Σ|x| of the kept readings by metric, to which the tolerance of sums is relative."""
        self._settle()
        found: dict[str, float] = defaultdict(float)
        for metric, values in self._kept.by_metric():
            found[metric] += sum(map(abs, values))
        for readings in self._fresh.values():
            for metric, value in readings.items():
                found[metric] += abs(value)
        return dict(found)

    def newest(self) -> Iterator[tuple[int, str, float]]:
        self._count()
        return self._kept.newest()

    def without(self, other: "WindowReadings") -> "WindowReadings":
        """Returns the readings that are kept here but not in ``other``."""
        other._settle()
        self._settle()
        known = other._by_time()
        rest = WindowReadings()
        for time_us, readings in self._by_time().items():
            of_other = known.get(time_us, {})
            rest.add(time_us, {metric: value for metric, value in readings.items() if metric not in of_other})
        return rest

    def _by_time(self) -> dict[int, Mapping[str, float]]:
        found: dict[int, Mapping[str, float]] = {}
        for events in (self._kept.events(), self._fresh.items()):
            for time_us, readings in events:
                found[time_us] = {**found.get(time_us, {}), **readings}
        return found

    def _settle(self) -> None:
        """Counts the fresh events, unless they are few and nothing is counted yet."""
        if self._kept or self._bulk or len(self._fresh) >= FEW:
            self._count()

    def _count(self) -> None:
        """Counts the fresh readings; those already kept only replace the values."""
        if self._bulk:
            self._count_bulk()
        if not self._fresh:
            return
        fresh, self._fresh = self._fresh, {}
        if self._too_wide:
            return
        more: dict[int, Mapping[str, float]] = {}  # new readings of events that are already counted
        if known := self._kept.known(fresh):
            changed: dict[int, dict[str, float]] = {}
            for time_us, stored in self._kept.readings_at(known).items():
                readings = fresh.pop(time_us)
                if new := {metric: value for metric, value in readings.items() if metric not in stored}:
                    more[time_us] = new
                if other := {metric: value for metric, value in readings.items() if stored.get(metric, value) != value}:
                    changed[time_us] = other
            if changed:
                self._replace(changed)
        count_events(more, self._stats, self._kept)
        self._stats.events -= len(more)
        count_events(fresh, self._stats, self._kept)
        self._check_width()

    def _replace(self, changed: Mapping[int, Mapping[str, float]]) -> None:
        """Replaces values of kept readings, and counts their metrics anew."""
        self.differs = True
        self._kept.replace(changed)
        for metric in {metric for readings in changed.values() for metric in readings}:
            values = [value for name, of_name in self._kept.by_metric() if name == metric for value in of_name]
            self._stats.metrics[metric] = MetricStats.of(values)

    def _count_bulk(self) -> None:
        """Counts events that were added many at once. If any of them is known, all become fresh ones instead."""
        bulk, self._bulk = self._bulk, []
        by_metrics: dict[tuple[str, ...], Block] = {}
        for block in bulk:
            whole = by_metrics.setdefault(block.metrics, Block(block.metrics, [], []))
            whole.times_us.extend(block.times_us)
            whole.values.extend(block.values)
        times = {time_us for block in bulk for time_us in block.times_us}
        if len(times) == sum([len(block.times_us) for block in bulk]) and not self._kept.known(times):
            for whole in by_metrics.values():
                self._stats.extend(whole.by_metric(), len(whole.times_us))
                self._kept.extend(whole)
            self._check_width()
            return
        later, self._fresh = self._fresh, {}
        for metrics, times_us, values in bulk:
            each = iter(values)
            for time_us, of_event in zip(times_us, zip(*[each] * len(metrics), strict=True), strict=True):
                self.add(time_us, dict(zip(metrics, of_event, strict=True)))
        for time_us, readings in later.items():
            self.add(time_us, readings)

    def _check_width(self) -> None:
        if len(self._stats.metrics) > MAX_METRICS:
            self._give_up()

    def _give_up(self) -> None:
        """Drops all content and marks the window as too wide, to bound its memory."""
        self._fresh, self._bulk, self._stats = {}, [], WindowStats()
        self._kept = ReadingColumns()
        self._restored, self._too_wide = None, True

    def _merge_kept(self, other: ReadingColumns, stats: WindowStats) -> None:
        self._count()
        if self._kept.overlaps(other):
            for time_us, readings in other.events():
                self.add(time_us, readings)
        else:
            self._kept.merge(other)
            self._stats.merge(stats)

    def to_bytes(self) -> bytes:
        self._settle()
        if self._too_wide:
            return bytes([VERSION, _TOO_WIDE])
        columns = self._kept or None
        if columns is not None:
            columns.seal(SEAL_AT)
        wide = any(map(is_wide, self._fresh))
        flags = (self._restored is not None) << 2 | (columns is not None) << 3 | bool(self._fresh) << 4 | wide << 5
        return b"".join(
            (
                bytes([VERSION, flags]),
                _stats_bytes(self._stats),
                b"" if self._restored is None else _stats_bytes(self._restored),
                b"" if columns is None else _columns_bytes(columns, self._stats.metrics),
                _events_bytes(self._fresh, wide=wide) if self._fresh else b"",
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "WindowReadings":
        """Parses what :meth:`to_bytes` wrote; damage within sealed readings is found only when they are needed."""
        reader = Reader(data)
        reader.version()
        flags = reader.byte()
        found = cls()
        if flags & _TOO_WIDE:
            found._too_wide = True
            reader.end()
            return found
        found._stats = _read_stats(reader)
        if flags & 4:
            found._restored = _read_stats(reader)
        if flags & 8:
            found._kept = _read_columns(reader, found._stats.metrics)
        if flags & 16:
            found._fresh = _read_events(reader, wide=bool(flags & 32))
        reader.end()
        return found


def _rows_of(values: Sequence[float], width: int) -> Iterator[tuple[float, ...]]:
    return zip(*[iter(values)] * width, strict=True)


def merged(shorter: Mapping[int, WindowStats], statistics: Statistics) -> Pane:
    """Returns the result of a longer window."""
    total = WindowStats()
    for start_us in sorted(shorter):
        stats = shorter[start_us]
        total.merge(stats)
        if stats.events and stats.member is None:
            total.member = None  # the newest event counts even without its metadata, which no roll-up needed then
    if len(total.metrics) > statistics.most_metrics:
        return Pane(WindowStats(), too_wide=True)
    total.sizes = {start_us: stats.size for start_us, stats in shorter.items()}
    return Pane(total)
