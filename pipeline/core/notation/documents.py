"""Reads what others wrote, JSON and TOML, from messages, files and rows: any fault is a ValueError with one line.

Python's own parsers raise more than that: RecursionError, and messages about Python's limits. They also return what
nobody can use later: values that are nested thousands of levels deep, which break whatever shows them, and numbers
beyond every type. Here, such documents are refused as a whole. Messages about a key of TOML can name its line: tomllib
has only lines of syntax errors.
"""

import bisect
import codecs
import json
import math
import os
import re
import stat
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from pipeline.core.notation.text import shown

MAX_DEPTH = 100
MAX_BYTES = 1 << 20
"""The most bytes of a file that a person writes."""

_SYNTAX_ERROR = re.compile(r"\(at line (\d+), column \d+\)")  # of tomllib
_BEYOND_DOUBLES = 1 << 1024
_MARKS = {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
BOM = "\ufeff"
"""The byte order mark, which some editors and devices put before a text."""
_TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))
# tomllib would take minutes for a key of thousands of parts, whose beginnings it all keeps.
_DOTTED = re.compile(rf"(?<![\w-])(?:(?:[\w-]+|\"[^\"\n]*\"|'[^'\n]*')[ \t]*\.[ \t]*){{{MAX_DEPTH}}}", re.ASCII)


# Texts, which may end too early, and brackets.
_JSON_TEXT = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_JSON = re.compile(rf"{_JSON_TEXT.pattern}|[\[\]{{}}]", re.DOTALL)
_TOML = re.compile(r'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"?|\'[^\'\n]*+\'?|#[^\n]*+|[\[\]{}]')


class StrictDecoder(json.JSONDecoder):
    """Decodes JSON, and refuses what Python's decoder accepts beyond the standard, and what is nested too deeply.

    The arguments convert the digits of an integer, the text of any other number, and ``NaN``, ``Infinity`` and
    ``-Infinity``, which are refused by default.
    """

    def __init__(
        self,
        parse_int: Callable[[str], Any] | None = None,
        parse_float: Callable[[str], Any] | None = None,
        parse_constant: Callable[[str], Any] | None = None,
    ) -> None:
        super().__init__(
            parse_int=parse_int,
            parse_float=parse_float,
            parse_constant=parse_constant or _refuse,
            object_pairs_hook=_members,
        )

    def decode(self, text: str, *_: Any) -> Any:
        """Returns the value as Python's. Raises ValueError with a message of one line."""
        if _may_be_deep(text):
            check_json_nesting(text)
        try:
            return super().decode(text)
        except (ValueError, RecursionError) as error:
            raise json_problem(error, text) from None


def json_problem(error: ValueError | RecursionError, text: str) -> ValueError:
    """Returns an error of Python's decoder for a text as an error with a message of one line."""
    if isinstance(error, json.JSONDecodeError):
        if text.startswith(BOM):
            return ValueError("it begins with a byte order mark")
        return ValueError(f"{error.msg.removesuffix(' at')} at character {error.pos + 1}")
    return _explained(error) if isinstance(error, ValueError) else ValueError(_TOO_DEEP)


def check_json_nesting(text: str) -> None:
    """Raises ValueError for JSON that is nested too deeply."""
    if _may_be_deep(text) and _may_be_deep(_JSON_TEXT.sub("", text)):
        _check_nesting(_JSON, text)


def parse_json(data: bytes | str) -> Any:
    """Returns the value of JSON in UTF-8, whose numbers are finite. Raises ValueError with a message of one line."""
    return _FINITE.decode(data if isinstance(data, str) else text_of(data))


def parse_loose_json(data: bytes | str) -> Any:
    """Returns the value of JSON in UTF-8, which may contain NaN and infinities. Raises as :func:`parse_json` does.

    An integer beyond the range of a double is infinite.
    """
    return _LOOSE.decode(data if isinstance(data, str) else text_of(data))


