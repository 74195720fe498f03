"""Parses and formats durations as written on a command line: ``90s``, ``15m``, ``1h``, ``1d``."""

import re
from datetime import timedelta

from pipeline.core.notation.text import shown

_UNITS_US = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1000, "us": 1}
_DURATION = re.compile(r"([0-9]{1,9})([dhms]|ms|us)")
_LONGEST = timedelta(days=36_500)  # a hundred years; sums of longer ones could exceed what a timedelta holds
_MICROSECOND = timedelta(microseconds=1)


def parse_duration(text: str) -> timedelta:
    """Parses a whole number and a unit, one of s, m, h, d; ``0`` needs no unit. Raises ValueError."""
    if text.endswith(("ms", "us")) or (found := _microseconds(text)) is None:
        raise ValueError(f"{shown(text)} is not a duration; write a whole number and s, m, h or d, like 90s or 15m")
    return found * _MICROSECOND


def format_duration(duration: timedelta) -> str:
    """Formats the duration in the largest unit that is exact: ``90s``, ``15m``, ``1h``; ``0`` if it is zero."""
    return format_interval(duration // timedelta(seconds=1) * _UNITS_US["s"])


def parse_interval(text: str) -> int:
    """Parses a duration above zero that may be shorter than a second, such as ``10ms`` or ``250us``, into microseconds.

    Raises ValueError.
    """
    interval_us = _microseconds(text)
    if interval_us is None:
        raise ValueError(
            f"{text!r} is not a duration; write a whole number and us, ms, s, m, h or d, like 10ms, 1s or 15m"
        )
    if not interval_us:
        raise ValueError(f"{text!r} must be longer than zero, like 10ms, 1s or 15m")
    return interval_us


def format_interval(interval_us: int) -> str:
    """Formats the interval in the largest unit that is exact: ``10ms``, ``1s``, ``15m``; ``0`` if it is zero."""
    if not interval_us:
        return "0"
    unit, length_us = next((unit, length_us) for unit, length_us in _UNITS_US.items() if interval_us % length_us == 0)
    return f"{interval_us // length_us}{unit}"


def _microseconds(text: str) -> int | None:
    """Returns a duration in microseconds; None if the text is none. Raises ValueError if it is too long."""
    if text == "0":
        return 0
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    found = int(match[1]) * _UNITS_US[match[2]]
    if found > _LONGEST // _MICROSECOND:
        raise ValueError(f"{text!r} is longer than {_LONGEST.days}d, the longest duration allowed")
    return found
