"""Garbage-collection policies, and their text in the grammar of ``cbt setgcpolicy``.

    policy      "never", or an expression
    expression  term, then any number of: operator term
    term        maxage=<age>  |  maxversions=<number>  |  ( expression )
    operator    "||" or "or": a cell goes when either part says so; "&&" or "and": when both do
    age         a whole number and its unit: ms, s, m, h or d

Operators have no precedence: like cbt, an expression is read from left to right, so ``a || b && c`` is
``(a || b) && c``. The text that is printed from a policy always carries the parentheses that make this plain.
Grammar and limits are those of cbt 1.23.2 (googleapis/cloud-bigtable-cbt-cli), so that either tool takes
the other's text.
"""

import re
from collections.abc import Hashable
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

EXAMPLE = "maxage=30d || (maxage=3d && maxversions=100)"
MAX_POLICY_BYTES = (
    500  # of a serialised policy: ColumnFamily.gc_rule in Bigtable's admin API; measured where it is serialised
)
POLICY_TOO_LONG = f"the policy is too long: Bigtable stores at most {MAX_POLICY_BYTES} bytes; an example: {EXAMPLE}"

_UNITS = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
_SHORTEST_AGE = timedelta(milliseconds=1)  # Bigtable's grain
_LONGEST_AGE = timedelta(days=106_751)  # cbt counts nanoseconds in 64 bits
_MAX_VERSIONS = 65_535  # cbt counts them in 16 bits
_MAX_TOKENS = 150  # more than a useful policy has; keeps nesting within protobuf's 100 levels


@dataclass(frozen=True)
class Never:
    """No cell ever goes."""


@dataclass(frozen=True)
class MaxAge:
    """A cell goes when it is older than this."""

    age: timedelta


@dataclass(frozen=True)
class MaxVersions:
    """A cell goes when its column has at least this many newer ones."""

    versions: int


@dataclass(frozen=True)
class Union:
    """A cell goes when one of the members says so."""

    members: tuple["Policy", ...]


@dataclass(frozen=True)
class Intersection:
    """A cell goes when all of the members say so; of no members at all, never."""

    members: tuple["Policy", ...]


Policy = Never | MaxAge | MaxVersions | Union | Intersection

_OPERATORS: dict[str, type[Union] | type[Intersection]] = {
    "||": Union,
    "or": Union,
    "&&": Intersection,
    "and": Intersection,
}
_SYMBOLS = {Union: "||", Intersection: "&&"}
_TOKEN = re.compile(r"\s*(\|\||&&|[=()]|[\w.+-]+|\S)")


class PolicyError(ValueError):
    """A policy that cannot be read or stored. ``str()`` is one line: what is wrong, where, and an example."""


def parse_policy(text: str) -> Policy:
    """The policy that the text describes, in its simplest form.

    Raises:
        PolicyError: the text is no policy, or one that cbt would not take. Whether Bigtable has room for it shows
            when it is serialised.
    """
    if text.strip() == "never":
        return Never()
    tokens = _tokens(text)
    if len(tokens) > _MAX_TOKENS:
        raise PolicyError(POLICY_TOO_LONG)
    return simplified(_Parser(text, tokens).policy())


def format_policy(policy: Policy) -> str:
    """The policy as text: ages in the largest unit that is exact, parentheses where operators mix.

    ``parse_policy`` reads it back to the same policy, provided that ages and numbers are such as cbt can say.
    """
    match simplified(policy):
        case Never():
            return "never"
        case MaxAge(age):
            return f"maxage={_format_age(age)}"
        case MaxVersions(versions):
            return f"maxversions={versions}"
        case Union(members) | Intersection(members) as compound:
            return f" {_SYMBOLS[type(compound)]} ".join(map(_format_member, members))


def same_policy(one: Policy, other: Policy) -> bool:
    """Whether two policies differ in no more than the order and the nesting of their parts."""
    return _unordered(simplified(one)) == _unordered(simplified(other))


def simplified(policy: Policy) -> Policy:
    """The same policy without a union in a union, an intersection in an intersection, or either of one member.

    ``Never`` remains only as the whole of a policy, and so do a union and an intersection of nothing, which it becomes.
    """
    if not isinstance(policy, Union | Intersection):
        return policy
    kind = type(policy)
    members: list[Policy] = []
    for member in map(simplified, policy.members):
        members += member.members if isinstance(member, kind) else [member]
    if kind is Union:
        members = [member for member in members if member != Never()]  # what never collects adds nothing
    elif Never() in members:
        return Never()  # what must wait for "never" never goes
    if len(members) > 1:
        return kind(tuple(members))
    return members[0] if members else Never()


