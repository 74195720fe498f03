"""Nodes of message types and of JSON, which paths lead to, and getters of their values.

A getter takes a value and returns what a step leads to, or None if that is not set. Getters of message fields are
merged: an unset message reads as an empty one, so only the last message of a path has to be checked for being set.
"""

import dataclasses
import json
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, repeat
from operator import attrgetter, itemgetter
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError, Message

from pipeline.core.events.invalid_readings import is_left_out
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.device_json import DeviceDecoder
from pipeline.core.notation.documents import StrictDecoder
from pipeline.core.notation.exact_numbers import exact_float, exact_float_of
from pipeline.core.notation.text import shown

_MAX_DEPTH = 100  # of a Struct

Getter = Callable[[Any], Any]
"""Takes a value and returns what a step leads to, or None if that is not set."""


def plain_struct(struct: Any, depth: int = 0) -> dict[str, Any]:
    """Returns a Struct as a dictionary. Raises BadData if it is nested too deeply."""
    return {key: plain_value(value, depth) for key, value in struct.fields.items()}


def plain_list(values: Any, depth: int = 0) -> list[Any]:
    """Returns a ListValue as a list. Raises BadData."""
    return [plain_value(value, depth) for value in values.values]


def plain_value(value: Any, depth: int = 0) -> Any:
    """Returns a Value as one of Python. Raises BadData."""
    if depth > _MAX_DEPTH:
        raise BadData(Reason.UNPARSEABLE, f"a Struct is nested more than {_MAX_DEPTH} levels deep")
    kind = value.WhichOneof("kind")
    match kind:
        case None | "null_value":
            return None
        case "struct_value":
            return plain_struct(value.struct_value, depth + 1)
        case "list_value":
            return plain_list(value.list_value, depth + 1)
        case _:
            return getattr(value, kind)


class ExactInteger(int):
    """An integer that raises BadData if it would be rounded to become a double."""

    def __float__(self) -> float:
        return _exactly(exact_float(int(self)), str(self))


class ExactDigits(str):
    """The digits of an integer, which raise BadData if they would be rounded to become a double."""

    __slots__ = ()

    def __float__(self) -> float:
        return _exactly(exact_float_of(str(self)), str(self))


def _exactly(number: float | None, digits: str) -> float:
    if number is None:
        raise BadData(Reason.INEXACT_INTEGER, f"{shown(digits)} is an integer that a double can't hold exactly")
    return number


def parse_plain(data: str | bytes, where: str, *, exact: bool = False) -> Any:
    """Parses a document of JSON to Python's values: see :func:`parse_documents`. Raises BadData."""
    document, *others = parse_documents(data, where, 2, exact=exact)
    if others:
        raise BadData(Reason.UNPARSEABLE, f"{where} is not JSON, but several documents")
    return document


def parse_documents(data: str | bytes, where: str, most: int, *, exact: bool = False) -> list[Any]:
    """Parses JSON in UTF-8, as devices write it, to Python's values, integers exactly; the first ``most`` documents.

    If ``exact``, integers become :class:`ExactInteger`, and long ones in quotes :class:`ExactDigits`. Raises BadData,
    which begins with ``where``.
    """
    try:
        text = data if isinstance(data, str) else data.decode()
        try:
            documents = [(_EXACT_JSON if exact else _JSON).decode(text)]
        except ValueError:
            documents = list(islice((_EXACT_DEVICE_JSON if exact else _DEVICE_JSON).documents(text), most))
        if exact:
            documents = _with_exact_digits(documents)
        if _SURROGATE.search(text):  # an unpaired one is no character, and can't be stored
            json.dumps(documents, ensure_ascii=False).encode()
        return documents
    except UnicodeEncodeError as error:
        character = error.object[error.start].encode("ascii", "backslashreplace").decode()
        raise BadData(Reason.UNPARSEABLE, f"{where} has {character}, half a character, in a text") from None
    except ValueError as error:  # also of text that is not UTF-8
        problem = " ".join(str(error).split())
        if data[:2] == b"\x1f\x8b":
            problem = 'it is gzip, so the mapping needs compression = "auto"'
        raise BadData(Reason.UNPARSEABLE, f"{where} is not JSON: {problem}") from None


