"""Getters of the many named values that a star stands for."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from pipeline.core.decoding.mapping.compiling.scope import MAX_ELEMENTS, too_many_elements
from pipeline.core.decoding.mapping.language.paths import Names, Step
from pipeline.core.decoding.mapping.values import nodes
from pipeline.core.decoding.mapping.values.nodes import Entries, Getter, Leaf, Node
from pipeline.core.events.event import MAX_READINGS

_MAX_LABEL = 1000  # characters; a valid name has fewer


class Items(NamedTuple):
    """Values that a star stands for: ``get`` yields pairs of a dotted name and a value of the kind of ``node``.

    ``names`` lead to the values from the message; ``*`` stands for an element of a repeated field or an entry of a map.
    ``whole`` returns all values by name at once, where that is faster, and is None elsewhere.
    """

    get: Callable[[Any], Iterable[tuple[str, Any]]]
    node: Node
    names: Names
    whole: Callable[[Any], dict[str, Any]] | None = None


def whole_map(
    node: Node, prefix: Names, after: tuple[Step, ...], left_out: frozenset[Names]
) -> Callable[[Any], dict[str, Any]] | None:
    """Returns the getter of all entries of a map by name at once; None if some are left out or need more steps."""
    if prefix or after or left_out or not isinstance(node, Entries):
        return None
    if node.key != Leaf("string") or not isinstance(node.value, Leaf) or node.content is not nodes.itself:
        return None
    # A comprehension costs half as much as dict() or items() of a protobuf map.
    # More than an event may have are not needed to refuse them.
    return lambda container: {name: container[name] for name in islice(container, MAX_READINGS + 1)}


def bounded(label: str) -> str:
    """Returns a label, cut if it is longer than any name: a long key would be copied for each value below it."""
    return label if len(label) <= _MAX_LABEL else f"{label[:_MAX_LABEL]}…"


def contents(content: Getter) -> Getter:
    """Returns the getter of what each element of a list stands for."""
    return nodes.itself if content is nodes.itself else lambda items: [content(item) for item in items]


def named(name: str, get: Getter) -> Callable[[Any], Iterable[tuple[str, Any]]]:
    """Returns the getter of one value under a name."""

    def items(value: Any) -> Iterable[tuple[str, Any]]:
        found = get(value)
        return () if found is None else ((name, found),)

    return items


def items_after(get: Getter, items: Items) -> Items:
    """Returns what a star stands for after the steps that lead to it."""
    if get is nodes.itself:
        return items
    of = items.get

    def get_items(value: Any) -> Iterable[tuple[str, Any]]:
        value = get(value)
        return () if value is None else of(value)

    whole = items.whole
    return Items(get_items, items.node, items.names, whole and nodes.composed(get, whole))


def each_named(
    pairs: Callable[[Any], Iterable[tuple[str, Any]]],
    content: Getter,
    items_of: Callable[[Any], Iterable[tuple[str, Any]]],
    prefix: Names,
    names: Names,
    left_out: frozenset[Names],
) -> Callable[[Any], Iterator[tuple[str, Any]]]:
    """Returns the getter of what a star stands for in each element, under the names of the elements."""
    before = "".join(f"{name}." for name in prefix)

    def items(container: Any) -> Iterator[tuple[str, Any]]:
        if len(container) > MAX_ELEMENTS:
            raise too_many_elements("a star stands for")
        for name, value in pairs(container):
            value = None if left_out and (*names, name) in left_out else content(value)
            if value is not None:
                for rest, item in items_of(value):
                    yield bounded(f"{before}{name[:_MAX_LABEL]}.{rest}" if rest else before + name), item

    return items


def plain_items(
    deep: bool, rest_of: Getter | None, names: Names, left_out: frozenset[Names], prefix: Names, *, itself: bool
) -> Callable[[Any], Iterator[tuple[str, Any]]]:
    """Returns the getter of what a star stands for in JSON. It raises BadData if that has too many elements.

    Args:
        deep: whether it goes through all levels.
        rest_of: the steps after the star.
        names: the names that lead to the value from the message.
        left_out: the fields that the star leaves out, by the names that lead there from the message.
        prefix: the last of ``names``, since the star began.
        itself: whether the star stands for the value itself if that is neither an array nor an object.
    """
    before = "".join(f"{name}." for name in prefix)
    deepest = max(map(len, left_out), default=0)

    def items(value: Any) -> Iterator[tuple[str, Any]]:
        if itself and type(value) not in (dict, list):
            yield before[:-1], value
            return
        visited = 0
        # One entry a level, not one for each array that waits: a message has an array in three bytes.
        todo = [(before, names, _members(value))]
        while todo:
            name, at, members = todo[-1]
            for key, member in members:
                visited += 1
                if visited > MAX_ELEMENTS:
                    raise too_many_elements("a star stands for")
                inner = (*at, str(key)) if len(at) < deepest else at
                if member is None or (inner is not at and inner in left_out):
                    continue
                if type(member) in (dict, list) and deep:
                    todo.append((bounded(f"{name}{key}."), inner, _members(member)))
                    break
                if rest_of:
                    if (end := rest_of(member)) is not None:
                        yield bounded(f"{name}{key}"), end
                elif type(member) not in (dict, list):
                    yield bounded(f"{name}{key}"), member
            else:
                todo.pop()

    return items


def _members(value: Any) -> Iterator[tuple[Any, Any]]:
    return iter(value.items() if type(value) is dict else enumerate(value) if type(value) is list else ())
