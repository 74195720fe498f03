"""The windows of a group of sensors, as a job's state contains them.

:mod:`pipeline.core.panes.group_firing` fires their panes.

The state is bytes: a sequence of chunks, of which none is much larger than :data:`_CHUNK_BYTES` unless a single
sensor's window is. An accumulator stays bytes until its sensor sends something. Little-endian, without padding:

    chunk   index of the tier; 1 if the entries are compressed; start in µs; size of the sensors' ids; the ids,
            separated by line feeds, by zlib; their entries, by zlib if they are compressed
    entry   flags, 1 for dirty, 2 for moved, 4 for held, 8 for readings before, 16 for ahead; number of events and
            readings in the last pane (-1: none); size of the accumulator; the accumulator; if it has readings before,
            their number and these
    before  size of the metric's name; 1 if there is a reading before the window, otherwise 0; the name; time in µs and
            value of the reading

Any release can read a chunk without its entries: they are a cache, and the table has what they contain.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from zlib import compress, decompress

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.panes.firing import NEVER_US
from pipeline.core.schema.table_schema import Tier
from pipeline.core.statistics.parts import At
from pipeline.core.statistics.window_stats import WindowStats


@dataclass(slots=True)
class SensorWindow:
    """One sensor's window. Of a longer one, the state has no readings.

    Attributes:
        data: the bytes of the accumulator, if ``value`` is None.
        value: the accumulator.
        dirty: whether a pane has to be written.
        written: the number of events and readings in the last pane; -1 if there was none.
        moved: whether a pane has to be written although it counts the same as the last one.
        held: whether no pane is written, because the table's row may count readings that this job can't read.
        ahead: whether longer windows lack what the last pane counts.
        finished: whether a pane has to be written because the window is over. See
            :mod:`pipeline.core.panes.pane_outputs`.
        before: the last reading before the window by metric; None for a metric without one. See
            :mod:`pipeline.core.panes.group_firing`.
    """

    data: bytes = b""
    value: WindowReadings | None = None
    dirty: bool = False
    written: int = -1
    moved: bool = False
    held: bool = False
    ahead: bool = False
    before: dict[str, At | None] = field(default_factory=dict)
    finished: bool = False

    @property
    def accumulator(self) -> WindowReadings:
        """The accumulator, to be changed."""
        if self.value is None:
            self.value = WindowReadings.from_bytes(self.data)
        return self.value

    def settle(self, stats: WindowStats | None) -> bool:
        """Notes that a pane fired, with this result or none. Returns whether it has to be written."""
        changed = stats is not None and (stats.size != self.written or self.moved or self.finished)
        self.dirty = self.moved = self.finished = False
        if stats is not None:
            self.written = stats.size
        return changed


@dataclass(slots=True)
class StartWindows:
    """The sensors' windows with the same start.

    Attributes:
        late: whether they are closed: they are computed from the table.
        entries: the sensors' windows by sensor id.
    """

    late: bool = False
    entries: dict[str, SensorWindow] = field(default_factory=dict)


VERSION = 6

_HEADER = struct.Struct("<BBqI")
_ENTRY = struct.Struct("<BqI")
_COUNT = struct.Struct("<I")
_BEFORE = struct.Struct("<BB")
_AT = struct.Struct("<qd")
_CHUNK_BYTES = 4 << 20
_FEW_BYTES = 300  # which are not worth compressing
PACKED_BYTES = 8 << 10
"""Sensors' windows that are larger are mostly packed blocks: they are not compressed."""
_DIRTY, _MOVED, _HELD, _HAS_BEFORE, _AHEAD = 1, 2, 4, 8, 16


