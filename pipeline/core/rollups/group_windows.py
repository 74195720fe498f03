"""Level two of roll-ups: the rows of groups, each merged from the parts of all shards.

A group has one writer. It knows every shard's newest part of a window: from its state, or from the row of the group's
parts, which it reads before the first change, and before each change of a window that is over.

The state has the parts side by side, and only windows that change are decoded. A window in it, little-endian:

    version of these bytes; index of the tier; start in µs; time until which it is kept in µs; version of the group's
    row; sizes of the roll-up's name, of the group's value, of the names of metrics, and of those with rises; number of
    shards; number of shards with sketches; the name; the value; the names of both kinds, separated by commas; the
    shards and the versions of their parts (4 bytes each); as doubles, for each shard the number of sensors and of
    events, and the moments of each metric followed by its sum of squares; the increases of each metric with rises, and
    their rates, for all shards; for each metric the value for the sums of squares; [the merged sketches, as in
    :mod:`~pipeline.core.rollups.sums`; for each shard with sketches its number, the size of its part, and the part]
"""

import math
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any

import numpy as np

from pipeline.core.rollups.bucket_parts import Part
from pipeline.core.rollups.group_rules import Group, GroupRules
from pipeline.core.rollups.shard_windows import ReadRows
from pipeline.core.rollups.sums import (
    NOTHING_OF,
    WIDTH,
    Parts,
    Sums,
    aligned,
    is_sums,
    merged_moments,
    moments_of_totals,
    parts_of_metrics_bytes,
    read_parts_of_metrics,
    read_sums,
    selected,
    window_stats_of,
)
from pipeline.core.rows.rollup_rows import (
    PARTS,
    VERSION,
    RollupKey,
    Versioned,
    encoded_rollup_row,
    job_version,
    rollup_key,
    unreadable,
    versioned_row,
    versions_in,
)
from pipeline.core.rows.rows import EncodedRows, Row
from pipeline.core.statistics.courses import Risen
from pipeline.core.statistics.sketch import Sketch

STATE_VERSION = 1
"""The format of a window in the state."""

_WINDOW = struct.Struct("<BBqqIHHIIII")
_WIDTH = WIDTH + 1  # numbers of a metric
_NOTHING = array("d", [*NOTHING_OF, 0.0])
_SKETCHED = struct.Struct("<II")
_OTHER_RELEASE = "another release wrote these roll-ups; drain the job that wrote them and start a new one"

_Key = tuple[Group, int, int]  # with the index of the tier, and the start


