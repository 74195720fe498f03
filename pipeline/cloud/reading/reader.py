"""Reads the readings and aggregates of sensors by bounded ranges of keys, never a table from end to end.

The table stores its schema, and the schema that wrote the rows finds and parses them.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from itertools import chain, islice
from typing import TYPE_CHECKING, Self, TypeVar, overload

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.reading.frames import AggregateRecords, GroupRecords, RawRecords
from pipeline.cloud.scanning.row_reader import ReadAhead, RowReader
from pipeline.cloud.tables.retention_notes import KnownRetention
from pipeline.cloud.tables.schema_store import agreed_schema
from pipeline.core.alerts.alert_rows import HISTORY, LATELY, AlertRecord, alert_key, alert_range, parse_alert_row
from pipeline.core.answers.enough_data import LeastData, with_enough
from pipeline.core.answers.gaps import Fill, check_fill, filled
from pipeline.core.answers.group_answers import groups_of_sensor, rank_by, ranked, sensors_of_group, together
from pipeline.core.answers.read_arguments import (
    MAX_ROWS,
    OPEN_FOR,
    listed_sensors,
    named_metrics,
    within_keys,
    zone_for,
)
from pipeline.core.answers.window_answers import WindowQuery, answers, group_incomplete_before, incomplete_before
from pipeline.core.events.event import LATEST_US, checked_sensor_id
from pipeline.core.notation.times import Time, to_us
from pipeline.core.queries.events import Query, events_of, events_of_all, events_of_prefix, sensors_of
from pipeline.core.queries.newest import (
    check_silence,
    longest_silent,
    newest_events,
    newest_rows,
    newest_rows_of,
    or_events,
    sensors_with_rows,
    silent_sensors,
    silent_since,
)
from pipeline.core.queries.reads import BoundedReads, ForeignRow, ForeignRows, OnForeign, RowSelection
from pipeline.core.queries.sweeps import Chosen, blocks_of, window_blocks, window_parts
from pipeline.core.queries.windows import (
    group_named,
    groups_with_rows,
    newest_windows,
    rollup_of,
    sensors_with_windows,
    tier_of,
    tier_of_rollup,
    windows_of_groups,
)
from pipeline.core.rows.newest_row import LastHeard, LatestRecord, latest_range
from pipeline.core.rows.records import AggregateRecord, EventBlock, GroupRecord, RawRecord, SensorGroup, newest_first
from pipeline.core.rows.rows import KeyRange, Row
from pipeline.core.schema.changes import NOTHING_DECLARED, DeclaredSchema
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.rollup import Rollup
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.windows import Window, parse_window

if TYPE_CHECKING:
    from pipeline.core.answers.points import Points


_T = TypeVar("_T")

_log = logging.getLogger(__name__)
_NO_METADATA: Mapping[str, str] = {}
Values = str | Iterable[str] | SensorGroup
"""The values of a group's fields, in the order of the roll-up; a text for one field; or the group of a record."""

_END_US = LATEST_US + 1
_WINDOWS = 1000  # that are read ahead of a part


class ForeignRowError(ServerError):
    """A strict reader met a row that the table's schema does not write."""


