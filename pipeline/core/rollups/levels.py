"""The levels of roll-ups: each row is computed from a row below it, after that was written.

    aggregate rows of sensors → the row of a shard's members → its parts of groups → rows of groups

Nothing is added up between two writes, and no row is computed from state. A row's version is the sum of the versions
below it, see :mod:`pipeline.core.rows.rollup_rows`. So of all who compute a row, whoever has read the most is right,
and its cells are the newest, whenever they arrive.
"""

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

from pipeline.core.queries.reads import ReadRows, RowSelection, in_batches
from pipeline.core.rollups.contributions import is_contribution, texts_in
from pipeline.core.rollups.due import Due, Window
from pipeline.core.rollups.group_rules import Group, GroupRules
from pipeline.core.rollups.sums import (
    NO_SUMS,
    Sums,
    is_sums,
    merge,
    merge_encoded,
    prefix_in,
    selected,
    sums_bytes,
    window_stats_of,
)
from pipeline.core.rows.rollup_rows import (
    FAMILY,
    LEFT,
    PARTS,
    Versioned,
    is_sensor,
    members_key,
    rollup_key,
    rollup_texts,
    unreadable,
    versioned_row,
    versions_in,
)
from pipeline.core.rows.rows import Cell, EncodedRow, EncodedRows, KeyRange, Row
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.statistics.window_stats import WindowStats

NEWEST = CellSelection((FAMILY,), versions=1)
"""The cells of rows of roll-ups that count."""

EMPTY = sums_bytes(NO_SUMS)
"""The part of a shard without sensors in a group."""

_UNREADABLE = (ValueError, struct.error)
_NOTHING_GONE: Mapping[bytes, int] = MappingProxyType({})


class ShardWindow(NamedTuple):
    """A window of a shard of sensors, with the index of its tier."""

    tier: int
    start_us: int
    shard: int


class GroupWindow(NamedTuple):
    """A window of a group, with the index of its tier."""

    tier: int
    start_us: int
    group: Group


class Members(NamedTuple):
    """What the row of a shard's members tells.

    Attributes:
        version: the sum of the versions of its cells; 0 without a row.
        cells: the cells of sensors.
        left: the cell of what sensors have left.
    """

    version: int
    cells: dict[bytes, Versioned]
    left: Versioned

    @classmethod
    def of(cls, row: Row, start_us: int) -> "Members":
        """Returns what a row tells, with the newest version of each cell."""
        cells = versions_in(row, start_us)
        left = cells.get(LEFT, _NO_CELL)
        sensors = {column: cell for column, cell in cells.items() if is_sensor(column)}
        return cls(left.version + sum([cell.version for cell in sensors.values()]), sensors, left)

    @property
    def unreadable(self) -> set[bytes]:
        """The sensors whose cells another program wrote."""
        return {sensor for sensor, cell in self.cells.items() if not is_contribution(cell.value)}


class Merged(NamedTuple):
    """What the parts of a group's window amount to.

    Attributes:
        version: the sum of their versions.
        columns: the values of the group's row by column.
    """

    version: int
    sensors: int
    stats: WindowStats
    columns: dict[str, bytes]


class Derived(NamedTuple):
    """Rows that were due.

    Attributes:
        due: the window and the name of the group that each row makes due once it is written; none of groups' rows.
        rest: the windows that are still due: they were too much at once.
    """

    rows: EncodedRows
    due: list[tuple[Window, bytes]]
    rest: Due


_NO_CELL = Versioned(0, b"")
NO_MEMBERS = Members(0, {}, _NO_CELL)


def groups_of_texts(rules: GroupRules, tier: int, texts: Iterable[bytes]) -> dict[Group, None]:
    """Returns the groups of sensors with these metadata."""
    return dict.fromkeys(chain.from_iterable(rules.groups_of(tier, text) for text in texts))


