"""Audits the rows of newest readings: compares them with the raw rows of spans of time, and looks up what is left."""

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple

from pipeline.core.completion.audit import Extent
from pipeline.core.completion.neighbours import Neighbours
from pipeline.core.notation.cell_values import format_value
from pipeline.core.queries.events import Query, events_of
from pipeline.core.queries.reads import ForeignRow, ReadRows
from pipeline.core.queries.sweeps import Span, SpansInOrder, events_within, raw_ranges
from pipeline.core.rows.newest_row import NewestCell, latest_key, tells_metadata
from pipeline.core.rows.records import RawRecord
from pipeline.core.rows.rows import Cell, EncodedRow, delete_column, mutations_of
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema

_LOOKBACK_US = 2 * 24 * 3_600_000_000  # of which raw rows are read, with or without aggregate rows
_MOST_WINDOWS = 100  # of which aggregate rows tell a metric, and raw rows don't
_GRAIN_US = 1000  # of the timestamps of cells


def within(spans: Iterable[Span], extent: Extent) -> list[Span]:
    """Returns the spans of the windows of an extent."""
    clipped = (
        Span(max(each.start_us, extent.start_us), min(each.end_us, extent.end_us), each.sensors) for each in spans
    )
    return [span for span in clipped if span.start_us < span.end_us]


class WrongCell(NamedTuple):
    """A wrong cell in a row of newest readings.

    Attributes:
        qualifier: the column.
        right: the newest reading of the spans; None if the one to write has to be looked up.
        stale_us: the timestamp of a stored reading that raw rows do not have; None if the new cell hides it.
    """

    qualifier: bytes
    right: NewestCell | None
    stale_us: int | None = None


class NewestAudit:
    """Compares rows of newest readings with raw rows.

    Args:
        schema: the table's schema, with a family of newest readings.
        spans: the spans of time whose raw rows were read, and which no job writes any longer.
    """

    def __init__(
        self, schema: TableSchema, retention: Retention, read: ReadRows, spans: Iterable[Span], now_us: int
    ) -> None:
        self._schema, self._read, self._spans = schema, read, SpansInOrder(spans)
        self._family = schema.latest or ""
        self._kept_us = retention.readings_from_us(now_us)
        self._from_us = retention.cells_stay_from_us(self._family, now_us)
        self._neighbours = Neighbours(schema, retention, read, _LOOKBACK_US)

    def wrong_cells(self, sensor_id: str, stored: Iterable[Cell], found: Iterable[NewestCell]) -> list[WrongCell]:
        """Returns what is wrong with a sensor's row, given its cells and the newest readings of the spans.

        A stored reading from outside the spans, or whose raw row may be collected, counts as right unless the spans
        have a newer one. So does metadata that raw rows don't have.
        """
        right: dict[bytes, NewestCell] = {}
        for name, time_us, value in found:
            cell = name, time_us - time_us % _GRAIN_US, value
            right[name.encode()] = max(cell, right.get(name.encode(), cell), key=lambda each: each[1:])
        wrong = list[WrongCell]()
        for _, qualifier, at_us, value in stored:
            own = right.pop(qualifier, None)
            if own is not None and own[1] >= at_us:
                if own[1:] != (at_us, value):
                    wrong.append(WrongCell(qualifier, own))
            elif at_us >= self._kept_us and self._spans.include(sensor_id, at_us) and not tells_metadata(qualifier):
                wrong.append(WrongCell(qualifier, None, at_us))
        wrong += [WrongCell(qualifier, own) for qualifier, own in right.items()]
        return [each for each in wrong if each.right is None or each.right[1] >= self._from_us]

    def row(self, sensor_id: str, wrong: Iterable[WrongCell]) -> EncodedRow | None:
        """Returns the row that puts cells right, in one atomic step; None if foreign raw rows hide what is right.

        It deletes nothing that is newer than a stale reading: a job may write that at any time.
        """
        parts, count = list[bytes](), 0
        for qualifier, right, stale_us in wrong:
            if stale_us is not None:
                end_us = stale_us + _GRAIN_US
                try:
                    right = self._newest(sensor_id, qualifier.decode(), end_us)
                except (ForeignRow, UnicodeDecodeError):
                    continue
                parts.append(delete_column(self._family, qualifier, end_us))
            if right is not None:
                parts.append(mutations_of([Cell(self._family, qualifier, right[1], right[2])]))
            count += (stale_us is not None) + (right is not None)
        return EncodedRow(latest_key(sensor_id), b"".join(parts), count) if parts else None

    def _newest(self, sensor_id: str, metric: str, end_us: int) -> NewestCell | None:
        """Returns the newest reading of a metric before a time. Raises ForeignRow for a row that may have a newer one.

        No read goes through all raw rows of a sensor for a metric that it sent long ago: aggregate rows tell which
        window last had it.
        """
        schema, window = self._schema, self._schema.tiers[0].window
        records: Iterator[RawRecord] = iter(())
        windows = [window.start_of(end_us - 1)]  # a job may have written a late reading, and not yet the window's row
        if schema.finds_sensors:
            lookback_us = max(end_us - _LOOKBACK_US, 0)
            records = events_of(schema, self._read, sensor_id, Query(lookback_us, end_us, metrics=(metric,), limit=1))
            end_us, windows = lookback_us, []
        found = [(each.event_time_us, each.readings[metric]) for each in records]
        told = self._neighbours.windows_with(sensor_id, metric, end_us)
        for start_us in () if found else chain(windows, islice(told, _MOST_WINDOWS)):
            span = Span(start_us, min(window.end_of(start_us), end_us), frozenset({sensor_id}))
            for keys in raw_ranges(schema, span.sensors):
                of_span = events_within(schema, self._read, keys, span)
                found += [(each.event_time_us, each.readings[metric]) for each in of_span if metric in each.readings]
            if found:
                break
        if not found:
            return None
        time_us, value = max(found)
        time_us -= time_us % _GRAIN_US
        return (metric, time_us, format_value(value)) if time_us >= self._from_us else None
