"""Pub/Sub's API of schemas, as far as Google's emulator has it: ``google.pubsub.v1.SchemaService``, in Avro alone.

fastavro reads the definitions and binary messages. Its reader of JSON takes more than Avro's own, with which Google
checks messages: fields may be missing, and values may be of other types.
"""

import io
import json
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import fastavro
from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1 import types
from grpc import StatusCode

from pipeline.core.notation.documents import parse_json
from pipeline.local.embedded.resources import check_name, of_project, page
from pipeline.local.embedded.services import RequestRefused, Service, invalid, method, not_built

_TYPES = {"null": type(None), "boolean": bool, "bytes": str, "string": str}
_LIMITS = {"int": 1 << 31, "long": 1 << 63, "float": float("inf"), "double": float("inf")}


class AvroSchema:
    """A schema.

    Args:
        definition: the parsed JSON.

    Raises:
        ValueError: two fields of a record have one name; fastavro raises errors of its own.
    """

    def __init__(self, definition: Any) -> None:
        self._named: dict[str, Any] = {}
        self._parsed = fastavro.parse_schema(definition, self._named)
        for each in self._named.values():
            names = [field["name"] for field in each.get("fields", ())]
            if len(set(names)) < len(names):
                raise ValueError(f"two fields of {each['name']} have one name")

    def accepts(self, message: bytes, encoding: int) -> bool:
        """Returns whether a message begins with a value of the schema, in an encoding of Pub/Sub's."""
        try:
            if encoding == types.Encoding.BINARY:
                fastavro.schemaless_reader(io.BytesIO(message), self._parsed, None)
                return True
            value, _ = json.JSONDecoder().raw_decode(message.decode().lstrip())
            return self._fits(value, self._parsed)
        except (ValueError, EOFError, IndexError, RecursionError):
            return False

    def _fits(self, value: Any, schema: Any) -> bool:
        if isinstance(schema, list):
            return self._fits_union(value, schema)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind in self._named:
            return self._fits(value, self._named[kind])
        if not isinstance(kind, str):
            return self._fits(value, kind)
        if kind in ("record", "error"):
            fields = {field["name"]: field["type"] for field in schema["fields"]}
            return isinstance(value, dict) and all(
                name in value and self._fits(value[name], of) for name, of in fields.items()
            )
        if kind == "map":
            return isinstance(value, dict) and all(self._fits(each, schema["values"]) for each in value.values())
        if kind == "array":
            return isinstance(value, list) and all(self._fits(each, schema["items"]) for each in value)
        if kind == "enum":
            return value in schema["symbols"]
        if kind == "fixed":
            return isinstance(value, str) and len(value) == schema["size"]
        if kind in _TYPES:
            return isinstance(value, _TYPES[kind])
        # Google takes 1.5 for an int.
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LIMITS[kind]

    def _fits_union(self, value: Any, branches: list[Any]) -> bool:
        """Returns whether a value names its branch, as {"string": "x"} does; null stands for itself."""
        if value is None:
            return "null" in branches
        names = {each if isinstance(each, str) else each.get("name", each["type"]): each for each in branches}
        if not isinstance(value, dict) or len(value) != 1:
            return False
        ((name, inner),) = value.items()
        return name in names and self._fits(inner, names[name])


_DELETED_SCHEMA = "_deleted-schema_"
_PROBLEMS = {
    types.Encoding.JSON: "Could not parse JSON Avro message",
    types.Encoding.BINARY: "Could not parse binary Avro message",
}
_Schema = types.Schema.pb()


