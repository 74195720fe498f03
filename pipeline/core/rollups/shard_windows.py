"""Level one of roll-ups: what the sensors of a shard contribute, and the shard's part of each group.

A shard has one writer. It knows every sensor's newest contribution to a window: from its state, or from the row that it
wrote, which it reads before the first change, and before each change of a window that is over. Such windows may have
other writers: backfills, repairs and whoever forgets sensors. Nothing is ever added up: a changed sensor replaces what
it contributed before, and the parts of its groups are merged again from all sensors of the shard.

State, little-endian:

    state   version; windows until the end
    window  index of the tier; start in µs; version; time until which it is kept in µs; number of entries; entries
    entry   size of the sensor's id; size of the contribution; version; the job's begin in µs and number of the order;
            the id; the contribution
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.core.rollups.contributions import Contributed, Order, member_in, read_contribution
from pipeline.core.rows.rollup_rows import Versioned, members_key, versioned_row
from pipeline.core.rows.rows import EncodedRows
from pipeline.core.schema.rollup import Rollup
from pipeline.core.schema.table_schema import Tier
from pipeline.core.statistics.member import member_fields
from pipeline.core.statistics.window_stats import WindowStats

_VERSION = 1
_WINDOW = struct.Struct("<BqIqI")
_ENTRY = struct.Struct("<HIIQQ")
_NO_ORDER = Order(0, 0)

ReadMembers = Callable[[int, int], Mapping[str, Versioned]]
"""Returns what the table has of a shard's sensors in a window, by sensor: takes the index of the tier and the start."""


class Group(NamedTuple):
    """A group of sensors: the roll-up's name, and the value as row keys contain it."""

    name: str
    value: str


class Part(NamedTuple):
    """What the sensors of a shard contribute to a group in a window.

    Attributes:
        group: the group.
        tier: the index of the tier.
        start_us: the window's start.
        shard: the shard.
        version: the version; of two, the greater counts.
        sensors: the number of sensors.
        stats: their statistics, merged.
    """

    group: Group
    tier: int
    start_us: int
    shard: int
    version: int
    sensors: int
    stats: WindowStats


class _Entry(NamedTuple):
    data: bytes
    version: int
    order: Order


@dataclass
class _Window:
    version: int = 0
    kept_until_us: int = 0
    entries: dict[str, _Entry] = field(default_factory=dict)