def parse_toml(text: str) -> dict[str, Any]:
    """Returns the document of TOML, whose integers fit a double. Raises ValueError with a message of one line."""
    if _DOTTED.search(text):
        raise ValueError(_TOO_DEEP)
    _check_nesting(_TOML, text)
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except ValueError as error:
        raise _explained(error, text) from None
    _check(document)
    return document


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


def text_of(data: bytes) -> str:
    """Returns the text that UTF-8 encodes. Raises ValueError with a message of one line."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        encoding = _MARKS.get(data[:2])
        found = f"it is text in {encoding}" if encoding else f"byte {error.start + 1} is not text in UTF-8"
        raise ValueError(f"{found}; save it as UTF-8") from None


def read_text(path: Path, most: int = MAX_BYTES) -> str:
    """Returns the text of a file. Raises ValueError with a message of one line, without the file's name."""
    data = read_bytes(path, most)
    if len(data) > most:
        raise ValueError(f"it is larger than {most:,} bytes")
    return text_of(data)


def read_bytes(path: Path, most: int) -> bytes:
    """Returns the content of a file; of a larger one, one byte more than ``most``. Raises as :func:`read_text` does."""
    if is_named_pipe(path):
        raise ValueError("it is a named pipe, not a file")
    try:
        with path.open("rb") as file:
            return file.read(most + 1)
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error


def is_named_pipe(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path is a named pipe, which may have nobody who ever writes; ``<(command)`` has somebody."""
    try:
        return stat.S_ISFIFO(os.lstat(os.path.realpath(path)).st_mode)
    except (OSError, ValueError):  # the latter for a path that no system has
        return False


def _explained(error: ValueError, toml: str = "") -> ValueError:
    """Returns an error of a parser in words for the author of the text."""
    if "set_int_max_str_digits" in str(error):
        return ValueError("an integer has thousands of digits")
    if toml.startswith(BOM):
        return ValueError("it begins with a byte order mark; save it as UTF-8 without one")
    if re.search(r"\r(?!\n)", toml):
        return ValueError("its lines end with CR alone; save it with LF or CR LF")
    return ValueError(" ".join(str(error).split()))


def _may_be_deep(text: str) -> bool:
    """Returns False for JSON that is certainly not nested too deeply; costs next to nothing for most messages."""
    if len(text) <= 2 * MAX_DEPTH or text.count("{") + text.count("[") <= MAX_DEPTH:
        return False
    brackets = text.encode(errors="replace").translate(None, _OTHERS)
    for _ in range(MAX_DEPTH // 2):  # each time, one or two levels go
        inner = brackets.replace(b"{}", b"").replace(b"[]", b"")
        if len(inner) == len(brackets):
            break  # some are in texts
        brackets = inner
    return bool(brackets)


def _check_nesting(tokens: re.Pattern[str], text: str) -> None:
    """Raises ValueError if brackets are nested too deeply.

    A parser would notice at the end of Python's stack, where whatever else runs, such as a finalizer, fails too.
    """
    depth = 0
    for token in tokens.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise ValueError(_TOO_DEEP)
        elif token[0] in "]}":
            depth -= 1


def _check(value: Any) -> None:
    """Raises ValueError for nesting, and for an integer beyond a double: Python can't show thousands of digits."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [one for outer in level for one in (outer.values() if isinstance(outer, dict) else outer)]
        if any(isinstance(one, int) and abs(one) >= _BEYOND_DOUBLES for one in level):
            raise ValueError("an integer is beyond the range of a double")
        level = [one for one in level if isinstance(one, dict | list)]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{shown(name)} appears twice")
    return members


def _integer(text: str) -> int | float:
    number = float(text)
    return number if math.isinf(number) else int(text)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{shown(text)} is beyond the range of a double")
    return number


def _finite_integer(text: str) -> int:
    _finite(text)
    return int(text)


_FINITE = StrictDecoder(parse_int=_finite_integer, parse_float=_finite)
_LOOSE = StrictDecoder(parse_int=_integer, parse_constant=float)
