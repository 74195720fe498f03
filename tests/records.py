"""Files of records, as others write them."""

from collections.abc import Iterable
from pathlib import Path

from google.protobuf import proto

from pipeline.core.events import Event, sensor_event


def write_delimited(path: Path, events: Iterable[Event]) -> Path:
    """Length-delimited protobuf."""
    with path.open("wb") as file:
        for event in events:
            proto.serialize_length_prefixed(sensor_event(*event[:5]), file)
    return path
