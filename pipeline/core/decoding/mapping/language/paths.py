"""Paths to the values of a message, and texts that contain paths in braces.

A path is a field path, as in a ``FieldMask``, with selectors for repeated fields:

    device_info.dev_eui          a field of a nested message, an entry of a map, a key of a Struct or of a JSON object
    fields."a.b"                 quotes around a name with characters other than letters, digits, "_" and "-"
    rx_info[0].rssi              an element of a repeated field; [-1] is the last one
    rx_info[max rssi].snr        the element with the greatest rssi; [min rssi]: with the least
    tags[key=site].value         the first element whose key is "site"
    metrics[].name               the current element of the repeated field that ``each`` goes through
    .name                        the same, from the innermost current element; "." is that element itself
    payload.*                    all fields, entries or elements; "**" goes through all levels, with dotted names
    @mqtt_topic                  an attribute; @mqtt_topic.group is a part of it
    $publish_time                what Pub/Sub adds: $publish_time, $message_id, $ordering_key
    $file.stem                   the name of a record's file: $file, $file.stem, $file.folder
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from pipeline.core.decoding.file_names import FILE_ATTRIBUTES

Names = tuple[str, ...]
"""The names of the fields that lead to a value."""

MAX_STEPS = 32
MAX_PATH = 1000  # characters

_BARE = re.compile(r"\w+(?:-+\w+)*|\*\*|\*")
_INDEX = re.compile(r"-?[0-9]{1,6}")
_INSIDE = r'(?:[^\[\]"]|"[^"]*"|\[[^\[\]]*\])*'
_SELECTOR = re.compile(rf"\[({_INSIDE})\]")
_EXTREME = re.compile(r"(max|min)\s+(.+)", re.DOTALL)
_QUOTES = 'put a name with other characters into quotes: "a name"'
_ENVELOPE = ("publish_time", "message_id", "ordering_key", *FILE_ATTRIBUTES)


class PathError(ValueError):
    """Raised for text that is not a path. ``str()`` is a one-line message."""


class Root(StrEnum):
    """Where a path begins."""

    MESSAGE = "message"
    ELEMENT = "element"
    ATTRIBUTE = "attribute"
    ENVELOPE = "envelope"


class Field(NamedTuple):
    """A field, an entry of a map, or a key of an object, by its name."""

    name: str


class Star(NamedTuple):
    """All fields, entries or elements; if ``deep``, of all levels."""

    deep: bool


class Current(NamedTuple):
    """The current element of a repeated field that ``each`` goes through."""


class Index(NamedTuple):
    """An element by its position, from 0; from the end if negative."""

    position: int


class Extreme(NamedTuple):
    """The element with the greatest value at a path, or with the least."""

    greatest: bool
    path: "Path"


class Lookup(NamedTuple):
    """The first element whose value at a path, as text, equals ``text``."""

    path: "Path"
    text: str


class Together(NamedTuple):
    """The lists of ``zip``, each by its steps: a step to their elements, which is nowhere written as a path."""

    lists: tuple[tuple["Step", ...], ...]


BY_FIELD = (Extreme, Lookup)
SELECTORS = (Index, *BY_FIELD)
Step = Field | Star | Current | Index | Extreme | Lookup | Together


@dataclass(frozen=True)
class Path:
    """A parsed path: the place at which it begins, the steps from there, and the text as written."""

    root: Root
    steps: tuple[Step, ...]
    text: str

    def __str__(self) -> str:
        return self.text

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its fields, without selectors; ``*`` and ``**`` for stars."""
        return tuple(
            step.name if isinstance(step, Field) else "**" if step.deep else "*"
            for step in self.steps
            if isinstance(step, (Field, Star))
        )

    @property
    def of_last_level(self) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
        """The steps to the innermost element around a repeated field, and the steps from there to the field."""
        before = max((at for at, step in enumerate(self.steps[:-1]) if isinstance(step, Current)), default=-1) + 1
        return self.steps[:before], self.steps[before:-1]

    @property
    def is_of_file(self) -> bool:
        """Whether it leads to the name of a record's file."""
        return self.root is Root.ENVELOPE and self.names[0] == "file"

    @property
    def has_star(self) -> bool:
        """Whether it stands for any number of values."""
        return any(isinstance(step, Star) for step in self.steps)


def parse_path(text: str) -> Path:
    """Parses a path. Raises PathError."""
    if len(text) > MAX_PATH:
        raise PathError(f"a path has at most {MAX_PATH} characters")
    match text[:1]:
        case "@":
            return _attribute(text)
        case "$":
            return _envelope(text)
        case ".":
            root, steps = Root.ELEMENT, _steps(text, 1)
        case _:
            root, steps = Root.MESSAGE, _steps(text, 0)
    if not steps and text != ".":
        raise PathError("a path is empty")
    if len(steps) > MAX_STEPS:
        raise PathError(f"{text!r} has more than {MAX_STEPS} steps")
    stars = [step for step in steps if isinstance(step, Star)]
    if Star(deep=True) in stars and steps[-1] not in stars:
        raise PathError(f"{text!r} goes on after **, which stands for all levels")
    if len(stars) > 1:
        raise PathError(f"{text!r} has more than one star")
    return Path(root, tuple(steps), text)


def _envelope(text: str) -> Path:
    if text[1:] not in _ENVELOPE:
        known = ", ".join(f"${name}" for name in _ENVELOPE)
        raise PathError(f"{text!r} is none of {known}; paths in the message have no $")
    return Path(Root.ENVELOPE, tuple(map(Field, text[1:].split("."))), text)


