"""Answers queries for windows: from aggregate rows, or fresh from raw rows, with gaps filled or left."""

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import NamedTuple

from pipeline.core.answers.gaps import Fill, check_fill, filled
from pipeline.core.answers.read_arguments import OPEN_FOR
from pipeline.core.events.event import checked_sensor_id
from pipeline.core.queries.reads import BoundedReads, OnForeign, ReadRows
from pipeline.core.queries.windows import tier_of, windows_of
from pipeline.core.rows.records import AggregateRecord
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.windows import Window

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
    """

    window: Window | None
    start_us: int
    end_us: int
    metrics: tuple[str, ...] | None = None
    fill: Fill = Fill.NONE
    fresh: bool = False
    open_for: timedelta = OPEN_FOR
    max_rows: int = 0


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
        ValueError: at once, if the table lacks the tier, or for too many windows to fill.
        TooManyRows: while reading, if a fresh answer needs more rows than the query allows, over all sensors.
    """
    tier = tier_of(schema, query.window)
    start_us, end_us, metrics = query.start_us, query.end_us, query.metrics
    if query.fill != Fill.NONE:
        check_fill(tier.window, start_us, end_us)
    if query.fresh:
        from pipeline.core.answers.open_windows import FreshWindows  # slow to import, and used for nothing else here

        bounded = BoundedReads(read, query.max_rows)
        fresh = FreshWindows(schema, retention(), bounded, time.time_ns() // 1000, query.open_for, on_foreign)

    def answer(sensor_id: str, page_rows: int | None) -> Iterator[AggregateRecord]:
        checked_sensor_id(sensor_id)
        if query.fresh:
            found = fresh.of(tier, sensor_id, start_us, end_us, metrics)
        else:
            found = windows_of(tier, read, sensor_id, start_us, end_us, metrics, page_rows, on_foreign)
        if query.fill == Fill.NONE:
            return found
        empty = AggregateRecord(sensor_id, 0, tier.window, 0, {}, filled=True)
        return filled(found, empty, start_us, end_us, query.fill)

    return answer
