"""The windows of a group of sensors, as a job's state contains them.

:mod:`pipeline.core.panes.group_firing` fires their panes.

The state is bytes: a sequence of chunks, of which none is much larger than :data:`_CHUNK_BYTES` unless a single
sensor's window is. An accumulator stays bytes until its sensor sends something. Little-endian, without padding:

    chunk   version; index of the tier; flags, 1 for closed windows, 2 for compressed entries; start in µs; entries
            until the end, by zlib if they are compressed
    entry   size of the sensor's id; flags, 1 for dirty, 2 for stored, 4 for exact, 8 for again, 16 for moved, 32 for
            edges, 64 for unsure; number of events and readings in the last pane (-1: none); size of the accumulator;
            the id; the accumulator; for a closed window, the time until which it is kept in µs; if it has edges, their
            number and the edges
    edge    size of the metric's name; what it has, 1 for the reading before, 2 for the last one, 4 for no reading
            before; the name; time in µs and value of each reading that it has
"""

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any
from zlib import compress, decompress

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.accumulation.shorter_windows import ShorterWindows
from pipeline.core.panes.firing import NEVER_US
from pipeline.core.panes.sensor_window import SensorWindow, StartWindows
from pipeline.core.schema.table_schema import Tier
from pipeline.core.statistics.courses import At
from pipeline.core.statistics.window_stats import WindowStats

VERSION = 3

_HEADER = struct.Struct("<BBBq")
_LATE, _COMPRESSED = 1, 2
_KEPT = struct.Struct("<q")
_ENTRY = struct.Struct("<HBqI")
_EDGES = struct.Struct("<I")
_EDGE = struct.Struct("<BB")
_AT = struct.Struct("<qd")
_CHUNK_BYTES = 4 << 20
_FEW_BYTES = 300  # which are not worth compressing
PACKED_BYTES = 8 << 10
"""Sensors' windows that are larger are mostly packed blocks: they are not compressed."""

_FLAGS = [[bool(flags & 1 << bit) for bit in range(5)] for flags in range(32)]


