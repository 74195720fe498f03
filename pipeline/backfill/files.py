"""Files of readings in, messages as a publisher would have sent them out; what is no record goes aside."""

import gzip
import os
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MIN_TIMESTAMP
from apache_beam.utils.windowed_value import WindowedValue

from pipeline.cloud.errors import ServerProblem
from pipeline.core.dead_letters import dead_letter
from pipeline.core.events import BadData, Reason
from pipeline.core.messages import EVENT_TYPE, MESSAGE_TYPE, Message
from pipeline.core.outgoing import message_of
from pipeline.formats.avro_records import AvroFile
from pipeline.formats.files import SUFFIXES, EventMaker, Record, Refusal, Remark, UnreadableFile, records_of
from pipeline.formats.lines import one_line
from pipeline.formats.parquet_records import ParquetFile
from pipeline.proto.sensor_event_pb2 import SensorEvent
from pipeline.transforms import metrics

FILE = "file"
LINE = "line"
"""Attributes of a message that was made of a file: which; and, where it is refused, the line or record there."""

_IN_BLOCKS: dict[str, Callable[..., AvroFile | ParquetFile]] = {".avro": AvroFile, ".parquet": ParquetFile}
_MESSAGES, _REFUSED, _REMARKS = "messages", "refused", "remarks"
_MOST_EVENTS = 500  # in a message
_MOST_BYTES = 1_000_000
_RANGE_BYTES = 64 << 20  # of a file in blocks, for one worker
_GLOB = frozenset("*?[")  # what makes a path a pattern


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
    return _suffix(path) not in _IN_BLOCKS


def find_files(patterns: Iterable[str]) -> dict[str, int]:
    """The files that paths and globs name, local or in a bucket, each once, with its size in bytes.

    What is there as a file is that file; only another path is a glob.

    Raises:
        FileNotFoundError: a pattern that names none. Its text is a line.
        ServerProblem: what holds them is out of reach.
    """
    found: dict[Hashable, tuple[str, int]] = {}
    for pattern in patterns:
        # Beam finds nothing for a pattern that begins with a glob, in the folder where it is.
        here = "" if "://" in pattern or Path(pattern).is_absolute() else "./"
        try:
            if is_pattern(pattern) and FileSystems.exists(pattern):
                files = [FileSystems.get_filesystem(pattern).metadata(here + pattern)]
            else:
                (match,) = FileSystems.match([here + pattern])
                files = match.metadata_list
        except (BeamIOError, ValueError) as error:
            raise ServerProblem(f"{pattern}: {one_line(error)}") from error
        if not files:
            raise FileNotFoundError(f"{pattern}: there is no such file")
        for path, size in sorted((file.path.removeprefix(here), file.size_in_bytes) for file in files):
            found.setdefault(identity(path), (path, size))
    return dict(found.values())


def is_pattern(path: str) -> bool:
    """Whether Beam would take the path for a glob, where no such file is there."""
    return not _GLOB.isdisjoint(path)


def identity(path: str) -> Hashable:
    """Which file a path names: equal for two paths to one file, by another spelling or through a link."""
    if "://" in path:  # an object's name has no other spelling
        return path
    try:
        found = Path(path).stat()
    except OSError:
        return os.path.realpath(path)
    return found.st_dev, found.st_ino


def check_file(path: str, maker: EventMaker) -> None:
    """Opens the file and reads how it begins.

    Raises:
        UnreadableFile: in one line without the file's name.
    """
    try:
        with closing(_opened(path)) as file, _records(path, file, maker):
            pass
    except (OSError, EOFError, ValueError, LookupError) as error:
        raise UnreadableFile(f"can't be read: {one_line(error)}") from error


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
        read = (
            begin
            | "Files" >> beam.Create(self._paths)
            | "Ranges" >> beam.FlatMap(_ranges)
            | "SpreadRanges" >> beam.Reshuffle()
            | "Read"
            >> beam.ParDo(_ReadRangeFn(self.label, self._maker)).with_outputs(_REFUSED, _REMARKS, main=_MESSAGES)
        )
        return ReadRecords(read[_MESSAGES], read[_REFUSED], read[_REMARKS])


