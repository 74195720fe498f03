"""Level two of roll-ups: the rows of groups, each merged from the parts of all shards.

A group has one writer. It knows every shard's newest part of a window: from its state, or from the row of the group's
parts, which it reads before the first change, and before each change of a window that is over.

The state has the parts side by side, and only windows that change are decoded. A window in it, little-endian:

    version of these bytes; index of the tier; start in µs; time until which it is kept in µs; version of the group's
    row; sizes of the roll-up's name, of the group's value, and of the names of metrics; number of shards; number of
    shards with more than moments; the name; the value; the names, separated by commas; the shards and the versions of
    their parts (4 bytes each), their numbers of sensors and of events (8 bytes each), and each moment and the sum of
    squares of each metric as a double, each for all shards; for each metric the value for the sums of squares; for each
    shard with more, its number, the size of its part, and the part
"""

import math
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pipeline.core.rollups.bucket_parts import Part
from pipeline.core.rollups.group_rules import Group, GroupRules
from pipeline.core.rollups.shard_windows import ReadRows
from pipeline.core.rollups.sums import (
    NOTHING_OF,
    WIDTH,
    Sums,
    aligned,
    merged_moments,
    merged_parts,
    read_sums,
    window_stats_of,
)
from pipeline.core.rows.rollup_rows import (
    PARTS,
    VERSION,
    RollupKey,
    Versioned,
    encoded_rollup_row,
    first_version,
    rollup_key,
    versioned_row,
    versions_in,
)
from pipeline.core.rows.rows import EncodedRows, Row

_VERSION = 1
_WINDOW = struct.Struct("<BBqqIHHIII")
_MORE = struct.Struct("<II")
_OTHER_RELEASE = "another release wrote these roll-ups; drain the job that wrote them and start a new one"

_Key = tuple[Group, int, int]  # with the index of the tier, and the start


