"""Turns the values of messages into metadata and parts of ids."""

import re
from decimal import Decimal
from typing import Any

from pipeline.core.decoding.mapping.language.model import MappingError, Source
from pipeline.core.decoding.mapping.values.nodes import Getter, Leaf, Node, Plain, composed
from pipeline.core.decoding.mapping.values.nulls import without_nulls
from pipeline.core.decoding.mapping.values.numbers import MAX_DIGITS, decimal_in
from pipeline.core.decoding.mapping.values.texts import kind_of, leaf_text, plainly
from pipeline.core.events.reasons import BadData, Reason

_NOT_IN_IDS = re.compile(r"[^\x21-\x22\x24-\x7e]")
_TEXTS = frozenset({"double", "float", "int", "bool", "enum", "string", "bytes", "timestamp", "duration"})


def star_text_of(key: str, node: Node, source: Source) -> Getter | None:
    """Returns the function that turns a value that a star leads to into text; None unless it is text or an enum."""
    if isinstance(node, Plain):
        return without_nulls(_plain_text(key, of_star=True), source, node)
    is_text = isinstance(node, Leaf) and node.kind in ("string", "enum")
    return text_of(key, node, source) if is_text else None


def text_of(key: str, node: Node, source: Source, *, name_of: bool = False) -> Getter:
    """Returns the function that turns a value of a node into text.

    Args:
        key: the key of the entry, for error messages.
        node: the node of the value.
        source: the source, with its null values.
        name_of: whether the name of an enum's value is taken.

    Raises:
        MappingError: a value of this node is never text.
    """
    if isinstance(node, Plain):
        return without_nulls(_plain_text(key, of_star=False), source, node)
    if not isinstance(node, Leaf) or node.kind not in _TEXTS:
        raise MappingError(key, f"a text is made of a single value, not of {node}")
    if name_of and node.enum is None:
        raise MappingError(key, f"name_of is for an enum or a oneof, not for {node}")
    return without_nulls(leaf_text(node), source, node)


def _plain_text(key: str, *, of_star: bool) -> Getter:
    def text(value: Any) -> str | None:
        if type(value) is str:
            return value
        if of_star:
            return None
        single = plainly(value)
        if single is None:
            raise BadData(Reason.UNPARSEABLE, f"{key} is {kind_of(value)}, not a single value")
        return single

    return text


def formatted(key: str, node: Node, spec: str, source: Source) -> Getter:
    """Returns the function that formats a value for a placeholder. It raises BadData.

    Args:
        key: the key of the entry and the path, for error messages.
        node: the node of the value.
        spec: the format; empty for the usual text.
        source: the source, with its null values.
    """
    if not spec:
        return text_of(key, node, source)
    is_plain = isinstance(node, Plain)
    kinds = {"hex": ("bytes",), "upper": ("string", "bytes", "enum"), "lower": ("string", "bytes", "enum")}.get(spec)
    if kinds:
        is_text = is_plain and spec != "hex"  # JSON has no bytes
        if not is_text and not (isinstance(node, Leaf) and node.kind in kinds):
            raise MappingError(key, f"the format {spec} is for {' and '.join(kinds)}, not for {node}")
        return composed(text_of(key, node, source), str.upper if spec == "upper" else str.lower)
    if spec == "id":
        return composed(text_of(key, node, source), lambda text: _NOT_IN_IDS.sub("_", text))
    integral = spec[-1] in "dxXob"
    if not is_plain and not (
        isinstance(node, Leaf) and node.kind in (("int", "enum") if integral else ("int", "float", "double"))
    ):
        raise MappingError(key, f"the format {spec} is for {'integers' if integral else 'numbers'}, not for {node}")

    def get_formatted(value: Any) -> str:
        number = decimal_in(value.strip()) if type(value) is str else value  # the cells of CSV are text
        if isinstance(number, bool) or not isinstance(number, (int, float, Decimal)):
            raise BadData(Reason.NOT_A_NUMBER, f"{key} is {kind_of(value)}, which the format {spec} is not for")
        if isinstance(number, Decimal) and number.adjusted() > MAX_DIGITS:
            raise BadData(Reason.NOT_A_NUMBER, f"{key} exceeds the range of a double")
        if not integral:  # Python would round an integer to a double first
            return format(Decimal(number) if type(number) is int else number, spec)
        try:
            whole = int(number)
        except (ValueError, OverflowError):  # NaN and infinity
            whole = None
        if whole is None or whole != number:
            raise BadData(Reason.NOT_A_NUMBER, f"{key} is {number}, which the format {spec} is not for")
        return format(whole, spec)

    return without_nulls(get_formatted, source, node)
