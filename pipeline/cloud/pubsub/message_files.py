"""Loads mappings and descriptors of messages from files, local or in a bucket, and from schemas of topics."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pipeline.cloud.connection.names import is_schema_path
from pipeline.core.decoding.mapping.language.model import PLAIN_TYPES, MappingError
from pipeline.core.decoding.mapping.language.parsing import MAX_MAPPING_BYTES
from pipeline.core.decoding.mapping.values.descriptors import MAX_DESCRIPTOR_BYTES, Descriptors, unknown_type
from pipeline.core.decoding.message_types import MappedType, TopicSchema
from pipeline.core.notation.documents import placed, read_bytes, text_of

_OBJECT = re.compile(r"gs://([^/\s]+)/(\S.*)")
_TIMEOUT_S = 10.0
_RETRY_S = 20.0


class DescriptorFile(NamedTuple):
    """Message types, and where they come from.

    Attributes:
        place: the path of a file, or of a schema.
        descriptors: the descriptors in the form that a job takes.
        types: the message types; of a schema, those of its newest revision.
    """

    place: str
    descriptors: bytes | TopicSchema
    types: Descriptors


def load_message_types(mappings: Sequence[str], files: Sequence[DescriptorFile]) -> list[MappedType]:
    """Returns the types that mappings describe, each compiled against the first descriptors that have its type.

    Args:
        mappings: paths of TOML files, local or in a bucket (``gs://…``).
        files: the descriptors, as :func:`load_descriptors` returns them.

    Raises:
        MappingError: a file can't be read, is invalid, or maps what another one maps. The line begins with its path.
        ServerError: a bucket or Pub/Sub is out of reach, or lacks the file or schema.
    """
    loaded = [load_mapping(place, files) for place in mappings]
    check_distinct(loaded)
    return loaded


def load_descriptors(places: Sequence[str]) -> list[DescriptorFile]:
    """Returns the descriptors of each file or schema. Raises as :func:`load_message_types` does.

    Args:
        places: paths of serialized ``FileDescriptorSet``s, local or in a bucket, or of schemas that Pub/Sub holds.
    """
    return [_of_schema(place) if is_schema_path(place) else _of_file(place) for place in places]


def _of_file(place: str) -> DescriptorFile:
    serialized = _read(place, MAX_DESCRIPTOR_BYTES)
    with located(place):
        types = Descriptors(serialized)
        if not any(types.names()):
            raise MappingError("", "it defines no message type; write it with protoc --include_imports")
        return DescriptorFile(place, serialized, types)


def _of_schema(place: str) -> DescriptorFile:
    from pipeline.cloud.pubsub.message_schemas import load_schema  # its client is slow to import

    with located(place):
        schema = load_schema(place)
        *_, newest = schema.revisions.values()
        return DescriptorFile(place, schema, Descriptors(newest))


def load_mapping(place: str, files: Sequence[DescriptorFile]) -> MappedType:
    """Returns the compiled mapping of a file. Raises as :func:`load_message_types` does."""
    mapped = parse_mapping_file(place, files)
    with located(place, mapped.text):
        mapped.compile()
    return mapped


def parse_mapping_file(place: str, files: Sequence[DescriptorFile]) -> MappedType:
    """Returns the mapping of a file with the descriptors of its type, not compiled yet.

    Raises as :func:`load_message_types` does.
    """
    content = _read(place, MAX_MAPPING_BYTES)
    try:
        text = text_of(content)
    except ValueError as error:
        raise MappingError(place, str(error)) from None
    with located(place, text):
        name = MappedType(place, text).name
        return MappedType(place, text, b"" if name in PLAIN_TYPES else with_type(name, files).descriptors)


def check_distinct(loaded: Sequence[MappedType]) -> None:
    """Raises MappingError if two mappings read the same messages."""
    by_name: dict[str, MappedType] = {}
    unmarked: MappedType | None = None
    for mapped in loaded:
        if mapped.mapping.match is not None:
            continue
        if (first := by_name.setdefault(mapped.name, mapped)) is not mapped:
            raise MappingError(mapped.file, f"{first.file} maps {mapped.name} too; tell them apart with match")
        if mapped.mapping.unmarked and unmarked:
            raise MappingError(
                mapped.file, f"{unmarked.file} has unmarked = true too; only one type takes the messages without one"
            )
        unmarked = mapped if mapped.mapping.unmarked else unmarked


@contextmanager
def located(place: str, text: str = "") -> Iterator[None]:
    """Puts the path of a file before the message of a MappingError that is raised in the block.

    Args:
        place: the path.
        text: the file's TOML, to tell the line too.
    """
    try:
        yield
    except MappingError as error:
        raise MappingError(placed(place, text, str(error)), str(error)) from error


def with_type(name: str, files: Sequence[DescriptorFile]) -> DescriptorFile:
    """Returns the first descriptors that have a message type. Raises MappingError with the nearest name."""
    for file in files:
        if file.types.has(name):
            return file
    if not files:
        raise MappingError("message", f"pass the descriptors that define {name}")
    raise MappingError("message", unknown_type(name, [known for file in files for known in file.types.names()]))


def _read(place: str, most: int) -> bytes:
    """Returns the content of a file; of a larger one, one byte more than ``most``."""
    if place.startswith("gs://"):
        return _read_object(place, most)
    try:
        return read_bytes(Path(place), most)
    except ValueError as error:
        raise MappingError(place, str(error)) from error


def _read_object(place: str, most: int) -> bytes:
    from google.cloud.storage import Client  # slow to import
    from google.cloud.storage.retry import DEFAULT_RETRY

    from pipeline.cloud.connection.errors import explained

    found = _OBJECT.fullmatch(place)
    if not found:
        raise MappingError(place, "it is not the path of an object, like gs://my-bucket/message.toml")
    bucket, name = found.groups()
    with explained(place), Client(project=None) as client:
        return (
            client.bucket(bucket)
            .blob(name)
            .download_as_bytes(end=most, timeout=_TIMEOUT_S, retry=DEFAULT_RETRY.with_timeout(_RETRY_S))
        )