class _GroupWindow:
    """A window of a group: the part of each shard.

    So that rows with hundreds of parts are merged fast, it keeps the sums of squares of distances from a value, which
    are added up: for each metric a value that was an average, and for each part the sum.
    """

    def __init__(self) -> None:
        self.version = 0
        self.names: tuple[str, ...] = ()
        self.shards, self.versions = array("I"), array("I")
        self.columns: list[array[Any]] = [array("Q"), array("Q")]  # sensors, events, and the moments
        self.about = array("d")  # by metric
        self.spreads: list[array[float]] = []  # by metric, each by shard
        self.more: dict[int, Sums] = {}
        self.more_data: dict[int, bytes] = {}

    def version_of(self, shard: int) -> int:
        """Returns the version of a shard's part; -1 without any."""
        return self.versions[self.shards.index(shard)] if shard in self.shards else -1

    def put(self, shard: int, version: int, data: bytes) -> bool:
        """Takes a shard's part unless a newer one is known. Returns whether it took it."""
        at = self.shards.index(shard) if shard in self.shards else len(self.shards)
        if at == len(self.shards):
            self.shards.append(shard)
            self.versions.append(0)
            for column in (*self.columns, *self.spreads):
                column.append(0)
        elif self.versions[at] > version:
            return False
        sums = read_sums(data)
        if sums.names != self.names and not set(self.names).issuperset(sums.names):
            self._widen(sums.names)
        moments = aligned(sums, self.names)
        self.versions[at] = version
        for column, value in zip(self.columns, (sums.sensors, sums.events, *moments), strict=True):
            column[at] = value
        for index, spread in enumerate(self.spreads):
            count, _, _, _, average, deviation = moments[WIDTH * index : WIDTH * (index + 1)]
            about = self.about[index]
            if about != about and count:
                about = self.about[index] = average
            spread[at] = count * ((average - about) ** 2 + deviation * deviation) if count else 0.0
        self.more.pop(shard, None)
        self.more_data.pop(shard, None)
        if sums.parts:
            self.more[shard], self.more_data[shard] = sums, data
        return True

    def _widen(self, names: tuple[str, ...]) -> None:
        """Makes room for metrics, and leaves out those that no shard has any more."""
        old = self.names
        kept = {name: at for at, name in enumerate(old) if any(self.columns[2 + WIDTH * at])}
        self.names = tuple(sorted({*kept, *names}))
        columns, about = self.columns[:2], array("d")
        spreads: list[array[float]] = []
        for name in self.names:
            if name in kept:
                at = kept[name]
                columns += self.columns[2 + WIDTH * at : 2 + WIDTH * (at + 1)]
                about.append(self.about[at])
                spreads.append(self.spreads[at])
            else:
                columns += [array("d", [value]) * len(self.shards) for value in NOTHING_OF]
                about.append(math.nan)
                spreads.append(array("d", [0.0]) * len(self.shards))
        self.columns, self.about, self.spreads = columns, about, spreads

    def merged(self) -> Sums:
        """Returns what all shards have together."""
        sensors, events, *columns = self.columns
        moments: list[float] = []
        for index, (about, spread) in enumerate(zip(self.about, self.spreads, strict=True)):
            of_metric = columns[WIDTH * index : WIDTH * (index + 1)]
            found = merged_moments(of_metric, about, sum(spread))
            moments += found
            if (found[4] - about) ** 2 > found[5] ** 2:  # too far away for the next times
                self._move(index, found[4])
        sums = Sums(sum(sensors), sum(events), self.names, moments)
        if not self.more_data:
            return sums
        for shard, data in self.more_data.items():
            if shard not in self.more:
                self.more[shard] = read_sums(data)
        others = [
            Sums(0, 0, self.names, list(row))
            for shard, *row in zip(self.shards, *columns, strict=True)
            if shard not in self.more
        ]
        return sums._replace(parts=merged_parts(self.names, [*self.more.values(), *others]))

    def _move(self, index: int, about: float) -> None:
        """Computes the sums of squares of a metric again, of the distances from another value."""
        at = 2 + WIDTH * index
        counts, averages, deviations = self.columns[at], self.columns[at + 4], self.columns[at + 5]
        self.about[index] = about
        self.spreads[index] = array(
            "d",
            [
                count * ((apart := average - about) * apart + deviation * deviation)
                for count, average, deviation in zip(counts, averages, deviations, strict=True)
            ],
        )

    def to_bytes(self, key: _Key, kept_until_us: int) -> bytes:
        (name, value), tier, start_us = key
        of_group, of_value, names = name.encode(), value.encode(), ",".join(self.names).encode()
        sizes = len(of_group), len(of_value), len(names), len(self.shards), len(self.more_data)
        head = _WINDOW.pack(_VERSION, tier, start_us, kept_until_us, self.version, *sizes)
        arrays = self.shards, self.versions, *self.columns, *self.spreads, self.about
        columns = [column.tobytes() for column in arrays]
        more = [each for shard, data in self.more_data.items() for each in (_MORE.pack(shard, len(data)), data)]
        return b"".join((head, of_group, of_value, names, *columns, *more))

    @classmethod
    def from_bytes(cls, chunk: bytes) -> "_GroupWindow":
        window = cls()
        *_, window.version, name_size, value_size, names_size, count, more = _WINDOW.unpack_from(chunk)
        begin = _WINDOW.size + name_size + value_size
        end = begin + names_size
        window.names = tuple(chunk[begin:end].decode().split(",")) if names_size else ()
        arrays = []
        for kind in ("I", "I", "Q", "Q", *("d" * (WIDTH + 1) * len(window.names))):
            column = array(kind)
            begin, end = end, end + column.itemsize * count
            column.frombytes(chunk[begin:end])
            arrays.append(column)
        window.shards, window.versions, *columns = arrays
        split = len(columns) - len(window.names)
        window.columns, window.spreads = columns[:split], columns[split:]
        begin, end = end, end + 8 * len(window.names)
        window.about.frombytes(chunk[begin:end])
        for _ in range(more):
            shard, size = _MORE.unpack_from(chunk, end)
            begin, end = end + _MORE.size, end + _MORE.size + size
            window.more_data[shard] = chunk[begin:end]
        return window


