"""Queries of many sensors: their events and windows, one by one or as columns, in an order that is always the same.

A query of one sensor (:mod:`pipeline.core.queries.events`) reads its rows. A query of many reads ranges of keys, so
that its parts can be read in parallel. If other fields precede the time in keys, it seeks each prefix, reads its rows
between two instants, and skips the rest. It costs the rows in its span and a seek for each prefix; a request takes many
seeks where prefixes have few rows, and reads the rows of many prefixes. Where keys begin with the time, all rows of the
span are read. Like other queries, these are pure functions.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from operator import gt, le, or_
from typing import NamedTuple, TypeVar

from pipeline.core.events.event import name_of
from pipeline.core.queries.events import (
    Query,
    events_found_at,
    events_of_all,
    has_time_last,
    parsed_rows,
    places,
    selection_of,
)
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
from pipeline.core.queries.windows import parsed_windows, selection_of_windows
from pipeline.core.rows.aggregate_rows import (
    OF_WRITERS,
    READING_COUNT,
    AggregateKey,
    aggregate_prefix,
    aggregate_range,
    parse_aggregate_key,
    sensor_prefix,
)
from pipeline.core.rows.records import AggregateRecord, EventBlock, RawRecord, statistics_of
from pipeline.core.rows.rows import (
    BlockOfRows,
    KeyRange,
    Part,
    Row,
    after_prefix,
    in_parts,
    one_by_one,
    prefix_range,
    split_range,
)
from pipeline.core.schema.key_template import KeyBindings, KeyTemplate, RawKey
from pipeline.core.schema.key_tokens import (
    MetadataToken,
    MetricToken,
    ReverseToken,
    SaltToken,
    SensorToken,
    ShardToken,
    TimeToken,
    Token,
)
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.statistics.window_stats import (
    DEFAULT,
    DEFAULT_STATISTICS,
    ONLY_MERGED,
    Statistic,
    parse_all,
    parse_counts,
    qualifier_of,
    split_qualifier,
    statistic,
)

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
    span: "Span | ChosenSpan",
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


_T = TypeVar("_T")

_BLOCK_EVENTS, _MOST_STARTS = 8192, 8192
_NOT_PRINTED = tuple(sorted(name.encode() for name in (*ONLY_MERGED, *OF_WRITERS)))  # starts of columns of windows
_WILD = re.compile(r"[*?]")


def is_glob(text: str) -> bool:
    """Whether a text stands for several names: ``*`` for any text, ``?`` for one character."""
    return _WILD.search(text) is not None


class Chosen:
    """The names that ids, globs and a prefix choose: of sensors, or of groups of a roll-up.

    A glob also chooses the name that it is itself. Safe for any number of threads.

    Args:
        texts: ids and globs.
        prefix: the start of further names, in which ``*`` is a character like any other.
    """

    def __init__(self, texts: Iterable[str] = (), prefix: str | None = None) -> None:
        texts = list(texts)
        self._ids = {text for text in texts if not is_glob(text)}
        self._patterns = {text: _pattern(text) for text in texts if is_glob(text)}
        if prefix is not None:
            self._patterns[f"{prefix}*"] = re.compile(f"{re.escape(prefix)}.*", re.DOTALL)
        self._starts = {*self._ids, *(_WILD.split(text)[0] for text in texts), *([] if prefix is None else [prefix])}
        self._missing = dict.fromkeys([*texts, *self._patterns])

    @property
    def prefixes(self) -> list[str]:
        """The starts of all names, in order, of which none begins with another."""
        found = list[str]()
        for start in sorted(self._starts):
            if not found or not start.startswith(found[-1]):
                found.append(start)
        return found

    @property
    def missing(self) -> list[str]:
        """The ids and globs that chose no name so far."""
        return list(self._missing)

    def includes(self, name: str) -> bool:
        """Whether a name is chosen. Notes what chose it."""
        found = [text for text, pattern in self._patterns.items() if pattern.fullmatch(name)]
        if name in self._ids:
            found.append(name)
        for text in found:
            self._missing.pop(text, None)
        return bool(found)


def _pattern(glob: str) -> re.Pattern[str]:
    any_of = {"*": ".*", "?": "."}
    return re.compile("".join(any_of.get(character, re.escape(character)) for character in glob), re.DOTALL)


class ChosenSpan(NamedTuple):
    """A span of time, and the sensors in it; what a :class:`Span` is to few sensors."""

    start_us: int
    end_us: int
    sensors: Chosen

    def includes(self, sensor_id: str) -> bool:
        return self.sensors.includes(sensor_id)


class EventPart(NamedTuple):
    """A part of the events of sensors, which can be read by itself.

    Attributes:
        query: the events, without a limit.
        keys: the keys of their rows.
        place: the sensor, and its metadata in row keys; None for all sensors that are asked for.
    """

    query: Query
    keys: KeyRange = EVERYTHING
    place: KeyBindings | None = None


def event_parts(
    schema: TableSchema, read: ReadRows, sensors: Chosen, query: Query, points: Sequence[bytes], on_foreign: OnForeign
) -> Iterator[EventPart]:
    """Yields the parts of the events of sensors: ranges of keys or, where rows have parts of events, sensors.

    If keys begin with the time, yields spans of time.
    """
    known = KeyBindings(None, None, query.metadata)
    if has_time_last(schema):
        for prefix in _prefixes(schema, sensors, known):
            each = split_range(prefix_range(schema.key.prefix(known, prefix)), points)
            yield from (EventPart(query, keys) for keys in each)
    elif schema.key.time_first:
        # Parts of an event share the first time of their keys. If metadata is before it, each part reads all keys.
        count = 1 if schema.key.first_unknown(KeyBindings()) is not None else len(points) + 1
        floor, length_us = schema.key.times[0].floor, query.end_us - query.start_us
        cuts = {floor(query.start_us + length_us * n // count) for n in range(1, count)}
        times = [query.start_us, *sorted(cut for cut in cuts if cut > query.start_us), query.end_us]
        yield from (EventPart(replace(query, start_us=start, end_us=end)) for start, end in pairwise(times))
    else:
        for prefix in _prefixes(schema, sensors, known):
            for place in places(schema, read, on_foreign, known, prefix):
                if sensors.includes(place.sensor_id or ""):
                    yield EventPart(query, place=place)


def blocks_of(
    schema: TableSchema, read: ReadRows, sensors: Chosen, query: Query, on_foreign: OnForeign
) -> Iterator[Iterator[EventBlock]]:
    """Yields parts of the events of sensors, sensor by sensor in the order of keys, each newest first.

    If keys begin with the time, there is one part, by time.
    """
    for part in event_parts(schema, read, sensors, query, (), on_foreign):
        yield from blocks_of_part(schema, read, sensors, part, on_foreign)


def blocks_of_part(
    schema: TableSchema, read: ReadRows, sensors: Chosen, part: EventPart, on_foreign: OnForeign
) -> Iterator[Iterator[EventBlock]]:
    """Yields what :func:`blocks_of` yields of one of :func:`event_parts`."""
    if has_time_last(schema):
        for ranges in in_batches(_ranges(schema, read, sensors, part, on_foreign)):
            yield _blocks_in(schema, read, ranges, part.query, on_foreign)
    elif part.place is not None:
        events = events_found_at(schema, read, part.place, part.query, on_foreign)
        yield _in_blocks(events, lambda event, block: block.add(event))
    else:
        events = events_of_all(schema, read, part.query, on_foreign)
        chosen = (event for event in events if sensors.includes(event.sensor_id))
        yield _in_blocks(chosen, lambda event, block: block.add(event))


def scanned(schema: TableSchema, metadata: Collection[str]) -> str:
    """Returns what a query of many sensors reads besides their rows; empty if nothing."""
    first = schema.key.first_unknown(KeyBindings(None, None, dict.fromkeys(metadata, "x")))
    if schema.key.time_first:
        return "row keys begin with the time: reading all rows of this time, also those of other sensors"
    if first is not None and not isinstance(first, SensorToken):
        return f"row keys have {first.text} before the sensor: seeking every sensor of the table"
    return ""


def window_parts(
    tier: Tier, read: ReadRows, sensors: Chosen, query: Query, on_foreign: OnForeign, within: KeyRange = EVERYTHING
) -> Iterator[Iterator[AggregateRecord]]:
    """Yields parts of the windows of sensors that start in a range, sensor by sensor, each oldest first.

    If the query has metrics, yields only these, and only windows that have one of them; of all keys, those ``within`` a
    range.
    """
    cells = selection_of_windows(tier, query.metrics)
    for selection in _window_selections(tier, read, cells, sensors, query, on_foreign, within):
        yield parsed_windows(tier, read(selection), query.metrics, on_foreign)


def window_blocks(
    tier: Tier, read: ReadRows, sensors: Chosen, query: Query, on_foreign: OnForeign, within: KeyRange = EVERYTHING
) -> Iterator[Iterator[EventBlock]]:
    """Yields what :func:`window_parts` yields as columns: the readings of an event are the columns of a window's row.

    Its time is the window's start. Rows are read in blocks, several times faster than one by one, without the columns
    that readers do not list.
    """

    def add(starts: dict[bytes, int], part: Part, gathered: EventBlock) -> None:
        try:
            _add_windows(tier, part, query.metrics, starts, gathered)
        except ValueError:
            for record in parsed_windows(tier, one_by_one((part,)), query.metrics, on_foreign):
                gathered.add(_as_event(record))

    cells = selection_of_windows(tier, query.metrics)
    columns = [each for each in cells.qualifiers or () if not each.startswith(_NOT_PRINTED)]
    cells = cells._replace(qualifiers=None if cells.qualifiers is None else tuple(columns), without=_NOT_PRINTED)
    for selection in _window_selections(tier, read, cells, sensors, query, on_foreign, within):
        yield _in_blocks(in_parts(read(selection)), partial(add, {}))


def _window_selections(
    tier: Tier,
    read: ReadRows,
    cells: CellSelection,
    sensors: Chosen,
    query: Query,
    on_foreign: OnForeign,
    within: KeyRange,
) -> Iterator[RowSelection]:
    parse, range_of = partial(parse_aggregate_key, tier.window), partial(aggregate_range, tier.window)
    span = ChosenSpan(query.start_us, query.end_us, sensors)
    for prefix in sensors.prefixes:
        keys = intersection(prefix_range(f"{aggregate_prefix(tier.window)}{prefix}".encode()), within)
        for ranges in in_batches(window_ranges(read, keys, span, parse, range_of, on_foreign) if keys else ()):
            yield RowSelection(ranges, cells)


def _as_event(record: AggregateRecord) -> RawRecord:
    readings = {READING_COUNT: float(record.reading_count)} | statistics_of(record)
    return RawRecord(record.sensor_id, record.start_us, readings)


def _add_windows(
    tier: Tier, block: Part, metrics: tuple[str, ...] | None, starts: dict[bytes, int], gathered: EventBlock
) -> None:
    """Adds the windows of a block. Raises ValueError unless it is one, whose statistics are all valid.

    Windows of many sensors start at the same times: ``starts`` has those that are known by their texts in keys.
    """
    if not isinstance(block, BlockOfRows):
        raise ValueError("it is one row")
    columns = dict(zip(block.qualifiers, block.values, strict=True))
    counts = columns.pop(READING_COUNT.encode(), (b"",))
    by_metric: dict[str, dict[str, Sequence[bytes]]] = {}
    for qualifier, values in columns.items():
        statistic, metric = split_qualifier(qualifier.decode())
        by_metric.setdefault(metric, {})[statistic.name] = values
    if b"" in counts or {tier.family} != set(block.families) or not set(by_metric) <= set(metrics or by_metric):
        raise ValueError("it has other columns")
    readings: dict[str, Sequence[float | None]] = {READING_COUNT: parse_counts(counts)}
    present = [False] * len(counts)  # whether each row has a metric
    for metric, texts in sorted(by_metric.items()):
        name_of(metric.encode())
        has = list(map(bool, texts.get("count", ())))
        present = list(map(or_, present, has)) if has else []
        readings |= _statistics(tier.statistics.of(metric), metric, texts, has)
    if not all(present):
        raise ValueError("it has no metric")
    sensors = dict[bytes, str]()
    if len(starts) > _MOST_STARTS:
        starts.clear()
    pairs = [tuple(key.rsplit(b"#", 1)) for key in block.keys]
    for (sensor, start), key in zip(pairs, block.keys, strict=True):
        if sensor not in sensors or start not in starts:
            sensors[sensor], starts[start] = parse_aggregate_key(tier.window, key)
    gathered.extend([sensors[each] for each, _ in pairs], [starts[each] for _, each in pairs], readings, {})


def _statistics(
    named: tuple[Statistic, ...], metric: str, texts: Mapping[str, Sequence[bytes]], has: list[bool]
) -> dict[str, Sequence[float | None]]:
    """Returns the columns of a metric, which has statistics of that name in some rows. Raises ValueError.

    Rows that have the count have the default statistics, if these are the metric's; others may lack some.
    """
    everywhere = not has or all(has)
    found: dict[str, tuple[list[bool], list[float]]] = {}
    for name in sorted(texts, key=lambda name: statistic(name).rank):
        of_name, of_rows = texts[name], has
        if not (everywhere and b"" not in of_name):
            of_rows = list(map(bool, of_name))
            if of_rows != has and (named is DEFAULT_STATISTICS or any(map(gt, of_rows, has))):
                raise ValueError("it lacks some statistics")
            of_name = list(filter(None, of_name))
        found[name] = of_rows, parse_all(statistic(name), of_name)
    if "count" not in found or (named is DEFAULT_STATISTICS and set(found) != set(DEFAULT)):
        raise ValueError("it has other statistics")
    rows, least = found.get("min", (None, []))
    _, most = found.get("max", (None, []))
    if rows is not None and (rows != found.get("max", (rows,))[0] or not all(map(le, least, most))):
        raise ValueError("its statistics contradict each other")
    for name, (of_rows, values) in found.items():
        if statistic(name).limited and (least or most):
            if not least or not most or of_rows != rows:
                raise ValueError("its ranges of readings are not all known")
            values[:] = map(min, map(max, values, least), most)
    return {qualifier_of(name, metric): _spread(values, of_rows) for name, (of_rows, values) in found.items()}


def _spread(values: Sequence[float], has: Sequence[bool]) -> Sequence[float | None]:
    """Returns the values at the places that have one, and None elsewhere."""
    if len(values) == len(has):
        return values
    rest = iter(values)
    return [next(rest) if each else None for each in has]


def _prefixes(schema: TableSchema, sensors: Chosen, known: KeyBindings) -> list[str]:
    """Returns the starts of the sensors' ids, if keys begin with these."""
    return sensors.prefixes if isinstance(schema.key.first_unknown(known), SensorToken) else [""]


