"""Waits for a state by polling, with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(ask: Callable[[], T], seconds: float = 45.0) -> T:
    """Returns ``ask()`` as soon as it is true; raises an AssertionError with the last answer after the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"still {answer!r} after {seconds:.0f} s"
        time.sleep(0.1)
