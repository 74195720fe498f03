import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.notation.cell_values import Values, format_value, parse_value, rounded

doubles = st.floats(allow_nan=False, allow_infinity=False)


@given(doubles)
def test_text_round_trip(value):
    """The text of a double parses back to the same double, including the sign of zero, and has no trailing .0."""
    text = format_value(value)
    read = parse_value(text)
    assert read == value
    assert math.copysign(1, read) == math.copysign(1, value)
    assert not text.endswith(b".0")


@given(st.lists(doubles | st.integers(-9, 10**17).map(float)), st.sampled_from(Values))
def test_many_values(values, kind):
    """Many values are packed and unpacked like each of them."""
    packed = [kind.pack(value) for value in values]
    assert kind.pack_all(values) == packed
    assert list(map(repr, kind.unpack_all(packed))) == list(map(repr, values))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e22, b"1e+22"),
        (-0.0, b"-0"),
        (0.1 + 0.2, b"0.30000000000000004"),
        (math.inf, b"inf"),
        (60, b"60"),
    ],
)
def test_text(value, text):
    """The text is the shortest one, as in the contract."""
    assert format_value(value) == text
    assert Values.TEXT.pack(value) == text


@given(doubles)
def test_float64_is_big_endian(value):
    """A float64 is the eight bytes of IEEE 754, the most significant first, and parses back bit for bit."""
    data = Values.FLOAT64.pack(value)
    assert data == struct.pack(">d", value)
    assert struct.pack(">d", Values.FLOAT64.unpack(data)) == data


@pytest.mark.parametrize("text", [b"+1.5", b"1.", b".5", b"1E3", b"007", b"-0"])
def test_text_of_other_writers(text):
    """Any plain decimal number is a value, even if it is not the shortest text."""
    assert parse_value(text) == float(text)


@pytest.mark.parametrize(
    ("values", "data"),
    [
        *((Values.TEXT, data) for data in (b"", b"warm", "٣".encode(), b"\xff", b"9" * 100_000 + b"x")),
        *((Values.TEXT, data) for data in (b"nan", b"inf", b"Infinity", b"1e309", b"1_0", b" 1", b"1\n", b"0x10")),
        *((Values.FLOAT64, data) for data in (b"23.5", b"\0" * 9, b"")),
        *((Values.FLOAT64, struct.pack(">d", value)) for value in (math.nan, math.inf, -math.inf)),
    ],
)
def test_bytes_that_are_not_a_value(values, data):
    """Bytes that are not a value raise a ValueError with a short message, also where float() accepts them."""
    problem = r"is not a number|is not the eight bytes of a float64|not a finite|is not finite"
    with pytest.raises(ValueError, match=problem) as error:
        values.unpack(data)
    assert len(str(error.value)) < 200
    with pytest.raises(ValueError, match=problem):
        values.unpack_all([values.pack(1.0), data])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1 + 0.2, "0.3"),
        (23.456789, "23.4568"),
        (1234567.89, "1234568"),
        (-1.23456789e-12, "-1.23457e-12"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (-0.0, "-0"),
        (math.inf, "inf"),
    ],
)
def test_rounded(value: float, text: str) -> None:
    """Six digits count, and every digit before the point; whole numbers are unchanged."""
    assert rounded(value) == text