def _ranges(
    schema: TableSchema, read: ReadRows, sensors: Chosen, part: EventPart, on_foreign: OnForeign
) -> Iterator[KeyRange]:
    """Yields the ranges of the events' keys: the times of the query below each prefix."""
    key, span, metadata = schema.key, Span(part.query.start_us, part.query.end_us), part.query.metadata
    cursor, position = KeyCursor(read, part.keys.end, key.parse_key, on_foreign), part.keys.start
    while first := cursor.first(position):
        found, raw_key = first
        if metadata.items() <= raw_key.metadata.items() and sensors.includes(raw_key.sensor_id):
            of_span, position = range_and_next(key, found, raw_key, span)
            if of_span is not None and (inside := intersection(of_span, part.keys)) is not None:
                yield inside
        else:
            position = after_prefix(key.prefix_through(SensorToken, found))
        if not position:
            break


def _blocks_in(
    schema: TableSchema, read: ReadRows, ranges: tuple[KeyRange, ...], query: Query, on_foreign: OnForeign
) -> Iterator[EventBlock]:
    """Yields the events in ranges of keys, in a schema in which a row is an event."""

    def add(part: Part, gathered: EventBlock) -> None:
        try:
            _add_block(schema, part, query, gathered)
        except ValueError:  # a row may be foreign: reading event by event finds it
            for _, records in parsed_rows(schema, one_by_one((part,)), on_foreign):
                for record in records:
                    if (wanted := _projected(record, query)) is not None:
                        gathered.add(wanted)

    return _in_blocks(in_parts(read(RowSelection(ranges, selection_of(schema, query)))), add)


