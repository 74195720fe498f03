"""Queries: which rows answer them, and the events that these rows are, the newest first on every schema.

Pure: rows come from a function of the caller's, so that a table and a list of rows are read alike. A row that the
schema does not write is told to another function of the caller's, which raises or has it left out.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import chain, groupby, islice
from typing import Protocol, TypeVar

from pipeline.core.events import LATEST_US, RESERVED_SENSOR_IDS
from pipeline.core.records import RawRecord, newest_first
from pipeline.core.rows import KeyRange, Row, after_prefix, prefix_range
from pipeline.core.schema.foreign import ForeignRow, OnForeign, raise_foreign
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.scans import KeyBindings, Scan
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.template import RawKey
from pipeline.core.schema.tokens import HOUR_US, MetricToken, SensorToken, TimeToken, Token

_PAGE_OF_BUCKETS_US = 8 * HOUR_US  # a bucket's row holds the events of a whole span of time
_MAX_PAGE_BUCKETS = 1000
_ROWS_PER_EVENT = 8  # where there is a row a metric: a guess, so that a few events are had by one request

# With more coarse times than this before the fine one, those that have rows are looked up, one seek each.
_MAX_RANGES = 100

_KEY_ALONE = CellSelection(families=(), keys_only=True)

_RESERVED = frozenset(segment.encode() for segment in RESERVED_SENSOR_IDS)
_MAX_SOUGHT = 1000  # rows of a page, where foreign ones are passed

_T = TypeVar("_T")


class ReadRows(Protocol):
    """What rows are had by."""

    def __call__(
        self,
        key_range: KeyRange,
        selection: CellSelection,
        pattern: str | None,
        page_rows: int | None,
        /,
        *,
        reverse: bool,
    ) -> Iterator[Row]:
        """The rows of a range in the order of keys, or against it, with the wanted cells.

        Args:
            key_range: which keys.
            selection: which of their cells; a row without any is left out.
            pattern: what the whole key has to match (RE2); None for any.
            page_rows: how many rows will probably be taken, where that is known; there may be more.
            reverse: whether from the last to the first.
        """


@dataclass(frozen=True)
class Query:
    """Which events are wanted.

    Args:
        start_us: the earliest event time.
        end_us: the first that is too late.
        metrics: these readings alone, and no metadata; None for everything.
        limit: the newest so many; None for all.
        metadata: what is known of the sensor's metadata, where row keys are made of it.
    """

    start_us: int = 0
    end_us: int = LATEST_US + 1
    metrics: tuple[str, ...] | None = None
    limit: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


def events_of(
    schema: TableSchema, read: ReadRows, sensor_id: str, query: Query, on_foreign: OnForeign = raise_foreign
) -> Iterator[RawRecord]:
    """One sensor's events, the newest first; several parts of one event are put together.

    Raises:
        ValueError: at once, where row keys are made of metadata that is not known.
        ForeignRow: while reading, unless ``on_foreign`` leaves such rows out.
    """
    known = KeyBindings(sensor_id, None, query.metadata)
    _check_texts(query.metadata)
    if missing := schema.keys.missing(known):
        raise ValueError(
            f"this table finds a sensor by its metadata: say {', '.join(missing)} too, as in metadata "
            + ", ".join(f"{name}=…" for name in missing)
        )
    return _as_asked_for(islice(_events_of(schema, read, known, query, on_foreign), query.limit), query)


def events_of_prefix(
    schema: TableSchema, read: ReadRows, sensor_prefix: str, query: Query, on_foreign: OnForeign = raise_foreign
) -> Iterator[RawRecord]:
    """The events of all sensors whose ids begin so, by one scan: sensor by sensor, each the newest first.

    Raises:
        ValueError: at once, where row keys do not have such sensors side by side, or nothing narrows the scan.
        ForeignRow: while reading, unless ``on_foreign`` leaves such rows out.
    """
    if "#" in sensor_prefix:  # which would begin with one sensor's id, and go on with what comes behind it in keys
        raise ValueError(f"{sensor_prefix!r}: no sensor's id has '#' in it")
    key, known = schema.key, KeyBindings(None, None, query.metadata)
    _check_before_sensor(schema, query.metadata)
    unknown = schema.keys.unknown(known)
    if not key.supports_prefix_scan or not isinstance(unknown, SensorToken):
        raise ValueError(
            f"keys of {key} do not have these sensors side by side"
            + (f": {unknown.text} comes first" if unknown and not isinstance(unknown, SensorToken) else "")
            + "; list the sensors and read each of them"
        )
    prefix = schema.keys.prefix(known, sensor_prefix)
    if prefix == schema.keys.prefix(KeyBindings()):
        raise ValueError("a prefix is needed: the whole table is never read")
    selection = _wanted(schema, query)
    if selection.qualifier_range is None:
        start_us, end_us = query.start_us - query.start_us % 1000, query.end_us + -query.end_us % 1000
        selection = selection._replace(times_us=(start_us, end_us))  # which the keys of one prefix do not bound
    known = replace(known, metrics=query.metrics or ())
    scan = Scan([prefix_range(prefix)], not key.newest_first, schema.keys.pattern_of(known))
    return _as_asked_for(islice(_records(schema, read, scan, selection, query, known, on_foreign), query.limit), query)


def sensors_of(
    schema: TableSchema,
    read: ReadRows,
    sensor_prefix: str,
    metadata: Mapping[str, str],
    on_foreign: OnForeign = raise_foreign,
) -> Iterator[str]:
    """Every sensor that has a raw row and whose id begins so, each once, in the order of keys: one seek a sensor.

    Where something else comes before the sensor in keys, one seek for each of its combinations with a sensor. Not for
    keys that begin with the time: that would be a seek for every row.

    Raises:
        ValueError: at once, for metadata that keys do not have before the sensor.
        ForeignRow: while reading, unless ``on_foreign`` leaves such rows out.
    """
    _check_before_sensor(schema, metadata)
    keys = _first_keys(schema, read, KeyBindings(None, None, metadata), SensorToken, on_foreign, sensor_prefix)
    of_prefix = (
        raw_key.sensor_id
        for raw_key in keys
        if raw_key.sensor_id.startswith(sensor_prefix) and metadata.items() <= raw_key.metadata.items()
    )
    return _each_once(of_prefix)


def seek(
    read: ReadRows,
    key_range: KeyRange,
    parse: Callable[[bytes], _T],
    on_foreign: OnForeign,
    *,
    skip: Collection[bytes] = _RESERVED,
    reverse: bool = False,
) -> tuple[bytes, _T] | None:
    """Returns the first key of the range that can be parsed, and what it parses to; None if there is none.

    Costs one seek, and one more for each reserved prefix that it skips. Foreign rows before the key are read in pages
    of growing size.

    Args:
        read: reads rows.
        key_range: where to look.
        parse: parses a key; a ValueError marks the row as foreign.
        on_foreign: receives foreign rows.
        skip: first key segments of rows of another kind, to be skipped.
        reverse: whether to find the last key instead.
    """
    start, end = key_range
    page_rows = 1
    while not end or start < end:
        page = KeyRange(start, end)
        read_rows = 0
        for read_rows, row in enumerate(  # noqa: B007 (used after the loop: a full page means that there may be more)
            islice(read(page, _KEY_ALONE, None, page_rows, reverse=reverse), page_rows), 1
        ):
            segment, separator, _ = row.key.partition(b"#")
            if separator and segment in skip:
                start, end = _beyond(KeyRange(start, end), segment + separator, reverse=reverse)
                break
            try:
                return row.key, parse(row.key)
            except ValueError as error:
                on_foreign(ForeignRow(row, error))
            start, end = (start, row.key) if reverse else (row.key + b"\x00", end)
        else:
            if read_rows < page_rows:
                return None
            page_rows = min(page_rows * 8, _MAX_SOUGHT)
    return None


def skip_scan(
    read: ReadRows,
    key_range: KeyRange,
    parse: Callable[[bytes], _T],
    prefix_of: Callable[[bytes, _T], bytes],
    on_foreign: OnForeign,
    *,
    skip: Collection[bytes] = _RESERVED,
    reverse: bool = False,
) -> Iterator[tuple[bytes, _T]]:
    """The first key of each prefix in the range, and what it parses to: one :func:`seek` per prefix, one for the end.

    Args:
        read: reads rows.
        key_range: where to look.
        parse: parses a key; a ValueError marks the row as foreign.
        prefix_of: returns the prefix of a key, given the key and what it parses to; the scan goes on after all keys
            with that prefix.
        on_foreign: receives foreign rows.
        skip: first key segments of rows of another kind, to be skipped.
        reverse: whether to scan from the last prefix to the first, and to find the last key of each.
    """
    while found := seek(read, key_range, parse, on_foreign, skip=skip, reverse=reverse):
        yield found
        key_range = _beyond(key_range, prefix_of(*found), reverse=reverse)


def _beyond(key_range: KeyRange, prefix: bytes, *, reverse: bool) -> KeyRange:
    """What is left of the range once the scan has passed the prefix."""
    return key_range._replace(end=prefix) if reverse else key_range._replace(start=after_prefix(prefix))


def _each_once(texts: Iterable[str]) -> Iterator[str]:
    seen = set()
    for text in texts:
        if text not in seen:
            seen.add(text)
            yield text


def _check_texts(metadata: Mapping[str, str]) -> None:
    for name, text in metadata.items():
        if not text or "#" in text:
            raise ValueError(f"metadata {name} is {text!r}; in row keys it is never empty, and has no '#'")


def _check_before_sensor(schema: TableSchema, metadata: Mapping[str, str]) -> None:
    """Many sensors are told by what stands before the sensor in keys, and by nothing else."""
    _check_texts(metadata)
    if strange := metadata.keys() - set(schema.key.metadata_before_sensor):
        raise ValueError(
            f"keys of {schema.key} do not have metadata {', '.join(sorted(strange))} before the sensor, "
            "and so do not find sensors by it"
        )


def _events_of(
    schema: TableSchema, read: ReadRows, known: KeyBindings, query: Query, on_foreign: OnForeign
) -> Iterator[RawRecord]:
    selection = _wanted(schema, query)
    if selection.times_us and selection.times_us[0] >= selection.times_us[1]:
        return  # between two milliseconds, where times are kept to the millisecond
    streams = [
        # No more than the limit of each: of the newest of all, none can come later in its own stream.
        islice(
            _records(schema, read, _scan(schema, read, each, query, on_foreign), selection, query, each, on_foreign),
            query.limit,
        )
        for each in _by_metric(schema, read, known, query, on_foreign)
    ]
    if len(streams) == 1:
        yield from streams[0]
        return
    order = schema.identity.order
    for _, parts in groupby(merge(*streams, key=order), key=order):
        yield from schema.identity.merged(parts)


def _by_metric(
    schema: TableSchema, read: ReadRows, known: KeyBindings, query: Query, on_foreign: OnForeign
) -> Iterator[KeyBindings]:
    """What is known, once for each metric where rows have to be looked for metric by metric."""
    if not isinstance(schema.keys.unknown(known), MetricToken):
        yield replace(known, metrics=query.metrics or ())
    elif query.metrics is not None:
        yield from (replace(known, metric=metric) for metric in query.metrics)
    else:
        for raw_key in _first_keys(schema, read, known, MetricToken, on_foreign):
            yield replace(known, metric=raw_key.metric)


def _scan(schema: TableSchema, read: ReadRows, known: KeyBindings, query: Query, on_foreign: OnForeign) -> Scan:
    """Where the events lie; where keys have a coarse time before the fine one, by looking up those that have rows."""
    key, start_us, end_us = schema.key, query.start_us, query.end_us
    coarse = key.coarse_time
    if coarse is None or (end_us - start_us) // coarse.grain_us <= _MAX_RANGES:
        return schema.keys.scan(known, start_us, end_us)

    def prefix_of(last: bytes, _: RawKey | None = None) -> bytes:
        return key.prefix_through(TimeToken, last)

    def ranges() -> Iterator[KeyRange]:
        coarse_range = schema.keys.coarse_range(known, start_us, end_us)
        for last, _ in skip_scan(read, coarse_range, key.parse_key, prefix_of, on_foreign, reverse=True):
            first_us = coarse.parse(prefix_of(last)[-len(coarse.render(0)) :].decode())
            yield from schema.keys.scan(known, max(start_us, first_us), min(end_us, coarse.next(first_us))).ranges

    return schema.keys.scan(known, end_us - 1, end_us)._replace(ranges=ranges())


def _first_keys(
    schema: TableSchema,
    read: ReadRows,
    known: KeyBindings,
    kind: type[Token],
    on_foreign: OnForeign,
    sensor_prefix: str = "",
) -> Iterator[RawKey]:
    """The first key of each prefix that ends with a token of that kind: one seek per prefix, and one for the end."""
    key_range = prefix_range(schema.keys.prefix(known, sensor_prefix))
    found = skip_scan(
        read, key_range, schema.key.parse_key, lambda key, _: schema.key.prefix_through(kind, key), on_foreign
    )
    return (raw_key for _, raw_key in found)


def _records(
    schema: TableSchema,
    read: ReadRows,
    scan: Scan,
    selection: CellSelection,
    query: Query,
    known: KeyBindings,
    on_foreign: OnForeign,
) -> Iterator[RawRecord]:
    """The events of a scan, those of a sensor the newest first."""
    together = schema.keys.shares_times(known)
    page_rows = _page_rows(schema, query, known, together=together)
    asked_for = _asked_for(query)
    for key_range in scan.ranges:
        rows = read(key_range, selection, scan.pattern, page_rows, reverse=scan.reverse)
        parsed = parsed_rows(schema, rows, on_foreign)
        for parts in _side_by_side(schema, parsed) if together else _row_by_row(parsed):
            yield from filter(asked_for, parts)


def _page_rows(schema: TableSchema, query: Query, known: KeyBindings, *, together: bool) -> int | None:
    """How many rows will probably be taken; None where nobody knows."""
    sizes = []
    if schema.layout.bucketed:
        sizes.append(min(max(_PAGE_OF_BUCKETS_US // schema.key.grain_us, 1), _MAX_PAGE_BUCKETS))
    if query.limit is not None:
        an_event = _ROWS_PER_EVENT if schema.key.has(MetricToken) and known.metric is None else 1
        sizes.append(query.limit * an_event + together)  # one more, to see where the last time ends
    return min(sizes, default=None)


def parsed_rows(
    schema: TableSchema, rows: Iterable[Row], on_foreign: OnForeign
) -> Iterator[tuple[RawKey, list[RawRecord]]]:
    """Raw rows with what their keys say, and the events, or parts of events, that they hold, in no order."""
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
    """Raises ValueError for events that would be in another row: nobody finds them here."""
    start_us, end_us = raw_key.time_us - raw_key.time_us % 1000, schema.key.end_us(raw_key.time_us)
    for record in records:
        if not (
            record.sensor_id == raw_key.sensor_id
            and start_us <= record.event_time_us < end_us
            and raw_key.metadata.items() <= record.metadata.items()
            and raw_key.event_id in ("", record.event_id)
        ):
            raise ValueError(f"it holds an event of {record.sensor_id} at {record.event_time_us} µs, of another row")


def _row_by_row(parsed: Iterable[tuple[RawKey, list[RawRecord]]]) -> Iterator[list[RawRecord]]:
    """The events of each row, the newest first."""
    for _, records in parsed:
        yield records if len(records) < 2 else sorted(records, key=newest_first)


def _side_by_side(schema: TableSchema, parsed: Iterable[tuple[RawKey, list[RawRecord]]]) -> Iterator[list[RawRecord]]:
    """The events of the rows of one time, of which each may hold a part; the newest first."""
    for _, same in groupby(parsed, key=lambda pair: (pair[0].sensor_id, pair[0].time_us)):
        yield schema.identity.merged(chain.from_iterable(records for _, records in same))


def _asked_for(query: Query) -> Callable[[RawRecord], bool]:
    """Whether an event is: rows hold events of other times where keys are coarse, and may hold other metrics."""
    start_us, end_us, metrics = query.start_us, query.end_us, query.metrics
    if metrics is None:
        return lambda record: start_us <= record.event_time_us < end_us
    return lambda record: start_us <= record.event_time_us < end_us and not record.readings.keys().isdisjoint(metrics)


def _as_asked_for(events: Iterator[RawRecord], query: Query) -> Iterator[RawRecord]:
    """What is asked of them; only now that they are whole, for metadata tells events apart."""
    if query.metrics is None:
        return events
    return (replace(event, readings=_some(event.readings, query.metrics), metadata={}) for event in events)


def _some(readings: Mapping[str, float], metrics: Iterable[str]) -> dict[str, float]:
    return {metric: readings[metric] for metric in metrics if metric in readings}


def _wanted(schema: TableSchema, query: Query) -> CellSelection:
    return schema.layout.selection(schema.layout_context, query.metrics, query.start_us, query.end_us, query.limit)
