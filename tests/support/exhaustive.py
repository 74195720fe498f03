"""Cases of which `make test` tries some, and `make test-exhaustive` all."""

from collections.abc import Hashable, Iterable

import pytest


def cases(cases: Iterable[tuple[str, object]], chosen: Iterable[Hashable]) -> list:
    """Returns parameters for a test, by their ids; those that are not chosen are marked exhaustive."""
    chosen = set(chosen)
    return [pytest.param(case, id=name, marks=() if name in chosen else pytest.mark.exhaustive) for name, case in cases]
