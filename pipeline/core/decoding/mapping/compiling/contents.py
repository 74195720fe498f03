"""Checks what a mapping says about the contents of bytes, text and ``Any``: a misspelled path would open nothing."""

import difflib
from collections.abc import Mapping

from google.protobuf.descriptor import Descriptor

from pipeline.core.decoding.mapping.language.model import JSON, MappingError
from pipeline.core.decoding.mapping.values.descriptors import Descriptors

Names = tuple[str, ...]


def check_contents(contents: Mapping[Names, Names], root: Descriptor, types: Descriptors) -> None:
    """Checks that every path of ``types`` leads to a field, and that every type exists.

    Args:
        contents: by the names of a path, the types that it contains.
        root: the type of the messages.
        types: the message types.

    Raises:
        MappingError: with the nearest name.
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
    """Returns the messages that a field leads to; None if it leads to a map, a Struct or JSON, which any name fits."""
    oneofs = [one.oneofs_by_name[name] for one in messages if name in one.oneofs_by_name]
    found = [one.fields_by_name[name] for one in messages if name in one.fields_by_name]
    found += [field for oneof in oneofs for field in oneof.fields]
    if not found:
        known = [field.name for one in messages for field in one.fields]
        near = difflib.get_close_matches(name, known, n=1)
        where = messages[0].full_name if messages else "a single value"
        raise MappingError(key, f"{where} has no field {name!r}" + (f"; did you mean {near[0]}?" if near else ""))
    if contents is not None:
        return None if JSON in contents else [_located(key, kind, types) for kind in contents]
    inner = [field.message_type for field in found if field.message_type is not None]
    if any(one.GetOptions().map_entry or one.file.name == "google/protobuf/struct.proto" for one in inner):
        return None
    return inner


def _located(key: str, name: str, types: Descriptors) -> Descriptor:
    try:
        return types.descriptor(name)
    except MappingError as error:
        raise MappingError(key, error.problem) from None
