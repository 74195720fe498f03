"""Integers as doubles, without rounding."""

import math

_EXACT = 1 << 53


def exact_float(value: int) -> float | None:
    """Returns the integer as a float if a float can hold it exactly; infinity beyond the range; otherwise None."""
    if -_EXACT <= value <= _EXACT:
        return float(value)
    try:
        number = float(value)
    except OverflowError:
        return math.copysign(math.inf, value)
    return number if int(number) == value else None
