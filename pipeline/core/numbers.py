"""Integers as doubles, without rounding."""

import math

MAX_EXACT = 1 << 53
"""A double can hold every integer up to this magnitude."""
_MAX_DIGITS = 400  # a double has at most 309


def exact_float_of(digits: str) -> float | None:
    """Returns what :func:`exact_float` does for an integer as text, whose minus before a zero is kept."""
    if len(digits) > _MAX_DIGITS:  # Python refuses integers of thousands of digits with an error of its own
        return float(digits)
    return exact_float(int(digits)) or (None if int(digits) else float(digits))


def exact_float(value: int) -> float | None:
    """Returns the integer as a float if a float can hold it exactly; infinity beyond the range; otherwise None."""
    if -MAX_EXACT <= value <= MAX_EXACT:
        return float(value)
    try:
        number = float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    return number if int(number) == value else None