class RollupWindows:
    """The windows of some groups.

    Args:
        rules: the table's roll-ups.
        read: the function that reads what the table has.
        chunks: the state, as :meth:`chunks` returned it.

    Attributes:
        rows: the rows to write.
    """

    def __init__(self, rules: GroupRules, read: ReadRows, chunks: Iterable[bytes] = ()) -> None:
        self._rules, self._read = rules, read
        self._chunks = {_key_of(chunk): chunk for chunk in chunks}
        self._windows: dict[_Key, _GroupWindow] = {}
        self.rows = EncodedRows()

    def update(self, parts: Iterable[Part], now_us: int) -> None:
        """Takes parts, in any order, and merges the rows of their groups again.

        Args:
            parts: the parts. Those of roll-ups that the schema does not have are left out: an update of the job did so.
            now_us: the current time.
        """
        changes: dict[_Key, dict[int, Part]] = {}
        for part in parts:
            if not self._rules.has(part.group):
                continue
            of_window = changes.setdefault(part[:3], {})
            known = of_window.get(part.shard)
            if known is None or known.version <= part.version:
                of_window[part.shard] = part
        stored = self._stored(changes, now_us)
        for key, of_shards in changes.items():
            window, changed = self._window(key, stored, now_us)
            taken = [part for part in of_shards.values() if window.put(part.shard, part.version, part.data)]
            if taken or changed:
                self._write(key, window, taken)

    def chunks(self, now_us: int, kept_us: int) -> Iterator[bytes]:
        """Yields the state.

        Args:
            now_us: the current time.
            kept_us: the time for which the state keeps a window that is over after its last change.
        """
        for key, window in self._windows.items():
            yield window.to_bytes(key, now_us + kept_us)
        for (_, tier, start_us), chunk in self._chunks.items():
            if _kept_until_us(chunk) > now_us or not self._rules.is_over(tier, start_us, now_us):
                yield chunk

    def _stored(self, keys: Iterable[_Key], now_us: int) -> dict[_Key, Row]:
        """Reads the rows of windows that are not known, or may have been written by others."""
        found = {}
        for key in keys:
            group, tier, start_us = key
            window = self._rules.tiers[tier].window
            known = key in self._chunks or key in self._windows
            if self._rules.has_to_be_read(tier, start_us, now_us, known=known):
                found[key] = rollup_key(window, *group, start_us, PARTS)
        rows = self._read(list(found.values())) if found else {}
        return {key: rows.get(row_key) or Row(row_key, []) for key, row_key in found.items()}

    def _window(self, key: _Key, stored: dict[_Key, Row], now_us: int) -> tuple[_GroupWindow, bool]:
        """Returns a window as state and table know it, and whether others have changed it."""
        window = self._windows.get(key)
        if window is None:
            chunk = self._chunks.pop(key, None)
            window = self._windows[key] = _GroupWindow() if chunk is None else _GroupWindow.from_bytes(chunk)
        begins, changed = not window.version, False
        if row := stored.get(key):
            for column, (version, data) in versions_in(row, key[2]).items():
                if column == VERSION:
                    window.version = max(window.version, version)
                elif window.version_of(shard := int(column)) < version:
                    changed |= window.put(shard, version, data)
        if begins:
            window.version = first_version(window.version, key[2], now_us)
        return window, changed

    def _write(self, key: _Key, window: _GroupWindow, taken: Sequence[Part]) -> None:
        group, tier, start_us = key
        of_tier = self._rules.tiers[tier]
        window.version += 1
        cells = [(b"%d" % part.shard, Versioned(part.version, part.data)) for part in taken]
        cells.append((VERSION, Versioned(window.version, b"")))
        self.rows.append(versioned_row(rollup_key(of_tier.window, *group, start_us, PARTS), start_us, cells))
        merged = window.merged()
        self.rows.append(
            encoded_rollup_row(
                of_tier.window,
                RollupKey(*group, start_us),
                window.version,
                window_stats_of(merged),
                merged.sensors,
                of_tier.statistics,
                self._rules.expected_of(group),
            )
        )


def _key_of(chunk: bytes) -> _Key:
    version, tier, start_us, _, _, name_size, value_size, *_ = _WINDOW.unpack_from(chunk)
    if version != _VERSION:
        raise ValueError(_OTHER_RELEASE)
    middle = _WINDOW.size + name_size
    return Group(chunk[_WINDOW.size : middle].decode(), chunk[middle : middle + value_size].decode()), tier, start_us


def _kept_until_us(chunk: bytes) -> int:
    return int(_WINDOW.unpack_from(chunk)[3])
