"""Reads files of readings into events, and messages for mappings. Records that are neither become dead letters."""

import gzip
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.context import BaseContext
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

from pipeline.backfill.request import LINE, READ
from pipeline.cloud.connection.errors import ServerError
from pipeline.core.decoding.file_names import FILE as FILE  # an attribute of what is made here
from pipeline.core.events.dead_letter import dead_letter
from pipeline.core.events.event import Event
from pipeline.core.events.message import EVENT_TYPE, MESSAGE_TYPE, Message
from pipeline.core.events.reasons import BadData
from pipeline.core.notation.documents import is_named_pipe
from pipeline.formats.files import Maker, is_block_format, records_of
from pipeline.formats.lines import MappedRecord, Refusal, Remark, one_line
from pipeline.formats.values import UnreadableFile
from pipeline.transforms import metrics
from pipeline.transforms.process import CheckedEvents

REFUSED, REMARKS = "refused", "remarks"
"""The tags of the outputs beside messages: ``Message`` elements that are dead letters, and ``(file, line, text)``."""

_MESSAGES = "messages"
_MEASURES = 2  # of a process: bytes, raw rows
_MOST_EVENTS = 500  # in an element
_MOST_READINGS = 20_000  # of these
_FINAL = gzip.BadGzipFile, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError
_GLOB = frozenset("*?[")  # characters that make a path a pattern


class ReadRecords(NamedTuple):
    """The outputs of :class:`ReadFiles`.

    Attributes:
        messages: ``CheckedEvents`` and ``PubsubMessage`` elements.
        refused: ``Message`` elements that are dead letters.
        remarks: ``(file, line, text)`` of warnings that refuse no record.
    """

    messages: PCollection
    refused: PCollection
    remarks: PCollection


class Meter:
    """Measures how much the processes of a backfill have read and written, for a progress display.

    Attributes:
        total: the bytes of the files, times the steps that each goes through.
    """

    def __init__(self) -> None:
        self.begin(0, 1)

    def begin(self, size: int, steps: int) -> None:
        """Begins anew, for files of ``size`` bytes."""
        self.total = size * steps
        self._all: Any = [0] * _MEASURES
        self._first = 0

    def shared(self, context: BaseContext, processes: int) -> Any:
        """Measures other processes. Returns what each has to :meth:`share`."""
        self._all = context.RawArray("q", _MEASURES * (processes + 1))
        return self._all

    def share(self, numbers: Any, process: int) -> None:
        """Measures this process for the one that called :meth:`shared`."""
        self._all, self._first = numbers, _MEASURES * (process + 1)

    def note_bytes(self, size: int) -> None:
        """Records that bytes went through a step."""
        self._all[self._first] += size

    def note_rows(self, rows: int) -> None:
        """Records that raw rows were written."""
        self._all[self._first + 1] += rows

    @property
    def size(self) -> int:
        """The bytes that went through a step, compressed as they are stored."""
        return min(sum(self._all[0::_MEASURES]), self.total)

    @property
    def raw_rows(self) -> int:
        """The number of raw rows that were written."""
        return sum(self._all[1::_MEASURES])


METER = Meter()


def find_files(patterns: Iterable[str]) -> dict[str, int]:
    """Returns the files that paths and globs match, local or in a bucket, each once, with its size in bytes.

    A path of an existing file matches that file only, even if it looks like a glob.

    Raises:
        FileNotFoundError: a pattern matches no file. The message is one line.
        ServerError: the file system or the bucket can't be reached.
    """
    found: dict[Hashable, tuple[str, int]] = {}
    for pattern in patterns:
        # Beam matches nothing if a relative pattern begins with a glob character.
        prefix = "" if "://" in pattern or Path(pattern).is_absolute() else "./"
        try:
            if is_pattern(pattern) and FileSystems.exists(pattern):
                files = [FileSystems.get_filesystem(pattern).metadata(prefix + pattern)]
            else:
                (match,) = FileSystems.match([prefix + pattern])
                files = match.metadata_list
        except (BeamIOError, ValueError) as error:
            raise ServerError(f"{pattern}: {one_line(error)}") from error
        if not files:
            raise FileNotFoundError(f"{pattern}: no such file")
        for path, size in sorted((file.path.removeprefix(prefix), file.size_in_bytes) for file in files):
            found.setdefault(identity(path), (path, size))
    return dict(found.values())


def is_pattern(path: str) -> bool:
    """Whether Beam takes the path for a glob if no file has that name."""
    return not _GLOB.isdisjoint(path)


def identity(path: str) -> Hashable:
    """Returns an identity of the file at a path: equal for every spelling of the path, and through links."""
    if "://" in path:  # objects in a bucket have one name
        return path
    try:
        found = Path(path).stat()
    except OSError:
        return os.path.realpath(path)
    return found.st_dev, found.st_ino


def check_file(path: str, maker: Maker) -> None:
    """Opens the file and reads its first record or header.

    Raises:
        UnreadableFile: the file can't be read. The message is one line without the file's name.
    """
    try:
        with closing(open_file(path)) as file, records_of(path, file, maker, sniff=True):
            pass
    except (OSError, EOFError, ValueError, LookupError) as error:
        raise UnreadableFile(f"can't be read: {one_line(error)}") from error