def rows_of(read: ReadRows, keys: Iterable[bytes], cells: CellSelection = NEWEST) -> Iterator[Row]:
    """Reads the rows with these keys, many in a request, in the order of keys."""
    for ranges in in_batches(KeyRange(key, key + b"\x00") for key in sorted(keys)):
        yield from read(RowSelection(ranges, cells))


def parts_of(
    rules: GroupRules, tier: int, members: Members, groups: Collection[Group] | None = None
) -> dict[Group, Versioned]:
    """Returns the shard's parts of groups: sensors with the same metadata and metrics are merged first.

    Args:
        rules: the table's roll-ups.
        tier: the index of the tier.
        members: the cells of the shard's sensors.
        groups: the groups, also those of no sensor; None for all groups of the sensors.

    Raises:
        ValueError: another program wrote a cell.
        struct.error: another program wrote a cell.
    """
    of_prefix: dict[bytes, list[bytes]] = {}
    for _, data in members.cells.values():
        if data:
            of_prefix.setdefault(prefix_in(data), []).append(data)
    of_groups: dict[Group, list[Sums]] = {group: [] for group in groups or ()}
    for prefix, datas in of_prefix.items():
        of_text = rules.groups_of(tier, texts_in(prefix)[0])
        wanted = of_text if groups is None else [group for group in of_text if group in of_groups]
        if wanted:
            sums = merge_encoded(prefix, datas)
            for group in wanted:
                of_groups.setdefault(group, []).append(sums)
    found = {}
    for group, some in of_groups.items():
        sums = merge(some)
        found[group] = Versioned(members.version, sums_bytes(selected(sums, rules.merged_of(group, sums.names))))
    return found


def parts_in(row: Row, start_us: int) -> dict[int, Versioned]:
    """Returns the parts in a row, by shard."""
    return {int(column): cell for column, cell in versions_in(row, start_us).items() if column.isdigit()}


def merged(rules: GroupRules, of: GroupWindow, parts: Mapping[int, Versioned]) -> Merged:
    """Returns what the shards' parts of a group's window amount to. Raises like :func:`parts_of`."""
    tier, of_prefix = rules.tiers[of.tier], dict[bytes, list[bytes]]()
    for shard in sorted(parts, key=str):  # in the order of a row's columns: rounding depends on it
        data = parts[shard].value
        of_prefix.setdefault(prefix_in(data), []).append(data)
    sums = merge([merge_encoded(prefix, datas) for prefix, datas in of_prefix.items()])
    # Parts from before the roll-up merged fewer metrics still have the others, of which later parts tell nothing.
    sums = selected(sums, rules.merged_of(of.group, sums.names))
    stats, expected = window_stats_of(sums), rules.expected_of(of.group)
    columns = rollup_texts(tier.window, of.start_us, stats, sums.sensors, tier.statistics, expected)
    return Merged(sum([cell.version for cell in parts.values()]), sums.sensors, stats, columns)


def key_of_members(rules: GroupRules, of: ShardWindow) -> bytes:
    """Returns the key of the row of a shard's members."""
    return members_key(rules.tiers[of.tier].window, of.shard, of.start_us)


def key_of_group(rules: GroupRules, of: GroupWindow, *kind: str) -> bytes:
    """Returns the key of a group's row, or that of its parts."""
    return rollup_key(rules.tiers[of.tier].window, *of.group, of.start_us, *kind)