class _GroupWindow:
    """A window of a group: the part of each shard.

    Some rows have hundreds of parts, of which a few change at a time. So it keeps what makes merging fast. For standard
    deviations, each metric has a value that was an average, and each part the sum of squares of distances from it,
    which are added up. Sketches are merged already: they count, so one is exchanged for another without any error.
    """

    def __init__(self) -> None:
        self.version = 0
        self.names: tuple[str, ...] = ()
        self.shards, self.versions = array("I"), array("I")
        self.numbers = array("d")  # for each shard: sensors, events, and of each metric the moments and the spread
        self.about = array("d")  # by metric
        self.rises: dict[str, tuple[array[float], array[float]]] = {}  # increases and rates; NaN if not known
        self.sketches: dict[str, Sketch] = {}
        self.sketched: dict[int, bytes] = {}  # parts with sketches, by shard

    def version_of(self, shard: int) -> int:
        """Returns the version of a shard's part; -1 without any."""
        return self.versions[self.shards.index(shard)] if shard in self.shards else -1

    def put(self, shard: int, version: int, data: bytes) -> bool:
        """Takes a shard's part unless a newer one is known. Returns whether it took it."""
        at = self.shards.index(shard) if shard in self.shards else len(self.shards)
        if at == len(self.shards):
            self.shards.append(shard)
            self.versions.append(0)
            self.numbers.extend([0.0] * self._stride)
            for column in chain(*self.rises.values()):
                column.append(0)
        elif self.versions[at] > version:
            return False
        sums = read_sums(data)
        if sums.names != self.names and not set(self.names).issuperset(sums.names):
            self._widen(sums.names)
        moments = aligned(sums, self.names)
        self.versions[at] = version
        numbers: list[float] = [sums.sensors, sums.events]
        for index, about in enumerate(self.about):
            of_metric = moments[WIDTH * index : WIDTH * (index + 1)]
            count, *_, average, deviation = of_metric
            if about != about and count:
                about = self.about[index] = average
            apart = average - about
            numbers += of_metric
            numbers.append(count * (apart * apart + deviation * deviation) if count else 0.0)
        self.numbers[at * len(numbers) : (at + 1) * len(numbers)] = array("d", numbers)
        if sums.parts or self.rises or self.sketches:
            self._put_parts(at, sums, data)
        return True

    @property
    def _stride(self) -> int:
        return 2 + _WIDTH * len(self.names)

    def _column(self, index: int, of_metric: int = 0) -> "array[float]":
        """Returns one of the numbers of a metric, of all shards."""
        return self.numbers[2 + _WIDTH * index + of_metric :: self._stride]

    def _put_parts(self, at: int, sums: Sums, data: bytes) -> None:
        before = self.sketched.pop(self.shards[at], None)
        for name, parts in read_sums(before).parts.items() if before else ():
            if "sketch" in parts:
                self.sketches[name].subtract(parts["sketch"])
        for name, parts in sums.parts.items():
            if "sketch" in parts:
                self.sketches.setdefault(name, Sketch()).merge(parts["sketch"])
                self.sketched[self.shards[at]] = data
            if "risen" in parts and name not in self.rises:
                self.rises[name] = self._unknown(name), self._unknown(name)
        for name, columns in self.rises.items():
            nothing = self._column(self.names.index(name))[at] == 0
            risen = sums.parts.get(name, {}).get("risen") or ((0.0, 0.0) if nothing else (math.nan, math.nan))
            for column, value in zip(columns, risen, strict=True):
                column[at] = value

    def _unknown(self, name: str) -> "array[float]":
        """Returns a column of numbers that are not known of shards that have readings of a metric."""
        return array("d", [math.nan if count else 0.0 for count in self._column(self.names.index(name))])

    def _widen(self, names: tuple[str, ...]) -> None:
        """Makes room for metrics, and leaves out those that no shard has any more."""
        kept = {name: index for index, name in enumerate(self.names) if any(self._column(index))}
        names = (*kept, *(name for name in names if name not in kept))
        stride, numbers = self._stride, array("d")
        for begin in range(0, len(self.numbers), stride):
            numbers += self.numbers[begin : begin + 2]
            for name in names:
                of_metric = begin + 2 + _WIDTH * kept.get(name, 0)
                numbers += self.numbers[of_metric : of_metric + _WIDTH] if name in kept else _NOTHING
        self.about = array("d", [self.about[kept[name]] if name in kept else math.nan for name in names])
        self.names, self.numbers = names, numbers
        self.rises = {name: self.rises[name] for name in self.names if name in self.rises}
        self.sketches = {name: self.sketches[name] for name in self.names if name in self.sketches}

    def merged(self) -> Sums:
        """Returns what all shards have together."""
        rows = np.frombuffer(self.numbers).reshape(-1, self._stride)
        with np.errstate(all="ignore"):  # what overflows is merged in another way
            totals, least, greatest = (each(axis=0).tolist() for each in (rows.sum, rows.min, rows.max))
        moments: list[float] = []
        for index, about in enumerate(self.about):
            begin = 2 + _WIDTH * index
            count, total, minima, maxima, _, _, spread = totals[begin : begin + _WIDTH]
            extremes = least[begin + 2], greatest[begin + 3]
            found = moments_of_totals(count, total, *extremes, maxima - minima, about, spread) if count else NOTHING_OF
            found = found or merged_moments([self._column(index, number) for number in range(WIDTH)], about, spread)
            moments += found
            if abs(found[4] - about) > found[5]:  # too far away for the next times
                self._move(index, found[4])
        return Sums(int(totals[0]), int(totals[1]), self.names, moments, self._merged_parts(moments))

    def _merged_parts(self, moments: Sequence[float]) -> Parts:
        found: dict[str, dict[str, Any]] = {}
        for name, (increases, rates) in self.rises.items():
            risen = Risen(sum(increases), sum(rates))
            if risen.increase == risen.increase:
                found.setdefault(name, {})["risen"] = risen
        for name, sketch in self.sketches.items():
            if sketch.count == moments[WIDTH * self.names.index(name)] > 0:  # otherwise a shard lacks it
                found.setdefault(name, {})["sketch"] = sketch
        return found

    def _move(self, index: int, about: float) -> None:
        """Computes the sums of squares of a metric again, of the distances from another value."""
        self.about[index] = about
        counts, averages, deviations = (self._column(index, number) for number in (0, 4, 5))
        self.numbers[2 + _WIDTH * index + WIDTH :: self._stride] = array(
            "d",
            [
                count * ((apart := average - about) * apart + deviation * deviation)
                for count, average, deviation in zip(counts, averages, deviations, strict=True)
            ],
        )

    def to_bytes(self, key: _Key, kept_until_us: int) -> bytes:
        (name, value), tier, start_us = key
        texts = [name.encode(), value.encode(), ",".join(self.names).encode(), ",".join(self.rises).encode()]
        sizes = *map(len, texts), len(self.shards), len(self.sketched)
        head = _WINDOW.pack(STATE_VERSION, tier, start_us, kept_until_us, self.version, *sizes)
        arrays: list[array[Any]] = [self.shards, self.versions, self.numbers, *chain(*self.rises.values()), self.about]
        parts = [head, *texts, *(column.tobytes() for column in arrays)]
        if self.sketched:
            of_all = {name: {"sketch": sketch} for name, sketch in self.sketches.items() if sketch.count}
            parts.append(parts_of_metrics_bytes(self.names, of_all))
            for shard, data in self.sketched.items():
                parts += (_SKETCHED.pack(shard, len(data)), data)
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, chunk: bytes) -> "_GroupWindow":
        window = cls()
        *_, window.version, name_size, value_size, names_size, rises_size, count, sketched = _WINDOW.unpack_from(chunk)
        begin = _WINDOW.size + name_size + value_size
        middle, end = begin + names_size, begin + names_size + rises_size
        window.names = tuple(chunk[begin:middle].decode().split(",")) if names_size else ()
        rises = chunk[middle:end].decode().split(",") if rises_size else []
        sizes = count, count, count * window._stride, *[count] * (2 * len(rises)), len(window.names)
        arrays: list[array[Any]] = []
        for kind, size in zip(chain("II", repeat("d")), sizes, strict=False):
            column = array(kind)
            begin, end = end, end + column.itemsize * size
            column.frombytes(chunk[begin:end])
            arrays.append(column)
        window.shards, window.versions, window.numbers, *of_rises, window.about = arrays
        window.rises = dict(zip(rises, zip(of_rises[::2], of_rises[1::2], strict=True), strict=True))
        if sketched:
            of_all, end = read_parts_of_metrics(window.names, chunk, end)
            window.sketches = {name: parts["sketch"] for name, parts in of_all.items()}
        for _ in range(sketched):
            shard, size = _SKETCHED.unpack_from(chunk, end)
            begin, end = end + _SKETCHED.size, end + _SKETCHED.size + size
            window.sketched[shard] = chunk[begin:end]
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
            window, changed = self._window(key, stored)
            taken = [part for part in of_shards.values() if window.put(part.shard, part.version, part.data)]
            if taken or changed:
                self._write(key, window, taken, now_us)

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

    def _window(self, key: _Key, stored: dict[_Key, Row]) -> tuple[_GroupWindow, bool]:
        """Returns a window as state and table know it, and whether others have changed it."""
        window = self._windows.get(key)
        if window is None:
            chunk = self._chunks.pop(key, None)
            window = self._windows[key] = _GroupWindow() if chunk is None else _GroupWindow.from_bytes(chunk)
        changed = False
        if row := stored.get(key):
            for column, (version, data) in versions_in(row, key[2]).items():
                if column == VERSION:
                    window.version = max(window.version, version)
                elif column.isdigit() and window.version_of(shard := int(column)) < version:
                    if not is_sums(data):
                        raise unreadable(row, column)
                    changed |= window.put(shard, version, data)
        return window, changed

    def _write(self, key: _Key, window: _GroupWindow, taken: Sequence[Part], now_us: int) -> None:
        group, tier, start_us = key
        of_tier = self._rules.tiers[tier]
        window.version = job_version(window.version, start_us, now_us)
        cells = [(b"%d" % part.shard, Versioned(part.version, part.data)) for part in taken]
        cells.append((VERSION, Versioned(window.version, b"")))
        self.rows.append(versioned_row(rollup_key(of_tier.window, *group, start_us, PARTS), start_us, cells))
        # Parts from before the roll-up merged fewer metrics still have the others, of which later parts tell nothing.
        merged = selected(window.merged(), self._rules.merged_of(group, window.names))
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
    if version != STATE_VERSION:
        raise ValueError(_OTHER_RELEASE)
    middle = _WINDOW.size + name_size
    return Group(chunk[_WINDOW.size : middle].decode(), chunk[middle : middle + value_size].decode()), tier, start_us


def _kept_until_us(chunk: bytes) -> int:
    return int(_WINDOW.unpack_from(chunk)[3])
