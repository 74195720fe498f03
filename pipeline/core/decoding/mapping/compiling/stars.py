"""Getters of the many named values that a star stands for."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from pipeline.core.decoding.mapping.language.paths import Names, Step
from pipeline.core.decoding.mapping.values import nodes
from pipeline.core.decoding.mapping.values.nodes import Entries, Getter, Leaf, Node

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
    node: Node, prefix: Names, after: tuple[Step, ...], leaves_out: Callable[[Names], bool]
) -> Callable[[Any], dict[str, Any]] | None:
    """Returns the getter of all entries of a map by name at once; None if some are left out or need more steps."""
    if prefix or after or leaves_out is not leaves_out_none or not isinstance(node, Entries):
        return None
    if node.key != Leaf("string") or not isinstance(node.value, Leaf) or node.content is not nodes.itself:
        return None
    # A comprehension costs half as much as dict() or items() of a protobuf map.
    return lambda container: {name: container[name] for name in container}


def _bounded(label: str) -> str:
    """Returns a label, cut if it is longer than any name: a long key would be copied for each value below it."""
    return label if len(label) <= _MAX_LABEL else f"{label[:_MAX_LABEL]}…"


def leaves_out_none(names: Names) -> bool:  # noqa: ARG001 (the signature of what leaves out)
    """Leaves out nothing."""
    return False


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
    leaves_out: Callable[[Names], bool],
) -> Callable[[Any], Iterator[tuple[str, Any]]]:
    """Returns the getter of what a star stands for in each element, under the names of the elements."""
    before = "".join(f"{name}." for name in prefix)

    def items(container: Any) -> Iterator[tuple[str, Any]]:
        for name, value in pairs(container):
            value = None if leaves_out((*names, name)) else content(value)
            if value is not None:
                for rest, item in items_of(value):
                    yield _bounded(f"{before}{name[:_MAX_LABEL]}.{rest}" if rest else before + name), item

    return items


def plain_items(
    deep: bool,
    rest_of: Getter | None,
    names: Names,
    leaves_out: Callable[[Names], bool],
    prefix: Names,
    *,
    itself: bool,
) -> Callable[[Any], Iterator[tuple[str, Any]]]:
    """Returns the getter of what a star stands for in JSON.

    Args:
        deep: whether it goes through all levels.
        rest_of: the steps after the star.
        names: the names that lead to the value from the message.
        leaves_out: tells whether the star leaves out a field, by the names that lead to the field.
        prefix: the last of these names, since the star began.
        itself: whether the star stands for the value itself if that is neither an array nor an object.
    """
    before = "".join(f"{name}." for name in prefix)

    def items(value: Any) -> Iterator[tuple[str, Any]]:
        if itself and type(value) not in (dict, list):
            yield before[:-1], value
            return
        todo: list[tuple[str, Names, Any]] = [(before, names, value)]
        while todo:
            name, at, value = todo.pop()
            members = value.items() if type(value) is dict else enumerate(value) if type(value) is list else ()
            found = []
            for key, member in members:
                inner = (*at, str(key))
                if member is None or leaves_out(inner):
                    continue
                if type(member) in (dict, list) and deep:
                    found.append((_bounded(f"{name}{key}."), inner, member))
                elif rest_of:
                    if (end := rest_of(member)) is not None:
                        yield f"{name}{key}", end
                elif type(member) not in (dict, list):
                    yield f"{name}{key}", member
            todo.extend(reversed(found))

    return items
