"""Finds the line of a key in TOML, for messages about its value: tomllib has only lines of syntax errors."""

import bisect
import re
from typing import Any

from pipeline.core.notation.documents import parse_toml

_SYNTAX_ERROR = re.compile(r"\(at line (\d+), column \d+\)")  # of tomllib


def placed(file: str, text: str, problem: str) -> str:
    """Returns ``file:line`` of the key that a message such as ``tiers.1h: takes a string`` begins with.

    It is the file alone if its text has no such key.
    """
    line = line_of(text, problem)
    return file if line is None else f"{file}:{line}"


def line_of(text: str, problem: str) -> int | None:
    """Returns the line, from 1, on which the statement with the key begins that a message begins with.

    Of text that is not TOML, it is the line that the message names. If the text lacks the last parts of a dotted key,
    such as one that is missing, it is the line of the others.
    """
    lines = text.split("\n")
    try:
        document = parse_toml(text)
    except ValueError:
        found = _SYNTAX_ERROR.search(problem)
        return int(found[1]) if found else None
    keys = _keys_of(document, problem)
    if not keys:
        return None
    # The first lines of TOML are TOML themselves, unless they end within a statement.
    end = bisect.bisect_left(range(len(lines)), True, key=lambda index: _has(_first(lines, index + 1)[0], keys))
    return _first(lines, end)[1] + 1


def _first(lines: list[str], most: int) -> tuple[dict[str, Any], int]:
    """Returns the document of at most ``most`` first lines, and their number, without a statement that is cut."""
    for number in range(most, 0, -1):
        try:
            return parse_toml("\n".join(lines[:number]) + "\n"), number
        except ValueError:
            continue
    return {}, 0


def _keys_of(document: Any, problem: str) -> list[str]:
    keys = []
    while isinstance(document, dict):
        found = [key for key in document if problem == key or problem.startswith((f"{key}.", f"{key}:"))]
        if not found:
            break
        keys.append(key := max(found, key=len))
        document, problem = document[key], problem[len(key) + 1 :]
    return keys


def _has(document: Any, keys: list[str]) -> bool:
    for key in keys:
        if not isinstance(document, dict) or key not in document:
            return False
        document = document[key]
    return True
