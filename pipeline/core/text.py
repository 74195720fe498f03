"""Foreign text, made safe to show: in a log, on a terminal, in a line of JSON.

What ``str.isprintable`` does not call printable is escaped: control and format characters, which steer a terminal or
turn text around, separators of lines, halves of surrogate pairs. Letters and signs of every script stay as they are.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_MOST_SHOWN = 80
_NOT_ASCII = re.compile(r"[^ -~]")  # not printable ASCII


def shown(text: str) -> str:
    """Foreign text, made safe and short for a line of ours."""
    return ascii(text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…")


def json_line(value: Any) -> str:
    """The value as JSON on one line; what does not print is escaped as JSON has it, even a DEL."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else _NOT_ASCII.sub(_in_json, text)


def plain(text: str) -> str:
    """A line, or a part of one, with foreign text in it; what does not print is escaped as Python does it."""
    return text if text.isprintable() else _NOT_ASCII.sub(_in_python, text)


def _in_json(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def _in_python(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else repr(found[0])[1:-1]


def json_number(value: float) -> float | str:
    """JSON has no infinity: an overflow is the text that its cell has."""
    return value if math.isfinite(value) else str(value)


def joined(pairs: Mapping[str, str]) -> str:
    """``name=value, …``; a value with a comma, or with what does not print, is quoted as Python quotes it."""
    return ", ".join(
        f"{plain(name)}={value if value.isprintable() and ',' not in value else repr(value)}"
        for name, value in pairs.items()
    )
