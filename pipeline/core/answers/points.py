"""Chooses the points of a metric that a line chart needs.

M4 keeps the first, the last, the least and the greatest reading of each column of pixels: a line through them colours
the same pixels as one through all readings. U. Jugel, Z. Jerzak, G. Hackenbroich, V. Markl, "M4: A Visualization-
Oriented Time Series Data Aggregation", PVLDB 7 (2014).

Aggregate rows that contain these four answer for whole windows. They need not contain the times of the least and the
greatest value, which do not change the picture of a column.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from pipeline.core.completion.work_list import work_range_of
from pipeline.core.queries.events import Query, events_of
from pipeline.core.queries.reads import BoundedReads, OnForeign, ReadRows, RowSelection, TooManyRowsError
from pipeline.core.queries.windows import windows_of
from pipeline.core.rows.aggregate_rows import aggregate_range, parse_aggregate_key
from pipeline.core.rows.records import MetricSummary
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.windows import Window

FROM_READINGS = "raw"
"""The source of points that are readings."""

_PER_COLUMN = 4
_NEEDED = frozenset({"first", "last", "min", "max"})
_MICROSECOND = timedelta(microseconds=1)


class Point(NamedTuple):
    """One point of a line."""

    time_us: int
    value: float


@dataclass(frozen=True, slots=True)
class Points:
    """The points of a line.

    Attributes:
        sensor_id: the sensor.
        metric: the metric.
        source: ``raw``, or the tier whose windows answer, like ``1m``; the ends of the range, and times before the tier
            has rows, are from raw rows.
        exact: whether the line colours the same pixels as one through all readings, in columns as wide as these.
        incomplete_before_us: the time before which readings may be missing, as their rows may have been collected or
            never written; None if there is none in the range.
        start_us: the start of the first column.
        column_us: the width of a column.
        points: the points in order of time, at most four in a column.
        rows_read: the number of rows read for the answer.
    """

    sensor_id: str
    metric: str
    source: str
    exact: bool
    incomplete_before_us: int | None
    start_us: int
    column_us: int
    points: tuple[Point, ...]
    rows_read: int


class _PointColumn:
    """The four points of a column."""

    __slots__ = ("first", "greatest", "last", "least")

    def __init__(self, point: Point) -> None:
        self.first = self.last = self.least = self.greatest = point

    def add(self, point: Point) -> None:
        if point.time_us < self.first.time_us:
            self.first = point
        if point.time_us > self.last.time_us:
            self.last = point
        if point.value < self.least.value:
            self.least = point
        if point.value > self.greatest.value:
            self.greatest = point


class PointQuery(NamedTuple):
    """The points to find.

    Attributes:
        sensor_id: the sensor.
        metric: the metric.
        start_us: the start of the range, inclusive.
        end_us: the end of the range, exclusive.
        max_points: the most points.
        metadata: the sensor's metadata, if row keys contain it.
        open_for: the time after its end in which a window counts as open: raw rows answer for it.
        max_rows: the most rows to read.
    """

    sensor_id: str
    metric: str
    start_us: int
    end_us: int
    max_points: int
    metadata: Mapping[str, str]
    open_for: timedelta
    max_rows: int


def points_of(
    schema: TableSchema, retention: Retention, read: ReadRows, query: PointQuery, on_foreign: OnForeign
) -> Points:
    """Returns points from the source that answers exactly with the fewest rows, or else nearly with few enough.

    A source that may lack readings of the range comes last. Raises ValueError if every answer would take too many rows,
    or for fewer points than a column has.
    """
    if query.max_points < _PER_COLUMN:
        raise ValueError(f"max_points is {query.max_points}; a column alone has {_PER_COLUMN}")
    return _Search(schema, retention, read, query, on_foreign).find(query.max_rows)


_Way = Callable[[BoundedReads], Points | None]


class _Search:
    def __init__(
        self, schema: TableSchema, retention: Retention, read: ReadRows, query: PointQuery, on_foreign: OnForeign
    ) -> None:
        self._schema = schema
        self._read = read
        self._sensor_id = query.sensor_id
        self._metric = query.metric
        self._start_us, self._end_us = query.start_us, query.end_us
        self._most_columns = query.max_points // _PER_COLUMN
        self._metadata = query.metadata
        now_us = time.time_ns() // 1000
        self._over_us = now_us - query.open_for // _MICROSECOND
        self._on_foreign = on_foreign
        self._raw_us = retention.has_events_from_us(now_us, schema.metrics.family_of(query.metric))
        self._tier_us = {tier: retention.has_windows_from_us(tier, now_us) for tier in schema.tiers}

    def find(self, max_rows: int) -> Points:
        exact = sorted(filter(self._answers, reversed(self._schema.tiers)), key=self._lacking_us)
        tiers = sorted(self._schema.tiers, key=self._lacking_us)
        at_least = min(map(self._lacking_us, tiers), default=self._end_us)
        nearly: list[_Way] = [partial(self._nearly_from_tier, tier) for tier in tiers]
        raw_first = self._missing_until(self._raw_us) <= at_least
        ways: list[_Way] = [
            *(partial(self._from_tier, tier) for tier in exact),
            *([self._from_readings, *nearly] if raw_first else [*nearly, self._from_readings]),
        ]
        for way in ways:
            read = BoundedReads(self._read, max_rows)
            try:
                found = way(read)
            except TooManyRowsError:
                continue
            if found is not None:
                return found
        raise ValueError(f"{self._sensor_id} has more than {max_rows:,} rows in this range: ask for a shorter one")

    def _missing_until(self, complete_us: int) -> int:
        """Returns the time in the range before which a source may lack readings; the range's start if it has all."""
        return max(min(complete_us, self._end_us), self._start_us)

    def _lacking_us(self, tier: Tier) -> int:
        return self._missing_until(self._tier_us[tier])

    def _answers(self, tier: Tier) -> bool:
        """Whether windows are no wider than columns, and their rows have what the picture needs."""
        names = {statistic.name for statistic in tier.statistics.of(self._metric)}
        fixed = tier.window.grain_us == tier.window.length_us  # windows of a zone's calendar differ in length
        return (
            fixed and names >= _NEEDED and tier.window.length_us * self._most_columns <= self._end_us - self._start_us
        )

    def _from_tier(self, tier: Tier, read: BoundedReads) -> Points | None:
        """Returns points of windows, and of raw rows where the tier has none; None if readings may be missing."""
        window = tier.window
        begin_us = window.first_start(self._lacking_us(tier))
        end_us = max(begin_us, min(window.start_of(self._end_us), window.start_of(self._over_us)))
        from_raw = [
            span
            for span in ((self._start_us, min(begin_us, self._end_us)), (end_us, self._end_us))
            if span[0] < span[1]
        ]
        if (
            begin_us == end_us
            or any(start_us < self._raw_us for start_us, _ in from_raw)
            or self._is_listed(read, begin_us, end_us)
        ):
            return None
        columns = _PointColumns(window, self._start_us, self._end_us, self._most_columns)
        first_us = end_us
        for each_us, summary in self._windows(tier, read, begin_us, end_us):
            first_us = min(first_us, each_us)
            if not summary.more.keys() >= {"first", "last"} or summary.min is None or summary.max is None:
                return None  # written before these statistics were declared
            columns.add_summary(summary)
        if self._has_lost_rows(tier, read, begin_us, first_us):
            return self._from_tier(tier, read)
        for from_us, to_us in from_raw:
            columns.add(self._readings(read, from_us, to_us))
        return self._points(window.text, columns, read, self._start_us)

    def _has_lost_rows(self, tier: Tier, read: ReadRows, begin_us: int, end_us: int) -> bool:
        """Whether the sensor has readings before its first row in the tier; notes from when on the tier has rows then.

        Retention can't tell so if another program shortened the tier's policy for a time. Nearly always, there are no
        readings, which costs two empty reads; where keys begin with the time, it would cost all sensors' readings.
        """
        if begin_us == end_us or self._schema.key.time_first:
            return False
        keys = aggregate_range(tier.window, self._sensor_id, begin_us, end_us)
        first = next(read(RowSelection(keys, CellSelection((), keys_only=True), page_rows=1)), None)
        first_us = end_us if first is None else parse_aggregate_key(tier.window, first.key).start_us
        if next(self._readings(read, begin_us, first_us, limit=1), None) is None:
            return False
        self._tier_us[tier] = first_us
        return True

    def _is_listed(self, read: ReadRows, start_us: int, end_us: int) -> bool:
        """Whether a window awaits a repair: its row, and those of longer ones, may count too little."""
        windows = [tier.window for tier in self._schema.tiers]  # any of them was the shortest when it was listed
        keys = tuple(work_range_of(each, self._sensor_id, each.start_of(start_us), end_us) for each in windows)
        return next(read(RowSelection(keys, CellSelection((), keys_only=True), page_rows=1)), None) is not None

    def _from_readings(self, read: BoundedReads) -> Points:
        self._check_count(read)
        columns = _PointColumns(None, self._start_us, self._end_us, self._most_columns)
        columns.add(self._readings(read, self._start_us, self._end_us))
        return self._points(FROM_READINGS, columns, read, self._raw_us)

    def _nearly_from_tier(self, tier: Tier, read: BoundedReads) -> Points:
        """Returns points of windows, with averages if rows lack the first and the last readings."""
        window = tier.window
        columns = _PointColumns(window, self._start_us, self._end_us, self._most_columns)
        start_us = window.start_of(self._start_us)
        for each_us, summary in self._windows(tier, read, start_us, self._end_us):
            middle_us = each_us + (window.end_of(each_us) - each_us) // 2
            columns.add(
                Point(min(max(middle_us, self._start_us), self._end_us - 1), value)
                for value in (summary.value("first"), summary.min, summary.avg, summary.max, summary.value("last"))
                if value is not None
            )
        return self._points(window.text, columns, read, self._tier_us[tier], nearly=True)

    def _check_count(self, read: BoundedReads) -> None:
        """Raises TooManyRowsError if the aggregates of the shortest tier count more readings than may be read."""
        if not self._schema.tiers or self._schema.layout.bucketed:
            return
        tier = self._schema.tiers[0]
        begin_us, end_us = tier.window.first_start(self._start_us), tier.window.start_of(self._end_us)
        if tier.window.count(begin_us, end_us) * 2 > read.left:  # counting would not pay
            return
        count = sum(summary.count for summary in self._summaries(tier, read, begin_us, end_us))
        if count > read.left:
            raise TooManyRowsError

    def _summaries(self, tier: Tier, read: ReadRows, start_us: int, end_us: int) -> Iterator[MetricSummary]:
        return (summary for _, summary in self._windows(tier, read, start_us, end_us))

    def _windows(self, tier: Tier, read: ReadRows, start_us: int, end_us: int) -> Iterator[tuple[int, MetricSummary]]:
        if start_us >= end_us:
            return
        metrics = (self._metric,)
        for record in windows_of(tier, read, self._sensor_id, start_us, end_us, metrics, None, self._on_foreign):
            yield record.start_us, record.metrics[self._metric]

    def _readings(self, read: ReadRows, start_us: int, end_us: int, limit: int | None = None) -> Iterator[Point]:
        if start_us >= end_us:
            return
        query = Query(start_us, end_us, (self._metric,), limit, self._metadata)
        for record in events_of(self._schema, read, self._sensor_id, query, self._on_foreign):
            yield Point(record.event_time_us, record.readings[self._metric])

    def _points(
        self, source: str, columns: "_PointColumns", read: BoundedReads, complete_us: int, *, nearly: bool = False
    ) -> Points:
        return Points(
            self._sensor_id,
            self._metric,
            source,
            exact=not nearly and complete_us <= self._start_us,
            incomplete_before_us=min(complete_us, self._end_us) if complete_us > self._start_us else None,
            start_us=columns.start_us,
            column_us=columns.column_us,
            points=tuple(columns.points()),
            rows_read=read.rows,
        )


