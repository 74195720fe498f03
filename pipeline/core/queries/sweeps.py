"""Sweeps: read the events, or the aggregate rows, of many sensors in one span of time.

A query (:mod:`pipeline.core.queries.events`) reads one sensor; a sweep reads a range of keys, so that the parts of a
table can be swept in parallel. If other fields precede the time in keys, the sweep seeks each prefix, reads its rows
between two instants, and skips the rest. It costs the rows in its span and a seek for each prefix; a request takes many
seeks where prefixes have few rows, and reads the rows of many prefixes. Like queries, sweeps are pure functions.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple, Protocol

from pipeline.core.queries.events import parsed_rows
from pipeline.core.queries.reads import (
    ForeignRow,
    KeyCursor,
    OnForeign,
    ReadRows,
    RowSelection,
    in_batches,
    raise_foreign,
    skip_scan,
)
from pipeline.core.rows.aggregate_rows import AggregateKey
from pipeline.core.rows.records import RawRecord
from pipeline.core.rows.rows import KeyRange, Row, after_prefix, prefix_range
from pipeline.core.schema.key_template import KeyBindings, KeyTemplate, RawKey
from pipeline.core.schema.key_tokens import (
    MetadataToken,
    MetricToken,
    SaltToken,
    SensorToken,
    ShardToken,
    TimeToken,
    Token,
)
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.table_schema import TableSchema

EVERYTHING = KeyRange(b"", b"")
"""All keys."""


class Span(NamedTuple):
    """The events, or windows, to read.

    Attributes:
        start_us: the earliest event time or window start, inclusive.
        end_us: the latest, exclusive.
        sensors: the sensors; None for all.
    """

    start_us: int
    end_us: int
    sensors: frozenset[str] | None = None

    def includes(self, sensor_id: str) -> bool:
        return self.sensors is None or sensor_id in self.sensors


class SpanOfSensors(Protocol):
    """A span of time, and the sensors in it, however these are chosen."""

    @property
    def start_us(self) -> int:
        """The earliest time, inclusive."""

    @property
    def end_us(self) -> int:
        """The latest time, exclusive."""

    def includes(self, sensor_id: str) -> bool:
        """Whether the sensor is one of them."""


class SpansInOrder:
    """Spans that do not overlap, in the order of time."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._spans = sorted(spans, key=lambda span: span.start_us)

    def include(self, sensor_id: str, time_us: int) -> bool:
        """Returns whether a span contains a sensor's time."""
        place = bisect_right(self._spans, time_us, key=lambda span: span.start_us)
        if not place:
            return False
        span = self._spans[place - 1]
        return time_us < span.end_us and span.includes(sensor_id)


def raw_ranges(schema: TableSchema, sensors: Collection[str] | None) -> list[KeyRange]:
    """Returns the key ranges of these sensors' raw rows, one per sensor if keys allow it; None for all sensors."""
    if sensors is None or not _found_by_sensor(schema.key):
        return [EVERYTHING]
    return [prefix_range(schema.key.prefix(KeyBindings(sensor_id))) for sensor_id in sorted(sensors)]


def intersection(one: KeyRange, other: KeyRange) -> KeyRange | None:
    """Returns the range that two ranges have in common; None if it is empty."""
    start, end = max(one.start, other.start), min((end for end in (one.end, other.end) if end), default=b"")
    return KeyRange(start, end) if not end or start < end else None


def events_within(
    schema: TableSchema, read: ReadRows, keys: KeyRange, span: Span, on_foreign: OnForeign = raise_foreign
) -> Iterator[RawRecord]:
    """Yields the events of the span in a range of keys; in parts if rows contain parts of events.

    Their metadata is left out, unless roll-ups group by it or the table keeps events of metadata alone.

    Args:
        schema: the table's schema.
        read: reads rows.
        keys: a range of the table's keys.
        span: the span, with 0 ≤ start_us < end_us ≤ :data:`LATEST_US` + 1.
        on_foreign: receives rows that the schema does not write: all that may contain events of the span, and some
            others; possibly one of them twice.

    Raises:
        ForeignRow: such a row, unless ``on_foreign`` leaves it out.
    """

    def of_span(problem: ForeignRow) -> None:
        if problem.raw_key is None or span.includes(problem.raw_key.sensor_id):
            on_foreign(problem)

    selection = schema.layout.selection(schema.layout_context, None, span.start_us, span.end_us, None)
    if not schema.metadata_alone:
        selection = selection._replace(families=schema.metrics.families + schema.member_families)
    if selection.times_us and selection.times_us[0] >= selection.times_us[1]:
        return  # the span lies between two milliseconds, and times are stored in milliseconds
    pattern = (
        schema.key.pattern_of(KeyBindings(next(iter(span.sensors))))
        if span.sensors and len(span.sensors) == 1
        else None
    )
    for ranges in in_batches(event_ranges(schema.key, read, keys, span, of_span)):
        rows = read(RowSelection(ranges, selection, pattern))
        for raw_key, records in parsed_rows(schema, rows, of_span):
            if span.includes(raw_key.sensor_id):
                yield from (each for each in records if span.start_us <= each.event_time_us < span.end_us)