def _integer(text: str) -> int | float:
    # Python refuses integers of thousands of digits; none of them fits a double.
    return int(text) if len(text) < 400 else float(text)


def _with_exact_digits(value: Any) -> Any:
    if type(value) is str:
        return ExactDigits(value) if _LONG_INTEGER.fullmatch(value) else value
    if type(value) is dict:
        return {name: _with_exact_digits(member) for name, member in value.items()}
    return [_with_exact_digits(item) for item in value] if type(value) is list else value


_LONG_INTEGER = re.compile(r"[+-]?[0-9]{16,}")  # shorter ones are below 2^53
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def _exact_integer(text: str) -> ExactInteger | float:
    return ExactInteger(text) if len(text) < 400 else float(text)


_JSON, _DEVICE_JSON = StrictDecoder(_integer), DeviceDecoder(_integer)
_EXACT_JSON, _EXACT_DEVICE_JSON = StrictDecoder(_exact_integer), DeviceDecoder(_exact_integer)


def member(name: str) -> Getter:
    """Returns the getter of a key of an object, or of an element of an array by its number."""
    number = int(name) if name.isascii() and name.isdecimal() and len(name) < 7 else None

    def get(value: Any) -> Any:
        if type(value) is dict:
            return value.get(name)
        if type(value) is list and number is not None and number < len(value):
            return value[number]
        return None

    return get


def plain_element(position: int) -> Getter:
    """Returns the getter of an element of an array by its position; None for what is not an array."""
    return lambda items: items[position] if type(items) is list and -len(items) <= position < len(items) else None


def plain_elements(value: Any) -> list[Any]:
    """Returns the elements of an array, or the members of an object as objects with ``key`` and ``value``.

    Null has none. Raises BadData for anything else.
    """
    if value is None:
        return []
    if type(value) is list:
        return value
    if type(value) is dict:
        return [{"key": key, "value": member} for key, member in value.items()]
    raise BadData(Reason.UNPARSEABLE, f"{shown(str(value))} is neither an array nor an object")


def plain_array(name: str) -> Getter:
    """Returns the getter of an array. It raises BadData for anything else but null."""

    def get(value: Any) -> list[Any] | None:
        if value is not None and type(value) is not list:
            raise BadData(Reason.UNPARSEABLE, f"{name} is {shown(str(value))}, not an array")
        return value

    return get


class ZipRows:
    """Lists that are gone through together: of the elements at each position, a tuple, or with ``names`` an object.

    A list that is None has no elements. Raises BadData if the other lists are not of one length.
    """

    def __init__(self, names: Sequence[str], lists: Sequence[Any], *, named: bool = False) -> None:
        sizes = [(name, len(items)) for name, items in zip(names, lists, strict=True) if items is not None]
        self._size = sizes[0][1] if sizes else 0
        for name, size in sizes:
            if size != self._size:
                problem = f"{sizes[0][0]} has {self._size:,} elements and {name} has {size:,}, but zip pairs them"
                raise BadData(Reason.UNPARSEABLE, problem)
        self._names = names if named else ()
        self._lists = lists

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        rows = zip(*(repeat(None, self._size) if items is None else items for items in self._lists), strict=True)
        return (dict(zip(self._names, row, strict=True)) for row in rows) if self._names else rows


def rows_of(names: Sequence[str], getters: Sequence[Getter]) -> Getter:
    """Returns the getter of the rows of lists."""
    return lambda container: ZipRows(names, [get(container) for get in getters])


def rows_of_arrays(container: Any) -> ZipRows:
    """Returns the rows of all arrays in an object, or in an array. Raises BadData."""
    members = container.items() if type(container) is dict else enumerate(plain_elements(container))
    arrays = {str(name): member for name, member in members if type(member) is list}
    return ZipRows(list(arrays), list(arrays.values()), named=True)


_WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int32", "Int64", "UInt32", "UInt64", "Bool", "String", "Bytes")
)
_PLAIN: dict[str, Getter] = {
    "google.protobuf.Struct": plain_struct,
    "google.protobuf.Value": plain_value,
    "google.protobuf.ListValue": plain_list,
}


@dataclass(frozen=True)
class Leaf:
    """A single value.

    Attributes:
        kind: ``double``, ``float``, ``int``, ``bool``, ``enum``, ``string``, ``bytes``, ``timestamp`` or ``duration``;
            ``json`` for what JSON or a ``google.protobuf.Struct`` contains, of any kind, as Python's values.
        bits: the size of an ``int``.
        is_unsigned: whether an ``int`` is unsigned.
        enum: the descriptor of an ``enum``.
        is_checked: whether parsing refuses bytes in a ``string`` that are not UTF-8. Proto2 does not refuse them, and
            such a value is ``bytes`` in Python.
        can_be_empty: whether empty text is a value; in a field without presence, it counts as not set.
        is_always_set: whether it is a number in a field without presence.
    """

    kind: str
    bits: int = 0
    is_unsigned: bool = False
    enum: EnumDescriptor | None = None
    is_checked: bool = True
    can_be_empty: bool = dataclasses.field(default=True, compare=False)
    is_always_set: bool = dataclasses.field(default=False, compare=False)

    def has(self, number: int) -> bool:
        """Returns whether an ``int`` can be a number."""
        lowest = 0 if self.is_unsigned else -(1 << (self.bits - 1))
        return lowest <= number < lowest + (1 << self.bits)

    def __str__(self) -> str:
        if self.kind == "json":
            return "any value"
        return self.enum.full_name if self.enum else f"{'u' if self.is_unsigned else ''}{self.kind}{self.bits or ''}"


PLAIN = Leaf("json")


@dataclass(frozen=True)
class Record:
    """A message."""

    type: Descriptor

    def __str__(self) -> str:
        return self.type.full_name


@dataclass(frozen=True)
class Many:
    """A repeated field. ``content`` is the getter of what an element stands for."""

    item: "Node"
    content: Getter

    def __str__(self) -> str:
        return f"repeated {self.item}"


@dataclass(frozen=True)
class Entries:
    """A map. ``content`` is the getter of what a value stands for."""

    key: Leaf
    value: "Node"
    content: Getter

    def __str__(self) -> str:
        return f"map of {self.key} to {self.value}"


@dataclass(frozen=True)
class KeyAndValue:
    """An entry of a map, as ``each`` goes through them: its fields are ``key`` and ``value``."""

    key: Leaf
    value: "Node"
    content: Getter

    def __str__(self) -> str:
        return "an entry of a map"


@dataclass(frozen=True)
class ZipRow:
    """The elements of the lists of ``zip`` at one position: their names, nodes, and the fields that lead to each."""

    members: tuple[tuple[str, "Node", tuple[str, ...]], ...]

    def __str__(self) -> str:
        return "the elements of zip at one position"

    def member(self, name: str) -> "Steps":
        """Returns the steps to a member. Raises KeyError."""
        at, node, names = {name: (at, node, names) for at, (name, node, names) in enumerate(self.members)}[name]
        return Steps(node, itemgetter(at), (), names)


Node = Leaf | Record | Many | Entries | KeyAndValue | ZipRow


def node_of(field: FieldDescriptor) -> Node:
    """Returns what a field contains."""
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        key, value = message.fields_by_name["key"], message.fields_by_name["value"]
        return Entries(_single(key), _single(value), content_of(value.message_type))  # type: ignore[arg-type]
    node = _single(field)
    if field.is_repeated:
        return Many(node, content_of(field.message_type))
    if isinstance(node, Leaf) and not field.has_presence:
        is_text = node.kind in ("string", "bytes")
        return dataclasses.replace(node, can_be_empty=not is_text, is_always_set=not is_text)
    return node


