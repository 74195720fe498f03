"""Reads JSON as devices and bridges write it, which the standard does not allow.

- Numbers that are not finite, as C and others print them: ``nan``, ``-nan``, ``NaN``, ``inf``, ``-Infinity``, in any
  case.
- A byte order mark at the beginning, and NULs at the end: a C string with its terminator.
- Several objects or arrays, one after the other, with or without line breaks between them.

It takes time for a text that is JSON by the standard, so a caller tries :class:`StrictDecoder` first.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from pipeline.core.notation.documents import BOM, StrictDecoder, check_json_nesting, json_problem

_BETWEEN = re.compile(r"[ \t\r\n\0]*+")
_NUMBER = re.compile(r"(?<![\w.+-])([+-]?)(?:(nan)|inf(?:inity)?)(?![\w.])", re.IGNORECASE)
# Texts stay as they are. A part of another word does too.
_TOKENS = re.compile(rf'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|{_NUMBER.pattern}', re.DOTALL | re.IGNORECASE)


class DeviceDecoder(StrictDecoder):
    """Decodes the documents of a text. ``parse_int`` converts the digits of an integer."""

    def __init__(self, parse_int: Callable[[str], Any] | None = None, parse_float: Callable[[str], Any] | None = None):
        super().__init__(parse_int=parse_int, parse_float=parse_float, parse_constant=float)

    def documents(self, text: str) -> Iterator[Any]:
        """Yields the values of a text: one, or several objects and arrays. Raises ValueError, of one line."""
        text = text.removeprefix(BOM).rstrip(" \t\r\n\0")
        lower = text.lower()
        if ("nan" in lower or "inf" in lower) and _NUMBER.search(text):  # most texts of several documents have neither
            text = _TOKENS.sub(_spelled, text)
        check_json_nesting(text)
        position = _BETWEEN.match(text).end()  # type: ignore[union-attr]
        while True:
            try:
                value, end = self.raw_decode(text, position)
            except (ValueError, RecursionError) as error:
                raise json_problem(error, text) from None
            following = _BETWEEN.match(text, end).end()  # type: ignore[union-attr]
            if following < len(text) and type(value) not in (dict, list):
                raise ValueError(f"Extra data at character {following + 1}")
            yield value
            position = following
            if position == len(text):
                return


def _spelled(token: re.Match[str]) -> str:
    if token[1] is None:
        return token[0]
    return "NaN" if token[2] else f"{'-' if token[1] == '-' else ''}Infinity"