class GroupWindows:
    """The windows of one group, or some of them.

    Args:
        tiers: the table's tiers, shortest first.
        lateness_us: the time for which a window is kept after the watermark has passed its end.
        chunks: the state, as the methods below returned it.

    Attributes:
        of_tier: each tier's windows, by their start in µs.
        has_open: whether the open windows are among them.
        others_from_us: the start of the first closed window that may not be among them.
        written_bytes: the bytes of all chunks that the methods below have yielded.
    """

    def __init__(self, tiers: Sequence[Tier], lateness_us: int, chunks: Iterable[bytes] = ()) -> None:
        self._ends = [tier.window.end_of for tier in tiers]
        self._lateness_us = lateness_us
        self.has_open, self.others_from_us = True, NEVER_US
        self.written_bytes = 0
        self.of_tier: list[dict[int, StartWindows[Any]]] = [{} for _ in tiers]
        self.read(chunks)

    def read(self, chunks: Iterable[bytes]) -> None:
        """Adds windows of the state."""
        for chunk in chunks:
            tier, late, start_us = _header(chunk)
            self.of_tier[tier].setdefault(start_us, StartWindows(late)).entries.update(_entries(chunk))

    def read_resting(self, chunks: Iterable[bytes], wanted: Collection[tuple[int, int]] | None, now_us: int) -> None:
        """Adds windows that rest and are still kept; to those for which something came since, what rests of them.

        Args:
            chunks: the state.
            wanted: the index of the tier, and the start in µs, of the windows to add; None for all.
            now_us: the current time.
        """
        for chunk in chunks:
            tier, late, start_us = _header(chunk)
            if wanted is None or (tier, start_us) in wanted:
                entries = self.of_tier[tier].setdefault(start_us, StartWindows(late)).entries
                for sensor_id, entry in _entries(chunk):
                    if entry.kept_until_us <= now_us:
                        continue
                    entry.rests = True
                    closed = entries.setdefault(sensor_id, entry)
                    if closed is not entry and closed.is_mergeable and entry.is_mergeable:
                        closed.resting = entry.data

    def closed(self) -> set[tuple[int, int]]:
        """Returns the index of the tier, and the start in µs, of the closed windows."""
        found = enumerate(self.of_tier)
        return {(tier, start_us) for tier, windows in found for start_us, window in windows.items() if window.late}

    def put(self, tier: int, start_us: int, sensor_id: str, shorter_us: int, stats: WindowStats) -> None:
        """Adds the result of a shorter window to a longer one, which begins without any."""
        entries = self.of_tier[tier].setdefault(start_us, StartWindows()).entries
        if sensor_id not in entries:
            entries[sensor_id] = SensorWindow(ShorterWindows, value=ShorterWindows())
        entries[sensor_id].accumulator.put(shorter_us, stats)

    def put_lasts(self, from_us: int, lasts: Mapping[str, dict[str, At]]) -> None:
        """Adds sensors' last readings before a time, from which windows of the shortest tier continue."""
        entries = self.of_tier[0].setdefault(from_us, StartWindows()).entries
        for sensor_id, of_sensor in lasts.items():
            entries[sensor_id] = SensorWindow(WindowReadings, last=of_sensor)

    def first_us(self, tier: int) -> int:
        """Returns the start of a tier's first window, or of an earlier one that may not be among these."""
        return min([self.others_from_us, *self.of_tier[tier]])

    def ends_by(self, tier: int, start_us: int, time_us: int) -> bool:
        """Returns whether a window ends by an event time."""
        return self._ends[tier](start_us) <= time_us

    def close(self, closed_us: int, kept_until_us: int) -> None:
        """Closes the open windows that end by ``closed_us``, and keeps them until ``kept_until_us``."""
        for tier, windows in enumerate(self.of_tier):
            for start_us, window in windows.items():
                if not window.late and self.ends_by(tier, start_us, closed_us):
                    window.late = True
                    for entry in window.entries.values():
                        entry.kept_until_us, entry.closes = kept_until_us, True

    def drop(self, now_us: int, *, but_again: bool = False) -> None:
        """Drops the sensors' closed windows that were kept until ``now_us``; if asked, not those to read once more."""
        for windows in self.of_tier:
            for start_us, window in list(windows.items()):
                if window.late:
                    window.entries = {
                        key: entry
                        for key, entry in window.entries.items()
                        if entry.kept_until_us > now_us or (but_again and entry.again)
                    }
                    if not window.entries:
                        del windows[start_us]

    def drop_all(self) -> None:
        """Drops every window: the watermark has passed the end of time, so nothing more comes."""
        for windows in self.of_tier:
            windows.clear()

    def next_watermark_us(self, passed_us: int, *, all_ends: bool = False) -> int:
        """Returns the next watermark at which an open window fires or closes; :data:`NEVER_US` without one.

        If asked for all ends, each window fires at its end, even if nothing came since its last pane.
        """
        found = NEVER_US
        for end_of, windows in zip(self._ends, self.of_tier, strict=True):
            for start_us, window in windows.items():
                end_us = end_of(start_us)
                if window.late:
                    continue
                if end_us > passed_us and (all_ends or any(entry.dirty for entry in window.entries.values())):
                    found = min(found, end_us)
                else:
                    found = min(found, end_us + self._lateness_us)
        return found

    def next_time_us(self) -> int:
        """Returns the next time at which closed windows have to be read; :data:`NEVER_US` without any.

        That is when one is read once more from the table, or when all can be dropped.
        """
        late = (window for windows in self.of_tier for window in windows.values() if window.late)
        found = [entry for window in late for entry in window.entries.values() if _stays(entry)]
        again_us = (entry.kept_until_us for entry in found if entry.again)
        return min(again_us, default=max((entry.kept_until_us for entry in found), default=NEVER_US))

    def open_chunks(self) -> Iterator[bytes]:
        """Yields the open windows."""
        return self._chunks(late=False)

    def closed_chunks(self) -> Iterator[bytes]:
        """Yields the closed windows that do not rest."""
        return self._chunks(late=True, which=_stays)

    def resting_chunks(self) -> Iterator[bytes]:
        """Yields the windows that begin to rest."""
        return self._chunks(late=True, which=_begins_to_rest)

    def _chunks(self, *, late: bool, which: Callable[[SensorWindow[Any]], bool] | None = None) -> Iterator[bytes]:
        for tier, windows in enumerate(self.of_tier):
            for start_us, window in windows.items():
                if window.late != late:
                    continue
                parts, count, size = list[bytes](), 0, 0
                for sensor_id, entry in window.entries.items():
                    if which is None or which(entry):
                        encoded = _entry_parts(sensor_id, entry, late=late)
                        parts += encoded
                        count += 1
                        size += sum(map(len, encoded))
                        if size >= _CHUNK_BYTES:
                            yield self._chunk(tier, start_us, parts, size // count, late=late)
                            parts, count, size = [], 0, 0
                if parts:
                    yield self._chunk(tier, start_us, parts, size // count, late=late)

    def _chunk(self, tier: int, start_us: int, parts: Iterable[bytes], entry_bytes: int, *, late: bool) -> bytes:
        body = b"".join(parts)
        flags = _LATE if late else 0
        if entry_bytes < PACKED_BYTES and len(body) > _FEW_BYTES:
            body, flags = compress(body, 1), flags | _COMPRESSED
        self.written_bytes += _HEADER.size + len(body)
        return _HEADER.pack(VERSION, tier, flags, start_us) + body

    def large(self, size_bytes: int) -> Iterator[tuple[str, int, int]]:
        """Yields the sensor id, the start in µs and the bytes of each accumulator of more than so many bytes."""
        for windows in self.of_tier:
            for start_us, window in windows.items():
                for sensor_id, entry in window.entries.items():
                    if len(entry.data) > size_bytes:
                        yield sensor_id, start_us, len(entry.data)


def _begins_to_rest(entry: SensorWindow[Any]) -> bool:
    return entry.closes and not entry.again


def _stays(entry: SensorWindow[Any]) -> bool:
    return not (entry.rests or _begins_to_rest(entry))


def _entry_parts(sensor_id: str, entry: SensorWindow[Any], *, late: bool) -> list[bytes]:
    if entry.value is not None:
        entry.data = entry.value.to_bytes()
    id_bytes = sensor_id.encode()
    edges = _edges_bytes(entry) if entry.before or entry.last else b""
    flags = entry.dirty | entry.stored << 1 | entry.exact << 2 | entry.again << 3
    flags |= entry.moved << 4 | bool(edges) << 5 | entry.unsure << 6
    head = _ENTRY.pack(len(id_bytes), flags, entry.written, len(entry.data))
    return [head, id_bytes, entry.data, _KEPT.pack(entry.kept_until_us) if late else b"", edges]


def _header(chunk: bytes) -> tuple[int, bool, int]:
    """Returns the index of a chunk's tier, whether its windows are closed, and their start in µs."""
    version, tier, flags, start_us = _HEADER.unpack_from(chunk)
    if version != VERSION:
        raise ValueError("another release wrote these windows; drain the job that wrote them and start a new one")
    return tier, bool(flags & _LATE), start_us


def window_of(chunk: bytes) -> tuple[int, int]:
    """Returns the index of the tier of a chunk's windows, and their start in µs."""
    tier, _, start_us = _header(chunk)
    return tier, start_us


def _entries(chunk: bytes) -> Iterator[tuple[str, SensorWindow[Any]]]:
    """Yields a chunk's windows by sensor id."""
    _, tier, flags, _ = _HEADER.unpack_from(chunk)
    kind: Any = ShorterWindows if tier else WindowReadings
    body = decompress(chunk[_HEADER.size :]) if flags & _COMPRESSED else chunk[_HEADER.size :]
    end = 0
    while end < len(body):
        id_size, of_entry, written, size = _ENTRY.unpack_from(body, end)
        sensor_id = end + _ENTRY.size
        data = sensor_id + id_size
        end = data + size
        dirty, stored, exact, again, moved = _FLAGS[of_entry & 31]
        entry = SensorWindow(kind, body[data:end], None, dirty, written, stored, exact, again, moved)
        entry.unsure = bool(of_entry & 64)
        if flags & _LATE:
            (entry.kept_until_us,) = _KEPT.unpack_from(body, end)
            end += _KEPT.size
        if of_entry & 32:
            end = _read_edges(body, end, entry)
        yield body[sensor_id:data].decode(), entry
    if end != len(body):
        raise ValueError("the windows are cut off")


def _edges_bytes(entry: SensorWindow) -> bytes:
    metrics = entry.before.keys() | entry.last.keys()
    parts = [_EDGES.pack(len(metrics))]
    for metric in metrics:
        name, before, last = metric.encode(), entry.before.get(metric), entry.last.get(metric)
        has = (before is not None) | (last is not None) << 1 | (before is None and metric in entry.before) << 2
        parts += (_EDGE.pack(len(name), has), name, *(_AT.pack(*at) for at in (before, last) if at is not None))
    return b"".join(parts)


def _read_edges(chunk: bytes, position: int, entry: SensorWindow) -> int:
    """Reads an entry's edges. Returns the position after them."""
    (count,) = _EDGES.unpack_from(chunk, position)
    position += _EDGES.size
    for _ in range(count):
        size, has = _EDGE.unpack_from(chunk, position)
        position += _EDGE.size
        metric = chunk[position : position + size].decode()
        position += size
        if has & 4:
            entry.before[metric] = None
        if has & 1:
            entry.before[metric] = At(*_AT.unpack_from(chunk, position))
            position += _AT.size
        if has & 2:
            entry.last[metric] = At(*_AT.unpack_from(chunk, position))
            position += _AT.size
    return position
