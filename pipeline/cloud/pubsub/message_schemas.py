"""The schemas that Pub/Sub holds for topics: their revisions, compiled to descriptors."""

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from google.api_core.exceptions import NotFound
from google.cloud.pubsub import SchemaServiceClient
from google.pubsub_v1.types import Schema as Revision
from google.pubsub_v1.types import SchemaView

from pipeline.cloud.connection.errors import explained
from pipeline.core.decoding.mapping.language.model import MappingError
from pipeline.core.decoding.message_types import TopicSchema

# Whoever publishes decides on the attribute of a message that was replayed, so what it names may be anything.
_REVISION = re.compile(r"[0-9A-Za-z_-]{1,40}")
_WARNING = re.compile(r"WARNING|[IW]\d{4} |\S+ warning:")
_MAX_DEFINITION_BYTES = 300_000  # https://cloud.google.com/pubsub/quotas#resource_limits
_TIMEOUT_S = 10.0
_COMPILE_SECONDS = 60.0


def load_schema(path: str) -> TopicSchema:
    """Returns a schema with all of its revisions, the newest last.

    Args:
        path: the path of the schema, ``projects/P/schemas/S``.

    Raises:
        ServerError: there is no such schema, or the server is out of reach.
        MappingError: a revision is not written in protobuf, or is no valid definition.
    """
    with explained(f"schema {path}"), SchemaServiceClient() as client:
        listed = client.list_schema_revisions(
            request={"name": path, "view": SchemaView.FULL}, retry=None, timeout=_TIMEOUT_S
        )
        revisions = sorted(listed, key=lambda revision: revision.revision_create_time)
    return TopicSchema(path, {one.revision_id: _descriptors(one) for one in revisions}, RevisionFetcher(path))


@dataclass(frozen=True)
class RevisionFetcher:
    """Fetches revisions that came later than the job.

    Attributes:
        schema: the path of the schema.
    """

    schema: str

    def __call__(self, revision: str) -> bytes | None:
        """Returns a revision as a serialized ``FileDescriptorSet``; None if there is no such revision.

        Raises:
            MappingError: it is not written in protobuf, or is no valid definition.
            GoogleAPICallError: the server was out of reach. Another attempt may succeed.
        """
        if not _REVISION.fullmatch(revision):
            return None
        with SchemaServiceClient() as client:
            try:
                found = client.get_schema(
                    request={"name": f"{self.schema}@{revision}", "view": SchemaView.FULL}, timeout=_TIMEOUT_S
                )
            except NotFound:
                return None
        return _descriptors(found)


def _descriptors(revision: Revision) -> bytes:
    what = f"revision {revision.revision_id}"
    if revision.type_ != Revision.Type.PROTOCOL_BUFFER:
        raise MappingError("", f"{what} is an {revision.type_.name} schema; a mapping can use those of protobuf only")
    try:
        return compiled(revision.definition)
    except ValueError as error:
        raise MappingError("", f"{what}: {error}") from None


def compiled(definition: str) -> bytes:
    """Returns the serialized ``FileDescriptorSet`` of a ``.proto`` file that imports well-known types at most.

    Raises:
        ValueError: the file is not valid, too large, or takes too long to compile. The message is one line.
        ModuleNotFoundError: there is no compiler; it comes with the extra ``beam``.
    """
    if find_spec("grpc_tools") is None:
        raise ModuleNotFoundError("No module named 'grpc_tools'", name="grpc_tools")
    if len(definition.encode()) > _MAX_DEFINITION_BYTES:
        raise ValueError(f"it has more than {_MAX_DEFINITION_BYTES:,} bytes")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "schema.proto").write_text(definition)
        # A subprocess can time out, and its crash does not end ours. -I ignores modules in the folder.
        command = [sys.executable, "-I", "-m", "grpc_tools.protoc", "-I.", "--include_imports"]
        try:
            run = subprocess.run(
                [*command, "--descriptor_set_out=descriptors", "schema.proto"],
                cwd=folder,
                capture_output=True,
                timeout=_COMPILE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ValueError(f"protoc takes longer than {_COMPILE_SECONDS:g} s") from None
        if run.returncode:
            lines = run.stderr.decode(errors="replace").splitlines()
            errors = [line for line in lines if not _WARNING.match(line)] or [f"protoc ended with {run.returncode}"]
            raise ValueError(errors[0].removeprefix("schema.proto:")[:300])
        return Path(folder, "descriptors").read_bytes()
