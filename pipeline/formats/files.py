"""Reads files of readings, plain or gzipped: returns an event, or a refusal, for each record.

A record is what one sensor measured at one time. The file's suffix determines its format:

- ``.csv``, ``.tsv`` (with tabs), ``.txt``, ``.dat``: a column is numeric if every value in the first 1,000 records is
  a finite number or missing. Any other value in later records makes them malformed. ``NA``, ``N/A``, ``NaN``,
  ``null``, ``None``, in any case, and the empty text mark a value as missing: the event lacks that reading or metadata.
- ``.ndjson``: a number is a reading; a string, ``true`` or ``false`` is metadata; ``null`` is missing. Or the lines are
  events or dead letters, as ``tidetable`` prints them.
- ``.lp``: points in InfluxDB's line protocol, which only mappings read.
- ``.pb``, ``.binpb``: length-delimited ``SensorEvent`` messages.
- ``.avro``, ``.parquet``: never gzipped.

Or mappings turn the records of a file into events: see :mod:`pipeline.formats.mapped`. Or a function reads the whole
file, of any suffix: see :mod:`pipeline.formats.decoded_files`.

In all but protobuf, the caller names the columns of the sensor and the time. ``event_id`` is the event's id. In the
other columns, numbers are readings and all else is metadata, unless the column's name says what it is: see
:mod:`pipeline.core.events.file_columns`. Times are ISO 8601, or seconds, milliseconds or microseconds since the epoch,
truncated to the microsecond.
"""

import codecs
import gzip
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from google.protobuf.message import DecodeError

from pipeline.core.decoding.dry_decode import Trial, Trials
from pipeline.core.decoding.message_types import DecoderFunction, MappedType, valid_events
from pipeline.core.events.event import MAX_FUTURE_US, Event, validate
from pipeline.core.events.invalid_readings import losses_of
from pipeline.core.events.message import MESSAGE_TYPE, Message, message_of, sensor_event
from pipeline.core.events.reasons import BadData
from pipeline.formats.csv_records import csv_records
from pipeline.formats.decoded_files import DecodingMaker, FileDecoder
from pipeline.formats.lines import UNREADABLE, Lines, MappedRecord, Record, Refusal, Remark
from pipeline.formats.mapped import LeftOutReadings, MappedMaker, SkippedElements, left_out_of, published
from pipeline.formats.message_records import delimited_records, line_protocol_records, ndjson_records
from pipeline.formats.values import MAX_RECORD_BYTES, EventMaker, FileColumns, UnreadableFile, clock_us
from pipeline.proto.sensor_event_pb2 import SensorEvent

Maker = EventMaker | MappedMaker
"""What makes the events of records, or the messages that mappings read."""

ToPublish = Record | SkippedElements | LeftOutReadings

_CSV = (".csv", ".tsv", ".txt", ".dat")
_OF_LINES: dict[str, Callable[[Lines, Any], Iterator[Record]]] = {
    **dict.fromkeys(_CSV, csv_records),
    ".tsv": partial(csv_records, delimiter="\t"),
    ".ndjson": ndjson_records,
    ".lp": line_protocol_records,
}
_DELIMITED = (".pb", ".binpb")
_BLOCKS = (".avro", ".parquet")
_GZIPPED = (*_OF_LINES, *_DELIMITED)  # with or without .gz

