"""Files of readings in, messages as a publisher would have sent them out; what is no record goes aside."""

import gzip
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, NamedTuple

import apache_beam as beam
import fastavro
import pyarrow
import pyarrow.parquet
from apache_beam.io.avroio import ReadAllFromAvro
from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.io.parquetio import ReadAllFromParquetBatched
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MIN_TIMESTAMP
from apache_beam.utils.windowed_value import WindowedValue

from pipeline.cloud.errors import ServerProblem
from pipeline.core.dead_letters import dead_letter
from pipeline.core.events import BadData, Reason, shown
from pipeline.core.formats.files import SUFFIXES, Columns, EventMaker, Refusal, Remark, UnreadableFile, records_of
from pipeline.core.formats.lines import attempt
from pipeline.core.formats.mappings import event_of
from pipeline.core.messages import EVENT_TYPE, MESSAGE_TYPE, Message
from pipeline.core.outgoing import message_of
from pipeline.proto.sensor_event_pb2 import SensorEvent
from pipeline.transforms import metrics

FILE = "file"
LINE = "line"
"""Attributes of a message that was made of a file: which; and, where it is refused, the line there."""

RECORDS = "records"
REFUSED_RECORDS = "refused_records"
UNREADABLE_FILES = "unreadable_files"

_AVRO, _PARQUET = ".avro", ".parquet"
_MESSAGES, _REFUSED, _REMARKS = "messages", "refused", "remarks"
_MOST_EVENTS = 500  # in a message
_MOST_BYTES = 1_000_000
_ROWS = 1000  # of a Parquet file that are Python's at a time


class ReadRecords(NamedTuple):
    """What comes out: ``PubsubMessage`` elements, ``Message`` elements that are dead letters, and told elements.

    A told element is ``(file, line, text)``: what a person should know, although nothing is refused for it.
    """

    messages: PCollection
    refused: PCollection
    remarks: PCollection


class Meter:
    """How far the files are that are read in this process: for a person who waits. Not those of Avro and Parquet."""

    def __init__(self) -> None:
        self._positions: dict[str, int] = {}

    def note(self, path: str, position: int) -> None:
        """Notes how many bytes of a file were read."""
        self._positions[path] = position

    def clear(self) -> None:
        """Begins anew."""
        self._positions.clear()

    @property
    def bytes_read(self) -> int:
        """Of all files, as they are stored."""
        return sum(list(self._positions.values()))  # a copy: others note theirs meanwhile


METER = Meter()


def is_metered(path: str) -> bool:
    """Whether the meter tells how far the file is."""
    return _suffix(path) not in (_AVRO, _PARQUET)


def find_files(patterns: Iterable[str]) -> dict[str, int]:
    """The files that paths and globs name, local or in a bucket, each once, with its size in bytes.

    Raises:
        FileNotFoundError: a pattern that names none. Its text is a line.
        ServerProblem: what holds them is out of reach.
    """
    found: dict[str, int] = {}
    for pattern in patterns:
        try:
            (match,) = FileSystems.match([pattern])
        except (BeamIOError, ValueError) as error:
            raise ServerProblem(f"{pattern}: {_one_line(error)}") from error
        if not match.metadata_list:
            raise FileNotFoundError(f"{pattern}: there is no such file")
        found |= {file.path: file.size_in_bytes for file in sorted(match.metadata_list, key=lambda file: file.path)}
    return found


def check_file(path: str, columns: Columns) -> None:
    """Opens the file and reads how it begins.

    Raises:
        UnreadableFile: in one line without the file's name.
    """
    suffix = _suffix(path)
    try:
        with closing(_opened(path)) as file:
            if suffix == _AVRO:
                schema = fastavro.reader(file).writer_schema
                _check_names([field["name"] for field in schema["fields"]] if isinstance(schema, dict) else [], columns)
            elif suffix == _PARQUET:
                _check_names(pyarrow.parquet.read_schema(file).names, columns)
            else:
                with records_of(path, file, EventMaker(columns), sniff=True):
                    pass
    except UnreadableFile:
        raise
    except (OSError, EOFError, ValueError, LookupError) as error:
        raise UnreadableFile(f"can't be read: {_one_line(error)}") from error