class ShardWindows:
    """The windows of a shard.

    Args:
        rollups: the table's roll-ups.
        tiers: the table's tiers, shortest first.
        shard: the number of the shard.
        read: reads what the table has.
        data: the state, as :meth:`to_bytes` returned it; None for a shard that begins.

    Attributes:
        rows: the rows to write.
        parts: the parts that changed.
    """

    def __init__(
        self,
        rollups: Sequence[Rollup],
        tiers: Sequence[Tier],
        shard: int,
        read: ReadMembers,
        data: bytes | None = None,
    ) -> None:
        self._tiers, self._shard, self._read = tiers, shard, read
        self._of_tier = [
            [each for each in rollups if not each.tiers or tier.window.text in each.tiers] for tier in tiers
        ]
        self.rows = EncodedRows()
        self.parts: list[Part] = []
        self._windows = {} if data is None else _read_windows(data)

    def add(self, contributed: Iterable[Contributed], order: Order, now_us: int, kept_us: int) -> None:
        """Takes contributions.

        Args:
            contributed: the contributions.
            order: their order among those of the same job.
            now_us: the current time.
            kept_us: the time for which the state keeps a window after the last change.
        """
        by_window: dict[tuple[int, int], dict[str, bytes]] = {}
        for tier, start_us, sensor_id, data in contributed:
            by_window.setdefault((tier, start_us), {})[sensor_id] = data
        for (tier, start_us), changes in by_window.items():
            self._change(tier, start_us, changes, order, now_us).kept_until_us = now_us + kept_us
        self._windows = {key: window for key, window in self._windows.items() if window.kept_until_us > now_us}

    def replace(self, tier: int, start_us: int, contributed: Mapping[str, bytes], now_us: int) -> None:
        """Takes the contributions of all sensors of the shard that have any in a window."""
        window = self._known(tier, start_us, now_us)[0]
        gone = {sensor_id: b"" for sensor_id, entry in window.entries.items() if entry.data}
        changes = {
            sensor_id: data
            for sensor_id, data in {**gone, **contributed}.items()
            if sensor_id not in window.entries or window.entries[sensor_id].data != data
        }
        self._change(tier, start_us, changes, _NO_ORDER, now_us)

    def to_bytes(self) -> bytes:
        """Encodes the windows."""
        parts = [bytes([_VERSION])]
        for (tier, start_us), window in self._windows.items():
            parts.append(_WINDOW.pack(tier, start_us, window.version, window.kept_until_us, len(window.entries)))
            for sensor_id, (data, version, order) in window.entries.items():
                encoded = sensor_id.encode()
                parts += (_ENTRY.pack(len(encoded), len(data), version, *order), encoded, data)
        return b"".join(parts)

    def _known(self, tier: int, start_us: int, now_us: int) -> tuple[_Window, dict[str, bytes]]:
        """Returns a window as state and table know it; and what others have written, as it was before."""
        window = self._windows.get((tier, start_us))
        others: dict[str, bytes] = {}
        if window is None or self._tiers[tier].window.end_of(start_us) <= now_us:
            begins = window is None
            window = window or self._windows.setdefault((tier, start_us), _Window())
            for sensor_id, (version, data) in self._read(tier, start_us).items():
                known = window.entries.get(sensor_id)
                if known is None or known.version < version:
                    window.entries[sensor_id] = _Entry(data, version, _NO_ORDER)
                    window.version = max(window.version, version)
                    if not begins:
                        others[sensor_id] = known.data if known else b""
        return window, others

    def _change(self, tier: int, start_us: int, changes: Mapping[str, bytes], order: Order, now_us: int) -> _Window:
        window, before = self._known(tier, start_us, now_us)
        version = window.version + 1
        cells: list[tuple[bytes, Versioned]] = []
        for sensor_id, data in changes.items():
            known = window.entries.get(sensor_id)
            if known is not None and known.order.began_us == order.began_us and known.order.number > order.number:
                continue  # it was overtaken
            before.setdefault(sensor_id, known.data if known else b"")
            window.entries[sensor_id] = _Entry(data, version, order)
            cells.append((sensor_id.encode(), Versioned(version, data)))
        if cells:
            window.version = version
            key = members_key(self._tiers[tier].window, self._shard, start_us)
            self.rows.append(versioned_row(key, start_us, cells))
        if before:
            texts = {member_in(data) for data in before.values() if data}
            texts |= {
                member_in(window.entries[sensor_id].data) for sensor_id in before if window.entries[sensor_id].data
            }
            self._merge(tier, start_us, window, texts)
        return window

    def _merge(self, tier: int, start_us: int, window: _Window, changed: set[bytes]) -> None:
        """Merges the parts of the groups that sensors with these member texts are in."""
        rollups = self._of_tier[tier]
        groups = dict.fromkeys(group for text in changed for group in _groups(rollups, text))
        of_text: dict[bytes, list[bytes]] = {}
        for data, _, _ in window.entries.values():
            if data:
                of_text.setdefault(member_in(data), []).append(data)
        merged: dict[Group, tuple[WindowStats, int]] = {group: (WindowStats(), 0) for group in groups}
        for text, contributions in of_text.items():
            wanted = [group for group in _groups(rollups, text) if group in merged]
            if not wanted:
                continue
            stats = WindowStats()
            for data in contributions:
                stats.merge(read_contribution(data).stats)
            for group in wanted:
                total, sensors = merged[group]
                total.merge(stats)
                merged[group] = total, sensors + len(contributions)
        self.parts += [
            Part(group, tier, start_us, self._shard, window.version, sensors, stats)
            for group, (stats, sensors) in merged.items()
        ]


def _groups(rollups: Iterable[Rollup], text: bytes) -> list[Group]:
    """Returns the groups of a sensor with this member text."""
    member = member_fields(text.decode())
    values = ((rollup.name, rollup.value_of(member)) for rollup in rollups)
    return [Group(name, value) for name, value in values if value is not None]


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
            id_size, size, of_entry, began_us, number = _ENTRY.unpack_from(data, end)
            begin = end + _ENTRY.size
            middle, end = begin + id_size, begin + id_size + size
            window.entries[data[begin:middle].decode()] = _Entry(data[middle:end], of_entry, Order(began_us, number))
    return found
