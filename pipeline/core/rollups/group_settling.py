"""Settles the rows of groups: what their shards have, merged. See :mod:`pipeline.core.rollups.settling`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.core.queries.seeks import ReadRows
from pipeline.core.rollups.bucket_parts import Part
from pipeline.core.rollups.contributions import NOTHING
from pipeline.core.rollups.group_rules import Group, GroupRules
from pipeline.core.rollups.rollup_differences import WrongColumn, same_sums, value_in_json, wrong_columns
from pipeline.core.rollups.settling import NEWEST, NO_MEMBERS, Members, WriteRows, rows_of
from pipeline.core.rollups.shard_windows import parts_of
from pipeline.core.rollups.sums import NO_SUMS, is_sums, merge, read_sums, selected, sums_bytes, window_stats_of
from pipeline.core.rows.rollup_rows import (
    PARTS,
    ROLLUP,
    SENSORS,
    VERSION,
    Versioned,
    members_key,
    rollup_key,
    rollup_texts,
    versioned_row,
    versions_in,
)
from pipeline.core.rows.rows import EncodedRows, Row
from pipeline.core.schema.table_schema import Tier

EMPTY = sums_bytes(NO_SUMS)
"""The part of a shard without sensors in a group."""


class GroupWindow(NamedTuple):
    """A window of a group.

    Attributes:
        tier: the index of the tier.
        start_us: the window's start.
        group: the group.
    """

    tier: int
    start_us: int
    group: Group


class StoredGroup(NamedTuple):
    """What a table has of a group's window.

    Attributes:
        parts: the cells of its row of parts.
        row: the cells of its own row.
    """

    parts: Mapping[bytes, Versioned]
    row: Mapping[bytes, Versioned]

    @property
    def columns(self) -> dict[str, bytes]:
        """The columns of its row that count: those with the version of the number of sensors."""
        counted = self.row.get(SENSORS.encode())
        return {
            column.decode(errors="backslashreplace"): cell.value
            for column, cell in self.row.items()
            if counted is not None and cell.version == counted.version
        }


class WrongGroup(NamedTuple):
    """A group's window whose rows are wrong.

    Attributes:
        of: the group's window.
        columns: the wrong columns of its row; none if only parts are wrong.
        sensors: the number of sensors that it should have.
        missing: whether there is no row.
    """

    of: GroupWindow
    columns: tuple[WrongColumn, ...]
    sensors: int
    missing: bool

    @property
    def problem(self) -> str:
        """``no row``, ``no sensors``, ``differs`` or ``parts differ``."""
        if not self.columns:
            return "parts differ"
        if not self.sensors:
            return "no sensors"
        return "no row" if self.missing else "differs"

    def record(self, tiers: Sequence[Tier]) -> dict[str, Any]:
        """Returns this as a JSON object, given the table's tiers."""
        window = tiers[self.of.tier].window
        return {
            "rollup": self.of.group.name,
            "value": self.of.group.value,
            "window": window.text,
            "start": window.shown(self.of.start_us),
            "problem": self.problem,
            "differences": {
                each.column: {"stored": value_in_json(each.stored), "merged": value_in_json(each.merged)}
                for each in self.columns
            },
        }


