"""Level two of roll-ups: a group's rows, each merged from the parts of all shards.

A group has one writer. It knows every shard's newest part of a window: from its state, or from the row of parts, which
it reads before the first change, and before each change of a window that is over.

Little-endian:

    part    version of these bytes; number of sensors; statistics, as
            :mod:`pipeline.core.accumulation.accumulator_bytes` describes
    state   version; windows until the end
    window  index of the tier; start in µs; version; time until which it is kept in µs; number of entries; entries
    entry   shard; version; size of the part; the part
    update  version; index of the tier; start in µs; shard; version of the part; the part
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.core.accumulation.accumulator_bytes import Reader, read_stats, stats_bytes
from pipeline.core.rollups.shard_windows import Group, Part
from pipeline.core.rows.rollup_rows import PARTS, RollupKey, Versioned, encoded_rollup_row, rollup_key, versioned_row
from pipeline.core.rows.rows import EncodedRows
from pipeline.core.schema.rollup import Rollup
from pipeline.core.schema.table_schema import Tier
from pipeline.core.statistics.window_stats import WindowStats

_VERSION = 1
_PART = struct.Struct("<BI")
_UPDATE = struct.Struct("<BBqII")
_WINDOW = struct.Struct("<BqIqI")
_ENTRY = struct.Struct("<III")
_ROW_VERSION = b"version"  # the column of the row of parts that tells the version of the group's row

ReadParts = Callable[[int, int], Mapping[bytes, Versioned]]
"""Returns the cells of a group's row of parts, by column: takes the index of the tier and the start."""


class _Entry(NamedTuple):
    version: int
    data: bytes


@dataclass
class _Window:
    version: int = 0
    kept_until_us: int = 0
    entries: dict[int, _Entry] = field(default_factory=dict)


def update_bytes(part: Part) -> bytes:
    """Encodes a part as an element for its group."""
    head = _UPDATE.pack(_VERSION, part.tier, part.start_us, part.shard, part.version)
    return head + _PART.pack(_VERSION, part.sensors) + stats_bytes(part.stats)


class GroupWindows:
    """The windows of a group.

    Args:
        rollup: the group's roll-up.
        group: the group.
        tiers: the table's tiers, shortest first.
        read: reads what the table has.
        data: the state, as :meth:`to_bytes` returned it; None for a group that begins.
        expected: the number of sensors that the schema declares for the group; None if it does not tell.

    Attributes:
        rows: the rows to write.
    """

    def __init__(
        self,
        rollup: Rollup,
        group: Group,
        tiers: Sequence[Tier],
        read: ReadParts,
        data: bytes | None = None,
        expected: int | None = None,
    ) -> None:
        self._rollup, self._group, self._tiers, self._read, self._expected = rollup, group, tiers, read, expected
        self.rows = EncodedRows()
        self._windows = {} if data is None else _read_windows(data)

    def add(self, updates: Iterable[bytes], now_us: int, kept_us: int) -> None:
        """Takes updates of parts, and writes the group's rows.

        Args:
            updates: the updates, as :func:`update_bytes` encodes them.
            now_us: the current time.
            kept_us: the time for which the state keeps a window after the last change.
        """
        by_window: dict[tuple[int, int], dict[int, tuple[int, bytes]]] = {}
        for update in updates:
            version, tier, start_us, shard, of_part = _UPDATE.unpack_from(update)
            if version != _VERSION:
                raise ValueError("another release wrote these parts; drain the job that wrote them and start a new one")
            of_window = by_window.setdefault((tier, start_us), {})
            if shard not in of_window or of_window[shard][0] < of_part:
                of_window[shard] = of_part, update[_UPDATE.size :]
        for (tier, start_us), changes in by_window.items():
            window = self._known(tier, start_us, now_us)
            changed = {
                shard: part
                for shard, part in changes.items()
                if shard not in window.entries or window.entries[shard].version <= part[0]
            }
            for shard, (version, data) in changed.items():
                window.entries[shard] = _Entry(version, data)
            window.kept_until_us = now_us + kept_us
            self._write(tier, start_us, window, changed)
        self._windows = {key: window for key, window in self._windows.items() if window.kept_until_us > now_us}

    def merged(self, tier: int, start_us: int) -> tuple[WindowStats, int]:
        """Returns a window's statistics and number of sensors, merged from the parts in the state."""
        total, sensors = WindowStats(), 0
        for _, (_, data) in sorted(self._windows[tier, start_us].entries.items()):
            reader = Reader(data)
            _, of_part = reader.unpack(_PART)
            if of_part:
                total.merge(read_stats(reader))
                sensors += of_part
        return total, sensors

    def to_bytes(self) -> bytes:
        """Encodes the windows."""
        parts = [bytes([_VERSION])]
        for (tier, start_us), window in self._windows.items():
            head = tier, start_us, window.version, window.kept_until_us, len(window.entries)
            parts.append(_WINDOW.pack(*head))
            for shard, (version, data) in window.entries.items():
                parts += (_ENTRY.pack(shard, version, len(data)), data)
        return b"".join(parts)

    def _known(self, tier: int, start_us: int, now_us: int) -> _Window:
        window = self._windows.get((tier, start_us))
        if window is None or self._tiers[tier].window.end_of(start_us) <= now_us:
            window = window or self._windows.setdefault((tier, start_us), _Window())
            for column, (version, data) in self._read(tier, start_us).items():
                if column == _ROW_VERSION:
                    window.version = max(window.version, version)
                    continue
                shard = int(column)
                if shard not in window.entries or window.entries[shard].version < version:
                    window.entries[shard] = _Entry(version, data)
        return window

    def _write(self, tier: int, start_us: int, window: _Window, changed: Mapping[int, tuple[int, bytes]]) -> None:
        of_tier, (name, value) = self._tiers[tier], self._group
        window.version += 1
        cells = [(b"%d" % shard, Versioned(version, data)) for shard, (version, data) in changed.items()]
        cells.append((_ROW_VERSION, Versioned(window.version, b"")))
        self.rows.append(versioned_row(rollup_key(of_tier.window, name, value, start_us, PARTS), start_us, cells))
        stats, sensors = self.merged(tier, start_us)
        stats.metrics = {metric: of for metric, of in stats.metrics.items() if self._rollup.merges(metric)}
        key = RollupKey(name, value, start_us)
        self.rows.append(
            encoded_rollup_row(of_tier.window, key, window.version, stats, sensors, of_tier.statistics, self._expected)
        )


def _read_windows(data: bytes) -> dict[tuple[int, int], _Window]:
    if data[:1] != bytes([_VERSION]):
        raise ValueError("another release wrote these roll-ups; drain the job that wrote them and start a new one")
    found: dict[tuple[int, int], _Window] = {}
    end = 1
    while end < len(data):
        tier, start_us, version, kept_until_us, count = _WINDOW.unpack_from(data, end)
        window = found[tier, start_us] = _Window(version, kept_until_us)
        end += _WINDOW.size
        for _ in range(count):
            shard, of_part, size = _ENTRY.unpack_from(data, end)
            end += _ENTRY.size + size
            window.entries[shard] = _Entry(of_part, data[end - size : end])
    return found
