"""Queries for one sensor's events, or the events of a prefix of sensors, newest first on every schema.

These functions are pure: the caller passes a function that reads rows, of a table or of a list. A row that the schema
does not write goes to the caller's ``on_foreign``, which raises, or returns to leave the row out.

Readings come also as columns of numbers, without an object for each event: blocks of rows become such columns at once
if a row is an event, and its key ends with the event time in microseconds.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import chain, dropwhile, groupby, islice
from typing import NamedTuple

from pipeline.core.events.event import LATEST_US, name_of
from pipeline.core.queries.reads import (
    ForeignRow,
    OnForeign,
    ReadRows,
    RowSelection,
    raise_foreign,
    raw_keys,
    skip_scan,
)
from pipeline.core.rows.records import RawRecord, newest_first
from pipeline.core.rows.rows import BlockOfRows, KeyRange, Row, after_prefix, in_parts, prefix_range
from pipeline.core.schema.key_template import KeyBindings, RawKey, Scan
from pipeline.core.schema.key_tokens import (
    HOUR_US,
    MetadataToken,
    MetricToken,
    ReverseToken,
    SensorToken,
    TimeToken,
    Token,
)
from pipeline.core.schema.layouts import CellSelection, Wide
from pipeline.core.schema.table_schema import TableSchema

_PAGE_OF_BUCKETS_US = 8 * HOUR_US  # a bucket's row contains all events of a span of time
_MAX_PAGE_BUCKETS = 1000
_ROWS_PER_EVENT = 8  # an estimate for layouts with a row per metric, to read a few events in one request

# A query that spans more coarse times than this seeks those with rows, instead of reading a range for each.
_MAX_RANGES = 100
_NOTHING_KNOWN = KeyBindings()


@dataclass(frozen=True)
class Query:
    """The events to read.

    Args:
        start_us: the earliest event time, inclusive.
        end_us: the latest event time, exclusive.
        metrics: the only readings to return, without metadata; None for everything.
        limit: the number of newest events to return; None for all.
        metadata: the known values of the metadata fields in row keys.
        with_metadata: whether to return the metadata that is not in row keys.
    """

    start_us: int = 0
    end_us: int = LATEST_US + 1
    metrics: tuple[str, ...] | None = None
    limit: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    with_metadata: bool = True


def events_of(
    schema: TableSchema, read: ReadRows, sensor_id: str, query: Query, on_foreign: OnForeign = raise_foreign
) -> Iterator[RawRecord]:
    """Returns one sensor's events, newest first, and merges the parts of each event.

    Raises:
        ValueError: at once, if row keys contain metadata that the query does not have.
        ForeignRow: while reading, unless ``on_foreign`` leaves such rows out.
    """
    known = KeyBindings(sensor_id, None, query.metadata)
    _check_metadata(query.metadata)
    if missing := schema.key.missing_metadata(known):
        raise ValueError(
            f"this table finds a sensor by its metadata: pass {', '.join(missing)} too, as in metadata "
            + ", ".join(f"{name}=…" for name in missing)
        )
    return _project(islice(_QueriedTable(schema, read, on_foreign).events_of(known, query), query.limit), query)


def selections_of(schema: TableSchema, sensor_id: str, query: Query) -> list[RowSelection] | None:
    """Returns what :func:`events_of` reads; None if that depends on what the table contains."""
    known = KeyBindings(sensor_id, None, query.metadata, query.metrics or ())
    if schema.key.first_unknown(known) is not None or _seeks(schema, query):
        return None
    cells = selection_of(schema, query)
    if _is_empty(cells):
        return []
    return list(_selections(schema, schema.key.scan(known, query.start_us, query.end_us), cells, query, known))


def events_of_prefix(
    schema: TableSchema, read: ReadRows, sensor_prefix: str, query: Query, on_foreign: OnForeign = raise_foreign
) -> Iterator[RawRecord]:
    """Returns the events of all sensors whose ids have the prefix, by one scan: sensor by sensor, each newest first.

    Raises:
        ValueError: at once, if row keys do not keep such sensors together.
        ForeignRow: while reading, unless ``on_foreign`` leaves such rows out.
    """
    if "#" in sensor_prefix:  # would match one sensor's id and the start of the next field in its keys
        raise ValueError(f"{sensor_prefix!r}: a sensor id contains no '#'")
    key, known = schema.key, KeyBindings(None, None, query.metadata)
    _check_before_sensor(schema, query.metadata)
    unknown = schema.key.first_unknown(known)
    if not key.supports_prefix_scan or not isinstance(unknown, SensorToken):
        raise ValueError(
            f"keys of {key} do not keep these sensors together"
            + (f": {unknown.text} comes first" if unknown and not isinstance(unknown, SensorToken) else "")
            + "; list the sensors and read each of them"
        )
    ranges = [prefix_range(schema.key.prefix(known, sensor_prefix))]
    return _project(
        islice(_QueriedTable(schema, read, on_foreign).events_of_keys(ranges, known, query), query.limit), query
    )


def events_of_all(
    schema: TableSchema, read: ReadRows, query: Query, on_foreign: OnForeign = raise_foreign
) -> Iterator[RawRecord]:
    """Returns the events of all sensors, on every schema.

    If keys have the sensor and then the time, one scan reads them sensor by sensor, each newest first. If a metric
    comes before the time, costs a scan for each sensor. If keys begin with the time, events come by time, the newest
    first.

    Raises:
        ForeignRow: while reading, unless ``on_foreign`` leaves such rows out.
    """
    source = _QueriedTable(schema, read, on_foreign)
    if schema.key.time_first:
        found = source.events_of_span(query)
    elif schema.key.supports_prefix_scan:
        found = source.events_of_keys(raw_keys(), KeyBindings(), query)
    else:
        unlimited = replace(query, limit=None)
        each = (source.events_of(known, unlimited) for known in places(schema, read, on_foreign))
        found = chain.from_iterable(each)
    return _project(islice(found, query.limit), query)


def sensors_of(
    schema: TableSchema,
    read: ReadRows,
    sensor_prefix: str,
    metadata: Mapping[str, str],
    on_foreign: OnForeign = raise_foreign,
    after: str = "",
) -> Iterator[str]:
    """Returns every sensor that has a raw row and the prefix, each once, in the order of keys, with one seek each.

    If other fields precede the sensor in keys, costs one seek for each combination of them with a sensor. Do not use
    this if keys begin with the time: it would seek every row. With ``after``, returns the sensors that follow this one;
    if other fields precede the sensor in keys, the sensors before it cost their seeks again.

    Raises:
        ValueError: at once, for metadata that does not precede the sensor in keys.
        ForeignRow: while reading, unless ``on_foreign`` leaves such rows out.
    """
    _check_before_sensor(schema, metadata)
    known = KeyBindings(None, None, metadata)
    by_sensor = isinstance(schema.key.first_unknown(known), SensorToken)
    start = after_prefix(schema.key.prefix(replace(known, sensor_id=after))) if after and by_sensor else b""
    keys = _QueriedTable(schema, read, on_foreign).first_keys(known, SensorToken, sensor_prefix, start)
    of_prefix = (
        raw_key.sensor_id
        for raw_key in keys
        if raw_key.sensor_id.startswith(sensor_prefix) and metadata.items() <= raw_key.metadata.items()
    )
    each = _each_once(of_prefix)
    return each if by_sensor or not after else islice(dropwhile(lambda sensor: sensor != after, each), 1, None)


@dataclass(frozen=True)
class _QueriedTable:
    """A table to query, by its schema and a function that reads its rows."""

    schema: TableSchema
    read: ReadRows
    on_foreign: OnForeign

    def events_of_keys(self, ranges: list[KeyRange], known: KeyBindings, query: Query) -> Iterator[RawRecord]:
        """Returns the events of ranges of keys that hold all rows of their sensors."""
        selection = selection_of(self.schema, query)
        if selection.qualifier_range is None:
            start_us, end_us = query.start_us - query.start_us % 1000, query.end_us + -query.end_us % 1000
            selection = selection._replace(times_us=(start_us, end_us))  # the ranges of keys do not bound the time
        known = replace(known, metrics=query.metrics or ())
        reverse = not self.schema.key.newest_first
        scan = Scan(ranges[::-1] if reverse else ranges, reverse, self.schema.key.pattern_of(known))
        return self.records(scan, selection, query, known)

    def events_of_span(self, query: Query) -> Iterator[RawRecord]:
        """Returns the events of a schema whose keys begin with the time, the newest times first."""
        selection = selection_of(self.schema, query)
        if _is_empty(selection):
            return
        key, first, matches = self.schema.key, self.schema.key.times[0], _matcher(query)
        everywhere = key.first_unknown(KeyBindings()) is not None  # metadata comes before the time
        for key_range in raw_keys() if everywhere else [key.coarse_range(KeyBindings(), query.start_us, query.end_us)]:
            parsed = self.parsed(RowSelection(key_range, selection, reverse=not first.newest_first))
            # The parts of an event share the first time in their keys, but need not be next to each other.
            for _, same in groupby(parsed, key=lambda pair: first.floor(pair[0].time_us)):
                events = self.schema.identity.merged(chain.from_iterable(records for _, records in same))
                yield from filter(matches, events)

    def events_of(self, known: KeyBindings, query: Query) -> Iterator[RawRecord]:
        selection = selection_of(self.schema, query)
        if _is_empty(selection):
            return
        streams = [
            # Each stream can be limited: the newest events of all streams are among the newest of each.
            islice(self.records(self.scan(each, query), selection, query, each), query.limit)
            for each in self.by_metric(known, query)
        ]
        if len(streams) == 1:
            yield from streams[0]
            return
        order = self.schema.identity.order
        for _, parts in groupby(merge(*streams, key=order), key=order):
            yield from self.schema.identity.merged(parts)

    def by_metric(self, known: KeyBindings, query: Query) -> Iterator[KeyBindings]:
        """Yields the bindings; once for each metric if rows must be found metric by metric."""
        if not isinstance(self.schema.key.first_unknown(known), MetricToken):
            yield replace(known, metrics=query.metrics or ())
        elif query.metrics is not None:
            yield from (replace(known, metric=metric) for metric in query.metrics)
        else:
            for raw_key in self.first_keys(known, MetricToken):
                yield replace(known, metric=raw_key.metric)

    def scan(self, known: KeyBindings, query: Query) -> Scan:
        """Returns the scan of a query. If it spans many coarse times, the scan seeks those with rows."""
        key, start_us, end_us = self.schema.key, query.start_us, query.end_us
        coarse = key.coarse_time
        if coarse is None or not _seeks(self.schema, query):
            return key.scan(known, start_us, end_us)

        def prefix_of(last: bytes, _: RawKey | None = None) -> bytes:
            return key.prefix_through(TimeToken, last)

        def ranges() -> Iterator[KeyRange]:
            coarse_range = key.coarse_range(known, start_us, end_us)
            for last, _ in skip_scan(self.read, coarse_range, key.parse_key, prefix_of, self.on_foreign, reverse=True):
                first_us = coarse.parse(prefix_of(last)[-len(coarse.render(0)) :].decode())
                yield from key.scan(known, max(start_us, first_us), min(end_us, coarse.next(first_us))).ranges

        return key.scan(known, end_us - 1, end_us)._replace(ranges=ranges())

    def first_keys(
        self, known: KeyBindings, kind: type[Token], sensor_prefix: str = "", start: bytes = b""
    ) -> Iterator[RawKey]:
        """Returns the first key, from ``start``, of each prefix that ends with such a token: a seek for each."""
        key, key_range = self.schema.key, prefix_range(self.schema.key.prefix(known, sensor_prefix))
        key_range = key_range._replace(start=max(start, key_range.start))
        found = skip_scan(
            self.read, key_range, key.parse_key, lambda first, _: key.prefix_through(kind, first), self.on_foreign
        )
        return (raw_key for _, raw_key in found)

    def records(self, scan: Scan, selection: CellSelection, query: Query, known: KeyBindings) -> Iterator[RawRecord]:
        """Yields the events of a scan, each sensor's newest first."""
        merges_rows, matches = self.schema.key.shares_times(known), _matcher(query)
        for parsed in map(self.parsed, _selections(self.schema, scan, selection, query, known)):
            for events in _events_of_times(self.schema, parsed) if merges_rows else _events_of_rows(parsed):
                yield from filter(matches, events)

    def parsed(self, selection: RowSelection) -> Iterator[tuple[RawKey, list[RawRecord]]]:
        return parsed_rows(self.schema, self.read(selection), self.on_foreign)


