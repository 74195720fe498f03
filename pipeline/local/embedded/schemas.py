"""Pub/Sub's API of schemas, as far as Google's emulator has it: ``google.pubsub.v1.SchemaService``, in Avro alone."""

import io
import json
import re
import time
import uuid
from collections.abc import Iterable
from typing import Any

import fastavro
from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1 import types
from grpc import StatusCode

from pipeline.local.embedded.methods import Service, method
from pipeline.local.embedded.refusals import RequestRefused, invalid, not_built

_NAME = re.compile(r"projects/[a-z][a-z0-9.:-]{4,}[a-z0-9]/(\w+)/(?!goog)[A-Za-z][\w.~+%-]{2,254}", re.ASCII)
_Schema = types.Schema.pb()


def check_name(name: str, kind: str) -> None:
    """Refuses what is not a full name of that kind, such as ``topics``."""
    found = _NAME.fullmatch(name)
    if found is None or found[1] != kind:
        raise invalid(f"Invalid [{kind}] name: (name={name})")


class Schemas(Service):
    """Schemas with their revisions, the oldest first."""

    name = "google.pubsub.v1.SchemaService"

    def __init__(self) -> None:
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

    @method(types.GetSchemaRequest, _Schema)
    async def GetSchema(self, request: Any) -> Any:
        return _viewed(self._found(request.name), request.view)

    @method(types.ListSchemasRequest, types.ListSchemasResponse)
    async def ListSchemas(self, request: Any) -> Any:
        newest = [of[-1] for name, of in sorted(self._revisions.items()) if name.startswith(f"{request.parent}/")]
        return types.ListSchemasResponse.pb()(schemas=[_viewed(each, request.view) for each in newest])

    @method(types.ListSchemaRevisionsRequest, types.ListSchemaRevisionsResponse)
    async def ListSchemaRevisions(self, request: Any) -> Any:
        revisions = [_viewed(each, request.view) for each in self._of(request.name)]
        return types.ListSchemaRevisionsResponse.pb()(schemas=revisions)

    @method(types.DeleteSchemaRequest, Empty)
    async def DeleteSchema(self, request: Any) -> Any:
        self._of(request.name)
        del self._revisions[request.name]
        return Empty()

    @method(types.ValidateSchemaRequest, types.ValidateSchemaResponse)
    async def ValidateSchema(self, request: Any) -> Any:
        _parsed(request.schema)
        return types.ValidateSchemaResponse.pb()()

    @method(types.ValidateMessageRequest, types.ValidateMessageResponse)
    async def ValidateMessage(self, request: Any) -> Any:
        schema = self._found(request.name) if request.name else request.schema
        _check_message(schema, request.message, request.encoding, "Could not parse JSON Avro message")
        return types.ValidateMessageResponse.pb()()

    def check_settings(self, settings: Any) -> None:
        """Refuses a topic's settings whose schema does not exist."""
        if settings.schema not in self._revisions:
            raise RequestRefused(StatusCode.NOT_FOUND, "Schema could not be found")

    def check(self, settings: Any, messages: Iterable[Any]) -> None:
        """Refuses messages that do not conform to a topic's schema; the others receive its attributes."""
        if settings.schema not in self._revisions:
            raise RequestRefused(StatusCode.NOT_FOUND, "Schema associated with topic deleted.")
        schema = self._revisions[settings.schema][-1]
        for message in messages:
            _check_message(schema, message.data, settings.encoding, "Could not parse message")
        for message in messages:
            message.attributes["googclient_schemaname"] = settings.schema
            message.attributes["googclient_schemarevisionid"] = schema.revision_id
            message.attributes["googclient_schemaencoding"] = types.Encoding(settings.encoding).name

    def _added(self, name: str, schema: Any) -> Any:
        revision = _Schema(
            name=name, type_=schema.type_, definition=schema.definition, revision_id=uuid.uuid4().hex[:8]
        )
        revision.revision_create_time.FromNanoseconds(time.time_ns())
        self._revisions[name].append(revision)
        return revision

    def _of(self, name: str) -> list[Any]:
        if name not in self._revisions:
            raise RequestRefused(StatusCode.NOT_FOUND, "Schema not found")
        return self._revisions[name]

    def _found(self, name: str) -> Any:
        name, _, revision_id = name.partition("@")
        found = [each for each in self._of(name) if revision_id in ("", each.revision_id)]
        if not found:
            raise RequestRefused(StatusCode.NOT_FOUND, "Revision not found")
        return found[-1]


def _viewed(schema: Any, view: int) -> Any:
    if view != types.SchemaView.BASIC:
        return schema
    basic = _Schema()
    basic.CopyFrom(schema)
    basic.ClearField("definition")
    return basic


def _parsed(schema: Any) -> Any:
    if schema.type_ != types.Schema.Type.AVRO:
        raise not_built("schemas other than Avro's; neither has Google's emulator")
    try:
        return fastavro.parse_schema(json.loads(schema.definition))
    except (ValueError, fastavro.schema.SchemaParseException) as error:
        raise invalid("Could not parse schema definition") from error


def _check_message(schema: Any, data: bytes, encoding: int, problem: str) -> None:
    parsed = _parsed(schema)
    try:
        if encoding == types.Encoding.JSON:
            list(fastavro.json_reader(io.StringIO(data.decode()), parsed))
        else:
            fastavro.schemaless_reader(io.BytesIO(data), parsed, None)
    except (ValueError, EOFError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise invalid(problem) from error
