"""Turns the values of messages into readings."""

import math
import re
from collections.abc import Callable
from decimal import Context, Decimal, InvalidOperation
from typing import Any

from pipeline.core.decoding.mapping.language.model import Mapping, MappingError, Source
from pipeline.core.decoding.mapping.values.nodes import Getter, Leaf, Node, Plain, composed, itself
from pipeline.core.decoding.mapping.values.nulls import or_null, without_nulls
from pipeline.core.decoding.mapping.values.texts import Inexact, kind_of, leaf_text
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.exact_numbers import MAX_EXACT, exact_float, shortest_float32
from pipeline.core.notation.text import shown

NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_EXACT = Context(prec=1000)
MAX_DIGITS = 400  # characters of a number

_NUMBERS = frozenset({"double", "float", "int", "bool", "enum", "duration", "string"})


def star_number_of(key: str, node: Node, source: Source, mapping: Mapping) -> Getter | None:
    """Returns :func:`number_of` for a value that a star leads to: a number or a boolean; None for another node."""
    if not isinstance(node, Plain) and not _is_number(node):
        return None
    return number_of(key, node, source, mapping, of_star=True)


def number_of(key: str, node: Node, source: Source, mapping: Mapping, *, of_star: bool = False) -> Getter:
    """Returns the function that turns a value of a node into a reading.

    The function returns a float, or None for a value that counts as not set. It raises BadData.

    Args:
        key: the key of the entry, for error messages.
        node: the node of the value.
        source: the source, with its conversion.
        mapping: the mapping, with its notation of numbers and its treatment of inexact integers.
        of_star: whether values that are not numbers are left out.

    Raises:
        MappingError: a value of this node is never a number.
    """
    if not isinstance(node, Plain) and not (isinstance(node, Leaf) and node.kind in _NUMBERS):
        raise MappingError(key, f"a reading is a number, not {node}")
    rounds = mapping.inexact_integers == "round"

    def integer(value: int) -> float:
        number = exact_float(value)
        if number is None:
            if not rounds:
                raise Inexact(key, value)
            number = float(value)
        return number

    if source.scale is None and source.offset is None:
        convert = _raw_number(key, node, source, mapping, integer, of_star=of_star)
    else:  # first in decimal, then as a double
        convert = _raw_number(key, node, source, mapping, itself, of_star=of_star)
        scale = Decimal(1) if source.scale is None else source.scale
        convert = _scaled(convert, scale, source.offset or Decimal(0), integer)
    if source.signed is not None:
        convert = _signed(key, node, source.signed, convert)
    return or_null(without_nulls(convert, source, node), source)


def _is_number(node: Node) -> bool:
    return isinstance(node, Leaf) and node.kind in ("double", "float", "int", "bool", "duration")


def _raw_number(
    key: str, node: Node, source: Source, mapping: Mapping, integer: Callable[[int], float], *, of_star: bool
) -> Getter:
    parse = _number_parser(key, source, mapping, integer)
    if isinstance(node, Leaf):
        match node.kind:
            case "float" if mapping.shortest_floats:
                return shortest_float32
            case "double" | "float":
                return itself
            case "bool" | "enum":
                return float
            case "duration":
                return lambda value: (value.seconds * 1_000_000_000 + value.nanos) / 1_000_000_000
            case "int":
                return float if node.bits < 64 and integer is not itself and source.signed is None else integer
            case _:
                return composed(leaf_text(node), parse)

    def plain(value: Any) -> float | None:
        kind = type(value)
        if kind is float:
            return value
        if kind is bool:
            return float(value)
        if kind is int:
            return integer(value)
        if of_star:
            return None
        if kind is str:
            return parse(value)
        raise BadData(Reason.NOT_A_NUMBER, f"{key} is {kind_of(value)}, not a number")

    return plain


def _number_parser(
    key: str, source: Source, mapping: Mapping, integer: Callable[[int], float]
) -> Callable[[str], float | None]:
    number_in = number_reader(mapping.decimal, mapping.thousands)

    def parse(text: str) -> float | None:
        number = number_in(text.strip().removesuffix(source.suffix))
        if number is None:
            raise BadData(Reason.NOT_A_NUMBER, f"{key} is {shown(text)}, not a number")
        whole = number.rstrip("0").rstrip(".") if "." in number else number  # of 12.00
        found = (integer(int(whole)) if whole.lstrip("+-").isdecimal() else 0) or float(number)
        return None if found in source.null else found  # also where the text is "-999.0" or "-999,0"

    return parse


def number_reader(decimal: str, thousands: str) -> Callable[[str], str | None]:
    """Returns the function that turns a number as text into Python's notation; it returns None for other text.

    Args:
        decimal: the decimal sign.
        thousands: the separator of thousands; empty for none.
    """
    grouped = re.compile(rf"[+-]?[0-9]{{1,3}}(?:{re.escape(thousands)}[0-9]{{3}})*(?:{re.escape(decimal)}[0-9]*)?")

    def read(text: str) -> str | None:
        number = text.strip()
        if thousands and thousands in number and grouped.fullmatch(number):
            number = number.replace(thousands, "")
        if decimal != "." and "." not in number:
            number = number.replace(decimal, ".", 1)
        elif decimal != ".":
            return None  # a dot is no decimal sign here
        return number if len(number) <= MAX_DIGITS and NUMBER.fullmatch(number) else None

    return read


def _signed(key: str, node: Node, bits: int, convert: Getter) -> Getter:
    if not isinstance(node, Plain) and not (isinstance(node, Leaf) and node.kind == "int"):
        raise MappingError(f"{key}.signed", f"it is for integers, not for {node}")
    top, mask = 1 << (bits - 1), (1 << bits) - 1
    # Above the bits of a negative number, there are zeros, or ones up to the 32 or 64 bits of the field.
    wraps = (0, 1 << bits, 1 << 32, 1 << 64)

    def signed(value: Any) -> float | None:
        value = _whole_number(value)
        if type(value) is not int:
            return convert(value)
        number = ((value & mask) ^ top) - top
        if value != number and not (number < 0 and value - number in wraps):
            raise BadData(Reason.NOT_A_NUMBER, f"{key} is {shown(str(value))}, which is no number of {bits} bits")
        return convert(number)

    return signed


def _whole_number(value: Any) -> Any:
    """Returns the integer that text, or a float of a Struct, stands for; any other value unchanged."""
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is str and len(value) <= MAX_DIGITS and _INTEGER.fullmatch(value.strip()):
        return int(value)
    return value


def _scaled(convert: Getter, scale: Decimal, offset: Decimal, integer: Callable[[int], float]) -> Getter:
    def scaled(value: Any) -> float | None:
        number = convert(value)
        is_integer = type(number) is int  # of any size
        if number is None or not (is_integer or math.isfinite(number)):
            return number
        # In decimal, 2150 · 0.01 is 21.5.
        exact = _EXACT.add(_EXACT.multiply(Decimal(number if is_integer else repr(number)), scale), offset)
        found = float(exact)
        if is_integer and not -MAX_EXACT < found < MAX_EXACT and exact == exact.to_integral_value():
            return integer(int(exact))
        return found

    return scaled


def decimal_in(text: str) -> Decimal | None:
    """Returns the number in a text; None if it is not a number, or absurdly long."""
    try:
        return Decimal(text) if len(text) <= MAX_DIGITS and NUMBER.fullmatch(text) else None
    except InvalidOperation:  # an exponent of twenty digits
        return None