def places(
    schema: TableSchema,
    read: ReadRows,
    on_foreign: OnForeign,
    known: KeyBindings = _NOTHING_KNOWN,
    sensor_prefix: str = "",
) -> Iterator[KeyBindings]:
    """Yields each sensor once, with the metadata before the time in its keys. Costs a seek or two for each.

    The prefix limits the search, and the answer, if the sensor is the first that is not known of its keys.
    """
    before = schema.key.parts[: schema.key.index_of_first_time]
    kind = next(type(part) for part in reversed(before) if isinstance(part, SensorToken | MetadataToken | MetricToken))
    names = {part.name for part in before if isinstance(part, MetadataToken)}
    seen = set()
    for raw_key in _QueriedTable(schema, read, on_foreign).first_keys(known, kind, sensor_prefix):
        metadata = {name: text for name, text in raw_key.metadata.items() if name in names}
        if (place := (raw_key.sensor_id, *metadata.values())) not in seen:
            seen.add(place)
            yield KeyBindings(raw_key.sensor_id, None, metadata)


def events_found_at(
    schema: TableSchema, read: ReadRows, place: KeyBindings, query: Query, on_foreign: OnForeign
) -> Iterator[RawRecord]:
    """Returns the events of one of :func:`places`, newest first, and merges the parts of each event."""
    return _project(_QueriedTable(schema, read, on_foreign).events_of(place, query), query)


