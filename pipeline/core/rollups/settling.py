"""Brings roll-ups in line with aggregate rows that were written or deleted, as batch writers do beside other writers.

What the sensors contribute is written, then the shards' parts of their groups, then the rows of the groups: each from
rows that are read after the write below was confirmed. So of several writers, the last to read has seen what all have
written, and its cells have the greatest versions.

A window that counts less on purpose, because a reading was deleted or a sensor forgotten, has a lower version. In one
atomic mutation, the sensor's cell is deleted and set, and the row of members keeps the difference in a cell of its own,
with the metadata that the sensor had: so versions of parts and groups only grow, and whoever settles the window next
settles those groups too.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import accumulate
from typing import NamedTuple

from pipeline.core.queries.reads import ReadRows
from pipeline.core.rollups.comparison import same_sums
from pipeline.core.rollups.contributions import NOTHING, Contribution, Contributions, is_contribution, texts_in
from pipeline.core.rollups.group_rules import Group, GroupRules
from pipeline.core.rollups.levels import (
    NO_MEMBERS,
    GroupWindow,
    Members,
    ShardWindow,
    group_row,
    groups_of_texts,
    key_of_group,
    key_of_members,
    merged,
    part_row,
    parts_in,
    parts_of,
    rows_of,
)
from pipeline.core.rows.aggregate_rows import aggregate_key
from pipeline.core.rows.rollup_rows import FAMILY, LEFT, PARTS, Versioned, versioned_row, versions_in
from pipeline.core.rows.rows import EncodedRow, EncodedRows, Row
from pipeline.core.schema.layouts import CellSelection

_MOST_LEFT_BYTES = 1 << 16  # of texts, in a row of members

WriteRows = Callable[[EncodedRows], None]
"""Writes rows, each at most once, and returns when the server has confirmed them."""

ShardGroups = Mapping[ShardWindow, Collection[Group]]
"""Groups by the windows of shards."""


class _Changes(NamedTuple):
    """How a row of members has to change, and the metadata whose groups have to be merged again."""

    cells: dict[bytes, Versioned]
    gone: dict[bytes, int]
    texts: set[bytes]


class RollupSettling:
    """Settles roll-ups.

    Args:
        less: whether rows may count less than before. Otherwise, what counts more is another writer's.
    """

    def __init__(self, rules: GroupRules, read: ReadRows, write: WriteRows, *, less: bool = False) -> None:
        self._rules, self._read, self._write, self._less = rules, read, write, less
        self._of_rows = [Contributions(rules, tier) for tier, _ in enumerate(rules.tiers)]

    def settle(self, windows: Mapping[ShardWindow, Collection[str]]) -> None:
        """Settles the roll-ups of windows; see :meth:`members`."""
        groups = self.members(windows)
        self.parts(groups)
        self.groups({GroupWindow(*of[:2], group) for of, of_shard in groups.items() for group in of_shard})

    def members(self, windows: Mapping[ShardWindow, Collection[str]]) -> dict[ShardWindow, set[Group]]:
        """Writes what sensors contribute. Returns the groups whose parts have to be merged again.

        Args:
            windows: the sensors whose aggregate rows were written or deleted, by the window of their shard.
        """
        texts: dict[ShardWindow, set[bytes]] = defaultdict(set)
        least: dict[ShardWindow, int] = {}
        rest = list(windows)
        while rest:
            stored = self.stored(rest)  # before the aggregate rows, which are written before
            found = self._contributions({of: [each.encode() for each in windows[of]] for of in rest})
            if self._less:
                unreadable = {of: stored[of].unreadable - found[of].keys() for of in rest}
                for of, more in self._contributions(unreadable).items():
                    found[of] |= more
            rows, again = EncodedRows(), []
            for of in rest:
                changes = _changes(stored[of], found[of], least.get(of, 0), less=self._less)
                texts[of] |= changes.texts
                if changes.cells or changes.gone:
                    rows.append(self._members_row(of, changes))
                    again.append(of)
                if LEFT in changes.cells:
                    least[of] = max(least.get(of, 0), stored[of].version + 1)
            if rows:
                self._write(rows)
            rest = again
        return {of: set(groups_of_texts(self._rules, of.tier, texts[of])) for of in windows}

    def parts(self, windows: ShardGroups) -> None:
        """Writes parts of groups.

        If rows may count less, also over greater versions, which another program has written, or somebody who counted
        less at the same time. Such parts are computed again then: a job may have written them meanwhile.
        """
        while windows:
            rows, again = EncodedRows(), defaultdict[ShardWindow, list[Group]](list)
            versions = {
                of: self._stored_parts(of, windows[of]) if self._less else {} for of in windows
            }  # before the members
            for of, members in self.stored(windows).items():
                cells = {sensor: cell for sensor, cell in members.cells.items() if sensor not in members.unreadable}
                parts = parts_of(self._rules, of.tier, members._replace(cells=cells), windows[of])
                for group, part in parts.items():
                    gone = {column: each for column, each in versions[of].get(group, {}).items() if each > part.version}
                    if part.version or gone:
                        window = GroupWindow(of.tier, of.start_us, group)
                        rows.append(part_row(self._rules, window, of.shard, part, gone))
                    if gone:
                        again[of].append(group)
            if rows:
                self._write(rows)
            windows = again

    def groups(self, windows: Iterable[GroupWindow]) -> None:
        """Writes the rows of groups, like :meth:`parts`."""
        while windows:
            keys = {key_of_group(self._rules, of, PARTS): of for of in windows}
            stored = self._stored_groups(keys.values()) if self._less else {}  # before the parts
            parts = {keys[row.key]: parts_in(row, keys[row.key].start_us) for row in rows_of(self._read, keys)}
            rows, windows = EncodedRows(), list[GroupWindow]()
            for of in keys.values():
                found = merged(self._rules, of, parts.get(of, {}))
                least = {column: found.version + (column.decode() in found.columns) for column in stored.get(of, {})}
                gone = {column: each for column, each in stored.get(of, {}).items() if each >= least[column]}
                if found.version or gone:
                    rows.append(group_row(self._rules, of, found, gone))
                if any(each > found.version for each in gone.values()):
                    windows.append(of)
            if rows:
                self._write(rows)

    def forgotten(self, windows: Mapping[ShardWindow, Collection[str]]) -> None:
        """Deletes the cells of sensors that contribute nothing, once the rows of their groups are right."""
        rows = EncodedRows()
        for of, members in self.stored(windows).items():
            cells = ((sensor, members.cells.get(sensor)) for sensor in map(str.encode, windows[of]))
            if gone := {sensor: cell.version for sensor, cell in cells if cell is not None and cell.value == NOTHING}:
                left = members.left._replace(version=members.left.version + sum(gone.values()))
                rows.append(self._members_row(of, _Changes({LEFT: left}, gone, set())))
        if rows:
            self._write(rows)

    def _members_row(self, of: ShardWindow, changes: _Changes) -> EncodedRow:
        return versioned_row(key_of_members(self._rules, of), of.start_us, changes.cells.items(), changes.gone)

    def stored(self, windows: Iterable[ShardWindow]) -> dict[ShardWindow, Members]:
        """Returns what the table has of windows."""
        keys = {key_of_members(self._rules, of): of for of in windows}
        found = dict.fromkeys(keys.values(), NO_MEMBERS)
        for row in rows_of(self._read, keys):
            found[keys[row.key]] = Members.of(row, keys[row.key].start_us)
        return found

    def _contributions(
        self, windows: Mapping[ShardWindow, Iterable[bytes]]
    ) -> dict[ShardWindow, dict[bytes, Contribution | None]]:
        """Reads what the aggregate rows of sensors contribute; None for a sensor without a row."""
        found: dict[ShardWindow, dict[bytes, Contribution | None]]
        found = {of: dict.fromkeys(sensors) for of, sensors in windows.items()}
        for index, tier in enumerate(self._rules.tiers):
            keys = {
                aggregate_key(tier.window, sensor_id, of.start_us): (of, sensor)
                for of, sensors in found.items()
                if of.tier == index
                for sensor in sensors
                if (sensor_id := sensor.decode(errors="ignore")).encode() == sensor  # others have no rows
            }
            for row in rows_of(self._read, keys, CellSelection((tier.family,), versions=1)):
                of, sensor = keys[row.key]
                if (window := self._of_rows[index].stats_of(row)) is not None:
                    found[of][sensor] = self._of_rows[index].of(*window)
        return found

    def _stored_parts(self, of: ShardWindow, groups: Iterable[Group]) -> dict[Group, dict[bytes, int]]:
        """Returns the versions of a shard's stored parts, by column."""
        keys = {key_of_group(self._rules, GroupWindow(of.tier, of.start_us, group), PARTS): group for group in groups}
        rows = rows_of(self._read, keys, CellSelection((FAMILY,), (b"%d" % of.shard,), versions=1))
        return {keys[row.key]: _versions(row, of.start_us) for row in rows}

    def _stored_groups(self, windows: Iterable[GroupWindow]) -> dict[GroupWindow, dict[bytes, int]]:
        """Returns the versions of the stored cells of groups' rows, by column."""
        keys = {key_of_group(self._rules, of): of for of in windows}
        return {keys[row.key]: _versions(row, keys[row.key].start_us) for row in rows_of(self._read, keys)}


