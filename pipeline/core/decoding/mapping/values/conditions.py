"""Compares values: with what a condition expects, with each other, and with the text of a selector.

A mapping that compares a value with what it can never be is wrong: that is found here too.
"""

import fnmatch
import math
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from pipeline.core.decoding.mapping.language.model import Condition, MappingError, Scalar, Source
from pipeline.core.decoding.mapping.language.paths import PathError
from pipeline.core.decoding.mapping.values.conversions import as_in, as_texts, float_text, leaf_text
from pipeline.core.decoding.mapping.values.nodes import PLAIN, Getter, Leaf, Node
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.times import format_time, parse_time


class NeverHolds(ValueError):
    """Raised for a condition that no value of a node fulfils. ``str()`` is the reason."""


def tester(key: str, condition: Condition, node: Node) -> Callable[[Any], bool]:
    """Returns the function that tells whether a value that is set fulfils a condition.

    Raises MappingError if the condition does not fit the node, and NeverHolds if no value of the node fulfils it.
    """
    kind, values = condition.kind, condition.values
    if kind == "set":
        return lambda _: values == (True,)
    if not isinstance(node, Leaf):
        raise MappingError(key, f"{condition.path} is {node}; a condition on it can only be set = true or set = false")
    if kind == "glob":
        if impossible := [value for value in values if not can_fit(node, str(value))]:
            raise NeverHolds(f"it is {node}, which never fits {impossible[0]!r}")
        text = leaf_text(node)
        globs = [re.compile(fnmatch.translate(str(value))) for value in values]
        return lambda value: (found := text(value)) is not None and any(glob.fullmatch(found) for glob in globs)
    convert, expected = _comparison(key, condition, node)
    is_expected = kind == "is"
    return lambda value: (convert(value) in expected) == is_expected


def _comparison(key: str, condition: Condition, node: Leaf) -> tuple[Getter, Collection]:
    """Returns how a value is converted to be compared, and what with. Raises as :func:`tester` does."""
    values, kind = condition.values, node.kind
    match kind:
        case "string" | "bytes" | "timestamp" | "duration":
            _check_kinds(key, condition, node, (str,), "text")
        case "bool":
            _check_kinds(key, condition, node, (bool,), "true or false")
        case "int" | "float" | "double":
            _check_kinds(key, condition, node, (int, float), "a number")
    if impossible := [value for value in values if not can_be(node, value)]:
        hint = "; empty text counts as not set, so test it with set = false" if "" in impossible else ""
        if node.enum:
            hint = f"; it has {', '.join(list(node.enum.values_by_name)[:20])}"
        raise NeverHolds(f"it is {node}, which is never {impossible[0]!r}{hint}")
    if kind in ("string", "bytes", "timestamp", "duration"):
        return leaf_text(node), values
    # JSON has numbers that are not finite as text.
    infinite = [value for value in values if isinstance(value, float) and not math.isfinite(value)]
    texts = {text for value in infinite for text in as_texts(value)} if node == PLAIN else set()
    return _compared, {_compared(value) for value in (*as_in(node, values), *texts)}


def _check_kinds(key: str, condition: Condition, node: Node, kinds: tuple[type, ...], expected: str) -> None:
    if not all(isinstance(value, kinds) and (bool in kinds or type(value) is not bool) for value in condition.values):
        raise MappingError(key, f"{condition.path} is {node}; compare it with {expected}")


def _compared(value: Any) -> tuple[bool, Any]:
    """Returns a value so that true is not 1, NaN equals itself, and an array or an object equals nothing."""
    if isinstance(value, (list, dict)):
        return False, None
    return isinstance(value, bool), _NAN if value != value else value


_NAN = object()


def order_of(node: Node, path: str) -> Getter:
    """Returns the getter of a number by which values of a node are compared; None for NaN. Raises PathError."""
    if isinstance(node, Leaf) and node.kind in ("timestamp", "duration"):
        return lambda value: value.seconds * 1_000_000_000 + value.nanos
    if not isinstance(node, Leaf) or node.kind in ("string", "bytes"):
        raise PathError(f"{path} is {node}, by which elements can't be compared")

    def number(value: Any) -> Any:
        if not isinstance(value, (int, float)):
            raise BadData(Reason.NOT_A_NUMBER, f"{path} is not a number, so elements can't be compared by it")
        return None if value != value else value  # NaN

    return number


def lookup_text_of(node: Node, path: str) -> Getter:
    """Returns the getter of the text by which values of a node are looked up. Raises PathError."""
    if not isinstance(node, Leaf):
        raise PathError(f"{path} is {node}, by which elements can't be looked up")
    return leaf_text(node)


def useless_null(source: Source, nodes: Sequence[Node]) -> str | None:
    """Returns why one of a source's own null values is none that any of the nodes can have; None if all may be."""
    for value in source.own_null if nodes else ():
        if not any(_can_be_null(node, value) for node in nodes):
            return f"it is {nodes[0]}, which is never {value!r}"
    return None


def _can_be_null(node: Node, value: Scalar) -> bool:
    match node.kind if isinstance(node, Leaf) else "":
        case "string":  # in text, a number counts too
            return True
        case "bytes" | "timestamp" | "duration" | "bool":  # they are compared with nothing
            return False
    return can_be(node, value)


def can_be(node: Node, value: Scalar) -> bool:
    """Returns whether a value of a node, as conditions compare it, can equal a value."""
    if not isinstance(node, Leaf) or node == PLAIN:
        return True
    match node.kind:
        case "enum":
            return value in node.enum.values_by_name if isinstance(value, str) else type(value) is int  # type: ignore[union-attr]
        case "int":
            return _is_whole(value) and node.has(int(value))
        case "float" | "double":
            return _is_number(value)
        case "bool":
            return type(value) is bool
        case "string":
            return isinstance(value, str) and (bool(value) or node.can_be_empty)
    return isinstance(value, str) and (bool(value) or node.can_be_empty) and _is_text_of(node.kind, value)


def can_fit(node: Leaf, glob: str) -> bool:
    """Returns whether the text of a value of a node can fit a glob, as far as that is certain."""
    match node.kind:
        case "bool":
            return any(fnmatch.fnmatchcase(text, glob) for text in ("true", "false"))
        case "enum":  # a number without a name is its digits
            names = node.enum.values_by_name  # type: ignore[union-attr]
            return any(fnmatch.fnmatchcase(name, glob) for name in names) or not re.search("[A-Za-z_]", glob)
        case "int":
            return not re.search(r"[^0-9*?\[\]!-]", glob)
    return True


def _is_number(value: Scalar) -> bool:
    return isinstance(value, (int, float)) and type(value) is not bool


def _is_whole(value: Scalar) -> bool:
    return type(value) is int or (isinstance(value, float) and value.is_integer())


def _is_text_of(kind: str, text: str) -> bool:
    """Returns whether a text is one that bytes, times and durations become."""
    try:
        match kind:
            case "bytes":
                return bytes.fromhex(text).hex() == text
            case "timestamp":
                return format_time(parse_time(text)) == text
        return float_text(float(text)) == text
    except ValueError:
        return False