def _each_once(texts: Iterable[str]) -> Iterator[str]:
    seen = set()
    for text in texts:
        if text not in seen:
            seen.add(text)
            yield text


def _check_metadata(metadata: Mapping[str, str]) -> None:
    for name, text in metadata.items():
        if not text or "#" in text:
            raise ValueError(f"metadata {name} is {text!r}; in row keys it is not empty, and contains no '#'")


def _check_before_sensor(schema: TableSchema, metadata: Mapping[str, str]) -> None:
    """Raises ValueError for metadata that does not precede the sensor in keys, and so can't select sensors."""
    _check_metadata(metadata)
    if others := metadata.keys() - set(schema.key.metadata_before_sensor):
        raise ValueError(
            f"keys of {schema.key} do not have metadata {', '.join(sorted(others))} before the sensor, "
            "and so do not find sensors by it"
        )


def _seeks(schema: TableSchema, query: Query) -> bool:
    """Whether a query spans so many coarse times that those with rows are sought."""
    coarse = schema.key.coarse_time
    return coarse is not None and (query.end_us - query.start_us) // coarse.grain_us > _MAX_RANGES


def _is_empty(cells: CellSelection) -> bool:
    """Whether a query lies between two milliseconds: times are stored in milliseconds."""
    return cells.times_us is not None and cells.times_us[0] >= cells.times_us[1]


