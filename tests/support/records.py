"""Files of records in other programs' formats."""

import io
from collections.abc import Iterable
from pathlib import Path

from google.protobuf import proto

from pipeline.core.events.event import Event
from pipeline.core.events.message import sensor_event


def delimited(*events: Event) -> bytes:
    """Returns length-delimited protobuf."""
    file = io.BytesIO()
    for event in events:
        proto.serialize_length_prefixed(sensor_event(*event[:5]), file)
    return file.getvalue()


def write_delimited(path: Path, events: Iterable[Event]) -> Path:
    """Writes length-delimited protobuf to a file."""
    path.write_bytes(delimited(*events))
    return path


def delimited_messages(*messages: bytes) -> bytes:
    """Returns messages as google.protobuf writes them, whatever bytes they contain."""
    return b"".join(_varint(len(message)) + message for message in messages)


def _varint(number: int) -> bytes:
    more = bytearray()
    while number > 0x7F:
        more.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*more, number])
