"""Runs the examples of mappings: each message of the page becomes the events that the page shows."""

import base64
import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from pipeline.core.decoding.mapping.language.model import JSON, MappingError
from pipeline.core.decoding.mapping.values.descriptors import Descriptors
from pipeline.core.decoding.message_types import Decoded, MappedType
from pipeline.core.events.event import Event
from pipeline.core.events.message import Message
from pipeline.core.events.reasons import Reason
from pipeline.core.notation.times import format_time, parse_time
from pipeline.formats.files import open_records
from pipeline.formats.values import FileColumns
from pipeline.local.fleet import Fleet
from pipeline.local.mapped_fleet import simulate
from tests.core.decoding.mapping.protos import descriptor_set

PAGE = (Path(__file__).parent.parent / "docs/mapping-examples.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
NOW = "2026-02-17T12:00:00Z"
NOT_SIMULATED = {
    "JSON with NaN of an air monitor": "time",
    "Telegraf's line protocol": "*.name",
    "Telegraf's JSON": "*.name",
    "Text values of EdgeX": "*.name",
    "An export of InfluxDB": "readings",
    "The history of Home Assistant": "readings.state",
}

# The part of OpenTelemetry's public protos (Apache License 2.0) that the example reads.
OPENTELEMETRY = """
package opentelemetry.proto.collector.metrics.v1;
message ExportMetricsServiceRequest { repeated ResourceMetrics resource_metrics = 1; }
message ResourceMetrics { Resource resource = 1; repeated ScopeMetrics scope_metrics = 2; }
message Resource { repeated KeyValue attributes = 1; }
message ScopeMetrics { Scope scope = 1; repeated Metric metrics = 2; }
message Scope { string name = 1; }
message Metric {
  string name = 1;
  string unit = 3;
  oneof data { Gauge gauge = 5; Sum sum = 7; Histogram histogram = 9; }
}
message Gauge { repeated NumberDataPoint data_points = 1; }
message Sum { repeated NumberDataPoint data_points = 1; }
message Histogram { repeated HistogramDataPoint data_points = 1; }
message NumberDataPoint {
  fixed64 time_unix_nano = 3;
  oneof value { double as_double = 4; sfixed64 as_int = 6; }
  repeated KeyValue attributes = 7;
}
message HistogramDataPoint {
  fixed64 time_unix_nano = 3;
  fixed64 count = 4;
  optional double sum = 5;
  repeated KeyValue attributes = 9;
}
message KeyValue { string key = 1; AnyValue value = 2; }
message AnyValue { oneof value { string string_value = 1; bool bool_value = 2; int64 int_value = 3; } }
"""


def blocks(section: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", SECTIONS[section], re.DOTALL | re.MULTILINE)


def mapping_of(section: str) -> MappedType:
    """Returns the mapping of a section, compiled against the section's types."""
    (text,) = blocks(section, "toml")
    definitions = blocks(section, "proto") or [OPENTELEMETRY]
    mapped = MappedType("example.toml", text, descriptor_set(definitions[0].removeprefix('syntax = "proto3";\n')))
    mapped.compile()
    return mapped


def encoded(mapped: MappedType, document: dict[str, Any]) -> bytes:
    """Returns the payload of a message in JSON, in which messages stand in the place of the bytes that contain them."""
    if mapped.name == JSON:
        return json.dumps(document).encode()
    for (*parents, last), (name,) in mapped.mapping.types.items():
        inner = document
        for parent in parents:
            inner = inner[parent]
        inner[last] = base64.b64encode(binary(mapped, name, inner[last])).decode()
    return binary(mapped, mapped.name, document)


def binary(mapped: MappedType, name: str, document: dict[str, Any]) -> bytes:
    assert isinstance(mapped.descriptors, bytes)
    message = Descriptors(mapped.descriptors).message_class(name)()
    return json_format.ParseDict(document, message).SerializeToString()


def decoded(mapped: MappedType, payload: bytes, attributes: dict[str, str] | None = None) -> Decoded:
    """Returns what a job makes of a payload."""
    message = Message(payload, attributes or {}, "", datetime.fromisoformat(NOW))
    return mapped.decode(message, parse_time(NOW))


def events_of(result: Decoded) -> list[dict[str, Any]]:
    """Returns the events of a message that is not refused, as the page writes them."""
    assert not result.refused, result.refused
    return [
        {"sensor_id": sensor, "event_time": format_time(time_us), "readings": readings}
        | ({"metadata": metadata} if metadata else {})
        for sensor, time_us, readings, metadata, *_ in result.events
    ]


def listed(text: str) -> list[Any]:
    """Returns the JSON documents of a text."""
    found, position = [], 0
    while text[position:].strip():
        text = text[position:].lstrip()
        document, position = json.JSONDecoder().raw_decode(text)
        found.append(document)
    return found


def attributes_of(section: str) -> dict[str, str]:
    return dict(re.findall(r"With the attribute `(\w+)` set to `([^`]+)`", SECTIONS[section]))


def message_of(section: str) -> dict[str, Any]:
    return json.loads(blocks(section, "json")[0])


MESH = "The envelope of a mesh radio"
PLANT = "The metrics of a production line"
CSV = "A German CSV export"
FILES = "Files of one sensor"
WHOLE_FILES = ["The table of a logger", "An export of InfluxDB", "The history of Home Assistant"]


@pytest.mark.parametrize("section", [section for section in SECTIONS if section not in (CSV, FILES, *WHOLE_FILES)])
def test_the_message_becomes_the_events(section):
    """The page's events are all that the message becomes."""
    mapped, texts = mapping_of(section), blocks(section, "text")  # of messages that are not JSON by the standard
    payload = texts[0].encode() if texts else encoded(mapped, message_of(section))
    result = decoded(mapped, payload, attributes_of(section))
    assert events_of(result) == listed(blocks(section, "json")[-1])
    assert result.skipped == (1 if section == PLANT else 0)  # the metric that is null


@pytest.mark.parametrize("section", [section for section in SECTIONS if section != FILES])
def test_a_simulated_fleet_sends_such_messages(section):
    """Its events are those that the mapping makes of them, with several sensors and times, or the error has the key."""
    mapped = mapping_of(section)
    fleet = Fleet(
        sensors=3, start_us=parse_time(NOW) - 600_000_000, end_us=parse_time(NOW), interval_us=60_000_000, malformed=0.5
    )
    if key := NOT_SIMULATED.get(section):
        with pytest.raises(MappingError, match=rf"^{re.escape(key)}(\.\w+)?: simulate can't"):
            list(simulate(fleet, mapped))
        return
    simulated = list(simulate(fleet, mapped))
    assert {reason for one in simulated for reason in one.reasons} == {Reason.UNPARSEABLE}
    valid = [one for one in simulated if not one.reasons]
    assert len({event.sensor_id for one in valid for event in one.events}) == 3
    for message, events, _ in valid:
        assert message.attributes["message_type"] == mapped.name
        result = mapped.decode(message, parse_time(NOW))
        assert not result.refused
        for meant, made in zip(events, result.events, strict=True):
            assert (meant.sensor_id, meant.event_time.ToMicroseconds()) == made[:2]
            assert meant.readings.items() <= made.readings.items()
            assert meant.metadata.items() <= made.metadata.items()


def test_a_file_can_not_be_simulated():
    """Messages have no file whose name is the sensor."""
    fleet = Fleet(sensors=1, start_us=0, end_us=60_000_000, interval_us=60_000_000)
    with pytest.raises(MappingError, match=r"^sensor: simulate can't set it"):
        simulate(fleet, mapping_of(FILES))


def test_a_packet_of_another_port_is_skipped_before_its_bytes_are_parsed():
    """Also one that is encrypted; neither is a dead letter."""
    mapped = mapping_of(MESH)
    for packet in ({"open": {"port": "PORT_TEXT", "payload": "/////w=="}}, {"encrypted": "/////w=="}):
        result = decoded(mapped, binary(mapped, mapped.name, {"packet": packet}))
        assert (result.events, result.refused, result.skipped) == ([], [], 1)


def test_a_node_without_a_clock():
    """The time is that of reception."""
    mapped, document = mapping_of(MESH), message_of(MESH)
    del document["packet"]["open"]["payload"]["time"]
    (event,) = events_of(decoded(mapped, encoded(mapped, document)))
    assert event["event_time"] == "2026-02-17T10:30:03Z"


@pytest.mark.parametrize(
    ("datatype", "field", "value", "reading"),
    [
        ("INT32", "small", (1 << 32) - 2, -2),
        ("INT64", "large", str((1 << 64) - 3), -3),
        ("UINT32", "small", (1 << 32) - 2, (1 << 32) - 2),
    ],
)
def test_integers_by_their_datatype(datatype, field, value, reading):
    """Two's complement for the signed ones."""
    mapped, document = mapping_of(PLANT), message_of(PLANT)
    document["metrics"] = [{"name": "a", "datatype": f"DATATYPE_{datatype}", field: value}]
    (event,) = events_of(decoded(mapped, encoded(mapped, document), attributes_of(PLANT)))
    assert event["readings"] == {"a": reading}


def read(file: Path, mapped: MappedType) -> list[dict[str, Any]]:
    """Returns the events of a file, as the page writes them."""
    with open_records(file, FileColumns(), mapped=[mapped], metadata_alone=True) as records:
        return [
            {
                "sensor_id": event.sensor_id,
                "event_time": format_time(event.event_time_us),
                "readings": dict(event.readings),
                "metadata": dict(event.metadata),
            }
            for event in records
            if isinstance(event, Event)
        ]


def test_the_export_as_a_file(tmp_path):
    """``publish`` reads it by the mapping, which may leave out text that is no number instead of refusing it."""
    text, (table,) = mapping_of(CSV).text, blocks(CSV, "csv")
    lenient = text.replace("""'"Abfluss (l/s)"'""", """{ path = '"Abfluss (l/s)"', invalid = "drop reading" }""")
    file, wanted = tmp_path / "export.csv", listed(blocks(CSV, "json")[0])
    for mapping, rows in ((text, table), (lenient, table.replace(";3;88;", ";3;kaputt;"))):
        file.write_bytes(rows.replace("\n", "\r\n").encode("cp1252"))
        assert read(file, MappedType("example.toml", mapping)) == [{"metadata": {}} | event for event in wanted]
        wanted[1]["readings"].pop("discharge", None)  # which the second table lacks


def test_a_file_of_one_sensor(tmp_path, monkeypatch):
    """Its name, as the command line has it, is the sensor and metadata of all rows."""
    monkeypatch.chdir(tmp_path)
    (path,) = re.findall(r"^is `([^`]+)`:$", SECTIONS[FILES], re.MULTILINE)
    (file := Path(path)).parent.mkdir(parents=True)
    file.write_text(blocks(FILES, "csv")[0])
    assert read(file, mapping_of(FILES)) == listed(blocks(FILES, "json")[0])


@pytest.mark.parametrize("section", WHOLE_FILES)
def test_a_file_of_a_program(section, tmp_path):
    """``publish`` makes the page's events of the page's file; some have metadata alone."""
    (name,) = re.findall(r"This is `([^`]+)`:", SECTIONS[section].replace("\n", " "))
    (tmp_path / name).write_text(blocks(section, "csv")[0])
    wanted = [{"metadata": {}} | event for event in listed(blocks(section, "json")[0])]
    assert read(tmp_path / name, mapping_of(section)) == wanted
