"""What completes the windows of one tier: the base of two ways, from raw rows and from shorter windows."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from pipeline.core.completion.window_rows import WindowRows
from pipeline.core.queries.seeks import RowSelection
from pipeline.core.schema.table_schema import Tier
from pipeline.core.statistics.window_stats import WindowStats

MOST_SENSORS = 200
"""The sensors whose windows are read together."""

_MOST_ROWS = 5000  # aggregate rows that are read together

A = TypeVar("A")
ForEach = Callable[[Callable[[str], Any], Iterable[str]], Iterable[Any]]


class Completed(NamedTuple, Generic[A]):
    """The complete result of a window.

    Attributes:
        stats: the window's statistics.
        known: the table's readings and those that came; of a longer window, the shorter ones that came.
    """

    stats: WindowStats
    known: A


class TierCompletion(ABC, Generic[A]):
    """Completes the windows of one tier. All methods raise ForeignRow for a row that the schema does not write.

    Args:
        table: the table's reader.
        tier: the tier.
        sources: the tiers of shorter windows whose rows are read.
    """

    def __init__(self, table: WindowRows, tier: Tier, *sources: Tier) -> None:
        self._table = table
        self._tier, self._sources = tier, sources

    @abstractmethod
    def is_certain(self, start_us: int, now_us: int) -> bool:
        """Returns whether the table certainly still has all that a window consists of."""

    @abstractmethod
    def completed(self, sensor_id: str, start_us: int, now_us: int, fresh: A) -> Completed[A] | None:
        """Computes a window from the table and fresh readings.

        Returns None if the result may lose something that the aggregate row counts, or is too wide for a row.

        Args:
            sensor_id: the sensor.
            start_us: the window's start.
            now_us: the current time.
            fresh: readings that are in the table by now; for a longer window, statistics of shorter ones, by start.
        """

    def each(
        self,
        function: Callable[[str], Any],
        sensor_ids: Sequence[str],
        start_us: int,
        now_us: int,
        others: ForEach = map,
        fresh: Mapping[str, A] | None = None,
    ) -> dict[str, Any]:
        """Returns the result of a function for each sensor; what it reads of their windows is read together.

        Args:
            function: a function of a sensor that completes its window.
            sensor_ids: the sensors.
            start_us: the windows' start.
            now_us: the current time.
            others: a function like ``map``, for sensors whose rows have to be sought.
            fresh: the readings or shorter windows with which the function completes windows, by sensor.
        """
        found, together = dict[str, Any](), self._table.together
        end_us = self._tier.window.end_of(start_us)
        tiers = (self._tier, *self._sources) if self._reads_row(start_us, now_us) else self._sources
        of_sensor = sum(tier.window.count(start_us, end_us) for tier in tiers)
        at_once = max(1, min(MOST_SENSORS, _MOST_ROWS // max(1, of_sensor)))
        for first in range(0, len(sensor_ids), at_once):
            some = sensor_ids[first : first + at_once]
            rows = [self._table.row_selection(tier, each, start_us, end_us) for tier in tiers for each in some]
            with together.kept(rows):
                raw = {each: self._raw_selections(each, start_us, now_us, (fresh or {}).get(each)) for each in some}
                for batch in together.batches(raw):
                    found.update(zip(batch, map(function, batch), strict=True))
                rest = [each for each in some if each not in found]
                found.update(zip(rest, others(function, rest), strict=True))
        return found

    def _never_had_row(self, start_us: int, now_us: int) -> bool:
        """Returns whether a window without an aggregate row never had one: its tier existed, and its rows are kept."""
        retention = self._table.retention
        return retention.counts(self._tier, start_us) and retention.aggregates_from_us(self._tier, now_us) <= start_us

    def _reads_row(self, start_us: int, now_us: int) -> bool:
        """Returns whether the window's own row is read."""
        return not self.is_certain(start_us, now_us)

    @abstractmethod
    def _raw_selections(self, sensor_id: str, start_us: int, now_us: int, fresh: A | None) -> list[RowSelection] | None:
        """Returns what is probably read of raw rows to complete a window, by its aggregate rows; None if unknown."""