class _PointColumns:
    """Columns of a range of time, each as wide as some whole windows.

    Args:
        window: columns begin and end with windows; None for columns that begin with the range.
        start_us: the start of the range.
        end_us: the end of the range.
        most: the most columns.
    """

    def __init__(self, window: Window | None, start_us: int, end_us: int, most: int) -> None:
        self.start_us = window.start_of(start_us) if window else start_us
        grain_us = window.grain_us if window else 1
        self.column_us = max(-(-(end_us - self.start_us) // (most * grain_us)), 1) * grain_us
        self._columns: dict[int, _PointColumn] = {}

    def add(self, points: Iterable[Point]) -> None:
        start_us, column_us, columns = self.start_us, self.column_us, self._columns
        for point in points:
            index = (point.time_us - start_us) // column_us
            if index in columns:
                columns[index].add(point)
            else:
                columns[index] = _PointColumn(point)

    def add_summary(self, summary: MetricSummary) -> None:
        """Adds a window. Its extremes are placed between its first and its last reading."""
        times = [int(summary.more["first_time"]), int(summary.more["last_time"])]
        between_us = sum(times) // 2
        least, greatest = summary.min, summary.max
        assert least is not None  # noqa: S101 (checked by the caller)
        assert greatest is not None  # noqa: S101
        first, last = Point(times[0], summary.more["first"]), Point(times[1], summary.more["last"])
        self.add((first, last))
        self.add(Point(between_us, value) for value in (least, greatest) if value not in (first.value, last.value))

    def points(self) -> Iterator[Point]:
        """Yields the points in order of time, each once."""
        for _, column in sorted(self._columns.items()):
            yield from sorted({column.first, column.least, column.greatest, column.last})
