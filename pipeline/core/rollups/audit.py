"""Compares the rows of groups with what their shards have."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.core.rollups.group_rules import GroupRules
from pipeline.core.rollups.levels import EMPTY, GroupWindow, merged
from pipeline.core.rollups.rollup_differences import WrongColumn, same_sums, value_in_json, wrong_columns
from pipeline.core.rollups.sums import is_sums
from pipeline.core.rows.rollup_rows import SENSORS, Versioned
from pipeline.core.schema.table_schema import Tier


class WrongGroup(NamedTuple):
    """A group's window whose rows are wrong.

    Attributes:
        of: the group's window.
        columns: the wrong columns of its row; none if only parts are wrong, or versions.
        sensors: the number of sensors that it should have.
        missing: whether there is no row.
        shards: the shards whose parts are wrong.
    """

    of: GroupWindow
    columns: tuple[WrongColumn, ...]
    sensors: int
    missing: bool
    shards: frozenset[int]

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


def audit_group(
    rules: GroupRules,
    of: GroupWindow,
    parts: Mapping[int, Versioned],
    stored: Mapping[int, Versioned],
    row: Mapping[bytes, Versioned],
) -> tuple[WrongGroup | None, bool]:
    """Returns what is wrong, if anything; and whether the group has sensors, or a row that says so.

    A version is wrong if it is greater than it should be: what counts more could not replace the cell.

    Args:
        rules: the table's roll-ups.
        of: the group's window.
        parts: the parts of all shards that have sensors of the group.
        stored: the stored parts.
        row: the cells of the group's stored row.
    """
    wrong = {shard for shard in parts.keys() | stored.keys() if not _is_part(stored.get(shard), parts.get(shard))}
    right = merged(rules, of, {**{shard: cell for shard, cell in stored.items() if shard not in wrong}, **parts})
    counted = row.get(SENSORS.encode())
    columns = {
        column.decode(errors="backslashreplace"): cell.value
        for column, cell in row.items()
        if counted is not None and cell.version == counted.version
    }
    exists = bool(right.sensors) or columns.get(SENSORS, b"0") != b"0"
    differing = tuple(wrong_columns(columns, right.columns, right.stats)) if exists else ()
    version = sum(
        (parts if shard in wrong else stored)[shard].version for shard in parts.keys() | stored.keys() - wrong
    )
    is_ahead = counted is not None and counted.version > version
    if not wrong and not differing and not is_ahead:
        return None, exists
    return WrongGroup(of, differing, right.sensors, counted is None, frozenset(wrong)), True


def _is_part(stored: Versioned | None, part: Versioned | None) -> bool:
    """Returns whether a stored part says what it should; of a shard without sensors, it says that there are none."""
    if stored is None or not is_sums(stored.value):
        return False
    return same_sums(stored.value, part.value if part else EMPTY) and (part is None or stored.version <= part.version)
