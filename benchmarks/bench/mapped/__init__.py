"""(6) and (7) Tidetable with messages of other types, through mappings: a protobuf, and JSON."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from apache_beam.io.gcp.pubsub import PubsubMessage
from grpc_tools import protoc

from benchmarks.bench import tidetable
from pipeline.cloud.connection.names import TableName
from pipeline.core.events.message import Message, decode

_HERE = Path(__file__).parent


def prepare(messages: list[PubsubMessage], kind: str, *more: str) -> Callable[[TableName], Callable[[], None]]:
    """Returns what ``tidetable.prepare`` does, for the same events in messages of a kind: ``protobuf`` or ``json``."""
    if kind == "json":
        flags = [f"--message_mapping={_HERE / 'json.toml'}"]
        mapped = [_as_json(message) for message in messages]
    else:
        # The built-in type has the same fields under other names, so the bytes are the same.
        flags = [f"--message_mapping={_HERE / 'reports.toml'}", f"--message_descriptors={_descriptors()}"]
        mapped = [PubsubMessage(message.data, {"message_type": "acme.v1.Reports"}) for message in messages]
    return tidetable.prepare(mapped, *flags, *more)


def _descriptors() -> Path:
    path = Path(tempfile.mkdtemp()) / "reports.binpb"
    wanted = ["protoc", f"-I{_HERE}", f"--descriptor_set_out={path}", "--include_imports", "reports.proto"]
    wanted.insert(1, f"-I{Path(protoc.__file__).parent / '_proto'}")
    if protoc.main(wanted):
        raise RuntimeError("protoc refused reports.proto")
    return path


def _as_json(message: PubsubMessage) -> PubsubMessage:
    events = decode(Message(message.data, message.attributes))
    reports = [
        {
            "serial": event.sensor_id,
            "taken_at": event.event_time.ToMicroseconds(),
            "values": dict(event.readings),
        }
        for event in events
    ]
    return PubsubMessage(json.dumps(reports).encode(), {"message_type": "json"})