def _attribute(text: str) -> Path:
    name, position = _name(text, 1)
    steps = [Field(name)]
    if text.startswith(".", position):
        part, position = _name(text, position + 1)
        steps.append(Field(part))
    if position < len(text) or "*" in text:
        raise PathError(f"{text!r} is not an attribute, like @device or @mqtt_topic.group")
    return Path(Root.ATTRIBUTE, tuple(steps), text)


def _steps(text: str, position: int) -> list[Step]:
    steps: list[Step] = []
    while position < len(text):
        if text[position] != "[":
            name, end = _name(text, position)
            quoted = text[position] == '"'
            steps.append(Star(name == "**") if not quoted and name in ("*", "**") else Field(name))
            position = end
        while position < len(text) and text[position] == "[":
            found = _SELECTOR.match(text, position)
            if not found:
                raise PathError(f"{text!r} has an opening bracket without a closing one")
            steps.append(_selector(found[1].strip(), text))
            position = found.end()
        if position < len(text):
            if text[position] != ".":
                raise PathError(
                    f"{text!r} is not a path: {text[position:]!r} does not begin with a dot or a bracket; {_QUOTES}"
                )
            position += 1
            if position == len(text):
                raise PathError(f"{text!r} ends with a dot")
    return steps


def _name(text: str, position: int) -> tuple[str, int]:
    """Returns the name at a position of the text, and the position after it."""
    if text[position : position + 1] == '"':
        end = text.find('"', position + 1)
        if end < 0:
            raise PathError(f"{text!r} has an opening quote without a closing one")
        return text[position + 1 : end], end + 1
    found = _BARE.match(text, position)
    if not found:
        rest = text[position:]
        hint = f"; {_QUOTES}" if rest else ""
        raise PathError(f"{text!r} is not a path: no name begins at {rest!r}{hint}")
    return found[0], found.end()


def _selector(inside: str, text: str) -> Step:
    if not inside:
        return Current()
    if _INDEX.fullmatch(inside):
        return Index(int(inside))
    if found := _EXTREME.fullmatch(inside):
        return Extreme(found[1] == "max", _inner(found[2], text))
    name, equals, value = inside.partition("=")
    if equals:
        value = value.strip()
        return Lookup(_inner(name.strip(), text), value[1:-1] if value[:1] == value[-1:] == '"' and value else value)
    raise PathError(
        f"{text!r} has the selector [{inside}], which is none of [], [0], [max field], [min field], [key=text]; "
        "keys of maps follow a dot"
    )


def _inner(inner: str, text: str) -> Path:
    path = parse_path(inner)
    if path.root is not Root.MESSAGE or path.has_star:
        raise PathError(f"{text!r} has a selector that is not by a field of the element")
    return path


class Placeholder(NamedTuple):
    """A path within a text, and the format of its value, such as ``08x``; empty for its usual text."""

    path: Path
    format: str


# A colon or a brace may be part of a name in quotes, or of what a selector looks for.
_PLACEHOLDER = re.compile(rf'\{{((?:[^{{}}:"\[\]]|"[^"]*"|\[{_INSIDE}\])*)(?::([^}}]*))?\}}')
_FORMAT = re.compile(r"|0?[0-9]{0,2}[dxXob]|\.[0-9]f|hex|upper|lower|id|sha256")


def parse_template(text: str) -> tuple[str | Placeholder, ...]:
    """Parses a text with paths in braces, such as ``{group}/{packet.from:08x}``; ``{{`` and ``}}`` stand for braces.

    Raises PathError if a brace is not closed, or what it contains is not a path and a format.
    """
    parts: list[str | Placeholder] = []
    literal, position = "", 0
    while position < len(text):
        character = text[position]
        if text.startswith(("{{", "}}"), position):
            literal, position = literal + character, position + 2
        elif character == "{":
            found = _PLACEHOLDER.match(text, position)
            if not found:
                raise PathError(f"{text!r} has an opening brace without a closing one")
            if literal:
                parts.append(literal)
            literal = ""
            path, spec = found[1], found[2] or ""
            if not _FORMAT.fullmatch(spec):
                raise PathError(
                    f"{text!r} has the format {spec!r}; formats are like d, 08x, .2f, hex, upper, lower, id and sha256"
                )
            parts.append(Placeholder(_single(path, text), spec))
            position = found.end()
        elif character == "}":
            raise PathError(f"{text!r} has a closing brace without an opening one")
        else:
            literal, position = literal + character, position + 1
    return (*parts, literal) if literal else tuple(parts)


def _single(inner: str, text: str) -> Path:
    path = parse_path(inner)
    if path.has_star:
        raise PathError(f"{text!r} contains a path with a star, which has no single value")
    return path


_SEGMENT = re.compile(r"\{(\w+)(=\*\*)?\}|([^{}]*)")


def parse_attribute_pattern(text: str) -> re.Pattern[str]:
    """Parses a pattern of an attribute, such as ``spBv1.0/{group}/DDATA/{node}/{device=**}``.

    The syntax is that of path templates in ``google.api.http``: ``{name}`` is one segment between slashes,
    ``{name=**}`` is all the rest. Raises PathError.
    """
    parts = []
    for index, segment in enumerate(segments := text.split("/")):
        found = _SEGMENT.fullmatch(segment)
        if not found:
            raise PathError(f"{text!r} is not a pattern: {segment!r} is neither text nor {{name}} nor {{name=**}}")
        name, rest, literal = found.groups()
        if rest and index < len(segments) - 1:
            raise PathError(f"{text!r} is not a pattern: {segment!r} has to come last")
        parts.append(re.escape(literal or "") if not name else f"(?P<{name}>{'.+' if rest else '[^/]+'})")
    try:
        return re.compile("/".join(parts), re.DOTALL)
    except re.error as error:
        raise PathError(f"{text!r} is not a pattern: {error}") from None
