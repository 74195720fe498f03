"""The table as a reader sees it: sensors' readings and aggregates, each by bounded ranges of keys.

What the table looks like it says itself; the very schema by which rows are written finds and reads them. Nothing here
reads a table from end to end.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from heapq import merge
from itertools import islice
from typing import TypeVar, overload

from pipeline.cloud.errors import ServerProblem
from pipeline.cloud.frames import AggregateRecords, RawRecords
from pipeline.cloud.names import TableName
from pipeline.cloud.row_filters import row_filter
from pipeline.cloud.row_reader import RowReader
from pipeline.cloud.schema_store import agreed_schema
from pipeline.core import aggregates
from pipeline.core.events import LATEST_US, RESERVED_SENSOR_IDS
from pipeline.core.records import AggregateRecord, MetricSummary, RawRecord, newest_first
from pipeline.core.rows import KeyRange, Row, after_prefix, prefix_range
from pipeline.core.schema.agreement import Said
from pipeline.core.schema.layouts import Wanted
from pipeline.core.schema.reading import ForeignRow, Query, events_of, events_of_prefix, sensors_of
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.times import format_time
from pipeline.core.values import parse_value
from pipeline.core.windows import Window

_T = TypeVar("_T")

_THREADS = 8  # that read at a time where several sensors are asked for
_AHEAD = 8000  # records that are read ahead, over all sensors

NOTHING_SAID = Said()
_NO_METADATA: Mapping[str, str] = {}


class ForeignRowProblem(ServerProblem):
    """A row that is not as the table's schema has it."""