class GroupSettling:
    """Settles rows of groups.

    Args:
        rules: the table's roll-ups.
        read: reads rows.
        write: writes rows.
    """

    def __init__(self, rules: GroupRules, read: ReadRows, write: WriteRows) -> None:
        self._rules, self._read, self._write = rules, read, write

    def audit(
        self, of: GroupWindow, parts: Mapping[int, Part], state: StoredGroup, *, complete: bool = True
    ) -> tuple[WrongGroup | None, bool]:
        """Returns what is wrong, if anything; and whether the group has sensors, or a row that says so.

        Args:
            of: the group's window.
            parts: the parts that shards have.
            state: the stored rows.
            complete: whether other shards have no sensor of the group.
        """
        wrong, newest = self._wrong_parts(of, parts, state, complete=complete)
        columns, sensors = self._wrong_columns(of, newest, state)
        exists = bool(sensors) or state.columns.get(SENSORS, b"0") != b"0"
        if not wrong and not columns:
            return None, exists
        return WrongGroup(of, columns, sensors, SENSORS.encode() not in state.row), True

    def settle(self, groups: Mapping[GroupWindow, Mapping[int, Part]], *, complete: bool = False) -> set[GroupWindow]:
        """Writes what is wrong, until nothing is. Returns the windows of whose groups the row was.

        Args:
            groups: the parts that shards have, by the window of the group.
            complete: whether other shards have no sensor of a group.
        """
        written: set[GroupWindow] = set()
        rest = list(groups)
        while rest:
            rows, states = EncodedRows(), self.states(rest)
            again = []
            for of, state in states.items():
                wrong, newest = self._wrong_parts(of, groups[of], state, complete=complete, fresh=True)
                columns, _ = self._wrong_columns(of, newest, state)
                if wrong or columns:
                    again.append(of)
                    rows += self._rows(of, wrong, newest, state, with_row=bool(columns))
                    written |= {of} if columns else set()
            rest = again
            if rows:
                self._write(rows)
        return written

    def states(self, groups: Iterable[GroupWindow]) -> dict[GroupWindow, StoredGroup]:
        """Reads what the table has of groups' windows."""
        keys = {
            of: [
                rollup_key(self._rules.tiers[of.tier].window, *of.group, of.start_us, kind) for kind in (PARTS, ROLLUP)
            ]
            for of in groups
        }
        rows = rows_of(self._read, NEWEST, [key for of_group in keys.values() for key in of_group])
        return {
            of: StoredGroup(*(versions_in(rows.get(key) or Row(key, []), of.start_us) for key in of_group))
            for of, of_group in keys.items()
        }

    def _wrong_parts(
        self, of: GroupWindow, parts: Mapping[int, Part], state: StoredGroup, *, complete: bool, fresh: bool = False
    ) -> tuple[dict[int, Versioned], dict[int, Versioned]]:
        """Returns the parts to write, and all parts once they are written.

        If ``fresh``, a stored part that is not older than the given one, or of which none is given, is compared with
        what the shard has now; and a part that says the same is written for its version, so that no older part of a
        writer replaces it.
        """
        known = {int(column): cell for column, cell in state.parts.items() if column.isdigit()}
        unreadable = {shard for shard, cell in known.items() if not is_sums(cell.value)}
        wrong: dict[int, Versioned] = {}
        for shard in {*parts, *(known if complete else unreadable)}:
            part, cell = parts.get(shard), known.get(shard, Versioned(0, NOTHING))
            version, data = (part.version, part.data) if part else (0, EMPTY)
            if shard not in unreadable and same_sums(cell.value, data) and (version <= cell.version or not fresh):
                continue
            if fresh and part is not None and version > cell.version:
                wrong[shard] = Versioned(version, data)
            elif fresh:
                newest = self._part(of, shard, cell)
                right = shard not in unreadable and same_sums(cell.value, newest.value)
                wrong |= {} if right else {shard: newest}
            elif part is None or version >= cell.version or shard in unreadable:
                wrong[shard] = Versioned(version, data)
        return wrong, {**known, **wrong}

    def _part(self, of: GroupWindow, shard: int, stored: Versioned) -> Versioned:
        """Returns a shard's part, from what its members have now.

        One that says something else than the stored part gets a greater version, which the row of members tells first:
        a job that knows the stored part takes it.
        """
        key = members_key(self._rules.tiers[of.tier].window, shard, of.start_us)
        rows = rows_of(self._read, NEWEST, [key])
        members = Members.of(rows[key], of.start_us) if key in rows else NO_MEMBERS
        contributions = filter(None, members.contributions.values())
        version = members.version
        data = sums_bytes(parts_of(self._rules, of.tier, contributions, [of.group])[of.group])
        if version <= stored.version and not (is_sums(stored.value) and same_sums(stored.value, data)):
            version = stored.version + 1
            tells = VERSION, Versioned(version, b"\n".join(members.left))
            self._write(EncodedRows([versioned_row(key, of.start_us, [tells])]))
        return Versioned(version, data)

    def _wrong_columns(
        self, of: GroupWindow, parts: Mapping[int, Versioned], state: StoredGroup
    ) -> tuple[tuple[WrongColumn, ...], int]:
        stats, columns, sensors = self._merged(of, parts.values())
        stored = state.columns
        if not sensors and stored.get(SENSORS, b"0") == b"0":
            return (), 0
        return tuple(wrong_columns(stored, columns, stats)), sensors

    def _merged(self, of: GroupWindow, parts: Iterable[Versioned]) -> tuple[Any, dict[str, bytes], int]:
        tier = self._rules.tiers[of.tier]
        sums = merge([read_sums(data) for _, data in parts if data])
        sums = selected(sums, self._rules.merged_of(of.group, sums.names))  # some parts may have more
        stats, expected = window_stats_of(sums), self._rules.expected_of(of.group)
        columns = rollup_texts(tier.window, of.start_us, stats, sums.sensors, tier.statistics, expected)
        return stats, columns, sums.sensors

    def _rows(
        self,
        of: GroupWindow,
        wrong: Mapping[int, Versioned],
        newest: Mapping[int, Versioned],
        state: StoredGroup,
        *,
        with_row: bool,
    ) -> EncodedRows:
        window = self._rules.tiers[of.tier].window
        parts = [(b"%d" % shard, cell) for shard, cell in wrong.items()]
        rows = EncodedRows()
        if with_row:
            told = [cell.version for cell in state.row.values()]
            version = 1 + max([*told, state.parts.get(VERSION, Versioned(0, b"")).version])
            parts.append((VERSION, Versioned(version, b"")))
            _, columns, _ = self._merged(of, newest.values())
            cells = [(column.encode(), Versioned(version, text)) for column, text in columns.items()]
            rows.append(versioned_row(rollup_key(window, *of.group, of.start_us), of.start_us, cells))
        rows.append(versioned_row(rollup_key(window, *of.group, of.start_us, PARTS), of.start_us, parts))
        return rows