_SCALARS = {
    FieldDescriptor.CPPTYPE_INT32: Leaf("int", 32),
    FieldDescriptor.CPPTYPE_INT64: Leaf("int", 64),
    FieldDescriptor.CPPTYPE_UINT32: Leaf("int", 32, is_unsigned=True),
    FieldDescriptor.CPPTYPE_UINT64: Leaf("int", 64, is_unsigned=True),
    FieldDescriptor.CPPTYPE_DOUBLE: Leaf("double"),
    FieldDescriptor.CPPTYPE_FLOAT: Leaf("float"),
    FieldDescriptor.CPPTYPE_BOOL: Leaf("bool"),
}


def _single(field: FieldDescriptor) -> Node:
    if field.message_type is not None:
        return _message(field.message_type)
    if field.enum_type is not None:
        return Leaf("enum", enum=field.enum_type)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return Leaf("bytes")
    return _SCALARS.get(field.cpp_type) or Leaf("string", is_checked=_checks_text(field.file))


@lru_cache(maxsize=1 << 10)
def _checks_text(file: FileDescriptor) -> bool:
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    return proto.syntax == "proto3"


def _message(message: Descriptor) -> Node:
    if message.full_name in _WRAPPERS:
        return _single(message.fields_by_name["value"])
    if message.full_name in _PLAIN:
        return PLAIN
    kind = {"google.protobuf.Timestamp": "timestamp", "google.protobuf.Duration": "duration"}.get(message.full_name)
    return Leaf(kind) if kind else Record(message)


@dataclass(frozen=True)
class Steps:
    """A getter that is being composed: ``get``, then fields of messages that are merged into one step at the end.

    ``get`` is None for the element at which the path begins. ``pending`` are fields of messages, each in the message
    before. ``names`` are the names of the fields that lead to the node from the message.
    """

    to: Node
    get: Getter | None = None
    pending: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def field(self, field: FieldDescriptor, node: Node, content: Getter) -> "Steps":
        """Returns the steps, and then the field of the message that they lead to, with its node and its content."""
        names = (*self.names, field.name)
        if isinstance(node, Record):
            return Steps(node, self.get, (*self.pending, field.name), names)
        return Steps(node, composed(self.get, _read(self.pending, field, node, content)), (), names)

    def then(self, get: Getter, node: Node, name: str = "") -> "Steps":
        """Returns the steps, and then another step, which may have a name."""
        return Steps(node, composed(self.getter, get), (), (*self.names, name) if name else self.names)

    @property
    def getter(self) -> Getter:
        """The whole getter."""
        if not self.pending:
            return self.get or (_any_value if self.to == PLAIN else itself)
        return composed(self.get, _if_set(self.pending[:-1], self.pending[-1]))


def composed(first: Getter | None, second: Getter) -> Getter:
    """Returns a getter that applies the second to what the first returns, unless that is None."""
    if first is None or first is itself:
        return second
    if second is itself:
        return first

    def get(value: Any) -> Any:
        value = first(value)
        return None if value is None else second(value)

    return get


def first_set(getters: Sequence[Getter]) -> Getter:
    """Returns a getter of the first value that is set."""
    if len(getters) == 1:
        return getters[0]

    def get(value: Any) -> Any:
        for one in getters:
            found = one(value)
            if found is not None:
                return found
        return None

    return get


def first_valid(getters: Sequence[Getter]) -> Getter:
    """Returns a getter of the first value that is set and not left out; if none is, of the first that is left out."""

    def get(value: Any) -> Any:
        left_out = None
        for getter in getters:
            result = getter(value)
            if is_left_out(result):
                left_out = result if left_out is None else left_out
            elif result is not None:
                return result
        return left_out

    return get


def itself(value: Any) -> Any:
    """Returns the value: the getter of no steps."""
    return value


def _any_value(value: Any) -> Any:
    """Returns the value, like :func:`itself`. Nothing is read from an element of JSON that is null."""
    return value