def _projected(record: RawRecord, query: Query) -> RawRecord | None:
    """Returns an event with only the query's metrics; None for one that is not asked for."""
    if not query.start_us <= record.event_time_us < query.end_us:
        return None
    if query.metrics is None:
        return record
    readings = {name: record.readings[name] for name in query.metrics if name in record.readings}
    return replace(record, readings=readings, metadata={}) if readings else None


def _add_block(schema: TableSchema, block: Part, query: Query, gathered: EventBlock) -> None:
    """Adds the events of a block. Raises ValueError unless it is one, and the schema may write all of its rows."""
    if not isinstance(block, BlockOfRows):
        raise ValueError("it is one row")
    key, time = schema.key, schema.key.times[-1]
    assert isinstance(time, ReverseToken)  # noqa: S101 (for the type checker)
    digits = len(time.render(0))
    starts, texts = [each[:-digits] for each in block.keys], [each[-digits:] for each in block.keys]
    if set(map(len, texts)) != {digits} or not b"".join(texts).isdigit():
        raise ValueError("its key does not end with a time")
    parsed = {start: key.parse_key(start + text) for start, text in dict(zip(starts, texts, strict=True)).items()}
    names = [name_of(qualifier) for qualifier in block.qualifiers]
    if query.metrics is not None and not set(names) <= set(query.metrics):
        raise ValueError("it has other metrics too")
    unpack_all = schema.values.unpack_all
    readings: dict[str, Sequence[float | None]] = {}
    metadata: dict[str, list[str | None]] = {}
    for name, family, values in zip(names, block.families, block.values, strict=True):
        if family in schema.metadata.families:
            metadata[name] = [text.decode() if text else None for text in values]
        elif family not in schema.metrics.families:
            raise ValueError(f"{family} is no family of readings")
        else:
            readings[name] = _spread(unpack_all(list(filter(None, values))), list(map(bool, values)))
    for name in () if query.metrics is not None else key.metadata_names:
        metadata[name] = [parsed[start].metadata[name] for start in starts]
    sensor_ids = [parsed[start].sensor_id for start in starts]
    gathered.extend(sensor_ids, [time.max_value - int(text) for text in texts], readings, metadata)


def _in_blocks(parts: Iterable[_T], add: Callable[[_T, EventBlock], object]) -> Iterator[EventBlock]:
    """Yields blocks of some thousand events, to which a function adds one part after the other."""
    gathered = EventBlock()
    for part in parts:
        add(part, gathered)
        if len(gathered) >= _BLOCK_EVENTS:
            yield gathered
            gathered = EventBlock()
    if len(gathered):
        yield gathered
