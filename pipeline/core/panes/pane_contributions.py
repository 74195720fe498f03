"""Collects what the panes of a firing contribute to roll-ups, for tables that have any."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from pipeline.core.rollups.contributions import Contribution, Contributions
from pipeline.core.rollups.due import MOST_BYTES, Due, RowsThenDue, due_bytes, written_bytes
from pipeline.core.rollups.group_rules import GroupRules
from pipeline.core.rows.rollup_rows import members_key, versioned_row
from pipeline.core.rows.rows import EncodedRows
from pipeline.core.schema.rate import group_of
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.statistics.window_stats import WindowStats

_MOST_SENSORS = 1000  # in a mutation of a row of members


class RollupRules(NamedTuple):
    """The rules by which panes contribute to roll-ups.

    Attributes:
        tiers: the table's tiers, shortest first.
        shards: the number of shards of sensors.
        of_tier: the contributions of each tier; None for a tier without roll-ups.
    """

    tiers: tuple[Tier, ...]
    shards: int
    of_tier: tuple[Contributions | None, ...]

    @classmethod
    def of(cls, schema: TableSchema) -> "RollupRules | None":
        """Returns the rules for a table; None for one without roll-ups."""
        if not schema.rollups:
            return None
        rules = GroupRules(schema)
        of_tier = [Contributions(rules, tier) if rules.rollups_of(tier) else None for tier in range(len(schema.tiers))]
        return cls(schema.tiers, rules.shards, tuple(of_tier))


class PaneContributions:
    """The contributions of a firing.

    Args:
        rules: the rules.

    Attributes:
        size_bytes: their bytes so far.
    """

    def __init__(self, rules: RollupRules) -> None:
        self._rules = rules
        self.size_bytes = 0
        self._found: dict[tuple[int, int, int], dict[bytes, Contribution]] = defaultdict(dict)

    def add(self, tier: int, start_us: int, changed: Mapping[str, WindowStats]) -> None:
        """Adds the panes of windows of a tier that have the same start, which are written with these statistics."""
        contributions, shards = self._rules.of_tier[tier], self._rules.shards
        if contributions is None:
            return
        found, of = self._found, contributions.of
        for sensor_id, stats in changed.items():
            sensor = sensor_id.encode()
            contribution = found[tier, start_us, group_of(sensor, shards)][sensor] = of(start_us, stats)
            self.size_bytes += len(sensor) + len(contribution.cell.value) + sum(map(len, contribution.texts))

    def batches(self) -> Iterator[bytes]:
        """Yields rows of members of limited size, encoded with what is due once they are written."""
        rows, due, size = EncodedRows(), defaultdict[int, Due](dict), 0
        for (tier, start_us, shard), contributions in self._found.items():
            key = members_key(self._rules.tiers[tier].window, shard, start_us)
            for some in _some_at_a_time(contributions):
                row = versioned_row(key, start_us, [(sensor, each.cell) for sensor, each in some.items()])
                rows.append(row)
                texts = due[shard].setdefault((tier, start_us), {})
                texts.update(dict.fromkeys([text for each in some.values() for text in each.texts]))
                size += len(row.mutations)
                if size >= MOST_BYTES:
                    yield _encoded(rows, due)
                    rows, due, size = EncodedRows(), defaultdict(dict), 0
        if rows:
            yield _encoded(rows, due)


def _some_at_a_time(contributions: Mapping[bytes, Contribution]) -> Iterator[dict[bytes, Contribution]]:
    """Yields as many contributions as are written at once."""
    items = iter(contributions.items())
    while some := dict(islice(items, _MOST_SENSORS)):
        size, part = 0, dict[bytes, Contribution]()
        for sensor, each in some.items():
            part[sensor] = each
            size += len(each.cell.value)
            if size >= MOST_BYTES:
                yield part
                size, part = 0, {}
        if part:
            yield part


def _encoded(rows: EncodedRows, due: Mapping[int, Mapping[tuple[int, int], Iterable[bytes]]]) -> bytes:
    return written_bytes(RowsThenDue(rows, [(shard, data) for shard, each in due.items() for data in due_bytes(each)]))
