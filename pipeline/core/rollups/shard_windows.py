"""Level one of roll-ups: what the sensors of a shard contribute, and the shard's part of each group.

A shard has one writer. It knows every sensor's newest contribution to a window: from its state, or from the row of the
shard's members, which it reads before the first change, and before each change of a window that is over. Such windows
may have other writers: backfills, repairs and whoever forgets sensors. Nothing is ever added up: a changed sensor
replaces what it contributed before, and the parts of its groups are merged again from all sensors of the shard.

Elements may overtake each other between steps. So a change has a number, by which older ones of the same job are left
out, and each part has the version of the shard's row.

A window in the state, little-endian:

    index of the tier; start in µs; time until which it is kept in µs; version; the time at which the job of the numbers
    began in µs; number of sensors, sizes of their ids and of the metadata that sensors had before; the ids and the
    metadata, separated by line feeds; for each sensor the version (4 bytes), the number (8), the size of the
    contribution (4); the contributions
"""

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from pipeline.core.rollups.bucket_parts import Part
from pipeline.core.rollups.contributions import NOTHING, SensorChanges, is_contribution
from pipeline.core.rollups.group_rules import Group, GroupRules
from pipeline.core.rollups.sums import Sums, merge, merge_encoded, prefix_in, selected, sums_bytes, text_in
from pipeline.core.rows.rollup_rows import (
    FORGOTTEN,
    VERSION,
    Versioned,
    job_version,
    members_key,
    unreadable,
    versioned_row,
    versions_in,
)
from pipeline.core.rows.rows import EncodedRows, Row

STATE_VERSION = 1
"""The format of a window in the state."""

_WINDOW = struct.Struct("<BBqqIqIII")
_RECENT_US = 3600 * 1_000_000
_MOST_LEFT_BYTES = 1 << 16  # of texts, in a window of a shard; each write repeats them
_OTHER_RELEASE = "another release wrote these roll-ups; drain the job that wrote them and start a new one"

ReadRows = Callable[[Sequence[bytes]], Mapping[bytes, Row]]
"""Returns the rows that a table has of these keys, with all versions of their cells or the newest ones."""


class _Entry(NamedTuple):
    data: bytes
    version: int
    number: int


_new = tuple.__new__  # makes an _Entry in half the time of its own constructor


class _ShardWindow:
    """A window of a shard: what each sensor contributes, and the metadata that sensors had before.

    The row tells the latter too, in its cell of the version: a job that is stopped may have written that a sensor has
    moved, and not what is left of the group that it was in.
    """

    def __init__(self) -> None:
        self.version = 0
        self.began_us = 0
        self.left: dict[bytes, None] = {}
        self.entries: dict[bytes, _Entry] = {}
        self.changed: dict[bytes, None] = {}  # metadata of the groups that have to be merged again

    def put(self, sensor: bytes, known: _Entry | None, entry: _Entry) -> None:
        """Replaces what a sensor contributes."""
        self.entries[sensor] = entry
        before = text_in(known.data) if known is not None and known.data else None
        text = text_in(entry.data) if entry.data else None
        if text is not None:
            self.changed[text] = None
        if before is not None and before != text:
            self.changed[before] = None
            self.left.pop(before, None)
            self.left[before] = None

    def to_bytes(self, tier: int, start_us: int, kept_until_us: int) -> bytes:
        datas, versions, numbers = zip(*self.entries.values(), strict=True) if self.entries else ((), (), ())
        ids, left = b"\n".join(self.entries), b"\n".join(self.left)
        return b"".join(
            (
                _WINDOW.pack(
                    STATE_VERSION,
                    tier,
                    start_us,
                    kept_until_us,
                    self.version,
                    self.began_us,
                    len(datas),
                    len(ids),
                    len(left),
                ),
                ids,
                left,
                array("I", versions).tobytes(),
                array("Q", numbers).tobytes(),
                array("I", map(len, datas)).tobytes(),
                *datas,
            )
        )

    @classmethod
    def from_bytes(cls, chunk: bytes) -> "_ShardWindow":
        window = cls()
        *_, window.version, window.began_us, count, size, left_size = _WINDOW.unpack_from(chunk)
        ends = list(accumulate((size, left_size, 4 * count, 8 * count, 4 * count), initial=_WINDOW.size))
        ids = chunk[ends[0] : ends[1]].split(b"\n") if count else []
        if left_size:
            window.left = dict.fromkeys(chunk[ends[1] : ends[2]].split(b"\n"))
        versions, numbers, sizes = (
            array(kind, chunk[begin:end]) for kind, (begin, end) in zip("IQI", pairwise(ends[2:]), strict=True)
        )
        datas = [chunk[begin:end] for begin, end in pairwise(accumulate(sizes, initial=ends[-1]))]
        window.entries = {
            sensor: _new(_Entry, entry)
            for sensor, entry in zip(ids, zip(datas, versions, numbers, strict=True), strict=True)
        }
        return window


