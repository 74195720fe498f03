"""Files of records, as others write them."""

import io
from collections.abc import Iterable
from pathlib import Path

from google.protobuf import proto

from pipeline.core.events import Event, sensor_event


def delimited(*events: Event) -> bytes:
    """Length-delimited protobuf."""
    file = io.BytesIO()
    for event in events:
        proto.serialize_length_prefixed(sensor_event(*event[:5]), file)
    return file.getvalue()


def write_delimited(path: Path, events: Iterable[Event]) -> Path:
    """Length-delimited protobuf, in a file."""
    path.write_bytes(delimited(*events))
    return path