class ReadFiles(beam.PTransform):
    """The beginning of a pipeline to :class:`ReadRecords`. A file is read by one worker; Avro and Parquet by several.

    Messages hold as many events of one file as are handed on best; an event that breaks a rule of the contract is
    alone in one, that says its line. Whoever decodes them refuses it.

    Args:
        paths: of files, as :func:`find_files` has them.
        maker: makes the events.
    """

    def __init__(self, paths: Sequence[str], maker: EventMaker) -> None:
        super().__init__()
        self._paths = paths
        self._maker = maker

    def expand(self, begin: Any) -> Any:  # ReadRecords; Beam takes the annotation for a type hint and warns
        by_suffix: dict[str, list[str]] = {_AVRO: [], _PARQUET: [], "": []}
        for path in self._paths:
            suffix = _suffix(path)
            by_suffix[suffix if suffix in by_suffix else ""].append(path)
        read = []
        if paths := by_suffix[""]:
            files = begin | "Files" >> beam.Create(paths) | "SpreadFiles" >> beam.Reshuffle()
            read.append(files | "Read" >> _outputs(_ReadFileFn(self.label, self._maker)))
        if paths := by_suffix[_AVRO]:
            records = begin | "AvroFiles" >> _create(paths) | "ReadAvro" >> ReadAllFromAvro(with_filename=True)
            read.append(records | "OfAvro" >> _outputs(_OfMappingsFn(self.label, self._maker)))
        if paths := by_suffix[_PARQUET]:
            groups = (
                begin
                | "ParquetFiles" >> _create(paths)
                | "ReadParquet" >> ReadAllFromParquetBatched(with_filename=True)
            )
            read.append(groups | "OfParquet" >> _outputs(_OfRowGroupsFn(self.label, self._maker)))
        return ReadRecords(*(_all(read, name) for name in (_MESSAGES, _REFUSED, _REMARKS)))


def _create(paths: list[str]) -> beam.PTransform:
    return beam.Create(paths)


def _outputs(fn: beam.DoFn) -> beam.PTransform:
    return beam.ParDo(fn).with_outputs(_REFUSED, _REMARKS, main=_MESSAGES)


def _all(read: Sequence[Any], name: str) -> PCollection:
    parts = [outputs[name] for outputs in read]
    return parts[0] if len(parts) == 1 else parts | f"All{name.title()}" >> beam.Flatten()


class _RecordsFn(beam.DoFn):
    """What readers of all formats share: events packed into messages, refusals as dead letters, and counters."""

    def __init__(self, step: str, maker: EventMaker) -> None:
        self._step = step
        self._maker = maker
        self._records = metrics.counter(RECORDS)
        self._refused = metrics.counter(REFUSED_RECORDS)
        self._unreadable = metrics.counter(UNREADABLE_FILES)

    def start_bundle(self) -> None:
        self._file = ""
        self._events: list[SensorEvent] = []
        self._bytes = 0

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for message in self._flush():
            yield WindowedValue(message, MIN_TIMESTAMP, [GlobalWindow()])

    def _taken(self, file: str, record: SensorEvent | Refusal) -> Iterator[Any]:
        """What becomes of a record: nothing yet of most events."""
        self._records.inc()
        if isinstance(record, Refusal):
            yield self._refuse(file, record)
            return
        size = record.ByteSize()
        if file != self._file or len(self._events) == _MOST_EVENTS or self._bytes + size > _MOST_BYTES:
            yield from self._flush()
        self._file = file
        self._events.append(record)
        self._bytes += size

    def _flush(self) -> Iterator[PubsubMessage]:
        if self._events:
            message = message_of(self._events)
            yield PubsubMessage(message.data, {**message.attributes, FILE: self._file})
            self._events, self._bytes = [], 0

    def _refuse(self, file: str, refusal: Refusal) -> Any:
        attributes = {FILE: file, **({LINE: str(refusal.line)} if refusal.line else {})}
        if refusal.data is not None:  # an event: what is wrong with it is for the decoder to say
            return PubsubMessage(refusal.data, {MESSAGE_TYPE: EVENT_TYPE, **attributes})
        self._refused.inc()
        problem = BadData(Reason.UNPARSEABLE, refusal.reason)
        return TaggedOutput(_REFUSED, dead_letter(Message(b"", attributes), problem, self._step, datetime.now(UTC)))


