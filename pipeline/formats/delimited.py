"""Reads events from length-delimited protobuf: ``SensorEvent`` messages, or messages that a mapping reads.

Each message follows its length as a varint.

``writeDelimitedTo`` in Java, ``google.protobuf.proto.serialize_length_prefixed`` in Python and
``SerializeDelimitedToOstream`` in C++ write this format.
"""

from collections.abc import Iterator
from typing import BinaryIO

from google.protobuf.message import DecodeError

from pipeline.core.events.message import Message
from pipeline.core.events.reasons import BadData, Reason
from pipeline.formats import lines
from pipeline.formats.lines import UNREADABLE, MappedRecord, Record, Refusal, UnreadableFile
from pipeline.formats.mapped import MappedMaker
from pipeline.formats.values import EventMaker, InvalidEvent
from pipeline.proto.sensor_event_pb2 import SensorEvent

_CHUNK = 1 << 16  # bytes to skip at a time


def delimited_records(content: BinaryIO, maker: EventMaker | MappedMaker) -> Iterator[Record]:
    """Returns every record, valid or not.

    The iterator raises UnreadableFile if the rest can't be divided into records.

    Raises:
        UnreadableFile: no mapping is for the messages.
    """
    if isinstance(maker, MappedMaker):
        return _mapped(content, maker.protobuf_attributes(), maker.max_record_bytes)
    return _events(content, maker)


def _events(content: BinaryIO, maker: EventMaker) -> Iterator[Record]:
    def event(data: bytes) -> SensorEvent:
        try:
            return maker.checked(SensorEvent.FromString(data))
        except DecodeError as error:
            raise InvalidEvent(BadData(Reason.UNPARSEABLE, f"not a SensorEvent: {error}"), data) from error

    for number, data in _payloads(content, maker.max_record_bytes):
        yield data if isinstance(data, Refusal) else lines.parse_or_refuse(number, event, data)


def _mapped(content: BinaryIO, attributes: dict[str, str], limit: int) -> Iterator[Record]:
    for number, data in _payloads(content, limit):
        yield data if isinstance(data, Refusal) else MappedRecord(number, Message(data, attributes))


def _payloads(content: BinaryIO, limit: int) -> Iterator[tuple[int, bytes | Refusal]]:
    number = 0
    while True:
        try:
            size = lines.read_varint(content.read)
            if size is None:
                return
            data = _read_exactly(content, size) if size <= limit else None
            if data is None:
                _skip(content, size)
        except UNREADABLE as failure:
            raise UnreadableFile(f"can't be read beyond record {number}: {failure}") from failure
        number += 1
        yield number, Refusal(number, lines.too_long(limit)) if data is None else data


def _read_exactly(content: BinaryIO, size: int) -> bytes:
    data = content.read(size)
    if len(data) < size:
        raise EOFError(f"the next record is cut off after {len(data):,} of {size:,} bytes")
    return data


def _skip(content: BinaryIO, size: int) -> None:
    left = size
    while left:
        skipped = len(content.read(min(left, _CHUNK)))
        if not skipped:
            raise EOFError(f"the next record is cut off after {size - left:,} of {size:,} bytes")
        left -= skipped