_GZIP = b"\x1f\x8b"
_MARKS = (  # byte-order marks, which overrule the encoding of a mapping
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


@contextmanager
def records_of(name: str, file: BinaryIO, maker: Maker, *, sniff: bool = False) -> Iterator[Iterator[Record]]:
    """Reads the records of an open file lazily, and closes it. Skips blank lines.

    The iterator raises UnreadableFile if the rest can't be read, as in a truncated ``.gz``.

    Args:
        name: the file's path, whose suffix determines the format; a final ``.gz`` means gzipped.
        file: the stored bytes; seekable for Avro and Parquet.
        maker: the maker of events, or of messages for mappings.
        sniff: whether to detect gzip by content too, as for objects in a bucket that lack the suffix.

    Raises:
        UnreadableFile: unknown suffix, empty file, another format, or a header without the columns.
    """
    suffix = "" if isinstance(maker, DecodingMaker) else _suffix(name)
    maker = maker if isinstance(maker, MappedMaker) else maker.in_file(name)
    with ExitStack() as stack:
        if suffix in _BLOCKS:
            records = _block_records(suffix, file, maker)
        else:
            stored = stack.enter_context(io.BufferedReader(cast(io.RawIOBase, file)))
            gzipped = name.lower().endswith(".gz") or (sniff and stored.peek(2)[:2] == _GZIP)
            # Unbuffered: a buffer would lose the data before a failure.
            content = stack.enter_context(gzip.GzipFile(fileobj=stored)) if gzipped else stored
            if isinstance(maker, DecodingMaker):
                records = stack.enter_context(closing(maker.records(name, cast(BinaryIO, content))))  # before the file
            elif suffix in _DELIMITED:
                records = delimited_records(cast(BinaryIO, content), maker)
            else:
                lines = Lines(stack.enter_context(_text(suffix, content, maker)), maker.max_record_bytes)
                records = _to_the_end(_OF_LINES[suffix](lines, maker), lines)
        yield maker.in_file(name, records) if isinstance(maker, MappedMaker) else records


def _block_records(suffix: str, file: BinaryIO, maker: Maker) -> Iterator[Record]:
    if suffix == ".avro":  # both are slow to import
        from pipeline.formats.avro_records import avro_records as records
    else:
        from pipeline.formats.parquet_records import parquet_records as records
    return records(file, maker)


def _text(suffix: str, content: Any, maker: Maker) -> io.TextIOWrapper:
    encoding = maker.csv.encoding if suffix in _CSV and isinstance(maker, MappedMaker) else "utf-8"
    try:
        encoding = next((name for mark, name in _MARKS if content.peek(4).startswith(mark)), encoding)
    except UNREADABLE as failure:
        raise UnreadableFile(f"can't be read: {failure}") from failure
    # A byte that is not UTF-8 must not end the file: it becomes a surrogate, and its record is refused.
    return io.TextIOWrapper(content, encoding=encoding, errors="surrogateescape", newline="")


class RecordFile:
    """The records of an open file, to be iterated over once."""

    def __init__(self, file: io.FileIO, records: Iterator[ToPublish]) -> None:
        self._file = file
        self._records = records

    def __iter__(self) -> Iterator[ToPublish]:
        return self._records

    @property
    def size(self) -> int:
        """The size of the stored file in bytes."""
        return os.fstat(self._file.fileno()).st_size

    @property
    def position(self) -> int:
        """The number of stored bytes read so far; a little ahead of the records."""
        return self._file.tell()


@contextmanager
def open_records(
    path: Path,
    columns: FileColumns,
    now_us: Callable[[], int] = clock_us,
    max_record_bytes: int = MAX_RECORD_BYTES,
    mapped: Sequence[MappedType] = (),
    attributes: Mapping[str, str] | None = None,
    decoder: DecoderFunction | None = None,
    file_decoder: FileDecoder | None = None,
    *,
    metadata_alone: bool = False,
) -> Iterator[RecordFile]:
    """Opens a file to publish its records; see :func:`records_of`."""
    maker: Maker = EventMaker(columns, now_us, max_record_bytes=max_record_bytes, metadata_alone=metadata_alone)
    if mapped or decoder:
        maker = MappedMaker(mapped, max_record_bytes, attributes, decoder)
    elif file_decoder:
        maker = DecodingMaker(file_decoder, now_us, metadata_alone=metadata_alone)

    def kept(record: Record) -> Iterable[ToPublish]:
        """Returns a record; an event without the readings that a job would leave out."""
        if not isinstance(record, Refusal) or record.data is None:
            return (record,)
        try:
            event = SensorEvent.FromString(record.data)
        except DecodeError:
            return (record,)
        validate_one = partial(validate, metadata_alone=metadata_alone)
        events, _, dropped = valid_events([event], validate_one, now_us() + MAX_FUTURE_US)
        return [*left_out_of(record.line, *losses_of(dropped, Message(b"", {}))), *events] if events else (record,)

    def to_publish(records: Iterator[Record]) -> Iterator[ToPublish]:
        if not isinstance(maker, MappedMaker):
            return chain.from_iterable(map(kept, records))
        return published(records, maker, now_us, metadata_alone=metadata_alone)

    with path.open("rb", buffering=0) as file, records_of(str(path), cast(BinaryIO, file), maker) as records:
        yield RecordFile(file, to_publish(records))


def is_block_format(name: str) -> bool:
    """Returns whether the name is that of a file of blocks: Avro or Parquet."""
    return name.lower().endswith(_BLOCKS)


def _to_the_end(records: Iterator[Record], lines: Lines) -> Iterator[Record]:
    yield from records
    lines.raise_failure()


def _suffix(name: str) -> str:
    """Returns the suffix of the file's format, lower case, without ``.gz``. Raises UnreadableFile if it is unknown."""
    name = name.lower()
    for suffix in (*_BLOCKS, *_GZIPPED):
        if name.endswith(suffix) or (suffix in _GZIPPED and name.endswith(f"{suffix}.gz")):
            return suffix
    way_out = "; write a JSON array as lines of .ndjson, such as with: jq -c '.[]'" if name.endswith(".json") else ""
    raise UnreadableFile(
        f"its name ends in none of {', '.join(_GZIPPED)}, with or without .gz, {' and '.join(_BLOCKS)}{way_out}"
    )


def is_csv(name: str) -> bool:
    """Returns whether a file is CSV, by its name."""
    return name.lower().removesuffix(".gz").endswith(_CSV)


def is_record_file(path: Path) -> bool:
    """Returns whether a file contains records, by its name; any other contains the payload of one message."""
    return path.name.lower().removesuffix(".gz").endswith((*_GZIPPED, *_BLOCKS))


def first_trials(
    path: str,
    records: Iterator[Record],
    trials: Trials,
    limit: int,
    latest_us: int,
    publish_time: datetime | None = None,
) -> Iterator[tuple[str, Message, Trial]]:
    """Yields the first records of a file: where each is, its message, and what a job would make of it."""
    first = islice((record for record in records if not isinstance(record, Remark)), limit)
    for number, record in enumerate(first, 1):
        if isinstance(record, MappedRecord):
            message = record.message._replace(publish_time=publish_time)
            attributes = {name: text for name, text in message.attributes.items() if name != MESSAGE_TYPE}
            trial = trials.of(message, latest_us)
            yield f"{path}:{record.line or number}", message._replace(attributes=attributes), trial
        elif isinstance(record, Refusal):
            trial = Trial("", False, _text_of(record.record), [], [BadData(record.code, record.reason)])
            yield f"{path}:{record.line}", Message(record.data or record.record, {}), trial
        elif isinstance(record, Event):
            message = message_of([sensor_event(*record[:5])])
            yield f"{path}: record {number}", message._replace(attributes={}), trials.of(message, latest_us)


def _text_of(record: bytes) -> str | None:
    """Returns the text of a refused record that a decoder gives; None for other bytes, or none."""
    try:
        return record.decode() or None
    except UnicodeDecodeError:
        return None


def trials_of_records(
    path: Path, maker: Maker, trials: Trials, publish_time: datetime, limit: int, latest_us: int
) -> Iterator[tuple[str, Message, Trial]]:
    """Yields what :func:`first_trials` does of a file. Raises UnreadableFile."""
    with path.open("rb", buffering=0) as file, records_of(str(path), cast(BinaryIO, file), maker) as records:
        yield from first_trials(str(path), records, trials, limit, latest_us, publish_time)
