"""The table as a reader sees it: a sensor's readings and aggregates, each by a bounded range scan.

Nothing here reads a table from end to end. A long range comes in pages of :data:`PAGE_ROWS` rows, each page a
request with a deadline of its own: a reader may take its time over what it has, and never holds more than a page.
"""

import logging
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from google.api_core.exceptions import DeadlineExceeded
from google.cloud.bigtable import data
from google.cloud.bigtable.data import row_filters

from pipeline.cloud.errors import ServerProblem, explained
from pipeline.cloud.names import TableName
from pipeline.core import rows
from pipeline.core.events import LATEST_US, RESERVED_SENSOR_IDS
from pipeline.core.rows import Families, KeyRange
from pipeline.core.times import format_time
from pipeline.core.windows import HOURLY, Window

_Record = TypeVar("_Record")

PAGE_ROWS = 1000
TIMEOUT_S = 15.0  # of one request, with all its retries: how long an unreachable server is waited for

DEFAULT_FAMILIES = Families()

_TO_THE_END = b""  # as the end of a range, in Bigtable's own convention
_KEYS_ONLY = row_filters.RowFilterChain(
    [row_filters.CellsRowLimitFilter(1), row_filters.StripValueTransformerFilter(flag=True)]
)


@dataclass(frozen=True, slots=True)
class RawRecord:
    """One event, as its raw row has it. Readings and metadata are sorted by name."""

    sensor_id: str
    event_time_us: int
    readings: dict[str, float]
    metadata: dict[str, str]


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """The statistics of one metric in one window. A sum that overflowed is infinite; nothing is NaN."""

    count: int
    sum: float
    min: float
    max: float
    avg: float
    stddev: float


@dataclass(frozen=True, slots=True)
class AggregateRecord:
    """One window of one sensor, as its aggregate row has it. Metrics are sorted by name."""

    sensor_id: str
    start_us: int
    window: Window
    reading_count: int
    metrics: dict[str, MetricSummary]


class SensorTable:
    """Reads one table. Made by :meth:`open`.

    Of every cell the newest version is read, and of every row the families that are asked for; the server leaves
    the others out. Times are microseconds since the epoch; one outside what a row key can hold, 1970 to 2286,
    stands for the nearest that it can.

    Every method raises ServerProblem for what the server refuses or when it is out of reach, which takes at most
    :data:`TIMEOUT_S` to find out, and ValueError for a text that can't be a sensor's id and for a range of time
    that does not end after it starts. Where an iterator is returned, the ValueError comes from the call and the
    ServerProblem from the iterator.
    """

    def __init__(self, table: data.Table, name: TableName, families: Families) -> None:
        self._table = table
        self._name = name
        self._families = families

    @classmethod
    @contextmanager
    def open(
        cls, project: str, instance: str, table: str, families: Families = DEFAULT_FAMILIES
    ) -> Iterator["SensorTable"]:
        """A connection for the length of a ``with`` block, to the emulator where BIGTABLE_EMULATOR_HOST says so.

        Nothing is read yet: a table that does not exist is told by the first read.
        """
        name = TableName(project, instance, table)
        with explained(f"table {name}"):
            client = _client(project)
        with client:
            yield cls(client.get_table(instance, table), name, families)

    def latest(self, sensor_id: str) -> RawRecord | None:
        """The sensor's newest event; None where it has none. Reads one row."""
        _check_sensor_id(sensor_id)
        scan = self._scan(rows.sensor_range(sensor_id), self._raw_cells(), limit=1)
        return next(self._records(scan, self._raw_record), None)

    def range(self, sensor_id: str, start_us: int, end_us: int, limit: int | None = None) -> Iterator[RawRecord]:
        """The sensor's events from ``start_us``, inclusive, to ``end_us``, exclusive, newest first.

        Scans the keys of that range alone, and stops after ``limit`` rows, which are the newest.
        """
        _check_sensor_id(sensor_id)
        start_us, end_us = _within_keys(start_us, end_us)
        if start_us == end_us:
            return iter(())
        scan = self._scan(rows.raw_range(sensor_id, start_us, end_us), self._raw_cells(), limit)
        return self._records(scan, self._raw_record)

    def aggregates(
        self, sensor_id: str, start_us: int, end_us: int, window: Window = HOURLY
    ) -> Iterator[AggregateRecord]:
        """The sensor's windows that start from ``start_us``, inclusive, to ``end_us``, exclusive, oldest first.

        Scans the keys of that range alone.

        Args:
            sensor_id: of which sensor.
            start_us: the earliest start of a window.
            end_us: the first instant that is too late for one.
            window: as the job that wrote them was given it: the keys of ``90m`` and ``5400s`` are not the same.
        """
        _check_sensor_id(sensor_id)
        start_us, end_us = _within_keys(start_us, end_us)
        scan = self._scan(rows.aggregate_range(window, sensor_id, start_us, end_us), self._aggregate_cells())
        return self._records(scan, partial(_aggregate_record, window))

    def sensors(self) -> Iterator[str]:
        """Every sensor that has a raw row, in the order of keys.

        Costs one seek a sensor, however many rows it has: each reads the key, without a value, of the first row
        behind the sensor before. One more finds the end, and one each jumps over the rows that are no sensor's.
        """
        start = b""
        while page := self._read(KeyRange(start, _TO_THE_END), _KEYS_ONLY, limit=1):
            (segment,) = self._records(page, lambda row: rows.first_segment(row.row_key))
            if segment not in RESERVED_SENSOR_IDS:
                yield segment
            start = rows.after_first_segment(segment)

    def _records(self, scan: Iterable[data.Row], parse: Callable[[data.Row], _Record]) -> Iterator[_Record]:
        for row in scan:
            try:
                yield parse(row)
            except (ValueError, KeyError) as error:
                raise ServerProblem(f"table {self._name}: row {row.row_key!r} is not one of Tidetable's") from error

    def _scan(self, key_range: KeyRange, cells: row_filters.RowFilter, limit: int | None = None) -> Iterator[data.Row]:
        """The rows of a range in the order of keys, at most ``limit``, a page at a time."""
        start, end = key_range
        while start < end and limit != 0:
            size = PAGE_ROWS if limit is None else min(limit, PAGE_ROWS)
            page = self._read(KeyRange(start, end), cells, size)
            yield from page
            if len(page) < size:
                return
            start = page[-1].row_key + b"\x00"
            limit = None if limit is None else limit - size

    def _read(self, key_range: KeyRange, cells: row_filters.RowFilter, limit: int) -> list[data.Row]:
        query = data.ReadRowsQuery(
            row_ranges=data.RowRange(key_range.start, key_range.end), row_filter=cells, limit=limit
        )
        with explained(f"table {self._name}"):
            try:
                return self._table.read_rows(query, operation_timeout=TIMEOUT_S)
            except DeadlineExceeded as error:
                raise _last_failure(error) from error

    def _raw_cells(self) -> row_filters.RowFilter:
        return _newest_of(self._families.raw, self._families.meta)

    def _aggregate_cells(self) -> row_filters.RowFilter:
        return _newest_of(self._families.stats)

    def _raw_record(self, row: data.Row) -> RawRecord:
        key = rows.parse_raw_key(row.row_key)
        readings = {}
        metadata = {}
        for cell in row.cells:
            if cell.family == self._families.raw:
                readings[cell.qualifier.decode()] = rows.parse_value(cell.value)
            else:
                metadata[cell.qualifier.decode()] = cell.value.decode()
        return RawRecord(key.sensor_id, key.event_time_us, readings, metadata)