def counts_versions(policy: Policy) -> bool:
    """Whether a cell may go because newer ones came: a ``MaxVersions`` anywhere in the simplest form.

    Ages are not weighed against it: in ``maxage=1d || (maxage=2d && maxversions=3)`` no number of versions ever
    decides, and the answer is yes.
    """
    match simplified(policy):
        case MaxVersions():
            return True
        case Union(members) | Intersection(members):
            return any(map(counts_versions, members))
    return False


def collected_after(policy: Policy) -> timedelta | None:
    """The age beyond which a cell goes however few versions there are; None where age alone never suffices.

    Of a union the least of the members' ages; of an intersection the greatest, or None if a member has none.
    Where the policy counts versions a cell may go sooner.
    """
    match policy:
        case MaxAge(age):
            return age
        case Union(members):
            return min((age for age in map(collected_after, members) if age is not None), default=None)
        case Intersection(members):
            ages = [age for age in map(collected_after, members) if age is not None]
            return max(ages, default=None) if len(ages) == len(members) else None
    return None


# Reading


class _Token(NamedTuple):
    text: str  # empty at the end of the policy
    position: int  # of its first character, counted from 1


class _Parser:
    """Reads one expression; a method a line of the grammar."""

    def __init__(self, text: str, tokens: list[_Token]) -> None:
        self._text = text
        self._tokens = iter(tokens)
        self._token = next(self._tokens)

    def policy(self) -> Policy:
        policy = self._expression()
        if self._token.text:
            raise self._unexpected("'||', '&&' or the end")
        return policy

    def _expression(self) -> Policy:
        policy = self._term()
        while self._token.text in _OPERATORS:
            kind = _OPERATORS[self._take()]
            policy = kind((policy, self._term()))
        return policy

    def _term(self) -> Policy:
        match self._token.text:
            case "(":
                self._take()
                policy = self._expression()
                self._expect(")")
                return policy
            case "maxage":
                self._take()
                self._expect("=")
                return MaxAge(self._age())
            case "maxversions":
                self._take()
                self._expect("=")
                return MaxVersions(self._versions())
        raise self._unexpected("'maxage=', 'maxversions=' or '('")

    def _age(self) -> timedelta:
        number = re.fullmatch(r"([0-9]{1,19})(ms|s|m|h|d)", self._token.text)
        if number:
            count, unit = int(number[1]), _UNITS[number[2]]
            if _SHORTEST_AGE / unit <= count <= _LONGEST_AGE / unit:  # asked before timedelta can overflow
                self._take()
                return count * unit
        raise self._unexpected("an age (a whole number of ms, s, m, h or d, from 1ms to 106751d)")

    def _versions(self) -> int:
        if re.fullmatch(r"[0-9]{1,19}", self._token.text) and 1 <= int(self._token.text) <= _MAX_VERSIONS:
            return int(self._take())
        raise self._unexpected(f"a number of versions (from 1 to {_MAX_VERSIONS})")

    def _take(self) -> str:
        """The token at hand; the next one takes its place. Never asked of the end."""
        text = self._token.text
        self._token = next(self._tokens)
        return text

    def _expect(self, wanted: str) -> None:
        if self._token.text != wanted:
            raise self._unexpected(f"'{wanted}'")
        self._take()

    def _unexpected(self, wanted: str) -> PolicyError:
        found = _quoted(self._token.text) if self._token.text else "the end"
        return PolicyError(
            f"policy {_quoted(self._text)}: {wanted} expected at character {self._token.position}, not {found}; "
            f"an example: {EXAMPLE}"
        )


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 100 else f"{text[:99]}…")


def _tokens(text: str) -> list[_Token]:
    tokens = [_Token(found[1], found.start(1) + 1) for found in _TOKEN.finditer(text)]
    return [*tokens, _Token("", len(text) + 1)]


# Comparing and writing


def _unordered(policy: Policy) -> Hashable:
    if isinstance(policy, Union | Intersection):
        return type(policy), frozenset(map(_unordered, policy.members))
    return policy


def _format_member(policy: Policy) -> str:
    return f"({format_policy(policy)})" if isinstance(policy, Union | Intersection) else format_policy(policy)


def _format_age(age: timedelta) -> str:
    for unit, length in _UNITS.items():
        if not age % length:
            return f"{age // length}{unit}"
    return f"{age / _UNITS['ms']:g}ms"  # microseconds, which the API can hold and cbt cannot say