class SensorTable:
    """Reads one table with any schema. Create it with :meth:`open`.

    The server sends only the requested families, columns, versions and times of a row. A time is an aware datetime, ISO
    8601 text or microseconds since the epoch, as in records. A text without an offset is in ``time_zone``, such as
    ``"Europe/Berlin"``, else in the zone of the tier, else in UTC. Row keys contain times from 1970 to 2286, the
    nearest of which stands for one outside. If row keys contain metadata (``{metadata.location}``), pass it as
    ``metadata={"location": …}``: no method searches the whole table for a sensor.

    Every method raises ServerError if the server refuses or is out of reach. It raises ValueError for arguments
    without an answer: text that can't be a sensor id, a datetime without a time zone, a range of time that does not end
    after it starts, missing metadata, a tier that the table lacks. If a method returns an iterator, the call raises the
    ValueError and the iterator the ServerError.
    A row with a key, a column or a value that the schema never writes is foreign. The table leaves it out, counts it in
    ``foreign``, and logs a warning about the first. A table opened with ``strict`` raises ForeignRowError from the
    iterator instead.

    Attributes:
        schema: the table's schema.
        rows: the reader of the rows, which counts what the server returned.
        foreign: the rows left out: ``foreign.count``, and lines about the first in ``foreign.messages``.
    """

    def __init__(
        self,
        rows: RowReader,
        schema: TableSchema,
        connection: ExitStack,
        strict: bool = False,
        on_foreign: OnForeign | None = None,
        retention: Callable[[], Retention] | None = None,
    ) -> None:
        self.rows = rows
        self.schema = schema
        self.foreign = ForeignRows()
        self._connection = connection
        self._ahead = ReadAhead(connection)
        self._strict = strict
        self._on_foreign = on_foreign or self._log
        self._retention = retention or KnownRetention(rows.name, schema)

    @classmethod
    def open(
        cls,
        project: str,
        instance: str,
        table: str,
        declared: DeclaredSchema = NOTHING_DECLARED,
        *,
        app_profile: str | None = None,
        strict: bool = False,
        on_foreign: OnForeign | None = None,
    ) -> Self:
        """Connects to a table, or to the emulator if BIGTABLE_EMULATOR_HOST is set.

        Reads the table's schema. A table without one has to be empty, or ``declared`` the default schema. Like a file,
        a table is closed at the end of a ``with`` block, or by :meth:`close`.

        Args:
            project: the table's project.
            instance: the table's instance.
            table: the table's id.
            declared: the schema that the caller expects, or a part of it.
            app_profile: the app profile by which Bigtable routes the reads; None for the instance's default.
            strict: whether a foreign row raises ForeignRowError.
            on_foreign: a function that receives each row left out, in any thread; by default the first one is logged.

        Raises:
            ServerError: the table or its schema is missing or not ``declared``, or the server is out of reach.
        """
        with ExitStack() as connection:
            rows = connection.enter_context(RowReader.open(TableName(project, instance, table, app_profile or "")))
            schema = agreed_schema(rows, declared)
            return cls(rows.with_new_counters(), schema, connection.pop_all(), strict, on_foreign)

    def close(self) -> None:
        """Closes the connection, which ends unfinished iterators."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @overload
    def latest_events(  # type: ignore[overload-overlap] # a str is an Iterable[str] too, and is one sensor
        self, sensors: str, *, metrics: Iterable[str] | None = None, metadata: Mapping[str, str] = _NO_METADATA
    ) -> RawRecord | None: ...

    @overload
    def latest_events(
        self,
        sensors: Iterable[str],
        *,
        metrics: Iterable[str] | None = None,
        metadata: Mapping[str, str] = _NO_METADATA,
    ) -> RawRecords: ...

    def latest_events(
        self,
        sensors: str | Iterable[str],
        *,
        metrics: Iterable[str] | None = None,
        metadata: Mapping[str, str] = _NO_METADATA,
    ) -> RawRecord | RawRecords | None:
        """Returns the newest event of a sensor, or None; of several sensors, an iterator in their order.

        With ``metrics``, returns the newest event that has one of them, with only these readings. Reads one row if a
        row is an event; a row and a seek for each metric if keys have the metric before the time; the newest bucket, or
        its newest cells, in bucket layouts. If keys begin with the time, reads every row until one of the sensor.
        """
        query = Query(metrics=named_metrics(metrics), limit=1, metadata=metadata)
        if isinstance(sensors, str):
            return next(self._events(sensors, query), None)
        each = self._ahead.each((self._events(sensor, query) for sensor in listed_sensors(sensors)), 1)
        return RawRecords((record for records in each for record in records), query.metrics or ())

    def latest_readings(
        self,
        prefix: str = "",
        *,
        after: str = "",
        metrics: Iterable[str] | None = None,
        silent_for: timedelta | None = None,
        limit: int | None = None,
    ) -> Iterator[LatestRecord]:
        """Returns the newest readings of each sensor whose id begins with ``prefix``, in the order of ids.

        If the schema declares a family of latest readings, one scan reads a row for each sensor, with the newest
        reading of each metric. Otherwise, or if no sensor has such a row yet, costs a seek and a read for each sensor,
        and returns its newest event.

        Args:
            prefix: the start of the sensors' ids.
            after: a sensor's id: the answer has the sensors that follow it.
            metrics: the readings to return, without sensors that have none of them; by default all.
            silent_for: the time for which a sensor must have sent nothing; the longest silent come first. Raises
                ValueError if rows of newest readings may be behind by more.
            limit: the maximum number of sensors.
        """
        wanted, since_us = named_metrics(metrics), self._silent_since(silent_for)
        expected = limit if since_us is None else None

        def rows(family: str) -> Iterator[LatestRecord]:
            keys = latest_range(prefix, after)
            return newest_rows(family, self.rows.read_selection, keys, wanted, expected, self._leave_out, since_us)

        events = self._newest_events(self.sensors(prefix, after=after), wanted, expected)
        found = or_events(self.schema, self.rows.read_selection, after, rows, events)
        return islice(found if since_us is None else longest_silent(found, since_us, limit), limit)

    def latest_readings_of(
        self, sensors: Iterable[str], *, metrics: Iterable[str] | None = None
    ) -> Iterator[LatestRecord]:
        """Returns the newest readings of some sensors, in their order: a request for 200 of them."""
        listed, wanted, read = listed_sensors(sensors), named_metrics(metrics), self.rows.read_selection
        return or_events(
            self.schema,
            read,
            "",
            lambda family: newest_rows_of(family, read, listed, wanted, self._leave_out),
            self._newest_events(iter(listed), wanted, len(listed)),
        )

    def heard_sensors(self, prefix: str = "", *, after: str = "") -> Iterator[str]:
        """Returns the ids of the sensors that :meth:`latest_readings` returns, by a scan of keys."""
        return or_events(
            self.schema,
            self.rows.read_selection,
            after,
            lambda family: sensors_with_rows(
                family, self.rows.read_selection, latest_range(prefix, after), self._leave_out
            ),
            self.sensors(prefix, after=after),
        )

    def silent(
        self,
        silent_for: timedelta,
        prefix: str = "",
        *,
        after: str = "",
        metrics: Iterable[str] | None = None,
    ) -> Iterator[LastHeard]:
        """Returns the sensors that have sent nothing for a time, and when they did, the longest silent first.

        Costs less than :meth:`latest_readings`: the server sends no readings.

        Args:
            silent_for: see :meth:`latest_readings`, like the others.
            prefix: see above.
            after: see above.
            metrics: the readings that count.
        """
        wanted, since_us = named_metrics(metrics), self._silent_since(silent_for)

        def rows(family: str) -> Iterator[LastHeard]:
            keys = latest_range(prefix, after)
            return silent_sensors(family, self.rows.read_selection, keys, wanted, since_us, self._leave_out)

        newest = self._newest_events(self.sensors(prefix, after=after), wanted, None)
        events = (LastHeard(each.event_time_us, each.sensor_id) for each in newest)
        return longest_silent(or_events(self.schema, self.rows.read_selection, after, rows, events), since_us)

    @overload
    def _silent_since(self, silent_for: timedelta) -> int: ...

    @overload
    def _silent_since(self, silent_for: timedelta | None) -> int | None: ...

    def _silent_since(self, silent_for: timedelta | None) -> int | None:
        if silent_for is not None and self.schema.latest is not None:
            check_silence(silent_for, self._retention().newest_every)
        return None if silent_for is None else silent_since(silent_for)

    def _newest_events(
        self, sensors: Iterator[str], metrics: tuple[str, ...] | None, limit: int | None
    ) -> Iterator[LatestRecord]:
        def latest(some: list[str], metadata: Mapping[str, str]) -> RawRecords:
            return self.latest_events(some, metrics=metrics, metadata=metadata)

        return newest_events(self.schema, self.rows.read_selection, sensors, latest, limit, self._leave_out)

    def events(
        self,
        sensors: str | Iterable[str],
        start: Time,
        end: Time,
        *,
        metrics: Iterable[str] | None = None,
        limit: int | None = None,
        metadata: Mapping[str, str] = _NO_METADATA,
        time_zone: str | None = None,
    ) -> RawRecords:
        """Returns the events from ``start``, inclusive, to ``end``, exclusive, newest first.

        Reads several sensors in parallel and merges their events by time.

        Args:
            sensors: one sensor id, or several.
            start: the earliest event time.
            end: the end of the range.
            metrics: the readings to return, without metadata; by default everything.
            limit: the maximum number of events, the newest.
            metadata: the sensors' metadata, if row keys contain it.
            time_zone: the zone of texts without an offset; UTC by default.
        """
        start_us, end_us = within_keys(start, end, time_zone)
        query = Query(start_us, end_us, named_metrics(metrics), limit, metadata)
        found = self._merged(sensors, lambda sensor, size: self._events(sensor, query, size), newest_first)
        return RawRecords(islice(found, limit), query.metrics or ())

    def scan(
        self,
        start: Time,
        end: Time,
        *,
        prefix: str = "",
        metrics: Iterable[str] | None = None,
        limit: int | None = None,
        metadata: Mapping[str, str] = _NO_METADATA,
        time_zone: str | None = None,
    ) -> RawRecords:
        """Returns the events of many sensors from one scan: of a location, for example, or with a common id prefix.

        Sensors come in the order of keys (in reverse if keys sort the oldest first), the events of each newest first.
        The scan covers all times; the server returns those from ``start``, inclusive, to ``end``, exclusive.

        Without ``prefix`` and ``metadata``, returns the events of all sensors: by time if keys begin with it, the
        newest first. If a metric comes before the time, costs a scan for each sensor.

        Args:
            start: the earliest event time.
            end: the end of the range.
            prefix: the start of the sensors' ids.
            metrics: the readings to return, without metadata; by default everything.
            limit: the maximum number of events.
            metadata: the metadata that row keys begin with, if they do.
            time_zone: the zone of texts without an offset; UTC by default.

        Raises ValueError also if row keys do not keep such sensors together.
        """
        start_us, end_us = within_keys(start, end, time_zone)
        query = Query(start_us, end_us, named_metrics(metrics), limit, metadata)
        if prefix or metadata:
            found = events_of_prefix(self.schema, self.rows.read_selection, prefix, query, self._leave_out)
        else:
            found = events_of_all(self.schema, self.rows.read_selection, query, self._leave_out)
        return RawRecords(found, query.metrics or ())

    def events_of(
        self,
        sensors: Chosen,
        start: Time,
        end: Time,
        *,
        metrics: Iterable[str] | None = None,
        metadata: Mapping[str, str] = _NO_METADATA,
        time_zone: str | None = None,
    ) -> Iterator[EventBlock]:
        """Returns the events of chosen sensors as columns, sensor by sensor in the order of keys, each newest first.

        Reads a few ranges of keys in parallel, and no rows but the answer's unless keys begin with the time: then the
        events come by time. Memory has some tens of thousands of events, however many there are.

        Args:
            sensors: the sensors.
            start: the earliest event time.
            end: the end of the range.
            metrics: the metrics to return, without metadata; by default everything.
            metadata: the first metadata that row keys have before the sensor, if they do.
            time_zone: the zone of texts without an offset; UTC by default.
        """
        query = Query(*within_keys(start, end, time_zone), named_metrics(metrics), None, metadata)
        return self._ahead.in_turn(blocks_of(self.schema, self.rows.read_selection, sensors, query, self._leave_out), 1)

    def windows_of(
        self,
        sensors: Chosen,
        start: Time,
        end: Time,
        *,
        tier: Window | str | None = None,
        metrics: Iterable[str] | None = None,
        fill: Fill | str = Fill.NONE,
        fresh: bool = False,
        min_coverage: float = 0.0,
        min_count: int = 0,
        time_zone: str | None = None,
    ) -> AggregateRecords:
        """Returns the windows of chosen sensors, sensor by sensor in the order of keys, each oldest first.

        Reads them as :meth:`events_of` reads events; filled or fresh ones sensor by sensor. The arguments are those of
        :meth:`aggregates`.
        """
        window, read = parse_window(tier) if isinstance(tier, str) else tier, self.rows.read_selection
        span, wanted = within_keys(start, end, time_zone, window), named_metrics(metrics)
        least = LeastData(min_coverage, min_count)
        query = WindowQuery(window, *span, wanted, Fill(fill), fresh, OPEN_FOR, MAX_ROWS, least)
        of_tier = tier_of(self.schema, window)
        answers(self.schema, self._retention, read, query, self._leave_out)  # checks the query
        if fresh or query.fill != Fill.NONE:
            listed = {
                sensor: answers(self.schema, self._retention, read, query, self._leave_out)
                for prefix in sensors.prefixes
                for sensor in chain(
                    sensors_with_windows(of_tier, read, prefix, "", self._leave_out),
                    self.sensors(prefix) if fresh else (),
                )
                if sensors.includes(sensor)
            }
            found: Iterator[AggregateRecord] = chain.from_iterable(
                answer(sensor, None) for sensor, answer in sorted(listed.items())
            )
        else:
            parts = window_parts(of_tier, read, sensors, Query(*span, wanted), self._leave_out)
            found = with_enough(self._ahead.in_turn(parts, _WINDOWS), of_tier, least)
        return AggregateRecords(found, lambda: incomplete_before(self.schema, self._retention(), query))

    def window_blocks_of(
        self,
        sensors: Chosen,
        start: Time,
        end: Time,
        *,
        tier: Window | str | None = None,
        metrics: Iterable[str] | None = None,
        time_zone: str | None = None,
    ) -> Iterator[EventBlock]:
        """Returns the windows of :meth:`windows_of` as columns; see :func:`.many.window_blocks`."""
        window = parse_window(tier) if isinstance(tier, str) else tier
        span, wanted = within_keys(start, end, time_zone, window), named_metrics(metrics)
        of_tier = tier_of(self.schema, window)
        parts = window_blocks(of_tier, self.rows.read_selection, sensors, Query(*span, wanted), self._leave_out)
        return self._ahead.in_turn(parts, 1)

    def sensors(
        self, prefix: str = "", metadata: Mapping[str, str] = _NO_METADATA, *, after: str = ""
    ) -> Iterator[str]:
        """Returns every sensor that has a raw row and an id that begins with ``prefix``, in the order of keys.

        With ``after``, a sensor's id, returns those that follow it. Costs one seek for each sensor, however many rows
        it has, one for each reserved prefix, and one for the end. If row keys have other values before the sensor, each
        combination costs a seek.
        If keys begin with the time, returns the sensors that have an aggregate, at the same cost; raises ValueError if
        the table has no aggregates either.
        """
        if not self.schema.key.time_first:
            return sensors_of(self.schema, self.rows.read_selection, prefix, metadata, self._leave_out, after)
        if not self.schema.tiers:
            raise ValueError(f"keys of {self.schema.key} begin with the time: they can't list sensors")
        return sensors_with_windows(self.schema.tiers[0], self.rows.read_selection, prefix, after, self._leave_out)

    def aggregates(
        self,
        sensors: str | Iterable[str],
        start: Time,
        end: Time,
        *,
        tier: Window | str | None = None,
        metrics: Iterable[str] | None = None,
        fill: Fill | str = Fill.NONE,
        fresh: bool = False,
        open_for: timedelta = OPEN_FOR,
        max_rows: int = MAX_ROWS,
        min_coverage: float = 0.0,
        min_count: int = 0,
        time_zone: str | None = None,
    ) -> AggregateRecords:
        """Returns the windows that start from ``start``, inclusive, to ``end``, exclusive, oldest first.

        Reads several sensors in parallel and merges their windows by time. With ``fresh``, computes open windows from
        the readings in their raw rows, as their final panes will. The answer knows which windows may be missing.

        Args:
            sensors: one sensor id, or several.
            start: the earliest start of a window.
            end: the end of the range of starts.
            tier: the length of the windows, such as ``"1d"`` or ``"1d@Europe/Berlin"``; the shortest by default.
            metrics: the metrics to return, without windows that have none of them; by default all.
            fill: the answer for windows without a row: nothing (``"none"``), records without statistics (``"null"``),
                with the averages, extremes and the like of the window before (``"previous"``), or between those around
                (``"linear"``). Counts and sums are not filled.
            fresh: whether to compute open windows from raw rows.
            open_for: the time after its end in which a window counts as open: allowed lateness, and time for its panes.
            max_rows: the most rows that a fresh answer reads; beyond, the iterator raises TooManyRowsError.
            min_coverage: the least share, from 0 to 1, of the readings that the schema's ``[rate]`` expects. A metric
                with less is left out of a window, and a window without any metric left is one without a row.
            min_count: the least number of readings, likewise.
            time_zone: the zone of texts without an offset; by default that of the tier.
        """
        window = parse_window(tier) if isinstance(tier, str) else tier
        span, wanted = within_keys(start, end, time_zone, window), named_metrics(metrics)
        least = LeastData(min_coverage, min_count)
        query = WindowQuery(window, *span, wanted, Fill(fill), fresh, open_for, max_rows, least)
        of_sensor = answers(self.schema, self._retention, self.rows.read_selection, query, self._leave_out)
        found = self._merged(sensors, of_sensor, lambda record: record.start_us)
        return AggregateRecords(found, lambda: incomplete_before(self.schema, self._retention(), query))

    def points(
        self,
        sensor: str,
        metric: str,
        start: Time,
        end: Time,
        max_points: int = 4000,
        *,
        metadata: Mapping[str, str] = _NO_METADATA,
        open_for: timedelta = OPEN_FOR,
        max_rows: int = MAX_ROWS,
        time_zone: str | None = None,
    ) -> "Points":
        """Returns the points that a line chart of a metric needs, oldest first: at most four for each column of pixels.

        Reads aggregate rows if they have the first, last, least and greatest value of windows that are narrow enough,
        and otherwise raw rows. If neither has all readings in ``max_rows`` rows, answers nearly; see
        :class:`pipeline.core.answers.points.Points`. Raises ValueError if nothing can answer.

        Args:
            sensor: the sensor's id.
            metric: the metric.
            start: the earliest event time.
            end: the end of the range.
            max_points: the most points; a quarter of it is the number of columns.
            metadata: the sensor's metadata, if row keys contain it.
            open_for: the time after its end in which a window counts as open: raw rows answer for it.
            max_rows: the most rows to read.
            time_zone: the zone of texts without an offset; UTC by default.
        """
        from pipeline.core.answers.points import PointQuery, points_of

        checked_sensor_id(sensor)
        start_us, end_us = within_keys(start, end, time_zone)
        query = PointQuery(sensor, metric, start_us, end_us, max_points, metadata, open_for, max_rows)
        return points_of(self.schema, self._retention(), self.rows.read_selection, query, self._leave_out)

    def rollups(
        self,
        name: str,
        values: Values,
        start: Time,
        end: Time,
        *,
        tier: Window | str | None = None,
        metrics: Iterable[str] | None = None,
        fill: Fill | str = Fill.NONE,
        time_zone: str | None = None,
    ) -> GroupRecords:
        """Returns a group's windows that start from ``start``, inclusive, to ``end``, exclusive, oldest first.

        Costs what a sensor's aggregates cost. Leaves out windows in which the group has no sensor.

        Args:
            name: the roll-up.
            values: the values of the group's fields, such as ``"north"``; ``()`` for a roll-up of all sensors.
            start: the earliest start of a window.
            end: the end of the range of starts.
            tier: the length of the windows; the roll-up's shortest by default.
            metrics: the metrics to return, without windows that have none of them; by default all.
            fill: the answer for windows without a row, as for aggregates.
            time_zone: the zone of texts without an offset; by default that of the tier.
        """
        rollup, of_tier = self._rollup(name, tier)
        group = _group(rollup, values)
        start_us, end_us = within_keys(start, end, time_zone, of_tier.window)
        wanted = named_metrics(metrics)
        read = self.rows.read_selection
        found = windows_of_groups(of_tier, read, [group], start_us, end_us, wanted, self._leave_out)
        if Fill(fill) != Fill.NONE:
            check_fill(of_tier.window, start_us, end_us)
            empty = GroupRecord(group, 0, of_tier.window, 0, None, 0, {}, filled=True)
            found = filled(found, empty, start_us, end_us, Fill(fill))
        return GroupRecords(found, lambda: group_incomplete_before(of_tier, self._retention(), start_us, end_us))

    def rollups_of(
        self,
        name: str,
        values: Sequence[Chosen],
        start: Time,
        end: Time,
        *,
        tier: Window | str | None = None,
        metrics: Iterable[str] | None = None,
        time_zone: str | None = None,
    ) -> GroupRecords:
        """Returns the windows of the groups whose values are chosen, group by group in the order of keys.

        Costs a seek for each group of the roll-up. Without a choice for a field, all of its values are chosen; the
        other arguments are those of :meth:`rollups`.
        """
        rollup, of_tier = self._rollup(name, tier)
        span, read = within_keys(start, end, time_zone, of_tier.window), self.rows.read_selection
        groups = (
            group
            for group in groups_with_rows(rollup, of_tier, read, self._leave_out)
            if all(chosen.includes(value) for chosen, value in zip(values, group.fields.values(), strict=False))
        )
        found = windows_of_groups(of_tier, read, groups, *span, named_metrics(metrics), self._leave_out)
        return GroupRecords(found, lambda: group_incomplete_before(of_tier, self._retention(), *span))

    def groups(
        self,
        name: str,
        start: Time | None = None,
        end: Time | None = None,
        *,
        tier: Window | str | None = None,
        metrics: Iterable[str] | None = None,
        by: str | None = None,
        top: int | None = None,
        max_rows: int = MAX_ROWS,
        time_zone: str | None = None,
    ) -> GroupRecords:
        """Returns the groups of a roll-up that have sensors: a record for each, in the order of row keys, or ranked.

        Without ``start``, a record is the newest window that any group has, and groups that have none then are left
        out. With it, a record is what all windows of a group in the range amount to: merged, so an average is that of
        all readings, and ``sensors`` the most in a window. Costs a seek for each group, and reads the windows of many
        groups in a request.

        Args:
            name: the roll-up.
            start: the earliest start of a window.
            end: the end of the range of starts; by default, all that follow.
            tier: the length of the windows; the roll-up's shortest by default.
            metrics: the metrics to return, without groups that have none of them; by default all, or that of ``by``.
            by: the column by which groups are ranked, the greatest first, such as ``"avg_temperature"``,
                ``"p95_temperature"`` or ``"sensors"``; groups without a value are left out.
            top: the most groups to return.
            max_rows: the most rows of windows to read; if the answer needs more, raises TooManyRowsError, a ValueError.
            time_zone: the zone of texts without an offset; by default that of the tier.
        """
        rollup, of_tier = self._rollup(name, tier)
        rank, ranking = rank_by(by) if by is not None else (None, None)
        wanted = named_metrics(metrics)
        if ranking is not None and ranking not in (wanted or ()):
            wanted = (*(wanted or ()), ranking)
        read = BoundedReads(self.rows.read_selection, max_rows)
        zone = zone_for(time_zone, of_tier.window)
        end_us = _END_US if end is None else to_us(end, zone)
        groups = groups_with_rows(rollup, of_tier, self.rows.read_selection, self._leave_out)
        found: Iterable[GroupRecord]
        if start is None:
            now_us = time.time_ns() // 1000
            found = newest_windows(of_tier, read, list(groups), end_us, now_us, wanted, self._leave_out)
        else:
            span = within_keys(start, end_us, zone)
            found = together(windows_of_groups(of_tier, read, groups, *span, wanted, self._leave_out))
        return GroupRecords((ranked(found, rank) if rank else list(found))[:top])

    def sensors_of_group(
        self,
        name: str,
        values: Values,
        before: Time | None = None,
        *,
        tier: Window | str | None = None,
        time_zone: str | None = None,
    ) -> Iterator[str]:
        """Returns the sensors that belong to a group in its newest window, or in the last that starts before a time.

        Reads what all sensors of the same shards contribute; for a group of many sensors, some hundred bytes for each
        metric of each sensor.

        Args:
            name: the roll-up.
            values: the values of the group's fields.
            before: the time before which the window starts.
            tier: the length of the windows; the roll-up's shortest by default.
            time_zone: the zone of a text without an offset; by default that of the tier.
        """
        rollup, of_tier = self._rollup(name, tier)
        group = _group(rollup, values)
        end_us = _END_US if before is None else to_us(before, zone_for(time_zone, of_tier.window))
        read = self.rows.read_selection
        newest = newest_windows(of_tier, read, [group], end_us, time.time_ns() // 1000, None, self._leave_out)
        window = of_tier.window
        each = (sensors_of_group(rollup, window, read, group, it.start_us, self._leave_out) for it in newest)
        return chain.from_iterable(each)

    def groups_of_sensor(self, sensor: str) -> list[SensorGroup]:
        """Returns the groups that a sensor belongs to in its newest window, by the order of the schema's roll-ups."""
        read = self.rows.read_selection
        return groups_of_sensor(self.schema, read, checked_sensor_id(sensor), self._leave_out)

    def _merged(
        self, sensors: str | Iterable[str], records: Callable[[str, int | None], Iterator[_T]], key: Callable[[_T], int]
    ) -> Iterator[_T]:
        """Returns the records of sensors, merged by a key; a single sensor is read page by page, and nothing ahead."""
        listed = listed_sensors((sensors,) if isinstance(sensors, str) else sensors)
        return records(listed[0], None) if len(listed) == 1 else self._ahead.merged(listed, records, key)

    def _events(self, sensor_id: str, query: Query, max_page_rows: int | None = None) -> Iterator[RawRecord]:
        """Returns a sensor's events, read in pages of at most this many rows."""
        checked_sensor_id(sensor_id)
        if query.start_us == query.end_us:  # outside the times of row keys
            return iter(())

        def read(selection: RowSelection) -> Iterator[Row]:
            page_rows = min((rows for rows in (selection.page_rows, max_page_rows) if rows), default=None)
            return self.rows.read_selection(selection._replace(page_rows=page_rows))

        return events_of(self.schema, read, sensor_id, query, self._leave_out)

    def _rollup(self, name: str, tier: Window | str | None) -> tuple[Rollup, Tier]:
        rollup = rollup_of(self.schema, name)
        return rollup, tier_of_rollup(self.schema, rollup, parse_window(tier) if isinstance(tier, str) else tier)

    def _leave_out(self, problem: ForeignRow) -> None:
        if self._strict:
            raise ForeignRowError(f"table {self.rows.name}: {problem}") from problem
        if self.foreign.add(problem):
            self._on_foreign(problem)

    def _log(self, problem: ForeignRow) -> None:
        if len(self.foreign.messages) == 1:
            _log.warning("table %s: %s; left out, and so is every other (SensorTable.foreign)", self.rows.name, problem)

    def alerts(self, rule: str | None = None, *, recent: bool = False) -> Iterator[AlertRecord]:
        """Returns the alerts of a rule, or of all rules, by rule and sensor, whether they fire now or not.

        With ``recent``, reads only the last transitions of each, some hundred: enough to show what fires now.
        """
        return self._alerts_in(alert_range(rule), recent)

    def alerts_of(self, sensor_id: str, rules: Iterable[str], *, recent: bool = False) -> Iterator[AlertRecord]:
        """Returns the alerts of one sensor under rules of these names, as :meth:`alerts` does."""
        keys = sorted(alert_key(rule, sensor_id) for rule in rules)
        return self._alerts_in(tuple(KeyRange(key, key + b"\0") for key in keys), recent)

    def _alerts_in(self, keys: KeyRange | tuple[KeyRange, ...], recent: bool) -> Iterator[AlertRecord]:
        for row in self.rows.read_selection(RowSelection(keys, LATELY if recent else HISTORY)):
            try:
                yield parse_alert_row(row)
            except ValueError as error:
                self.foreign.add(ForeignRow(row, error))


def _group(rollup: Rollup, values: Values) -> SensorGroup:
    if isinstance(values, SensorGroup):
        return values
    return group_named(rollup, [values] if isinstance(values, str) else list(values))
