"""Three types of messages that are not ours, with what a job needs to read them: a protobuf type, JSON, and lines.

Each encodes events that the tests make. Nothing here uses the mappings.
"""

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from pipeline.core.decoding.mapping.values.descriptors import Descriptors
from pipeline.core.events.message import Message, sensor_event
from pipeline.core.events.reasons import RefusedMessageError
from pipeline.proto.sensor_event_pb2 import SensorEvent
from tests.core.decoding.mapping.protos import descriptor_set

REPORT = "plant.v1.Report"
DESCRIPTORS = descriptor_set("""
package plant.v1;
message Report {
  message Sample {
    fixed32 serial = 1;
    int64 at_us = 2;
    optional sint32 centi_celsius = 3;
    map<string, double> values = 4;
    bool test = 5;
  }
  string line = 1;
  repeated Sample samples = 2;
}
""")
REPORT_MAPPING = """
message = "plant.v1.Report"
each = "samples[]"
skip_if = { path = ".test", is = true }
sensor = "{line}/{.serial:04x}"
time = { path = ".at_us", unit = "us" }
[readings]
temperature = { path = ".centi_celsius", scale = 0.01 }
"*" = ".values.*"
[metadata]
site = "@site"
"""
GATEWAY_MAPPING = """
message = "json"
match = { path = "@source", is = "gateway" }
sensor = "device.id"
time = "at"
[readings]
"*" = "data.*"
[metadata]
firmware = "device.firmware"
"""
DECODER = f"{__name__}:read_lines"


def flags(folder: Path) -> dict[str, str]:
    """Writes the mappings, and returns the flags of a job that reads all types."""
    files = {"report.toml": REPORT_MAPPING, "gateway.toml": GATEWAY_MAPPING}
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "types.binpb").write_bytes(DESCRIPTORS)
    return {
        "message_mapping": ",".join(str(folder / name) for name in files),
        "message_descriptors": str(folder / "types.binpb"),
        "message_decoder": DECODER,
    }


def report_events(chance: random.Random, times_us: Iterable[int]) -> list[SensorEvent]:
    """Returns events such as a report contains."""
    return [
        sensor_event(
            f"hall/{chance.randrange(4):04x}",
            time_us,
            {"temperature": chance.randint(-4000, 4000) / 100} | {f"v{n}": chance.gauss(0, 1) for n in range(n_values)},
            {"site": "north"},
        )
        for time_us in times_us
        for n_values in [chance.randrange(3)]
    ]


def report_of(events: Iterable[SensorEvent]) -> Message:
    """Returns a message of the protobuf type with these events, and with a sample that is not meant to count."""
    report = Descriptors(DESCRIPTORS).message_class(REPORT)(line="hall")
    report.samples.add(serial=1, test=True)
    for event in events:
        values = dict(event.readings)
        sample = report.samples.add(
            serial=int(event.sensor_id.partition("/")[2], 16),
            at_us=event.event_time.ToMicroseconds(),
            centi_celsius=round(values.pop("temperature") * 100),
        )
        sample.values.update(values)
    return Message(report.SerializeToString(), {"message_type": REPORT, "site": "north"})


def gateway_events(chance: random.Random, times_us: Iterable[int]) -> list[SensorEvent]:
    """Returns events such as the gateway sends, each alone."""
    return [
        sensor_event(
            f"g-{chance.randrange(4)}", time_us, {"rssi": -chance.randrange(120), "on": 1.0}, {"firmware": "7"}
        )
        for time_us in times_us
    ]


def gateway_of(event: SensorEvent) -> Message:
    """Returns the JSON message of an event."""
    at = datetime.fromtimestamp(event.event_time.ToMicroseconds() / 1e6, UTC)
    content = {
        "device": {"id": event.sensor_id, "firmware": event.metadata["firmware"]},
        "at": at.replace(microsecond=event.event_time.ToMicroseconds() % 1_000_000).isoformat(),
        "data": {"rssi": event.readings["rssi"], "on": True},
    }
    return Message(json.dumps(content).encode(), {"source": "gateway"})


def line_events(chance: random.Random, times_us: Iterable[int]) -> list[SensorEvent]:
    """Returns events such as a message of lines contains."""
    return [sensor_event(f"l-{chance.randrange(4)}", time_us, {"x": chance.gauss(0, 1)}, {}) for time_us in times_us]


def lines_of(events: Iterable[SensorEvent]) -> Message:
    """Returns a message that only the decoder function can read."""
    lines = [f"{one.sensor_id} {one.event_time.ToMicroseconds()} {one.readings['x']!r}" for one in events]
    return Message("\n".join(lines).encode(), {"message_type": "lines"})


def read_lines(data: bytes, attributes: Mapping[str, str]) -> Iterator[SensorEvent]:
    """Reads what :func:`lines_of` writes."""
    if attributes.get("message_type") != "lines":
        raise RefusedMessageError("the message has no lines")
    for line in data.decode().splitlines():
        sensor, time_us, value = line.split()
        yield sensor_event(sensor, int(time_us), {"x": float(value)}, {})
