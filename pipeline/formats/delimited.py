"""Length-delimited protobuf as events: before each ``SensorEvent`` stands its length, a varint.

It is what ``writeDelimitedTo`` in Java, ``google.protobuf.proto.serialize_length_prefixed`` in Python and
``SerializeDelimitedToOstream`` in C++ write.
"""

from collections.abc import Iterator
from typing import BinaryIO

from google.protobuf.message import DecodeError

from pipeline.core.events import BadData, Reason
from pipeline.formats.lines import UNREADABLE, Record, Refusal, UnreadableFile, attempt, too_long
from pipeline.formats.values import EventMaker, InvalidEvent
from pipeline.proto.sensor_event_pb2 import SensorEvent

_SKIPPED_AT_ONCE = 1 << 16  # bytes


def delimited_records(content: BinaryIO, maker: EventMaker) -> Iterator[Record]:
    """Every record, valid or not. Ends in UnreadableFile where there is more that can't be told apart."""

    def event(data: bytes) -> SensorEvent:
        try:
            return maker.checked(SensorEvent.FromString(data))
        except DecodeError as error:
            raise InvalidEvent(BadData(Reason.UNPARSEABLE, f"not a SensorEvent: {error}"), data) from error

    number, limit = 0, maker.max_record_bytes
    while True:
        try:
            size = _size(content)
            if size is None:
                return
            data = _taken(content, size) if size <= limit else None
            if data is None:
                _pass_over(content, size)
        except UNREADABLE as failure:
            raise UnreadableFile(f"can't be read beyond record {number}: {failure}") from failure
        number += 1
        yield Refusal(number, too_long(limit)) if data is None else attempt(number, event, data)


def _taken(content: BinaryIO, size: int) -> bytes:
    data = content.read(size)
    if len(data) < size:
        raise EOFError(f"the next has {len(data):,} bytes of {size:,}")
    return data


def _pass_over(content: BinaryIO, size: int) -> None:
    left = size
    while left:
        skipped = len(content.read(min(left, _SKIPPED_AT_ONCE)))
        if not skipped:
            raise EOFError(f"the next has {size - left:,} bytes of {size:,}")
        left -= skipped


def _size(content: BinaryIO) -> int | None:
    """A varint: seven bits a byte, the least first, the eighth says that there are more."""
    size = 0
    for shift in range(0, 70, 7):
        byte = content.read(1)
        if not byte:
            if shift:
                raise EOFError("the length of the next is cut off")
            return None
        size |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return size
    raise EOFError("the length of the next has more than ten bytes")
