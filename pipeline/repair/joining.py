"""Recomputes the windows of groups of sensors, for the join with their aggregate rows.

Sensors are joined in groups, because an element costs as much as a window. Readings are recomputed before the join,
window by window: the longest windows may have more than fit in memory.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple, TypeVar

from pipeline.core.accumulation.accumulator import read_window, window_bytes
from pipeline.core.completion.audit import Extent, Recomputed
from pipeline.core.panes.grouped_readings import accumulators_of
from pipeline.core.schema.rate import group_of, groups_for
from pipeline.core.schema.table_schema import TableSchema, Tier

Key = tuple[int, int]
"""A group of sensors, and the start of a window."""

K = TypeVar("K")
V = TypeVar("V")

_Window = tuple[str, int, bytes, dict[str, float], bool]  # as bytes: Beam would pickle objects


class Joining(NamedTuple):
    """What is joined: the windows of a group of sensors in one of the longest windows.

    Attributes:
        groups: the number of groups.
        longest: the tier of the longest windows.
    """

    groups: int
    longest: Tier

    @classmethod
    def of(cls, schema: TableSchema, last: Extent) -> "Joining":
        """Returns groups that are the smaller, the more of the shortest windows are in one of the longest."""
        end_us = last.tier.window.end_of(last.start_us)
        return cls(groups_for(schema.rate) * schema.tiers[0].window.count(last.start_us, end_us), last.tier)

    def key(self, sensor_id: str, start_us: int) -> Key:
        """Returns the key of a window, given its sensor and start."""
        return group_of(sensor_id.encode(), self.groups), self.longest.window.start_of(start_us)


def recompute(element: tuple[Key, Iterable[bytes]], joining: Joining) -> Iterable[tuple[Key, list[_Window]]]:
    """Returns the recomputed windows to join, given the readings of a group in one of the shortest windows."""
    (_, start_us), parts = element
    found: dict[Key, list[_Window]] = defaultdict(list)
    for sensor_id, windows in accumulators_of(parts).items():
        each = Recomputed.of(windows[start_us], joining.longest.statistics)
        window = sensor_id, start_us, window_bytes(each.stats), each.magnitudes, each.too_wide
        found[joining.key(sensor_id, start_us)].append(window)
    return found.items()


def by_sensor(recomputed: Iterable[list[_Window]]) -> dict[str, dict[int, Recomputed]]:
    """Returns recomputed windows by sensor and start."""
    found: dict[str, dict[int, Recomputed]] = defaultdict(dict)
    for sensor_id, start_us, stats, magnitudes, too_wide in chain.from_iterable(recomputed):
        found[sensor_id][start_us] = Recomputed(read_window(stats), magnitudes, too_wide)
    return found


def gathered(pairs: Iterable[tuple[K, V]], most: int) -> Iterator[tuple[K, list[V]]]:
    """Yields keys with their values, of at most so many pairs at a time: a key may come again."""
    pairs = iter(pairs)
    while some := list(islice(pairs, most)):
        found: dict[K, list[V]] = defaultdict(list)
        for key, value in some:
            found[key].append(value)
        yield from found.items()