def _read(pending: tuple[str, ...], field: FieldDescriptor, node: Node, content: Getter) -> Getter:
    name = field.name
    if isinstance(node, (Many, Entries)):
        return attrgetter(".".join((*pending, name)))
    if field.message_type is not None:
        return composed(_if_set(pending, name), content)
    if field.has_presence:
        return _if_set(pending, name)
    if node.kind in ("string", "bytes"):  # type: ignore[union-attr] # without presence, empty is not set
        read = attrgetter(".".join((*pending, name)))
        return lambda message: read(message) or None
    return composed(_if_set(pending[:-1], pending[-1]), attrgetter(name)) if pending else attrgetter(name)


def _if_set(parents: tuple[str, ...], name: str) -> Getter:
    if not parents:
        return lambda message: getattr(message, name) if message.HasField(name) else None
    parent_of = attrgetter(".".join(parents))

    def get(message: Any) -> Any:
        parent = parent_of(message)
        return getattr(parent, name) if parent.HasField(name) else None

    return get


def content_of(message: Descriptor | None) -> Getter:
    """Returns the getter of a message's value: the content of a well-known type, or the message itself."""
    if message is None:
        return itself
    if message.full_name in _WRAPPERS:
        return attrgetter("value")
    convert = _PLAIN.get(message.full_name)
    return _of_last(convert) if convert else itself


def _of_last(convert: Getter, is_same: Callable[[Any, Any], bool] = operator.is_) -> Getter:
    """Returns a getter that keeps the last result: many paths lead through the same value."""
    last: list[Any] = [None, None]

    def get(value: Any) -> Any:
        if not is_same(value, last[0]):
            last[:] = value, convert(value)
        return last[1]

    return get


def embedded(message: type[Message], where: str) -> Getter:
    """Returns the getter of a message that bytes contain. It raises BadData for bytes that are no such message."""
    name = message.DESCRIPTOR.full_name

    def parse(data: bytes) -> Message:
        try:
            return message.FromString(data)
        except DecodeError as error:
            raise BadData(Reason.UNPARSEABLE, f"{where} is not a {name}: {' '.join(str(error).split())}") from None

    return _of_last(parse, operator.eq)


def packed(message: type[Message], where: str) -> Getter:
    """Returns the getter of a message in an ``Any``; None if that contains another type."""
    name, parse = message.DESCRIPTOR.full_name, embedded(message, where)
    return lambda packed: parse(packed.value) if packed.type_url.rpartition("/")[2] == name else None


_MAY_BE_JSON = re.compile(r"\s*(?:[\[{]|(?:true|false)\s*\Z)")


def embedded_json_or_text(where: str) -> Getter:
    """Returns the getter of the array, object or boolean that a text contains; any other value stays as it is."""
    parse = embedded_json(where)

    def get(value: Any) -> Any:
        if type(value) is not str or not _MAY_BE_JSON.match(value):
            return value
        try:
            return parse(value)
        except BadData:
            return value

    return get


def embedded_json(where: str) -> Getter:
    """Returns the getter of the JSON that text or bytes contain, or each text of an array.

    It raises BadData for what is not JSON.
    """

    def parse(data: Any) -> Any:
        if type(data) is list:
            return [parse(one) for one in data if one is not None]
        if type(data) not in (str, bytes):
            raise BadData(Reason.UNPARSEABLE, f"{where} is no text that contains JSON")
        return parse_plain(data, where)

    return _of_last(parse, operator.eq)


def entry(key: Any, content: Getter) -> Getter:
    """Returns the getter of an entry of a map. Reading a missing entry of a map of messages would create it."""
    return lambda container: content(container[key]) if key in container else None


def entries(container: Any) -> list[tuple[Any, Any]]:
    """Returns the keys and values of a map. Raises BadData for a key of proto2 that is not UTF-8."""
    try:
        return [(key, container[key]) for key in container]
    except UnicodeDecodeError:
        raise BadData(Reason.UNPARSEABLE, "a key of a map is not UTF-8") from None


def element(position: int, content: Getter) -> Getter:
    """Returns the getter of an element of a repeated field by its position."""
    return lambda items: content(items[position]) if -len(items) <= position < len(items) else None


KEY, VALUE = itemgetter(0), itemgetter(1)