class Levels:
    """Computes the rows of a table's roll-ups that are due.

    Args:
        most_bytes: the bytes that are read and computed before the rest stays due.
    """

    def __init__(self, rules: GroupRules, read: ReadRows, most_bytes: int) -> None:
        self._rules, self._read, self._most_bytes = rules, read, most_bytes
        self._stopped_at = b""

    def parts(self, shard: int, due: Due) -> Derived:
        """Computes a shard's parts of groups: those of sensors with the metadata that are due.

        Raises ValueError if another program wrote a cell of a row that they are computed from.
        """
        rules, rows, groups = self._rules, EncodedRows(), list[tuple[Window, bytes]]()
        windows = {key_of_members(rules, ShardWindow(*window, shard)): window for window in due}
        for row in self._rows(windows, rows):
            tier, start_us = window = windows[row.key]
            members = Members.of(row, start_us)
            wanted = groups_of_texts(rules, tier, due[window])
            with _naming(row, _is_foreign_member):
                parts = parts_of(rules, tier, members, wanted)
            for group, part in parts.items():
                rows.append(part_row(rules, GroupWindow(tier, start_us, group), shard, part))
                groups.append((window, group_name(group)))
        return Derived(rows, groups, {windows[key]: due[windows[key]] for key in self._left(windows)})

    def groups(self, due: Due) -> Derived:
        """Computes the rows of groups. Raises like :meth:`parts`."""
        rules, rows, rest = self._rules, EncodedRows(), Due()
        named = ((window, name, group_named(name)) for window, names in due.items() for name in names)
        windows = {
            key_of_group(rules, GroupWindow(*window, group), PARTS): (window, name)
            for window, name, group in named
            if rules.has(group)  # an update of the job may have dropped it
        }
        for row in self._rows(windows, rows):
            window, name = windows[row.key]
            of = GroupWindow(*window, group_named(name))
            parts = parts_in(row, of.start_us)
            with _naming(row, _is_foreign_part):
                rows.append(group_row(rules, of, merged(rules, of, parts)))
        for key in self._left(windows):
            window, name = windows[key]
            rest.setdefault(window, {})[name] = None
        return Derived(rows, [], rest)

    def _rows(self, keys: Iterable[bytes], computed: EncodedRows) -> Iterator[Row]:
        """Reads rows, until they and what was computed from them are too much at once."""
        size, before, self._stopped_at = 0, 0, b""
        for row in rows_of(self._read, keys):
            yield row
            size += sum([len(cell.value) for cell in row.cells])
            size += sum([len(each.mutations) for each in computed[before:]])
            before = len(computed)
            if size >= self._most_bytes:
                self._stopped_at = row.key
                return

    def _left(self, keys: Iterable[bytes]) -> list[bytes]:
        return [key for key in keys if key > self._stopped_at > b""]


def part_row(
    rules: GroupRules, of: GroupWindow, shard: int, part: Versioned, gone: Mapping[bytes, int] = _NOTHING_GONE
) -> EncodedRow:
    """Returns the row that writes a shard's part of a group's window; for ``gone`` see :func:`versioned_row`."""
    cells = [(b"%d" % shard, part)] if part.version else []
    return versioned_row(key_of_group(rules, of, PARTS), of.start_us, cells, gone)


def group_row(
    rules: GroupRules, of: GroupWindow, found: Merged, gone: Mapping[bytes, int] = _NOTHING_GONE
) -> EncodedRow:
    """Returns a group's row. Without sensors, it tells only that there are none."""
    columns = found.columns.items() if found.version else ()
    cells = [(column.encode(), Versioned(found.version, text)) for column, text in columns]
    return versioned_row(key_of_group(rules, of), of.start_us, cells, gone)


def group_name(group: Group) -> bytes:
    """Returns a group as what is due names it."""
    return f"{group.name}#{group.value}".encode()


def group_named(name: bytes) -> Group:
    """Returns the group that :func:`group_name` named."""
    return Group(*name.decode().split("#"))


@contextmanager
def _naming(row: Row, is_foreign: Callable[[Cell], bool]) -> Iterator[None]:
    """Names the cell of another program that could not be read."""
    try:
        yield
    except _UNREADABLE as error:
        for cell in filter(is_foreign, row.cells):
            raise unreadable(row, cell.qualifier) from error
        raise


def _is_foreign_member(cell: Cell) -> bool:
    return is_sensor(cell.qualifier) and not is_contribution(cell.value)


def _is_foreign_part(cell: Cell) -> bool:
    return cell.qualifier.isdigit() and not is_sums(cell.value)
