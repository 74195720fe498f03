"""Message types from a ``FileDescriptorSet``, as ``protoc --include_imports --descriptor_set_out`` writes it."""

import difflib
import itertools
from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from pipeline.core.decoding.mapping.language.model import MappingError

MAX_DESCRIPTOR_BYTES = 16 << 20

# Sets that were written without --include_imports lack these.
_WELL_KNOWN = {
    module.DESCRIPTOR.name: module.DESCRIPTOR
    for module in (
        any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2, descriptor_pb2,
    )
}  # fmt: skip


class Descriptors:
    """The message types of a serialized set of descriptors, as which it pickles.

    Raises MappingError if the bytes are no such set, are too large, or lack a file that another one imports.
    """

    def __init__(self, serialized: bytes = b"") -> None:
        if len(serialized) > MAX_DESCRIPTOR_BYTES:
            raise MappingError("descriptors", f"they have more than {MAX_DESCRIPTOR_BYTES >> 20} MiB")
        self.serialized = serialized
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(serialized).file
        except DecodeError:
            raise MappingError(
                "descriptors", "they are not a FileDescriptorSet, which protoc --descriptor_set_out writes"
            ) from None
        self._files = {file.name: file for file in files}
        self.pool = descriptor_pool.DescriptorPool()
        self._add_files()

    def __reduce__(self) -> tuple[type["Descriptors"], tuple[bytes]]:
        return Descriptors, (self.serialized,)

    def descriptor(self, name: str) -> Descriptor:
        """Returns the descriptor of a message type by its full name. Raises MappingError with the nearest name."""
        try:
            return self.pool.FindMessageTypeByName(name)
        except KeyError:
            raise MappingError("", unknown_type(name, self.names())) from None

    def has(self, name: str) -> bool:
        """Returns whether there is a message type of this full name."""
        try:
            self.pool.FindMessageTypeByName(name)
        except KeyError:
            return False
        return True

    def message_class(self, name: str) -> type[Message]:
        """Returns the class of a message type by its full name. Raises MappingError."""
        descriptor = self.descriptor(name)
        try:
            return message_factory.GetMessageClass(descriptor)
        except RecursionError:  # it makes the classes of all fields
            raise MappingError("", f"{name} goes through too many other types") from None

    def names(self) -> list[str]:
        """Returns the full names of all message types, nested ones too, without entries of maps."""
        return [name for file in self._files.values() for name in _names(file.package, file.message_type)]

    def _add_files(self) -> None:
        imports = {name: file.dependency for name, file in self._files.items()}
        for name in itertools.chain(*imports.values()):
            if name not in imports and name not in _WELL_KNOWN:
                raise MappingError(
                    "descriptors",
                    f"they lack {name}, which another file imports; write them with protoc --include_imports",
                )
        try:
            for name in TopologicalSorter(imports).static_order():
                self._add_file(name)
        except CycleError as error:
            raise MappingError("descriptors", f"{error.args[1][0]} can't be loaded: it imports itself") from None

    def _add_file(self, name: str) -> None:
        serialized = self._files[name].SerializeToString() if name in self._files else _WELL_KNOWN[name].serialized_pb
        try:
            self.pool.AddSerializedFile(serialized)
        except TypeError as error:  # what the pool raises for a file that contradicts itself or another
            raise MappingError("descriptors", f"{name} can't be loaded: {' '.join(str(error).split())}") from None


def unknown_type(name: str, known: Sequence[str]) -> str:
    """Returns the message that there is no message type of this name, with the nearest one."""
    by_last = [one for one in known if one.rpartition(".")[2] == name.rpartition(".")[2]]
    near = by_last or difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else "pass the descriptors that define it"
    return f"there is no message type {name!r} in the descriptors; {hint}"


def _names(prefix: str, messages: Iterable[descriptor_pb2.DescriptorProto]) -> Iterable[str]:
    for message in messages:
        name = f"{prefix}.{message.name}" if prefix else message.name
        if not message.options.map_entry:
            yield name
            yield from _names(name, message.nested_type)
