"""Reads the rows of windows, one by one or of many sensors together."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from operator import neg

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.accumulation.gathering import Columns
from pipeline.core.accumulation.reading_columns import event_key
from pipeline.core.completion.neighbours import Neighbours
from pipeline.core.queries.columns import EventColumns, columns_of
from pipeline.core.queries.events import Query, selections_of
from pipeline.core.queries.foreign import ForeignRow
from pipeline.core.queries.seeks import ReadRows, RowSelection
from pipeline.core.queries.sensor_locator import SensorLocator
from pipeline.core.queries.together import RowsTogether
from pipeline.core.rows.aggregate_rows import aggregate_range, parse_aggregate_key, parse_window_stats
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.statistics.member import Member, member_text, of_fields, tells
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.core.windows.fixed import Window

_LOOKBACK_WINDOWS = 2  # whose raw rows may not be counted yet


class WindowRows:
    """Reads the raw rows and aggregate rows of windows.

    Args:
        schema: the table's schema.
        retention: the table's retention.
        read: reads the table's rows.
        search: whether to search for a sensor's raw rows if its id alone does not locate them. This costs one seek for
            each text that precedes the id in row keys.

    Attributes:
        retention: the table's retention.
        together: the table's rows, of which some may be in memory.
        neighbours: the readings and windows before and after a window.
    """

    def __init__(self, schema: TableSchema, retention: Retention, read: ReadRows, *, search: bool = False) -> None:
        self._schema = schema
        self.retention = retention
        self._read = self.together = RowsTogether(read)
        self._locator = SensorLocator(schema, read) if search and not schema.finds_sensors else None
        self.neighbours = Neighbours(schema, retention, read, _LOOKBACK_WINDOWS * schema.tiers[0].window.length_us)

    def keeps_readings(self, start_us: int, now_us: int) -> bool:
        """Returns whether a sensor's raw rows can be found, and from that time on include every one ever written."""
        return self.can_read_readings and self.retention.readings_from_us(now_us) <= start_us

    @property
    def can_read_readings(self) -> bool:
        """Whether the raw rows of a sensor can be found."""
        return self._locator is not None or self._schema.finds_sensors

    @property
    def has_members(self) -> bool:
        """Whether windows tell metadata that roll-ups group by."""
        return bool(self._schema.member_fields)

    def tells_members(self, stats: WindowStats) -> bool:
        """Returns whether statistics tell all metadata that roll-ups group by."""
        return tells(stats.member, self._schema.member_fields)

    def readings(self, sensor_id: str, start_us: int, end_us: int, window: Window) -> dict[int, WindowReadings]:
        """Reads the readings of raw rows, by the start of their window. Raises ForeignRow."""
        fields = self._schema.member_fields
        found: dict[int, Columns] = defaultdict(dict)
        members: dict[int, list[Member]] = defaultdict(list)
        for metadata in [{}] if self._locator is None else self._locator.of(sensor_id):
            query = Query(start_us, end_us, metadata=metadata, with_metadata=bool(fields))
            for events in columns_of(self._schema, self._read, sensor_id, query):
                text = member_text(fields, events.metadata) if fields else ""
                for each_us, keys, values in _by_window(window, events):
                    of_metrics = found[each_us].setdefault(events.metrics, ([], []))
                    of_metrics[0].extend(keys)
                    of_metrics[1].extend(values)
                    if fields:
                        members[each_us].append(Member(keys[0], text))
        of_windows = {each_us: WindowReadings.of(_newest_first(columns)) for each_us, columns in found.items()}
        for each_us, of_window in members.items():
            of_windows[each_us].note(*of_window)
        return of_windows

    def row(self, tier: Tier, sensor_id: str, start_us: int) -> WindowStats:
        """Reads the statistics of a window's aggregate row; a missing row counts nothing. Raises ForeignRow."""
        rows = self.rows(tier, sensor_id, start_us, tier.window.end_of(start_us))
        return next((stats for _, stats in rows), WindowStats())

    def rows(self, tier: Tier, sensor_id: str, start_us: int, end_us: int) -> Iterator[tuple[int, WindowStats]]:
        """Reads the aggregate rows of windows: the start in µs and the statistics of each. Raises ForeignRow."""
        for row in self._read(self.row_selection(tier, sensor_id, start_us, end_us)):
            try:
                each_us, stats = parse_window_stats(tier.window, row, tier.statistics)
            except ValueError as error:
                raise ForeignRow(row, error) from error
            stats.member = of_fields(stats.member, self._schema.member_fields)
            yield each_us, stats

    def row_selection(self, tier: Tier, sensor_id: str, start_us: int, end_us: int) -> RowSelection:
        """Returns what :meth:`rows` reads."""
        keys = aggregate_range(tier.window, sensor_id, start_us, end_us)
        return RowSelection(keys, CellSelection((tier.family,), versions=1))

    def starts_of_rows(self, tier: Tier, sensor_id: str, start_us: int, end_us: int) -> set[int]:
        """Returns the starts of the windows that have an aggregate row. Raises ValueError for a foreign row."""
        rows = self._read(self.row_selection(tier, sensor_id, start_us, end_us))
        return {parse_aggregate_key(tier.window, row.key).start_us for row in rows}

    def raw_selections(self, sensor_id: str, start_us: int, end_us: int) -> list[RowSelection] | None:
        """Returns what :meth:`readings` reads; None if that depends on what the table contains."""
        if self._locator is not None:
            return None
        query = Query(start_us, end_us, with_metadata=bool(self._schema.member_fields))
        return selections_of(self._schema, sensor_id, query) if self.can_read_readings else []


def _newest_first(columns: Columns) -> Columns:
    """Returns columns in the order of their newest events, so that sums are the same however rows came."""
    return dict(sorted(columns.items(), key=lambda each: -each[1][0][0]))


def _by_window(window: Window, events: EventColumns) -> Iterator[tuple[int, Sequence[int], Sequence[float]]]:
    """Yields the starts of windows with the keys and the values of their events."""
    times_us, width = events.times_us, len(events.metrics)
    keys = [event_key(each_us, events.discriminator) for each_us in times_us] if events.discriminator else times_us
    first, count = 0, len(times_us)
    while first < count:
        start_us = window.start_of(times_us[first])
        end = bisect_right(times_us, -start_us, first, key=neg)  # the newest event is the first
        yield start_us, keys[first:end], events.values[first * width : end * width]
        first = end