class SensorTable:
    """Reads one table, whatever its schema. Made by :meth:`open`.

    Of a row only the families, columns, versions and times that are asked for leave the server. Times are microseconds
    since the epoch; one outside what a row key can hold, 1970 to 2286, stands for the nearest that it can. Where row
    keys are made of metadata (``{metadata.location}``), it has to be said as ``metadata={"location": …}``: a sensor is
    never searched for in the whole table.

    Every method raises ServerProblem for what the server refuses or when it is out of reach, and ValueError for what
    can't be answered: a text that is no sensor's id, a range of time that does not end after it starts, metadata that
    has to be said, a tier that the table does not have. Where an iterator is returned, the ValueError comes from the
    call and the ServerProblem from the iterator.

    Attributes:
        schema: what the table says of itself.
        rows: the rows that it is read by; their reader counts what the server returned.
    """

    def __init__(self, rows: RowReader, schema: TableSchema, threads: ThreadPoolExecutor) -> None:
        self.rows = rows
        self.schema = schema
        self._threads = threads

    @classmethod
    @contextmanager
    def open(cls, project: str, instance: str, table: str, said: Said = NOTHING_SAID) -> Iterator["SensorTable"]:
        """A connection for the length of a ``with`` block, to the emulator where BIGTABLE_EMULATOR_HOST says so.

        Reads the table's schema. Where there is none, ``said`` has to be ``Said(default=True)``, or the table empty.

        Raises:
            ServerProblem: no such table, no schema, or another one than is said; or the server is out of reach.
        """
        with RowReader.open(TableName(project, instance, table)) as rows:
            schema = agreed_schema(rows, said)
            with cls._over(rows.anew(), schema) as opened:
                yield opened

    @classmethod
    @contextmanager
    def of_schema(
        cls, name: TableName, schema: TableSchema, patience_s: float | None = None
    ) -> Iterator["SensorTable"]:
        """The same for a table whose schema is known: nothing is asked before something is read.

        Args:
            name: which table.
            schema: what it looks like.
            patience_s: how long a server that does not answer is waited for.
        """
        with RowReader.open(name, patience_s) as rows, cls._over(rows, schema) as opened:
            yield opened

    @classmethod
    @contextmanager
    def _over(cls, rows: RowReader, schema: TableSchema) -> Iterator["SensorTable"]:
        threads = ThreadPoolExecutor(_THREADS)
        try:
            yield cls(rows, schema, threads)
        finally:
            threads.shutdown(cancel_futures=True)  # what has been read ahead and is not wanted any more

    # Readings

    @overload
    def latest(  # type: ignore[overload-overlap] # a str is an Iterable[str] too, and is one sensor
        self, sensors: str, *, metrics: Iterable[str] | None = None, metadata: Mapping[str, str] = _NO_METADATA
    ) -> RawRecord | None: ...

    @overload
    def latest(
        self,
        sensors: Iterable[str],
        *,
        metrics: Iterable[str] | None = None,
        metadata: Mapping[str, str] = _NO_METADATA,
    ) -> RawRecords: ...

    def latest(
        self,
        sensors: str | Iterable[str],
        *,
        metrics: Iterable[str] | None = None,
        metadata: Mapping[str, str] = _NO_METADATA,
    ) -> RawRecord | RawRecords | None:
        """The newest event of a sensor, None where it has none; of several sensors, an iterator in their order.

        With ``metrics``, the newest event that has one of them, with these readings alone. Reads one row where a row is
        an event; one a metric, and a seek for each, where keys have the metric before the time; the newest bucket, or
        its newest cells, in layouts of buckets. Where keys begin with the time, all rows are passed over until the
        sensor's own is met.
        """
        query = Query(metrics=_names(metrics), limit=1, metadata=metadata)
        if isinstance(sensors, str):
            return next(self._events(sensors, query), None)
        each = [self._ahead(self._events(sensor, query), 1) for sensor in _listed(sensors)]
        return RawRecords((record for records in each for record in records), query.metrics or ())

    def range(
        self,
        sensors: str | Iterable[str],
        start_us: int,
        end_us: int,
        *,
        metrics: Iterable[str] | None = None,
        limit: int | None = None,
        metadata: Mapping[str, str] = _NO_METADATA,
    ) -> RawRecords:
        """The events from ``start_us``, inclusive, to ``end_us``, exclusive, newest first.

        Of several sensors, all of them in one order of time, read in parallel.

        Args:
            sensors: of which sensor, or sensors.
            start_us: the earliest event time.
            end_us: the first that is too late.
            metrics: these readings alone, without metadata; by default everything.
            limit: stop after so many, which are the newest.
            metadata: of the sensors, where row keys are made of it.
        """
        start_us, end_us = _within_keys(start_us, end_us)
        query = Query(start_us, end_us, _names(metrics), limit, metadata)
        if isinstance(sensors, str):
            return RawRecords(self._events(sensors, query), query.metrics or ())
        listed = _listed(sensors)
        size = max(_AHEAD // max(len(listed), 1), 10)
        each = [self._ahead(self._events(sensor, query, size), size) for sensor in listed]
        return RawRecords(islice(merge(*each, key=newest_first), limit), query.metrics or ())

    def prefix(
        self,
        start_us: int,
        end_us: int,
        *,
        sensors: str = "",
        metrics: Iterable[str] | None = None,
        limit: int | None = None,
        metadata: Mapping[str, str] = _NO_METADATA,
    ) -> RawRecords:
        """The events of many sensors by one scan: those of a location, say, or whose ids begin alike.

        Sensor by sensor in the order of keys (against it where keys sort the oldest first), each the newest first.
        The scan passes over all times of these sensors; the server returns those from ``start_us``, inclusive, to
        ``end_us``, exclusive.

        Args:
            start_us: the earliest event time.
            end_us: the first that is too late.
            sensors: what their ids begin with.
            metrics: these readings alone, without metadata; by default everything.
            limit: stop after so many.
            metadata: what row keys begin with, where they are made of metadata.

        Raises:
            ValueError: also where keys do not have such sensors side by side.
        """
        start_us, end_us = _within_keys(start_us, end_us)
        query = Query(start_us, end_us, _names(metrics), limit, metadata)
        found = self._ours(events_of_prefix(self.schema, self._read, sensors, query))
        return RawRecords(found, query.metrics or ())

    def sensors(self, prefix: str = "", metadata: Mapping[str, str] = _NO_METADATA) -> Iterator[str]:
        """Every sensor that has a raw row, in the order of keys, or of those whose ids begin with ``prefix``.

        Costs one seek a sensor, however many rows it has: each reads the key of the first row behind the sensor before.
        One more finds the end, and one each jumps over the rows that are no sensor's. Where something else comes before
        the sensor in row keys, one seek for each of its combinations with a sensor.

        Where keys begin with the time, the sensors are those that have an aggregate, read the same way; ValueError
        where the table has no aggregates either.
        """
        if not self.schema.key.time_first:
            return self._ours(sensors_of(self.schema, self._read, prefix, metadata))
        if not self.schema.tiers:
            raise ValueError(f"keys of {self.schema.key} begin with the time: sensors can't be listed by them")
        return self._ours(self._aggregated_sensors(prefix))

    # Aggregates

    def aggregates(
        self, sensors: str | Iterable[str], start_us: int, end_us: int, *, tier: Window | str | None = None
    ) -> AggregateRecords:
        """The windows that start from ``start_us``, inclusive, to ``end_us``, exclusive, oldest first.

        Of several sensors, all of them in one order of time, read in parallel.

        Args:
            sensors: of which sensor, or sensors.
            start_us: the earliest start of a window.
            end_us: the first instant that is too late for one.
            tier: which windows, as in ``"1d"``; by default the shortest that the table has.
        """
        of_tier = self._tier(Window.parse(tier) if isinstance(tier, str) else tier)
        start_us, end_us = _within_keys(start_us, end_us)
        if isinstance(sensors, str):
            return AggregateRecords(self._aggregates(of_tier, sensors, start_us, end_us))
        listed = _listed(sensors)
        size = max(_AHEAD // max(len(listed), 1), 10)
        each = [self._ahead(self._aggregates(of_tier, sensor, start_us, end_us, size), size) for sensor in listed]
        return AggregateRecords(merge(*each, key=lambda record: record.start_us))

    def _tier(self, window: Window | None) -> Tier:
        tiers = self.schema.tiers
        wanted = window and aggregates.aggregate_prefix(window)  # 60m is 1h, by its keys, and 5400s is not 90m
        found = next((tier for tier in tiers if wanted in (None, aggregates.aggregate_prefix(tier.window))), None)
        if found is None:
            there_are = ", ".join(tier.window.text for tier in tiers) or "none"
            asked = f"of {window.text}" if window else "at all"
            raise ValueError(f"the table has no aggregates {asked}; its tiers: {there_are}")
        return found

    def _aggregates(
        self, tier: Tier, sensor_id: str, start_us: int, end_us: int, page_rows: int | None = None
    ) -> Iterator[AggregateRecord]:
        _check_sensor_id(sensor_id)
        key_range = aggregates.aggregate_range(tier.window, sensor_id, start_us, end_us)
        rows = self.rows.read(key_range, row_filter(Wanted((tier.family,), versions=1)), page_rows=page_rows)
        return self._ours(_each(rows, partial(_aggregate_record, tier.window)))

    def _aggregated_sensors(self, prefix: str) -> Iterator[str]:
        tier = self.schema.tiers[0]
        start, end = prefix_range((aggregates.aggregate_prefix(tier.window) + prefix).encode())
        while row := next(self._read(KeyRange(start, end), _KEY_ALONE, None, 1, reverse=False), None):
            key = next(_each([row], lambda row: aggregates.parse_aggregate_key(tier.window, row.key)))
            yield key.sensor_id
            start = after_prefix(f"{aggregates.aggregate_prefix(tier.window)}{key.sensor_id}#".encode())

    # How it is read

    def _events(self, sensor_id: str, query: Query, most_rows: int | None = None) -> Iterator[RawRecord]:
        """A sensor's events, read in pages of so many rows at most."""
        _check_sensor_id(sensor_id)
        if query.start_us == query.end_us:  # outside what keys can hold
            return iter(())

        def read(
            key_range: KeyRange, wanted: Wanted, pattern: str | None, page_rows: int | None, *, reverse: bool
        ) -> Iterator[Row]:
            page_rows = min((rows for rows in (page_rows, most_rows) if rows), default=None)
            return self._read(key_range, wanted, pattern, page_rows, reverse=reverse)

        return self._ours(events_of(self.schema, read, sensor_id, query))

    def _read(
        self, key_range: KeyRange, wanted: Wanted, pattern: str | None, page_rows: int | None, *, reverse: bool
    ) -> Iterator[Row]:
        return self.rows.read(key_range, row_filter(wanted, pattern), page_rows=page_rows, reverse=reverse)

    def _ours(self, records: Iterator[_T]) -> Iterator[_T]:
        """The records, or a ServerProblem where a row is not as the schema has it."""

        def told() -> Iterator[_T]:
            try:
                yield from records
            except ForeignRow as problem:
                raise ForeignRowProblem(f"table {self.rows.name}: {problem}") from problem

        return told()

    def _ahead(self, records: Iterator[_T], size: int) -> Iterator[_T]:
        """The same records, the next ``size`` of which another thread has begun to read."""
        batch = self._threads.submit(list, islice(records, size))

        def batches() -> Iterator[_T]:
            nonlocal batch
            while ready := batch.result():
                batch = self._threads.submit(list, islice(records, size))
                yield from ready

        return batches()


def _each(rows: Iterable[Row], parse: Callable[[Row], _T]) -> Iterator[_T]:
    for row in rows:
        try:
            yield parse(row)
        except (ValueError, KeyError) as error:
            raise ForeignRow(row, error) from error


def _aggregate_record(window: Window, row: Row) -> AggregateRecord:
    key = aggregates.parse_aggregate_key(window, row.key)
    reading_count = 0
    statistics: dict[str, dict[str, float]] = defaultdict(dict)
    for cell in row.cells:
        qualifier, value = cell.qualifier.decode(), parse_value(cell.value)
        if qualifier == aggregates.READING_COUNT:
            reading_count = int(value)
        else:
            statistic, metric = aggregates.split_qualifier(qualifier)
            statistics[metric][statistic] = value
    metrics = {metric: _metric_summary(of_metric) for metric, of_metric in statistics.items()}
    return AggregateRecord(key.sensor_id, key.start_us, window, reading_count, metrics)


def _metric_summary(statistics: dict[str, float]) -> MetricSummary:
    count, *others = (statistics[name] for name in aggregates.STATISTICS)
    return MetricSummary(int(count), *others)


_KEY_ALONE = Wanted((), keys_only=True)


def _names(metrics: Iterable[str] | None) -> tuple[str, ...] | None:
    if metrics is None:
        return None
    named = (metrics,) if isinstance(metrics, str) else tuple(dict.fromkeys(metrics))
    if not named or not all(named):
        raise ValueError("metrics names none; leave it out for all of them")
    return named


def _listed(sensors: Iterable[str]) -> list[str]:
    listed = list(dict.fromkeys(sensors))
    for sensor_id in listed:
        _check_sensor_id(sensor_id)
    return listed


def _check_sensor_id(text: str) -> None:
    """Refuses what no valid event can have, above all what would lead to rows that are not one sensor's."""
    if not text or not text.isascii() or "#" in text or text in RESERVED_SENSOR_IDS:
        raise ValueError(f"{text!r} can't be a sensor's id")


def _within_keys(start_us: int, end_us: int) -> tuple[int, int]:
    """The range, cut to the times that keys can hold; empty where it lies outside."""
    for time_us in (start_us, end_us):
        if not isinstance(time_us, int):
            raise TypeError(f"{time_us!r} is no time: whole microseconds since the epoch are, as parse_time gives them")
    if start_us >= end_us:
        raise ValueError(f"no range of time: {_shown(start_us)} is not before {_shown(end_us)}")
    return min(max(start_us, 0), LATEST_US + 1), min(max(end_us, 0), LATEST_US + 1)


def _shown(time_us: int) -> str:
    try:
        return format_time(time_us)
    except OverflowError:
        return f"{time_us} µs since the epoch"
