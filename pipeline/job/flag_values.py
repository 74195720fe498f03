"""Checks the values of the job's flags, one by one."""

import re
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

FILES = re.compile(r"[^,]+(,[^,]+)*")
FUNCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*")
MESSAGE_TYPE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
ATTRIBUTE = re.compile(r"[!-~][!-~]{0,255}")  # printable ASCII; POSIX counts to 255


class BadFlag(Exception):
    """An invalid flag. ``str()`` is one line that names the flag and what it accepts."""


def optional(flag: str, value: str | None, pattern: re.Pattern[str], expected: str) -> str | None:
    """Returns the value; None if the flag is not set. Raises BadFlag if the value does not match."""
    if value is None:
        return None
    if not pattern.fullmatch(value):
        raise BadFlag(f"{flag} is {value!r}; it has to be {expected}")
    return value


def named(flag: str, value: str | None, check: Callable[[str], str]) -> str:
    """Returns the name of a resource. Raises BadFlag if it is missing, or if the check refuses it."""
    if not value:
        raise BadFlag(f"{flag} is needed")
    return parsed(flag, value, check)


def optional_name(flag: str, value: str | None, check: Callable[[str], str]) -> str | None:
    """Returns the name of a resource; None if the flag is not set. Raises BadFlag if the check refuses it."""
    return None if value is None else parsed(flag, value, check)


def choice(flag: str, value: str, choices: tuple[str, ...]) -> str:
    """Returns the value. Raises BadFlag if it is none of the choices."""
    if value not in choices:
        raise BadFlag(f"{flag} is {value!r}; it has to be {' or '.join(choices)}")
    return value


def parsed(flag: str, text: str, parse: Callable[[str], _T]) -> _T:
    """Returns the parsed value. Raises BadFlag if it can't be parsed."""
    try:
        return parse(text)
    except ValueError as error:
        raise BadFlag(f"{flag}: {error}") from error
