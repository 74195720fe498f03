"""The schemas of the topics of single events and of results match protos/ on the wire."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from pipeline.proto.sensor_event_pb2 import SensorEvent
from pipeline.proto.window_result_pb2 import WindowResult

TERRAFORM = Path(__file__).parent.parent.parent / "templates/terraform"
SCHEMAS = {
    SensorEvent: TERRAFORM / "sensor_event.schema.proto",
    WindowResult: TERRAFORM / "window_result.schema.proto",
}
COLUMNS = TERRAFORM / "window_result.bigquery.json"


@pytest.fixture(scope="module", params=SCHEMAS, ids=lambda ours: ours.DESCRIPTOR.name)
def ours(request):
    """Our class of a message."""
    return request.param


@pytest.fixture(scope="module")
def schema(ours, tmp_path_factory):
    """The schema's descriptor alone; it could not find an import."""
    out = tmp_path_factory.mktemp("schema") / "descriptors"
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{TERRAFORM}", f"--descriptor_set_out={out}", SCHEMAS[ours]],
        check=True,
    )
    return FileDescriptorSet.FromString(out.read_bytes()).file[0]


@pytest.fixture(scope="module")
def message(ours, schema):
    """The class of the schema's message."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(schema)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(ours.DESCRIPTOR.name))


def full(ours):
    """Returns a message with every field set."""
    if ours is WindowResult:
        metrics = [{"metric": "t", "count": 2, "statistics": [{"name": "avg", "value": 23.5}], "coverage": 0.5}]
        texts = {
            field: f"a {field}" for field in ("sensor_id", "tier", "window_start", "window_end", "kind", "event_id")
        }
        result = WindowResult(**texts, reading_count=2, metrics=metrics, version=4)
        assert {field.name for field, _ in result.ListFields()} == set(WindowResult.DESCRIPTOR.fields_by_name)
        return result
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


def test_the_schemas_are_what_the_generator_makes(tmp_path):
    """The committed schemas are generated from the current protos/."""
    subprocess.run([sys.executable, TERRAFORM / "generate_schema.py", tmp_path], check=True)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    committed = {path.name: path.read_text() for path in (*SCHEMAS.values(), COLUMNS)}
    assert made == committed, "run templates/terraform/generate_schema.py"


def test_pubsub_accepts_it(ours, schema):
    """It has one top-level message, no imports, top-level enums or extensions, and is far below 300 KB."""
    assert [message.name for message in schema.message_type] == [ours.DESCRIPTOR.name]
    assert not schema.dependency
    assert not schema.enum_type
    assert not schema.extension
    assert schema.syntax == "proto3"
    assert SCHEMAS[ours].stat().st_size < 300_000


def test_fields_are_the_same(ours, message):
    """Number, type, cardinality and name of every field are those of our message, nested messages included."""
    assert shape(message.DESCRIPTOR) == shape(ours.DESCRIPTOR)


def test_a_message_passes_both_ways(ours, message):
    """A message with every field set survives parsing and writing with the schema."""
    original = full(ours)
    read = message.FromString(original.SerializeToString(deterministic=True))
    before = read.ByteSize()
    read.DiscardUnknownFields()
    assert read.ByteSize() == before == original.ByteSize()
    assert ours.FromString(read.SerializeToString()) == original
    for field in ours.DESCRIPTOR.fields:
        if field.type == field.TYPE_STRING and not field.is_repeated:
            assert getattr(read, field.name) == getattr(original, field.name)


def test_bigquery_has_a_column_for_each_field():
    """Columns have the names of the fields, in types that a BigQuery subscription writes to.

    Those are string to STRING and TIMESTAMP, int64 to INTEGER, double to FLOAT, and a message to
    RECORD. Maps, enums and oneofs have restrictions, and are not used. https://cloud.google.com/pubsub/docs/bigquery
    """
    written = {"string": {"STRING", "TIMESTAMP"}, "int64": {"INTEGER"}, "double": {"FLOAT"}, "message": {"RECORD"}}
    kinds = {getattr(FieldDescriptor, f"TYPE_{name.upper()}"): types for name, types in written.items()}

    def check(fields, columns):
        assert [each["name"] for each in columns] == [field.name for field in fields]
        for field, column in zip(fields, columns, strict=True):
            assert column["type"] in kinds[field.type]
            assert (column.get("mode") == "REPEATED") == field.is_repeated
            assert field.containing_oneof is None
            if field.message_type:
                assert not field.message_type.GetOptions().map_entry
                check(field.message_type.fields, column["fields"])

    columns = json.loads(COLUMNS.read_text())
    added = [each["name"] for each in columns[-4:]]
    assert added == ["subscription_name", "message_id", "publish_time", "attributes"]
    check(WindowResult.DESCRIPTOR.fields, columns[:-4])
    assert {each["name"] for each in columns if each["type"] == "TIMESTAMP"} == {
        "window_start", "window_end", "publish_time",
    }  # fmt: skip
