"""Brings the rows of roll-ups in line with aggregate rows, as batch writers do, beside other writers.

The aggregate rows of sensors are read, then the row of their shard's members. Contributions that differ are written,
and read again with those of the whole shard, from which the parts of groups are merged. Groups are settled when all
shards have told their parts: what differs is written, and both of a group's rows are read again. So of several batch
writers, the last one has seen what all have written.

A job does not read again: its rows wait for each other for seconds, and lack what is written meanwhile. They replace
what a batch writer has written, whose versions are lower. So batch writers settle windows again when a job's rows have
been written, until nothing is wrong. What a job computes since is right: it reads the rows of windows that are over.

A writer may be killed between the two levels. So a shard's row tells, with its version, the metadata that sensors have
left, as :mod:`pipeline.core.rollups.shard_windows` writes it: whoever settles the window next settles those groups too.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pipeline.core.queries.seeks import MOST_RANGES, ReadRows, RowSelection
from pipeline.core.rollups.bucket_parts import Part
from pipeline.core.rollups.contributions import NOTHING, Contributions, is_contribution
from pipeline.core.rollups.group_rules import Group, GroupRules
from pipeline.core.rollups.rollup_differences import same_sums
from pipeline.core.rollups.shard_windows import newest_left, parts_of
from pipeline.core.rollups.sums import sums_bytes, text_in
from pipeline.core.rows.aggregate_rows import aggregate_key, parse_window_stats
from pipeline.core.rows.rollup_rows import (
    FAMILY,
    FORGOTTEN,
    VERSION,
    Versioned,
    forgetting_row,
    members_key,
    versioned_row,
    versions_in,
)
from pipeline.core.rows.rows import EncodedRows, KeyRange, Row
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.member import member_fields
from pipeline.core.statistics.window_stats import WindowStats

NEWEST = CellSelection((FAMILY,), versions=1)
"""The cells of rows of roll-ups that count."""

WriteRows = Callable[[EncodedRows], None]
"""Writes rows, each at most once, and returns when the server has confirmed them."""

MOST_TIMES = 4
"""The most times that windows are settled: a job may change each of contributions, parts and groups once more."""

STILL_WRITTEN = "a job keeps changing the same roll-ups; run 'tidetable repair --rollups' when their windows are over"
"""What a batch writer tells if there was something to write the last time."""

_ON_THEIR_WAY_S = 20  # the time for which a job's rows may be; they wait for each other for up to 11 s


class ShardWindow(NamedTuple):
    """A window of a shard of sensors.

    Attributes:
        tier: the index of the tier.
        start_us: the window's start.
        shard: the shard.
    """

    tier: int
    start_us: int
    shard: int


class Settled(NamedTuple):
    """What a shard's sensors contribute to a window, once that is settled.

    Attributes:
        version: the version of the shard's row, which its parts have too.
        contributions: the contributions of its sensors.
        groups: the groups that the settled sensors are in, or were in.
        gone: the settled sensors that contribute nothing.
    """

    version: int
    contributions: Collection[bytes]
    groups: Collection[Group] = ()
    gone: Sequence[bytes] = ()


class Members(NamedTuple):
    """What a table has of a shard's window.

    Attributes:
        version: the version of the row; 0 without a row.
        contributions: the contributions by sensor; :data:`NOTHING` of one that is gone.
        left: the metadata that sensors have left.
        unreadable: the sensors whose cells another program wrote: they have to be written again.
    """

    version: int
    contributions: dict[bytes, bytes]
    left: Collection[bytes]
    unreadable: frozenset[bytes] = frozenset()

    @classmethod
    def of(cls, row: Row, start_us: int) -> "Members":
        """Returns what a row of members tells."""
        cells = versions_in(row, start_us)
        version = max((cell.version for cell in cells.values()), default=0)
        left = cells.pop(VERSION, Versioned(0, b"")).value
        cells.pop(FORGOTTEN, None)
        contributions = {sensor: data for sensor, (_, data) in cells.items() if is_contribution(data)}
        unreadable = cells.keys() - contributions.keys()
        return cls(version, contributions, left.split(b"\n") if left else (), frozenset(unreadable))

    @property
    def settled(self) -> Settled:
        """What these sensors contribute."""
        return Settled(self.version, [data for data in self.contributions.values() if data])


NO_MEMBERS = Members(0, {}, ())
_NO_GROUPS: Mapping[ShardWindow, Collection[Group]] = {}


class RowContributions:
    """What the aggregate rows of a tier contribute to roll-ups.

    Args:
        rules: the table's roll-ups.
        tier: the index of the tier.
    """

    def __init__(self, rules: GroupRules, tier: int) -> None:
        self._tier = rules.tiers[tier]
        self._contributions = Contributions(rules, tier)
        self._fields = {field for rollup in rules.rollups_of(tier) for field in rollup.by}

    def of(self, row: Row) -> tuple[bytes, bool]:
        """Returns the contribution of a row, and whether the row tells all metadata that roll-ups group by.

        Another program's row contributes nothing.
        """
        try:
            start_us, stats = parse_window_stats(self._tier.window, row, self._tier.statistics)
        except ValueError:
            return NOTHING, True
        return self._contributions.of(start_us, stats), self._tells_all(stats)

    def _tells_all(self, stats: WindowStats) -> bool:
        return not self._fields or (
            stats.member is not None and self._fields <= member_fields(stats.member.text).keys()
        )


def rows_of(read: ReadRows, cells: CellSelection, keys: Iterable[bytes]) -> dict[bytes, Row]:
    """Reads the rows with these keys, many in a request."""
    some = sorted(keys)
    batches = (some[start : start + MOST_RANGES] for start in range(0, len(some), MOST_RANGES))
    selections = (RowSelection(tuple(KeyRange(key, key + b"\x00") for key in batch), cells) for batch in batches)
    return {row.key: row for selection in selections for row in read(selection)}


class ShardSettling:
    """Settles what sensors contribute to roll-ups.

    Args:
        schema: the table's schema.
        rules: the table's roll-ups.
        read: reads rows.
        write: writes rows.
    """

    def __init__(self, schema: TableSchema, rules: GroupRules, read: ReadRows, write: WriteRows) -> None:
        self._rules, self._read, self._write = rules, read, write
        self._of_rows = [RowContributions(rules, tier) for tier, _ in enumerate(schema.tiers)]

    def settle(
        self,
        windows: Mapping[ShardWindow, Collection[str]],
        groups: Mapping[ShardWindow, Collection[Group]] = _NO_GROUPS,
    ) -> dict[ShardWindow, Settled]:
        """Writes what the aggregate rows of sensors contribute, where it differs from what is stored.

        Args:
            windows: the sensors, by the window of their shard.
            groups: groups that they were in before: those that it returned the last time.
        """
        done: dict[ShardWindow, Settled] = {}
        texts: dict[ShardWindow, set[bytes]] = defaultdict(set)
        written: dict[ShardWindow, dict[bytes, bytes]] = {}
        while rest := [of for of in windows if of not in done]:
            found = self._contributions({of: [each.encode() for each in windows[of]] for of in rest})
            members = self.members(rest)
            unreadable = {of: members[of].unreadable - found[of].keys() for of in rest}
            for of, more in self._contributions(unreadable).items():
                found[of] |= more
            rows = EncodedRows()
            for of in rest:
                stored, known = members[of], members[of].contributions
                changed = {
                    sensor: data
                    for sensor, data in found[of].items()
                    if sensor in stored.unreadable or not same_sums(data, known.get(sensor, NOTHING))
                }
                after = {**known, **changed}
                before = {sensor: text_in(known[sensor]) for sensor in changed if known.get(sensor)}
                left = {text for sensor, text in before.items() if not after[sensor] or text_in(after[sensor]) != text}
                texts[of] |= {*before.values(), *stored.left, *map(text_in, filter(None, found[of].values()))}
                if not changed and written.get(of, known) == known:
                    named = (group for text in texts[of] for group in self._rules.groups_of(of.tier, text))
                    gone = [sensor for sensor, data in found[of].items() if not data]
                    done[of] = stored.settled._replace(groups={*groups.get(of, ()), *named}, gone=gone)
                    continue
                version = stored.version + 1  # also if others wrote: equal versions say the same
                told = dict.fromkeys([*stored.left, *left])
                tells = VERSION, Versioned(version, b"\n".join(newest_left(told)))
                cells = [*((sensor, Versioned(version, data)) for sensor, data in changed.items()), tells]
                rows.append(versioned_row(self._key(of), of.start_us, cells))
                written[of] = after
            if rows:
                self._write(rows)
        return done

    def forgotten(self, settled: Mapping[ShardWindow, Settled]) -> EncodedRows:
        """Returns the rows that delete the cells of sensors that are gone. Cells that arrived since stay."""
        return EncodedRows(
            forgetting_row(self._key(of), of.start_us, each.version, each.gone)
            for of, each in settled.items()
            if each.gone
        )

    def members(self, windows: Iterable[ShardWindow]) -> dict[ShardWindow, Members]:
        """Reads what the table has of windows."""
        keys = {of: self._key(of) for of in windows}
        rows = rows_of(self._read, NEWEST, keys.values())
        return {of: Members.of(rows[key], of.start_us) if key in rows else NO_MEMBERS for of, key in keys.items()}

    def _contributions(self, windows: Mapping[ShardWindow, Iterable[bytes]]) -> dict[ShardWindow, dict[bytes, bytes]]:
        found = {of: dict.fromkeys(sensors, NOTHING) for of, sensors in windows.items()}
        for tier, each in enumerate(self._rules.tiers):
            keys = {
                aggregate_key(each.window, sensor_id, of.start_us): (of, sensor)
                for of, sensors in found.items()
                if of.tier == tier
                for sensor in sensors
                if (sensor_id := sensor.decode(errors="ignore")).encode() == sensor  # others have no rows
            }
            for key, row in rows_of(self._read, CellSelection((each.family,), versions=1), keys).items():
                of, sensor = keys[key]
                found[of][sensor] = self._of_rows[tier].of(row)[0]
        return found

    def _key(self, of: ShardWindow) -> bytes:
        return members_key(self._rules.tiers[of.tier].window, of.shard, of.start_us)


def wait_for_jobs(settled_s: float) -> None:
    """Waits until what a job had on its way when windows were settled has been written."""
    time.sleep(max(settled_s + _ON_THEIR_WAY_S - time.time(), 0))


def settled_parts(
    rules: GroupRules, of: ShardWindow, settled: Settled, groups: Collection[Group] | None = None
) -> Iterator[Part]:
    """Yields the parts of a shard's window: of these groups, or of all that its sensors are in."""
    for group, sums in parts_of(rules, of.tier, settled.contributions, groups).items():
        yield Part(group, of.tier, of.start_us, of.shard, settled.version, sums_bytes(sums))
