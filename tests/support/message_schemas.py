"""A Pub/Sub server with schemas in protobuf, which the emulator can't hold."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import grpc
from google.pubsub_v1.types import GetSchemaRequest, ListSchemaRevisionsRequest, ListSchemaRevisionsResponse, Schema

from tests.support.pubsub import serving_service

PATH = "projects/test-project/schemas/reports"


class SchemaServer:
    """Holds the revisions of the schema ``PATH``; lists the newest first, one on each page."""

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


@contextmanager
def serving_schemas() -> Iterator[tuple[SchemaServer, str]]:
    """Runs the server; yields it and its address."""
    one = SchemaServer()
    methods = {"ListSchemaRevisions": one.list_revisions, "GetSchema": one.get}
    with serving_service("google.pubsub.v1.SchemaService", methods) as address:
        yield one, address
