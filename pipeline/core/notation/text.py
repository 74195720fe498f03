"""Escapes untrusted text for logs, terminals and JSON lines.

Characters that ``str.isprintable`` refuses are escaped: control and format characters, which can control a terminal or
reverse text, line separators, and lone surrogates. Letters and symbols of all scripts stay unchanged.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

MAX_UNIT = 32  # characters of a metric's unit

_MAX_SHOWN = 80
_NOT_ASCII = re.compile(r"[^ -~]")  # not printable ASCII


def shown(text: str) -> str:
    """Returns untrusted text as a quoted literal, truncated: safe to put into a message."""
    return repr(text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…")


def is_label(text: str, most: int) -> bool:
    """Returns whether a text can name something for people: it is printable, not blank, and not too long."""
    return text.isprintable() and bool(text.strip()) and len(text) <= most


def json_line(value: Any) -> str:
    """Returns the value as one line of JSON. Unprintable characters are escaped in JSON's syntax, even DEL."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else _NOT_ASCII.sub(_in_json, text)


def parse_pair(text: str, form: str = "NAME=VALUE", example: str = "location=us-west2") -> tuple[str, str]:
    """Returns the parts of a text before and after its first ``=``. Raises ValueError, which names the right form."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"{text!r} is not {form}, such as {example}")
    return name, value


def error_line(error: BaseException) -> str:
    """Returns an error's message, shortened and in one line; after its type."""
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def counted(number: int, noun: str) -> str:
    """Returns the number with its noun in the singular or the plural: ``1 window``, ``2,000 windows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def plain(text: str) -> str:
    """Returns text with its unprintable characters escaped in Python's syntax."""
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
    """Returns the number for use in JSON. JSON has no infinity, so an infinite value becomes text, as in its cell."""
    return value if math.isfinite(value) else str(value)


def json_value(value: Any) -> Any:
    """Returns a value in which texts replace numbers that are not finite, as in protobuf's JSON."""
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case dict():
            return {key: json_value(member) for key, member in value.items()}
        case list():
            return [json_value(item) for item in value]
    return value


def joined(pairs: Mapping[str, str]) -> str:
    """Formats pairs as ``name=value, …``. Quotes values with a comma or unprintable characters, in Python's syntax."""
    return ", ".join(
        f"{plain(name)}={value if value.isprintable() and ',' not in value else repr(value)}"
        for name, value in pairs.items()
    )
