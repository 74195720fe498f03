"""Checks the values of the job's flags, one by one."""

import re
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

# https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names and the Bigtable admin API's reference.
# templates/metadata.json repeats these rules for Google, as POSIX or RE2 expressions: no lookaround, no \s, no (?:.
PROJECT = re.compile(r"[a-z][-a-z0-9:.]{4,61}[a-z0-9]")
# Names that begin with "goog" are reserved. Without lookaround a rule for them would be long, and the launch checks
# find that no resource has such a name.
_PUBSUB_NAME = r"[A-Za-z][-A-Za-z0-9._~%+]{2,254}"
SUBSCRIPTION = re.compile(rf"projects/{PROJECT.pattern}/subscriptions/{_PUBSUB_NAME}")
TOPIC = re.compile(rf"projects/{PROJECT.pattern}/topics/{_PUBSUB_NAME}")
INSTANCE = re.compile(r"[a-z][-a-z0-9]{0,32}")
_TABLE = r"[_A-Za-z0-9][-_.A-Za-z0-9]{0,49}"
TABLES = re.compile(rf"{_TABLE}(,{_TABLE})*")
FAMILY = re.compile(r"[-_.A-Za-z0-9]{1,64}")
FILES = re.compile(r"[^,]+(,[^,]+)*")
FUNCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*")
MESSAGE_TYPE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_RULES = {
    PROJECT: "a project id has 6 to 30 characters: lowercase letters, digits and hyphens, first a letter, "
    "last no hyphen",
    INSTANCE: "an instance id has at most 33 characters: lowercase letters, digits and hyphens, first a letter",
    TABLES: "a table id has at most 50 characters: letters, digits, hyphens, underscores and dots, first neither a "
    "hyphen nor a dot; commas, without spaces, separate several",
    FAMILY: "a column family has at most 64 characters: letters, digits, hyphens, underscores and dots",
}
_PUBSUB_RULE = "names have 3 to 255 characters: letters, digits and -._~%+, first a letter"
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


def full_path(flag: str, value: str | None, pattern: re.Pattern[str]) -> str | None:
    """Returns the full path of a topic or a subscription; None if the flag is not set.

    Args:
        flag: the flag.
        value: the value; None if the flag is not set.
        pattern: :data:`TOPIC` or :data:`SUBSCRIPTION`.

    Raises:
        BadFlag: the value does not match. A path of the right form is told the rule that it breaks.
    """
    kind = "topics" if pattern is TOPIC else "subscriptions"
    expected = f"projects/PROJECT/{kind}/NAME"
    if value and (parts := re.fullmatch(rf"projects/([^/]*)/{kind}/([^/]*)", value)):
        if not PROJECT.fullmatch(parts[1]):
            expected += f", and {parts[1]!r} is no PROJECT: {_RULES[PROJECT]}"
        else:
            expected += f", and {parts[2]!r} is no NAME: {_PUBSUB_RULE}"
    return optional(flag, value, pattern, expected)


def named(flag: str, value: str | None, pattern: re.Pattern[str]) -> str:
    """Returns the name of a resource. Raises BadFlag if it is missing or invalid."""
    if not value:
        raise BadFlag(f"{flag} is needed")
    if not pattern.fullmatch(value):
        raise BadFlag(f"{flag} is {value!r}, which is not a valid name on Google Cloud: {_RULES[pattern]}")
    return value


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