class _Range(NamedTuple):
    """The part of a file that begins in a range of its bytes; of one that is not in blocks, all of it."""

    path: str
    start: int = 0
    stop: int = sys.maxsize


def _ranges(path: str) -> Iterator[_Range]:
    size = 0
    if _suffix(path) in _IN_BLOCKS:
        try:
            with closing(_opened(path)) as file:
                size = file.seek(0, os.SEEK_END)
        except UnreadableFile:
            pass  # which whoever reads it will tell
    starts = range(0, max(size, 1), _RANGE_BYTES)
    for start in starts:
        yield _Range(path, start, sys.maxsize if start == starts[-1] else start + _RANGE_BYTES)


class _ReadRangeFn(beam.DoFn):
    """Ranges of files, record by record: events packed into messages, refusals as dead letters, and counters."""

    def __init__(self, step: str, maker: EventMaker) -> None:
        self._step = step
        self._maker = maker
        self._records = metrics.counter(metrics.BACKFILL_RECORDS)
        self._refused = metrics.counter(metrics.BACKFILL_REFUSED_RECORDS)
        self._unreadable = metrics.counter(metrics.BACKFILL_UNREADABLE_FILES)

    def start_bundle(self) -> None:
        self._file = ""
        self._events: list[SensorEvent] = []
        self._bytes = 0

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for message in self._flush():
            yield WindowedValue(message, MIN_TIMESTAMP, [GlobalWindow()])

    def process(self, element: _Range) -> Iterator[Any]:
        path = element.path
        try:
            with closing(_opened(path)) as file, _records(path, file, self._maker, *element[1:]) as records:
                for number, record in enumerate(records):
                    if number % _MOST_EVENTS == 0 and is_metered(path):
                        METER.note(path, file.tell())
                    if isinstance(record, Remark):
                        yield TaggedOutput(_REMARKS, (path, record.line, record.text))
                    else:
                        yield from self._taken(path, record)
        except UnreadableFile as problem:
            if _may_pass(problem.__cause__):
                raise ServerProblem(f"{path}: {problem}") from problem
            self._unreadable.inc()
            yield TaggedOutput(_REMARKS, (path, 0, str(problem)))

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


def _records(
    path: str, file: Any, maker: EventMaker, start: int = 0, stop: int = sys.maxsize
) -> AbstractContextManager[Iterator[Record]]:
    if in_blocks := _IN_BLOCKS.get(_suffix(path)):
        return nullcontext(in_blocks(file, maker).records(start, stop))
    return records_of(path, file, maker, sniff=True)


def _opened(path: str) -> Any:
    """The file's bytes as they are stored: what is compressed is undone by whoever knows the format, and once."""
    try:
        return FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)
    except (BeamIOError, OSError) as error:
        raise UnreadableFile(f"can't be opened: {one_line(error)}") from error


def _suffix(path: str) -> str:
    """The one that tells the format, without ``.gz``."""
    name = path.lower()
    for suffix in _IN_BLOCKS:
        if name.endswith(suffix):
            return suffix
    name = name.removesuffix(".gz")
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return suffix
    others = " and ".join(_IN_BLOCKS)
    raise UnreadableFile(f"its name ends in none of {', '.join(SUFFIXES)}, with or without .gz, {others}")


def _may_pass(failure: BaseException | None) -> bool:
    """Whether reading once more might do: a connection that broke, not a file that is damaged."""
    if type(failure) is OSError and failure.errno is None:  # how bz2 and pyarrow tell what is damaged
        return False
    return isinstance(failure, OSError) and not isinstance(failure, gzip.BadGzipFile)
