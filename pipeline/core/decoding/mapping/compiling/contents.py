"""Checks the paths and types under a mapping's ``[types]``: nothing else would notice a misspelled path."""

import difflib
from collections.abc import Mapping

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from pipeline.core.decoding.mapping.language.model import JSON, MappingError
from pipeline.core.decoding.mapping.language.paths import Names
from pipeline.core.decoding.mapping.values.descriptors import Descriptors


def check_contents(contents: Mapping[Names, Names], root: Descriptor, types: Descriptors) -> None:
    """Checks that every path of ``types`` leads to a field, and that every type exists.

    Args:
        contents: the types that a value contains, by the names of its path.
        root: the type of the messages.
        types: the message types.

    Raises:
        MappingError: a path or a type does not exist; the message has the nearest name.
    """
    for names, kinds in contents.items():
        key = f"types.{'.'.join(names)}"
        for kind in kinds:
            if kind != JSON:
                _located(key, kind, types)
        at: list[Descriptor] | None = [root]
        for index, name in enumerate(names):
            if at is None:  # in JSON, every name may exist
                break
            at = _into(key, name, at, contents.get(names[: index + 1]), types)


def _into(
    key: str, name: str, messages: list[Descriptor], contents: Names | None, types: Descriptors
) -> list[Descriptor] | None:
    """Returns the messages that a field leads to; None for a map, a Struct or JSON, in which any name may exist."""
    found = [field for message in messages for field in _fields(message, name)]
    if not found:
        raise _missing(key, name, messages)
    if contents is not None:
        return None if JSON in contents else [_located(key, kind, types) for kind in contents]
    inner = [field.message_type for field in found if field.message_type is not None]
    if any(one.GetOptions().map_entry or one.file.name == "google/protobuf/struct.proto" for one in inner):
        return None
    return inner


def _missing(key: str, name: str, messages: list[Descriptor]) -> MappingError:
    known = [field.name for message in messages for field in message.fields]
    near = difflib.get_close_matches(name, known, n=1)
    where = messages[0].full_name if messages else "a single value"
    return MappingError(key, f"{where} has no field {name!r}" + (f"; did you mean {near[0]}?" if near else ""))


def _fields(message: Descriptor, name: str) -> list[FieldDescriptor]:
    """Returns the field of this name, or all fields of the oneof of this name."""
    if oneof := message.oneofs_by_name.get(name):
        return list(oneof.fields)
    return [message.fields_by_name[name]] if name in message.fields_by_name else []


def _located(key: str, name: str, types: Descriptors) -> Descriptor:
    try:
        return types.descriptor(name)
    except MappingError as error:
        raise MappingError(key, error.problem) from None
