"""The lines of a file of records, and what becomes of a record that is no event."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TextIO, TypeVar

from pipeline.core.events import shown
from pipeline.formats.values import MAX_RECORD_BYTES, FileColumns, InvalidEvent, Malformed
from pipeline.proto.sensor_event_pb2 import SensorEvent

_Raw = TypeVar("_Raw")

_SKIPPED_AT_ONCE = 1 << 16  # characters of a line that is too long
_MAX_AGAIN = 1 << 20  # characters of a record whose lines are read once more

UNREADABLE = (OSError, EOFError, zlib.error)
"""What reading a file, or what is compressed in it, may raise."""


class Refusal(NamedTuple):
    """A record that is no valid event.

    Attributes:
        line: its first, counted from 1 as an editor does; in a file without lines, which record it is.
        reason: why.
        data: the event, serialized, where the record is one, if an invalid one; else None.
    """

    line: int
    reason: str
    data: bytes | None = None


class Remark(NamedTuple):
    """What a person should know of a line, although nothing is refused for it."""

    line: int
    text: str


Record = SensorEvent | Refusal | Remark


class UnreadableFile(Exception):
    """The file, or the rest of it, can't be read. ``str()`` is why, in one line without the file's name."""


def attempt(line: int, parse: Callable[[_Raw], SensorEvent], raw: _Raw) -> SensorEvent | Refusal:
    """What ``parse`` makes of a record that begins in that line."""
    try:
        return parse(raw)
    except InvalidEvent as problem:
        return Refusal(line, str(problem), problem.data)
    except Malformed as problem:
        return Refusal(line, str(problem))


def check_columns(names: Sequence[str], columns: FileColumns) -> None:
    """Raises UnreadableFile where the columns of a file lack the two that are needed, or two have one name."""
    there = ", ".join(map(shown, names))
    for wanted in (columns.sensor, columns.time):
        if wanted not in names:
            raise UnreadableFile(f"no column {shown(wanted)}; there are {there}")
    if len(set(names)) < len(names):
        raise UnreadableFile(f"two columns have one name; there are {there}")


def one_line(error: BaseException) -> str:
    """What an error of others says, short and in one line; its type where it says nothing."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def too_long(limit: int) -> str:
    """Why a record that has more bytes than that is refused."""
    return f"longer than {limit:,} bytes, the most that a record may have (--max-record-bytes)"


class TooLong(Malformed):
    """A line, or a record of several lines, has more bytes than a record may have. The line was passed over, unkept."""


class Lines:
    """The lines of a text, counted. All but the first line of a record that went wrong can be taken again.

    Args:
        text: where they come from.
        limit: of a record's bytes. Where a line goes beyond it, TooLong is raised, and the next one can be taken.
    """

    def __init__(self, text: TextIO, limit: int = MAX_RECORD_BYTES) -> None:
        self.first = 1  # the number of the record's first line
        self.last = 0  # that of the line that was taken last
        self._limit = limit
        self._source = self._read(text)
        self._record: list[str | None] = []  # None for a line that was too long
        self._record_length = 0  # in characters, which are no more than its bytes
        self._given_back: list[str | None] = []  # the next one last
        self._failure: Exception | None = None

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._given_back.pop() if self._given_back else next(self._source)
        self._record.append(line)
        self.last += 1
        if line is not None:
            self._record_length += len(line)
            if self._record_length <= self._limit:
                return line
        raise TooLong(too_long(self._limit))

    def _read(self, text: TextIO) -> Iterator[str | None]:
        short = self._limit // 4  # characters, of which each has four bytes at the most
        cut = False  # whether the line before may have been cut between \r and \n
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
                        end = text.readline(_SKIPPED_AT_ONCE)
                    cut = end.endswith("\r")
                    yield None
        except UNREADABLE as failure:
            self._failure = failure  # told at the end, when what came before has been used

    def begin_record(self) -> None:
        self._record.clear()
        self._record_length = 0
        self.first = self.last + 1

    def unread(self) -> None:
        """All lines of the record but its first; of a long one none, or each of them would have all read again."""
        if self._record_length > _MAX_AGAIN:
            return
        while len(self._record) > 1:
            self._given_back.append(self._record.pop())
            self.last -= 1

    def raise_failure(self) -> None:
        """Raises UnreadableFile where the lines ended because the rest can't be read."""
        if self._failure is not None:
            beyond = f" beyond line {self.last}" if self.last else ""
            raise UnreadableFile(f"can't be read{beyond}: {self._failure}") from self._failure


def _bytes_of(line: str) -> int:
    return len(line) if line.isascii() else len(line.encode(errors="surrogateescape"))
