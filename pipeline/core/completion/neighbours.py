"""Reads what lies before and after windows: the reading that a window continues from, and the window that follows."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice

from pipeline.core.events.event import LATEST_US
from pipeline.core.queries.events import Query, events_of
from pipeline.core.queries.reads import ForeignRow, ReadRows, RowSelection
from pipeline.core.rows.aggregate_rows import aggregate_range, parse_aggregate_row, stats_of
from pipeline.core.rows.aggregate_rows import columns_of as aggregate_columns
from pipeline.core.rows.records import RawRecord
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.parts import At, before_of, carried, last_of, order_of
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.core.windows import Window

_MOST_PAGE_ROWS = 100  # aggregate rows that are read to find a metric


class Neighbours:
    """Reads what lies before and after windows of the shortest tier.

    Args:
        schema: the table's schema; it finds sensors.
        lookback_us: the time before a window of which raw rows are read, with or without aggregate rows.
    """

    def __init__(self, schema: TableSchema, retention: Retention, read: ReadRows, lookback_us: int) -> None:
        self._schema = schema
        self._lookback_us = lookback_us
        self._retention = retention
        self._read = read

    @property
    def _window(self) -> Window:
        return self._schema.tiers[0].window

    def before(
        self, sensor_id: str, metrics: Collection[str], floor_us: int, start_us: int, now_us: int
    ) -> dict[str, At]:
        """Returns the last reading of each metric before a window.

        Raw rows of the lookback tell it. For the time before that, aggregate rows tell which window last had a metric:
        no read goes through all raw rows of a sensor for a metric that it never sent. Where Bigtable may have collected
        raw rows, aggregate rows tell what these lack.

        Args:
            sensor_id: the sensor.
            metrics: the metrics.
            floor_us: a time without readings to find before it.
            start_us: the start of the window.
            now_us: the current time.
        """
        found = self._before_by_raw_rows(sensor_id, metrics, max(floor_us, start_us - self._lookback_us), start_us)
        kept_us = self._retention.readings_from_us(now_us)
        wanted = {metric for metric in metrics if metric not in found or found[metric].time_us < kept_us}
        if wanted and floor_us < start_us:
            latest, own = self._before_by_rows(sensor_id, wanted, floor_us, start_us)
            for metric, (last, window_us) in latest.items():
                end_us = min(self._window.end_of(window_us), start_us)
                of_window = self._before_by_raw_rows(sensor_id, [metric], max(window_us, floor_us), end_us)
                _keep_latest(found, metric, last, of_window.get(metric))
            for metric, before in own.items():
                _keep_latest(found, metric, before)
        return found

    def _before_by_raw_rows(
        self, sensor_id: str, metrics: Iterable[str], floor_us: int, start_us: int
    ) -> dict[str, At]:
        wanted, found, end_us = set(metrics), dict[str, At](), start_us
        while wanted and (records := self._latest(sensor_id, wanted, floor_us, end_us)):
            end_us = self._schema.identity.of_record(records[0])[0]
            for metric in wanted & {metric for record in records for metric in record.readings}:
                values = [record.readings[metric] for record in records if metric in record.readings]
                found[metric] = At(end_us, max(values, key=order_of))
            wanted -= found.keys()
        return found

    def following(
        self, sensor_id: str, lasts: Mapping[str, At | None], from_us: int, until_us: int = LATEST_US
    ) -> tuple[dict[int, bool], int]:
        """Finds the windows that continue from a sensor's last readings before a time: the next that have the metrics.

        Returns the start of each whose row is in the table, and whether the row does continue from these readings. The
        second value is the start of the last of them; ``until_us`` if no window before it has one of the metrics. A row
        that was written before the statistic was declared does not continue: a longer window around it, which read the
        raw rows, may.

        Args:
            sensor_id: the sensor.
            lasts: each metric's last reading before ``from_us``; None for one that is not known.
            from_us: the earliest start.
            until_us: the time before which windows start.
        """
        waiting, found, last_us = dict(lasts), dict[int, bool](), from_us
        for start_us, stats in self._rows(sensor_id, waiting, from_us, until_us):
            for metric in waiting.keys() & stats.metrics.keys():
                last, last_us = waiting.pop(metric), start_us
                found[start_us] = found.get(start_us, True) and before_of(stats.metrics[metric].parts) == last
            if not waiting:
                break
        return found, until_us if waiting else last_us

    def carry(self, sensor_id: str, windows: Mapping[int, WindowStats], now_us: int, known_us: int = 0) -> None:
        """Adds the last reading before each of a sensor's windows to its statistics.

        Args:
            sensor_id: the sensor.
            windows: the statistics of all windows in a span of time, by start. A window with too many metrics has none.
            now_us: the current time.
            known_us: the time from which the windows certainly have all readings.
        """
        carries_to = self._schema.statistics.carries_to
        last: dict[str, At] = {}
        for start_us in sorted(windows):
            metrics = windows[start_us].metrics
            of_window = {metric: stats for metric, stats in metrics.items() if stats.parts and carries_to(metric)}
            if missing := {name for name in of_window if name not in last or last[name].time_us < known_us}:
                last |= self.before(sensor_id, missing, 0, start_us, now_us)
            if not metrics:
                last.clear()
            for metric, stats in of_window.items():
                stats.parts = carried(stats.parts or {}, last.get(metric))
                last.pop(metric, None)
                if (own := last_of(stats.parts)) is not None:  # readings that were merged out of order have no course
                    last[metric] = own

    def windows_with(self, sensor_id: str, metric: str, end_us: int) -> Iterator[int]:
        """Yields the starts of windows before a time whose rows have a metric, the latest first."""
        for start_us, stats in self._rows(sensor_id, [metric], 0, end_us, reverse=True):
            if metric in stats.metrics:
                yield start_us

    def _latest(self, sensor_id: str, metrics: Iterable[str], start_us: int, end_us: int) -> list[RawRecord]:
        """Returns the latest event that has one of the metrics, and the others of the same time."""
        if start_us >= end_us:
            return []
        identity = self._schema.identity
        query = Query(start_us, end_us, metrics=tuple(sorted(metrics)), limit=1)
        found = list(events_of(self._schema, self._read, sensor_id, query, leave_out))
        if found and not identity.distinguishes_by_time_only:
            time_us, _ = identity.of_record(found[0])
            query = Query(max(time_us, start_us), min(time_us + identity.grain_us, end_us), metrics=query.metrics)
            found = list(events_of(self._schema, self._read, sensor_id, query, leave_out))
        return found

    def _before_by_rows(
        self, sensor_id: str, metrics: set[str], floor_us: int, start_us: int
    ) -> tuple[dict[str, tuple[At | None, int]], dict[str, At]]:
        """Returns the last reading of each metric according to aggregate rows.

        The first value has the last reading in the latest window before, None if its row does not tell it, and the
        start of that window. The second one is from the window's own row, which may have been written before the latest
        of these readings came.
        """
        wanted, found, own = set(metrics), dict[str, tuple[At | None, int]](), dict[str, At]()
        for each_us, stats in self._rows(sensor_id, wanted, floor_us, start_us + 1, reverse=True):
            for metric in wanted & stats.metrics.keys():
                parts = stats.metrics[metric].parts
                if each_us == start_us:
                    if (before := before_of(parts)) is not None:
                        own[metric] = before
                else:
                    found[metric] = last_of(parts), each_us
            wanted -= found.keys()
            if not wanted:
                break
        return found, own

    def _rows(
        self, sensor_id: str, metrics: Iterable[str], start_us: int, end_us: int, *, reverse: bool = False
    ) -> Iterator[tuple[int, WindowStats]]:
        """Yields start and statistics of windows in [``start_us``, ``end_us``), with these metrics only.

        The server leaves out rows without the metrics: a sensor may have any number of them. Usually the first row
        tells all; otherwise pages grow. The caller may remove metrics as it finds them.
        """
        tier, page_rows = self._schema.tiers[0], 1
        keys = aggregate_range(tier.window, sensor_id, start_us, end_us)
        while keys.start < keys.end:
            selection = CellSelection((tier.family,), aggregate_columns(sorted(metrics), tier.statistics), versions=1)
            found = self._read(RowSelection(keys, selection, page_rows=page_rows, reverse=reverse))
            page = list(islice(found, page_rows))
            for row in page:
                with suppress(ValueError):  # another program's row, or one with none of these metrics
                    record = parse_aggregate_row(tier.window, row, tier.statistics, counted=False)
                    yield record.start_us, stats_of(record)
            if len(page) < page_rows:
                return
            last = page[-1].key
            keys = keys._replace(end=last) if reverse else keys._replace(start=last + b"\x00")
            page_rows = min(8 * page_rows, _MOST_PAGE_ROWS)


def leave_out(_problem: ForeignRow) -> None:
    """Skips a foreign row."""


def _keep_latest(found: dict[str, At], metric: str, *readings: At | None) -> None:
    known = [at for at in (found.get(metric), *readings) if at is not None]
    if known:
        found[metric] = max(known)