def _aggregate_record(window: Window, row: data.Row) -> AggregateRecord:
    key = rows.parse_aggregate_key(window, row.row_key)
    reading_count = 0
    statistics: dict[str, dict[str, float]] = defaultdict(dict)
    for cell in row.cells:
        qualifier, value = cell.qualifier.decode(), rows.parse_value(cell.value)
        if qualifier == rows.READING_COUNT:
            reading_count = int(value)
        else:
            statistic, metric = rows.split_aggregate_qualifier(qualifier)
            statistics[metric][statistic] = value
    metrics = {metric: _metric_summary(of_metric) for metric, of_metric in statistics.items()}
    return AggregateRecord(key.sensor_id, key.start_us, window, reading_count, metrics)


def _metric_summary(statistics: dict[str, float]) -> MetricSummary:
    count, *others = (statistics[name] for name in rows.STATISTICS)
    return MetricSummary(int(count), *others)


def _newest_of(*families: str) -> row_filters.RowFilter:
    """A filter for the newest version of every cell of these families."""
    return row_filters.RowFilterChain(
        [
            row_filters.FamilyNameRegexFilter("|".join(map(re.escape, families))),
            row_filters.CellsColumnLimitFilter(1),
        ]
    )


def _check_sensor_id(text: str) -> None:
    """Refuses what no valid event can have, above all what would lead to rows that are not one sensor's."""
    if not text or not text.isascii() or "#" in text or text in RESERVED_SENSOR_IDS:
        raise ValueError(f"{text!r} can't be a sensor's id")


def _within_keys(start_us: int, end_us: int) -> tuple[int, int]:
    """The range, cut to the times that keys can hold; empty where it lies outside."""
    if start_us >= end_us:
        raise ValueError(f"no range of time: {format_time(start_us)} is not before {format_time(end_us)}")
    return min(max(start_us, 0), LATEST_US + 1), min(max(end_us, 0), LATEST_US + 1)


def _last_failure(error: DeadlineExceeded) -> Exception:
    """Of a request that was tried until its time was up, why the last try failed: that says more than the time."""
    tries = error.__cause__
    return tries.exceptions[-1] if isinstance(tries, ExceptionGroup) else error


def _client(project: str) -> data.BigtableDataClient:
    # The client sends metrics of its own to Cloud Monitoring and can't be told not to. Where that fails, above all
    # for want of a permission that reading a table does not need, it is nothing to bother a reader with.
    logging.getLogger("google.cloud.bigtable.data._metrics").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        # Whoever sets BIGTABLE_EMULATOR_HOST knows; the warning would be the first line of every command.
        warnings.filterwarnings("ignore", "Connecting to Bigtable emulator", RuntimeWarning)
        return data.BigtableDataClient(project=project)
