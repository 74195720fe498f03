"""Integers as doubles, without rounding."""

_EXACT = 1 << 53


def exact_float(value: int) -> float | None:
    """Returns the integer as a float if a float can hold it exactly; otherwise None."""
    if -_EXACT <= value <= _EXACT:
        return float(value)
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if int(number) == value else None
