"""Reads the lines of a file of records, and turns bad records into refusals."""

import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple, TextIO, TypeVar

from pipeline.core.events.event import Event
from pipeline.core.events.message import Message
from pipeline.core.events.reasons import Reason
from pipeline.formats.values import MAX_RECORD_BYTES, InvalidEvent, Malformed, UnreadableFile

_Raw = TypeVar("_Raw")
_Parsed = TypeVar("_Parsed", bound="Event | Original | MappedRecord")

_CHUNK = 1 << 16  # characters to skip at a time
_MAX_REREAD = 1 << 20  # characters of a malformed record whose lines are read again

UNREADABLE = (OSError, EOFError, zlib.error)
"""The errors of reading or decompressing a file."""


class Refusal(NamedTuple):
    """A record that is not a valid event.

    Attributes:
        line: the record's first line, counted from 1; in a file without lines, the number of the record.
        reason: the problem.
        data: the serialized event, if the record is an invalid event; else None.
        code: the reason of its dead letter, if the record is no event.
        record: the record as a decoder gives it.
    """

    line: int
    reason: str
    data: bytes | None = None
    code: Reason = Reason.UNPARSEABLE
    record: bytes = b""


class Remark(NamedTuple):
    """A note about a line that does not cause a refusal."""

    line: int
    text: str


class MappedRecord(NamedTuple):
    """A record that a mapping turns into events."""

    line: int  # the first one, or the record's number
    message: Message
    is_message: bool = True  # otherwise it was made of the record's columns


class Original(NamedTuple):
    """A message of a file, to be published as it is."""

    message: Message
    events: tuple[Event, ...]  # valid; none if only a mapping can read it
    is_replay: bool = False  # whether it was made of a dead letter


Record = Event | Original | MappedRecord | Refusal | Remark


def parse_or_refuse(line: int, parse: Callable[[_Raw], _Parsed], raw: _Raw) -> _Parsed | Refusal:
    """Parses the record that starts on this line. Returns a Refusal if it is bad."""
    try:
        record = parse(raw)
    except InvalidEvent as problem:
        return Refusal(line, str(problem), problem.data)
    except Malformed as problem:
        return Refusal(line, str(problem), code=problem.reason)
    return record._replace(line=line) if isinstance(record, MappedRecord) else record


def read_varint(read: Callable[[int], bytes]) -> int | None:
    """Reads a number of seven bits a byte, lowest first, whose eighth bit is set if more bytes follow.

    Returns None if nothing is left to read. Raises EOFError for a number that is cut off or has more than ten bytes.
    """
    number = 0
    for shift in range(0, 70, 7):
        byte = read(1)
        if not byte:
            if shift:
                raise EOFError("the length of the next record is cut off")
            return None
        number |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return number
    raise EOFError("the length of the next record has more than ten bytes")


def numbered_records(
    raw: Iterable[_Raw | None],
    damages: tuple[type[Exception], ...],
    parse: Callable[[_Raw], _Parsed],
    limit: int,
    before: int = 0,
) -> Iterator[_Parsed | Refusal]:
    """Yields the records of a file without lines, after ``before`` others.

    ``raw`` yields None for a record beyond the limit. Raises UnreadableFile, with the last number, if ``raw`` raises
    one of ``damages``.
    """
    number, stored = before, iter(raw)
    while True:
        try:
            record = next(stored)
        except StopIteration:
            return
        except damages as error:
            raise UnreadableFile(f"can't be read beyond record {number:,}: {one_line(error)}") from error
        number += 1
        yield Refusal(number, too_long(limit)) if record is None else parse_or_refuse(number, parse, record)


def one_line(error: BaseException) -> str:
    """Returns an error's message, shortened and in one line; its type if the message is empty."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def too_long(limit: int) -> str:
    """Returns the reason to refuse a record with more bytes than the limit."""
    return f"longer than {limit:,} bytes, the most that a record may have (--max-record-bytes)"


class TooLong(Malformed):
    """A line, or a record of several lines, exceeds the limit of a record. The line was skipped."""


class Lines:
    """Counts the lines of a text. All but the first line of a malformed record can be read again.

    A line, or a record, of more bytes than the limit raises TooLong; the next line can be read.
    """

    def __init__(self, text: TextIO, limit: int = MAX_RECORD_BYTES) -> None:
        self.first = 1  # the number of the record's first line
        self.last = 0  # the number of the line that was read last
        self._limit = limit
        self._source = self._read(text)
        self._record: list[str | None] = []  # None for a line that was too long
        self._record_length = 0  # in characters, a lower bound of its bytes
        self._unread: list[str | None] = []  # a stack: the next line is last
        self._failure: Exception | None = None

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._unread.pop() if self._unread else next(self._source)
        self._record.append(line)
        self.last += 1
        if line is not None:
            self._record_length += len(line)
            if self._record_length <= self._limit:
                return line
        raise TooLong(too_long(self._limit))

    def _read(self, text: TextIO) -> Iterator[str | None]:
        short = self._limit // 4  # a character has at most four bytes
        cut = False  # whether the previous line may have been cut between \r and \n
        try:
            for line in iter(partial(text.readline, self._limit + 1), ""):
                if cut and line == "\n":
                    cut = False
                elif len(line) <= short or _bytes_of(line) <= self._limit:
                    cut = False
                    yield line
                else:
                    end = line
                    while end and not end.endswith(("\n", "\r")):
                        end = text.readline(_CHUNK)
                    cut = end.endswith("\r")
                    yield None
        except (*UNREADABLE, UnicodeError) as failure:  # the latter from encodings of several bytes
            self._failure = failure  # raised at the end, after the lines before it have been used

    def begin_record(self) -> None:
        self._record.clear()
        self._record_length = 0
        self.first = self.last + 1

    def unread(self) -> None:
        """Returns to the record's second line; does nothing after a long record, to avoid quadratic rereading."""
        if self._record_length > _MAX_REREAD:
            return
        while len(self._record) > 1:
            self._unread.append(self._record.pop())
            self.last -= 1

    def raise_failure(self) -> None:
        """Raises UnreadableFile if the lines ended because the rest can't be read."""
        if self._failure is not None:
            beyond = f" beyond line {self.last}" if self.last else ""
            raise UnreadableFile(f"can't be read{beyond}: {self._failure}") from self._failure


def _bytes_of(line: str) -> int:
    return len(line) if line.isascii() else len(line.encode(errors="surrogateescape"))
