"""The built-in Pub/Sub's schemas are those of Google's emulator: the same requests to both."""

import json
import uuid

import grpc
import pytest
from google.pubsub_v1 import types
from google.pubsub_v1.types import Encoding, Schema, SchemaView

from tests.local.embedded.calls import Calls

AVRO, JSON, BINARY = Schema.Type.AVRO, Encoding.JSON, Encoding.BINARY


def record(**fields):
    """Returns an Avro record's definition."""
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": k, "type": v} for k, v in fields.items()]})


INNER = {"type": "record", "name": "I", "fields": [{"name": "f", "type": "float"}]}
DEFAULT = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "string", "default": "x"}]})
TWICE = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}] * 2})
DEFINITIONS = [
    record(a="string"),
    record(a="string", n=["null", "int"]),
    record(c="bytes", m={"type": "map", "values": "double"}, l={"type": "array", "items": "int"}),
    record(t={"type": "long", "logicalType": "timestamp-micros"}),
    record(r=INNER, x={"type": "fixed", "name": "F", "size": 2}),
    DEFAULT,
    json.dumps({"type": "enum", "name": "E", "symbols": ["X", "Y"]}),
    '"long"',
]
BROKEN = ["", "{", '{"type": "nope"}', record(a="int", b="nope"), TWICE]
MESSAGES = [
    b'{"a": "x"}', b'{"a": 1}', b"{}", b"", b"nope", b'{"a": "x", "n": null}', b'{"a": "x", "n": {"int": 1}}', b"[]",
    b'{"a": "x", "n": 1}', b'{"a": "x", "n": {"string": "1"}}', b'{"c": "\\u00ff", "m": {"k": 1}, "l": [1]}', b"null",
    b'{"c": "x", "m": {"k": "v"}, "l": []}', b'{"c": "x", "m": {}, "l": ["1"]}', b'"X"', b'"Z"', b"5", b'{"t": 1}',
    b'{"t": "1"}', b'{"r": {"f": 1.5}, "x": "ab"}', b'{"r": {"f": 1.5}, "x": "abc"}', b'{"r": {}, "x": "ab"}', b"\xff",
    b'{"a": "x", "z": 1}', b'\n{"a":\n"x"}\n', b'{"a": "x"}{', b"9223372036854775808", b'{"r": {"f": 1}, "x": "ab"}',
    b"\x02a", b"\x02a\x00", b"\x02a\x02\x02", b"\x02", b"\x00", b"\x02\x04", b"\x02a\x00\x00", b"\x00\x00\x80\x3fab",
]  # fmt: skip


@pytest.fixture(scope="module")
def servers(googles, pubsub, embedded):
    return [Calls(pubsub), Calls(embedded)]


@pytest.fixture
def project():
    return f"projects/p-{uuid.uuid4().hex}"


@pytest.mark.parametrize("definition", [*DEFINITIONS, *BROKEN])
def test_messages_of_a_schema(servers, project, definition):
    """Both accept the same definitions, and the same messages of each, in JSON and in binary."""
    schema = {"type_": AVRO, "definition": definition}
    google, built_in = (
        [
            server.code("ValidateSchema", parent=project, schema=schema),
            *[
                server.code("ValidateMessage", parent=project, schema=schema, message=message, encoding=encoding)
                for message in MESSAGES
                for encoding in (JSON, BINARY)
            ],
        ]
        for server in servers
    )
    assert dict(zip([None, *MESSAGES], [google[0], *zip(google[1::2], google[2::2], strict=True)], strict=True)) == (
        dict(zip([None, *MESSAGES], [built_in[0], *zip(built_in[1::2], built_in[2::2], strict=True)], strict=True))
    )


