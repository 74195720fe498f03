"""Foreign text, made safe to show: on a line of a log, or on a terminal."""

import json
import re
from typing import Any

_MOST_SHOWN = 80
_NOT_PLAIN = re.compile(r"[^ -~]")


def shown(text: str) -> str:
    """Foreign text, made safe and short for a line of ours."""
    return ascii(text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…")


def json_line(value: Any) -> str:
    """The value as JSON on one line, without a character that could steer a terminal, turn text around or end a line.

    Letters and signs of every script stay as they are. What ``str.isprintable`` does not call printable is escaped:
    control and format characters, separators of lines, halves of surrogate pairs.
    """
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() and text.isprintable() else _NOT_PLAIN.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
