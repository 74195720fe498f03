"""Turns values into readings by their units, which stand behind the numbers in text, or in another field."""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

from pipeline.core.decoding.mapping.language.model import Mapping, MappingError, Source
from pipeline.core.decoding.mapping.values.conversions import leaf_text, number_of, or_left_out, without_nulls
from pipeline.core.decoding.mapping.values.nodes import PLAIN, Getter, Leaf, Node, composed, itself
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.text import MAX_UNIT, shown

_NUMBER_AND_UNIT = re.compile(r"([+-]?(?:[0-9.,' ]*[0-9.,])?(?:[eE][+-]?[0-9]+)?)(.*)", re.DOTALL)

InUnit = Callable[[Any, str | None], float | None]
"""Takes a value and its unit, None for none. Raises BadData."""


def text_of(key: str, node: Node, source: Source, mapping: Mapping) -> Getter:
    """Returns the function that turns a number and the unit behind it, as text, into a reading.

    A number of JSON has no unit. The function raises BadData. Raises MappingError if a value of the node is never text.
    """
    if not isinstance(node, Leaf) or node.kind not in ("string", "json"):
        raise MappingError(f"{key}.units", f"{node} is no text with a unit; name the unit's field with unit_path")
    convert, some_unit = in_unit(key, node, source, mapping), source.units[0].unit

    def get(value: Any) -> float | None:
        number, unit = _parts(value)
        return convert(number, unit) if number or unit is None else convert(value, some_unit)  # which refuses it

    return composed(itself if node == PLAIN else leaf_text(node), get)


def star_text_of(key: str, node: Node, source: Source, mapping: Mapping) -> Getter | None:
    """Returns :func:`text_of` for a value that a star leads to; it takes only numbers whose unit is known."""
    if not isinstance(node, Leaf) or node.kind not in ("string", "json"):
        return None
    convert, units = in_unit(key, node, source, mapping), {_normal(unit) for unit, *_ in source.units}

    def get(value: Any) -> float | None:
        number, unit = _parts(value)
        return convert(number, unit) if type(number) in (str, int, float) and _normal(unit or "") in units else None

    return get


def in_unit(key: str, node: Node, source: Source, mapping: Mapping) -> InUnit:
    """Returns the function that turns a value and the name of its unit into a reading.

    Raises MappingError if a value of the node is never a number.
    """
    converters: dict[str, Getter] = {}
    for unit, scale, offset in source.units:
        own = replace(source, units=(), unit_path=None)
        if (scale, offset) != (Decimal(1), Decimal(0)):
            own = replace(own, scale=scale, offset=offset)
        converters[unit] = converters[_normal(unit)] = number_of(key, node, own, mapping)
    is_null = without_nulls(itself, source, node)  # type: ignore[arg-type] # number_of took the node

    def refuse(pair: tuple[Any, str | None]) -> None:
        value, unit = pair
        its_unit = f"in {shown(unit)}" if unit else "without a unit"
        expected = ", ".join(name or '""' for name, *_ in source.units)
        raise BadData(Reason.NOT_A_NUMBER, f"{key} is {shown(str(value))} {its_unit}; its units are {expected}")

    unknown = or_left_out(refuse, source)

    def get(value: Any, unit: str | None) -> float | None:
        convert = converters.get(unit or "") or converters.get(_normal(unit or ""))
        if convert is not None:
            return convert(value)
        return None if is_null(value) is None else unknown((value, unit))

    return get


def _parts(value: Any) -> tuple[Any, str | None]:
    """Returns the number and the unit of a text; any other value as it is, without a unit."""
    if type(value) is not str:
        return value, None
    number, unit = _NUMBER_AND_UNIT.fullmatch(value.strip()).groups()  # type: ignore[union-attr] # it fits any text
    return number, unit.strip()


def _normal(unit: str) -> str:
    """Returns a unit in the one form of its characters: µ and m³ have two. A text longer than any unit stays as it is.

    The time of Python's normalization is quadratic.
    """
    unit = unit.strip()
    return unicodedata.normalize("NFKC", unit) if len(unit) <= MAX_UNIT else unit