class Schemas(Service):
    """Schemas with their revisions, the oldest first.

    Args:
        topics: the topics by name; those of a deleted schema keep a mark in its place.
    """

    name = "google.pubsub.v1.SchemaService"

    def __init__(self, topics: Mapping[str, Any]) -> None:
        self._topics = topics
        self._revisions: dict[str, list[Any]] = {}

    @method(types.CreateSchemaRequest, _Schema)
    async def CreateSchema(self, request: Any) -> Any:
        name = f"{request.parent}/schemas/{request.schema_id}"
        check_name(name, "schemas")
        _parsed(request.schema)
        if name in self._revisions:
            raise RequestRefused(StatusCode.ALREADY_EXISTS, "Schema already exists")
        self._revisions[name] = []
        return self._added(name, request.schema)

    @method(types.CommitSchemaRequest, _Schema)
    async def CommitSchema(self, request: Any) -> Any:
        self._of(request.name)
        _parsed(request.schema)
        return self._added(request.name, request.schema)

    @method(types.RollbackSchemaRequest, _Schema)
    async def RollbackSchema(self, request: Any) -> Any:
        self._of(request.name)
        if not request.revision_id:
            raise invalid("Missing revision ID")
        return self._added(request.name, self._found(f"{request.name}@{request.revision_id}"))

    @method(types.GetSchemaRequest, _Schema)
    async def GetSchema(self, request: Any) -> Any:
        return _viewed(self._found(request.name), request.view)

    @method(types.ListSchemasRequest, types.ListSchemasResponse)
    async def ListSchemas(self, request: Any) -> Any:
        found, token = page(of_project(self._revisions, request.parent), request)
        newest = [_viewed(revisions[-1], request.view) for revisions in found]
        return types.ListSchemasResponse.pb()(schemas=newest, next_page_token=token)

    @method(types.ListSchemaRevisionsRequest, types.ListSchemaRevisionsResponse)
    async def ListSchemaRevisions(self, request: Any) -> Any:
        numbered = {f"{number:09}": each for number, each in enumerate(self._of(request.name))}
        found, token = page(numbered, request)
        revisions = [_viewed(each, request.view) for each in found]
        return types.ListSchemaRevisionsResponse.pb()(schemas=revisions, next_page_token=token)

    @method(types.DeleteSchemaRevisionRequest, _Schema)
    async def DeleteSchemaRevision(self, request: Any) -> Any:
        revision = self._found(request.name)
        if len(self._of(revision.name)) == 1:
            raise invalid("Cannot delete last revision. Please use DeleteSchema.")
        if "@" not in request.name:
            raise RequestRefused(StatusCode.NOT_FOUND, "Schema revision not found")
        self._of(revision.name).remove(revision)
        return revision

    @method(types.DeleteSchemaRequest, Empty)
    async def DeleteSchema(self, request: Any) -> Any:
        self._of(request.name)
        del self._revisions[request.name]
        for topic in self._topics.values():
            if topic.schema_settings.schema == request.name:
                topic.schema_settings.schema = _DELETED_SCHEMA
        return Empty()

    @method(types.ValidateSchemaRequest, types.ValidateSchemaResponse)
    async def ValidateSchema(self, request: Any) -> Any:
        _parsed(request.schema)
        return types.ValidateSchemaResponse.pb()()

    @method(types.ValidateMessageRequest, types.ValidateMessageResponse)
    async def ValidateMessage(self, request: Any) -> Any:
        parsed = _parsed(self._found(request.name) if request.name else request.schema)
        if not request.encoding:
            raise invalid("No encoding provided.")
        if not parsed.accepts(request.message, request.encoding):
            raise invalid(_PROBLEMS[request.encoding])
        return types.ValidateMessageResponse.pb()()

    def check_settings(self, settings: Any) -> None:
        """Refuses a topic's settings whose schema or revisions do not exist."""
        if not settings.schema:
            raise invalid("No schema name provided")
        if settings.schema not in self._revisions:
            raise RequestRefused(StatusCode.NOT_FOUND, "Schema could not be found")
        if not settings.encoding:
            raise invalid("Invalid schema encoding provided")
        ids = [revision.revision_id for revision in self._revisions[settings.schema]]
        first, last = settings.first_revision_id or ids[0], settings.last_revision_id or ids[-1]
        if first not in ids or last not in ids:
            raise RequestRefused(StatusCode.NOT_FOUND, "A revision could not be found")
        if ids.index(first) > ids.index(last):
            raise invalid("First revision creation time is after last revision creation time")

    def check(self, settings: Any, messages: Iterable[Any]) -> None:
        """Refuses messages that conform to no revision of a topic's schema; the others receive its attributes."""
        if settings.schema not in self._revisions:
            raise RequestRefused(StatusCode.NOT_FOUND, "Schema associated with topic deleted.")
        revisions = [(revision.revision_id, _parsed(revision)) for revision in self._allowed(settings)]
        for message in messages:
            conforming = (each for each, parsed in revisions if parsed.accepts(message.data, settings.encoding))
            if not (revision_id := next(conforming, "")):
                raise invalid("Could not parse message")
            message.attributes["googclient_schemaname"] = settings.schema
            message.attributes["googclient_schemarevisionid"] = revision_id
            message.attributes["googclient_schemaencoding"] = types.Encoding(settings.encoding).name

    def _allowed(self, settings: Any) -> list[Any]:
        """Returns the revisions that a topic allows, the newest first."""
        revisions = self._revisions[settings.schema]
        ids = [revision.revision_id for revision in revisions]
        first = ids.index(settings.first_revision_id) if settings.first_revision_id in ids else 0
        last = ids.index(settings.last_revision_id) if settings.last_revision_id in ids else len(ids) - 1
        return revisions[first : last + 1][::-1]

    def _added(self, name: str, schema: Any) -> Any:
        revision = _Schema(
            name=name, type_=schema.type_, definition=schema.definition, revision_id=uuid.uuid4().hex[:8]
        )
        revision.revision_create_time.FromNanoseconds(time.time_ns())
        self._revisions[name].append(revision)
        return revision

    def _of(self, name: str) -> list[Any]:
        check_name(name, "schemas")
        if name not in self._revisions:
            raise RequestRefused(StatusCode.NOT_FOUND, "Schema not found")
        return self._revisions[name]

    def _found(self, name: str) -> Any:
        name, _, revision_id = name.partition("@")
        found = [each for each in self._of(name) if revision_id in ("", each.revision_id)]
        if not found:
            raise RequestRefused(StatusCode.NOT_FOUND, "Schema revision not found")
        return found[-1]


def _viewed(schema: Any, view: int) -> Any:
    if view != types.SchemaView.BASIC:
        return schema
    basic = _Schema()
    basic.CopyFrom(schema)
    basic.ClearField("definition")
    return basic


def _parsed(schema: Any) -> AvroSchema:
    if schema.type_ == types.Schema.Type.PROTOCOL_BUFFER:
        raise not_built("schemas of protocol buffers; neither has Google's emulator")
    if schema.type_ != types.Schema.Type.AVRO:
        raise invalid("Invalid schema type")
    try:
        return AvroSchema(parse_json(schema.definition))
    except (ValueError, fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise invalid("Could not parse schema definition") from error