class GroupWindows:
    """The windows of one group, or some of them: those of the shortest tier, with their readings.

    Of longer windows, the state has which sensors have one that has to fire once more when it is over.

    Args:
        tiers: the table's tiers, shortest first.
        lateness_us: the time for which a window stays open after the watermark has passed its end.
        chunks: the state, as :meth:`chunks` returned it.

    Attributes:
        of_tier: each tier's windows, by their start in µs.
        has_open: whether the open windows are among them.
        written_bytes: the bytes of all chunks that :meth:`chunks` has yielded.
    """

    def __init__(self, tiers: Sequence[Tier], lateness_us: int, chunks: Iterable[bytes] = ()) -> None:
        self._ends = [tier.window.end_of for tier in tiers]
        self._lateness_us = lateness_us
        self.has_open = True
        self.written_bytes = 0
        self.of_tier: list[dict[int, StartWindows]] = [{} for _ in tiers]
        self.read(chunks)

    def read(self, chunks: Iterable[bytes]) -> None:
        """Adds windows of the state."""
        for chunk in chunks:
            tier, start_us = window_of(chunk)
            self.of_tier[tier].setdefault(start_us, StartWindows()).entries.update(_entries(chunk))

    def ends_by(self, tier: int, start_us: int, time_us: int) -> bool:
        """Returns whether a window ends by an event time."""
        return self._ends[tier](start_us) <= time_us

    def make_late(self, over_us: int, is_certain: Callable[[int], bool]) -> None:
        """Makes open windows of the shortest tier late that end by ``over_us``: they are computed from the table.

        Args:
            over_us: the time.
            is_certain: whether the table certainly has all of a window, by its start in µs.
        """
        for start_us, window in self.of_tier[0].items():
            if not window.late and self.ends_by(0, start_us, over_us) and is_certain(start_us):
                window.late = True
                for entry in window.entries.values():
                    entry.dirty = True
                    entry.moved |= bool(entry.before)
                    entry.before.clear()

    @property
    def lags(self) -> bool:
        """Whether longer windows lack what panes of these count."""
        windows = (window for of_tier in self.of_tier for window in of_tier.values())
        return any(entry.ahead for window in windows for entry in window.entries.values())

    def note_longer(self, tier: int, start_us: int, sensor_ids: Iterable[str], *, ahead: bool) -> None:
        """Keeps which sensors have a window of a longer tier, and whether those that are longer still lack it."""
        entries = self.of_tier[tier].setdefault(start_us, StartWindows()).entries
        for sensor_id in sensor_ids:
            entries.setdefault(sensor_id, SensorWindow()).ahead = ahead

    def take_ahead(self, tier: int, start_us: int) -> Iterator[str]:
        """Yields the sensors whose windows longer ones lack, which they do no more."""
        for sensor_id, entry in self.of_tier[tier][start_us].entries.items():
            if entry.ahead:
                entry.ahead = False
                yield sensor_id

    def take_over(self, tier: int, passed_us: int) -> list[tuple[int, list[str]]]:
        """Returns and forgets the starts and sensors of a longer tier's windows that end by ``passed_us``."""
        windows = self.of_tier[tier]
        starts = [start_us for start_us in windows if self.ends_by(tier, start_us, passed_us)]
        return [(start_us, list(windows.pop(start_us).entries)) for start_us in starts]

    def drop(self, closed_us: int) -> None:
        """Drops the windows that end by ``closed_us``: the table has them."""
        for tier, windows in enumerate(self.of_tier):
            for start_us in [each for each in windows if self.ends_by(tier, each, closed_us)]:
                del windows[start_us]

    def next_watermark_us(self, passed_us: int, *, all_ends: bool = False) -> int:
        """Returns the next watermark at which an open window fires or closes; :data:`NEVER_US` without one.

        If asked for all ends, each window fires at its end, even if nothing came since its last pane. Longer ones do so
        in any case: it is what they are kept for.
        """
        found = NEVER_US
        for tier, (end_of, windows) in enumerate(zip(self._ends, self.of_tier, strict=True)):
            for start_us, window in windows.items():
                end_us, entries = end_of(start_us), window.entries.values()
                fires = end_us > passed_us and (tier or all_ends or any(each.dirty or each.ahead for each in entries))
                found = min(found, end_us if fires else end_us + self._lateness_us)
        return found

    def chunks(self) -> Iterator[bytes]:
        """Yields the windows."""
        for tier, windows in enumerate(self.of_tier):
            for start_us, window in windows.items():
                ids, parts, size = list[str](), list[bytes](), 0
                for sensor_id, entry in window.entries.items():
                    encoded = _entry_parts(entry)
                    parts += encoded
                    ids.append(sensor_id)
                    size += sum(map(len, encoded))
                    if size >= _CHUNK_BYTES:
                        yield self._chunk(tier, start_us, ids, parts)
                        ids, parts, size = [], [], 0
                if parts:
                    yield self._chunk(tier, start_us, ids, parts)

    def _chunk(self, tier: int, start_us: int, sensor_ids: Sequence[str], parts: Iterable[bytes]) -> bytes:
        ids, body = compress("\n".join(sensor_ids).encode(), 1), b"".join(parts)
        compressed = len(body) < PACKED_BYTES * len(sensor_ids) and len(body) > _FEW_BYTES
        if compressed:
            body = compress(body, 1)
        self.written_bytes += _HEADER.size + len(ids) + len(body)
        return _HEADER.pack(tier, compressed, start_us, len(ids)) + ids + body

    def large(self, size_bytes: int) -> Iterator[tuple[str, int, int]]:
        """Yields the sensor id, the start in µs and the bytes of each accumulator of more than so many bytes."""
        for windows in self.of_tier:
            for start_us, window in windows.items():
                for sensor_id, entry in window.entries.items():
                    if len(entry.data) > size_bytes:
                        yield sensor_id, start_us, len(entry.data)


