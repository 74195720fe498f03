"""Integers as doubles, without rounding."""

import math
import struct

MAX_EXACT = 1 << 53
"""A double can hold every integer up to this magnitude."""
_MAX_DIGITS = 400  # a double has at most 309


def exact_float_of(digits: str) -> float | None:
    """Returns what :func:`exact_float` does for an integer as text, whose minus before a zero is kept."""
    if len(digits) > _MAX_DIGITS:  # Python refuses integers of thousands of digits with an error of its own
        return float(digits)
    return exact_float(int(digits)) or (None if int(digits) else float(digits))


def nearest_float32(value: float) -> float:
    """Returns the number of 32 bits that is next to a double; a double beyond their range unchanged."""
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return value


def shortest_float32(value: float) -> float:
    """Returns the number with the fewest decimals that a number of 32 bits stands for: 21.3 for 21.299999237060547."""
    for digits in (6, 7, 8):
        shorter = float(f"{value:.{digits}g}")
        if nearest_float32(shorter) == value:
            return shorter
    return float(f"{value:.9g}")


def exact_float(value: int) -> float | None:
    """Returns the integer as a float if a float can hold it exactly; infinity beyond the range; otherwise None."""
    if -MAX_EXACT <= value <= MAX_EXACT:
        return float(value)
    try:
        number = float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    return number if int(number) == value else None
