"""Makes messages of the records of files, for mappings to read them as a job does.

A length-delimited protobuf message and a line of NDJSON are messages themselves. A row of CSV and a record of Avro or
Parquet become JSON objects of their columns: cells of CSV are text, or null if they are blank; bytes are text in
hexadecimal; dates, times and UUIDs are text as in metadata; a duration is a number of seconds; a number that is not
finite is text, as in protobuf's JSON. A value that can't be read refuses its record only if the mapping may read its
column.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from pipeline.core.decoding.clock_runs import CLOCK_RUN, RUNS, UNKNOWN, ClockRuns
from pipeline.core.decoding.file_names import FILE, file_attributes
from pipeline.core.decoding.mapping.language.model import INFLUX, JSON, PLAIN_TYPES, CsvFormat, Source, Value
from pipeline.core.decoding.mapping.language.paths import Field, Root
from pipeline.core.decoding.message_types import DecoderFunction, MappedType, MessageTypes, TableRules
from pipeline.core.events.dead_letter import REPLAYS
from pipeline.core.events.event import LATEST_US, MAX_FUTURE_US, Event
from pipeline.core.events.message import MESSAGE_TYPE, Message, identified, sensor_event
from pipeline.core.events.reasons import BadData
from pipeline.core.notation.text import json_value, shown
from pipeline.core.notation.times import to_datetime
from pipeline.formats.lines import MappedRecord, Original, Record, Refusal, Remark, too_long
from pipeline.formats.values import MAX_RECORD_BYTES, BadValue, Malformed, UnreadableFile, check_width


class SkippedElements(NamedTuple):
    """How many messages or elements the conditions of a mapping left out."""

    number: int


class LeftOutReadings(NamedTuple):
    """How many readings of a record were left out, since they are not valid, and the first of them."""

    line: int
    number: int
    text: str


class MappedMaker:
    """Makes messages of records, for mappings, or for a decoder that reads what no mapping takes."""

    def __init__(
        self,
        mapped: Sequence[MappedType],
        max_record_bytes: int = MAX_RECORD_BYTES,
        attributes: Mapping[str, str] | None = None,
        decoder: DecoderFunction | None = None,
    ) -> None:
        self.types = MessageTypes(mapped, decoder, default=None)
        self._decoder = decoder
        self.max_record_bytes = max_record_bytes
        self._attributes = dict(attributes or {})
        self._mapped = list(mapped)
        self.json_types = [kind for kind in mapped if kind.name == JSON]
        self._protobuf_types = [kind for kind in mapped if kind.name not in PLAIN_TYPES]
        self._columns = None if decoder else _columns_of(self.json_types)

    @property
    def identity(self) -> tuple[object, ...]:
        """Whatever determines the events of a record. It pickles."""
        types = [(kind.text, kind.descriptors) for kind in self._mapped]
        return types, sorted(self._attributes.items()), self.max_record_bytes, self._decoder

    @property
    def by_file(self) -> bool:
        """Whether the name of the file is a part of its records."""
        return any(kind.mapping.of_file for kind in self._mapped)

    def in_file(self, path: str, records: Iterator[Record]) -> Iterator[Record]:
        """Returns all records of a file, in order, with their file and run through an hour if mappings read these."""
        if self.by_file:
            named = file_attributes(path)
            records = (_with_file(record, named) if isinstance(record, MappedRecord) else record for record in records)
        if not any(kind.mapping.by_order for kind in self._mapped):
            return records
        runs = ClockRuns()
        return (self._with_run(record, runs) if isinstance(record, MappedRecord) else record for record in records)

    def _with_run(self, record: MappedRecord, runs: ClockRuns) -> MappedRecord:
        message = record.message
        if CLOCK_RUN in message.attributes:  # a dead letter, whose run was found before
            return record
        try:
            mapped = self.types.of(message)
        except BadData:
            return record
        if not isinstance(mapped, MappedType) or not mapped.mapping.by_order:
            return record
        if event := _event_of(mapped, message):  # its time is not ambiguous
            runs.pass_by(event.sensor_id, event.event_time_us)
            return record
        of_run = {run: message._replace(attributes={**message.attributes, CLOCK_RUN: run}) for run in (*RUNS, UNKNOWN)}
        first, second = (_event_of(mapped, of_run[run]) for run in RUNS)
        if not first or not second:
            return record._replace(message=of_run["first"])  # the decoder refuses it for another reason
        times = first.event_time_us, second.event_time_us
        return record._replace(message=of_run[runs.run_of(first.sensor_id, *times, frozenset(first.readings))])

    def protobuf_attributes(self) -> dict[str, str]:
        """Returns the attributes of the messages in a file of protobuf messages.

        Raises UnreadableFile unless a mapping is for them, or several, each with conditions.
        """
        if not self._protobuf_types and self._decoder:
            return dict(self._attributes)
        if not self._protobuf_types:
            raise UnreadableFile("it contains protobuf messages, and no mapping is for a protobuf type")
        names = {kind.name for kind in self._protobuf_types}
        if len(names) == 1:
            return {MESSAGE_TYPE: names.pop(), **self._attributes}
        if unmatched := [kind.file for kind in self._protobuf_types if kind.mapping.match is None]:
            raise UnreadableFile(
                f"its messages don't say their type, and {unmatched[0]} has no match; pass one mapping, or tell them "
                "apart with match"
            )
        return dict(self._attributes)

    def check_json(self) -> None:
        """Raises UnreadableFile unless a mapping is for records that are no protobuf messages."""
        if not self.json_types and not self._decoder:
            raise UnreadableFile('only a mapping with message = "json" reads it: records here are no protobuf messages')

    @property
    def csv(self) -> CsvFormat:
        """How CSV files are written. Raises UnreadableFile if mappings disagree, or none is for CSV."""
        self.check_json()
        if not self.json_types:
            return CsvFormat()
        first = self.json_types[0]
        for other in self.json_types:
            if other.mapping.csv != first.mapping.csv:
                raise UnreadableFile(f"the [csv] of {first.file} and that of {other.file} differ")
        return first.mapping.csv

    def of_json(self, data: bytes) -> MappedRecord:
        """Returns a line of JSON as a message."""
        marked = {MESSAGE_TYPE: JSON} if self.json_types else {}
        return MappedRecord(0, Message(data, marked | self._attributes))

    def of_line(self, line: str) -> MappedRecord:
        """Returns a line of InfluxDB's line protocol as a message.

        Raises UnreadableFile unless a mapping is for such lines.
        """
        is_mapped = any(kind.name == INFLUX for kind in self._mapped)
        if not is_mapped and not self._decoder:
            raise UnreadableFile('only a mapping with message = "influx" reads it')
        marked = {MESSAGE_TYPE: INFLUX} if is_mapped else {}
        return MappedRecord(0, Message(line.strip().encode(errors="surrogateescape"), marked | self._attributes))

    def of_object(self, record: Mapping[str, Any]) -> MappedRecord:
        """Returns the message of a record's columns. Raises Malformed for values that JSON can't express."""
        try:
            data = _json(record)
        except ValueError:  # look at each column: it may be one that the mapping does not read
            data = b"{%s}" % b", ".join(self._members(record))
        if len(data) > self.max_record_bytes:
            raise Malformed(too_long(self.max_record_bytes))
        return self.of_json(data)._replace(is_message=False)

    def _members(self, record: Mapping[str, Any]) -> Iterator[bytes]:
        for name, value in record.items():
            try:
                written = _json_with_texts(value)
            except ValueError as error:
                if self._columns is None or name in self._columns:
                    raise Malformed(f"{shown(name)} {error}") from None
                written = b"null"
            yield _json(name) + b": " + written

    def check_names(self, names: Sequence[str]) -> None:
        """Raises UnreadableFile if columns of the same name, or too many columns, are in a table."""
        self.check_json()
        check_width(names)
        named = [name for name in names if name]  # a spreadsheet may end each row with a delimiter
        if len(set(named)) < len(named):
            raise UnreadableFile(f"two columns have the same name; the columns are {', '.join(map(shown, names))}")

    def check_columns(self, names: Sequence[str]) -> list[Remark]:
        """Returns remarks about columns that mappings name and a file lacks; a single mapping has to find its sensor.

        Raises:
            UnreadableFile: there are too many, two have the same name, or none is the sensor or the time.
        """
        self.check_names(names)
        listed = ", ".join(map(shown, names))
        if len(self.json_types) != 1 or self._decoder:  # the records of each may have columns of their own
            return []
        mapping = self.json_types[0].mapping
        spans = [
            (f"time's {key}", (Source(path=path),))
            for source in mapping.time
            if not _missing((source,), names)
            for key, path in source.spans
        ]
        for key, value in (("sensor", mapping.sensor), ("time", mapping.time), *spans):
            if missing := _missing(value, names):
                raise UnreadableFile(
                    f"no column {shown(missing)}, which the mapping takes for the {key}; the columns are {listed}"
                )
        return [
            Remark(1, f"no column {shown(missing)}, which {table}.{entry.name} names")
            for table, entries in (("readings", mapping.readings), ("metadata", mapping.metadata))
            for entry in entries
            if (missing := _missing(entry.value, names))
        ]


def left_out_of(
    line: int, dropped: int, losses: Iterable[tuple[Message, Mapping[str, BadData]]]
) -> list[LeftOutReadings]:
    """Returns a note on the readings that the events of a record lost; nothing if they lost none."""
    details = [problem.detail for _, lost in losses for problem in lost.values()]
    return [LeftOutReadings(line, dropped, "; ".join(details))] if details else []


def published(
    records: Iterable[Record], maker: MappedMaker, now_us: Callable[[], int], *, metadata_alone: bool = False
) -> Iterator[Record | SkippedElements | LeftOutReadings]:
    """Yields records to publish: a message with its events if it was one in the file, otherwise the events.

    Refuses a record as a whole if an element of it is refused. If mappings read the file's name, all become events.
    """
    for record in records:
        if not isinstance(record, MappedRecord):
            yield record
            continue
        line, message = record.line, record.message
        is_message = record.is_message and not maker.by_file  # a job, which has no file, can't read it
        if is_message and CLOCK_RUN in message.attributes:
            raise UnreadableFile(
                f'line {line}: with ambiguous = "order" only backfill can read it: messages on a topic have no order'
            )
        try:
            now = now_us()
            dated = message._replace(publish_time=to_datetime(now)) if is_message else message
            decoded = maker.types.of(dated).decode(
                dated, now + MAX_FUTURE_US, TableRules(metadata_alone=metadata_alone)
            )
            for _, problem in decoded.refused:
                raise problem
        except BadData as problem:
            yield Refusal(line, str(problem))
            continue
        if decoded.skipped:
            yield SkippedElements(decoded.skipped)
        yield from left_out_of(line, decoded.dropped, decoded.losses)
        events = tuple(decoded.events)
        if not is_message:
            yield from events
        elif events and REPLAYS in message.attributes:
            yield Original(message, events, is_replay=True)
        elif events:
            yield Original(identified(message, [sensor_event(*event[:5]) for event in events]), events)


def _with_file(record: MappedRecord, named: Mapping[str, str]) -> MappedRecord:
    """Returns a record whose message names its file; a dead letter, the file in which the record was refused."""
    attributes = record.message.attributes
    if REPLAYS in attributes:
        named = {**(file_attributes(attributes[FILE]) if FILE in attributes else named), **attributes}
    return record._replace(message=record.message._replace(attributes={**attributes, **named}))


def _event_of(mapped: MappedType, message: Message) -> Event | None:
    """Returns the event of a record; None if it has none, or is refused."""
    try:
        return next(iter(mapped.decode(message, LATEST_US, TableRules(metadata_alone=True)).events), None)
    except BadData:
        return None


def _missing(value: Value, names: Sequence[str]) -> str | None:
    """Returns the first column of a value if all of its sources are columns and the file has none of these."""
    columns = []
    for source in value:
        first = next(iter(source.paths), None)
        if first is None or first.root is not Root.MESSAGE or not isinstance(first.steps[0], Field):
            return None
        columns.append(first.steps[0].name)
    return columns[0] if columns and not set(columns) & set(names) else None


def _columns_of(mapped: Iterable[MappedType]) -> frozenset[str] | None:
    """Returns the columns that mappings may read; None if a star stands for all of them."""
    columns = set()
    for mapping in (kind.mapping for kind in mapped):
        for path in mapping.paths:
            if (path.root is Root.ELEMENT and mapping.has_elements) or path.root in (Root.ATTRIBUTE, Root.ENVELOPE):
                continue
            if not path.steps or not isinstance(path.steps[0], Field):
                return None
            columns.add(path.steps[0].name)
    return frozenset(columns)


def _json(value: Any) -> bytes:
    """Returns JSON. Raises ValueError, whose message follows the name of the value."""
    try:
        return _ENCODER.encode(value).encode()
    except UnicodeEncodeError:
        raise ValueError("is not UTF-8") from None
    except TypeError as error:  # a key of a map
        raise ValueError(f"can't be written as JSON: {error}") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _json_with_texts(value: Any) -> bytes:
    """Returns JSON in which texts replace numbers that are not finite. Raises as :func:`_json` does."""
    try:
        return _json(json_value(value))
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _plain(value: Any) -> Any:
    match value:
        case BadValue():
            raise ValueError(value.problem)
        case datetime():
            return value.isoformat(timespec="microseconds")
        case date() | time():
            return value.isoformat()
        case UUID():
            return str(value)
        case bytes():
            return value.hex()
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case _:
            raise TypeError(f"a {type(value).__name__} is no value of JSON")


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_plain)
