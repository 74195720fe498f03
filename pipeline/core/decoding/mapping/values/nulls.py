"""Values that count as not set, and whether a value can ever be what a mapping compares it with."""

import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import Any

from pipeline.core.decoding.mapping.language.model import Scalar, Source
from pipeline.core.decoding.mapping.values.nodes import Getter, Leaf, Node
from pipeline.core.decoding.mapping.values.texts import Inexact, float_text
from pipeline.core.events.reasons import BadData
from pipeline.core.notation.exact_numbers import nearest_float32
from pipeline.core.notation.times import format_time, parse_time

_SPELLED = {
    "nan": ("nan", "NaN", "NAN"),
    "inf": ("inf", "Inf", "+Inf", "Infinity"),
    "-inf": ("-inf", "-Inf", "-Infinity"),
}
"""The texts of numbers that are not finite: in Python, in Prometheus, and in protobuf's JSON."""


def without_nulls(convert: Getter, source: Source, node: Node) -> Getter:
    """Returns a conversion for which the null values of a source count as not set."""
    null = as_in(node, source.null)
    if not null:
        return convert
    has_nan = any(value != value for value in null)
    null |= {text for value in null for text in as_texts(value)}  # the cells of CSV are text

    def get(value: Any) -> Any:
        try:
            # True equals 1 in Python, and NaN is not even equal to itself.
            if (value in null and type(value) is not bool) or (has_nan and value != value):
                return None
        except TypeError:  # an array or an object
            pass
        return convert(value)

    return get


def or_null(convert: Getter, source: Source) -> Getter:
    """Returns a conversion for which an invalid value counts as not set, if the source has ``invalid = "null"``."""
    if source.invalid == "refuse":
        return convert

    def get(value: Any) -> Any:
        try:
            return convert(value)
        except Inexact:
            raise
        except BadData:
            return None

    return get


def as_in(node: Node, values: Iterable[Scalar]) -> frozenset[Scalar]:
    """Returns the values as a node holds them.

    Instead of 0.1, a field of type float holds the float nearest to it; an enum holds the number of a name.
    """
    if node == Leaf("float"):
        return frozenset(nearest_float32(value) if isinstance(value, float) else value for value in values)
    if isinstance(node, Leaf) and node.enum is not None:
        known = node.enum.values_by_name
        return frozenset(known[value].number if value in known else value for value in values)
    return frozenset(values)


def as_texts(value: Scalar) -> tuple[str, ...]:
    """Returns the texts that stand for a value."""
    text = str(value)
    return _SPELLED.get(text, (text,)) if isinstance(value, float) else (text,)


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
    if not isinstance(node, Leaf):
        return True
    match node.kind:
        case "enum":
            return value in node.enum.values_by_name if isinstance(value, str) else type(value) is int  # type: ignore[union-attr]
        case "int":
            lowest = 0 if node.is_unsigned else -(1 << (node.bits - 1))
            return _is_whole(value) and 0 <= int(value) - lowest < 1 << node.bits
        case "float" | "double":
            return _is_number(value)
        case "bool":
            return type(value) is bool
        case "string":
            return isinstance(value, str) and (bool(value) or node.can_be_empty)
    return isinstance(value, str) and (bool(value) or node.can_be_empty) and _is_text_of(node.kind, value)


def can_fit(node: Node, glob: str) -> bool:
    """Returns whether the text of a value of a node can fit a glob, as far as that is certain."""
    match node.kind if isinstance(node, Leaf) else "":
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
