"""Parses and formats durations as written on a command line: ``90s``, ``15m``, ``1h``, ``1d``."""

import re
from datetime import timedelta

from pipeline.core.notation.text import shown

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_DURATION = re.compile(r"([0-9]{1,9})([smhd])")  # a timedelta holds at most nine digits of days
_LONGEST = timedelta(days=36_500)  # a hundred years; sums of longer ones could exceed what a timedelta holds
_SHORT_UNITS_US = {"us": 1, "ms": 1000}
_INTERVAL = re.compile(r"([0-9]{1,9})(us|ms)")
_SECONDS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def parse_duration(text: str) -> timedelta:
    """Parses a whole number and a unit, one of s, m, h, d; ``0`` needs no unit.

    Raises:
        ValueError: ``text`` has another format, and the message describes the right one; or it is too long.
    """
    if text == "0":
        return timedelta(0)
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{shown(text)} is not a duration; write a whole number and s, m, h or d, like 90s or 15m")
    amount, unit = match.groups()
    duration = timedelta(**{_UNITS[unit]: int(amount)})
    if duration > _LONGEST:
        raise ValueError(f"{text!r} is longer than {_LONGEST.days}d, the longest duration allowed")
    return duration


def format_duration(duration: timedelta) -> str:
    """Formats the duration in the largest unit that is exact: ``90s``, ``15m``, ``1h``; ``0`` if it is zero."""
    seconds = duration // timedelta(seconds=1)
    if not seconds:
        return "0"
    unit, length = next((unit, length) for unit, length in _SECONDS if seconds % length == 0)
    return f"{seconds // length}{unit}"


def parse_interval(text: str) -> int:
    """Parses a duration that may be shorter than a second, such as ``10ms`` or ``250us``, into microseconds.

    Raises:
        ValueError: ``text`` is not a duration, or zero.
    """
    if match := _INTERVAL.fullmatch(text):
        interval_us = int(match[1]) * _SHORT_UNITS_US[match[2]]
    elif text == "0" or _DURATION.fullmatch(text):
        interval_us = parse_duration(text) // timedelta(microseconds=1)
    else:
        raise ValueError(
            f"{text!r} is not a duration; write a whole number and us, ms, s, m, h or d, like 10ms, 1s or 15m"
        )
    if not interval_us:
        raise ValueError(f"{text!r} must be longer than zero, like 10ms, 1s or 15m")
    return interval_us


def format_interval(interval_us: int) -> str:
    """Formats the interval in the largest unit that is exact: ``10ms``, ``1s``, ``15m``."""
    unit = next((unit for unit, length_us in _SHORT_UNITS_US.items() if interval_us % (length_us * 1000)), None)
    return (
        f"{interval_us // _SHORT_UNITS_US[unit]}{unit}"
        if unit
        else format_duration(timedelta(microseconds=interval_us))
    )
