"""Answers queries for windows: from aggregate rows, or fresh from raw rows, with gaps filled or left."""

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from itertools import chain
from typing import NamedTuple

from pipeline.core.answers.enough_data import ANY_DATA, LeastData, check_least, with_enough
from pipeline.core.answers.gaps import Fill, check_fill, filled
from pipeline.core.answers.read_arguments import OPEN_FOR
from pipeline.core.completion.stored_windows import Completion
from pipeline.core.events.event import checked_sensor_id
from pipeline.core.queries.reads import BoundedReads, ForeignRow, OnForeign, ReadRows
from pipeline.core.queries.windows import selected, tier_of, windows_of
from pipeline.core.rows.aggregate_rows import aggregate_record, stats_of
from pipeline.core.rows.records import AggregateRecord
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.statistics.window_stats import WindowStats, covers
from pipeline.core.windows import Window, sources

_MICROSECOND = timedelta(microseconds=1)

Answer = Callable[[str, int | None], Iterator[AggregateRecord]]
"""Returns a sensor's windows, given its id and the number of rows in a page."""


class WindowQuery(NamedTuple):
    """The windows to read.

    Attributes:
        window: the length of windows; None for the shortest.
        start_us: the earliest start, inclusive.
        end_us: the latest start, exclusive.
        metrics: the metrics to return, without windows that have none of them; None for all.
        fill: the content of windows without a row.
        fresh: whether to compute open windows from raw rows.
        open_for: the time after its end in which a window counts as open.
        max_rows: the most rows that a fresh answer reads.
        least: the data that a metric needs in a window; without it, the metric counts as missing.
    """

    window: Window | None
    start_us: int
    end_us: int
    metrics: tuple[str, ...] | None = None
    fill: Fill = Fill.NONE
    fresh: bool = False
    open_for: timedelta = OPEN_FOR
    max_rows: int = 0
    least: LeastData = ANY_DATA


def incomplete_before(schema: TableSchema, retention: Retention, query: WindowQuery) -> int | None:
    """Returns the start before which windows may be missing; None if there is none in the range.

    Their rows may have been collected, or the tier was added later. An open window of a fresh answer is not missing if
    its raw rows are there.
    """
    tier, now_us = tier_of(schema, query.window), time.time_ns() // 1000
    from_us = retention.has_windows_from_us(tier, now_us)
    if query.fresh:
        open_us = tier.window.start_of(now_us - query.open_for // _MICROSECOND)
        from_us = min(from_us, max(open_us, retention.has_events_from_us(now_us)))
    return _within(from_us, tier.window, query.start_us, query.end_us)


def group_incomplete_before(tier: Tier, retention: Retention, start_us: int, end_us: int) -> int | None:
    """Returns the start before which windows of groups may be missing, as their rows may have been collected."""
    from_us = retention.has_windows_from_us(tier, time.time_ns() // 1000)
    return _within(from_us, tier.window, start_us, end_us)


def _within(from_us: int, window: Window, start_us: int, end_us: int) -> int | None:
    return min(from_us, end_us) if from_us > window.first_start(start_us) < end_us else None


def answers(
    schema: TableSchema, retention: Callable[[], Retention], read: ReadRows, query: WindowQuery, on_foreign: OnForeign
) -> Answer:
    """Returns the function that answers for each sensor.

    Raises:
        ValueError: at once, if the table lacks the tier or a needed ``[rate]``, or for too many windows to fill.
        TooManyRowsError: while reading, if a fresh answer needs more rows than the query allows, over all sensors.
    """
    tier = tier_of(schema, query.window)
    start_us, end_us, metrics = query.start_us, query.end_us, query.metrics
    check_least(tier, query.least)
    if query.fill != Fill.NONE:
        check_fill(tier.window, start_us, end_us)
    if query.fresh:
        from pipeline.core.answers.window_answers import FreshWindows  # slow to import, and used for nothing else here

        bounded = BoundedReads(read, query.max_rows)
        fresh = FreshWindows(schema, retention(), bounded, time.time_ns() // 1000, query.open_for, on_foreign)

    def answer(sensor_id: str, page_rows: int | None) -> Iterator[AggregateRecord]:
        checked_sensor_id(sensor_id)
        if query.fresh:
            found = fresh.of(tier, sensor_id, start_us, end_us, metrics)
        else:
            found = windows_of(tier, read, sensor_id, start_us, end_us, metrics, page_rows, on_foreign)
        found = with_enough(found, tier, query.least)
        if query.fill == Fill.NONE:
            return found
        empty = AggregateRecord(sensor_id, 0, tier.window, 0, {}, filled=True)
        return filled(found, empty, start_us, end_us, query.fill)

    return answer


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
