"""Lists what messages of a type can contain: the places of all values, level by level."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from pipeline.core.decoding.mapping.language.model import JSON, TEXT
from pipeline.core.decoding.mapping.values.descriptors import Descriptors
from pipeline.core.decoding.mapping.values.nodes import PLAIN, Entries, Leaf, Many, Node, Record, node_of

MANY, ENTRY = "[]", "{}"
"""The steps that stand for an element of a repeated field, and for the value of an entry of a map."""

MAX_PLACES = 10_000
ANY = "google.protobuf.Any"


@dataclass(frozen=True)
class Place:
    """A place in messages of a type that has a value: the names of fields, ``MANY`` and ``ENTRY`` that lead there.

    Its node is a single value, free-form JSON, an ``Any``, or a message that contains itself. With ``in_oneof``, some
    messages have another value instead.
    """

    steps: tuple[str, ...]
    node: Node
    in_oneof: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        """The steps as a path: ``metrics[].name``, and ``tags.*`` for the entries of a map."""
        text = "".join(MANY if step == MANY else f".{'*' if step == ENTRY else step}" for step in self.steps)
        return text.removeprefix(".")

    @property
    def kind(self) -> str:
        """The kind of a single value; empty for another node."""
        return self.node.kind if isinstance(self.node, Leaf) else ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields."""
        return tuple(step for step in self.steps if step not in (MANY, ENTRY))


def places(
    types: Descriptors, message: str, contents: Mapping[tuple[str, ...], tuple[str, ...]] | None = None
) -> list[Place]:
    """Returns the places at which messages of a type have values, in the order of the fields; 10,000 at most.

    A message within a message of its own type is itself a place: its content has no end. ``contents`` are the types
    that bytes, text or an ``Any`` contain, by the names of their path. Raises MappingError if there is no such type.
    """
    contents = contents or {}

    def below(node: Node, steps: tuple[str, ...], within: tuple[str, ...]) -> Iterator[Place]:
        if not isinstance(node, Record) or node.type.full_name in (ANY, *within):
            yield Place(steps, node)
            return
        for member in node.type.fields:
            inside = opened(node_of(member), (*steps, member.name), (*within, node.type.full_name))
            in_oneof = member.containing_oneof is not None and len(member.containing_oneof.fields) > 1
            yield from (replace(place, in_oneof=True) for place in inside) if in_oneof else inside

    def opened(node: Node, steps: tuple[str, ...], within: tuple[str, ...]) -> Iterator[Place]:
        kinds = contents.get(Place(steps, node).names)
        if isinstance(node, Many):
            node, steps = node.item, (*steps, MANY)
        elif isinstance(node, Entries):
            node, steps = node.value, (*steps, ENTRY)
        if kinds is None:
            yield from below(node, steps, within)
        elif kinds in ((JSON,), (JSON, TEXT)):
            yield Place(steps, PLAIN)
        else:
            for name in kinds:
                yield from below(Record(types.descriptor(name)), steps, within)

    return list(dict.fromkeys(islice(below(Record(types.descriptor(message)), (), ()), MAX_PLACES)))


def places_of_json(values: Iterable[Any]) -> dict[Place, list[str]]:
    """Returns the places at which values of JSON have single values, with these as text; 10,000 places at most."""
    seen: dict[tuple[str, ...], list[Any]] = {}
    todo: list[tuple[tuple[str, ...], Any]] = [((), value) for value in values]
    for steps, value in todo:
        if isinstance(value, dict):
            todo += [((*steps, key), member) for key, member in value.items() if '"' not in key and key.isprintable()]
        elif isinstance(value, list):
            todo += [((*steps, MANY), item) for item in value]
        elif value is not None and (steps in seen or len(seen) < MAX_PLACES):
            seen.setdefault(steps, []).append(value)
    return {Place(steps, _leaf_of(found)): list(map(str, found)) for steps, found in seen.items()}


def lengths_of_json(values: Iterable[Any]) -> dict[tuple[str, ...], list[int]]:
    """Returns the lengths of the arrays of single values in values of JSON, by the steps to their elements."""
    lengths: dict[tuple[str, ...], list[int]] = {}
    todo: list[tuple[tuple[str, ...], Any]] = [((), value) for value in values]
    for steps, value in todo:
        if isinstance(value, dict):
            todo += [((*steps, key), member) for key, member in value.items()]
        elif isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
            todo += [((*steps, MANY), item) for item in value]
        elif isinstance(value, list):
            lengths.setdefault((*steps, MANY), []).append(len(value))
    return lengths


def _leaf_of(values: Sequence[Any]) -> Leaf:
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return Leaf("bool")
    if kinds == {int}:
        return Leaf("int", 64)
    return Leaf("double" if kinds <= {int, float, bool} else "string")
