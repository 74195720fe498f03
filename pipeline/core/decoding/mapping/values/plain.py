"""JSON, and ``google.protobuf.Struct``, as Python's values."""

import json
import re
from collections.abc import Callable
from typing import Any

from pipeline.core.events.reasons import BadData, Reason
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
    """Parses JSON to Python's values, integers exactly.

    Args:
        data: the JSON, in UTF-8.
        where: the name of the value that contains it, for error messages.
        exact: whether integers become :class:`ExactInteger`, and long ones in quotes :class:`ExactDigits`.

    Raises:
        BadData: it is not JSON.
    """
    try:
        text = data if isinstance(data, str) else data.decode()
        value = _with_exact_digits(_EXACT_JSON.decode(text)) if exact else _JSON.decode(text)
        if _SURROGATE.search(text):  # an unpaired one is no character, and can't be stored
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except RecursionError:
        raise BadData(Reason.UNPARSEABLE, f"{where} is nested too deeply") from None
    except ValueError as error:  # also of text that is not UTF-8
        raise BadData(Reason.UNPARSEABLE, f"{where} is not JSON: {' '.join(str(error).split())}") from None


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


def _exact_integer(text: str) -> int | float:
    number = _integer(text)
    return ExactInteger(number) if isinstance(number, int) else number


_JSON = StrictDecoder(parse_int=_integer)
_EXACT_JSON = StrictDecoder(parse_int=_exact_integer)


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