class _ReadFileFn(_RecordsFn):
    """Paths of files, record by record."""

    def process(self, element: str) -> Iterator[Any]:
        try:
            with closing(_opened(element)) as file, records_of(element, file, self._maker, sniff=True) as records:
                for number, record in enumerate(records):
                    if number % _MOST_EVENTS == 0:
                        METER.note(element, file.tell())
                    if isinstance(record, Remark):
                        yield TaggedOutput(_REMARKS, (element, record.line, record.text))
                    else:
                        yield from self._taken(element, record)
        except UnreadableFile as problem:
            if _may_pass(problem.__cause__):
                raise ServerProblem(f"{element}: {problem}") from problem
            self._unreadable.inc()
            yield TaggedOutput(_REMARKS, (element, 0, str(problem)))


class _OfMappingsFn(_RecordsFn):
    """``(file, record)`` of Avro files."""

    def process(self, element: tuple[str, Mapping[str, Any]]) -> Iterator[Any]:
        yield from self._of(*element)

    def _of(self, file: str, mapping: Any) -> Iterator[Any]:
        record = attempt(0, self._event, mapping)
        if isinstance(record, Refusal):
            sensor, at = (mapping.get(name) for name in self._maker.columns[:2])
            record = record._replace(reason=f"{record.reason}, in a record of {shown(str(sensor))} at {shown(str(at))}")
        yield from self._taken(file, record)

    def _event(self, mapping: Mapping[str, Any]) -> SensorEvent:
        return event_of(mapping, self._maker)


class _OfRowGroupsFn(_OfMappingsFn):
    """``(file, table)`` of Parquet files, a row group each."""

    def process(self, element: tuple[str, pyarrow.Table]) -> Iterator[Any]:
        file, table = element
        for batch in _to_microseconds(table).to_batches(_ROWS):
            for mapping in batch.to_pylist():
                yield from self._of(file, mapping)


def _to_microseconds(table: pyarrow.Table) -> pyarrow.Table:
    """Python's times hold no nanoseconds: what is finer than a microsecond is cut off, as everywhere."""
    schema = table.schema
    for index, column in enumerate(schema):
        if pyarrow.types.is_timestamp(column.type) and column.type.unit == "ns":
            schema = schema.set(index, column.with_type(pyarrow.timestamp("us", column.type.tz)))
        elif pyarrow.types.is_time64(column.type):
            schema = schema.set(index, column.with_type(pyarrow.time64("us")))
    return table.cast(schema, safe=False)


def _opened(path: str) -> Any:
    """The file's bytes as they are stored: what is compressed is undone by whoever knows the format, and once."""
    try:
        return FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)
    except (BeamIOError, OSError) as error:
        raise UnreadableFile(f"can't be opened: {_one_line(error)}") from error


def _suffix(path: str) -> str:
    """The one that tells the format, without ``.gz``."""
    name = path.lower()
    for suffix in (_AVRO, _PARQUET):
        if name.endswith(suffix):
            return suffix
    name = name.removesuffix(".gz")
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return suffix
    raise UnreadableFile(f"its name ends in none of {', '.join(SUFFIXES)}, with or without .gz, {_AVRO} and {_PARQUET}")


def _check_names(names: Sequence[str], columns: Columns) -> None:
    there = ", ".join(map(shown, names))
    for wanted in (columns.sensor, columns.time):
        if wanted not in names:
            raise UnreadableFile(f"no column {shown(wanted)}; there are {there}")
    if len(set(names)) < len(names):
        raise UnreadableFile(f"two columns have one name; there are {there}")


def _may_pass(failure: BaseException | None) -> bool:
    """Whether reading once more might do: a connection that broke, not a file that is damaged."""
    return isinstance(failure, OSError) and not isinstance(failure, gzip.BadGzipFile)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
