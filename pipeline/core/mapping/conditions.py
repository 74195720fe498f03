"""Conditions of a mapping."""

import fnmatch
import re
from collections.abc import Callable
from typing import Any

from pipeline.core.mapping.document import Condition, MappingError
from pipeline.core.mapping.nodes import Leaf, Node, Plain
from pipeline.core.mapping.values import (
    leaf_text,
)


def tester(key: str, condition: Condition, node: Node) -> Callable[[Any], bool]:
    """Returns the function that returns whether a value that is set fulfils a condition. Raises MappingError."""
    kind, values = condition.kind, condition.values
    if kind == "set":
        return lambda _: values == (True,)
    if not isinstance(node, (Leaf, Plain)):
        raise MappingError(key, f"{condition.path} is {node}; a condition on it can only be set = true or set = false")
    if isinstance(node, Leaf) and node.kind == "enum":
        numbers = {value for value in values if isinstance(value, int)}
        names = {value for value in values if isinstance(value, str)}
        known = node.enum.values_by_name  # type: ignore[union-attr]
        for name in names if kind != "glob" else ():
            if name not in known:
                raise MappingError(key, f"{node} has no value {name!r}; it has {', '.join(list(known)[:20])}")
        numbers |= {known[name].number for name in names if name in known}
        if kind != "glob":
            return lambda value: (value in numbers) == (kind == "is")
    text = leaf_text(node) if isinstance(node, Leaf) else _plain_value_text
    if kind == "glob":
        globs = [re.compile(fnmatch.translate(str(value))) for value in values]
        return lambda value: any(glob.fullmatch(text(value)) for glob in globs)
    if isinstance(node, Leaf) and node.kind in ("string", "bytes", "timestamp"):
        if not all(isinstance(value, str) for value in values):
            raise MappingError(key, f"{condition.path} is {node}; compare it with text")
        return lambda value: (text(value) in values) == (kind == "is")
    # True equals 1 in Python.
    pairs = {(isinstance(value, bool), value) for value in values}
    return lambda value: ((_hashable(value)) in pairs) == (kind == "is")


def _hashable(value: Any) -> tuple[bool, Any]:
    return isinstance(value, bool), str(value) if isinstance(value, (list, dict)) else value


def _plain_value_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
