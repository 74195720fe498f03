"""The lines of a file of records, and what becomes of a record that is no event."""

import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple, TextIO, TypeVar

from pipeline.core.formats.values import InvalidEvent, Malformed
from pipeline.proto.sensor_event_pb2 import SensorEvent

_Raw = TypeVar("_Raw")

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


class Lines:
    """The lines of a text, counted. All but the first line of a record that went wrong can be taken again."""

    def __init__(self, text: TextIO) -> None:
        self.first = 1  # the number of the record's first line
        self.last = 0  # that of the line that was taken last
        self._source = self._read(text)
        self._record: list[str] = []
        self._given_back: list[str] = []  # the next one last
        self._failure: Exception | None = None

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._given_back.pop() if self._given_back else next(self._source)
        self._record.append(line)
        self.last += 1
        return line

    def _read(self, text: TextIO) -> Iterator[str]:
        try:
            yield from text
        except UNREADABLE as failure:
            self._failure = failure  # told at the end, when what came before has been used

    def begin_record(self) -> None:
        self._record.clear()
        self.first = self.last + 1

    def give_back(self) -> None:
        """All lines of the record but its first."""
        while len(self._record) > 1:
            self._given_back.append(self._record.pop())
            self.last -= 1

    def raise_failure(self) -> None:
        """Raises UnreadableFile where the lines ended because the rest can't be read."""
        if self._failure is not None:
            beyond = f" beyond line {self.last}" if self.last else ""
            raise UnreadableFile(f"can't be read{beyond}: {self._failure}") from self._failure
