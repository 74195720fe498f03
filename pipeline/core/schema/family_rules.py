"""Family rules: map metrics or metadata fields to column families, by glob."""

import string
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache


@dataclass(frozen=True)
class FamilyRules:
    """Families, each with globs (``log_*``) of its names. The first glob that matches a name decides."""

    globs: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @cached_property
    def families(self) -> tuple[str, ...]:
        """Every family, in order."""
        return tuple(family for family, _ in self.globs)

    @cached_property
    def exhaustive(self) -> bool:
        """Whether every name has a family."""
        return any("*" in globs for _, globs in self.globs)

    @cached_property
    def catch_all(self) -> str | None:
        """The first family, if it takes every name; else None."""
        return self.globs[0][0] if self.globs and "*" in self.globs[0][1] else None

    def family_of(self, name: str) -> str | None:
        """Returns the family of a name; None if no glob matches."""
        return self.catch_all or _family_of(self.globs, name)

    def may_take(self, glob: str) -> bool:
        """Returns whether a valid name that the glob matches can have a family."""
        return any(overlap(glob, each) for _, globs in self.globs for each in globs)


@lru_cache(maxsize=1 << 14)
def _family_of(rules: tuple[tuple[str, tuple[str, ...]], ...], name: str) -> str | None:
    return next((family for family, globs in rules if any(fnmatchcase(name, glob) for glob in globs)), None)


_STAR = frozenset[str]()  # no other part of a glob matches no character
_LETTERS = frozenset(string.ascii_letters + "_")
_CHARACTERS = _LETTERS | frozenset(string.digits + ".-")


def overlap(one: str, other: str) -> bool:
    """Returns whether two globs match a valid name of a metric or of metadata in common, of whatever length."""
    first, second = _parts(one), _parts(other)
    if first is None or second is None:
        return False
    left, seen = [(0, 0, True)], set[tuple[int, int, bool]]()
    while left:
        state = left.pop()
        if state in seen:
            continue
        seen.add(state)
        i, j, at_start = state
        if (i, j, at_start) == (len(first), len(second), False):
            return True
        a, b = first[i : i + 1], second[j : j + 1]
        if a == [_STAR]:
            left.append((i + 1, j, at_start))
        if b == [_STAR]:
            left.append((i, j + 1, at_start))
        if a and b and (a[0] or _CHARACTERS) & (b[0] or _CHARACTERS) & (_LETTERS if at_start else _CHARACTERS):
            left.append((i + bool(a[0]), j + bool(b[0]), False))
    return False


def _parts(glob: str) -> list[frozenset[str]] | None:
    """Returns the characters that each part of a glob matches; None if one matches none of those of names."""
    parts, index = list[frozenset[str]](), 0
    while index < len(glob):
        end = index + 1
        if glob[index] == "[":
            start = index + 2 if glob[index + 1 : index + 2] == "!" else index + 1
            end = glob.find("]", start + 1) + 1 or end  # a bracket right at the start is one of the characters
        part = glob[index:end]
        matched = _STAR if part == "*" else frozenset(char for char in _CHARACTERS if fnmatchcase(char, part))
        if part != "*" and not matched:
            return None
        parts.append(matched)
        index = end
    return parts
