"""Waiting for a state by asking for it, with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(ask: Callable[[], T], seconds: float = 45.0) -> T:
    """What ``ask`` returns, as soon as that is true; an AssertionError with its last answer when time is up."""
    deadline = time.monotonic() + seconds
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"still {answer!r} after {seconds:.0f} s"
        time.sleep(0.1)