@dataclass(eq=False)
class ReadFiles(beam.PTransform):
    """Reads files, from the start of a pipeline to :class:`ReadRecords`.

    One worker reads a file. An element contains many events of one file. An event that breaks a rule of the contract
    has a message of its own, with its line, which the decoder refuses. A record for a mapping also has a message, which
    the decoder maps.
    """

    files: Mapping[str, int]
    maker: Maker

    def expand(self, begin: Any) -> Any:  # ReadRecords; Beam takes the annotation for a type hint and warns
        read = (
            begin
            | "Files" >> beam.Create(list(self.files.items()))
            | "SpreadFiles" >> beam.Reshuffle()
            | "Read" >> beam.ParDo(ReadFileFn(self.maker)).with_outputs(REFUSED, REMARKS, main=_MESSAGES)
        )
        return ReadRecords(read[_MESSAGES], read[REFUSED], read[REMARKS])


class ReadFileFn(beam.DoFn):
    """Reads ``(path, size)`` of files: packs events, makes dead letters of refusals, and counts both."""

    def __init__(self, maker: Maker) -> None:
        self._maker = maker
        self._records = metrics.counter(metrics.BACKFILL_RECORDS)
        self._refused = metrics.counter(metrics.BACKFILL_REFUSED_RECORDS)
        self._unreadable = metrics.counter(metrics.BACKFILL_UNREADABLE_FILES)

    def start_bundle(self) -> None:
        self._file = ""
        self._events: list[Event] = []
        self._readings = self._counted = 0

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for events in self._flush():
            yield WindowedValue(events, MIN_TIMESTAMP, [GlobalWindow()])
        self._records.inc(self._counted)

    def process(self, element: tuple[str, int]) -> Iterator[Any]:
        yield from self._flush()
        path, size = element
        self._file = path
        measured = 0
        try:
            with closing(open_file(path)) as file, records_of(path, file, self._maker, sniff=True) as records:
                in_blocks = is_block_format(path)
                for number, record in enumerate(records):
                    if number % _MOST_EVENTS == 0:
                        yield from self._flush()
                        if not in_blocks:
                            METER.note_bytes(file.tell() - measured)
                            measured = file.tell()
                    self._counted += 1
                    if isinstance(record, Event):
                        self._events.append(record)
                        self._readings += len(record.readings)
                        if self._readings >= _MOST_READINGS:
                            yield from self._flush()
                    elif isinstance(record, MappedRecord):
                        yield _message_of(path, record)
                    elif isinstance(record, Remark):
                        self._counted -= 1
                        yield TaggedOutput(REMARKS, (path, record.line, record.text))
                    elif isinstance(record, Refusal):
                        yield self._refuse(path, record)
                    elif record.events:
                        self._events += record.events
                        self._readings += sum(len(event.readings) for event in record.events)
                    else:  # only a mapping can read it
                        yield _message_of(path, MappedRecord(0, record.message))
            METER.note_bytes(size - measured)
        except UnreadableFile as problem:
            if _is_transient(problem.__cause__):
                raise ServerError(f"{path}: {problem}") from problem
            self._unreadable.inc()
            yield TaggedOutput(REMARKS, (path, 0, str(problem)))

    def _flush(self) -> Iterator[CheckedEvents]:
        if self._events:
            yield CheckedEvents({FILE: self._file}, self._events)
            self._events, self._readings = [], 0

    def _refuse(self, file: str, refusal: Refusal) -> Any:
        attributes = {FILE: file, **({LINE: str(refusal.line)} if refusal.line else {})}
        if refusal.data is not None:  # an event, which the decoder refuses with a reason
            return PubsubMessage(refusal.data, {MESSAGE_TYPE: EVENT_TYPE, **attributes})
        self._refused.inc()
        problem = BadData(refusal.code, refusal.reason)
        return TaggedOutput(REFUSED, dead_letter(Message(refusal.record, attributes), problem, READ, datetime.now(UTC)))


def _message_of(file: str, record: MappedRecord) -> PubsubMessage:
    message, line = record.message, {LINE: str(record.line)} if record.line else {}
    return PubsubMessage(message.data, {**message.attributes, FILE: file, **line})


def open_file(path: str) -> Any:
    """Opens a file of stored bytes. Beam must not decompress them: the readers of the formats do."""
    if is_named_pipe(path):  # of which a second reader would get nothing
        raise UnreadableFile("it is a named pipe, not a file")
    try:
        return FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)
    except (BeamIOError, OSError) as error:
        raise UnreadableFile(f"can't be opened: {one_line(error)}") from error


def _is_transient(failure: BaseException | None) -> bool:
    """Whether a retry may succeed: for a broken connection, but not for a damaged file."""
    if type(failure) is OSError and failure.errno is None:  # bz2 and pyarrow raise it for damaged data
        return False
    return isinstance(failure, OSError) and not isinstance(failure, _FINAL)
