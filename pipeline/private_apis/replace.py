"""Temporarily replaces an attribute of a class or a module."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def replaced(owner: type | ModuleType, name: str, value: Any) -> Iterator[None]:
    """Replaces an attribute within the block, for all threads.

    Raises:
        AttributeError: ``owner`` itself does not define the attribute, so nothing would use the replacement.
    """
    if name not in vars(owner):
        raise AttributeError(f"{owner.__name__} does not define {name}")
    before = vars(owner)[name]  # unlike getattr, does not bind class methods
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
