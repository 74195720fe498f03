"""Durations as people write them on a command line: ``90s``, ``15m``, ``1h``, ``1d``."""

import re
from datetime import timedelta

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_DURATION = re.compile(r"([0-9]{1,9})([smhd])")  # nine digits of days are the most that a timedelta holds
_SECONDS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def parse_duration(text: str) -> timedelta:
    """A whole number and a unit, one of s, m, h, d; ``0`` needs no unit.

    Raises:
        ValueError: ``text`` is not of that form. The message says so, and what is.
    """
    if text == "0":
        return timedelta(0)
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write a whole number and s, m, h or d, like 90s or 15m")
    amount, unit = match.groups()
    return timedelta(**{_UNITS[unit]: int(amount)})


def format_duration(duration: timedelta) -> str:
    """The duration in the largest unit that is exact: ``90s``, ``15m``, ``1h``; ``0`` for none."""
    seconds = duration // timedelta(seconds=1)
    if not seconds:
        return "0"
    unit, length = next((unit, length) for unit, length in _SECONDS if seconds % length == 0)
    return f"{seconds // length}{unit}"
