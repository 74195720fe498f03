"""Replaces attributes of what is not ours, and fails if no such attribute is there to be replaced."""

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
    before = vars(owner).get(name)  # unlike getattr, does not bind class methods
    replace(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def replace(owner: object, name: str, value: Any) -> None:
    """Replaces an attribute of a class, a module or an object for good.

    Raises:
        AttributeError: ``owner`` itself does not define the attribute, so nothing would use the replacement.
    """
    if name not in vars(owner):
        raise AttributeError(f"{getattr(owner, '__name__', type(owner).__name__)} does not define {name}")
    setattr(owner, name, value)
