"""Conditions of a mapping."""

import fnmatch
import re
from collections.abc import Callable
from typing import Any

from pipeline.core.decoding.mapping.language.model import Condition, MappingError
from pipeline.core.decoding.mapping.values.nodes import Leaf, Node, Plain
from pipeline.core.decoding.mapping.values.nulls import as_in
from pipeline.core.decoding.mapping.values.texts import leaf_text, plainly


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
    text = leaf_text(node) if isinstance(node, Leaf) else plainly
    if kind == "glob":
        globs = [re.compile(fnmatch.translate(str(value))) for value in values]
        return lambda value: (found := text(value)) is not None and any(glob.fullmatch(found) for glob in globs)
    if isinstance(node, Leaf) and node.kind in ("string", "bytes", "timestamp", "duration"):
        _check_kinds(key, condition, node, (str,), "text")
        return lambda value: (text(value) in values) == (kind == "is")
    if isinstance(node, Leaf) and node.kind == "bool":
        _check_kinds(key, condition, node, (bool,), "true or false")
    elif isinstance(node, Leaf):
        _check_kinds(key, condition, node, (int, float), "a number")
    # True equals 1 in Python.
    pairs = {(isinstance(value, bool), value) for value in as_in(node, values)}
    return lambda value: _compared(value) in pairs if kind == "is" else _compared(value) not in pairs


def _check_kinds(key: str, condition: Condition, node: Leaf, kinds: tuple[type, ...], expected: str) -> None:
    if not all(isinstance(value, kinds) and (bool in kinds or type(value) is not bool) for value in condition.values):
        raise MappingError(key, f"{condition.path} is {node}; compare it with {expected}")


def _compared(value: Any) -> tuple[bool, Any]:
    return isinstance(value, bool), None if isinstance(value, (list, dict)) else value