def _changes(stored: Members, found: Mapping[bytes, Contribution | None], least: int, *, less: bool) -> _Changes:
    """Returns how a row of members has to change.

    Args:
        stored: the row's cells.
        found: the contributions of sensors; None for a sensor without an aggregate row.
        least: the least version that the row must have.
        less: whether sensors may count less than before.
    """
    unreadable = stored.unreadable if less else set()
    changes = _Changes({}, {}, set(filter(None, stored.left.value.split(b"\n"))))
    version, left = stored.version, list[bytes]()
    for sensor, contribution in found.items():
        known, before = stored.cells.get(sensor), list[bytes]()
        if known is not None and known.value and sensor not in unreadable:
            before += texts_in(known.value)
        texts = contribution.texts if contribution else ()
        changes.texts.update(before, texts)
        cell = contribution.cell if contribution else Versioned(1, NOTHING)
        if known is None:
            if contribution:
                changes.cells[sensor] = cell
                version += cell.version
        elif known.version <= cell.version or less:
            if known.version == cell.version and same_sums(known.value, cell.value):
                continue
            if less and known.version >= cell.version:  # or says something else of as many events and readings
                changes.gone[sensor] = known.version
            left += [text for text in before if text not in texts] if less else ()
            version -= known.version
            if contribution or sensor not in unreadable:
                changes.cells[sensor] = cell
                version += cell.version
            else:
                changes.gone[sensor] = known.version
    if version < least and not changes.gone:  # another writer also counted less: parts have greater versions
        cells = [data for _, data in stored.cells.values() if data and is_contribution(data)]
        changes.texts.update(text for data in cells for text in texts_in(data))
    more = max(least, stored.version + 1 if changes.gone else 0, version + 1 if left else 0) - version
    if more > 0:
        told = dict.fromkeys([*stored.left.value.split(b"\n"), *left])
        changes.cells[LEFT] = Versioned(stored.left.version + more, b"\n".join(_newest(filter(None, told))))
    return changes


def _newest(texts: Iterable[bytes]) -> list[bytes]:
    """Returns the last of the texts, as much as a row tells: the groups of others have been merged again since."""
    found = list(texts)
    sizes = accumulate(len(text) + 1 for text in reversed(found))
    return found[len(found) - sum(size <= _MOST_LEFT_BYTES for size in sizes) :]


def _versions(row: Row, start_us: int) -> dict[bytes, int]:
    return {column: cell.version for column, cell in versions_in(row, start_us).items()}
