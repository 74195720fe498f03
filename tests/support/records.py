"""Files of records in other programs' formats."""

import io
from collections.abc import Iterable
from pathlib import Path

from google.protobuf import proto

from pipeline.core.events.event import Event
from pipeline.core.events.wire import sensor_event


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
