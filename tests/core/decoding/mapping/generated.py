"""Strategies of message types, messages, and mappings of them."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import strategies as st

from pipeline.core.decoding.mapping.values.descriptors import Descriptors

ROOT = "random.M0"
PUBLISHED = "2026-02-17T10:30:00Z"
_SCALARS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 15, 16, 17, 18)  # FieldDescriptor.TYPE_… that are no messages or enums
_MAP_KEYS = (3, 4, 5, 8, 9, 13, 15, 17)
_WELL_KNOWN = ["Timestamp", "Duration", "DoubleValue", "Int64Value", "BoolValue", "StringValue"] + [
    "Struct",
    "Value",
] * 2
_MESSAGE, _ENUM = 11, 14
_TEXTS = st.sampled_from(["", "a", "b c", "a.b", "é", "7", "7x", "x"])


@st.composite
def types(draw, names: Sequence[str] = ()) -> Descriptors:
    """Draws a few message types, all with the fields ``id`` and ``t``. Each refers only to those after it.

    With names, the other fields have them, and a type may contain any type, also itself.
    """
    file = descriptor_pb2.FileDescriptorProto(name="random.proto", package="random", syntax="proto3")
    imported = ("any", "timestamp", "duration", "struct", "wrappers")
    file.dependency[:] = [f"google/protobuf/{name}.proto" for name in imported]
    enum = file.enum_type.add(name="E")
    for name, number in (("ZERO", 0), ("ONE", 1), ("BIG", 77)):
        enum.value.add(name=name, number=number)
    count = draw(st.sampled_from([1, 2, 3, 3, 4]))
    for index in range(count):
        message = file.message_type.add(name=f"M{index}")
        message.field.add(name="id", number=1, type=9, label=1)
        message.field.add(name="t", number=2, type=3, label=1)
        in_oneof = draw(st.integers(0, 3))
        if in_oneof > 1:
            message.oneof_decl.add(name="one")
        size = draw(st.sampled_from([1, 2, 3, 4, 5]))
        named = st.lists(st.sampled_from(names), min_size=size, max_size=size, unique_by=str.lower)
        for number, name in enumerate(draw(named) if names else [f"f{number}" for number in range(size)]):
            field = message.field.add(name=name, number=number + 3, label=1)
            others = range(count) if names else range(index + 1, count)
            _fill_type(draw, field, others, [*_WELL_KNOWN, *(("ListValue", "Any") if names else ())])
            kind = draw(st.sampled_from(["plain", "optional", "repeated", "map"]))
            if in_oneof > 1 and number < in_oneof:
                field.oneof_index = 0
            elif kind == "repeated":
                field.label = 3
            elif kind == "map":
                _make_map(draw, message, field)
        if index + 1 < count:  # so that most types have elements
            message.field.add(name="deeper", number=20, label=3, type=_MESSAGE, type_name=f".random.M{index + 1}")
        if draw(st.booleans()):  # lists that zip can go through
            message.field.add(name="xs", number=21, label=3, type=1)
            message.field.add(name="ys", number=22, label=3, type=3)
        # Oneofs that stand for presence come after all others.
        for number, field in enumerate(message.field):
            may_be_optional = field.label == 1 and not field.HasField("oneof_index") and field.type != _MESSAGE
            if may_be_optional and number > 1 and draw(st.booleans()):
                field.proto3_optional = True
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field.name}")
    return Descriptors(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())


def _fill_type(draw, field: Any, others: range, well_known: list[str]) -> None:
    choice = draw(st.sampled_from(["scalar", "scalar", "message", "message", "well-known", "enum"]))
    if choice == "message" and others:
        field.type, field.type_name = _MESSAGE, f".random.M{draw(st.sampled_from(others))}"
    elif choice == "well-known":
        field.type, field.type_name = _MESSAGE, f".google.protobuf.{draw(st.sampled_from(well_known))}"
    elif choice == "enum":
        field.type, field.type_name = _ENUM, ".random.E"
    else:
        field.type = draw(st.sampled_from(_SCALARS))


def _make_map(draw, message: Any, field: Any) -> None:
    name = "".join(word[:1].upper() + word[1:] for word in field.name.split("_")) + "Entry"
    entry = message.nested_type.add(name=name)
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=1, type=draw(st.sampled_from(_MAP_KEYS)))
    entry.field.add(name="value", number=2, label=1, type=field.type, type_name=field.type_name or None)
    field.label, field.type, field.type_name = 3, _MESSAGE, f".random.{message.name}.{name}"


_TIMES = (20_501, 46_070, 1_771_324_200, 1_771_324_199_999, 1_600_000_000, 946_684_800)  # in days, s or ms
_integers = st.integers(-5, 5) | st.sampled_from([1 << 53, (1 << 53) + 1, -(1 << 53) - 1, 1 << 62, (1 << 63) - 1])
_doubles = st.floats(-1e6, 1e6) | st.sampled_from([0.0, math.inf, -math.inf, math.nan, 0.1])
plain_values = st.recursive(
    st.none() | st.booleans() | st.floats(-1e6, 1e6) | _TEXTS,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b", "a.b", "0"]), inner, max_size=2)
    ),
    max_leaves=8,
)

_names = st.sampled_from(["a", "b", "a.b", "0"])
_columns = st.lists(st.tuples(st.floats(-9, 9) | _TEXTS, st.integers(0, 2) | st.none()), max_size=3).map(
    lambda rows: {"a": [x for x, _ in rows], "a.b": [y for _, y in rows], "0": [{"a": y} for _, y in rows]}
)
_numbers = st.integers(-3, 3) | st.sampled_from([math.nan, math.inf, -math.inf])
json_documents = (
    _columns
    | st.fixed_dictionaries({"a": st.lists(_columns, max_size=2) | _columns, "a.b": _columns})
    | st.dictionaries(_names, plain_values | _numbers, min_size=2)
    | st.lists(st.dictionaries(_names, plain_values | st.booleans(), min_size=1, max_size=3), min_size=1, max_size=3)
)
"""Objects, or arrays of them."""


@st.composite
def messages(draw, types: Descriptors) -> Any:
    """Draws a message of the first type."""
    message = types.message_class(ROOT)()
    _fill(draw, message)
    return message


def _fill(draw, message: Any) -> None:
    for field in message.DESCRIPTOR.fields:
        name = field.name
        if not draw(st.integers(0, 5)):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields
            container = getattr(message, name)
            for one in draw(st.lists(_scalar(key), max_size=3)):
                if value.message_type is not None:
                    _fill_message(draw, container[one])
                else:
                    container[one] = draw(_scalar(value))
        elif field.is_repeated:
            for _ in range(draw(st.sampled_from([0, 1, 2, 2, 3]))):
                if field.message_type is not None:
                    _fill_message(draw, getattr(message, name).add())
                else:
                    getattr(message, name).append(draw(_scalar(field)))
        elif field.message_type is not None:
            getattr(message, name).SetInParent()
            _fill_message(draw, getattr(message, name))
        elif name == "t":
            setattr(message, name, draw(_scalar(field) | st.sampled_from(_TIMES)))
        else:
            setattr(message, name, draw(_scalar(field)))


def _fill_message(draw, message: Any) -> None:
    name = message.DESCRIPTOR.name
    if message.DESCRIPTOR.file.package == "random":
        _fill(draw, message)
    elif name in ("Timestamp", "Duration"):
        message.seconds, message.nanos = draw(st.integers(0, 2_000_000_000)), draw(st.integers(0, 999_999_999))
    elif name == "Struct":
        message.update(draw(st.dictionaries(st.sampled_from(["a", "b", "a.b"]), plain_values, max_size=3)))
    elif name == "Value":
        holder = type(message)().struct_value  # what converts Python's values
        holder.update({"v": draw(plain_values)})
        message.CopyFrom(holder.fields["v"])
    else:
        message.value = draw(_scalar(message.DESCRIPTOR.fields[0]))


def _scalar(field: FieldDescriptor) -> st.SearchStrategy:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return _TEXTS if field.type == FieldDescriptor.TYPE_STRING else st.binary(max_size=3)
        case FieldDescriptor.CPPTYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.CPPTYPE_ENUM:
            return st.sampled_from([0, 1, 77, 5])
        case FieldDescriptor.CPPTYPE_DOUBLE:
            return _doubles
        case FieldDescriptor.CPPTYPE_FLOAT:
            return st.floats(width=32)
    bits = 64 if field.cpp_type in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64) else 32
    lowest = (
        0 if field.cpp_type in (FieldDescriptor.CPPTYPE_UINT64, FieldDescriptor.CPPTYPE_UINT32) else -(1 << (bits - 1))
    )
    return _integers.map(lambda value: lowest + (value - lowest) % (1 << bits))


class Way(NamedTuple):
    """A path that was drawn, its keys and positions in the JSON form, and the kind, see :func:`kind_of`, at its end.

    ``level`` is the level of elements at which it is read; ``is_one``: it selects one element of several.
    """

    text: str
    steps: tuple[Any, ...]
    node: Any
    names: tuple[str, ...] = ()
    level: int = 0
    is_one: bool = False


def kind_of(field: FieldDescriptor) -> Any:
    """Returns what a field contains: a name of a kind, a Descriptor, or a tuple of ``list`` or ``map`` and those."""
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        key, value = message.fields
        return "map", _single_kind(value), key.type == FieldDescriptor.TYPE_STRING
    if field.is_repeated:
        return "list", _single_kind(field)
    kind = _single_kind(field)
    has_empty = message is not None or field.has_presence
    return kind if has_empty else {"string": "text", "bytes": "blob"}.get(kind, kind)


def _single_kind(field: FieldDescriptor) -> Any:
    message = field.message_type
    if message is None:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return "bytes"
        kinds = {9: "string", 8: "enum", 7: "bool", 6: "float", 5: "double"}
        return kinds.get(field.cpp_type, "int")
    if message.file.package == "random":
        return message
    if message.name.endswith("Value") and message.name != "Value":
        return _single_kind(message.fields_by_name["value"])
    return {"Timestamp": "timestamp", "Duration": "duration"}.get(message.name, "plain")


def _reachable(start: Way) -> list[Way]:
    """Returns the ways that begin at a place and have up to three steps."""
    found, ends = [], [start]
    for _ in range(3):
        ends = [following for end in ends for following in _following(end)][:100]
        found += ends
    return found


@st.composite
def _ways(draw, start: Way, wanted: Callable[[Any], bool]) -> Way | None:
    found = [way for way in [start, *_reachable(start)] if way.text and wanted(way.node)]
    return draw(st.sampled_from(found)) if found else None


def _following(at: Way) -> Iterator[Way]:
    dot = "" if at.text in ("", ".") else "."
    match at.node:
        case Descriptor() as message:
            for field in message.fields:
                yield _step(at, f'{dot}"{field.name}"', field.name, kind_of(field))
        case ("list", item):
            for position in (0, -1, 2):
                yield _step(at, f"[{position}]", position, item)._replace(names=at.names, is_one=True)
        case ("map", value, True):
            for key in ("a", "a.b"):
                yield _step(at, f'{dot}"{key}"', key, value)
        case ("pair", value):
            yield _step(at, f"{dot}value", "value", value)
        case ("row", *members):
            for name, item, names in members:
                yield _step(at, f'{dot}"{name}"', name, item)._replace(names=names)
        case "plain":
            for key in ("a", "a.b", "0"):
                yield _step(at, f'{dot}"{key}"', key, "plain")
            yield _step(at, "[-1]", -1, "plain")._replace(names=at.names, is_one=True)


def _step(at: Way, text: str, step: Any, node: Any) -> Way:
    return at._replace(text=at.text + text, steps=(*at.steps, step), node=node, names=(*at.names, str(step)))


class Entry(NamedTuple):
    """An entry of a mapping: a star if ``deep`` is not None, below the name ``s.`` if ``is_below``.

    With ``has_units``, an x behind a number doubles it. With ``unless_published``, the event's time has to be another.
    """

    name: str
    way: Way
    is_reading: bool
    deep: bool | None = None
    values: tuple[tuple[str, float], ...] = ()
    valid: tuple[float, float] | None = None
    is_below: bool = False
    has_units: bool = False
    unless_published: bool = False


class Clock(NamedTuple):
    """What a mapping declares of a time, as TOML and in microseconds."""

    text: str
    unit_us: int
    epoch_us: int
    length_us: int
    from_us: int
    age_us: int


@st.composite
def _clocks(draw) -> Clock:
    chosen = [
        draw(st.sampled_from(keys))
        for keys in (
            [("unit = 'ms'", 1000), ("unit = 's'", 1_000_000), ("unit = 'd'", 86_400_000_000)],
            [("", 0), ("epoch = '1899-12-30'", -2_209_161_600_000_000), ("epoch = '2000-01-01'", 946_684_800_000_000)],
            [("", 0), ("", 0), ("stamps = 'end', length = '15m'", 900_000_000)],
            [("", -math.inf), ("", -math.inf), ("valid_from = '2020-01-01'", 1_577_836_800_000_000)],
            [("", math.inf), ("", math.inf), ("max_age = '30d'", 2_592_000_000_000)],
        )
    ]
    return Clock(", ".join(text for text, _ in chosen if text), *(number for _, number in chosen))


class Drawn(NamedTuple):
    """A mapping that was drawn, with the ways to the elements of each level, from the level above.

    ``skip`` is the way to a boolean that leaves out an element, ``claims`` the names that stars leave out, ``last`` the
    innermost element. With ``is_null``, readings that are no numbers are left out.
    """

    text: str
    each: tuple[Way, ...]
    entries: tuple[Entry, ...]
    skip: Way | None
    claims: frozenset[tuple[str, ...]]
    last: Way
    rounds: bool
    is_null: bool
    clock: Clock
    plus: Way | None
    step_us: int


NUMBERS = ("double", "float", "int", "bool", "enum", "duration", "plain")
TEXTS = ("double", "float", "int", "bool", "enum", "string", "text", "bytes", "blob", "plain")


def _is_many(node: Any) -> bool:
    return _is(node, "list", "map")


def _is(node: Any, *kinds: str) -> bool:
    return isinstance(node, tuple) and node[0] in kinds


def _is_many_messages(node: Any) -> bool:
    return _is_many(node) and isinstance(node[1], Descriptor)


def _has_elements(node: Any) -> bool:
    return node == "plain" or _is_many(node)


def _element_of(node: Any) -> Any:
    if node == "plain":
        return node
    return ("pair", node[1]) if node[0] == "map" else node[1]


def _has_members(node: Any) -> bool:
    return node == "plain" or isinstance(node, Descriptor) or _is(node, "list", "map", "row")


def _lists_of(way: Way) -> list[Way]:
    """Returns the lists of a message type, which a star of ``zip`` stands for."""
    fields = way.node.fields if isinstance(way.node, Descriptor) else ()
    return [_step(way, "", field.name, kind_of(field)) for field in fields if _is(kind_of(field), "list")]


@st.composite
def _zipped(draw, around: Way) -> tuple[str, Way, Way] | None:
    """Draws lists that are gone through together: what ``zip`` is, the way to the rows, and a row."""
    level, most = around.level + 1, draw(st.sampled_from([1, 1, 2]))
    found = [way for way in [around, *_reachable(around)] if not way.is_one and len(way.steps) <= most]
    if draw(st.booleans()):
        found = [way for way in found if way.node == "plain" or _lists_of(way)]
        if not found:
            return None
        way = draw(st.sampled_from(found))
        text, lists = f"'{way.text}{'.' if way.text else ''}*[]'", tuple(_lists_of(way))
        if not lists:
            return text, way._replace(node=("arrays", way)), Way(".", (), "plain", way.names, level)
    else:
        lists = [way for way in found if way.steps and (way.node == "plain" or _is(way.node, "list"))]
        by_parent = itertools.groupby(sorted(lists, key=lambda way: way.names), key=lambda way: way.names[:-1])
        several = [ways for _, group in by_parent if len(ways := list(group)) > 1]
        if not several:
            return None
        lists = draw(
            st.sampled_from(several).flatmap(
                lambda ways: st.lists(st.sampled_from(ways), min_size=2, max_size=3, unique_by=lambda way: way.names)
            )
        )
        text = str([f"{way.text}[]" for way in lists])
    members = [(way.steps[-1], "plain" if way.node == "plain" else way.node[1], way.names) for way in lists]
    return text, around._replace(node=("rows", *lists)), Way(".", (), ("row", *members), (), level)


_STATES = {
    "enum": (("ONE", 5.0), ("ZERO", -5.0)),
    "bool": (("true", 7.0),),
    "plain": (("a", 3.0), ("true", 2.0), ("7", 9.0)),
    "star": (("a", 3.0), ("true", 2.0), ("ONE", 5.0)),
}


def _extras(kind: str) -> st.SearchStrategy[tuple[Any, Any]]:
    """Returns a strategy of a table of states, which may be empty, and a range or none."""
    return st.tuples(st.sampled_from([(), _STATES.get(kind, ())]), st.sampled_from([None, None, (-4.0, 100.0)]))


@st.composite
def mappings(draw, node: Any) -> Drawn:
    """Draws a mapping of up to two levels of elements, for messages of a type, or if ``node`` is "plain", for JSON."""
    root = Way("", (), node)
    levels, each = [root], []
    for level in range(draw(st.sampled_from([0, 0, 1, 1, 2, 2]))):
        wanted = draw(st.sampled_from([_has_elements, _is_many_messages, _is_many_messages]))
        found = [way for way in _reachable(levels[-1]) if wanted(way.node) and not way.is_one]
        if not found:
            break
        of_each = draw(st.sampled_from(found))
        each.append(of_each)
        levels.append(Way(f"{of_each.text}[]", (), _element_of(of_each.node), of_each.names, level + 1))
    together = draw(_zipped(levels[-1])) if draw(st.booleans()) else None
    if together:
        each.append(together[1])
        levels.append(together[2])
    last = levels[-1]
    plus = draw(st.none() | _ways(root, ("int", "duration", "plain").__contains__))
    step_us = draw(st.sampled_from([0, 0, 1, 7])) if each else 0
    entries = []
    if together:
        entries += [Entry(f"row{reading:d}_", last, reading, deep=False) for reading in (True, False)]
    for number in range(draw(st.sampled_from([3, 4, 5, 6, 7]))):
        start, is_reading, is_star = draw(st.sampled_from(levels)), draw(st.booleans()), draw(st.booleans())
        if is_star:
            way = start if draw(st.booleans()) else draw(_ways(start, _has_members))
            if way and _has_members(way.node):
                extras = *draw(_extras("star")), draw(st.booleans())
                entries.append(Entry(f"s{number}_", way, is_reading, draw(st.booleans()), *extras))
        elif way := draw(_ways(start, (NUMBERS if is_reading else TEXTS).__contains__)):
            has_units = is_reading and way.node == "plain" and draw(st.booleans())
            is_conditional = way.level == len(each) and draw(st.sampled_from([False, False, True]))
            extras = draw(_extras(way.node))
            entries.append(Entry(f"e{number}", way, is_reading, None, *extras, False, has_units, is_conditional))
    skip = draw(st.none() | _ways(draw(st.sampled_from(levels)), ("bool",).__contains__))
    rounds, is_null = draw(st.sampled_from([True, True, False])), draw(st.sampled_from([True, True, False]))
    lines = [f'message = "{"json" if node == "plain" else ROOT}"']
    lines += ['inexact_integers = "round"'] * rounds + ['invalid = "drop reading"'] * is_null
    if each:
        lines.append(f"zip = {together[0]}" if together else f"each = '{last.text}'")
    if skip:
        lines.append(f"skip_if = {{ path = '{skip.text}', is = true }}")
    claimed = [entry.way for entry in entries if entry.deep is None] + ([skip] if skip else [])
    clock = draw(_clocks())
    spans = f", plus = {{ path = '{plus.text}', unit = 'us' }}" if plus else ""
    spans += f", step = '{step_us}us'" if step_us else ""
    published = f"{{ path = '$publish_time'{spans} }}"
    claimed += [plus] if plus else []
    of_file = draw(st.sampled_from(["{ constant = 's' }", "'$file.stem'", "'{$file.stem}'"]))
    if isinstance(last.node, Descriptor):
        dot = "." if last.text else ""
        lines.append(f"sensor = ['{last.text}{dot}id', {of_file}]")
        lines.append(f"time = [{{ path = '{last.text}{dot}t', {clock.text}{spans} }}, {published}]")
        claimed += [last._replace(names=(*last.names, name)) for name in ("id", "t")]
    else:
        lines += [f"sensor = {of_file}", f"time = {published}"]
    for table, is_reading in (("readings", True), ("metadata", False)):
        lines.append(f"[{table}]")
        lines += [_line(entry) for entry in entries if entry.is_reading == is_reading]
    claims = frozenset(way.names for way in claimed if not way.is_one)
    drawn_times = plus, step_us
    return Drawn(
        "\n".join(lines), tuple(each), tuple(entries), skip, claims, last, rounds, is_null, clock, *drawn_times
    )


def _line(entry: Entry) -> str:
    name, path = entry.name, entry.way.text
    if entry.deep is not None:
        dot = "" if path in ("", ".") else "."
        name, path = f"{name}*", f"{path}{dot}{'**' if entry.deep else '*'}"
    extras = ", name = '{$file.stem}.*'" if entry.is_below else ""
    extras += ", units = { x = 2, '' = 1 }" if entry.has_units else ""
    extras += f", when = {{ path = '$time', before = '{PUBLISHED}' }}" if entry.unless_published else ""
    if entry.is_reading and entry.values:
        extras += f", values = {{ {', '.join(f'{text} = {number}' for text, number in entry.values)} }}"
    if entry.is_reading and entry.valid:
        extras += f", valid = {list(entry.valid)}"
    return f"'{name}' = {{ path = '{path}'{extras} }}" if extras else f"'{name}' = '{path}'"
