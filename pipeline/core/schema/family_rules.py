"""Family rules: map metrics or metadata fields to column families, by glob."""

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


@lru_cache(maxsize=1 << 14)
def _family_of(rules: tuple[tuple[str, tuple[str, ...]], ...], name: str) -> str | None:
    return next((family for family, globs in rules if any(fnmatchcase(name, glob) for glob in globs)), None)