def _selections(
    schema: TableSchema, scan: Scan, cells: CellSelection, query: Query, known: KeyBindings
) -> Iterator[RowSelection]:
    """Yields the selection of each range of a scan."""
    page_rows = _page_rows(schema, query, known)
    return (RowSelection(keys, cells, scan.pattern, page_rows, scan.reverse) for keys in scan.ranges)


def _page_rows(schema: TableSchema, query: Query, known: KeyBindings) -> int | None:
    """Returns the number of rows that will probably be read; None if unknown."""
    sizes = []
    if schema.layout.bucketed:
        sizes.append(min(max(_PAGE_OF_BUCKETS_US // schema.key.grain_us, 1), _MAX_PAGE_BUCKETS))
    if query.limit is not None:
        rows_per_event = _ROWS_PER_EVENT if schema.key.has(MetricToken) and known.metric is None else 1
        # One more, to see that the last event is complete.
        sizes.append(query.limit * rows_per_event + schema.key.shares_times(known))
    return min(sizes, default=None)


def parsed_rows(
    schema: TableSchema, rows: Iterable[Row], on_foreign: OnForeign
) -> Iterator[tuple[RawKey, list[RawRecord]]]:
    """Yields the parsed key of each raw row, and the events, or parts of events, in the row, in no order."""
    parse_key, records_in, context = schema.key.parse_key, schema.layout.records, schema.layout_context
    selected_by_key_only = schema.layout.selected_by_key_only(context) and not schema.layout.serializes
    for row in rows:
        raw_key = None
        try:
            raw_key = parse_key(row.key)
            records = records_in(context, raw_key, row.cells)
            if not selected_by_key_only:
                _check_place(schema, raw_key, records)
        except ValueError as error:
            on_foreign(ForeignRow(row, error, raw_key))
        else:
            yield raw_key, records


def _check_place(schema: TableSchema, raw_key: RawKey, records: list[RawRecord]) -> None:
    """Raises ValueError for an event that belongs in another row: no query would find it here."""
    start_us, end_us = raw_key.time_us - raw_key.time_us % 1000, schema.key.end_us(raw_key.time_us)
    for record in records:
        if not (
            record.sensor_id == raw_key.sensor_id
            and start_us <= record.event_time_us < end_us
            and raw_key.metadata.items() <= record.metadata.items()
            and raw_key.event_id in ("", record.event_id)
        ):
            raise ValueError(
                f"it contains an event of {record.sensor_id} at {record.event_time_us} µs, which belongs in another row"
            )


def _events_of_rows(parsed: Iterable[tuple[RawKey, list[RawRecord]]]) -> Iterator[list[RawRecord]]:
    """Yields the events of each row, newest first."""
    for _, records in parsed:
        yield records if len(records) < 2 else sorted(records, key=newest_first)


def _events_of_times(
    schema: TableSchema, parsed: Iterable[tuple[RawKey, list[RawRecord]]]
) -> Iterator[list[RawRecord]]:
    """Yields the events of all rows of one sensor and time, newest first, and merges the parts of each event."""
    for _, same in groupby(parsed, key=lambda pair: (pair[0].sensor_id, pair[0].time_us)):
        yield schema.identity.merged(chain.from_iterable(records for _, records in same))


def _matcher(query: Query) -> Callable[[RawRecord], bool]:
    """Returns the function that decides whether an event matches: rows may contain other times and other metrics."""
    start_us, end_us, metrics = query.start_us, query.end_us, query.metrics
    if metrics is None:
        return lambda record: start_us <= record.event_time_us < end_us
    return lambda record: start_us <= record.event_time_us < end_us and not record.readings.keys().isdisjoint(metrics)


def _project(events: Iterator[RawRecord], query: Query) -> Iterator[RawRecord]:
    """Drops other readings and metadata. Comes last: metadata is needed to merge the parts of events."""
    metrics = query.metrics
    if metrics is None:
        return events
    return (
        replace(event, readings={name: event.readings[name] for name in metrics if name in event.readings}, metadata={})
        for event in events
    )


def selection_of(schema: TableSchema, query: Query) -> CellSelection:
    """Returns the cells of a query's events."""
    found = schema.layout.selection(schema.layout_context, query.metrics, query.start_us, query.end_us, query.limit)
    return found if query.with_metadata else found._replace(families=schema.metrics.families)


class EventColumns(NamedTuple):
    """Events of a sensor with the same metrics.

    Attributes:
        metrics: the metrics, sorted by name.
        times_us: the event times, newest first.
        values: the readings event by event, in the order of the metrics.
        discriminator: the text that identifies these events besides their time; "" if the time alone does.
        metadata: the metadata of each of these events.
    """

    metrics: tuple[str, ...]
    times_us: list[int]
    values: list[float]
    discriminator: str
    metadata: Mapping[str, str]


def columns_of(
    schema: TableSchema, read: ReadRows, sensor_id: str, query: Query, selections: list[RowSelection] | None = None
) -> Iterator[EventColumns]:
    """Yields one sensor's readings, newest first. Times are floored to the grain of the events' identity.

    Rows that are in no block are read event by event.

    Args:
        schema: the table's schema.
        read: reads rows, which cost least in blocks.
        sensor_id: the sensor.
        query: the events: of all metrics, without a limit.
        selections: the answer of :func:`selections_of`, if known.

    Raises:
        ValueError: row keys contain metadata that the query does not have.
        ForeignRow: the schema does not write a row.
    """
    is_bulk = has_time_last(schema)
    if is_bulk and selections is None:
        selections = selections_of(schema, sensor_id, query)
    if not is_bulk or selections is None:
        yield from _by_event(schema, events_of(schema, read, sensor_id, query))
        return

    matches = _matcher(query)

    def by_event(rows: Iterable[Row]) -> Iterator[EventColumns]:
        parsed = _events_of_rows(parsed_rows(schema, rows, raise_foreign))
        return _by_event(schema, filter(matches, chain.from_iterable(parsed)))

    [selection] = selections
    rows: list[Row] = []  # consecutive ones that are in no block
    for part in in_parts(read(selection)):
        if not isinstance(part, BlockOfRows):
            rows.append(part)
            continue
        if rows:
            yield from by_event(rows)
            rows.clear()
        try:
            found = _columns_in(schema, part)
        except ValueError:  # a row may be foreign: reading event by event finds it
            yield from by_event(part.rows())
        else:
            yield from found
    if rows:
        yield from by_event(rows)


def has_time_last(schema: TableSchema) -> bool:
    """Whether a row is an event, and its key has the time once: at its end, in microseconds."""
    key = schema.key
    last = key.parts[-1]
    in_us = isinstance(last, ReverseToken) and last.grain_us == 1
    return schema.layout.name == Wide.name and in_us and len(key.times) == 1


def _by_event(schema: TableSchema, events: Iterable[RawRecord]) -> Iterator[EventColumns]:
    identity_of = schema.identity.of_record
    latest: EventColumns | None = None
    for event in events:
        readings, (time_us, discriminator) = event.readings, identity_of(event)
        if not readings:
            continue  # it has only metadata
        alike = (*readings,), discriminator, event.metadata
        if latest is None or alike != (latest.metrics, latest.discriminator, latest.metadata):
            if latest is not None:
                yield latest
            latest = EventColumns(alike[0], [], [], *alike[1:])
        latest.times_us.append(time_us)
        latest.values.extend(readings.values())
    if latest is not None:
        yield latest


def _columns_in(schema: TableSchema, block: BlockOfRows) -> list[EventColumns]:
    """Returns the events of a block. Raises ValueError if the schema may not write one of its rows."""
    newest = schema.key.parse_key(block.keys[0])
    metadata = dict(newest.metadata)
    _, discriminator = schema.identity.of_record(RawRecord(newest.sensor_id, newest.time_us, {}, metadata))
    return [
        EventColumns(metrics, times_us, list(chain.from_iterable(zip(*columns, strict=True))), discriminator, metadata)
        for metrics, times_us, columns in series_in(schema, block)
    ]


def series_in(
    schema: TableSchema, block: BlockOfRows
) -> Iterator[tuple[tuple[str, ...], list[int], list[list[float]]]]:
    """Yields metrics, the times of the events that have just these, newest first, and the values of each metric.

    The schema is one with the time last: see :func:`has_time_last`.

    Raises:
        ValueError: the schema may not write one of the rows, or they are of several sensors.
    """
    if not set(block.families) <= set(schema.metrics.families):
        raise ValueError("some columns are in no family of readings")
    times_us = _times_of(schema, block.keys)
    names = [name_of(qualifier) for qualifier in block.qualifiers]
    unpack_all = schema.values.unpack_all
    for present, rows in _by_columns(block):
        of_rows = times_us if rows is None else [times_us[index] for index in rows]
        columns = [
            unpack_all(block.values[column] if rows is None else [block.values[column][index] for index in rows])
            for column in present
        ]
        yield tuple(names[each] for each in present), of_rows, columns


def _by_columns(block: BlockOfRows) -> Iterator[tuple[Sequence[int], list[int] | None]]:
    """Yields indices of columns, and of the rows that have just these; None for all rows."""
    everything = range(len(block.values))
    if not any(b"" in column for column in block.values):
        yield everything, None
        return
    rows: dict[tuple[bool, ...], list[int]] = {}
    for index, has in enumerate(zip(*(map(bool, column) for column in block.values), strict=True)):
        rows.setdefault(has, []).append(index)
    for has, of_columns in rows.items():
        yield [column for column in everything if has[column]], of_columns


def _times_of(schema: TableSchema, keys: Sequence[bytes]) -> list[int]:
    """Returns the event times of ascending keys with the time at their end. Raises ValueError for any other key."""
    key, last = schema.key, keys[-1]
    end_us = key.parse_key(last).time_us
    digits = len(key.times[-1].render(end_us))
    texts = [key[-digits:] for key in keys]
    # Between two keys with the same start, all keys have that start.
    if set(map(len, keys)) != {len(last)} or keys[0][:-digits] != last[:-digits] or not b"".join(texts).isdigit():
        raise ValueError("not the keys of one sensor")
    greatest = int(texts[-1]) + end_us
    return [greatest - int(text) for text in texts]


class SensorLocator:
    """Looks up the metadata in a sensor's row keys, which locates its rows.

    It may have several values: a sensor may have moved. Results are cached, so later rows may be missed.
    Rows whose keys the schema does not write are skipped.
    """

    def __init__(self, schema: TableSchema, read: ReadRows) -> None:
        self._schema = schema
        self._read = read
        self._cache: dict[bytes, list[str]] = {}

    def of(self, sensor_id: str) -> list[dict[str, str]]:
        """Returns each combination of metadata before the time in the sensor's row keys; ``[{}]`` if keys have none.

        Costs one seek for each value of each unknown token.
        """
        found: dict[tuple[tuple[str, str], ...], None] = {}
        for known in self._complete(KeyBindings(sensor_id)):
            found[tuple(sorted(known.metadata.items()))] = None
        return [dict(metadata) for metadata in found]

    def _complete(self, known: KeyBindings) -> Iterator[KeyBindings]:
        if not self._schema.key.missing_metadata(known):
            yield known
            return
        token = self._schema.key.first_unknown(known)
        prefix = self._schema.key.prefix(known)
        match token:
            case MetadataToken(name=name):
                for text in self._texts(prefix, lambda key: key.metadata[name]):
                    yield from self._complete(replace(known, metadata={**known.metadata, name: text}))
            case MetricToken():
                for text in self._texts(prefix, lambda key: key.metric):
                    yield from self._complete(replace(known, metric=text))
            case _:
                raise TypeError(token)  # all other tokens follow from the sensor

    def _texts(self, prefix: bytes, text_of: Callable[[RawKey], str]) -> list[str]:
        """Returns each text that follows the prefix in the keys of the table."""
        texts = self._cache.get(prefix)
        if texts is None:
            texts = self._cache[prefix] = list(self._seek(prefix, text_of))
        return texts

    def _seek(self, prefix: bytes, text_of: Callable[[RawKey], str]) -> Iterator[str]:
        def prefix_of(_: bytes, key: RawKey) -> bytes:
            return prefix + f"{text_of(key)}#".encode()

        found = skip_scan(self._read, prefix_range(prefix), self._schema.key.parse_key, prefix_of, _leave_out)
        return (text_of(key) for _, key in found)


def _leave_out(problem: ForeignRow) -> None:
    """Skips the row."""
