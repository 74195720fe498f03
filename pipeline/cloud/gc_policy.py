"""Garbage-collection policies as text, in the grammar of ``cbt setgcpolicy``.

    policy      "never", or an expression
    expression  term, then any number of: operator term
    term        maxage=<age>  |  maxversions=<number>  |  ( expression )
    operator    "||" or "or": a cell goes when either rule says so; "&&" or "and": when both do
    age         a whole number and its unit: ms, s, m, h or d

Operators have no precedence: like cbt, an expression is read from left to right, so ``a || b && c`` is
``(a || b) && c``. The text that is printed from a rule always carries the parentheses that make this plain.
Grammar and limits are those of cbt 1.23.2 (googleapis/cloud-bigtable-cbt-cli), so that either tool takes
the other's text.
"""

import re
from collections.abc import Hashable
from datetime import timedelta
from typing import NamedTuple

from google.cloud.bigtable_admin_v2.types import GcRule

EXAMPLE = "maxage=30d || (maxage=3d && maxversions=100)"

_UNITS = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
_SHORTEST_AGE = timedelta(milliseconds=1)  # Bigtable's grain
_LONGEST_AGE = timedelta(days=106_751)  # cbt counts nanoseconds in 64 bits
_MOST_VERSIONS = 65_535  # cbt counts them in 16 bits
_MOST_BYTES = 500  # of a serialised rule: ColumnFamily.gc_rule in Bigtable's admin API
_MOST_TOKENS = 150  # more than a useful policy has; keeps nesting within protobuf's 100 levels

_OPERATORS = {"||": "union", "or": "union", "&&": "intersection", "and": "intersection"}
_SYMBOLS = {"union": "||", "intersection": "&&"}
_TOKEN = re.compile(r"\s*(\|\||&&|[=()]|[\w.+-]+|\S)")


class PolicyError(ValueError):
    """A policy that cannot be read. ``str()`` is one line: what is wrong, where, and an example."""


def parse_policy(text: str) -> GcRule:
    """The rule that the text describes, in its simplest form; the empty rule for ``never``.

    Raises:
        PolicyError: the text is no policy, or one that Bigtable or cbt would not take.
    """
    if text.strip() == "never":
        return GcRule()
    tokens = _tokens(text)
    if len(tokens) <= _MOST_TOKENS:
        rule = _simplified(_Parser(text, tokens).policy())
        if GcRule.pb(rule).ByteSize() <= _MOST_BYTES:
            return rule
    raise PolicyError(f"the policy is too long: Bigtable stores at most {_MOST_BYTES} bytes; an example: {EXAMPLE}")


def format_policy(rule: GcRule) -> str:
    """The rule as text: ages in the largest unit that is exact, parentheses where operators mix.

    ``parse_policy`` reads it back to the same policy, provided that ages and numbers are such as cbt can say.
    """
    rule = _simplified(rule)
    match _kind(rule):
        case None:
            return "never"
        case "max_age":
            return f"maxage={_format_age(rule.max_age)}"
        case "max_num_versions":
            return f"maxversions={rule.max_num_versions}"
        case kind:
            members = (_format_member(member) for member in getattr(rule, kind).rules)
            return f" {_SYMBOLS[kind]} ".join(members)


def same_policy(one: GcRule, other: GcRule) -> bool:
    """Whether two rules differ in no more than the order and the nesting of their parts."""
    return _unordered(_simplified(one)) == _unordered(_simplified(other))


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

    def policy(self) -> GcRule:
        rule = self._expression()
        if self._token.text:
            raise self._unexpected("'||', '&&' or the end")
        return rule

    def _expression(self) -> GcRule:
        rule = self._term()
        while self._token.text in _OPERATORS:
            kind = _OPERATORS[self._take()]
            rule = _compound(kind, [rule, self._term()])
        return rule

    def _term(self) -> GcRule:
        match self._token.text:
            case "(":
                self._take()
                rule = self._expression()
                self._expect(")")
                return rule
            case "maxage":
                self._take()
                self._expect("=")
                return GcRule(max_age=self._age())
            case "maxversions":
                self._take()
                self._expect("=")
                return GcRule(max_num_versions=self._versions())
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
        if re.fullmatch(r"[0-9]{1,19}", self._token.text) and 1 <= int(self._token.text) <= _MOST_VERSIONS:
            return int(self._take())
        raise self._unexpected(f"a number of versions (from 1 to {_MOST_VERSIONS})")

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


# The forms of a rule


def _kind(rule: GcRule) -> str | None:
    """``max_age``, ``max_num_versions``, ``union`` or ``intersection``; None for a rule that says nothing."""
    return GcRule.pb(rule).WhichOneof("rule")


def _compound(kind: str, rules: list[GcRule]) -> GcRule:
    if kind == "union":
        return GcRule(union=GcRule.Union(rules=rules))
    return GcRule(intersection=GcRule.Intersection(rules=rules))


def _simplified(rule: GcRule) -> GcRule:
    """The same policy without a union in a union, an intersection in an intersection, or either of one rule."""
    kind = _kind(rule)
    if kind not in _SYMBOLS:
        return rule
    members: list[GcRule] = []
    for member in map(_simplified, getattr(rule, kind).rules):
        members += getattr(member, kind).rules if _kind(member) == kind else [member]
    if kind == "union":
        members = [member for member in members if _kind(member)]  # what never collects adds nothing
    elif not all(map(_kind, members)):
        return GcRule()  # what must wait for "never" never goes
    if len(members) > 1:
        return _compound(kind, members)
    return members[0] if members else GcRule()


def _unordered(rule: GcRule) -> Hashable:
    kind = _kind(rule)
    if kind is None:
        return None
    if kind in _SYMBOLS:
        return kind, frozenset(map(_unordered, getattr(rule, kind).rules))
    return kind, getattr(rule, kind)


# Writing


def _format_member(rule: GcRule) -> str:
    return f"({format_policy(rule)})" if _kind(rule) in _SYMBOLS else format_policy(rule)


def _format_age(age: timedelta) -> str:
    for unit, length in _UNITS.items():
        if not age % length:
            return f"{age // length}{unit}"
    return f"{age / _UNITS['ms']:g}ms"  # microseconds, which the API can hold and cbt cannot say
