"""Values that count as not set."""

from collections.abc import Iterable
from typing import Any

from pipeline.core.decoding.mapping.language.model import Scalar, Source
from pipeline.core.decoding.mapping.values.nodes import Getter, Leaf, Node
from pipeline.core.decoding.mapping.values.texts import Inexact
from pipeline.core.events.reasons import BadData
from pipeline.core.notation.exact_numbers import nearest_float32


def without_nulls(convert: Getter, source: Source, node: Node) -> Getter:
    """Returns a conversion for which the null values of a source count as not set."""
    null = as_in(node, source.null)
    if not null:
        return convert
    null |= {str(value) for value in null}  # the cells of CSV are text

    def get(value: Any) -> Any:
        try:
            if value in null and type(value) is not bool:  # True equals 1 in Python
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
    """Returns the values as a node holds them: instead of 0.1, a field of type float holds the float nearest to it."""
    if node == Leaf("float"):
        return frozenset(nearest_float32(value) if isinstance(value, float) else value for value in values)
    return frozenset(values)