class _Changed(NamedTuple):
    """A window that changes, the version that it gets, whether it was not known before, and the cells to write."""

    window: _ShardWindow
    version: int
    begins: bool
    cells: dict[bytes, Versioned]


class ShardWindows:
    """The windows of a shard.

    Args:
        rules: the table's roll-ups.
        shard: the number of the shard.
        read: the function that reads what the table has.
        chunks: the state, as :meth:`chunks` returned it.

    Attributes:
        rows: the rows to write.
        parts: the parts that changed.
    """

    def __init__(self, rules: GroupRules, shard: int, read: ReadRows, chunks: Iterable[bytes] = ()) -> None:
        self._rules, self._shard, self._read = rules, shard, read
        self._chunks = {_window_of(chunk): chunk for chunk in chunks}
        self._windows: dict[tuple[int, int], _ShardWindow] = {}
        self.rows = EncodedRows()
        self.parts: list[Part] = []

    def update(self, changes: Sequence[SensorChanges], now_us: int) -> None:
        """Takes changes, in order.

        Args:
            changes: the changes.
            now_us: the current time.
        """
        stored, changed = self._stored(changes, now_us), dict[tuple[int, int], _Changed]()
        for each in changes:
            key = each[:2]
            if key not in changed:
                begins = key not in self._chunks and key not in self._windows
                window = self._window(key, stored)
                changed[key] = _Changed(window, job_version(window.version, each.start_us, now_us), begins, {})
            window, version, begins, cells = changed[key]
            if each.order and each.order.began_us != window.began_us:
                window.began_us = each.order.began_us
                window.entries = {sensor: entry._replace(number=0) for sensor, entry in window.entries.items()}
            entries, number = window.entries, each.order.number + 1 if each.order else 0
            for sensor, data in each.contributions.items():
                known = entries.get(sensor)
                if known is None:
                    if not data:
                        continue
                elif 0 < number <= known.number:
                    continue  # it was overtaken, or comes twice
                elif known.data == data and not begins:
                    entries[sensor] = known._replace(number=number or known.number)
                    continue
                window.put(sensor, known, _new(_Entry, (data, version, number or (known.number if known else 0))))
                cells[sensor] = Versioned(version, data)
        for key, of_window in changed.items():
            if of_window.window.changed:
                self._merge(*key, of_window, now_us)

    def chunks(self, now_us: int, kept_us: int) -> Iterator[bytes]:
        """Yields the state.

        Args:
            now_us: the current time.
            kept_us: the time for which the state keeps a window that is over after its last change.
        """
        for (tier, start_us), window in self._windows.items():
            yield window.to_bytes(tier, start_us, now_us + kept_us)
        for key, chunk in self._chunks.items():
            if _kept_until_us(chunk) > now_us or not self._rules.is_over(*key, now_us):
                yield chunk

    def _stored(self, changes: Iterable[SensorChanges], now_us: int) -> dict[tuple[int, int], Row]:
        """Reads the rows of windows that are not known, or may have been written by others."""
        keys = {}
        for tier, start_us, *_ in changes:
            key, window = (tier, start_us), self._rules.tiers[tier].window
            if self._rules.has_to_be_read(*key, now_us, known=key in self._chunks or key in self._windows):
                keys[key] = members_key(window, self._shard, start_us)
        rows = self._read(list(keys.values())) if keys else {}
        return {key: rows.get(row_key) or Row(row_key, []) for key, row_key in keys.items()}

    def _window(self, key: tuple[int, int], stored: Mapping[tuple[int, int], Row]) -> _ShardWindow:
        """Returns a window as state and table know it."""
        window = self._windows.get(key)
        if window is None:
            chunk = self._chunks.pop(key, None)
            window = self._windows[key] = _ShardWindow() if chunk is None else _ShardWindow.from_bytes(chunk)
        row = stored.get(key)
        if row is None:
            return window
        begins = not window.version
        cells = versions_in(row, key[1])
        forgotten = cells.pop(FORGOTTEN, Versioned(0, NOTHING)).version
        for sensor, entry in window.entries.items():
            if entry.data and entry.version <= forgotten and sensor not in cells:
                window.put(sensor, entry, _Entry(NOTHING, entry.version - 1, entry.number))  # it may still arrive
        for sensor, (version, data) in cells.items():
            known = window.entries.get(sensor)
            if sensor == VERSION:
                window.left.update(dict.fromkeys(data.split(b"\n")) if data else {})
            elif known is None or known.version < version:
                if not is_contribution(data):
                    raise unreadable(row, sensor)
                window.put(sensor, known, _Entry(data, version, known.number if known else 0))
            window.version = max(window.version, version)
        if begins:
            window.changed.clear()  # by nobody else
        return window

    def _merge(self, tier: int, start_us: int, changed: "_Changed", now_us: int) -> None:
        """Writes changes, and merges the parts of groups again, first of sensors with the same metadata and metrics."""
        window, version, begins, cells = changed
        entries = window.entries
        if begins and self._rules.tiers[tier].window.end_of(start_us) + _RECENT_US > now_us:
            window.changed.update(window.left)
            window.changed.update(dict.fromkeys(text_in(entry.data) for entry in entries.values() if entry.data))
        window.version = version
        window.left = dict.fromkeys(newest_left(window.left))
        tells = VERSION, Versioned(version, b"\n".join(window.left))
        key = members_key(self._rules.tiers[tier].window, self._shard, start_us)
        self.rows.append(versioned_row(key, start_us, [*cells.items(), tells]))
        groups = [group for text in window.changed for group in self._rules.groups_of(tier, text)]
        window.changed.clear()
        contributions = [entry.data for entry in entries.values() if entry.data]
        for group, sums in parts_of(self._rules, tier, contributions, groups).items():
            self.parts.append(Part(group, tier, start_us, self._shard, version, sums_bytes(sums)))


