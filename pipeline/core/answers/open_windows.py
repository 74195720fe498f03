"""Answers windows that are still open from raw rows, as their final panes will count them.

A closed window is answered from its row. The job writes rows of open windows every few minutes, while existing raw rows
count here at once. No answer counts less than the row does: raw rows may have been collected.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import chain

from pipeline.core.completion.stored_windows import Completion
from pipeline.core.queries.reads import ForeignRow, OnForeign, ReadRows
from pipeline.core.queries.windows import selected, windows_of
from pipeline.core.rows.aggregate_rows import aggregate_record, stats_of
from pipeline.core.rows.records import AggregateRecord
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.statistics.window_stats import WindowStats, covers
from pipeline.core.windows import sources

_MICROSECOND = timedelta(microseconds=1)


class FreshWindows:
    """Answers windows of sensors.

    Args:
        schema: the table's schema.
        retention: the table's retention.
        read: the function that reads the table's rows.
        now_us: the current time.
        open_for: the time after its end for which a window counts as open.
        on_foreign: a function that receives rows that the schema does not write. If it gets one, open windows are
            answered from their rows.
    """

    def __init__(
        self,
        schema: TableSchema,
        retention: Retention,
        read: ReadRows,
        now_us: int,
        open_for: timedelta,
        on_foreign: OnForeign,
    ) -> None:
        self._tiers = schema.tiers
        self._sources = sources(tuple(tier.window for tier in schema.tiers))
        self._read = read
        self._now_us = now_us
        self._over_us = now_us - open_for // _MICROSECOND
        self._on_foreign = on_foreign
        self._completion = Completion(schema, retention, read, search=True)

    def of(
        self, tier: Tier, sensor_id: str, start_us: int, end_us: int, metrics: tuple[str, ...] | None
    ) -> Iterator[AggregateRecord]:
        """Yields the windows that start from ``start_us``, inclusive, to ``end_us``, exclusive, oldest first.

        With ``metrics``, yields only these, and only windows that have one of them.
        """
        open_us = min(max(tier.window.start_of(self._over_us), start_us), end_us)
        if start_us < open_us:
            yield from windows_of(tier, self._read, sensor_id, start_us, open_us, metrics, None, self._on_foreign)
        if open_us < end_us:
            yield from self._open(tier, sensor_id, open_us, end_us, metrics)

    def _open(
        self, tier: Tier, sensor_id: str, start_us: int, end_us: int, metrics: tuple[str, ...] | None
    ) -> Iterator[AggregateRecord]:
        stored = {
            record.start_us: record
            for record in windows_of(tier, self._read, sensor_id, start_us, end_us, None, None, self._on_foreign)
        }
        try:
            computed = self._computed(self._tiers.index(tier), sensor_id, start_us, end_us)
        except ForeignRow as problem:
            self._on_foreign(problem)
            computed = {}
        for each_us in sorted(stored.keys() | computed.keys()):
            record, stats = stored.get(each_us), computed.get(each_us)
            if stats is not None and (record is None or covers(stats, stats_of(record))):
                record = aggregate_record(tier.window, sensor_id, each_us, stats, tier.statistics)
            if record is not None and (found := selected(record, metrics)) is not None:
                yield found

    def _computed(self, tier: int, sensor_id: str, start_us: int, end_us: int) -> Mapping[int, WindowStats]:
        """Returns the statistics of all windows that start in the range and have readings, by start."""
        window, source = self._tiers[tier].window, self._sources[tier]
        first_us, until_us = window.first_start(start_us), window.first_start(end_us)
        if first_us >= until_us:
            return {}
        if source >= 0:
            of_source = self._tiers[source]
            open_us = max(first_us, of_source.window.start_of(self._over_us))
            # Windows with rows, and the first, within which others are closed: the range may have millions.
            rows = self._completion.rows(of_source, sensor_id, open_us, until_us)
            within: dict[int, dict[int, WindowStats]] = {window.start_of(each_us): {} for each_us, _ in rows}
            within.setdefault(first_us, {})
            for each_us, stats in self._computed(source, sensor_id, open_us, until_us).items():
                within.setdefault(window.start_of(each_us), {})[each_us] = stats
            return dict(chain.from_iterable(self._longer(tier, sensor_id, *each) for each in sorted(within.items())))
        found = {}
        for each_us, readings in self._completion.readings(sensor_id, first_us, until_us, window).items():
            pane = readings.pane(self._tiers[tier].statistics)
            if pane.stats.events:  # none if it is too wide, or its raw rows have only metadata
                found[each_us] = pane.stats
        if self._tiers[tier].statistics.carries:
            self._completion.neighbours.carry(sensor_id, found, self._now_us)
        return found

    def _longer(
        self, tier: int, sensor_id: str, start_us: int, shorter: dict[int, WindowStats]
    ) -> Iterator[tuple[int, WindowStats]]:
        completion = self._completion.tiers[self._tiers[tier]]
        found = completion.completed(sensor_id, start_us, self._now_us, shorter)
        if found is not None and found.stats.events:
            yield start_us, found.stats
