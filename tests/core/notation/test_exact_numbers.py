import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.notation.exact_numbers import exact_float, exact_float_of

_integers = st.integers() | st.integers(-1100, 1100).map(lambda shift: (1 << abs(shift)) * (-1 if shift < 0 else 1))


@given(_integers, st.integers(-1, 1))
def test_an_integer_is_exact_or_none_or_infinite(value, step):
    """An integer becomes the equal double, none if there is none, or infinity beyond them."""
    value += step
    number = exact_float(value)
    if number is None:
        assert Fraction(float(value)) != value
    elif math.isinf(number):
        assert abs(value) > int(1.7976931348623157e308)
        assert (number > 0) == (value > 0)
    else:
        assert Fraction(number) == value


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (2**53 + 1, None),
        (-(2**53) - 1, None),
        (2**53 + 2, 2.0**53 + 2),
        (2**64 - 1, None),
        (10**23, None),
        (10**400, math.inf),
        (-(10**400), -math.inf),
    ],
)
def test_bounds(value, number):
    """Integers at the bounds of doubles are exact, none or infinite."""
    assert exact_float(value) == number
    assert exact_float_of(str(value)) == number


def test_digits():
    """Thousands of digits are infinite instead of an error, and minus zero is minus zero."""
    assert [exact_float_of(sign + "9" * 5000) for sign in ("", "-")] == [math.inf, -math.inf]
    assert [math.copysign(1, exact_float_of(text)) for text in ("0", "-0")] == [1, -1]
