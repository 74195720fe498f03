"""The schema of the topic of single events matches protos/ on the wire."""

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from pipeline.proto.sensor_event_pb2 import SensorEvent

TERRAFORM = Path(__file__).parent.parent.parent / "templates/terraform"
SCHEMA = TERRAFORM / "sensor_event.schema.proto"


@pytest.fixture(scope="module")
def schema(tmp_path_factory):
    """The schema's descriptor alone; it could not find an import."""
    out = tmp_path_factory.mktemp("schema") / "descriptors"
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{TERRAFORM}", f"--descriptor_set_out={out}", SCHEMA],
        check=True,
    )
    return FileDescriptorSet.FromString(out.read_bytes()).file[0]


@pytest.fixture(scope="module")
def message(schema):
    """The class of the schema's message."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(schema)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("SensorEvent"))


def full_event():
    """Returns an event with every field set."""
    event = SensorEvent(
        sensor_id="balloon-7",
        readings={"temperature": 23.5, "pressure": 94558.0},
        metadata={"location": "north", "model": "ü"},
        event_id="a-1",
    )
    event.event_time.FromJsonString("2026-02-17T10:30:00.123456Z")
    assert {field.name for field, _ in event.ListFields()} == set(SensorEvent.DESCRIPTOR.fields_by_name)
    return event


def shape(descriptor):
    """Returns the fields as on the wire, nested messages included: number, type, repeated, name."""
    return [
        (
            field.number,
            field.type,
            field.is_repeated,
            field.name,
            field.message_type and (field.message_type.GetOptions().map_entry, shape(field.message_type)),
        )
        for field in sorted(descriptor.fields, key=lambda field: field.number)
    ]


def test_the_schema_is_what_the_generator_makes(tmp_path):
    """The committed schema is generated from the current protos/."""
    made = tmp_path / "made.proto"
    subprocess.run([sys.executable, TERRAFORM / "generate_schema.py", made], check=True)
    assert made.read_text() == SCHEMA.read_text(), "run templates/terraform/generate_schema.py"


def test_pubsub_accepts_it(schema):
    """It has one top-level message, no imports, top-level enums or extensions, and is far below 300 KB."""
    assert [message.name for message in schema.message_type] == ["SensorEvent"]
    assert not schema.dependency
    assert not schema.enum_type
    assert not schema.extension
    assert schema.syntax == "proto3"
    assert SCHEMA.stat().st_size < 300_000


def test_fields_are_the_same(message):
    """Number, type, cardinality and name of every field are those of SensorEvent, nested messages included."""
    assert shape(message.DESCRIPTOR) == shape(SensorEvent.DESCRIPTOR)


def test_an_event_passes_both_ways(message):
    """An event with every field set survives parsing and writing with the schema."""
    event = full_event()
    read = message.FromString(event.SerializeToString())
    assert (read.sensor_id, read.event_id) == (event.sensor_id, event.event_id)
    assert (read.event_time.seconds, read.event_time.nanos) == (event.event_time.seconds, event.event_time.nanos)
    assert dict(read.readings) == dict(event.readings)
    assert dict(read.metadata) == dict(event.metadata)
    before = read.ByteSize()
    read.DiscardUnknownFields()
    assert read.ByteSize() == before
    assert SensorEvent.FromString(read.SerializeToString()) == event
