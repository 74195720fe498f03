"""Garbage-collection policies, and their text in the grammar of ``cbt setgcpolicy``.

    policy      "never", or an expression
    expression  term, then any number of: operator term
    term        maxage=<age>  |  maxversions=<number>  |  ( expression )
    operator    "||" or "or": a cell is collected if either part matches; "&&" or "and": if both do
    age         a whole number and its unit: ms, s, m, h or d

Operators have no precedence. Like in cbt, expressions are evaluated from left to right: ``a || b && c`` is
``(a || b) && c``. Formatted policies always have the parentheses that make this explicit. Grammar and limits are those
of cbt 1.23.2 (googleapis/cloud-bigtable-cbt-cli): either tool accepts the other's text.
"""

import re
from collections.abc import Hashable
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

EXAMPLE = "maxage=30d || (maxage=3d && maxversions=100)"
MAX_POLICY_BYTES = 500  # a serialised policy: ColumnFamily.gc_rule in Bigtable's admin API
POLICY_TOO_LONG = f"the policy is too long: Bigtable stores at most {MAX_POLICY_BYTES} bytes; an example: {EXAMPLE}"

_UNITS = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
_SHORTEST_AGE = timedelta(milliseconds=1)  # Bigtable's granularity
_LONGEST_AGE = timedelta(days=106_751)  # cbt counts nanoseconds in 64 bits
_MAX_VERSIONS = 65_535  # cbt counts them in 16 bits
_MAX_TOKENS = 150  # more than a useful policy needs; keeps nesting within protobuf's 100 levels


@dataclass(frozen=True)
class Never:
    """Never collects a cell."""


@dataclass(frozen=True)
class MaxAge:
    """Collects a cell that is older than this."""

    age: timedelta


@dataclass(frozen=True)
class MaxVersions:
    """Collects a cell if its column has at least this many newer ones."""

    versions: int


@dataclass(frozen=True)
class Union:
    """Collects a cell if any member does."""

    members: tuple["Policy", ...]


@dataclass(frozen=True)
class Intersection:
    """Collects a cell if all members do; never without members."""

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
    """A policy that can't be parsed or stored. ``str()`` is one line: the problem, its position, and an example."""


def parse_policy(text: str) -> Policy:
    """Parses a policy, and simplifies it. Raises PolicyError for a text that cbt would not accept.

    Bigtable's limit on the size is checked when a policy is serialised.
    """
    if text.strip() == "never":
        return Never()
    tokens = _tokens(text)
    if len(tokens) > _MAX_TOKENS:
        raise PolicyError(POLICY_TOO_LONG)
    return simplified(_PolicyParser(text, tokens).policy())


def format_policy(policy: Policy) -> str:
    """Returns the policy as text: ages in the largest exact unit, parentheses where operators mix.

    ``parse_policy`` returns the same policy, provided that cbt supports its ages and numbers.
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
    """Whether two policies are equal, except for the order and the nesting of their parts."""
    return _unordered(simplified(one)) == _unordered(simplified(other))


def simplified(policy: Policy) -> Policy:
    """Returns the same policy without a union in a union, an intersection in an intersection, or either of one member.

    ``Never`` remains only as the whole policy. A union or an intersection without members becomes ``Never``.
    """
    if not isinstance(policy, Union | Intersection):
        return policy
    kind = type(policy)
    members: list[Policy] = []
    for member in map(simplified, policy.members):
        members += member.members if isinstance(member, kind) else [member]
    if kind is Union:
        members = [member for member in members if member != Never()]  # adds nothing to a union
    elif Never() in members:
        return Never()  # not all members can collect a cell
    if len(members) > 1:
        return kind(tuple(members))
    return members[0] if members else Never()


def counts_versions(policy: Policy) -> bool:
    """Whether newer cells may cause a cell to be collected at some age: the simplified policy has ``MaxVersions``."""
    match simplified(policy):
        case MaxVersions():
            return True
        case Union(members) | Intersection(members):
            return any(map(counts_versions, members))
    return False


def keeps_one_version(policy: Policy) -> bool:
    """Whether any newer cell of its column causes a cell to be collected, whatever its age."""
    match policy:
        case MaxVersions(versions):
            return versions == 1
        case Union(members):
            return any(map(keeps_one_version, members))
        case Intersection(members):
            return bool(members) and all(map(keeps_one_version, members))
    return False


def of_newest(policy: Policy) -> Policy:
    """Returns the policy that also collects each cell that has a newer one in its column."""
    return policy if keeps_one_version(policy) else simplified(Union((policy, MaxVersions(1))))


def collected_after(policy: Policy) -> timedelta | None:
    """Returns the age beyond which a cell is collected regardless of versions; None if age alone is never enough.

    For a union, the least of the members' ages; for an intersection the greatest, or None if a member has none.
    If the policy counts versions, a cell may be collected sooner.
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


# Parsing


class _PolicyToken(NamedTuple):
    text: str  # empty at the end of the policy
    position: int  # of its first character, from 1


class _PolicyParser:
    """Parses one expression, with a method per line of the grammar."""

    def __init__(self, text: str, tokens: list[_PolicyToken]) -> None:
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
            case "maxage" | "maxversions" as name:
                self._take()
                self._expect("=")
                return MaxAge(self._age()) if name == "maxage" else MaxVersions(self._versions())
        raise self._unexpected("'maxage=', 'maxversions=' or '('")

    def _age(self) -> timedelta:
        number = re.fullmatch(r"([0-9]{1,19})(ms|s|m|h|d)", self._token.text)
        if number:
            count, unit = int(number[1]), _UNITS[number[2]]
            if _SHORTEST_AGE / unit <= count <= _LONGEST_AGE / unit:  # checked before timedelta can overflow
                self._take()
                return count * unit
        raise self._unexpected("an age (a whole number of ms, s, m, h or d, from 1ms to 106751d)")

    def _versions(self) -> int:
        if re.fullmatch(r"[0-9]{1,19}", self._token.text) and 1 <= int(self._token.text) <= _MAX_VERSIONS:
            return int(self._take())
        raise self._unexpected(f"a number of versions (from 1 to {_MAX_VERSIONS})")

    def _take(self) -> str:
        """Returns the current token, and advances to the next. Must not be called at the end."""
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


def _tokens(text: str) -> list[_PolicyToken]:
    tokens = [_PolicyToken(found[1], found.start(1) + 1) for found in _TOKEN.finditer(text)]
    return [*tokens, _PolicyToken("", len(text) + 1)]


# Comparing and formatting


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
    return f"{age / _UNITS['ms']:g}ms"  # microseconds, which the API supports and cbt does not
