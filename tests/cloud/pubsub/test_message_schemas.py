"""Schemas of topics: every revision is compiled, unknown ones are fetched, and what can't be used is said."""

import pickle
import uuid
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from google.api_core.exceptions import PermissionDenied
from google.cloud.pubsub import SchemaServiceClient
from google.pubsub_v1.types import GetSchemaRequest, ListSchemaRevisionsRequest, ListSchemaRevisionsResponse, Schema

from pipeline.cloud.connection.names import is_schema_path
from pipeline.cloud.connection.problems import ServerError
from pipeline.cloud.pubsub import message_schemas
from pipeline.cloud.pubsub.message_files import load_descriptors, load_message_types
from pipeline.cloud.pubsub.message_schemas import RevisionFetcher, compiled, load_schema
from pipeline.core.decoding.mapping.language.model import MappingError
from pipeline.core.decoding.mapping.values.descriptors import Descriptors
from pipeline.core.decoding.message_types import MappedType
from pipeline.core.events.message import Message
from pipeline.core.events.reasons import BadData, Reason
from tests.support.pubsub import serving_service

FIRST = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Report { string probe = 1; google.protobuf.Timestamp at = 2; double celsius = 3; }
"""
SECOND = FIRST.replace("double celsius = 3;", "double celsius = 3; double kelvin = 4;")
MAPPING = 'message = "Report"\nsensor = "probe"\ntime = "$publish_time"\n[readings]\n"*" = "*"'


PATH = "projects/test-project/schemas/reports"


class SchemaServer:
    """Holds the revisions of a schema in protobuf, as the emulator can't; lists the newest first, one on each page."""

    def __init__(self) -> None:
        self.revisions: list[Schema] = []
        self.gets: list[str] = []
        self.failures: list[grpc.StatusCode] = []
        """Statuses of the next requests."""

    def commit(self, definition: str, kind: Schema.Type = Schema.Type.PROTOCOL_BUFFER) -> str:
        """Adds a revision, and returns its id."""
        number = len(self.revisions)
        id_ = f"{0xFFFFFFFF - number:08x}"  # ids have no order
        created = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number)
        self.revisions.append(
            Schema(name=PATH, type_=kind, definition=definition, revision_id=id_, revision_create_time=created)
        )
        return id_

    def list_revisions(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self._fail(context)
        asked = ListSchemaRevisionsRequest.deserialize(request)
        if asked.name != PATH:
            context.abort(grpc.StatusCode.NOT_FOUND, "Resource not found.")
        page = int(asked.page_token or 0)
        more = str(page + 1) if page + 1 < len(self.revisions) else ""
        found = self.revisions[::-1][page : page + 1]
        return ListSchemaRevisionsResponse.serialize(ListSchemaRevisionsResponse(schemas=found, next_page_token=more))

    def get(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        name = GetSchemaRequest.deserialize(request).name
        self.gets.append(name)
        self._fail(context)
        found = [one for one in self.revisions if name == f"{PATH}@{one.revision_id}"]
        if not found:
            context.abort(grpc.StatusCode.NOT_FOUND, "Schema revision not found.")
        return Schema.serialize(found[0])

    def _fail(self, context: grpc.ServicerContext) -> None:
        if self.failures:
            context.abort(self.failures.pop(0), "not now")


@pytest.fixture
def server(monkeypatch):
    server = SchemaServer()
    methods = {"ListSchemaRevisions": server.list_revisions, "GetSchema": server.get}
    with serving_service("google.pubsub.v1.SchemaService", methods) as address:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", address)
        yield server


def fields(serialized):
    return [field.name for field in Descriptors(serialized).descriptor("Report").fields]


def test_revisions_by_age(server):
    """All revisions are compiled, with what they import; the newest is the last, in whatever order they are listed."""
    ids = [server.commit(FIRST), server.commit(SECOND)]
    schema = load_schema(PATH)
    assert schema.name == PATH
    assert list(schema.revisions) == ids
    assert [fields(serialized)[2:] for serialized in schema.revisions.values()] == [["celsius"], ["celsius", "kelvin"]]


def test_a_revision_that_came_later(server):
    """A revision that the job does not know is fetched once, and messages of it are read by it."""
    server.commit(FIRST)
    mapped = pickle.loads(pickle.dumps(MappedType("m.toml", MAPPING, load_schema(PATH))))  # noqa: S301
    later = server.commit(SECOND)
    report = Descriptors(compiled(SECOND)).message_class("Report")
    data = report(probe="a", celsius=1.5, kelvin=2.5).SerializeToString()
    for _ in range(2):
        message = Message(
            data, {"googclient_schemarevisionid": later, "dead_letter_publish_time": "2026-01-01T00:00:00Z"}
        )
        (event,) = mapped.decode(message, 2**62).events
        assert dict(event.readings) == {"celsius": 1.5, "kelvin": 2.5}
    assert server.gets == [f"{PATH}@{later}"]


@pytest.mark.parametrize(("revision", "requests"), [("0a1b2c3d", 1), ("0a1b/../x@y", 0), ("", 0)])
def test_a_revision_that_does_not_exist(server, revision, requests):
    """It is asked for once, unless it can't be one, and its messages are refused."""
    server.commit(FIRST)
    assert RevisionFetcher(PATH)(revision) is None
    mapped = MappedType("m.toml", MAPPING, load_schema(PATH))
    server.gets.clear()
    for _ in range(2 if revision else 0):
        with pytest.raises(BadData) as refusal:
            mapped.decode(Message(b"", {"dead_letter_googclient_schemarevisionid": revision}), 2**62)
        assert refusal.value.reason is Reason.UNKNOWN_REVISION
        assert PATH in refusal.value.detail
    assert len(server.gets) == requests


def test_a_later_revision_that_cannot_be_used(server):
    """A revision that does not compile, or was changed to another language, refuses its messages."""
    server.commit(FIRST)
    mapped = MappedType("m.toml", MAPPING, load_schema(PATH))
    for revision in (server.commit("message Report {"), server.commit("{}", Schema.Type.AVRO)):
        with pytest.raises(BadData) as refusal:
            mapped.decode(Message(b"", {"googclient_schemarevisionid": revision}), 2**62)
        assert refusal.value.reason is Reason.UNKNOWN_REVISION


def test_a_server_out_of_reach_is_no_refusal(server):
    """What another attempt may not meet again ends the bundle, and the runner tries again."""
    later = server.commit(FIRST)
    fetch = pickle.loads(pickle.dumps(RevisionFetcher(PATH)))  # noqa: S301
    server.failures.append(grpc.StatusCode.PERMISSION_DENIED)  # Google's client itself retries UNAVAILABLE
    with pytest.raises(PermissionDenied):
        fetch(later)
    assert fields(fetch(later))[2:] == ["celsius"]


def test_a_schema_that_does_not_exist(server):
    """One line names it."""
    with pytest.raises(ServerError, match=r"^schema projects/test-project/schemas/other does not exist$"):
        load_schema("projects/test-project/schemas/other")


def test_a_mapping_by_a_schema(server, tmp_path):
    """A schema is loaded like a file: the mapping must hold for its newest revision, and for what older ones have."""
    server.commit(FIRST)
    newest = server.commit(SECOND)
    mapping = tmp_path / "m.toml"
    mapping.write_text(MAPPING.replace('"*" = "*"', 'kelvin = "kelvin"'))
    (mapped,) = load_message_types([str(mapping)], load_descriptors([PATH]))
    assert list(mapped.descriptors.revisions)[-1] == newest
    server.commit(FIRST)
    with pytest.raises(MappingError, match=rf"^{mapping}:5: readings.kelvin: kelvin: Report has no field 'kelvin'"):
        load_message_types([str(mapping)], load_descriptors([PATH]))


@pytest.mark.parametrize(
    ("definition", "problem"),
    [
        ("message Report {", r"1:17: Reached end of input"),
        ('syntax = "proto3"; import "other.proto"; message Report {}', r"other\.proto: File not found"),
        ('syntax = "proto3"; import "../../etc/passwd"; message Report {}', r"etc/passwd"),
        ('syntax = "proto3"; import "schema.proto"; message Report {}', r"imports itself"),
        ("/" * 300_001, r"more than 300,000 bytes"),
    ],
)
def test_definitions_that_do_not_compile(server, definition, problem):
    """The message is one line, and names the revision."""
    id_ = server.commit(definition)
    with pytest.raises(MappingError, match=f"^revision {id_}: .*{problem}") as caught:
        load_schema(PATH)
    assert "\n" not in str(caught.value)


def test_protoc_has_a_deadline(monkeypatch):
    """A definition that takes too long to compile is refused."""
    monkeypatch.setattr(message_schemas, "_COMPILE_SECONDS", 0.0)
    with pytest.raises(ValueError, match="protoc takes longer than 0 s"):
        compiled(FIRST)


def test_a_schema_in_avro(pubsub):
    """Pub/Sub's other kind of schema is refused in a line. The emulator can hold no schemas but these."""
    id_ = f"s{uuid.uuid4().hex}"
    definition = '{"type": "record", "name": "R", "fields": [{"name": "probe", "type": "string"}]}'
    with SchemaServiceClient() as client:
        created = client.create_schema(
            parent="projects/test-project", schema=Schema(type_=Schema.Type.AVRO, definition=definition), schema_id=id_
        )
    with pytest.raises(MappingError, match=rf"^revision {created.revision_id} is an AVRO schema; "):
        load_schema(created.name)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [(PATH, True), ("projects/p/schemas/", False), (f"{PATH}@1", False), ("a/schemas/b", False), ("x.binpb", False)],
)
def test_paths(text, is_one):
    """A schema is named by its full path, without a revision."""
    assert is_schema_path(text) == is_one
