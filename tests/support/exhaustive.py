"""Cases of which ``make test`` tries some, and ``make test-exhaustive`` all."""

from collections.abc import Iterable, Mapping

import pytest


def cases(named: Mapping[str, object] | Iterable[str], chosen: Iterable[str]) -> list:
    """Returns a test's parameters, named by their keys or by themselves. Those not chosen are marked exhaustive."""
    chosen, of = set(chosen), named if isinstance(named, Mapping) else dict(zip(named, named, strict=True))
    return [
        pytest.param(case, id=name, marks=() if name in chosen else pytest.mark.exhaustive) for name, case in of.items()
    ]
