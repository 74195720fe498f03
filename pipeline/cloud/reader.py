"""The table as a reader sees it: sensors' readings and aggregates, each by bounded ranges of keys.

What the table looks like it says itself; the very schema by which rows are written finds and reads them. Nothing here
reads a table from end to end.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
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
from pipeline.core.records import AggregateRecord, RawRecord, newest_first
from pipeline.core.rows import KeyRange, Row, prefix_range
from pipeline.core.schema.declared import DeclaredSchema
from pipeline.core.schema.foreign import ForeignRow, ForeignRows, OnForeign
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.queries import Query, events_of, events_of_prefix, sensors_of
from pipeline.core.schema.seeks import skip_scan
from pipeline.core.schema.sweeps import sensor_prefix
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.times import format_time
from pipeline.core.windows import Window

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_THREADS = 8  # that read at a time where several sensors are asked for
_AHEAD = 8000  # records that are read ahead, over all sensors

NOTHING_SAID = DeclaredSchema()
_NO_METADATA: Mapping[str, str] = {}


class ForeignRowProblem(ServerProblem):
    """A row that the table's schema does not write, where none may be left out."""


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

    A row with a key, a column or a value that the schema never writes is left out, whole. ``foreign`` counts it, and
    the first one is logged as a warning. A table that is opened as strict raises ForeignRowProblem from the iterator.

    Attributes:
        schema: what the table says of itself.
        rows: the rows that it is read by; their reader counts what the server returned.
        foreign: the rows that were left out: ``foreign.count``, and lines about the first in ``foreign.messages``.
    """

    def __init__(
        self,
        rows: RowReader,
        schema: TableSchema,
        threads: ThreadPoolExecutor,
        strict: bool = False,
        on_foreign: OnForeign | None = None,
    ) -> None:
        self.rows = rows
        self.schema = schema
        self.foreign = ForeignRows()
        self._threads = threads
        self._strict = strict
        self._on_foreign = on_foreign or self._log

    @classmethod
    @contextmanager
    def open(
        cls,
        project: str,
        instance: str,
        table: str,
        declared: DeclaredSchema = NOTHING_SAID,
        *,
        strict: bool = False,
        on_foreign: OnForeign | None = None,
    ) -> Iterator["SensorTable"]:
        """A connection for the length of a ``with`` block, to the emulator where BIGTABLE_EMULATOR_HOST says so.

        Reads the table's schema. Where there is none, the table is empty or ``declared`` is the default.

        Args:
            project: of the table.
            instance: of the table.
            table: its id.
            declared: what is said of its schema.
            strict: whether a foreign row raises ForeignRowProblem.
            on_foreign: what is told of each row that is left out, from any thread; by default the first is logged.

        Raises:
            ServerProblem: no such table, no schema, or another one than is said; or the server is out of reach.
        """
        with RowReader.open(TableName(project, instance, table)) as rows:
            schema = agreed_schema(rows, declared)
            with cls._over(rows.reconnected(), schema, strict, on_foreign) as opened:
                yield opened

    @classmethod
    @contextmanager
    def of_schema(
        cls, name: TableName, schema: TableSchema, patience_s: float | None = None, *, strict: bool = False
    ) -> Iterator["SensorTable"]:
        """The same for a table whose schema is known: nothing is asked before something is read.

        Args:
            name: which table.
            schema: what it looks like.
            patience_s: how long a server that does not answer is waited for.
            strict: whether a foreign row raises ForeignRowProblem.
        """
        with RowReader.open(name, patience_s) as rows, cls._over(rows, schema, strict) as opened:
            yield opened

    @classmethod
    @contextmanager
    def _over(
        cls, rows: RowReader, schema: TableSchema, strict: bool, on_foreign: OnForeign | None = None
    ) -> Iterator["SensorTable"]:
        threads = ThreadPoolExecutor(_THREADS)
        try:
            yield cls(rows, schema, threads, strict, on_foreign)
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
        found = events_of_prefix(self.schema, self._read, sensors, query, self._leave_out)
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
            return sensors_of(self.schema, self._read, prefix, metadata, self._leave_out)
        if not self.schema.tiers:
            raise ValueError(f"keys of {self.schema.key} begin with the time: sensors can't be listed by them")
        return self._aggregated_sensors(prefix)

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
        rows = self.rows.read(key_range, row_filter(CellSelection((tier.family,), versions=1)), page_rows=page_rows)
        return self._each_window(tier.window, rows)

    def _each_window(self, window: Window, rows: Iterable[Row]) -> Iterator[AggregateRecord]:
        for row in rows:
            try:
                record = aggregates.parse_aggregate_row(window, row)
            except ValueError as error:
                self._leave_out(ForeignRow(row, error))
            else:
                yield record

    def _aggregated_sensors(self, prefix: str) -> Iterator[str]:
        window = self.schema.tiers[0].window
        key_range = prefix_range((aggregates.aggregate_prefix(window) + prefix).encode())
        parse = partial(aggregates.parse_aggregate_key, window)
        found = skip_scan(self._read, key_range, parse, sensor_prefix, self._leave_out, skip=())
        return (key.sensor_id for _, key in found)

    # How it is read

    def _events(self, sensor_id: str, query: Query, most_rows: int | None = None) -> Iterator[RawRecord]:
        """A sensor's events, read in pages of so many rows at most."""
        _check_sensor_id(sensor_id)
        if query.start_us == query.end_us:  # outside what keys can hold
            return iter(())

        def read(
            key_range: KeyRange, wanted: CellSelection, pattern: str | None, page_rows: int | None, *, reverse: bool
        ) -> Iterator[Row]:
            page_rows = min((rows for rows in (page_rows, most_rows) if rows), default=None)
            return self._read(key_range, wanted, pattern, page_rows, reverse=reverse)

        return events_of(self.schema, read, sensor_id, query, self._leave_out)

    def _read(
        self, key_range: KeyRange, wanted: CellSelection, pattern: str | None, page_rows: int | None, *, reverse: bool
    ) -> Iterator[Row]:
        return self.rows.read(key_range, row_filter(wanted, pattern), page_rows=page_rows, reverse=reverse)

    def _leave_out(self, problem: ForeignRow) -> None:
        if self._strict:
            raise ForeignRowProblem(f"table {self.rows.name}: {problem}") from problem
        if self.foreign.add(problem):
            self._on_foreign(problem)

    def _log(self, problem: ForeignRow) -> None:
        if len(self.foreign.messages) == 1:
            _log.warning("table %s: %s; left out, and so is every other (SensorTable.foreign)", self.rows.name, problem)

    def _ahead(self, records: Iterator[_T], size: int) -> Iterator[_T]:
        """The same records, the next ``size`` of which another thread has begun to read."""
        batch = self._threads.submit(list, islice(records, size))

        def batches() -> Iterator[_T]:
            nonlocal batch
            while ready := batch.result():
                batch = self._threads.submit(list, islice(records, size))
                yield from ready

        return batches()


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