def window_rows(
    read: ReadRows,
    selection: CellSelection,
    keys: KeyRange,
    span: Span,
    parse: Callable[[bytes], AggregateKey],
    range_of: Callable[[str, int, int], KeyRange],
    on_foreign: OnForeign = raise_foreign,
) -> Iterator[tuple[AggregateKey, Row]]:
    """Yields the aggregate rows, in a range of keys, of windows that start in the span.

    Args:
        read: reads rows.
        selection: the cells to read.
        keys: a range that contains only such rows: below :func:`aggregate_prefix`.
        span: the span of the windows' starts.
        parse: parses a key; a ValueError marks the row as foreign.
        range_of: returns the keys of a sensor's windows that start between two times, like :func:`aggregate_range`.
        on_foreign: receives the rows with other keys that the sweep reads; possibly one of them twice.
    """
    for some in in_batches(window_ranges(read, keys, span, parse, range_of, on_foreign)):
        for found in read(RowSelection(some, selection)):
            try:
                key = parse(found.key)
            except ValueError as error:
                on_foreign(ForeignRow(found, error))
            else:
                yield key, found


def window_ranges(
    read: ReadRows,
    keys: KeyRange,
    span: SpanOfSensors,
    parse: Callable[[bytes], AggregateKey],
    range_of: Callable[[str, int, int], KeyRange],
    on_foreign: OnForeign,
) -> Iterator[KeyRange]:
    """Yields the ranges of keys that :func:`window_rows` reads, in order: a seek for each sensor."""
    for first, (sensor_id, _) in skip_scan(read, keys, parse, sensor_prefix, on_foreign, skip=()):
        least, most = range_of(sensor_id, span.start_us, span.end_us)
        key_range = intersection(KeyRange(max(first, least), most), keys)
        if span.includes(sensor_id) and key_range is not None:
            yield key_range


def sensor_prefix(key: bytes, _: AggregateKey) -> bytes:
    """Returns the prefix of all windows of the key's sensor."""
    return key[: key.rindex(b"#") + 1]


def _found_by_sensor(key: KeyTemplate) -> bool:
    """Whether a sensor's id determines the prefix of its rows."""
    for part in key.parts:
        if isinstance(part, SensorToken):
            return True
        if not isinstance(part, str | SaltToken | ShardToken):
            return False
    return False


def event_ranges(
    key: KeyTemplate, read: ReadRows, keys: KeyRange, span: Span, on_foreign: OnForeign
) -> Iterator[KeyRange]:
    """Yields the key ranges that :func:`events_within` reads: for each prefix the range of its times."""
    position, cursor = keys.start, KeyCursor(read, keys.end, key.parse_key, on_foreign)
    while first := cursor.first(position):
        found, position = range_and_next(key, *first, span)
        if found is not None:
            found = intersection(found, keys)
        if found is not None:
            yield found
        if not position:
            return


def range_and_next(key: KeyTemplate, first: bytes, raw_key: RawKey, span: Span) -> tuple[KeyRange | None, bytes]:
    """Returns the range of the span's times below the key's prefix, if any, and the key to continue from.

    Times are ordered from coarse to fine. From a key whose coarse time is outside the span, the sweep continues at the
    first coarse time inside, or after all keys with the prefix. If all coarse times are inside, the finest time bounds
    the range.
    """
    text, offset = first.decode(), 0
    for part in key.parts:
        width = len(part if isinstance(part, str) else _text(part, raw_key))
        before = text[:offset].encode()
        if isinstance(part, SensorToken) and not span.includes(raw_key.sensor_id):
            return None, _next_sensor(before, raw_key.sensor_id, span)
        if isinstance(part, TimeToken):
            least, most = sorted((part.render(span.start_us), part.render(span.end_us - 1)))
            if part is key.times[-1]:
                return KeyRange(before + least.encode(), after_prefix(before + most.encode())), after_prefix(before)
            time = text[offset : offset + width]
            if time < least:
                return None, before + least.encode()
            if time > most:
                return None, after_prefix(before)
        offset += width
    raise ValueError(f"{key} has no time")


def _text(token: Token, raw_key: RawKey) -> str:
    """Returns the text of the token in the key; for a time token, any text of the same length."""
    match token:
        case SensorToken():
            return raw_key.sensor_id
        case MetricToken():
            return raw_key.metric
        case MetadataToken(name=name):
            return raw_key.metadata[name]
        case SaltToken() | ShardToken():
            return token.render(raw_key.sensor_id)
        case TimeToken():
            return token.render(0)
    raise TypeError(token)


def _next_sensor(before: bytes, sensor_id: str, span: Span) -> bytes:
    """Returns the first key at which the next sensor of the span may be."""
    later = (f"{other}#" for other in span.sensors or () if f"{other}#" > f"{sensor_id}#")
    following = min(later, default=None)
    return after_prefix(before) if following is None else before + following.encode()
