"""Cases of which ``make test`` tries some, and ``make test-exhaustive`` all."""

from collections.abc import Iterable, Mapping

import pytest
from hypothesis import settings


def cases(named: Mapping[str, object] | Iterable[str], chosen: Iterable[str]) -> list:
    """Returns a test's parameters, named by their keys or by themselves. Those not chosen are marked exhaustive."""
    chosen, of = set(chosen), named if isinstance(named, Mapping) else dict(zip(named, named, strict=True))
    return [
        pytest.param(case, id=name, marks=() if name in chosen else pytest.mark.exhaustive) for name, case in of.items()
    ]


def examples(of_a_hundred: int) -> int:
    """Returns a property's number of examples: this one, or fewer in the profile of ``make test``."""
    return -(-of_a_hundred * settings.default.max_examples // 100)
