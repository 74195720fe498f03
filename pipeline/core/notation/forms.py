"""Reads forms as browsers and weather stations send them: ``application/x-www-form-urlencoded``."""

from collections.abc import Iterator
from urllib.parse import unquote_plus

from pipeline.core.notation.documents import text_of
from pipeline.core.notation.text import shown


def parse_form(data: bytes) -> dict[str, str | None]:
    """Returns the fields of a form, None for an empty one. Raises ValueError with a message of one line."""
    fields: dict[str, str | None] = {}
    for name, value in _pairs(text_of(data).strip(" \r\n\0")):
        if name in fields:
            raise ValueError(f"{shown(name)} appears twice")
        fields[name] = value or None
    return fields


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for pair in text.split("&"):
        if not pair and text:  # a & at the end
            continue
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"{shown(pair)} is not a field, like name=value")
        try:
            yield unquote_plus(name, errors="strict"), unquote_plus(value, errors="strict")
        except UnicodeDecodeError:
            raise ValueError(f"{shown(pair)} has bytes that are not UTF-8") from None