def parts_of(
    rules: GroupRules, tier: int, contributions: Iterable[bytes], groups: Iterable[Group] | None = None
) -> dict[Group, Sums]:
    """Returns what sensors have together, by group: those with the same metadata and metrics are merged first.

    Args:
        rules: the table's roll-ups.
        tier: the index of the tier.
        contributions: the contributions of the sensors; none of them is empty.
        groups: the groups to merge, also those of no sensor; None for all groups of the sensors.
    """
    of_prefix: dict[bytes, list[bytes]] = {}
    for data in contributions:
        of_prefix.setdefault(prefix_in(data), []).append(data)
    of_groups: dict[Group, list[Sums]] = {group: [] for group in groups or ()}
    for prefix, datas in of_prefix.items():
        of_text = rules.groups_of(tier, text_in(prefix))
        wanted = of_text if groups is None else [group for group in of_text if group in of_groups]
        if wanted:
            sums = merge_encoded(prefix, datas)
            for group in wanted:
                of_groups.setdefault(group, []).append(sums)
    merged = ((group, merge(found)) for group, found in of_groups.items())
    return {group: selected(sums, rules.merged_of(group, sums.names)) for group, sums in merged}


def newest_left(texts: Iterable[bytes]) -> list[bytes]:
    """Returns the last of the metadata that sensors have left, as much as a row tells.

    The groups of what sensors left long ago have been merged without them since.
    """
    found = list(texts)
    sizes = accumulate(len(text) + 1 for text in reversed(found))
    return found[len(found) - sum(size <= _MOST_LEFT_BYTES for size in sizes) :]


def _window_of(chunk: bytes) -> tuple[int, int]:
    version, tier, start_us, *_ = _WINDOW.unpack_from(chunk)
    if version != STATE_VERSION:
        raise ValueError(_OTHER_RELEASE)
    return tier, start_us


def _kept_until_us(chunk: bytes) -> int:
    return int(_WINDOW.unpack_from(chunk)[3])
