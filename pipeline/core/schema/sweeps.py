"""Sweeps: the events of all sensors, or of many, in one span of time, and their windows' rows.

A query (:mod:`pipeline.core.schema.queries`) is one sensor's; a sweep takes what lies in a range of keys, so that a
table is swept in parts, side by side. Where keys have something before the time, the rows of one beginning are sought
and read between two instants, and the rest of them is jumped over: a sweep costs what lies in its span, and one seek
for each beginning. Pure, as queries are.
"""

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from pipeline.core.aggregates import AggregateKey
from pipeline.core.records import RawRecord
from pipeline.core.rows import KeyRange, Row, after_prefix, prefix_range
from pipeline.core.schema.foreign import ForeignRow, OnForeign, raise_foreign
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.queries import ReadRows, parsed_rows, seek, skip_scan
from pipeline.core.schema.scans import KeyBindings
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.template import KeyTemplate, RawKey
from pipeline.core.schema.tokens import (
    MetadataToken,
    MetricToken,
    SaltToken,
    SensorToken,
    ShardToken,
    TimeToken,
    Token,
)

_EVERYTHING = KeyRange(b"", b"")


class Span(NamedTuple):
    """Which events, or windows, are swept.

    Attributes:
        start_us: the earliest time, of events, or of windows' starts.
        end_us: the first that is too late.
        sensors: whose; None for everybody's.
    """

    start_us: int
    end_us: int
    sensors: frozenset[str] | None = None

    def has(self, sensor_id: str) -> bool:
        return self.sensors is None or sensor_id in self.sensors


def raw_ranges(schema: TableSchema, sensors: Collection[str] | None) -> list[KeyRange]:
    """Where the raw rows of these sensors lie, each sensor's apart if keys find it; None for all sensors."""
    if sensors is None or not _found_by_sensor(schema.key):
        return [_EVERYTHING]
    return [prefix_range(schema.keys.prefix(KeyBindings(sensor_id))) for sensor_id in sorted(sensors)]


def within(one: KeyRange, other: KeyRange) -> KeyRange | None:
    """What two ranges have in common; None for nothing."""
    start, end = max(one.start, other.start), min((end for end in (one.end, other.end) if end), default=b"")
    return KeyRange(start, end) if not end or start < end else None


def events_within(
    schema: TableSchema, read: ReadRows, keys: KeyRange, span: Span, on_foreign: OnForeign = raise_foreign
) -> Iterator[RawRecord]:
    """The events of the span whose rows have these keys, without metadata; in parts, where rows hold parts of them.

    Args:
        schema: the table's.
        read: what rows are had by.
        keys: a range of the table's keys.
        span: 0 ≤ start_us < end_us ≤ :data:`LATEST_US` + 1.
        on_foreign: what is told of rows that the schema does not write, as far as the sweep meets them: all that may
            hold events of the span, and others that stand in its way; one of them maybe twice.

    Raises:
        ForeignRow: such a row, unless ``on_foreign`` leaves it out.
    """

    def of_span(problem: ForeignRow) -> None:
        if problem.raw_key is None or span.has(problem.raw_key.sensor_id):
            on_foreign(problem)

    selection = schema.layout.selection(schema.layout_context, None, span.start_us, span.end_us, None)
    selection = selection._replace(families=schema.layout_context.metrics.families)
    if selection.times_us and selection.times_us[0] >= selection.times_us[1]:
        return  # between two milliseconds, where times are kept to the millisecond
    pattern = (
        schema.keys.pattern_of(KeyBindings(next(iter(span.sensors))))
        if span.sensors and len(span.sensors) == 1
        else None
    )
    for key_range in _ranges(schema.key, read, keys, span, of_span):
        rows = read(key_range, selection, pattern, None, reverse=False)
        for raw_key, records in parsed_rows(schema, rows, of_span):
            if span.has(raw_key.sensor_id):
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
    """The rows of windows that start in the span, and have these keys.

    Args:
        read: what rows are had by.
        selection: which of their cells.
        keys: a range of keys of such rows alone, as :func:`aggregate_prefix` begins them.
        span: of windows' starts.
        parse: reads a key; a ValueError of it is a ForeignRow.
        range_of: the keys of a sensor's windows that start between two times, as :func:`aggregate_range`.
        on_foreign: what is told of rows with other keys, as far as they are met; of one of them maybe twice.
    """
    for first, (sensor_id, _) in skip_scan(read, keys, parse, _sensor_prefix, on_foreign, skip=()):
        least, most = range_of(sensor_id, span.start_us, span.end_us)
        key_range = within(KeyRange(max(first, least), most), keys)
        if span.has(sensor_id) and key_range is not None:
            for found in read(key_range, selection, None, None, reverse=False):
                try:
                    key = parse(found.key)
                except ValueError as error:
                    on_foreign(ForeignRow(found, error))
                else:
                    yield key, found


def _sensor_prefix(key: bytes, _: AggregateKey) -> bytes:
    """What the keys of all windows of the sensor begin with."""
    return key[: key.rindex(b"#") + 1]


def _found_by_sensor(key: KeyTemplate) -> bool:
    """Whether a sensor's rows lie side by side, and where, is known by its id alone."""
    for part in key.parts:
        if isinstance(part, SensorToken):
            return True
        if not isinstance(part, str | SaltToken | ShardToken):
            return False
    return False


def _ranges(key: KeyTemplate, read: ReadRows, keys: KeyRange, span: Span, on_foreign: OnForeign) -> Iterator[KeyRange]:
    """Where the events of the span lie among these keys: for each beginning of keys the range of its times."""
    position, end = keys
    while first := seek(read, KeyRange(position, end), key.parse_key, on_foreign):
        found, position = _range_and_next(key, *first, span)
        if found is not None:
            found = within(found, keys)
        if found is not None:
            yield found
        if not position:
            return


def _range_and_next(key: KeyTemplate, first: bytes, raw_key: RawKey, span: Span) -> tuple[KeyRange | None, bytes]:
    """What a key tells of those that begin like it: the range of the span's times, if any, and where to look next.

    Times stand from the coarsest to the finest, so a key whose coarse time is outside the span is jumped from, to the
    first within or behind all of them; with every coarse time inside, the finest makes a range.
    """
    text, offset = first.decode(), 0
    for part in key.parts:
        width = len(part if isinstance(part, str) else _text(part, raw_key))
        before = text[:offset].encode()
        if isinstance(part, SensorToken) and not span.has(raw_key.sensor_id):
            return None, _next_sensor(before, raw_key.sensor_id, span)
        if isinstance(part, TimeToken):
            least, most = sorted((part.render(span.start_us), part.render(span.end_us - 1)))
            if part is key.times[-1]:
                return KeyRange(before + least.encode(), after_prefix(before + most.encode())), after_prefix(before)
            declared = text[offset : offset + width]
            if declared < least:
                return None, before + least.encode()
            if declared > most:
                return None, after_prefix(before)
        offset += width
    raise ValueError(f"{key} has no time")


def _text(token: Token, raw_key: RawKey) -> str:
    """What the key has for the token, or something as long."""
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
    """Behind this sensor, where the next of those can be that are looked for."""
    behind = (f"{other}#" for other in span.sensors or () if f"{other}#" > f"{sensor_id}#")
    following = min(behind, default=None)
    return after_prefix(before) if following is None else before + following.encode()