def _entry_parts(entry: SensorWindow) -> list[bytes]:
    if entry.value is not None:
        entry.data = entry.value.to_bytes()
    before = _before_bytes(entry.before) if entry.before else b""
    flags = _DIRTY * entry.dirty | _MOVED * entry.moved | _HELD * entry.held | _AHEAD * entry.ahead
    flags |= _HAS_BEFORE * bool(before)
    return [_ENTRY.pack(flags, entry.written, len(entry.data)), entry.data, before]


def window_of(chunk: bytes) -> tuple[int, int]:
    """Returns the index of the tier of a chunk's windows, and their start in µs. Any release's chunk tells."""
    tier, _, start_us, _ = _HEADER.unpack_from(chunk)
    return tier, start_us


def sensors_of(chunk: bytes) -> list[str]:
    """Returns the ids of the sensors of a chunk's windows. Any release's chunk tells."""
    size = _HEADER.unpack_from(chunk)[3]
    return decompress(chunk[_HEADER.size : _HEADER.size + size]).decode().split("\n")


def _entries(chunk: bytes) -> Iterator[tuple[str, SensorWindow]]:
    """Yields a chunk's windows by sensor id."""
    _, compressed, _, size = _HEADER.unpack_from(chunk)
    body, end = chunk[_HEADER.size + size :], 0
    if compressed:
        body = decompress(body)
    for sensor_id in sensors_of(chunk):
        flags, written, size = _ENTRY.unpack_from(body, end)
        data = end + _ENTRY.size
        end = data + size
        entry = SensorWindow(body[data:end], None, bool(flags & _DIRTY), written)
        entry.moved, entry.held, entry.ahead = bool(flags & _MOVED), bool(flags & _HELD), bool(flags & _AHEAD)
        if flags & _HAS_BEFORE:
            end = _read_before(body, end, entry.before)
        yield sensor_id, entry
    if end != len(body):
        raise ValueError("the windows are cut off")


def _before_bytes(before: Mapping[str, At | None]) -> bytes:
    parts = [_COUNT.pack(len(before))]
    for metric, at in before.items():
        name = metric.encode()
        parts += (_BEFORE.pack(len(name), at is not None), name, b"" if at is None else _AT.pack(*at))
    return b"".join(parts)


def _read_before(chunk: bytes, position: int, before: dict[str, At | None]) -> int:
    """Reads what is before a window. Returns the position after it."""
    (count,) = _COUNT.unpack_from(chunk, position)
    position += _COUNT.size
    for _ in range(count):
        size, known = _BEFORE.unpack_from(chunk, position)
        name = position + _BEFORE.size
        position = name + size
        metric = chunk[name:position].decode()
        before[metric] = None
        if known:
            before[metric] = At(*_AT.unpack_from(chunk, position))
            position += _AT.size
    return position