class Story:
    """Requests to a server, and what it answers; a revision is called by its number."""

    def __init__(self, server, project):
        self._server, self._project = server, project
        self._ids = []
        self.told = []

    def run(self):
        """Tells all."""
        name, other = f"{self._project}/schemas/schema-a", f"{self._project}/schemas/schema-b"
        two = {"type_": AVRO, "definition": record(a="string", b="string")}
        one, three = {"type_": AVRO, "definition": DEFINITIONS[0]}, {"type_": AVRO, "definition": record(c="string")}
        create = {"parent": self._project, "schema_id": "schema-a"}
        self.do("CreateSchema", **create, schema=one)
        self.do("CreateSchema", **create, schema=one)
        for schema_id in ("", "x", "googly"):
            self.do("CreateSchema", parent=self._project, schema_id=schema_id, schema=one)
        self.do("CreateSchema", parent="nowhere", schema_id="schema-a", schema=one)
        for kind in (0, Schema.Type.PROTOCOL_BUFFER):
            self.do("CreateSchema", parent=self._project, schema_id="schema-b", schema=one | {"type_": kind})
        self.do("CommitSchema", name=name, schema=two)
        self.do("CommitSchema", name=name, schema=three)
        self.do("CommitSchema", name=name, schema=two | {"definition": "{"})
        self.do("CommitSchema", name=other, schema=two)
        for each in (name, other, f"{name}@{self._ids[0]}", f"{name}@abcdabcd", "nowhere"):
            self.do("GetSchema", name=each)
        self.do("GetSchema", name=name, view=SchemaView.BASIC)
        self.do("CreateSchema", parent=self._project, schema_id="schema-b", schema=one)
        self.do("ListSchemas", parent=self._project)
        self.do("ListSchemas", parent=self._project, page_size=1)
        self.do("ListSchemaRevisions", name=name)
        self.do("ListSchemaRevisions", name=name, page_size=2)
        self.do("ListSchemaRevisions", name=f"{name}x")
        self.topics(name)
        for revision_id in ("", "abcdabcd", self._ids[0]):
            self.do("RollbackSchema", name=name, revision_id=revision_id)
        self.do("RollbackSchema", name=f"{name}x", revision_id="abcdabcd")
        for each in (name, f"{name}@{self._ids[1]}", f"{name}@abcdabcd", other, f"{other}@{self._ids[3]}"):
            self.do("DeleteSchemaRevision", name=each)
        self.do("ListSchemaRevisions", name=name)
        for each in (f"{name}@{self._ids[0]}", name, name):
            self.do("DeleteSchema", name=each)
        self.do("GetTopic", topic=f"{self._project}/topics/topic-0")
        self.do("Publish", topic=f"{self._project}/topics/topic-0", messages=[{"data": b'{"a": "x"}'}])
        self.do("CreateSchema", **create, schema=one)
        self.do("Publish", topic=f"{self._project}/topics/topic-0", messages=[{"data": b'{"a": "x"}'}])

    def topics(self, name):
        """Publishes to topics with several settings, and pulls what they accept."""
        first, second, third = self._ids[:3]
        for number, settings in enumerate(
            [
                {"schema": name, "encoding": JSON},
                {"schema": name, "encoding": BINARY},
                {"schema": name, "encoding": JSON, "first_revision_id": second},
                {"schema": name, "encoding": JSON, "last_revision_id": first},
                {"schema": name, "encoding": JSON, "first_revision_id": third, "last_revision_id": first},
                {"schema": name, "encoding": JSON, "first_revision_id": "abcdabcd"},
                {"schema": name},
                {"encoding": JSON},
                {"schema": f"{name}x", "encoding": JSON},
            ]
        ):
            topic, subscription = (
                f"{self._project}/topics/topic-{number}",
                f"{self._project}/subscriptions/sub-{number}",
            )
            self.do("CreateTopic", name=topic, schema_settings=settings)
            self.do("CreateSubscription", name=subscription, topic=topic)
            for data in (b'{"a": "x"}', b'{"a": "x", "b": "y"}', b'{"c": "z"}', b'{"d": "z"}', b"\x02a", b""):
                self.do("Publish", topic=topic, messages=[{"data": data, "attributes": {"k": "v"}}])
            self.do("Publish", topic=topic, messages=[{"data": b'{"a": "x"}'}, {"data": b"nope"}])
            self.do("Pull", subscription=subscription, max_messages=100, return_immediately=True)

    def do(self, name, /, **fields):
        """Sends a request and notes the answer."""
        try:
            found = self._server.ask(name, **fields)
        except grpc.RpcError as error:
            found = error.code()
        if name in ("CreateSchema", "CommitSchema", "RollbackSchema") and hasattr(found, "revision_id"):
            self._ids.append(found.revision_id)
        self.told.append((name, str(fields), self._comparable(found)))

    def _comparable(self, found):
        if isinstance(found, types.PullResponse.pb()):
            return [
                (each.message.data, self._numbered(str(sorted(each.message.attributes.items()))))
                for each in found.received_messages
            ]
        if isinstance(found, types.PublishResponse.pb()):
            return len(found.message_ids)
        for schema in [found, *getattr(found, "schemas", [])]:
            if hasattr(schema, "revision_create_time"):
                schema.ClearField("revision_create_time")
        if hasattr(found, "next_page_token"):
            found.next_page_token = "more" if found.next_page_token else ""
        return self._numbered(str(found))

    def _numbered(self, text):
        for number, revision_id in enumerate(self._ids):
            text = text.replace(revision_id, f"revision {number}")
        return text


def test_schemas_and_topics(servers, project):
    """Both answer the same requests for schemas, revisions and topics with them alike."""
    google, built_in = (Story(server, project) for server in servers)
    google.run()
    built_in.run()
    for (name, _, expected), (_, fields, found) in zip(google.told, built_in.told, strict=True):
        assert found == expected, (name, fields)
