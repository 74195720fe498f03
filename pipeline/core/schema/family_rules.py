"""Which column family takes which metric or metadata field, by glob."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache


@dataclass(frozen=True)
class FamilyRules:
    """Families and the globs (``log_*``) of what each of them takes; the first that matches takes it."""

    globs: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @cached_property
    def families(self) -> tuple[str, ...]:
        """Every family, in order."""
        return tuple(family for family, _ in self.globs)

    @cached_property
    def exhaustive(self) -> bool:
        """Whether some family takes whatever the others do not."""
        return any("*" in globs for _, globs in self.globs)

    @cached_property
    def catch_all(self) -> str | None:
        """The family that takes everything, being the first; None where names decide."""
        return self.globs[0][0] if self.globs and "*" in self.globs[0][1] else None

    def family_of(self, name: str) -> str | None:
        """The family that takes what is called so; None where none does."""
        return self.catch_all or _family_of(self.globs, name)


@lru_cache(maxsize=1 << 14)
def _family_of(rules: tuple[tuple[str, tuple[str, ...]], ...], name: str) -> str | None:
    return next((family for family, globs in rules if any(fnmatchcase(name, glob) for glob in globs)), None)
