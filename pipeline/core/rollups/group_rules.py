"""Which groups the sensors of a table belong to, and which of their metrics are merged."""

from typing import NamedTuple, TypeVar

from pipeline.core.schema.rollup import Rollup
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.member import member_fields

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_MOST_KNOWN = 1 << 16  # texts, or sets of metrics; a worker keeps them for as long as it lives


class Group(NamedTuple):
    """A group of sensors: the roll-up's name, and the value as row keys contain it."""

    name: str
    value: str


class GroupRules:
    """The roll-ups of a table.

    Attributes:
        shards: the number of shards among which sensors are divided.
    """

    def __init__(self, schema: TableSchema) -> None:
        self.tiers = schema.tiers
        self.shards = schema.shards_of_rollups
        self._sensors = schema.rate.sensors if schema.rate else None
        self._of_tier = [schema.rollups_of(tier.window) for tier in schema.tiers]
        self._named = {rollup.name: rollup for rollup in schema.rollups}
        self._groups: dict[tuple[int, bytes], tuple[Group, ...]] = {}
        self._merged: dict[tuple[str, tuple[str, ...]], tuple[str, ...]] = {}

    def rollups_of(self, tier: int) -> tuple[Rollup, ...]:
        """Returns the roll-ups that have rows of a tier, which is named by its index."""
        return self._of_tier[tier]

    def has(self, group: Group) -> bool:
        """Returns whether the group's roll-up is one of the table."""
        return group.name in self._named

    def groups_of(self, tier: int, member: bytes) -> tuple[Group, ...]:
        """Returns the groups of sensors with this metadata, encoded by :mod:`pipeline.core.statistics.member`."""
        key = tier, member
        found = self._groups.get(key)
        if found is None:
            fields = member_fields(member.decode())
            values = ((rollup.name, rollup.value_of(fields)) for rollup in self._of_tier[tier])
            found = _kept(self._groups, key, tuple(Group(name, value) for name, value in values if value is not None))
        return found

    def merged_of(self, group: Group, metrics: tuple[str, ...]) -> tuple[str, ...]:
        """Returns those of the metrics that a group's roll-up merges."""
        key = group.name, metrics
        found = self._merged.get(key)
        if found is None:
            found = _kept(self._merged, key, tuple(filter(self._named[group.name].merges, metrics)))
        return found

    def expected_of(self, group: Group) -> int | None:
        """Returns the number of sensors that the schema declares for a group; None if it does not tell."""
        return None if self._named[group.name].by else self._sensors


def _kept(known: dict[_Key, _Value], key: _Key, value: _Value) -> _Value:
    if len(known) >= _MOST_KNOWN:
        known.clear()
    known[key] = value
    return value
