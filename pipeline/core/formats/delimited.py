"""Length-delimited protobuf as events: before each ``SensorEvent`` stands its length, a varint.

It is what ``writeDelimitedTo`` in Java, ``google.protobuf.proto.serialize_length_prefixed`` in Python and
``SerializeDelimitedToOstream`` in C++ write.
"""

from collections.abc import Iterator
from typing import BinaryIO

from google.protobuf.message import DecodeError

from pipeline.core.events import BadData, Reason
from pipeline.core.formats.lines import UNREADABLE, Record, UnreadableFile, attempt
from pipeline.core.formats.values import EventMaker, InvalidEvent
from pipeline.proto.sensor_event_pb2 import SensorEvent

MOST_BYTES = 10_000_000  # of an event: what Pub/Sub takes; a longer one is a length that was misread


def delimited_records(content: BinaryIO, maker: EventMaker) -> Iterator[Record]:
    """Every record, valid or not. Ends in UnreadableFile where there is more that can't be told apart."""

    def event(data: bytes) -> SensorEvent:
        try:
            return maker.checked(SensorEvent.FromString(data))
        except DecodeError as error:
            raise InvalidEvent(BadData(Reason.UNPARSEABLE, f"not a SensorEvent: {error}"), data) from error

    number = 0
    while (data := _next(content, number)) is not None:
        number += 1
        yield attempt(number, event, data)


def _next(content: BinaryIO, number: int) -> bytes | None:
    """The next record's bytes, behind so many others; None at the end."""
    try:
        size = _size(content)
        if size is None:
            return None
        if size > MOST_BYTES:
            raise EOFError(f"the next says that it has {size:,} bytes, and no event has more than {MOST_BYTES:,}")
        data = content.read(size)
        if len(data) < size:
            raise EOFError(f"the next has {len(data):,} bytes of {size:,}")
    except UNREADABLE as failure:
        raise UnreadableFile(f"can't be read beyond record {number}: {failure}") from failure
    return data


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
